"""Choosing the settings of every method by one rule, from experiments that are measured on validation images.

The settings of a method are those of its cells in a study; the first one listed is its reference. All settings of a
method are measured on the same draws and images, so that they are compared pair by pair.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from dca.core.errors import UserError
from dca.core.files import json_digest
from dca.core.hints import finish_sweep
from dca.core.options import as_json
from dca.core.text import pluralize
from dca.methods.registry import get_method
from dca.study.index import Results, RunRecord, read_results
from dca.study.resolved_options import compare_options, resolve_options
from dca.study.specification import Cell, Specification
from dca.training.loop import DIVERGED

RULE = (
    "The reference of a method is its setting that is listed first. Another one is better if the mean of its paired "
    "differences in validation accuracy to the reference, over all datasets, shots and seeds of the study, is larger "
    "than one standard error of that mean (standard deviation over the experiments / square root of their number). Of "
    "the better settings the one with the highest mean validation accuracy is chosen, of equal ones the first; if none "
    "is better, the reference. An experiment whose training diverged has the accuracy 0."
)

# Method -> setting -> its cells, in the order of the study.
Groups = dict[str, dict[str, list[Cell]]]


@dataclass(frozen=True)
class Setting:
    """One setting of a method and how it did.

    Attributes:
        options: Values of all options that differ between the settings of the method.
        head: Names of those that were changed on the finished model of the reference options.
        accuracies: Validation accuracy of each experiment, by the id of its run, in the order of the study.
    """

    options: Mapping[str, Any]
    head: tuple[str, ...]
    accuracies: Mapping[str, float]

    @property
    def mean(self) -> float:
        """Mean accuracy over the experiments."""
        return statistics.fmean(self.accuracies.values())

    def gain(self, reference: Setting) -> tuple[float, float]:
        """Mean paired difference to the reference, and its standard error."""
        pairs = zip(self.accuracies.values(), reference.accuracies.values(), strict=True)
        differences = [own - other for own, other in pairs]
        return statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(len(differences))


def choose_setting(settings: Sequence[Setting]) -> Setting:
    """The setting that `RULE` chooses; the first one is the reference.

    >>> reference, other = (Setting({"x": x}, (), {"run 1": 0.5, "run 2": 0.6 + x}) for x in (0.0, 0.1))
    >>> better = Setting({"x": 0.2}, (), {"run 1": 0.6, "run 2": 0.65})
    >>> choose_setting([reference, better, other]).options
    {'x': 0.2}
    """
    reference = settings[0]
    better = [setting for setting in settings[1:] if operator.gt(*setting.gain(reference))]
    return max(better, key=lambda setting: setting.mean, default=reference)


def select_options(study: Specification, runs: Path) -> dict[str, Any]:
    """Choose a setting of every method of a study from its finished cells.

    Args:
        study: Experiments that are measured on validation images; each method has several settings.
        runs: Folder of runs, or results file.

    Returns:
        Plain values without dates or paths: the rule, the experiments, and for each method its settings with their
        accuracies and the one that is chosen. Equal results give equal values in equal order.

    Raises:
        UserError: If cells are missing or were fitted with other defaults than today's, are measured on test images,
            or the settings of a method were not measured on the same experiments.
    """
    groups = _group_by_setting(study)
    found = _find_accuracies(study, runs)
    methods = {method: _select_setting(method, cells, found) for method, cells in sorted(groups.items())}
    specs = [cell.experiment for cell in study.cells]
    return {
        "study": study.name,
        "title": study.title,
        "rule": RULE,
        "measured_on": "validation",
        "backbones": sorted({spec.to_dict()["backbone"] for spec in specs}),
        "datasets": sorted({spec.to_dict()["data"] for spec in specs}),
        "shots": sorted({spec.shots for spec in specs}, key=lambda shots: shots or 0),
        "seeds": sorted({spec.seed for spec in specs}),
        "methods": methods,
    }


def list_choices_unlike_defaults(found: Mapping[str, Any]) -> list[str]:
    """Chosen options that are not the defaults of their methods, of those whose defaults are ours.

    What authors publish stays the default: they chose it with larger backbones. A method may say why it does not take
    another value (`Method.kept_defaults`).

    Args:
        found: What `select_options` returned, or the file that it was written to.

    Returns:
        One line for each.
    """
    return [
        f"{method}: {name}={value!r} was chosen, the default is {getattr(get_method(method).Options(), name)!r}"
        for method, row in found["methods"].items()
        for name, value in row["chosen"].items()
        if _is_ours(method, name) and not _is_default(method, name, value, found)
    ]


def _is_ours(method: str, name: str) -> bool:
    """Whether the default of an option is ours to choose, and the method has no reason against the choice."""
    kind = get_method(method)
    (field,) = (field for field in fields(kind.Options) if field.name == name)
    return field.metadata["source"].startswith("ours") and name not in kind.kept_defaults


def _is_default(method: str, name: str, value: Any, found: Mapping[str, Any]) -> bool:
    """Whether a value is the default of an option, or what the default stands for in every experiment of the study."""
    kind = get_method(method)
    if as_json({name: getattr(kind.Options(), name)})[name] == value:
        return True
    places = product(found["datasets"], found["shots"])
    return all(resolve_options(method, kind.Options(), data, shots)[name] == value for data, shots in places)


def _varied_options(settings: Mapping[str, Sequence[Cell]]) -> list[str]:
    """Names of the options that differ between the settings of a method."""
    return sorted(
        {name for cells in settings.values() for name in (*cells[0].experiment.changed_options, *cells[0].head)}
    )


def _group_by_setting(study: Specification) -> Groups:
    """The cells by method and setting; raises if they cannot be compared."""
    groups: Groups = {}
    for cell in study.cells:
        setting = json_digest([dict(cell.experiment.changed_options), dict(cell.head)])
        groups.setdefault(cell.experiment.method, {}).setdefault(setting, []).append(cell)
    problems = [
        f"{cell.label}: measured on test images" for cell in study.cells if cell.experiment.measured_on != "validation"
    ]
    for method, settings in groups.items():
        places = [[_describe_without_options(cell) for cell in cells] for cells in settings.values()]
        if any(place != places[0] for place in places):
            problems.append(f"{method}: its settings are not measured on the same experiments in the same order")
        elif len(places[0]) < 2:
            problems.append(f"{method}: one experiment has no standard error")
    if problems:
        hint = 'give every setting the same data, shots and seeds, and measured_on = "validation"'
        raise UserError(f"{study.name}: nothing can be selected with it", details=problems, hint=hint)
    return groups


def _describe_without_options(cell: Cell) -> dict[str, Any]:
    """What the settings of a method share: data, shots, seed, backbone and protocol."""
    return _without_options(cell.experiment.to_dict())


def _without_options(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if name != "options"}


def _find_accuracies(study: Specification, runs: Path) -> dict[str, tuple[str, float]]:
    """The run and the validation accuracy of every cell, by the id of the cell; raises if some are missing.

    The run of a cell is the one that recorded the same data and the same options, or that has its id and recorded none.
    """
    results = read_results(runs)
    records = [row for row in results.records if row.measured_on == "validation" and row.accuracy is not None]
    alike: dict[str, list[RunRecord]] = {}
    for row in records:
        alike.setdefault(json_digest(_without_options(row.spec)), []).append(row)
    found = {}
    for cell in study.cells:
        for row in alike.get(json_digest(_describe_without_options(cell)), []):
            same = not compare_options(row.options, cell, row.classes) if row.options else row.id == cell.id
            if same and row.accuracy is not None and (cell.id not in found or row.id == cell.id):
                found[cell.id] = row.id, row.accuracy
    found |= {cell.id: (cell.id, 0.0) for cell in study.cells if cell.id not in found and _has_diverged(cell, results)}
    lacking = [_describe_missing(cell, results) for cell in study.cells if cell.id not in found]
    if lacking:
        problem = (
            f"{pluralize(len(lacking), 'cell')} of {len(study.cells):,} of {study.name} are not finished in {runs}"
        )
        raise UserError(problem, details=lacking, hint=finish_sweep(study.name, str(runs)))
    return found


def _describe_missing(cell: Cell, results: Results) -> str:
    """A cell that is not finished, and why where that is known."""
    why = [_find_error(cell, results)]
    for row in results.records:
        if row.id == cell.id:
            why = compare_options(row.options, cell, row.classes)
    return f"{cell.id}  {cell.label}" + (f": {', '.join(why)}" if any(why) else "")


def _has_diverged(cell: Cell, results: Results) -> bool:
    """Whether training of a cell ended since its loss was not finite."""
    return _find_error(cell, results).startswith(DIVERGED)


def _find_error(cell: Cell, results: Results) -> str:
    """Why a cell failed in the last sweep, or nothing."""
    for failure in results.failures:
        options = failure.options
        same = (
            options
            and _without_options(failure.spec) == _describe_without_options(cell)
            and not compare_options(options, cell)
        )
        if same or (not options and failure.id == cell.id):
            return failure.error
    return ""


def _select_setting(
    method: str, settings: Mapping[str, Sequence[Cell]], found: Mapping[str, tuple[str, float]]
) -> dict[str, Any]:
    """The settings of one method with their figures, and the chosen one."""
    default = get_method(method).Options()
    varied = _varied_options(settings)
    made = [
        Setting(
            {
                name: {**cell.experiment.changed_options, **cell.head}.get(name, getattr(default, name))
                for name in varied
            },
            tuple(sorted(cell.head)),
            dict(found[each.id] for each in cells),
        )
        for cells in settings.values()
        for cell in cells[:1]
    ]
    chosen = choose_setting(made)
    return {
        "chosen": as_json(chosen.options),
        "reference": as_json(made[0].options),
        "settings": [_figures(setting, made[0]) for setting in made],
    }


def _figures(setting: Setting, reference: Setting) -> dict[str, Any]:
    """The figures of one setting."""
    difference, error = setting.gain(reference)
    return {
        "options": as_json(setting.options),
        "head": list(setting.head),
        "accuracy": setting.mean,
        "difference": difference,
        "standard_error": error,
        "n": len(setting.accuracies),
        "runs": dict(setting.accuracies),
    }
