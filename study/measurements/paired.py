"""Shared by measurements on the same test images: accuracies, paired differences and their intervals."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from dca.core.files import write_bytes
from dca.datasets import load_dataset
from dca.datasets.dataset import Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from pages import write_part

Z95 = 1.959963984540054
# Whether each test image is classified correctly, (seeds, images).
Right = NDArray[np.bool_]


def mean_interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Mean over images of values (seeds, images), and its 95 % interval.

    Seeds are averaged first: they share the test images. So the interval is about the test images, with the draws that
    were measured, not about other draws.
    """
    each = values.mean(axis=0)
    mean, spread = float(each.mean()), float(each.std(ddof=1)) if each.size > 1 else math.inf
    half = Z95 * spread / math.sqrt(each.size)
    return mean, mean - half, mean + half


def mean_accuracy(right: Right) -> tuple[float, float, float]:
    """Accuracy in percent and its 95 % interval."""
    return percent(right.astype(np.float64))


def mean_difference(ours: Right, theirs: Right) -> tuple[float, float, float]:
    """`theirs` minus `ours` in points, image by image, and its 95 % interval."""
    return percent(theirs.astype(np.float64) - ours.astype(np.float64))


def percent(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """`mean_interval` times 100."""
    mean, low, high = mean_interval(values)
    return 100 * mean, 100 * low, 100 * high


def format_interval(found: Sequence[float], sign: str = "") -> str:
    """A figure with its interval, for tables.

    >>> format_interval((1.23, 0.5, 2.0), "+")
    '+1.2 [+0.5, +2.0]'
    """
    mean, low, high = (f"{value:{sign}.1f}" for value in found)
    return f"{mean} [{low}, {high}]"


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def load_datasets(folders: Sequence[str], most: int) -> list[Dataset]:
    """The datasets with at most so many test images, taken evenly; 0 for all."""
    found = [load_dataset(folder) for folder in folders]
    return [dataclasses.replace(d, test=d.test[:: math.ceil(len(d.test) / most)]) if most else d for d in found]


def make_parser(about: str | None) -> argparse.ArgumentParser:
    """The arguments that all such measurements have."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("data", nargs="*", help="dataset folders, as `dca fit` takes them")
    made.add_argument("--shots", action="append", type=int, help="repeatable; 4 and 16 unless given")
    made.add_argument("--seed", action="append", type=int, help="repeatable; 1, 2 and 3 unless given")
    made.add_argument("--epochs", type=int, help="shorter training, for a trial")
    made.add_argument("--test-images", type=int, default=0, help="at most so many, for a trial; all unless given")
    made.add_argument("--backbone", default="mini")
    made.add_argument("--device", default="auto")
    made.add_argument("--json", type=Path, help="write the figures here after every row")
    add_page_options(made)
    return made


def add_page_options(parser: argparse.ArgumentParser) -> None:
    """The arguments of a script whose figures are kept in a file and whose tables stand on a page."""
    parser.add_argument("--show", type=Path, help="only print the tables of such a file")
    parser.add_argument("--page", type=Path, help="also put the tables between the marks of this script on a page")


def print_tables(tables: str, script: str, page: Path | None) -> None:
    """Print the tables, and put them on the page if there is one."""
    click.echo(tables)
    if page is not None:
        write_part(script, tables, page)


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The figures that --json wrote."""
    rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return rows


def write_rows(file: Path | None, rows: Sequence[dict[str, Any]]) -> None:
    """Write the figures so far, if they are to be kept, a row a line."""
    if file is not None:
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        write_bytes(file, f'{{"rows": [\n{lines}\n]}}\n'.encode())
