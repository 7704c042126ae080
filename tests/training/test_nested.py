"""Fits of other methods inside a fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.datasets.dataset import Dataset
from dca.methods.registry import get_method
from dca.training.context import FitContext
from dca.training.fit import fit
from dca.training.held_out import NestedFits, predict_held_out
from dca.training.session import Session


@pytest.fixture(scope="module")
def clip() -> CLIP:
    return make_clip()


@pytest.mark.parametrize(("name", "options"), [("coop", ["epochs=1"]), ("linear_probe", ["c=0.3"]), ("zero_shot", [])])
def test_a_nested_fit_is_a_fit(name: str, options: list[str], sample: Dataset, clip: CLIP, tmp_path: Path) -> None:
    said: list[str] = []
    session = Session(device="cpu", progress=lambda stage, done, total, note: said.append(note))
    nested = NestedFits(sample, FitContext(session=session, encoder=clip, seed=1, folder=tmp_path))
    kind = get_method(name)
    chosen = kind.parse_options(options)
    alone, _ = fit(kind, chosen, sample, FitContext(session=Session(device="cpu"), encoder=clip, seed=1))
    expected = predict_held_out(alone, chosen, sample, FitContext(session=Session(device="cpu"), encoder=clip, seed=1))
    found = nested.predict_held_out(kind, chosen, 5)
    assert found.how == expected.how
    np.testing.assert_array_equal(found.probabilities, expected.probabilities)
    made = nested.fit(kind, chosen).state_dict()
    assert all(torch.equal(made[key], value) for key, value in alone.state_dict().items())
    assert all(note.startswith(name) for note in said if note)


def test_the_number_of_folds_is_limited(sample: Dataset, clip: CLIP) -> None:
    kind = get_method("gda")
    nested = NestedFits(sample, FitContext(session=Session(device="cpu"), encoder=clip, seed=1))
    assert (
        nested.predict_held_out(kind, kind.parse_options({"views": 0, "shrinkage": "oas"}), 3).how
        == "3-fold cross-validation"
    )
