"""The built-in sample: always the same pixels, balanced, resized on request, never more than is there."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from dca.core.errors import UserError
from dca.datasets.dataset import Dataset, LabelledImage
from dca.datasets.folder import load_folder
from dca.datasets.sample import SAMPLE_CLASSES, TEST, TRAIN, load_sample, write_sample


@pytest.fixture(scope="module")
def sample() -> Dataset:
    return load_sample(per_class_train=6, per_class_test=5)


def of_class(items: tuple[LabelledImage, ...], label: int) -> list[LabelledImage]:
    return [item for item in items if item.label == label]


def test_the_pixels_are_those_that_all_recorded_figures_were_measured_on():
    whole = load_sample()
    assert whole.counts() == {"train": 10 * TRAIN, "val": 0, "test": 10 * TEST}
    digest = hashlib.sha256(b"".join(item.image.tobytes() for item in whole.train + whole.test)).hexdigest()
    assert digest == "f1fc9e38d3836fe73cf69dd295460511632e9b7e925bde18b3aeccb1ff94c72a"


def test_fewer_images_are_the_first_ones(sample):
    whole = load_sample()
    for part, count in (("train", 6), ("test", 5)):
        first = [item for label in range(10) for item in of_class(getattr(whole, part), label)[:count]]
        assert [item.image.tobytes() for item in first] == [item.image.tobytes() for item in getattr(sample, part)]


def test_classes_are_balanced_and_named_in_plain_words(sample):
    labels = range(len(sample.names))
    assert sample.names == SAMPLE_CLASSES
    assert len(set(sample.names)) == len(sample.names)
    assert Counter(item.label for item in sample.train) == dict.fromkeys(labels, 6)
    assert Counter(item.label for item in sample.test) == dict.fromkeys(labels, 5)


def test_no_image_occurs_twice_or_in_both_parts():
    whole = load_sample()
    assert max(Counter(item.image.tobytes() for item in whole.train + whole.test).values()) == 1


@pytest.mark.parametrize("size", [40, 96, 200])
def test_images_are_square_rgb_of_the_size_asked(size: int):
    resized = load_sample(per_class_train=1, per_class_test=1, size=size)
    assert {(item.image.size, item.image.mode) for item in resized.train + resized.test} == {((size, size), "RGB")}


def test_another_size_shows_the_same_images(sample):
    small = load_sample(per_class_train=6, per_class_test=5, size=48)
    for one, other in zip(sample.train, small.train, strict=True):
        halved = np.asarray(one.image.reduce(2), dtype=float)
        assert np.abs(halved - np.asarray(other.image, dtype=float)).mean() < 4, "levels of 0 to 255"


def test_written_sample_reads_back_as_a_folder_dataset(tmp_path):
    folder = write_sample(tmp_path / "deep" / "sample", per_class_train=2, per_class_test=1, size=32)
    read = load_folder(folder)
    loaded = load_sample(per_class_train=2, per_class_test=1, size=32)
    assert sorted(read.names) == sorted(loaded.names)
    assert (len(read.train), len(read.test)) == (len(loaded.train), len(loaded.test))
    first = folder / "train" / loaded.names[0] / "000.png"
    assert Image.open(first).tobytes() == loaded.train[0].image.tobytes()
    assert [path.name for path in folder.parent.iterdir()] == ["sample"]


def test_writing_never_touches_a_folder_in_use(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        write_sample(tmp_path, per_class_train=1, per_class_test=0)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot be written"):
        write_sample(tmp_path / "file" / "sample", per_class_train=1, per_class_test=0, size=16)


def test_numbers_out_of_range_are_listed_together():
    with pytest.raises(UserError) as caught:
        load_sample(per_class_train=0, per_class_test=-1, size=8)
    assert len(caught.value.details) == 3
    with pytest.raises(UserError) as caught:
        load_sample(per_class_train=TRAIN + 1, per_class_test=TEST + 1)
    assert caught.value.details == ("per_class_train is 17; 1 to 16", "per_class_test is 21; 0 to 20")
