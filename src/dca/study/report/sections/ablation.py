"""What the components of DCA, its metric and its loss bring: bars of paired differences."""

from __future__ import annotations

from collections.abc import Iterator

from dca.study.claims import TABLE_ROWS, match_rows, pairs_of, paper_rows
from dca.study.report.figures import Figure, Point, bar_chart
from dca.study.report.means import shots_title
from dca.study.report.subject import Subject
from dca.study.report.tables import Part, RunsSection
from dca.study.results import Block, Shots, Variant

HEADS = ("+d_m, visual centre", ", nearest mean", ", text + mean", ", GDA about the means")
# Figures whose titles say what is subtracted.
TITLE_SAYS = ("components", "heads")
# Per figure: its name, its title, and pairs of rows, the second of which is subtracted.
CHARTS = (
    (
        "components",
        "What the components bring over the baseline",
        tuple((row, "baseline") for row in TABLE_ROWS[3][1:]),
    ),
    (
        "metric",
        "What the Mahalanobis distance brings over the cosine",
        (("Baseline+d_m", "Baseline+d_cos"), ("DAPT+d_m", "DAPT+d_cos"), ("DCA+d_m", "DCA+d_cos")),
    ),
    (
        "heads",
        "What other heads of the same models bring over the cosine",
        (
            *((f"Baseline{head}", "Baseline+d_cos") for head in HEADS),
            *((f"DCA{head}", "DCA+d_cos") for head in HEADS),
            ("DAPT+d_m, visual centre", "DAPT+d_cos"),
        ),
    ),
    (
        "covariance",
        "What covariances about the text bring over the sum of text and image mean",
        (("Baseline+d_m", "Baseline, text + mean"), ("DCA+d_m", "DCA, text + mean")),
    ),
    ("intra-loss", "What L_in with d_m brings over L1 and L2", (("L_in-d_m", "L_in-L1"), ("L_in-d_m", "L_in-L2"))),
)
NOTE = (
    "Paired differences in points, mean over datasets; lines are 95 % intervals over datasets (Student's t). With "
    "covariances about the text, the mean of a class's images enters the distance; heads that use this mean openly "
    "stand beside it."
)


def build(subject: Subject) -> Part | str:
    """One figure per table of ablations and number of shots."""
    figures = [figure for block in subject.of_protocol("few-shot") for figure in _figures(subject, block)]
    return Part(notes=(NOTE,), figures=tuple(figures)) if figures else "No ablation was run."


def _figures(subject: Subject, block: Block) -> Iterator[Figure]:
    rows = paper_rows()
    for name, title, compared in CHARTS:
        found = match_rows([rows[row] for pair in compared for row in pair], block)
        for shots in block.shots:
            bars = []
            for one, other in compared:
                if found[rows[one]] and found[rows[other]]:
                    words = one if name in TITLE_SAYS else f"{one} − {other}"
                    bars += _bar(block, words, found[rows[one]][0], found[rows[other]][0], shots)
            if bars:
                words = f"{title}, {shots_title(shots)}{subject.where(block)}"
                groups = tuple(point.runs for _, point in bars)
                yield Figure(
                    f"ablation-{name}-{shots}{subject.file_suffix(block)}", words, bar_chart(bars, words), groups
                )


def _bar(block: Block, name: str, one: Variant, other: Variant, shots: Shots) -> list[tuple[str, Point]]:
    pairs = pairs_of(block, one, other, [shots])
    found = pairs.difference()
    if found is None:
        return []
    low, high = found.over_datasets() or (found.effect, found.effect)
    said = f"{found.effect:+.2f}: {low:+.2f} to {high:+.2f}, {found.pairs} pairs of {found.groups} datasets"
    return [(name, Point(found.effect, low, high, pairs.runs, said.replace("-", "−")))]


SECTION = RunsSection("ablation", "Ablations", build, of_paper=True)
