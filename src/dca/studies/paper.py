"""The rows of the paper's tables and its claims, read from `paper.toml`, and which variants of a block they are."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from dca.studies.results import ACCURACY, Block, Variant

# The rows of a table in the paper's order, by its number.
TABLE_ROWS = {
    2: ("CLIP", "CoOp", "VPT", "MaPLe", "DAPT", "TCP", "DCA"),
    3: ("baseline", "CA", "CA + L_in", "CA + DA", "CA + L_in + DA", "CA + L_in + DA + L_ts"),
    4: ("Baseline+d_cos", "Baseline+d_m", "DAPT+d_cos", "DAPT+d_m", "DCA+d_cos", "DCA+d_m"),
    5: ("L_in-L1", "L_in-L2", "L_in-d_m"),
}


@dataclass(frozen=True, eq=False)  # rows are the same by identity: there is one of each name
class PaperRow:
    """What a row of the paper is, in terms of a method's base variant.

    Attributes:
        name: As in the paper, or in our specifications.
        method: Name of the method.
        change: Settings that it has beside those of the base.
        allow: Further settings that it may have, with their values; a variant that has them goes before others.
        vary: Any variant that differs from the base in these settings only.
        ranges: Least and greatest value of varied settings.
        without: Values of varied settings that are left out.
    """

    name: str
    method: str
    change: Mapping[str, Any] = field(default_factory=dict)
    allow: Mapping[str, Any] = field(default_factory=dict)
    vary: Sequence[str] = ()
    ranges: Mapping[str, Sequence[float]] = field(default_factory=dict)
    without: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def fits(self, variant: Variant, base: Variant) -> bool:
        """Whether a variant is this row, given the base of its method."""
        if variant.method != self.method:
            return False
        settings, wanted = variant.settings, {**base.settings, **self.change}
        free = {*self.vary, *(name for name in self.allow if name not in wanted)}
        if {name: value for name, value in settings.items() if name not in free} != wanted:
            return False
        allowed = all(settings.get(name, value) == value for name, value in self.allow.items() if name in free)
        return allowed and all(name in settings and self._inside(name, settings[name]) for name in self.vary)

    def _inside(self, name: str, value: Any) -> bool:
        """Whether a value of a varied setting counts: a number, neither out of range nor left out."""
        low, high = self.ranges.get(name, (float("-inf"), float("inf")))
        return isinstance(value, int | float) and low <= value <= high and value not in self.without.get(name, ())


@dataclass(frozen=True)
class Compare:
    """One row against others."""

    one: PaperRow
    others: tuple[PaperRow, ...]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and the comparisons that decide it.

    Attributes:
        name: Short name.
        text: The claim in our words.
        place: Where the paper makes it.
        printed: The effect that the paper prints.
        compare: What is compared.
        protocol: Protocol of the runs.
        quantity: What is compared, see `pairing.pairs_of`.
        low, high: The difference is claimed to lie between these.
        shots: "each", "together", or numbers of shots.
        less_shots: See `pairing.pairs_of`.
        datasets: Only these; all if there are none.
    """

    name: str
    text: str
    place: str
    printed: str
    compare: tuple[Compare, ...]
    protocol: str
    quantity: str
    low: float
    high: float
    shots: Literal["each", "together"] | tuple[int, ...]
    less_shots: int | None
    datasets: tuple[str, ...]

    @property
    def rows(self) -> tuple[PaperRow, ...]:
        """All rows that are compared."""
        return tuple(row for compare in self.compare for row in (compare.one, *compare.others))


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads((files("dca.studies") / "paper.toml").read_text(encoding="utf-8"))


@cache
def paper_rows() -> dict[str, PaperRow]:
    """All rows by name.

    Example:
        >>> dict(paper_rows()["L_in-L1"].change)
        {'intra': 'l1'}
    """
    return {name: PaperRow(name, **values) for name, values in _file()["row"].items()}


@cache
def claims() -> tuple[Claim, ...]:
    """All claims, in the order of the paper.

    Example:
        >>> claims()[0].name
        'best-on-average'
    """
    return tuple(_claim(**table) for table in _file()["claim"])


def _claim(
    *,
    compare: Iterable[Mapping[str, Any]],
    above: float | None = None,
    below: float | None = None,
    within: float | None = None,
    protocol: str = "few-shot",
    quantity: str = ACCURACY,
    shots: Any = "each",
    less_shots: int | None = None,
    datasets: Sequence[str] = (),
    **words: str,
) -> Claim:
    low, high = (0.0 if above is None else above), float("inf")
    if below is not None:
        low, high = float("-inf"), below
    if within is not None:
        low, high = -within, within
    rows = paper_rows()
    return Claim(
        **words,
        compare=tuple(Compare(rows[c["one"]], tuple(rows[name] for name in c["others"])) for c in compare),
        protocol=protocol,
        quantity=quantity,
        low=low,
        high=high,
        shots=shots if isinstance(shots, str) else tuple(shots),  # type: ignore[arg-type]
        less_shots=less_shots,
        datasets=tuple(datasets),
    )


def resolve(rows: Iterable[PaperRow], block: Block) -> dict[PaperRow, tuple[Variant, ...]]:
    """The variants of each row.

    Rows of one method have one base: the variant with which most of them are found; of several, the method's main one.
    A variant with settings that the rows change is no base, unless it is the main one: it is a row itself. No variant
    is two rows with different settings.

    Args:
        rows: Rows that belong together.
        block: Where the runs are.

    Returns:
        By row its variants; none where it was not run, and at most one unless the row has `vary`.
    """
    by_method: dict[str, list[PaperRow]] = {}
    for row in dict.fromkeys(rows):
        by_method.setdefault(row.method, []).append(row)
    found: dict[PaperRow, tuple[Variant, ...]] = {}
    for method, own in by_method.items():
        found.update(_resolved(own, block, method))
    return found


def _resolved(rows: Sequence[PaperRow], block: Block, method: str) -> dict[PaperRow, tuple[Variant, ...]]:
    main = block.main.get(method)
    variants = [variant for variant in block.variants if variant.method == method]
    best: dict[PaperRow, tuple[Variant, ...]] = dict.fromkeys(rows, ())
    changed = {name for row in rows for name in (*row.change, *row.vary)}
    bases = [variant for variant in variants if variant == main or not changed & variant.settings.keys()]
    for base in sorted(bases, key=lambda variant: (variant != main, bool(variant.head))):
        tried = {row: tuple(v for v in variants if row.fits(v, base)) for row in rows}
        if sum(map(bool, tried.values())) > sum(map(bool, best.values())) and not _confused(tried):
            best = tried
    return {row: found if row.vary else _one_of(row, found) for row, found in best.items()}


def _confused(found: Mapping[PaperRow, Sequence[Variant]]) -> bool:
    """Whether one variant is said to be rows with different settings: then the base has the settings of another row."""
    settings: dict[Variant, dict[str, Any]] = {}
    fixed = ((row, variants) for row, variants in found.items() if not row.vary)
    return any(settings.setdefault(v, dict(row.change)) != row.change for row, variants in fixed for v in variants)


def _one_of(row: PaperRow, variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """The variant with the most of what is allowed; of equal settings those that were fitted, not only measured."""

    def order(variant: Variant) -> tuple[int, int]:
        return -sum(name in variant.settings for name in row.allow), len(variant.head)

    return tuple(sorted(variants, key=order))[:1]
