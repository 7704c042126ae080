"""One canonical description of an experiment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dca.core.errors import UserError
from dca.study.experiment import Experiment


def test_equal_experiments_have_equal_specs_however_they_are_written() -> None:
    command_line = Experiment(data="photos", method="tip_adapter", options=("views=10",))
    for other in (
        Experiment(data="photos", method="tip-adapter", options={"views": 10}),
        Experiment(data=Path("photos"), method="Tip Adapter", seed=np.int64(1)),  # type: ignore[arg-type]
        Experiment(data="photos", method="tip_adapter", options={"alpha": None}),
    ):
        assert other == command_line
        assert other.id == command_line.id
        assert hash(other) == hash(command_line)
    assert command_line.changed_options == {}


def test_options_that_differ_make_another_spec() -> None:
    one, other = (Experiment(data="photos", method="gda", options={"views": views}) for views in (3, 4))
    assert one != other
    assert one.id != other.id
    assert one.changed_options == {"views": 3}


def test_the_order_of_options_does_not_matter() -> None:
    one = Experiment(data="x", method="dca", options={"epochs": 3, "alpha": 1.0})
    other = Experiment(data="x", method="dca", options={"alpha": 1, "epochs": 3})
    assert one == other
    assert one.id == other.id


def test_no_folder_of_this_machine_is_in_what_travels(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    spec = Experiment(
        data=str(tmp_path / "photos"), backbone=str(tmp_path / "clip"), targets=(str(tmp_path / "other"),)
    )
    written = json.dumps(spec.to_dict())
    assert str(tmp_path) not in written
    assert spec.to_dict()["data"] == "photos"
    assert spec.to_dict()["backbone"] == "clip"
    assert Experiment(data="eurosat", backbone="openai/clip-vit-base-patch16").to_dict()["backbone"].count("/") == 1


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"method": "dcaa"}, "Did you mean 'dca'?"),
        ({"protocol": "few"}, "unknown protocol 'few'"),
        ({"rules": "loose"}, "unknown rules 'loose'"),
        ({"shots": 0}, "shots=0"),
        ({"seed": -1}, "seed=-1"),
        ({"options": {"epocs": 1}}, "Did you mean 'epochs'?"),
        ({"draw": "d.json", "shots": 2}, "draw and shots cannot be combined"),
        ({"draw": "d.json", "hold_out": 0.2}, "draw and hold_out cannot be combined"),
        ({"draw": "d.json", "protocol": "base-to-new"}, "draw and protocol base-to-new"),
        ({"draw": "d.json", "protocol": "transductive"}, "draw and protocol transductive"),
        ({"measured_on": "validation", "protocol": "transductive"}, "combined with protocol transductive"),
        ({"method": "closed_form", "other": "other"}, "learns from no other images"),
        ({"measured_on": "train"}, "unknown measured_on 'train'"),
        ({"measured_on": "validation", "protocol": "base-to-new"}, "combined with protocol base-to-new"),
        ({"measured_on": "validation", "rules": "paper"}, "combined with rules paper"),
        ({"measured_on": "validation", "draw": "d.json"}, "combined with draw"),
        ({"measured_on": "validation", "hold_out": 0.2}, "combined with hold_out"),
    ],
)
def test_a_spec_that_cannot_be_run_is_refused_when_it_is_made(arguments: dict[str, Any], part: str) -> None:
    with pytest.raises(UserError) as caught:
        Experiment(data="photos", **arguments)
    assert part in str(caught.value)


def test_the_id_does_not_depend_on_where_the_data_is(tmp_path: Path) -> None:
    missing = Experiment(data="somewhere/photos", backbone=str(tmp_path / "clip")).id
    (tmp_path / "photos").mkdir()
    assert Experiment(data=str(tmp_path / "photos"), backbone="elsewhere/models/clip").id == missing
    assert Experiment(data="photos", backbone="vit-b-16").id != missing


def test_what_has_no_effect_on_a_method_makes_no_other_spec() -> None:
    assert Experiment(data="x", method="zero_shot", estimate=True) == Experiment(data="x", method="zero_shot")
    assert Experiment(data="x", method="gda", calibrate=False) == Experiment(data="x", method="gda"), (
        "nothing to calibrate on"
    )
    assert Experiment(data="x", method="gda", estimate=True) != Experiment(data="x", method="gda")
    assert Experiment(data="x", method="gda", estimate=True, calibrate=False) != Experiment(
        data="x", method="gda", estimate=True
    )


def test_experiments_on_the_test_part_keep_the_ids_they_had_before_there_was_another() -> None:
    spec = Experiment(data="eurosat", method="dca", shots=16, seed=2, options={"alpha": 1})
    assert spec.id == "a07690bd6836a480"
    assert (
        Experiment(data="eurosat", method="dca", shots=16, seed=2, options={"alpha": 1}, measured_on="test").id
        == spec.id
    )
    assert "measured_on" not in spec.to_dict()
    other = Experiment(data="eurosat", method="dca", shots=16, seed=2, options={"alpha": 1}, measured_on="validation")
    assert other.to_dict() == {**spec.to_dict(), "measured_on": "validation"}
    assert other.id != spec.id
