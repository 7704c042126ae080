"""Methods over features, parts of DCA's head, and transduction, on nine sets of features, judged over datasets.

    python study/measurements/nine_sets.py EUROSAT CALTECH FLOWERS --features FOLDER [--draws 3] --json FILE
    python study/measurements/nine_sets.py --show study/nine_sets.json --page docs/methods-research.md

Sources and draws are those of rivals.py: three datasets encoded by the embedded model `mini`, with texts, and features
of OpenAI's ViT-B/32 of six datasets, without. Two more sets have real features and texts: the classes of Caltech101 and
of Food101 whose names are among the texts that are here ("a NAME"); they are for DCA's head and not among the nine.
Every method has its default options with one view; what selects on validation images gets at most four more per class,
`closed_form` none. At most 60 new images of a class are measured.

DCA's head is measured at given texts, one sentence per class in place of trained prompts, which need the towers: so
the table is about the head, not about DCA's training. With one sentence the cosine and the Euclidean distance rank
alike.

Transduction sees all new images of a draw at once; its figures are in a table of their own.

A measurement that was stopped goes on from the rows that FILE has.

The unit of all tests is the dataset, seven of them: two sets of one dataset are averaged. Intervals and p-values are
Student's t over datasets, p-values of several rows corrected by Holm; the sign test counts datasets.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import torch
from clip_features import index_by_name, measure_accuracy
from paired import add_page_options, format_table, print_tables, read_rows, write_rows
from rejection import Pool, encode_dataset, read_features
from rivals import Draw, Source, draw_rows, encode_texts, predict, read_sources
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from dca import Session
from dca.core.files import read_json
from dca.core.text import pluralize
from dca.datasets import catalog
from dca.methods.shared.center import choose_center
from dca.methods.shared.class_features import ClassFeatures
from dca.methods.shared.gaussian import dca_gaussian, paper_gammas
from dca.methods.shared.heads import MahalanobisHead
from dca.methods.shared.transduction import Labelled, Transduction, transduce, transduce_with_best_weight
from dca.stats.paired import holm, sign_test
from dca.stats.student import t_interval, t_test

SCRIPT = "study/measurements/nine_sets.py"
SHOTS, DRAWS = (1, 2, 4, 8, 16), 3
REFERENCE, TEXT_ALONE, DEFAULT_HEAD = "closed_form", "text alone (cosine or d_e)", "d_m, centre chosen, γ by shots"
METHODS: dict[str, dict[str, Any]] = {
    REFERENCE: {},
    "linear_probe": {},
    "tip_adapter": {"views": 0},
    "tip_adapter_f": {"views": 0, "train_views": 1},
    "gda": {"views": 0},
    "proker": {"views": 0},
    "lp_plus_plus": {"views": 0},
}
# γ1 and γ2 that were chosen on validation images with `mini`, and FeCAM's with one image per class.
MINI_GAMMAS, SMALL_GAMMAS = (100.0, 50.0), (10.0, 10.0)
# What the names of sets with real features and texts end with; they are parts of other sets.
NAMED = "with text, ViT-B/32"
Accuracies = dict[str, float]
Rows = Sequence[Mapping[str, Any]]


def read_named_food(folder: Path) -> Source:
    """The classes of Food101 whose names have text features of ViT-B/32; a plural finds its singular."""
    about, pool = read_json(folder / "meta.json"), read_features(folder, "food101", ("train16",))
    lvis = load_file(folder / "text_a_cname_detic.safetensors")["lvis"].float()
    found = index_by_name(about["text"]["lvis_names"], F.normalize(lvis, dim=-1))
    text = {name.replace("_", " "): vector for name, vector in found.items()}
    names = [name.replace("_", " ").lower() for _, name in catalog.get("food101").class_list()]
    singular = [name if name in text else name.removesuffix("s") for name in names]
    classes = [c for c, name in enumerate(singular) if name in text]
    place = torch.full((len(names),), -1)
    place[classes] = torch.arange(len(classes))
    kept = place[pool.labels] >= 0
    part = Pool(f"food101 {NAMED}", pool.features[kept], place[pool.labels[kept]], pool.part[kept])
    return Source(part, torch.stack([text[singular[c]] for c in classes]), 100.0, apart=False)


def measure_methods(draw: Draw, only: Sequence[str]) -> tuple[Accuracies, Accuracies]:
    """Accuracy of every method, or `only` of some, that sees one image at a time, and of transduction after them."""
    labels, found, together = draw.new, dict[str, float](), dict[str, float]()
    names = {**METHODS, **({} if draw.text is None else {"zero_shot": {}})}
    for name, options in names.items():
        if only and name not in only:
            continue
        predicted = predict(name, options, draw)
        found[name] = measure_accuracy(predicted, labels)
        if name in (REFERENCE, "zero_shot"):
            for words, after in classify_together(draw, name, predicted):
                together[words] = measure_accuracy(after.predictions, labels)
    return found, together


def classify_together(draw: Draw, name: str, predicted: Tensor) -> Iterator[tuple[str, Transduction]]:
    """The two forms of TransCLIP, in words: without labelled images, and with them."""
    new, shown = F.normalize(draw.new.features.double(), dim=-1), as_labelled(draw.train)
    yield f"{name}, then Gaussians over new images", transduce(new, predicted)
    if draw.train.validation is None:
        found = transduce(new, predicted, shown)
    else:
        found = transduce_with_best_weight(new, predicted, shown, as_labelled(draw.train.validation))
    yield f"{name}, then Gaussians over new and training images", found


def as_labelled(rows: Any) -> Labelled:
    """Rows as labelled images."""
    return Labelled(F.normalize(rows.features.double(), dim=-1), rows.labels)


def measure_heads(draw: Draw, text: Tensor, shots: int) -> Accuracies:
    """Accuracy of DCA's head at the texts (C, D) by metric, centre, γ, covariance and anchors."""
    u, x, y, C = text.float()[None], draw.train.features, draw.train.labels, len(text)
    grouped, paper = ClassFeatures.group(x, y, C), paper_gammas(shots)
    chosen = choose_center(u, x, y, draw.train.groups, shots=shots, tau=draw.tau)
    means = F.normalize(grouped.means(), dim=-1).float()[None]

    def head(center: str, gammas: tuple[float, float], anchors: Tensor = u, **changes: Any) -> float:
        family = dca_gaussian(*gammas, shots, **changes)
        built = MahalanobisHead.from_text(anchors, grouped, family, tau=draw.tau, center=center, texts=u)
        return measure_accuracy(built(draw.new.features), draw.new)

    return {
        TEXT_ALONE: measure_accuracy(draw.new.features @ u[0].T, draw.new),
        DEFAULT_HEAD: head(chosen, paper),
        "centre of the texts": head("text", paper),
        "centre of the images": head("visual", paper),
        "centre of the texts, γ 100, 50": head("text", MINI_GAMMAS),
        "centre of the images, γ 100, 50": head("visual", MINI_GAMMAS),
        "centre of the images, γ 10, 10": head("visual", SMALL_GAMMAS),
        "no correlation": head(chosen, paper, normalize=False),
        "one covariance for all classes (GDA's)": head(chosen, paper, covariance="gda"),
        "distance to image means": head("visual", paper, means),
        "distance to text and image means": head("visual", paper, F.normalize(u + means, dim=-1)),
    }


def measure(source: Source, shots: int, seed: int, done: dict[str, Any], only: Sequence[str]) -> dict[str, Any] | None:
    """One row: percent of the new rows that are right; what is done is kept, but for `only` these methods."""
    torch.set_num_threads(1)
    if (draw := draw_rows(source, shots, seed)) is None:
        return None
    accuracy, together = measure_methods(draw, only)
    heads = {} if draw.text is None or only else measure_heads(draw, draw.text, shots)
    parts = {"accuracy": accuracy, "transductive": together, "head": heads}
    parts = {name: done.get(name, {}) | found for name, found in parts.items()}
    return {
        "set": source.pool.name,
        "shots": shots,
        "draw": seed,
        "classes": int(draw.train.labels.max()) + 1,
        "images": len(draw.new.labels),
        **{name: {key: round(value, 4) for key, value in found.items()} for name, found in parts.items()},
    }


def measure_sources(
    sources: Sequence[Source], draws: int, workers: int, json: Path | None, again: Sequence[str]
) -> list[dict[str, Any]]:
    """All rows, sorted; written to `json` as they come, and continued from what is there.

    again: methods that are measured again in the rows that are there; no others are.
    """
    order = {source.pool.name: n for n, source in enumerate(sources)}
    read = read_rows(json) if json is not None and json.is_file() else []
    rows = {(row["set"], row["shots"], row["draw"]): row for row in read}
    jobs = [(source, k, seed) for seed in range(draws) for k in SHOTS for source in sources]
    jobs = [job for job in jobs if ((job[0].pool.name, *job[1:]) in rows) == bool(again)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes:
        started = [processes.submit(measure, *job, rows.get((job[0].pool.name, *job[1:]), {}), again) for job in jobs]
        for number, ended in enumerate(as_completed(started), 1):
            if (row := ended.result()) is not None:
                rows[row["set"], row["shots"], row["draw"]] = row
                write_rows(json, _sort_rows(rows.values(), order))
                click.echo(f"{number} of {len(jobs)}: {row['set']}, {row['shots']} shots, draw {row['draw']}", err=True)
    return _sort_rows(rows.values(), order)


def _sort_rows(rows: Iterable[dict[str, Any]], order: Mapping[str, int]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (order.get(row["set"], len(order)), row["shots"], row["draw"]))


def dataset_of(name: str) -> str:
    """The dataset of a set.

    >>> dataset_of("caltech101 with text, ViT-B/32"), dataset_of("eurosat, mini")
    ('caltech101', 'eurosat')
    """
    return name.split(",")[0].split()[0]


def mean_by_dataset(rows: Rows, value: Callable[[Mapping[str, Any]], float | None]) -> dict[str, float]:
    """Mean of a value of rows: over draws, then over shots, then over the sets of a dataset."""
    groups: dict[str, dict[str, dict[int, list[float]]]] = {}
    for row in rows:
        if (found := value(row)) is not None:
            sets = groups.setdefault(dataset_of(row["set"]), {})
            sets.setdefault(row["set"], {}).setdefault(row["shots"], []).append(found)
    return {
        dataset: statistics.mean(
            statistics.mean(statistics.mean(draws) for draws in shots.values()) for shots in sets.values()
        )
        for dataset, sets in groups.items()
    }


def difference_table(rows: Rows, part: str, names: Sequence[str], reference: Callable[[str], tuple[str, str]]) -> str:
    """Each name minus its reference (part of the row, and name), with tests over datasets."""
    lines, p_values, signs = [], [], []
    for name in names:

        def difference(row: Mapping[str, Any], name: str = name) -> float | None:
            where, other = reference(name)
            if name not in row[part] or other not in row[where]:
                return None
            return float(row[part][name] - row[where][other])

        values = list(mean_by_dataset(rows, difference).values())
        if len(values) < 3:
            continue
        low, high = t_interval(values)
        above = sum(value > 0 for value in values)
        p_values.append(t_test(values))
        signs.append(sign_test(values))
        lines.append([
            name, f"{statistics.mean(values):+.1f}", f"{low:+.1f} to {high:+.1f}", f"{above} of {len(values)}",
        ])  # fmt: skip
    corrected, corrected_signs = holm(p_values), holm(signs)
    for n, line in enumerate(lines):
        line += [f"{p_values[n]:.3f}", f"{corrected[n]:.3f}", f"{signs[n]:.3f}", f"{corrected_signs[n]:.3f}"]
    head = ["", "difference", "95 % over datasets", "above on", "p, t", "p, t, Holm", "p, signs", "p, signs, Holm"]
    return format_table(head, lines)


def accuracy_table(rows: Rows, names: Sequence[str], part: str = "accuracy") -> str:
    """Mean accuracy by set, over its numbers of shots and draws."""
    sets = list(dict.fromkeys(row["set"] for row in rows))

    def cell(place: str, name: str) -> str:
        own = [row for row in rows if row["set"] == place and name in row[part]]
        return f"{mean_by_dataset(own, lambda row: row[part][name])[dataset_of(place)]:.1f}" if own else ""

    return format_table(["", *sets], [[name, *(cell(place, name) for place in sets)] for name in names])


def is_among_the_nine(row: Mapping[str, Any]) -> bool:
    """Whether the row is not of the sets that are for the head only."""
    return not row["set"].endswith(NAMED)


def names_in(rows: Rows, part: str) -> list[str]:
    """The names of all rows, in their order."""
    return list(dict.fromkeys(name for row in rows for name in row[part]))


def make_tables(rows: Rows) -> str:
    """Methods on the nine sets, DCA's head on sets with text, and transduction."""
    nine, texts = [row for row in rows if is_among_the_nine(row)], [row for row in rows if row["head"]]
    methods, heads, together = (
        names_in(nine, "accuracy"), names_in(texts, "head"), names_in(nine, "transductive"),
    )  # fmt: skip
    others = [name for name in methods if name not in (REFERENCE, "zero_shot")]
    changed = [name for name in heads if name != TEXT_ALONE]
    count = len({dataset_of(row["set"]) for row in nine})
    draws = pluralize(len({row["draw"] for row in rows}), "draw")
    return "\n\n".join([
        f"Accuracy in percent, mean over the numbers of shots that a set has rows for, {draws} of each set:",
        accuracy_table(nine, methods),
        f"Each method minus `{REFERENCE}`, in points, over {count} datasets:",
        difference_table(nine, "accuracy", others, lambda _: ("accuracy", REFERENCE)),
        "DCA's head at given texts, with 2 and more images per class, and each head minus the text alone:",
        accuracy_table([row for row in texts if row["shots"] > 1], heads, "head"),
        difference_table([row for row in texts if row["shots"] > 1], "head", changed, lambda _: ("head", TEXT_ALONE)),
        "With one image per class, where the covariance is that of the images of all classes:",
        accuracy_table([row for row in texts if row["shots"] == 1], heads, "head"),
        difference_table([row for row in texts if row["shots"] == 1], "head", changed, lambda _: ("head", TEXT_ALONE)),
        "Transduction, which sees all new images at once, and how much it adds to the predictions that it starts at:",
        accuracy_table(nine, together, "transductive"),
        difference_table(nine, "transductive", together, lambda name: ("accuracy", name.partition(",")[0])),
    ])  # fmt: skip


def main() -> None:
    """Measure, or show figures that were measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", help="dataset folders, encoded by the embedded model")
    parser.add_argument("--features", type=Path, help="folder of precomputed features")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--workers", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--json", type=Path, help="write the figures here after every row")
    parser.add_argument("--again", nargs="*", default=[], help="methods to measure again in the rows that it has")
    add_page_options(parser)
    chosen = parser.parse_args()
    if chosen.show:
        rows: Rows = read_rows(chosen.show)
    else:
        session = Session(device="cpu")
        sources = [
            Source(encode_dataset(place, session), *encode_texts(place, session), apart=True) for place in chosen.data
        ]
        if chosen.features:
            sources += [*read_sources(chosen.features), read_named_food(chosen.features)]
        rows = measure_sources(sources, chosen.draws, chosen.workers, chosen.json, chosen.again)
    print_tables(make_tables(rows), SCRIPT, chosen.page)


if __name__ == "__main__":
    main()
