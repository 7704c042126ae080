"""The rows of the paper's tables and its claims, read from `paper.toml`, and which variants of a block they are.

Paired differences between two variants of a block: same dataset, shots and seed.

Judges the paper's claims from finished runs.

Rule: the unit is the dataset. A comparison *holds* if the 95 % t-interval over its datasets lies inside the claimed
region (usually: above zero), it *does not hold* if the interval lies outside, and it is *not decided* if the interval
has a part in both, or with fewer than `FEWEST_DATASETS` datasets. Where every dataset has several draws, the interval
over draws must lie on the same side: three datasets may agree by chance more closely than their draws allow. A claim
with several comparisons holds if every comparison was measured and holds, which needs no correction, as chance would
have to pass all of them. One that fails refutes the claim, and of m comparisons of a true claim each may fail by
chance: a claim does not hold if a comparison lies outside at the level 1 - 0.05 / m (Bonferroni, the first step of
Holm's method). It is *not measured* if no comparison was; otherwise it is not decided. The size that the paper prints
is not judged.
"""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Literal

from dca.datasets.shifts import split_shift_name
from dca.stats.paired import MeanDifference, mean_difference
from dca.stats.student import LEVEL, decided_distance, values_to_decide
from dca.study.results import ACCURACY, Block, Run, Shots, Variant

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
        vary: Any variant that has these settings and otherwise those of the base.
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
        if variant.method != self.method or (self.vary and variant == base):
            return False
        settings = variant.settings
        wanted = {name: value for name, value in {**base.settings, **self.change}.items() if name not in self.vary}
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
    return tomllib.loads((files("dca.study") / "paper.toml").read_text(encoding="utf-8"))


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


def match_rows(rows: Iterable[PaperRow], block: Block) -> dict[PaperRow, tuple[Variant, ...]]:
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
        found.update(_resolve_rows(own, block, method))
    return found


def _resolve_rows(rows: Sequence[PaperRow], block: Block, method: str) -> dict[PaperRow, tuple[Variant, ...]]:
    main = block.main.get(method)
    variants = [variant for variant in block.variants if variant.method == method]
    best: dict[PaperRow, tuple[Variant, ...]] = dict.fromkeys(rows, ())
    changed = {name for row in rows for name in (*row.change, *row.vary)}
    bases = [variant for variant in variants if variant == main or not changed & variant.settings.keys()]
    for base in sorted(bases, key=lambda variant: (variant != main, bool(variant.head))):
        tried = {row: tuple(v for v in variants if row.fits(v, base)) for row in rows}
        if sum(map(bool, tried.values())) > sum(map(bool, best.values())) and not _is_ambiguous(tried):
            best = tried
    return {row: found if row.vary else _one_of(row, found) for row, found in best.items()}


def _is_ambiguous(found: Mapping[PaperRow, Sequence[Variant]]) -> bool:
    """Whether one variant is said to be rows with different settings: then the base has the settings of another row."""
    settings: dict[Variant, dict[str, Any]] = {}
    fixed = ((row, variants) for row, variants in found.items() if not row.vary)
    return any(settings.setdefault(v, dict(row.change)) != row.change for row, variants in fixed for v in variants)


def _one_of(row: PaperRow, variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """The variant with the most of what is allowed; of equal settings those that were fitted, not only measured."""

    def order(variant: Variant) -> tuple[int, int]:
        return -sum(name in variant.settings for name in row.allow), len(variant.head)

    return tuple(sorted(variants, key=order))[:1]


# Quantities that are computed from figures of runs: standard deviation of the accuracy over seeds; times by factors.
SPREAD, LOG_SECONDS = "spread", "log2 seconds"
_LEAST_SECONDS = 0.01  # records have two decimals


@dataclass(frozen=True)
class Pair:
    """One difference one - other.

    Attributes:
        dataset: What both were tested on.
        draw: The seed; None for a quantity that is made of all seeds.
        value: The difference.
        runs: Ids of the runs behind it.
    """

    dataset: str
    draw: int | None
    value: float
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Pairs:
    """Differences one - other, at any number of shots."""

    pairs: tuple[Pair, ...]

    @cached_property
    def by_draw(self) -> dict[str, dict[int | None, list[float]]]:
        """The differences by dataset and draw; datasets without a pair are left out."""
        found: dict[str, dict[int | None, list[float]]] = {}
        for pair in self.pairs:
            found.setdefault(pair.dataset, {}).setdefault(pair.draw, []).append(pair.value)
        return found

    @property
    def runs(self) -> tuple[str, ...]:
        """Ids of all runs behind them."""
        return tuple(dict.fromkeys(id for pair in self.pairs for id in pair.runs))

    def difference(self) -> MeanDifference | None:
        """The mean difference; None if there is no pair."""
        return mean_difference([list(draws.values()) for draws in self.by_draw.values()]) if self.pairs else None


def pairs_of(
    block: Block,
    one: Variant,
    other: Variant,
    shots: Sequence[Shots],
    *,
    quantity: str = ACCURACY,
    datasets: Sequence[str] = (),
    less_shots: Shots = None,
) -> Pairs:
    """The paired differences of two variants.

    Args:
        block: Where the runs are.
        one, other: The variants; the second is subtracted.
        shots: Numbers of shots; each is a pair of its own.
        quantity: A figure of a run, `LOG_SECONDS` or `SPREAD`.
        datasets: Only these; all by default.
        less_shots: Subtract the difference that the two have at this number of shots.

    Returns:
        The pairs.
    """
    make = _spread_pairs if quantity == SPREAD else _seed_pairs
    places = [(dataset, k) for dataset in datasets or block.datasets for k in shots]
    return Pairs(tuple(pair for place in places for pair in make(block, one, other, *place, quantity, less_shots)))


def _seed_pairs(
    block: Block, one: Variant, other: Variant, dataset: str, shots: Shots, quantity: str, less: Shots
) -> list[Pair]:
    """One difference per seed."""
    both = (*block.runs(one, dataset, shots), *block.runs(other, dataset, shots))
    found = []
    for seed in sorted({run.seed for run in both}):
        wanted = [(one, shots), (other, shots), *([(one, less), (other, less)] if less is not None else [])]
        runs = [block.run(variant, dataset, k, seed) for variant, k in wanted]
        values = [_figure(run, quantity) for run in runs]
        known = [value for value in values if value is not None]
        if len(known) == len(wanted):
            signs = (1, -1, -1, 1)
            ids = tuple(run.id for run in runs if run is not None)
            value = sum(sign * value for sign, value in zip(signs, known, strict=False))
            found.append(Pair(dataset, seed, value, ids))
    # Two runs of zero-shot CLIP stand for every seed: count them once.
    return list({pair.runs: pair for pair in found}.values())


def _spread_pairs(
    block: Block, one: Variant, other: Variant, dataset: str, shots: Shots, _quantity: str, _less: Shots
) -> list[Pair]:
    """The difference of the standard deviations over seeds, where both have at least two."""
    runs = [block.runs(variant, dataset, shots) for variant in (one, other)]
    if min(map(len, runs)) < 2:
        return []
    first, second = (statistics.stdev(run.figures[ACCURACY] for run in some) for some in runs)
    return [Pair(dataset, None, first - second, tuple(run.id for some in runs for run in some))]


def _figure(run: Run | None, quantity: str) -> float | None:
    if run is None:
        return None
    if quantity == LOG_SECONDS:
        seconds = run.figures.get("seconds")
        return None if seconds is None else math.log2(max(seconds, _LEAST_SECONDS))
    return run.figures.get(quantity)


ARROW = " → "
Outcome = Literal["holds", "does not hold", "not decided", "not measured"]
_LEAST_FIRST: tuple[Outcome, ...] = ("does not hold", "not decided", "holds", "not measured")
FEWEST_DATASETS = 3
RULE = (
    "The unit is the dataset: pairs of runs with the same dataset, shots and draw are averaged to one difference per "
    "dataset. A comparison holds if the 95 % t-interval over datasets lies inside the claimed region, usually above "
    "zero, and so does the interval over draws, where there are several; it does not hold if both lie outside; it is "
    f"not decided otherwise, or with fewer than {FEWEST_DATASETS} datasets. A claim with several comparisons holds if "
    "all were measured and hold; it does not hold if one of the m that were measured lies outside also at the level "
    "1 − 0.05 / m; it is not decided otherwise. The size that the paper prints is not judged."
)


@dataclass(frozen=True)
class ClaimComparison:
    """One comparison of a claim.

    Attributes:
        words: What is compared, in words.
        pairs: The paired differences; none if it was not measured. Their datasets are the units.
        difference: Their mean; None if it was not measured.
        outcome: See the rule.
    """

    words: str
    pairs: Pairs
    difference: MeanDifference | None
    outcome: Outcome

    @property
    def runs(self) -> tuple[str, ...]:
        """Ids of the runs behind it."""
        return self.pairs.runs

    @property
    def by_dataset(self) -> dict[str, float]:
        """The value of each dataset."""
        return {} if self.difference is None else dict(zip(self.pairs.by_draw, self.difference.means, strict=True))


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with its outcome.

    Attributes:
        claim: The claim.
        outcome: See the rule.
        comparisons: All comparisons, also those that were not measured.
    """

    claim: Claim
    outcome: Outcome
    comparisons: tuple[ClaimComparison, ...]

    @property
    def measured(self) -> tuple[ClaimComparison, ...]:
        """The comparisons that were measured."""
        return tuple(one for one in self.comparisons if one.difference is not None)

    @property
    def weakest(self) -> ClaimComparison | None:
        """The measured comparison that speaks least for the claim."""
        return min(self.measured, key=self._support, default=None)

    def _support(self, one: ClaimComparison) -> tuple[bool, int, float]:
        """Whether it does not refute the claim, its outcome, and how far the effect is inside the claimed region."""
        assert one.difference is not None
        low, high = self.claim.low, self.claim.high
        refutes = region_outcome(one.difference, low, high, self.refuting_level) == "does not hold"
        inside = min(one.difference.effect - low, high - one.difference.effect)
        return not refutes, _LEAST_FIRST.index(one.outcome), inside

    @property
    def refuting_level(self) -> float:
        """The level at which one comparison refutes the claim."""
        return _refuting_level(len(self.measured))

    def to_decide(self) -> ToDecide | None:
        """What would decide the weakest comparison; None if the claim is decided, or was not measured."""
        weakest = self.weakest
        if self.outcome != "not decided" or weakest is None or weakest.outcome == "holds":
            return None
        found, region = weakest.difference, (self.claim.low, self.claim.high)
        assert found is not None
        if found.deviation is None:
            return ToDecide(found.groups, None, None, None)
        refutes = not self.claim.low < found.effect < self.claim.high
        level = self.refuting_level if refutes else LEVEL
        fewest = max(FEWEST_DATASETS, found.groups + 1)
        needed = values_to_decide(found.effect, found.deviation, region, fewest=fewest, level=level)
        enough = math.isinf(region[0]) != math.isinf(region[1]) and found.groups >= FEWEST_DATASETS
        distance = decided_distance(found.deviation, found.groups, level) if enough else None
        return ToDecide(found.groups, needed, found.deviation, distance)


@dataclass(frozen=True)
class ToDecide:
    """What would decide a comparison with a chance of 80 %.

    Attributes:
        datasets: Number of datasets that there are.
        needed: Number that it takes if the true difference is the one that was seen, and datasets vary as these do;
            None if it is more than 1,000, or if there is one dataset.
        deviation: Standard deviation over the datasets, or what their draws leave, if that is more; None with one
            dataset.
        distance: How far from the bound the true difference would have to be for the datasets that there are; None
            where they are too few, or the region has two ends.
    """

    datasets: int
    needed: int | None
    deviation: float | None
    distance: float | None


def evaluate_claim(claim: Claim, blocks: Sequence[Block]) -> JudgedClaim:
    """Judge a claim.

    Args:
        claim: The claim.
        blocks: Blocks of one context, in any protocol.

    Returns:
        The claim with its outcome and the comparisons behind it.
    """
    own = [block for block in blocks if block.protocol == claim.protocol]
    if not own:
        return JudgedClaim(claim, "not measured", ())
    found = tuple(_comparisons(claim, own[0] if len(own) == 1 and not own[0].source else merge_blocks(own)))
    return JudgedClaim(claim, _outcome(claim, found), found)


def merge_blocks(blocks: Sequence[Block]) -> Block:
    """Blocks with several sources as one, with the targets that are not the source itself.

    Of several sources the targets of each are called "source → target".
    """
    found = Block(blocks[0].context, blocks[0].protocol, "")
    for block in blocks:
        for (variant, dataset, shots), runs in block.cells.items():
            name = dataset if len(blocks) == 1 else f"{block.source}{ARROW}{dataset}"
            if dataset != block.source:
                found.cells[variant, name, shots] = runs
    return found


def _comparisons(claim: Claim, block: Block) -> Iterator[ClaimComparison]:
    """Every row against every other, by shots and dataset as the claim asks."""
    variants = match_rows(claim.rows, block)
    for compare in claim.compare:
        for other in compare.others:
            ones, others = variants[compare.one], variants[other]
            if not ones or not others:
                yield _compare_pairs(claim, Pairs(()), f"{compare.one.name} − {other.name}")
            for variant in others if ones else ():
                words = f"{compare.one.name} − {_describe_row(other, variant)}"
                yield from _by_shots(claim, block, ones[0], variant, words)


def _describe_row(row: PaperRow, variant: Variant) -> str:
    """The row; for rows with several variants also what distinguishes this one."""
    varied = [f"{name} = {variant.settings[name]:g}" for name in row.vary]
    return ", ".join(varied) if varied else row.name


def _by_shots(claim: Claim, block: Block, one: Variant, other: Variant, words: str) -> Iterator[ClaimComparison]:
    """The comparison at each number of shots; numbers that the claim does not name are left out where not measured."""
    found = []
    for shots, when in _shots(claim, block):
        pairs = pairs_of(
            block, one, other, shots, quantity=claim.quantity, datasets=claim.datasets, less_shots=claim.less_shots
        )
        found.append(_compare_pairs(claim, _by_unit(pairs), f"{words}{when}"))
    measured = [comparison for comparison in found if comparison.difference is not None]
    yield from found if isinstance(claim.shots, tuple) else measured or found[:1]


def _by_unit(pairs: Pairs) -> Pairs:
    """The pairs with the dataset that they count for.

    Targets of several sources count for their source, as they are tested with the same models; changed versions of a
    dataset count for it, as they are the same images.
    """
    return Pairs(
        tuple(replace(pair, dataset=split_shift_name(pair.dataset.partition(ARROW)[0])[0]) for pair in pairs.pairs)
    )


def _shots(claim: Claim, block: Block) -> list[tuple[Sequence[Shots], str]]:
    """The numbers of shots of each comparison, and what to add to its words."""
    if claim.shots == "together":
        return [(block.shots, "")]
    wanted: Sequence[Shots] = block.shots if claim.shots == "each" else claim.shots
    less = f" less {claim.less_shots} shots" if claim.less_shots is not None else ""
    return [([k], f", {'all images' if k is None else f'K = {k}'}{less}") for k in wanted]


def _compare_pairs(claim: Claim, pairs: Pairs, words: str) -> ClaimComparison:
    found = pairs.difference()
    outcome: Outcome = "not measured" if found is None else region_outcome(found, claim.low, claim.high)
    return ClaimComparison(words, pairs, found, outcome)


def region_outcome(found: MeanDifference, low: float, high: float, level: float = LEVEL) -> Outcome:
    """The outcome of one comparison whose difference is claimed to lie between low and high."""
    ends = [interval for interval in (found.over_datasets(level), found.over_draws(level)) if interval is not None]
    if found.groups < FEWEST_DATASETS:
        return "not decided"
    if all(low < least and most < high for least, most in ends):
        return "holds"
    outside = all(most <= low for _, most in ends) or all(least >= high for least, _ in ends)
    return "does not hold" if outside else "not decided"


def _outcome(claim: Claim, comparisons: Sequence[ClaimComparison]) -> Outcome:
    differences = [one.difference for one in comparisons if one.difference is not None]
    if not differences:
        return "not measured"
    level = _refuting_level(len(differences))
    if any(region_outcome(found, claim.low, claim.high, level) == "does not hold" for found in differences):
        return "does not hold"
    return "holds" if all(one.outcome == "holds" for one in comparisons) else "not decided"


def _refuting_level(comparisons: int) -> float:
    return 1 - (1 - LEVEL) / max(comparisons, 1)
