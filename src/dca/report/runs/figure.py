"""Figures as data: a drawing whose marks link to the runs behind them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from dca.report.svg import element


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        name: Stem of its file name.
        title: What it shows.
        svg: The drawing; links inside begin with "#".
        groups: Ids of the runs behind each of its marks.
        caption: Below the drawing.
    """

    name: str
    title: str
    svg: Markup
    groups: tuple[tuple[str, ...], ...]
    caption: str = ""

    @property
    def runs(self) -> tuple[str, ...]:
        """Ids of all runs behind it."""
        return tuple(dict.fromkeys(id for group in self.groups for id in group))


def anchor(runs: Sequence[str]) -> str:
    """Name of the list of these runs on the page.

    >>> anchor(["a", "b"]) == anchor(("a", "b")) != anchor(["ab"])
    True
    """
    return f"runs-{hashlib.sha256(' '.join(runs).encode()).hexdigest()[:12]}"


def linked(mark: Markup, runs: Sequence[str]) -> Markup:
    """A mark of a drawing that leads to the list of its runs."""
    return element("a", mark, href=f"#{anchor(runs)}") if runs else mark
