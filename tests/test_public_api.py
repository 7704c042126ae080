"""Every public name is documented in one style, and every example in a docstring is true."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

import dca
import dca.study
from dca.core.hints import Action

MODULES = ["dca", *(module.name for module in pkgutil.walk_packages(dca.__path__, "dca."))]
CLASSES = {name: getattr(dca, name) for name in dca.__all__ if isinstance(getattr(dca, name), type)} | {
    "Action": Action,
    "Experiment": dca.study.Experiment,
}
FUNCTIONS = {name: getattr(dca, name) for name in ("export_onnx", "list_methods", "load_dataset", "option")} | {
    "study.run_experiment": dca.study.run_experiment,
    **{f"protocols.{name}": getattr(dca.study.protocols, name) for name in dca.study.protocols.__all__},
}
# They raise UserError through functions that they call.
RAISES = {
    "export_onnx",
    "load_dataset",
    *(f"protocols.{name}" for name in ("base_to_new", "cross_dataset", "domain_shift", "few_shot", "make_task")),
    "study.run_experiment",
    "Classifier.add_class",
    "Classifier.evaluate",
    "Classifier.fit",
    "Classifier.from_pretrained",
    "Classifier.predict",
    "Classifier.predict_proba",
    "Classifier.push_to_hub",
    "Classifier.remove_class",
    "Classifier.rename_class",
    "Classifier.save_pretrained",
    "Classifier.score",
    "CLIP.from_pretrained",
    "Method.parse_options",
    "TrainingOptions",
    "Session",
    "Session.load_backbone",
    "Session.frozen_features",
    "Session.require_readable",
    "Experiment",
}
SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Example")


def public_methods() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions of every public class and of its bases in this package that are not public; properties left out."""
    for kind in CLASSES.values():
        hidden = (base for base in kind.__mro__ if base.__module__.startswith("dca.") and base not in CLASSES.values())
        for name, value in [pair for owner in (kind, *hidden) for pair in vars(owner).items()]:
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if not name.startswith("_") and inspect.isfunction(inspect.unwrap(function)):
                yield f"{kind.__name__}.{name}", function


METHODS = dict(public_methods())


def sections(doc: str) -> dict[str, str]:
    """The text of each section of a docstring by its title."""
    parts = re.split(rf"^({'|'.join(SECTIONS)}):$", inspect.cleandoc(doc), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def documented(section: str) -> set[str]:
    """The names that a section explains, as in "name: ..." or "first, second: ..."."""
    heads = re.findall(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*): ", section, flags=re.MULTILINE)
    return {name.strip("* ") for head in heads for name in head.split(",")}


def faults(name: str, function: Callable[..., Any]) -> list[str]:
    """What is missing in the docstring of a function."""
    found, wrong = sections(function.__doc__ or ""), []
    signature = inspect.signature(function)
    parameters = {p for p in signature.parameters if p not in ("self", "cls")}
    if missing := parameters - documented(found.get("Args", "")):
        wrong.append(f"{name}: no word about {sorted(missing)}")
    if unknown := documented(found.get("Args", "")) - parameters:
        wrong.append(f"{name}: there is no parameter {sorted(unknown)}")
    # Without parameters, the first line of a docstring says what is returned.
    if parameters and signature.return_annotation != "None" and "Returns" not in found:
        wrong.append(f"{name}: no Returns")
    raising = name in RAISES or re.search(r"raise (UserError|unknown_name)", inspect.getsource(function))
    if raising and parameters and "Raises" not in found:
        wrong.append(f"{name}: no Raises")
    return wrong


def fields_of(kind: type) -> set[str]:
    """What a class must explain: its dataclass fields, or the parameters of its constructor."""
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}
    return set(inspect.signature(kind.__init__).parameters) - {"self"}


def test_every_public_name_of_the_study_is_there():
    assert {*dca.study.__all__} <= {*dir(dca.study)}
    assert all(getattr(dca.study, name).__doc__ for name in dca.study.__all__)


def test_every_public_name_is_there():
    assert set(dca.__all__) <= set(dir(dca))
    for name in dca.__all__:
        assert getattr(dca, name) is not None
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        dca.nothing_of_the_kind  # noqa: B018


def test_every_public_name_is_a_class_or_a_function():
    assert {*CLASSES, *FUNCTIONS} >= {*dca.__all__} - {"__version__"}
    assert len(FUNCTIONS) == 4 + 1 + 9


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_explains_its_parameters_and_has_an_example(name: str):
    assert faults(name, FUNCTIONS[name]) == []
    found = sections(FUNCTIONS[name].__doc__)
    assert "Returns" in found
    assert ">>> " in found["Example"]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_explains_its_parameters(name: str):
    assert METHODS[name].__doc__
    assert faults(name, METHODS[name]) == []


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_explains_its_fields_and_has_an_example(name: str):
    found = sections(CLASSES[name].__doc__)
    explained = documented(found.get("Args", "")) | documented(found.get("Attributes", ""))
    assert fields_of(CLASSES[name]) <= explained
    assert ">>> " in found["Example"]
    if name in RAISES:
        assert "Raises" in found


def test_everything_that_raises_through_others_is_a_public_name():
    assert {*CLASSES, *FUNCTIONS, *METHODS} >= RAISES


def test_what_is_missing_in_a_docstring_is_found():
    def incomplete(first: int, second: int) -> int:
        """Do something.

        Args:
            first: A number.
            third: Another number.
        """
        raise dca.UserError("no")

    assert faults("incomplete", incomplete) == [
        "incomplete: no word about ['second']",
        "incomplete: there is no parameter ['third']",
        "incomplete: no Returns",
    ]
    assert faults("export_onnx", incomplete)[-1] == "export_onnx: no Raises"


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    module = import_module(name)
    assert doctest.testmod(module).failed == 0


def test_importing_the_package_is_cheap():
    code = "import sys, dca; sys.exit(bool({'torch', 'numpy', 'PIL', 'click'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
