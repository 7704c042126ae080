"""One cell of a sweep: an experiment, or a finished experiment with other options of its head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dca.core.files import digest_of
from dca.core.wording import counted
from dca.experiment.spec import Spec
from dca.model.checkpoint import RESULT


@dataclass(frozen=True)
class Cell:
    """One experiment of a study.

    Attributes:
        spec: What is fitted.
        head: Options of the finished model's head by name, sorted; empty for the fit itself. Cells with equal specs
            share one fit.
        rows: Names of the grids that the cell belongs to.
    """

    spec: Spec
    head: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.id)

    @cached_property
    def id(self) -> str:
        """`Spec.id`; followed by 8 digits of the head's hash where the head has other options."""
        return f"{self.spec.id}-{digest_of(dict(self.head))[:8]}" if self.head else self.spec.id

    @property
    def label(self) -> str:
        """The cell in words, e.g. "dca eurosat 16 shots seed 1 alpha=1"."""
        named = self.spec.to_dict()
        shots = "all images" if self.spec.shots is None else counted(self.spec.shots, "shot")
        protocol = [] if self.spec.protocol == "few-shot" else [self.spec.protocol]
        values = [f"{name}={value}" for name, value in {**self.spec.options, **self.head}.items()]
        return " ".join([self.spec.method, named["data"], *protocol, shots, f"seed {self.spec.seed}", *values])

    def result_file(self, runs: Path) -> Path:
        """Where its figures are once it is finished."""
        return runs / self.id / RESULT


@dataclass(frozen=True)
class Job:
    """Cells that share one fit.

    Attributes:
        spec: What is fitted.
        cells: The cells to finish, at least one.
    """

    spec: Spec
    cells: tuple[Cell, ...]

    @property
    def measured(self) -> tuple[Cell, ...]:
        """The cells that are measured on the finished model: with other options of its head, or on other targets."""
        return tuple(cell for cell in self.cells if cell.head or cell.spec.id != self.spec.id)


def jobs_of(cells: Iterable[Cell], fit: Callable[[Spec], Spec] = lambda spec: spec) -> tuple[Job, ...]:
    """The cells grouped by their fit, in the order of the first cell of each.

    Args:
        cells: The cells.
        fit: From an experiment to the one whose fit it uses; by default its own.

    Returns:
        The jobs.
    """
    groups: dict[str, tuple[Spec, list[Cell]]] = {}
    for cell in cells:
        fitted = fit(cell.spec)
        groups.setdefault(fitted.id, (fitted, []))[1].append(cell)
    return tuple(Job(spec, tuple(group)) for spec, group in groups.values())
