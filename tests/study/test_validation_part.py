"""Validation images in place of test images."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from dca.core.errors import UserError
from dca.datasets.dataset import Dataset, LabelledImage
from dca.datasets.draws import draw_few_shot
from dca.study.protocols import few_shot, use_validation_as_test


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Three classes with 9 training, 7 validation and 2 test images each; every file is there."""

    def items(part: str, number: int) -> tuple[LabelledImage, ...]:
        return tuple(LabelledImage(tmp_path / f"{part}-{y}-{n}.jpg", y) for n in range(number) for y in range(3))

    parts = {part: items(part, number) for part, number in (("train", 9), ("val", 7), ("test", 2))}
    for item in (*parts["train"], *parts["val"], *parts["test"]):
        assert isinstance(item.image, Path)
        item.image.touch()
    return Dataset("toy", ("a", "b", "c"), ("a", "b", "c"), **parts, split="of this test")


@pytest.mark.parametrize("shots", [1, 2, 4, 8, None])
@pytest.mark.parametrize("validation", ["none", "few"])
def test_no_image_is_trained_or_selected_on_and_measured(dataset: Dataset, shots: int | None, validation: str) -> None:
    changed = use_validation_as_test(dataset, shots, 1)
    task = few_shot(changed, shots, 1, validation=validation)  # type: ignore[arg-type]
    (target,) = task.targets
    parts = [[item.image for item in items] for items in (task.source.train, task.source.val, target.test)]
    together = [image for part in parts for image in part]
    assert len(set(together)) == len(together)
    assert set(parts[2]) <= {item.image for item in dataset.val}
    assert not set(together) & {item.image for item in dataset.test}
    each = 7 - (4 if shots is None else min(shots, 4))
    assert Counter(item.label for item in target.test) == {0: each, 1: each, 2: each}


@pytest.mark.parametrize("shots", [2, None])
def test_the_draw_is_that_of_the_test_part(dataset: Dataset, shots: int | None) -> None:
    task = few_shot(use_validation_as_test(dataset, shots, 3), shots, 3)
    usual = few_shot(dataset, shots, 3)
    assert (task.source.train, task.source.val) == (usual.source.train, usual.source.val)


def test_every_method_is_measured_on_the_same_images(dataset: Dataset) -> None:
    changed = use_validation_as_test(dataset, 4, 1)
    drawn = {item.image for item in draw_few_shot(dataset, 4, 1).val}
    assert [item.image for item in changed.test] == [i.image for i in dataset.val if i.image not in drawn]


def test_files_that_are_not_there_are_left_out_and_counted(dataset: Dataset) -> None:
    whole = use_validation_as_test(dataset, 4, 1)
    gone = whole.test[0].image
    assert isinstance(gone, Path)
    gone.unlink()
    changed = use_validation_as_test(dataset, 4, 1)
    assert changed.test == whole.test[1:]
    assert changed.split == "of this test; measured on 8 validation images that no method selects on, 1 are not there"


@pytest.mark.parametrize("left", [0, 3])
def test_without_images_to_measure_on_there_is_an_error(dataset: Dataset, left: int) -> None:
    few = dataclasses.replace(dataset, val=dataset.val[:left])  # one per class, which methods select on
    with pytest.raises(UserError, match="toy has no validation"):
        use_validation_as_test(few, 4, 1)
