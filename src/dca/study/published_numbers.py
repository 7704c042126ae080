"""Published numbers as data: every cell of every table of the DCA paper, and the records of its rivals.

`published/dca.csv` has the paper's tables as printed, `published/records.csv` what READMEs, logs and figures of other
methods hold. Nothing is corrected: a number that is probably wrong carries a flag, the reason and, where it follows
from other printed numbers, the likely value. Printed means are checked against the mean of the printed rows by `means`.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, get_args

Flag = Literal["", "misprint", "contradiction", "doubtful", "unverified"]
FILES = ("dca", "records")
AVERAGE = "average"
# Means of numbers with two decimals may differ from printed ones by rounding; more is no rounding.
ROUNDING = 0.02


@dataclass(frozen=True)
class PublishedNumber:
    """One published number.

    Attributes:
        paper: Who printed it: "dca", "clip_svd", "plot", ...
        table: Table or place in that source.
        label: The row as printed there; rows of the DCA paper's ablations are called as in our specifications.
        method: Our name of the method; empty if we do not have it.
        backbone: "vit-b-16" or "RN50".
        protocol: "few-shot", "base-to-new" or "domain-shift".
        shots: Images per class; None where they do not matter.
        dataset: Our name of the dataset; "average" for a printed mean, "all" where it does not matter.
        quantity: "accuracy" and "harmonic_mean" in percent, "difference" in points, options and costs by name.
        value: As printed.
        flag: "misprint" (contradicts numbers beside it), "contradiction" (printed differently elsewhere), "doubtful",
            "unverified" (not seen in the source itself), or empty.
        likely: The value that other printed numbers imply; None if there is none.
        note: Reason of the flag, or how the number was made.
        source: Where it was read.
    """

    paper: str
    table: str
    label: str
    method: str
    backbone: str
    protocol: str
    shots: int | None
    dataset: str
    quantity: str
    value: float
    flag: Flag
    likely: float | None
    note: str
    source: str


@dataclass(frozen=True)
class PrintedMean:
    """A printed mean over datasets beside the mean of the printed rows.

    Attributes:
        printed: The printed mean.
        recomputed: Mean of the rows of the same table, method and shots.
        datasets: Number of these rows.
    """

    printed: PublishedNumber
    recomputed: float
    datasets: int

    @property
    def agrees(self) -> bool:
        """Whether the two differ by no more than rounding."""
        return round(abs(self.printed.value - self.recomputed), 2) <= ROUNDING


@cache
def published_numbers() -> tuple[PublishedNumber, ...]:
    """All published numbers, in the order of the tables.

    Returns:
        The numbers.

    Example:
        >>> found = [n for n in published_numbers() if (n.table, n.method, n.shots) == ("Table 1", "dca", 16)]
        >>> [n.value for n in found]
        [83.51]
    """
    return tuple(_number(row) for name in FILES for row in _rows(name))


def _rows(name: str) -> list[dict[str, str]]:
    text = (files("dca.study") / "published" / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _number(row: dict[str, str]) -> PublishedNumber:
    flag = row["flag"]
    if flag not in get_args(Flag):
        raise ValueError(f"{flag} is no flag: {row}")
    return PublishedNumber(
        paper=row["paper"],
        table=row["table"],
        label=row["label"],
        method=row["method"],
        backbone=row["backbone"],
        protocol=row["protocol"],
        shots=int(row["shots"]) if row["shots"] else None,
        dataset=row["dataset"],
        quantity=row["quantity"],
        value=float(row["value"]),
        flag=flag,  # type: ignore[arg-type]
        likely=float(row["likely"]) if row["likely"] else None,
        note=row["note"],
        source=row["source"],
    )


def means(numbers: Iterable[PublishedNumber]) -> list[PrintedMean]:
    """Every printed mean whose rows are printed too, with the mean of these rows.

    Args:
        numbers: Published numbers.

    Returns:
        The means, in the order of the numbers.
    """
    groups: dict[tuple[object, ...], list[PublishedNumber]] = {}
    for number in numbers:
        key = number.paper, number.table, number.label, number.backbone, number.protocol, number.shots, number.quantity
        groups.setdefault(key, []).append(number)
    found = []
    for group in groups.values():
        rows = [number.value for number in group if number.dataset != AVERAGE]
        printed = [number for number in group if number.dataset == AVERAGE]
        if rows and printed:
            found.append(PrintedMean(printed[0], statistics.fmean(rows), len(rows)))
    return found
