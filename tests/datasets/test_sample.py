"""The built-in sample: always the same pixels, balanced, varied, quickly drawn."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from dca.core.errors import UserError
from dca.datasets.dataset import Dataset, Item
from dca.datasets.folder import load_folder
from dca.datasets.sample import SAMPLE_CLASSES, load_sample, write_sample


@pytest.fixture(scope="module")
def sample() -> Dataset:
    return load_sample(per_class_train=6, per_class_test=5)


def pixels(item: Item) -> np.ndarray:
    assert isinstance(item.image, Image.Image)
    return np.asarray(item.image, dtype=float) / 255


def digest(dataset: Dataset) -> str:
    return hashlib.sha256(b"".join(item.image.tobytes() for item in dataset.train + dataset.test)).hexdigest()


def test_same_seed_gives_the_same_bytes_in_a_fresh_process(sample):
    again = load_sample(per_class_train=6, per_class_test=5)
    code = (
        "import hashlib\n"
        "from dca.datasets.sample import load_sample\n"
        "d = load_sample(per_class_train=6, per_class_test=5)\n"
        "print(hashlib.sha256(b''.join(i.image.tobytes() for i in d.train + d.test)).hexdigest())\n"
    )
    fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert digest(sample) == digest(again) == fresh


def test_another_seed_gives_other_pictures():
    one, other = (load_sample(per_class_train=1, per_class_test=0, seed=seed) for seed in (0, 1))
    assert all((pixels(a) != pixels(b)).any() for a, b in zip(one.train, other.train, strict=True))


def test_asking_for_more_leaves_the_first_pictures_alone(sample):
    more = load_sample(per_class_train=8, per_class_test=5)
    first = [item for label in range(len(more.names)) for item in of_class(more.train, label)[:6]]
    assert [item.image.tobytes() for item in first] == [item.image.tobytes() for item in sample.train]


def of_class(items: tuple[Item, ...], label: int) -> list[Item]:
    return [item for item in items if item.label == label]


def test_classes_are_balanced_and_named_in_plain_words(sample):
    labels = range(len(sample.names))
    assert 8 <= len(sample.names) <= 12
    assert sample.names == SAMPLE_CLASSES
    assert len(set(sample.names)) == len(sample.names)
    assert Counter(item.label for item in sample.train) == dict.fromkeys(labels, 6)
    assert Counter(item.label for item in sample.test) == dict.fromkeys(labels, 5)


def test_no_picture_occurs_twice_or_in_both_splits(sample):
    seen = Counter(item.image.tobytes() for item in sample.train + sample.test)
    assert max(seen.values()) == 1


def test_pictures_are_square_rgb_of_the_size_asked():
    tiny = load_sample(per_class_train=1, per_class_test=1, size=40)
    assert {(item.image.size, item.image.mode) for item in tiny.train + tiny.test} == {((40, 40), "RGB")}


def test_pictures_of_one_class_differ_in_colour_and_in_shape(sample):
    for label in range(len(sample.names)):
        images = [pixels(item) for item in of_class(sample.train, label)]
        pairs = list(itertools.combinations(images, 2))
        assert np.mean([np.abs(a - b).mean() for a, b in pairs]) > 0.1
        grey = [image.mean(axis=2) - image.mean() for image in images]
        likeness = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in itertools.combinations(grey, 2)]
        assert np.mean(likeness) < 0.6


def test_pictures_are_neither_flat_nor_burnt_out(sample):
    for item in sample.train:
        image = pixels(item)
        assert image.std() > 0.04
        assert 0.08 < image.mean() < 0.97


def test_raw_pixels_do_not_give_the_class_away():
    # The sample must leave something to learn: the nearest training image is mostly of another class.
    sample = load_sample(per_class_train=16, per_class_test=5, size=32)
    train = np.stack([pixels(item).ravel() for item in sample.train])
    test = np.stack([pixels(item).ravel() for item in sample.test])
    nearest = ((test[:, None] - train) ** 2).sum(axis=2).argmin(axis=1)
    right = np.mean([sample.train[n].label == item.label for n, item in zip(nearest, sample.test, strict=True)])
    assert right < 0.5


def test_the_whole_sample_is_drawn_in_seconds():
    start = time.process_time()
    load_sample()
    # About 2 s of one core where it was written; the rest is a margin for slow machines.
    assert time.process_time() - start < 6


def test_written_sample_reads_back_as_a_folder_dataset(tmp_path):
    folder = write_sample(tmp_path / "deep" / "sample", per_class_train=2, per_class_test=1, size=32)
    read = load_folder(folder)
    drawn = load_sample(per_class_train=2, per_class_test=1, size=32)
    assert sorted(read.names) == sorted(drawn.names)
    assert (len(read.train), len(read.test)) == (len(drawn.train), len(drawn.test))
    first = folder / "train" / drawn.names[0] / "000.png"
    assert Image.open(first).tobytes() == drawn.train[0].image.tobytes()
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


def test_impossible_sizes_are_listed_together():
    with pytest.raises(UserError) as caught:
        load_sample(per_class_train=0, per_class_test=-1, size=8)
    assert len(caught.value.details) == 3
