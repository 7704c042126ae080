"""What every method must do (`dca.model.conformance`); a new method is tested by existing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conftest import make_clip
from dca.methods.registry import all_methods
from dca.model.conformance import CHECKS, Check, Subject, check_accuracy

# Training on images until they are recognised takes seconds: by default only this one does.
TRAINED = ("dca",)


def list_checks() -> Iterator[Any]:
    """Every check of every method, as parameters."""
    for name, method in sorted(all_methods().items()):
        for check in CHECKS:
            long = check.function is check_accuracy and method.trains_on == "images" and name not in TRAINED
            yield pytest.param(name, check, id=f"{name}-{check}", marks=[pytest.mark.slow] if long else [])


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest) -> Subject:
    return Subject(request.param, make_backbone=make_clip)


@pytest.mark.parametrize(("subject", "check"), list(list_checks()), indirect=["subject"])
def test_it_does_what_every_method_must(subject: Subject, check: Check) -> None:
    check(subject)
