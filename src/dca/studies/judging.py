"""Judges the paper's claims from finished runs.

Rule: a comparison *holds* if the 95 % interval of its paired difference lies inside the claimed region (usually: above
zero), it *does not hold* if the interval lies outside, and it is *not decided* if the interval has a part in both, or
if there are fewer than `FEWEST_PAIRS` pairs. A claim with several comparisons holds if every comparison was measured
and holds; it does not hold if one does not; it is *not measured* if none was measured; otherwise it is not decided.
Differences of chance are not corrected for: a claim must pass all of its comparisons. The size that the paper prints is
not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dca.studies.pairing import Pairs, pairs_of
from dca.studies.paper import Claim, PaperRow, resolve
from dca.studies.results import Block, Shots, Variant
from dca.studies.significance import FEWEST_PAIRS, Difference

ARROW = " → "
Outcome = Literal["holds", "does not hold", "not decided", "not measured"]
_LEAST_FIRST: tuple[Outcome, ...] = ("does not hold", "not decided", "holds", "not measured")
RULE = (
    "A comparison holds if the 95 % interval of its paired difference (paired bootstrap over dataset and seed) lies "
    "inside the claimed region, usually above zero; it does not hold if the interval lies outside; it is not decided "
    f"if the interval has a part in both, or with fewer than {FEWEST_PAIRS} pairs. A claim with several comparisons "
    "holds if all were measured and hold, does not hold if one does not, and is not decided otherwise. The size that "
    "the paper prints is not judged."
)


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim.

    Attributes:
        words: What is compared, in words.
        difference: The paired difference; None if it was not measured.
        outcome: See the rule.
        runs: Ids of the runs behind it.
    """

    words: str
    difference: Difference | None
    outcome: Outcome
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Judged:
    """A claim with its outcome.

    Attributes:
        claim: The claim.
        outcome: See the rule.
        comparisons: All comparisons, also those that were not measured.
    """

    claim: Claim
    outcome: Outcome
    comparisons: tuple[Comparison, ...]

    @property
    def measured(self) -> tuple[Comparison, ...]:
        """The comparisons that were measured."""
        return tuple(one for one in self.comparisons if one.difference is not None)

    @property
    def weakest(self) -> Comparison | None:
        """The measured comparison that speaks least for the claim."""
        return min(self.measured, key=self._support, default=None)

    def _support(self, one: Comparison) -> tuple[int, float]:
        """Its outcome, and of equal outcomes how far the effect is inside the claimed region."""
        assert one.difference is not None
        inside = min(one.difference.effect - self.claim.low, self.claim.high - one.difference.effect)
        return _LEAST_FIRST.index(one.outcome), inside


def judge(claim: Claim, blocks: Sequence[Block]) -> Judged:
    """Judge a claim.

    Args:
        claim: The claim.
        blocks: Blocks of one context, in any protocol.

    Returns:
        The claim with its outcome and the comparisons behind it.
    """
    own = [block for block in blocks if block.protocol == claim.protocol]
    if not own:
        return Judged(claim, "not measured", ())
    found = tuple(_comparisons(claim, own[0] if len(own) == 1 and not own[0].source else merged(own)))
    return Judged(claim, _outcome([one.outcome for one in found]), found)


def merged(blocks: Sequence[Block]) -> Block:
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


def _comparisons(claim: Claim, block: Block) -> Iterator[Comparison]:
    """Every row against every other, by shots and dataset as the claim asks."""
    variants = resolve(claim.rows, block)
    for compare in claim.compare:
        for other in compare.others:
            ones, others = variants[compare.one], variants[other]
            if not ones or not others:
                yield Comparison(f"{compare.one.name} − {other.name}", None, "not measured", ())
            for variant in others if ones else ():
                words = f"{compare.one.name} − {_named(other, variant)}"
                yield from _by_shots(claim, block, ones[0], variant, words)


def _named(row: PaperRow, variant: Variant) -> str:
    """The row; for rows with several variants also what distinguishes this one."""
    varied = [f"{name} = {variant.settings[name]:g}" for name in row.vary]
    return ", ".join(varied) if varied else row.name


def _by_shots(claim: Claim, block: Block, one: Variant, other: Variant, words: str) -> Iterator[Comparison]:
    """The comparison at each number of shots; numbers that the claim does not name are left out where not measured."""
    found = []
    for shots, when in _shots(claim, block):
        pairs = pairs_of(
            block, one, other, shots, quantity=claim.quantity, datasets=claim.datasets, less_shots=claim.less_shots
        )
        found.append(_compared(claim, _by_source(pairs), f"{words}{when}"))
    measured = [comparison for comparison in found if comparison.difference is not None]
    yield from found if isinstance(claim.shots, tuple) else measured or found[:1]


def _by_source(pairs: Pairs) -> Pairs:
    """Of several sources, each is one group: its targets are tested with the same models."""
    groups: dict[str, list[float]] = {}
    for name, values in pairs.differences.items():
        groups.setdefault(name.partition(ARROW)[0], []).extend(values)
    return Pairs(groups, pairs.runs)


def _shots(claim: Claim, block: Block) -> list[tuple[Sequence[Shots], str]]:
    """The numbers of shots of each comparison, and what to add to its words."""
    if claim.shots == "together":
        return [(block.shots, "")]
    wanted: Sequence[Shots] = block.shots if claim.shots == "each" else claim.shots
    less = f" less {claim.less_shots} shots" if claim.less_shots is not None else ""
    return [([k], f", {'all images' if k is None else f'K = {k}'}{less}") for k in wanted]


def _compared(claim: Claim, pairs: Pairs, words: str) -> Comparison:
    found = pairs.difference()
    if found is None:
        return Comparison(words, None, "not measured", ())
    return Comparison(words, found, region_outcome(found, claim.low, claim.high), pairs.runs)


def region_outcome(found: Difference, low: float, high: float) -> Outcome:
    """The outcome of one comparison whose difference is claimed to lie between low and high."""
    if found.pairs < FEWEST_PAIRS:
        return "not decided"
    if low < found.low and found.high < high:
        return "holds"
    return "does not hold" if found.high <= low or found.low >= high else "not decided"


def _outcome(outcomes: Sequence[Outcome]) -> Outcome:
    measured = [outcome for outcome in outcomes if outcome != "not measured"]
    if not measured:
        return "not measured"
    if "does not hold" in measured:
        return "does not hold"
    return "holds" if all(outcome == "holds" for outcome in outcomes) else "not decided"
