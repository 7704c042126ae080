"""What the DCA paper leaves open, and what each reading of it takes.

- own: our choice for any dataset; means, which do not grow with the number of classes, and the centre on the text.
- plots: means and the visual centre, with which α, β and γ can matter as little as in the paper's plots.
- printed: the sums and the centre exactly as the equations print them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

Reading = Literal["own", "plots", "printed"]
READINGS: tuple[Reading, ...] = get_args(Reading)


@dataclass(frozen=True)
class OpenPoint:
    """One point that the paper leaves open.

    option: the option of `dca` that decides it. paper: what the paper says. own, plots, printed: the value that each
    reading takes; "table" stands for γ by shots. why: the reason.
    """

    option: str
    paper: str
    own: Any
    plots: Any
    printed: Any
    why: str

    def value(self, reading: Reading) -> Any:
        """The value that a reading takes."""
        return getattr(self, reading)

    @property
    def values(self) -> str:
        """The values of all readings as text, one if all agree."""
        found = [repr(v) if (v := self.value(reading)) == "." else str(v).lower() for reading in READINGS]
        return found[0] if len(set(found)) == 1 else " / ".join(found)


POINTS = (
    OpenPoint(
        "center",
        "Σ comes 'from the corresponding visual feature', and the text is 'the average vector' of the images",
        *("text", "visual", "visual"),
        "visual is the mean of equation 2, and with it Σ̂ stays near I, so that the accuracy can be as flat in γ "
        "as in the paper's map; text lets the class's image mean into the head (docs/math.md measures it)",
    ),
    OpenPoint(
        "intra_reduction",
        "equation 11 is a sum over images",
        *("element", "element", "sum"),
        "the plot of α is flat from 0.01 to 100; a sum that is weighed by 100 would outweigh L_cls, "
        "the mean over images and dimensions (as in DAPT) does not",
    ),
    OpenPoint(
        "separation_reduction",
        "equation 12 is a sum over pairs",
        *("mean", "mean", "sum"),
        "the plot of β is flat up to 10; the sum has M·C (M·C - 1) terms, so that it grows with the number of classes",
    ),
    OpenPoint(
        "gammas",
        "V_n is called the variance and V_m the covariance, but equation 6 has V_m with I; one table by shots",
        *("own", "paper", "paper"),
        "γ1 with the variance and γ2 with the covariance, as in FeCAM, which it cites: read literally, "
        "nearly all eigenvalues are negative; own are 100 and 50, chosen on validation images, in place of the table",
    ),
    OpenPoint(
        "normalize",
        "'we normalize' Σ_s",
        *(True, True, True),
        "to a correlation, after shrinkage, as in FeCAM",
    ),
    OpenPoint(
        "intra_features",
        "centres before the first batch, the covariance 'only at the first epoch', to keep 'the original CLIP'",
        *("clip", "clip", "clip"),
        "features without tokens are those of the original CLIP; with the initial random tokens they are not",
    ),
    OpenPoint(
        "separation_pairs",
        "pairs are 'randomly selected', and equation 12 sums over all i ≠ j",
        *(0, 0, 0),
        "all pairs cost no more than one (closed form), and nothing is said about how many would be drawn",
    ),
    OpenPoint(
        "contexts",
        "M contexts 'for each class'",
        *("unified", "unified", "unified"),
        "shared by the classes, as in CoOp and DAPT: the paper claims fewer parameters than adapters have",
    ),
    OpenPoint("suffix", "no text after the name", *(".", ".", "."), "CoOp and DAPT, which it builds on, end with one"),
    OpenPoint(
        "head_views",
        "covariances of 'the final epoch'",
        *(0, 0, 0),
        "evaluation view, after the last step, as in FeCAM; views of the last epoch would depend on random crops",
    ),
)


def decided_by(reading: Reading) -> dict[str, Any]:
    """The options whose values differ between readings, as a reading takes them."""
    return {p.option: p.value(reading) for p in POINTS if len({p.value(r) for r in READINGS}) > 1}


def markdown() -> str:
    """The table of docs/math.md: one row per open point."""
    head = ["| what the paper says | option | own | plots | printed | why |", "|---|---|---|---|---|---|"]
    rows = [
        f"| {p.paper} | `{p.option}` | "
        + " | ".join(f"`{str(p.value(r)).lower()}`" for r in READINGS)
        + f" | {p.why} |"
        for p in POINTS
    ]
    return "\n".join([*head, *rows])
