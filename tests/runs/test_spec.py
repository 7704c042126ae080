"""One canonical description of a fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dca.core import options as core_options
from dca.core.errors import UserError
from dca.methods.registry import get_method
from dca.runs.spec import FitSpec


def test_equal_fits_have_equal_specs_however_they_are_written() -> None:
    command_line = FitSpec(data="photos", method="tip_adapter", options=("views=10",))
    for other in (
        FitSpec(data="photos", method="tip-adapter", options={"views": 10}),
        FitSpec(data=Path("photos"), method="Tip Adapter", seed=np.int64(1)),  # type: ignore[arg-type]
        FitSpec(data="photos", method="tip_adapter", options=get_method("tip_adapter").Options()),
    ):
        assert other == command_line
        assert hash(other) == hash(command_line)
    assert command_line.changed_options == {}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"method": "dcaa"}, "Did you mean 'dca'?"),
        ({"rules": "loose"}, "unknown rules 'loose'"),
        ({"shots": 0}, "shots=0"),
        ({"seed": -1}, "seed=-1"),
        ({"options": {"epocs": 1}}, "Did you mean 'epochs'?"),
        ({"options": ("epocs=1",), "method": "dca"}, "Did you mean 'epochs'?"),
        ({"options": get_method("gda").Options(), "method": "dca"}, "GDAOptions are no options of dca"),
    ],
)
def test_a_spec_that_cannot_be_fitted_is_refused_when_it_is_made(arguments: dict[str, Any], part: str) -> None:
    with pytest.raises(UserError) as caught:
        FitSpec(data="photos", **arguments)
    assert part in str(caught.value)


def test_an_options_object_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    options = get_method("dca").parse_options({"epochs": 3})
    monkeypatch.setattr(core_options, "check_limits", lambda options: pytest.fail("validated again"))
    assert FitSpec(data="photos", method="dca", options=options).options is options
