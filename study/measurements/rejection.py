"""Whether "none of these" keeps its word: false rejections at the stated rate, and unknown images that are rejected.

    python study/measurements/rejection.py EUROSAT CALTECH FLOWERS [--features FOLDER] [--held-back] [--json FILE]
    python study/measurements/rejection.py --show study/rejection.json

The first arguments are dataset folders as `dca fit` takes them, whose images the embedded model encodes. FOLDER holds
features of OpenAI's ViT-B/32 (shared/data/clip_features). A task draws classes, photos of each to learn from, and new
images of the same classes, all from one pool; the images of all other classes are unknown. Settings were chosen on
training and validation images of EuroSAT, Caltech101 and Flowers102 and on the validation rows of Caltech101,
Flowers102 and Pets; --held-back measures UCF101, SUN397 and Food101 instead, which were opened once, after that.

"Before" is the largest prediction of kernel ridge, compared with that of held-out images as it is (ρ = 0.03, with which
the areas under the ROC curve are those of the ρ that leave-one-out chooses). The second table has the p-values with and
without images of none of the classes ("other" images), drawn from half of the unknown classes: of the same kinds are
further images of these, of new kinds those of the other half. In the third table photos are from the training part of a
set (of features: the validation part) and new images from the rest; UCF101's parts are different videos. Nothing is
chosen here.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from closed_form import area_under_curve, existing_items
from paired import add_page_options, print_tables
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from dca import Session
from dca.core.files import read_json, write_json
from dca.datasets import load_dataset
from dca.methods.shared.experts import KernelRidge
from dca.methods.shared.familiarity import RIDGE, WIDTH, Familiarity

SCRIPT = "study/measurements/rejection.py"
RATE = 0.05
# Photos of each class: from 20 in all on, where a rate of 0.05 can be kept.
SITUATIONS: tuple[tuple[int, ...], ...] = (
    *((2,) * 10, (7,) * 3, (10,) * 2, (4,) * 6, (5,) * 6, (8,) * 6, (16,) * 6, (8,) * 20),
    *((112, 6), (40, 20, 5), (30, 10, 5, 5, 3), (30,) * 5 + (5,) * 5),
)
# Photos of each of six classes, and other images.
WITH_OTHER = ((4, 10), (8, 10), (8, 30), (16, 30))
# Photos of each of six classes, the later half of which are siblings of the others, as photos of one occasion are: they
# differ by this share of the mean distance within the class.
WITH_SIBLINGS, SIBLING_DISTANCE = (4, 8, 16), 0.25
# Photos of each of six classes, where photos and new images come from different parts of a set.
APART = (8, 16)
# Most new images of a class, and unknown images, of a task; fewest new images that a class must have, and that six
# classes must have to make siblings of some.
MOST_NEW, MOST_UNKNOWN, LEAST_NEW, LEAST_SPARE = 60, 1000, 2, 120
OPEN = {"caltech101": ("val", "test"), "oxford_flowers": ("val", "test"), "oxford_pets": ("val", "test")}
HELD_BACK = {"ucf101": ("val", "test"), "sun397": ("val",), "food101": ("train16",)}
PValues = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Pool:
    """Unit features (N, D), labels (N,) and number of the part (N,) of a set of images."""

    name: str
    features: Tensor
    labels: Tensor
    part: Tensor


@dataclass(frozen=True)
class Task:
    """Photos to learn from, new images of their classes, and images of other classes with their classes.

    classes: in the pool, of the known ones, (C,).
    """

    x: Tensor
    y: Tensor
    new: Tensor
    new_y: Tensor
    unknown: Tensor
    unknown_y: Tensor
    classes: Tensor


def encode_dataset(place: str, session: Session) -> Pool:
    """Features of all images of a dataset by the embedded model."""
    dataset = load_dataset(place)
    parts = [existing_items(part) for part in (dataset.train, (*dataset.val, *dataset.test))]
    items = [item for part in parts for item in part]
    features = session.frozen_features(session.load_backbone("mini"), [item.image for item in items])
    return Pool(
        f"{dataset.name}, mini",
        F.normalize(features.double(), dim=-1),
        torch.tensor([item.label for item in items]),
        torch.tensor([number for number, part in enumerate(parts) for _ in part]),
    )


def read_features(folder: Path, name: str, parts: Sequence[str]) -> Pool:
    """The rows of some parts of a file of features."""
    tensors = load_file(folder / f"{name}.safetensors")
    features, labels = (torch.cat([tensors[f"{part}_{what}"] for part in parts]) for what in ("features", "labels"))
    part = torch.tensor([number for number, part in enumerate(parts) for _ in tensors[f"{part}_labels"]])
    return Pool(f"{name}, ViT-B/32", F.normalize(features.double(), dim=-1), labels.long(), part)


def draw_task(
    pool: Pool, photos: Sequence[int], seed: int, *, apart: bool = False, unknown: bool = True
) -> Task | None:
    """Draw a task with these photos per class; None if the pool has too few classes with so many images.

    apart: photos come from the first part of the pool, and new images from the others. unknown: whether half of the
    classes at least must be left as unknown ones.
    """
    generator = torch.Generator().manual_seed(seed)
    counts = torch.bincount(pool.labels[pool.part == 0] if apart else pool.labels, minlength=int(pool.labels.max()) + 1)
    order = torch.randperm(len(counts), generator=generator).tolist()
    known: list[int] = []
    for wanted in photos:
        able = [c for c in order if c not in known and counts[c] >= wanted + LEAST_NEW]
        known += able[:1]
    if len(known) < len(photos) or (unknown and len(known) > int((counts > 0).sum()) // 2):
        return None
    learned, new = [], []
    for c, wanted in zip(known, photos, strict=True):
        own = (pool.labels == c).nonzero()[:, 0]
        own = own[torch.randperm(len(own), generator=generator)]
        first = own[pool.part[own] == 0] if apart else own
        learned.append(first[:wanted])
        new.append((own[pool.part[own] > 0] if apart else own[wanted:])[:MOST_NEW])
    place = torch.full((len(counts),), -1)
    place[known] = torch.arange(len(known))
    rest = (place[pool.labels] < 0).nonzero()[:, 0]
    rest = rest[torch.randperm(len(rest), generator=generator)[:MOST_UNKNOWN]]
    rows, more = torch.cat(learned), torch.cat(new)
    return Task(
        pool.features[rows], place[pool.labels[rows]], pool.features[more], place[pool.labels[more]],
        pool.features[rest], pool.labels[rest], torch.tensor(known),
    )  # fmt: skip


def add_siblings(task: Task) -> Task:
    """Replace half of the photos of each class by siblings of the others.

    A sibling is its photo plus a part of the difference of two images of the class, which are new images no more.
    """
    x, kept = task.x.clone(), torch.ones(len(task.new), dtype=torch.bool)
    for c in range(int(task.y.max()) + 1):
        own, spare = (task.y == c).nonzero()[:, 0], (task.new_y == c).nonzero()[:, 0]
        half = len(own) // 2
        for n, (first, later) in enumerate(zip(own[:half], own[half:], strict=False)):
            pair = spare[torch.tensor([2 * n, 2 * n + 1]) % max(len(spare) // 2, 1)]
            change = task.new[pair[0]] - task.new[pair[1]]
            x[later] = F.normalize(task.x[first] + SIBLING_DISTANCE**0.5 * change, dim=0)
        kept[spare[: len(spare) // 2]] = False
    return Task(x, task.y, task.new[kept], task.new_y[kept], task.unknown, task.unknown_y, task.classes)


def earlier_p_values(task: Task) -> PValues:
    """The p-values before: the largest prediction, compared as it is."""
    kernel = KernelRidge(task.x, task.y, int(task.y.max()) + 1, torch.arange(len(task.y)), WIDTH)
    held, coefficients = kernel.held_out(RIDGE).amax(dim=-1), kernel.coefficients(RIDGE)

    def p_values(f: Tensor) -> Tensor:
        scores = (kernel.kernel_values(f) @ coefficients).amax(dim=-1)
        return (1 + (held <= scores[:, None]).sum(dim=-1)).double() / (1 + len(held))

    return p_values


def present_p_values(task: Task, other: Tensor | None = None) -> PValues:
    """The p-values of the closed form, with some other images (M, D)."""
    groups, classes = torch.arange(len(task.y)), int(task.y.max()) + 1
    return Familiarity.from_features(task.x, task.y, groups, classes, other).p_values


def measure(p_values: PValues, task: Task, unknown: Tensor) -> dict[str, float]:
    """False rejections as mean over classes and in the rarest class, unknown images rejected, and the AUROC."""
    known, strange = p_values(task.new), p_values(unknown)
    rejected = (known <= RATE + 1e-12).double()
    each = [float(rejected[task.new_y == c].mean()) for c in sorted(set(task.new_y.tolist()))]
    area = area_under_curve(
        torch.cat([torch.zeros(len(known)), torch.ones(len(strange))]).bool().numpy(),
        1 - torch.cat([known, strange]).numpy(),
    )
    return {
        "false": 100 * statistics.mean(each),
        "rarest": 100 * each[int(torch.bincount(task.y).argmin())],
        "found": 100 * float((strange <= RATE + 1e-12).double().mean()),
        "area": area,
    }


def measure_ways(task: Task, pool: Pool) -> dict[str, Any]:
    """The figures of a task before and after."""
    ways = {"before": earlier_p_values(task), "after": present_p_values(task)}
    return {"pool": pool.name} | {name: measure(p_values, task, task.unknown) for name, p_values in ways.items()}


def split_unknown(task: Task, others: int) -> tuple[Tensor, Tensor, Tensor]:
    """Other images, further ones of the same kinds, and images of new kinds."""
    kinds = torch.tensor(sorted(set(task.unknown_y.tolist())))
    same = torch.isin(
        task.unknown_y, kinds[torch.randperm(len(kinds), generator=torch.Generator().manual_seed(0))][::2]
    )
    return task.unknown[same][:others], task.unknown[same][others:], task.unknown[~same]


def measure_pools(pools: Sequence[Pool], draws: int) -> list[dict[str, Any]]:
    """One row per pool, situation and draw."""
    rows = []
    for pool in pools:
        for photos in SITUATIONS:
            for seed in range(draws):
                if (task := draw_task(pool, photos, seed)) is None:
                    continue
                rows.append({"photos": list(photos), **measure_ways(task, pool)})
        for shots, others in WITH_OTHER:
            for seed in range(draws):
                if (task := draw_task(pool, (shots,) * 6, seed)) is None:
                    continue
                learned, same, new = split_unknown(task, others)
                if not len(same) or not len(new):
                    continue
                found = {
                    f"{name}, {kind}": measure(present_p_values(task, other), task, unknown)
                    for name, other in (("without", None), ("with", learned))
                    for kind, unknown in (("same", same), ("new", new))
                }
                rows.append({"pool": pool.name, "photos": [shots] * 6, "other": others, **found})
        for shots in WITH_SIBLINGS:
            for seed in range(draws):
                if (task := draw_task(pool, (shots,) * 6, seed)) is not None and len(task.new) >= LEAST_SPARE:
                    rows.append({"photos": [shots] * 6, "siblings": True, **measure_ways(add_siblings(task), pool)})
        for shots in APART if bool(pool.part.any()) else ():
            for seed in range(draws):
                if (task := draw_task(pool, (shots,) * 6, seed, apart=True)) is not None:
                    rows.append({"photos": [shots] * 6, "apart": pool.name, **measure_ways(task, pool)})
        click.echo(f"{pool.name}: {sum(row['pool'] == pool.name for row in rows)} tasks", err=True)
    return rows


def summarize(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means and standard errors over the tasks of each situation, with the number of tasks and of pools."""
    groups: dict[tuple[str, bool, tuple[int, ...], int], list[Mapping[str, Any]]] = {}
    for row in rows:
        kind = (row.get("apart", ""), row.get("siblings", False), tuple(row["photos"]), row.get("other", 0))
        groups.setdefault(kind, []).append(row)
    return [
        {
            "apart": apart,
            "siblings": siblings,
            "photos": list(photos),
            "other": other,
            "tasks": len(own),
            "pools": len({row["pool"] for row in own}),
            **{
                way: {
                    figure: [
                        round(statistics.mean(row[way][figure] for row in own), 2),
                        round(statistics.stdev(row[way][figure] for row in own) / len(own) ** 0.5, 2),
                    ]
                    for figure in values
                }
                for way, values in own[0].items()
                if isinstance(values, dict)
            },
        }
        for (apart, siblings, photos, other), own in groups.items()
    ]


def describe_photos(photos: Sequence[int]) -> str:
    """The photos of each class in words."""
    runs = {n: photos.count(n) for n in photos}
    if len(runs) == 1:
        return f"{len(photos)} x {photos[0]}"
    return " + ".join(str(n) if times == 1 else f"{times} x {n}" for n, times in runs.items())


def make_table(rows: Sequence[Mapping[str, Any]], *, apart: bool = False) -> str:
    """False rejections, unknown images rejected and AUROC, before / after; apart: from different parts of each set."""
    lines = [
        "| photos | false rejections | in the rarest class | unknown images rejected | AUROC | tasks |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        if row["other"] or bool(row["apart"]) != apart:
            continue
        before, after = row["before"], row["after"]
        cells = [
            f"{before[figure][0]:.1f} / {after[figure][0]:.1f}" + (f" ± {after[figure][1]:.1f}" * (figure == "false"))
            for figure in ("false", "rarest", "found", "area")
        ]
        where = f"{row['apart']}, " if apart else "half siblings, " if row["siblings"] else ""
        lines.append(f"| {where}{describe_photos(row['photos'])} | {' | '.join(cells)} | {row['tasks']} |")
    return "\n".join(lines)


def make_other_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The same without / with other images."""
    lines = [
        "| photos, other | false rejections | same kinds: rejected | AUROC | new kinds: rejected | AUROC | tasks |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        if not row["other"]:
            continue
        wanted = (("same", "false"), ("same", "found"), ("same", "area"), ("new", "found"), ("new", "area"))
        cells = [f"{row[f'without, {kind}'][f][0]:.1f} / {row[f'with, {kind}'][f][0]:.1f}" for kind, f in wanted]
        lines.append(f"| {describe_photos(row['photos'])}, {row['other']} | {' | '.join(cells)} | {row['tasks']} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, or show figures that were measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", help="dataset folders, encoded by the embedded model")
    parser.add_argument("--features", type=Path, help="folder of precomputed features")
    parser.add_argument("--held-back", action="store_true", help="the sets that nothing was chosen on")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the figures here")
    add_page_options(parser)
    chosen = parser.parse_args()
    if chosen.show:
        rows = read_json(chosen.show)["rows"]
    else:
        torch.set_num_threads(1)
        session = Session(device="cpu")
        pools = [encode_dataset(place, session) for place in chosen.data]
        if chosen.features:
            parts = HELD_BACK if chosen.held_back else OPEN
            pools += [read_features(chosen.features, name, part) for name, part in parts.items()]
        rows = summarize(measure_pools(pools, chosen.draws))
    if chosen.json:
        write_json(chosen.json, {"rows": rows})
    mark = f"{SCRIPT} --held-back" if chosen.held_back else SCRIPT
    tables = [make_table(rows), make_other_table(rows), make_table(rows, apart=True)]
    print_tables("\n\n".join(tables), mark, chosen.page)


if __name__ == "__main__":
    main()
