"""The finished cells of a folder of runs, arranged for tables: blocks of comparable runs, variants, cells.

A *variant* is what was run apart from data, shots and seed: a method, its changed options, and the changed options of
its head. A *block* holds the runs whose numbers may stand in one table: same protocol, backbone and rules, and for
runs that are tested on other datasets the same source. A run tested on several targets is a run of each of them.
Seconds can be compared on one kind of device only: in a block, runs have them if they used the device of most runs.

Names of rows: the names that specifications give their grids, else a method with its changed options.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

from dca.core.choices import PROTOCOLS
from dca.datasets import catalog
from dca.study.index import RunRecord
from dca.study.published_numbers import published_numbers
from dca.study.specification import Specification

ZERO_SHOT, OURS = "zero_shot", "dca"
ACCURACY, BASE, NEW, HARMONIC = "accuracy", "base", "new", "harmonic mean"
SECONDS, PARAMETERS = "seconds", "trained parameters"
# Fields of a spec that make numbers incomparable where they differ, with their defaults.
_FIXED = {"precision": "auto", "hold_out": 0.0, "draw": None, "corrections": None}
# Options of heads that training does not read: measured on a finished model they give what a fit with them would.
ONLY_TESTED = ("test_metric",)
Shots = int | None


@dataclass(frozen=True)
class Variant:
    """A method with its changed options. Values are plain and hashable.

    Attributes:
        method: Name of the method.
        options: Changed options, sorted by name.
        head: Options of the finished model's head that differ from those of the fit, sorted by name.
    """

    method: str
    options: tuple[tuple[str, Any], ...] = ()
    head: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, method: str, options: Mapping[str, Any], head: Mapping[str, Any]) -> Variant:
        """The variant of a spec and a head. Options that no training reads are options, wherever they were given."""
        tested = {name: value for name, value in head.items() if name in ONLY_TESTED}
        rest = {name: value for name, value in head.items() if name not in ONLY_TESTED}
        return cls(method, _plain({**options, **tested}), _plain(rest))

    @property
    def settings(self) -> dict[str, Any]:
        """Changed options of the fit and of the head."""
        return {**dict(self.options), **dict(self.head)}

    @property
    def label(self) -> str:
        """The variant in words, e.g. "dca alpha=1 center=visual"."""
        return " ".join([self.method, *(f"{name}={short_value(value)}" for name, value in self.settings.items())])


def _plain(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((name, tuple(v) if isinstance(v, list) else v) for name, v in values.items()))


def short_value(value: Any) -> str:
    """A value without the decimals of a whole number.

    >>> short_value(10.0), short_value(0.5), short_value("text")
    ('10', '0.5', 'text')
    """
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Context:
    """What runs must share to be compared: backbone, rules, and fields of the spec that are rarely changed."""

    backbone: str
    rules: str
    others: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """The context in words."""
        return ", ".join([self.backbone, f"rules {self.rules}", *(f"{n} {v}" for n, v in self.others)])

    @property
    def slug(self) -> str:
        """The context as a part of file names."""
        parts = [self.backbone, self.rules, *(f"{n}-{v}" for n, v in self.others)]
        return re.sub(r"[^A-Za-z0-9]+", "-", "-".join(parts)).strip("-").lower()


@dataclass(frozen=True)
class Run:
    """One finished cell, tested on one dataset.

    Attributes:
        id: Name of its folder.
        seed: Its seed.
        figures: Accuracies in percent, seconds of the fit and trained parameters, by name.
        test_images: Number of test images that the accuracies are of.
    """

    id: str
    seed: int
    figures: Mapping[str, float]
    test_images: int = 0


@dataclass
class Block:
    """Runs whose numbers may stand in one table.

    Attributes:
        context: Backbone and rules.
        protocol: "few-shot", "base-to-new", "cross-dataset", "domain-shift" or "transductive".
        source: What was trained on, for runs that are tested on other datasets; else empty.
        cells: Runs by variant, dataset and shots, one per seed, sorted by seed.
        listed: Variants in the order of the specifications.
    """

    context: Context
    protocol: str
    source: str
    cells: dict[tuple[Variant, str, Shots], dict[int, Run]] = field(default_factory=dict)
    listed: Sequence[Variant] = ()

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """All variants: zero-shot CLIP first, DCA last, otherwise by label."""
        found = {variant for variant, _, _ in self.cells}
        return tuple(sorted(found, key=lambda v: (v.method != ZERO_SHOT, v.method == OURS, v.label, v.head)))

    @cached_property
    def datasets(self) -> tuple[str, ...]:
        """All datasets, those of the paper first and in its order; the source of a transfer before its targets."""
        found = {dataset for _, dataset, _ in self.cells}
        return tuple(sorted(found, key=lambda name: (name != self.source, *_paper_place(name), name)))

    @cached_property
    def shots(self) -> tuple[Shots, ...]:
        """All numbers of shots, "all images" (None) last; those of zero-shot CLIP only if there is nothing else."""
        found = {shots for variant, _, shots in self.cells if variant.method != ZERO_SHOT}
        return tuple(sorted(found or {shots for _, _, shots in self.cells}, key=lambda k: (k is None, k or 0)))

    @cached_property
    def main(self) -> dict[str, Variant]:
        """The variant of each method that was run most; of several, the first listed, then the least changed one."""
        sizes: dict[Variant, int] = defaultdict(int)
        for (variant, _, _), runs in self.cells.items():
            sizes[variant] += len(runs)
        places = {variant: place for place, variant in enumerate(self.listed)}

        def order(v: Variant) -> tuple[Any, ...]:
            return bool(v.head), -sizes[v], places.get(v, len(places)), len(v.settings), v.label, v.head

        best = sorted(self.variants, key=order)
        first: dict[str, Variant] = {}
        for variant in best:
            first.setdefault(variant.method, variant)
        return {variant.method: variant for variant in self.variants if first[variant.method] == variant}

    @cached_property
    def averaged(self) -> tuple[str, ...]:
        """The datasets that averages are over: those that at least half of the methods were run on."""
        ran = {(variant, dataset) for variant, dataset, _ in self.cells}
        methods = self.main.values()
        return tuple(name for name in self.datasets if 2 * sum((v, name) in ran for v in methods) >= len(methods))

    @cached_property
    def _test_images(self) -> dict[str, set[int]]:
        """The numbers of test images of each dataset."""
        found: dict[str, set[int]] = defaultdict(set)
        for (_, dataset, _), runs in self.cells.items():
            found[dataset] |= {run.test_images for run in runs.values()}
        return found

    def title(self, dataset: str) -> str:
        """How tables call a dataset: with the number of test images, unless they are all of the official ones."""
        entry, found = catalog.find(dataset.partition("@")[0]), sorted(self._test_images[dataset])
        official = entry.sizes[2] if entry is not None else None
        if found == [official]:
            return catalog.title_of(dataset)
        numbers = " to ".join(dict.fromkeys(f"{n:,}" for n in (found[0], found[-1])))
        return f"{catalog.title_of(dataset)} (n = {numbers}{f' of {official:,}' if official else ''})"

    @cached_property
    def _zero_shot(self) -> dict[tuple[Variant, str], dict[int, Run]]:
        """Runs of zero-shot CLIP with the fewest shots, by variant and dataset."""
        found: dict[tuple[Variant, str], dict[int, Run]] = {}
        for (variant, dataset, _), runs in self.cells.items():
            if variant.method == ZERO_SHOT:
                found.setdefault((variant, dataset), runs)
        return found

    def runs(self, variant: Variant, dataset: str, shots: Shots) -> tuple[Run, ...]:
        """The runs of one cell, sorted by seed. Zero-shot CLIP is the same for any shots."""
        found = self.cells.get((variant, dataset, shots)) or self._zero_shot.get((variant, dataset), {})
        return tuple(found.values())

    def run(self, variant: Variant, dataset: str, shots: Shots, seed: int) -> Run | None:
        """The run of one seed. Zero-shot CLIP is the same for any seed."""
        found = self.runs(variant, dataset, shots)
        same = next((run for run in found if run.seed == seed), None)
        return same if same or variant.method != ZERO_SHOT or not found else found[0]


@cache
def _paper_places() -> dict[str, int]:
    tables = [number for number in published_numbers() if number.table in ("Table 7", "Table 2")]
    return {name: place for place, name in enumerate(dict.fromkeys(number.dataset for number in tables))}


def _paper_place(dataset: str) -> tuple[bool, int]:
    """Sort key: whether the paper lacks the dataset, and its place in the paper."""
    place = _paper_places().get(dataset)
    return place is None, place or 0


def build_blocks(rows: Iterable[RunRecord], listed: Sequence[Variant] = ()) -> tuple[Block, ...]:
    """Arrange finished cells.

    Of runs that differ only in what does not change predictions (`estimate`, `calibrate`) the first by id counts.

    Args:
        rows: Rows of the index, sorted by id.
        listed: Variants in the order of the specifications.

    Returns:
        The blocks: by backbone and rules, then in the order of the protocols.
    """
    blocks: dict[tuple[Context, str, str], Block] = {}
    rows = list(rows)
    for row in rows:
        context = _context_of(row)
        source = row.dataset if row.protocol in ("cross-dataset", "domain-shift") else ""
        block = blocks.setdefault((context, row.protocol, source), Block(context, row.protocol, source, listed=listed))
        variant = Variant.of(row.method, row.spec.get("options", {}), row.head)
        for dataset, run in _runs_by_dataset(row):
            block.cells.setdefault((variant, dataset, row.shots), {}).setdefault(row.seed, run)
    devices = {row.id: row.device for row in rows}
    for block in blocks.values():
        _keep_seconds_of_one_device(block, devices)
        block.cells = {key: dict(sorted(runs.items())) for key, runs in sorted(block.cells.items(), key=_shots_order)}
    return tuple(sorted(blocks.values(), key=lambda b: (b.context.label, PROTOCOLS.index(b.protocol), b.source)))


def _keep_seconds_of_one_device(block: Block, devices: Mapping[str, str | None]) -> None:
    """Leave out the seconds of runs on another device than that of most runs."""
    runs = {run.id for cell in block.cells.values() for run in cell.values()}
    usual = statistics.mode(devices[id] for id in sorted(runs)) if runs else None
    for cell in block.cells.values():
        for seed, run in cell.items():
            if devices[run.id] != usual:
                kept = {name: value for name, value in run.figures.items() if name != SECONDS}
                cell[seed] = replace(run, figures=kept)


def _shots_order(item: tuple[tuple[Variant, str, Shots], Any]) -> tuple[bool, int]:
    shots = item[0][2]
    return shots is None, shots or 0


def _context_of(row: RunRecord) -> Context:
    others = {name: row.spec.get(name, usual) for name, usual in _FIXED.items()}
    changed = tuple((name, value) for name, value in others.items() if value != _FIXED[name])
    return Context(row.backbone, row.rules, changed)


def _runs_by_dataset(row: RunRecord) -> list[tuple[str, Run]]:
    """The run for each dataset that it was tested on."""
    costs = {SECONDS: row.seconds, PARAMETERS: row.trained_parameters}
    costs = {name: float(value) for name, value in costs.items() if value is not None}
    if row.protocol in ("cross-dataset", "domain-shift"):
        names = _target_names(row)
        pairs = zip(names, row.targets, strict=True)
        return [
            (name, Run(row.id, row.seed, {ACCURACY: 100 * target.accuracy, **costs}, target.test_images))
            for name, target in pairs
        ]
    figures = {ACCURACY: row.targets[0].accuracy if row.protocol == "transductive" else row.accuracy}
    if row.protocol == "base-to-new":
        base, new = (target.accuracy for target in row.targets)
        figures = {BASE: base, NEW: new, HARMONIC: row.harmonic_mean}
    found = {name: 100 * value for name, value in figures.items() if value is not None}
    images = sum(target.test_images for target in row.targets)
    return [(row.dataset, Run(row.id, row.seed, {**found, **costs}, images))] if found else []


def _target_names(row: RunRecord) -> Sequence[str]:
    """Names of the targets as the spec has them; the source's own test part, where it is tested, comes first."""
    given = row.spec.get("targets", [])
    own = [row.dataset] if len(row.targets) == len(given) + 1 else []
    return [*own, *given] if len(row.targets) == len(own) + len(given) else [target.name for target in row.targets]


@dataclass(frozen=True)
class RowNames:
    """What variants are called.

    Attributes:
        given: Names from specifications.
    """

    given: Mapping[Variant, str] = field(default_factory=dict)

    def __call__(self, variant: Variant) -> str:
        """The name of a variant.

        >>> RowNames()(Variant("dca", (("alpha", 1.0),)))
        'dca alpha=1'
        """
        return self.given.get(variant, variant.label)


def name_rows(studies: Iterable[Specification]) -> RowNames:
    """The names that specifications give to their rows. Data, shots, seeds and backbones do not matter.

    Args:
        studies: The specifications.

    Returns:
        The names; of two names for one variant the first counts. Variants with one name also have their settings.
    """
    rows: dict[str, dict[Variant, None]] = {}
    for study in studies:
        for cell in study.cells:
            variant = Variant.of(cell.experiment.method, cell.experiment.changed_options, cell.head)
            for name in cell.rows:
                rows.setdefault(name, {})[variant] = None
    given: dict[Variant, str] = {}
    for name, variants in rows.items():
        for variant, label in _distinguish_variants(name, list(variants)):
            given.setdefault(variant, label)
    return RowNames(given)


def list_rows(study: Specification) -> tuple[Variant, ...]:
    """The variants of a specification that are alone under the name of a grid, in its order."""
    named: dict[str, dict[Variant, None]] = {}
    for cell in study.cells:
        for name in cell.rows:
            variant = Variant.of(cell.experiment.method, cell.experiment.changed_options, cell.head)
            named.setdefault(name, {})[variant] = None
    return tuple(dict.fromkeys(next(iter(own)) for own in named.values() if len(own) == 1))


def _distinguish_variants(name: str, variants: Sequence[Variant]) -> Iterator[tuple[Variant, str]]:
    """Each variant of a row with a name of its own: the row's, and the method and settings in which they differ."""
    settings = [{"method": variant.method, **variant.settings} for variant in variants]
    differ = [
        key for key in dict.fromkeys(k for some in settings for k in some) if len({s.get(key) for s in settings}) > 1
    ]
    for variant, own in zip(variants, settings, strict=True):
        values = [f"{key}={short_value(own[key])}" for key in differ if key in own]
        yield variant, ", ".join([name, *values])
