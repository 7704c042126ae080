"""One cell of a sweep: an experiment, or a finished experiment with other options of its head.

A sweep specification in TOML: grids of experiments, expanded to cells.

    title = "What DCA gains over CoOp"
    settings = "selection.json"   # optional: options of each method that `dca study select` chose; those of a grid win

    [common]                      # values of every grid
    data = ["eurosat", "dtd"]
    shots = [1, 4, 16]
    seed = [1, 2, 3]

    [[grid]]
    name = "CoOp"                 # optional: names these cells in tables
    method = "coop"

    [[grid]]
    name = "DCA"
    method = "dca"
    options = {alpha = [1, 10]}   # options of the method
    head = {gamma1 = [100, 500]}  # options of the finished model's head, measured without another fit

A list is an axis of the grid; a grid is the product of its axes. Where a value is a list itself (`targets`, an option
such as `phrases`), an axis is a list of lists. "auto" is the value None of an option. Keys are the fields
of `Experiment`.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, get_origin

from dca.core.errors import UserError, unknown_name
from dca.core.files import json_digest, read_json
from dca.core.hints import Hint, list_methods, list_specification_keys
from dca.core.options import option_types, read_none
from dca.core.text import pluralize
from dca.methods.base import Method
from dca.methods.registry import DEFAULT_METHOD, get_method
from dca.model.checkpoint import RESULT
from dca.study.experiment import Experiment


@dataclass(frozen=True)
class Cell:
    """One experiment of a study.

    Attributes:
        experiment: What is fitted.
        head: Options of the finished model's head by name, sorted; empty for the fit itself. Cells with equal
            experiments share one fit.
        rows: Names of the grids that the cell belongs to.
    """

    experiment: Experiment
    head: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.id)

    @cached_property
    def id(self) -> str:
        """`Experiment.id`; followed by 8 digits of the head's hash where the head has other options."""
        return f"{self.experiment.id}-{json_digest(dict(self.head))[:8]}" if self.head else self.experiment.id

    @property
    def label(self) -> str:
        """The cell in words, e.g. "dca eurosat 16 shots seed 1 alpha=1"."""
        named = self.experiment.to_dict()
        shots = "all images" if self.experiment.shots is None else pluralize(self.experiment.shots, "shot")
        protocol = [] if self.experiment.protocol == "few-shot" else [self.experiment.protocol]
        values = [f"{name}={value}" for name, value in {**self.experiment.changed_options, **self.head}.items()]
        return " ".join(
            [self.experiment.method, named["data"], *protocol, shots, f"seed {self.experiment.seed}", *values]
        )

    def result_file(self, runs: Path) -> Path:
        """Where its figures are once it is finished."""
        return runs / self.id / RESULT


@dataclass(frozen=True)
class Job:
    """Cells that share one fit.

    Attributes:
        experiment: What is fitted.
        cells: The cells to finish, at least one.
    """

    experiment: Experiment
    cells: tuple[Cell, ...]

    @property
    def measured(self) -> tuple[Cell, ...]:
        """The cells that are measured on the finished model: with other options of its head, or on other targets."""
        return tuple(cell for cell in self.cells if cell.head or cell.experiment.id != self.experiment.id)


def group_jobs(
    cells: Iterable[Cell], fit: Callable[[Experiment], Experiment] = lambda experiment: experiment
) -> tuple[Job, ...]:
    """The cells grouped by their fit, in the order of the first cell of each.

    Args:
        cells: The cells.
        fit: From an experiment to the one whose fit it uses; by default its own.

    Returns:
        The jobs.
    """
    groups: dict[str, tuple[Experiment, list[Cell]]] = {}
    for cell in cells:
        fitted = fit(cell.experiment)
        groups.setdefault(fitted.id, (fitted, []))[1].append(cell)
    return tuple(Job(experiment, tuple(group)) for experiment, group in groups.values())


TOP_KEYS = ("title", "paper", "settings", "common", "grid")
NESTED = ("options", "head")
FIELDS = tuple(f.name for f in dataclasses.fields(Experiment) if f.name != "options")
GRID_KEYS = ("name", *FIELDS, *NESTED)
SETTINGS = "settings of a specification names the JSON file of a selection, beside it"
Table = Mapping[str, Any]


@dataclass(frozen=True)
class Specification:
    """A sweep specification with all of its cells.

    Attributes:
        name: Name of a specification that comes with the package, or the name of the file.
        title: What is compared.
        paper: Tables and figures of the paper that it corresponds to; may be empty.
        cells: The cells; each once.
    """

    name: str
    title: str
    paper: str
    cells: tuple[Cell, ...]


def list_shipped() -> dict[str, Path]:
    """The specifications that come with the package, by name such as "paper/few-shot"."""
    root = Path(str(files("dca.study") / "specs"))
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.rglob("*.toml"))}


def load_specification(source: str | Path, *, backbone: str | None = None) -> Specification:
    """Read a specification.

    Args:
        source: A TOML file, or the name of a specification that comes with the package.
        backbone: Used instead of the backbones of the specification.

    Returns:
        The study.

    Raises:
        UserError: If there is no such specification, or it has unknown keys, names or values; it lists all of them.
    """
    known, path = list_shipped(), Path(source).expanduser()
    if not path.is_file() and str(source) in known:
        return parse_specification(_read(known[str(source)]), str(source), backbone=backbone)
    if not path.exists():
        hint = ["give a TOML file", f"one of: {', '.join(known)}"]
        if path.suffix != ".toml":
            raise unknown_name("specification", str(source), known, hint=hint)
        raise UserError(f"{path}: no such file", hint=hint)
    return parse_specification(_read(path), path.name, backbone=backbone, folder=path.parent)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})", hint="give a TOML file") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise UserError(f"{path}: not readable TOML ({error})", hint="docs/studies.md shows one") from None


def parse_specification(
    table: Table, name: str, *, backbone: str | None = None, folder: Path = Path()
) -> Specification:
    """A specification that is read already; see `load_specification`. folder: where `settings` is looked for.

    >>> table = {"common": {"data": "sample", "shots": [1, 2]}, "grid": [{"method": ["gda", "zero_shot"]}]}
    >>> len(parse_specification(table, "example").cells)
    4
    """
    grids, chosen = _read_grids(table, name), _read_selected_options(table, folder)
    if backbone is not None:
        grids = [{**grid, "backbone": backbone} for grid in grids]
    cells, problems = dict[str, Cell](), dict[str, None]()
    for number, grid in enumerate(grids, 1):
        place = str(grid.get("name") or f"grid {number}")
        for made in _expand_grid(grid, chosen, str(grid.get("name", ""))):
            if isinstance(made, str):
                problems[f"{place}: {made}"] = None
            else:
                _add_cell(cells, made, problems)
    if problems:
        raise _specification_error(name, list(problems))
    if not cells:
        raise UserError(f"{name}: no cells", hint="give at least one value for data")
    return Specification(name, str(table.get("title", name)), str(table.get("paper", "")), tuple(cells.values()))


def _specification_error(name: str, problems: Sequence[str]) -> UserError:
    hint: Hint = [list_specification_keys(), list_methods()]
    return UserError(f"{name}: {pluralize(len(problems), 'problem')}", details=problems, hint=hint)


def _add_cell(cells: dict[str, Cell], made: Cell, problems: dict[str, None]) -> None:
    """Add a cell; one that is there already gets the other row as well. Records keep only the last part of a path."""
    there = cells.get(made.id, made)
    if there.experiment != made.experiment:
        problems[
            f"{there.experiment.data} and {made.experiment.data} have the same last part, which names them in records"
        ] = None
        return
    cells[made.id] = dataclasses.replace(there, rows=tuple(dict.fromkeys([*there.rows, *made.rows])))


def _read_grids(table: Table, name: str) -> list[dict[str, Any]]:
    """The grids with the common values filled in; raises for unknown keys and wrong types."""
    common, own = table.get("common", {}), table.get("grid", [{}])
    if not isinstance(common, dict) or not isinstance(own, list) or not all(isinstance(grid, dict) for grid in own):
        raise _specification_error(name, ["expected one table [common] and tables [[grid]]"])
    problems = [unknown_name("key", key, TOP_KEYS).problem for key in table if key not in TOP_KEYS]
    for place, grid in (("common", common), *((f"grid {n}", grid) for n, grid in enumerate(own, 1))):
        problems += [f"{place}: {unknown_name('key', k, GRID_KEYS).problem}" for k in grid if k not in GRID_KEYS]
        problems += [f"{place}: {k} must be a table" for k in NESTED if not isinstance(grid.get(k, {}), dict)]
    if problems:
        raise _specification_error(name, problems)
    return [{**common, **grid, **{k: {**common.get(k, {}), **grid.get(k, {})} for k in NESTED}} for grid in own]


def _read_selected_options(table: Table, folder: Path) -> dict[str, Table]:
    """Method -> the options that a selection chose for it, as `settings` of a specification names it."""
    if "settings" not in table:
        return {}
    path = folder / str(table["settings"])
    rows = read_json(path, hint=SETTINGS).get("methods")
    if not isinstance(rows, dict) or not all(isinstance(row, dict) and "chosen" in row for row in rows.values()):
        raise UserError(f"{path}: no methods with chosen options", hint=SETTINGS)
    return {method: row["chosen"] for method, row in rows.items()}


def _expand_grid(grid: Table, chosen: Mapping[str, Table], row: str) -> Iterator[Cell | str]:
    """The cells of one grid, from options by method; a text in place of each cell that cannot be made."""
    if "data" not in grid:
        yield "data is missing"
        return
    names = [name for name in FIELDS if name in grid]
    for values in product(*(_read_axis(grid[name], name == "targets") for name in names)):
        given = dict(zip(names, values, strict=True))
        try:
            kind = get_method(given.get("method", DEFAULT_METHOD))
            for options in _expand_options(grid["options"], kind):
                experiment = Experiment(**given, options={**chosen.get(kind.name, {}), **options})
                yield from (Cell(experiment, head, (row,) if row else ()) for head in _expand_heads(grid["head"], kind))
        except UserError as error:
            yield "; ".join([error.problem, *error.details])
        except (TypeError, ValueError) as error:
            yield f"{given}: {error}"


def _expand_heads(table: Table, kind: type[Method]) -> Iterator[dict[str, Any]]:
    """The combinations of head options, checked; one empty combination if there are none."""
    if unknown := [name for name in table if name not in kind.head_options]:
        can = ", ".join(kind.head_options) or "none"
        raise UserError(f"{', '.join(unknown)}: no option of the head of {kind.name}, which has: {can}")
    for combination in _expand_options(table, kind):
        chosen = kind.parse_options(combination)
        yield {name: getattr(chosen, name) for name in sorted(combination)}


def _expand_options(table: Table, kind: type[Method]) -> Iterator[dict[str, Any]]:
    """The product of the axes of a table of options."""
    types = option_types(kind.Options)
    axes = [
        [read_none(one, types.get(name)) for one in _read_axis(value, get_origin(types.get(name)) is tuple)]
        for name, value in table.items()
    ]
    return (dict(zip(table, values, strict=True)) for values in product(*axes))


def _read_axis(value: Any, of_lists: bool) -> Sequence[Any]:
    """The values of one axis. of_lists: each value is a list itself.

    >>> _read_axis(1, False), _read_axis([1, 2], False), _read_axis(["a", "b"], True), _read_axis([["a"], ["b"]], True)
    ([1], [1, 2], [['a', 'b']], [['a'], ['b']])
    """
    if not isinstance(value, list):
        return [value]
    return value if not of_lists or (value and all(isinstance(item, list) for item in value)) else [value]
