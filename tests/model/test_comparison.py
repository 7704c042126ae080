from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dca import Classifier, Dataset, UserError
from dca.model.comparison import Comparison, compare
from dca.stats.paired import paired_difference


@pytest.fixture(scope="module")
def models(sample: Dataset) -> list[tuple[str, Classifier]]:
    first = Classifier("gda", views=0, device="cpu").fit(sample)
    others = [(name, Classifier(name, device="cpu").fit(sample)) for name in ("zero_shot", "sim")]
    return [("gda", first), *others]


@pytest.fixture(scope="module")
def found(models: list[tuple[str, Classifier]], sample: Dataset) -> Comparison:
    return compare(models, sample)


def test_models_are_measured_on_the_same_images(
    found: Comparison, models: list[tuple[str, Classifier]], sample: Dataset
) -> None:
    assert [row.name for row in found.models] == ["gda", "zero_shot", "sim"]
    right = []
    for row, (_, model) in zip(found.models, models, strict=True):
        assert row.evaluation.accuracy == model.score(sample)
        assert row.low <= row.evaluation.accuracy <= row.high
        assert row.cost.milliseconds > 0
        right.append(np.array(row.right))
    first, second, _ = found.models
    assert first.difference is None
    assert second.difference == paired_difference(right[1], right[0])
    assert second.difference is not None
    assert second.difference.difference == pytest.approx(second.evaluation.accuracy - first.evaluation.accuracy)


def test_disagreements_are_all_images_with_different_answers(found: Comparison) -> None:
    answers = np.array([row.predicted_labels for row in found.models])
    expected = {n for n in range(len(found.images)) if len(set(answers[:, n])) > 1}
    assert {row.index for row in found.disagreements} == expected
    assert expected
    groups = [0 if row.answers[0][2] else 1 if any(a[2] for a in row.answers) else 2 for row in found.disagreements]
    assert groups == sorted(groups)
    for row in found.disagreements:
        assert all(hit == (label == row.truth) for label, _, hit in row.answers)


def test_plain_values_are_complete(found: Comparison) -> None:
    told = found.to_dict()
    assert told["n"] == 30
    assert told["models"][0]["difference"] is None
    assert set(told["models"][1]["difference"]) == {
        "difference", "low", "high", "p_value", "first_only", "second_only", "n",
    }  # fmt: skip
    assert len(told["disagreements"]) == len(found.disagreements)


def test_right_answers_agree_under_other_labels(models: list[tuple[str, Classifier]], sample: Dataset) -> None:
    renamed = Classifier("gda", views=0, device="cpu").fit(
        dataclasses.replace(sample, labels=tuple(f"label {n}" for n in range(10)))
    )
    found = compare([models[0], ("renamed", renamed)], sample)
    assert any(found.models[1].right)
    assert not any(hit for row in found.disagreements for _, _, hit in row.answers)


def test_one_model_is_no_comparison(models: list[tuple[str, Classifier]], sample: Dataset) -> None:
    with pytest.raises(UserError, match="at least two models"):
        compare(models[:1], sample)
