"""What every method must do (`dca.model.conformance`); a new method is tested by existing."""

from __future__ import annotations

import pytest

from conftest import make_clip
from dca.methods.registry import all_methods
from dca.model.conformance import CHECKS, Check, Subject


@pytest.fixture(scope="module", params=sorted(all_methods()))
def subject(request: pytest.FixtureRequest) -> Subject:
    return Subject(request.param, make_backbone=make_clip)


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_it_does_what_every_method_must(subject: Subject, check: Check) -> None:
    check(subject)
