"""The default beside other methods over frozen features, on nine sets of features.

    python study/measurements/rivals.py EUROSAT CALTECH FLOWERS --features FOLDER [--workers 2] [--json FILE]
    python study/measurements/rivals.py --show study/rivals.json --page docs/closed-form.md

What FILE has already is kept; `--again closed_form` measures one method again.

The first arguments are dataset folders as `dca fit` takes them: the embedded model encodes their images and class
names; training images are drawn from their training part and measured on the rest. FOLDER holds features of OpenAI's
ViT-B/32 (shared/data/clip_features). Those of Caltech101, Flowers102 and Pets have no text here, but for the classes of
Caltech101 whose name is among its texts; each draw divides their validation and test rows anew. UCF101 draws from its
validation part, SUN397 from its training rows, Food101 divides its training rows.

A draw takes as many images per class as it has shots. The default sees nothing else. Methods that select on validation
images get up to four more per class, where there are any. Every method has its default options with one view; the ridge
of `ridge` is chosen by leave-one-out, the shrinkage of `lda` is Ledoit's and Wolf's. Means over five draws, or those
that FILE has; intervals are those of Student's t over draws.
"""

from __future__ import annotations

import argparse
import math
import statistics
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from clip_features import Given, Rows, index_by_name
from paired import add_page_options, format_table, print_tables, read_rows, write_rows
from rejection import Pool, encode_dataset, read_features
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from dca import Session
from dca.core.files import read_json
from dca.datasets import load_dataset
from dca.methods.base import Problem
from dca.methods.registry import get_method
from dca.methods.shared.frozen_features import encode_class_texts, unit_mean
from dca.stats.calibration import calibration_error
from dca.stats.student import t_quantile
from dca.training.loop import Trainer

SCRIPT = "study/measurements/rivals.py"
SHOTS, DRAWS = (1, 2, 4, 8, 16), 5
# Most validation images per class that a rival gets, fewest and most new images of a class.
VALIDATION, LEAST_NEW, MOST_NEW = 4, 4, 60
MANY_CLASSES = 200
RIVALS: dict[str, dict[str, Any]] = {
    "gda": {"views": 0},
    "linear_probe": {},
    "tip_adapter": {"views": 0},
    "tip_adapter_f": {"views": 0, "train_views": 1},
}
SETTINGS: dict[str, dict[str, Any]] = {**RIVALS, "clap": {"views": 1}}


@dataclass(frozen=True)
class Source:
    """Features to draw from and to measure on. text: (C, D), or None. apart: whether new images are of another part."""

    pool: Pool
    text: Tensor | None
    tau: float
    apart: bool


@dataclass(frozen=True)
class Draw:
    """Training rows with their validation rows, new rows, texts (C, D) and τ."""

    train: Rows
    new: Rows
    text: Tensor | None
    tau: float

    @property
    def classes(self) -> int:
        """C."""
        return int(self.train.labels.max()) + 1


def encode_texts(place: str, session: Session) -> tuple[Tensor, float]:
    """Unit text features (C, D) of a dataset by the embedded model, and its τ."""
    dataset, clip = load_dataset(place), session.load_backbone("mini")
    problem = Problem(names=tuple(dataset.names), shots=1, template=dataset.template)
    return unit_mean(encode_class_texts(clip, problem)), float(clip.tau)


def read_sources(folder: Path) -> Iterator[Source]:
    """The sets of features of ViT-B/32."""
    for name in ("caltech101", "oxford_flowers", "oxford_pets"):
        yield Source(read_features(folder, name, ("val", "test")), None, 100.0, apart=False)
    yield Source(read_features(folder, "ucf101", ("val", "test")), None, 100.0, apart=True)
    yield Source(read_features(folder, "sun397", ("train8", "val")), None, 100.0, apart=True)
    yield Source(read_features(folder, "food101", ("train16",)), None, 100.0, apart=False)
    yield read_named_caltech(folder)


def read_named_caltech(folder: Path) -> Source:
    """The classes of Caltech101 whose names have text features of ViT-B/32."""
    about, pool = read_json(folder / "meta.json"), read_features(folder, "caltech101", ("val", "test"))
    lvis = load_file(folder / "text_a_cname_detic.safetensors")["lvis"].float()
    text = index_by_name(about["text"]["lvis_names"], F.normalize(lvis, dim=-1))
    names = about["caltech101"]["classnames"]
    classes = [c for c, name in enumerate(names) if name in text]
    place = torch.full((len(names),), -1)
    place[classes] = torch.arange(len(classes))
    kept = place[pool.labels] >= 0
    part = Pool("caltech101 with text, ViT-B/32", pool.features[kept], place[pool.labels[kept]], pool.part[kept])
    return Source(part, torch.stack([text[names[c]] for c in classes]), 100.0, apart=False)


def draw_rows(source: Source, shots: int, seed: int) -> Draw | None:
    """Draw a task of all classes with enough rows; None if these are fewer than half of the classes."""
    pool, generator = source.pool, torch.Generator().manual_seed(seed)
    train, validation, new, classes = [], [], [], []
    total = torch.unique(pool.labels)
    for c in total.tolist():
        own = (pool.labels == c).nonzero()[:, 0]
        own = own[torch.randperm(len(own), generator=generator)]
        first = own[pool.part[own] == 0] if source.apart else own
        last = own[pool.part[own] > 0] if source.apart else own[shots + min(shots, VALIDATION) :]
        if len(first) < shots or len(last) < LEAST_NEW:
            continue
        classes.append(c)
        train.append(first[:shots])
        validation.append(first[shots : shots + min(shots, VALIDATION)])
        new.append(last[:MOST_NEW])
    if 2 * len(classes) < len(total):
        return None
    place = torch.full((int(total.max()) + 1,), -1)
    place[classes] = torch.arange(len(classes))
    parts = [Rows(pool.features[rows].float(), place[pool.labels[rows]]) for rows in map(torch.cat, (train, new))]
    held = torch.cat(validation)
    if len(held):
        parts[0].validation = Rows(pool.features[held].float(), place[pool.labels[held]])
    return Draw(parts[0], parts[1], None if source.text is None else source.text[classes], source.tau)


def predict(name: str, settings: Mapping[str, Any], draw: Draw) -> Tensor:
    """Probabilities of the new rows by one method, fitted as `dca fit` fits it, (M, C)."""
    C, D = draw.classes, draw.train.features.shape[1]
    given = Given(torch.zeros(C, D) if draw.text is None else draw.text.float())
    given.tau = draw.tau
    problem = Problem(names=tuple(map(str, range(C))), shots=len(draw.train.labels) // C, seed=1)
    kind = get_method(name)
    method = kind.build(given, problem, kind.Options(**settings))  # type: ignore[arg-type]
    if method.trains_on == "features":
        Trainer(method, draw.train, method.options, seed=1).run()  # type: ignore[arg-type]
    method.finish(draw.train)  # type: ignore[arg-type]
    method.build_head()
    with torch.no_grad():
        return method.classify(method.encode(draw.new.features))


def predict_by_nearest_mean(draw: Draw) -> Tensor:
    """Predicted classes (M,)."""
    means = torch.stack([draw.train.features[draw.train.labels == c].mean(dim=0) for c in range(draw.classes)])
    return (draw.new.features @ F.normalize(means, dim=-1).T).argmax(dim=-1)


def predict_by_sklearn(name: str, draw: Draw) -> Tensor:
    """Predicted classes (M,) of ridge regression or LDA."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.linear_model import RidgeClassifierCV

    ridge = name == "ridge"
    head: Any = (
        RidgeClassifierCV(alphas=np.logspace(-3, 3, 13))
        if ridge
        else LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    )
    x, new = draw.train.features.double().numpy(), draw.new.features.double().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(head.fit(x, draw.train.labels.numpy()).predict(new))


def rivals_of(source: Source, shots: int) -> tuple[str, ...]:
    """The methods that are compared: CLAP needs text, and LDA several images of a class."""
    text = () if source.text is None else ("clap",)
    return ("nearest mean", "ridge", *(("lda",) if shots > 1 else ()), *RIVALS, *text)


def measure(source: Source, shots: int, seed: int, row: dict[str, Any]) -> dict[str, Any] | None:
    """A row with what it lacks: percent of new rows that are right by every method, the default's calibration error."""
    torch.set_num_threads(1)
    if (draw := draw_rows(source, shots, seed)) is None:
        return None
    labels, found = draw.new.labels, dict[str, float](row.get("accuracy", {}))
    row = {"set": source.pool.name, "shots": shots, "draw": seed, "classes": draw.classes, "images": len(labels)} | row

    def keep(name: str, predicted: Tensor) -> Tensor:
        right = predicted == labels
        found[name] = round(100 * float(right.double().mean()), 4)
        return right

    if "closed_form" not in found:
        default = predict("closed_form", {}, draw)
        confidence, classes = default.max(dim=-1)
        row["ece"] = 100 * calibration_error(confidence.numpy(), keep("closed_form", classes).numpy())
    for name in rivals_of(source, shots):
        if name not in found:
            settings = SETTINGS.get(name)
            if settings is not None:
                keep(name, predict(name, settings, draw).argmax(dim=-1))
            else:
                keep(name, predict_by_nearest_mean(draw) if name == "nearest mean" else predict_by_sklearn(name, draw))
    return row | {"accuracy": found}


def measure_sources(
    sources: Sequence[Source], workers: int, json: Path | None, done: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """All rows, sorted, with those that are done; written to `json` as they come."""
    order = {source.pool.name: n for n, source in enumerate(sources)}
    rows = {(row["set"], row["shots"], row["draw"]): row for row in done if row["set"] in order}
    jobs = []
    for seed, source, k in product(range(DRAWS), sources, SHOTS):
        row = rows.get((source.pool.name, k, seed), {})
        if {"closed_form", *rivals_of(source, k)} - {*row.get("accuracy", ())}:
            jobs.append((source, k, seed, row))
    # Those with hundreds of classes last: they take by far the longest.
    jobs.sort(key=lambda job: bool(job[0].pool.labels.max() > MANY_CLASSES))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes:
        for number, ended in enumerate(as_completed([processes.submit(measure, *job) for job in jobs]), 1):
            if (new := ended.result()) is not None:
                rows[new["set"], new["shots"], new["draw"]] = new
                write_rows(json, _sort_rows(rows.values(), order))
                click.echo(f"{number} of {len(jobs)}: {new['set']}, {new['shots']} shots", err=True)
    return _sort_rows(rows.values(), order)


def _sort_rows(rows: Iterable[dict[str, Any]], order: Mapping[str, int]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (order[row["set"]], row["shots"], row["draw"]))


@dataclass(frozen=True)
class Cell:
    """One set and number of shots: means over draws; `half` is that of the interval of the lead over the best rival."""

    name: str
    shots: int
    draws: int
    ours: float
    rival: str
    theirs: float
    half: float
    ece: float


def summarize(rows: Sequence[Mapping[str, Any]]) -> list[Cell]:
    """One cell per set and number of shots."""
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["set"], row["shots"]), []).append(row)
    cells = []
    for (name, shots), own in groups.items():
        means = {method: statistics.mean(row["accuracy"][method] for row in own) for method in own[0]["accuracy"]}
        ours = means.pop("closed_form")
        rival = max(means, key=means.__getitem__)
        differences = [row["accuracy"]["closed_form"] - row["accuracy"][rival] for row in own]
        half = math.inf
        if len(own) > 1:
            half = t_quantile(0.975, len(own) - 1) * statistics.stdev(differences) / len(own) ** 0.5
        ece = statistics.mean(row["ece"] for row in own)
        cells.append(Cell(name, shots, len(own), ours, rival, means[rival], half, ece))
    return cells


def make_tables(rows: Sequence[Mapping[str, Any]]) -> str:
    """The default and the best rival in every cell, the count, and the calibration error by shots."""
    cells = summarize(rows)
    names = list(dict.fromkeys(cell.name for cell in cells))
    shots = sorted({cell.shots for cell in cells})
    at = {(cell.name, cell.shots): cell for cell in cells}

    def describe(cell: Cell | None) -> str:
        if cell is None:
            return ""
        lead = f"{cell.ours - cell.theirs:+.1f}" + (f" ± {cell.half:.1f}" if math.isfinite(cell.half) else "")
        return f"{cell.ours:.1f} / {cell.theirs:.1f} ({cell.rival}), {lead}"

    def count_draws(name: str) -> str:
        least, most = (f(cell.draws for cell in cells if cell.name == name) for f in (min, max))
        return str(most) if least == most else f"{least} to {most}"

    table = format_table(
        ["features", "draws", *(f"{k} shots" if k > 1 else "1 shot" for k in shots)],
        [[name, count_draws(name), *(describe(at.get((name, k))) for k in shots)] for name in names],
    )
    first = sum(cell.ours >= cell.theirs for cell in cells)
    near = sum(cell.ours >= cell.theirs - 0.5 for cell in cells)
    behind = [cell for cell in cells if cell.ours < cell.theirs - 0.5]
    said = "; ".join(f"{c.name}, {c.shots} shots: {c.ours - c.theirs:+.1f}" for c in behind) or "nowhere"
    errors = [[f"{statistics.mean(c.ece for c in cells if c.shots == k):.1f}" for k in shots]]
    errors[0] = ["calibration error, mean of all sets", *errors[0]]
    return "\n\n".join([
        table,
        f"First in {first} of {len(cells)} cells, first or within 0.5 points in {near}; further behind: {said}.",
        format_table(["", *(f"{k} shots" if k > 1 else "1 shot" for k in shots)], errors),
    ])  # fmt: skip


def main() -> None:
    """Measure, or show figures that were measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", help="dataset folders, encoded by the embedded model")
    parser.add_argument("--features", type=Path, help="folder of precomputed features")
    parser.add_argument("--workers", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--json", type=Path, help="write the figures here after every row, and keep those it has")
    parser.add_argument("--again", action="append", default=[], metavar="METHOD", help="measure it again; repeatable")
    add_page_options(parser)
    chosen = parser.parse_args()
    if chosen.show:
        rows = read_rows(chosen.show)
    else:
        session = Session(device="cpu")
        sources = [
            Source(encode_dataset(place, session), *encode_texts(place, session), apart=True) for place in chosen.data
        ]
        sources += read_sources(chosen.features) if chosen.features else ()
        done = read_rows(chosen.json) if chosen.json and chosen.json.exists() else []
        for name in chosen.again:
            for row in done:
                row["accuracy"].pop(name, None)
        rows = measure_sources(sources, chosen.workers, chosen.json, done)
    print_tables(make_tables(rows), SCRIPT, chosen.page)


if __name__ == "__main__":
    main()
