"""Few-shot draws are the published ones, held-out parts are stratified, and files of draws can be verified."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import shared as shared_folder
from dca.core.errors import UserError
from dca.datasets import catalog, load_dataset
from dca.datasets.dataset import Dataset, LabelledImage
from dca.datasets.draws import (
    draw_few_shot,
    draw_positions,
    export_draw,
    hold_out,
    import_draw,
    record_draw,
    short_classes,
)
from dca.datasets.folder import load_folder
from helpers.small_images import make_folder


@pytest.fixture
def shared():
    """Real images, split files and published draws, if they are beside the repository."""
    return shared_folder("data")


FIXTURE = json.loads((Path(__file__).parent / "draws.json").read_text())
PUBLISHED = json.loads((Path(__file__).parent / "published_draws.json").read_text())["datasets"]
SPLIT_FILES = {
    "eurosat": "images/eurosat/split_zhou_EuroSAT.json",
    "caltech101": "images/caltech-101/split_zhou_Caltech101.json",
    "oxford_flowers": "images/oxford_flowers/split_zhou_OxfordFlowers.json",
    "dtd": "splits/split_zhou_DescribableTextures.json.gz",
    "oxford_pets": "splits/split_zhou_OxfordPets.json.gz",
    "ucf101": "splits/split_zhou_UCF101.json.gz",
    "stanford_cars": "splits/split_zhou_StanfordCars.json.gz",
    "food101": "splits/reconstructed/split_zhou_Food101.json.gz",
}
EUROSAT_TRAIN = (1500, 1500, 1500, 1250, 1250, 1000, 1250, 1500, 1250, 1500)
EUROSAT_VAL = (600, 600, 600, 500, 500, 400, 500, 600, 500, 600)


def blocks(sizes):
    return [label for label, n in enumerate(sizes) for _ in range(n)]


def dataset_of(train, val=(), test=(), classes=None):
    items = [tuple(LabelledImage(Path(f"{part}/{i}.jpg"), y) for i, y in enumerate(labels))
             for part, labels in (("train", train), ("val", val), ("test", test))]  # fmt: skip
    count = 1 + max((*train, *val, *test))
    names = tuple(f"class {y}" for y in range(classes or count))
    return Dataset("toy", names, names, *items)


def literal_draw(labels, shots, rng):
    """The published procedure, step by step, with label lists instead of positions."""
    groups = {}
    order = []
    for position, label in enumerate(labels):
        if label not in groups:
            groups[label] = []
            order.append(label)
        groups[label].append(position)
    result = []
    for label in order:
        if len(groups[label]) >= shots:
            for position in rng.sample(groups[label], shots):
                result.append(position)
        else:
            for position in groups[label]:
                result.append(position)
    return result


@pytest.mark.parametrize(
    ("seed", "train", "val"),
    [
        (1, "275 1165 129 522 241 507 920 967 777 429", "96 499 29 457 427 199 221 2 356 456"),
        (2, "115 187 173 739 346 753 631 515 1240 434", "36 595 162 220 326 201 411 521 486 380"),
        (3, "487 1213 1114 267 757 937 1236 970 1189 134", "13 480 265 282 119 98 367 481 276 562"),
    ],
)
def test_published_one_shot_positions_of_eurosat(seed, train, val):
    rng = random.Random(seed)
    for sizes, expected in ((EUROSAT_TRAIN, train), (EUROSAT_VAL, val)):
        start = [sum(sizes[:y]) for y in range(10)]
        positions = draw_positions(blocks(sizes), 1, rng)
        assert [p - s for p, s in zip(positions, start, strict=True)] == [int(p) for p in expected.split()]


def test_published_sixteen_shot_positions_of_dtd():
    rng = random.Random(1)
    train, val = draw_positions(blocks([60] * 47), 16, rng), draw_positions(blocks([24] * 47), 4, rng)
    assert train[:16] == [8, 36, 54, 51, 48, 4, 16, 7, 31, 55, 28, 30, 41, 24, 13, 6]
    assert val[:4] == [18, 0, 20, 19]


@pytest.mark.parametrize("case", FIXTURE["draws"], ids=lambda case: f"K{case['shots']}s{case['seed']}")
def test_committed_draws(case):
    """Classes out of label order, of very different sizes, one shorter than K."""
    parts = {part: [y for y, n in FIXTURE[part] for _ in range(n)] for part in ("train", "val")}
    dataset = draw_few_shot(dataset_of(parts["train"], parts["val"]), case["shots"], case["seed"])
    for part in ("train", "val"):
        assert [int(item.image.stem) for item in getattr(dataset, part)] == case[part]


def labels_of(published):
    """Labels of train and val in the order of the split file, from blocks [first label, classes, images of each]."""
    return [
        [first + y for first, classes, images in published[part] for y in range(classes) for _ in range(images)]
        for part in ("train", "val")
    ]


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_draws_have_the_hashes_of_the_published_ones(name):
    """All 150 published draws, without the data; the file says where they come from."""
    published = PUBLISHED[name]
    dataset = dataset_of(*labels_of(published))
    assert {int(shots): len(own) for shots, own in published["draws"].items()} == dict.fromkeys((1, 2, 4, 8, 16), 3)
    for shots, hashes in published["draws"].items():
        for seed, expected in enumerate(hashes, 1):
            ours = draw_few_shot(dataset, int(shots), seed)
            text = "|".join(",".join(item.image.stem for item in part) for part in (ours.train, ours.val))
            assert hashlib.sha256(text.encode()).hexdigest()[:16] == expected, (shots, seed)


def test_published_draws_are_of_the_catalog():
    entries = catalog.entries()
    assert set(PUBLISHED) == set(entries) - {name for name in entries if name.startswith("imagenet")}
    for name, published in PUBLISHED.items():
        train, val = labels_of(published)
        assert (len(set(train)), len(train), len(val)) == (entries[name].classes, *entries[name].sizes[:2])


@pytest.mark.parametrize("name", sorted(SPLIT_FILES))
def test_draws_equal_the_published_ones(shared, name):
    file = shared / SPLIT_FILES[name]
    split = json.loads(gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes())
    labels = {part: [row[1] for row in split[part]] for part in ("train", "val")}
    assert_published(shared, name, labels["train"], labels["val"])


def test_draws_of_aircraft_follow_its_lists(shared):
    lists = shared / "splits/reconstructed/fgvc_aircraft"
    number = {name: y for y, name in enumerate((lists / "variants.txt").read_text().splitlines())}
    labels = [
        [number[line.split(" ", 1)[1]] for line in (lists / f"images_variant_{part}.txt").read_text().splitlines()]
        for part in ("train", "val")
    ]
    assert_published(shared, "fgvc_aircraft", *labels)


def test_draws_of_sun397(shared):
    assert_published(shared, "sun397", blocks([40] * 397), blocks([10] * 397))


def assert_published(shared, name, train, val):
    published = json.loads((shared / "draws" / f"{name}.json").read_text())
    assert len(published) == 15
    dataset = dataset_of(train, val)
    for key, expected in published.items():
        shots, seed = (int(part.split("_")[1]) for part in key.split("-"))
        ours = draw_few_shot(dataset, shots, seed)
        for part in ("train", "val"):
            assert [int(item.image.stem) for item in getattr(ours, part)] == expected[part], (key, part)


labels_strategy = st.lists(st.integers(0, 6), min_size=1, max_size=120)


@given(labels_strategy, st.integers(1, 20), st.integers(0, 5))
def test_draw_equals_the_literal_procedure(labels, shots, seed):
    assert draw_positions(labels, shots, random.Random(seed)) == literal_draw(labels, shots, random.Random(seed))


@given(labels_strategy, st.integers(1, 20), st.integers(0, 5))
def test_draw_takes_min_of_shots_and_size_of_each_class_once(labels, shots, seed):
    chosen = draw_positions(labels, shots, random.Random(seed))
    assert len(set(chosen)) == len(chosen)
    have = Counter(labels)
    assert Counter(labels[i] for i in chosen) == {y: min(n, shots) for y, n in have.items()}
    assert list(dict.fromkeys(labels[i] for i in chosen)) == list(dict.fromkeys(labels))


def test_test_images_stay_whole_and_none_keeps_everything():
    dataset = dataset_of([0] * 9 + [1] * 9, [0] * 9 + [1] * 9, [0, 1, 1])
    few = draw_few_shot(dataset, 8, 1)
    assert few.counts() == {"train": 16, "val": 8, "test": 3}
    assert few.test == dataset.test
    assert draw_few_shot(dataset, None, 1) is dataset


def test_zero_shots_are_refused():
    with pytest.raises(UserError, match="at least 1"):
        draw_few_shot(dataset_of([0, 1]), 0, 1)


def test_short_classes_are_named_with_their_counts():
    dataset = dataset_of([0, 0, 0, 1, 2, 2], classes=4)
    assert short_classes(dataset, 2) == [("class 1", 1), ("class 3", 0)]
    assert short_classes(dataset, 4) == [("class 0", 3), ("class 1", 1), ("class 2", 2), ("class 3", 0)]


@given(labels_strategy, st.floats(0.05, 0.95), st.integers(0, 3))
def test_hold_out_is_a_stratified_partition(labels, fraction, seed):
    dataset = dataset_of(labels)
    held = hold_out(dataset, fraction, seed)
    assert sorted(i.image.stem for i in held.train + held.test) == sorted(i.image.stem for i in dataset.train)
    have, test = Counter(labels), Counter(item.label for item in held.test)
    for label, n in have.items():
        assert test[label] < n
        assert test[label] >= (n > 1)
        assert abs(test[label] - fraction * n) <= 1 or test[label] in (1, n - 1)
    assert hold_out(dataset, fraction, seed) == held


def test_hold_out_leaves_a_given_test_part_alone():
    dataset = dataset_of([0, 0, 1, 1], test=[0])
    assert hold_out(dataset) is dataset


# Files of draws


@pytest.fixture
def dataset(tmp_path):
    for part, n in (("train", 6), ("val", 5), ("test", 2)):
        make_folder(tmp_path / "data" / part, {"cat": n, "big_dog": n})
    return load_folder(tmp_path / "data")


def test_a_draw_survives_the_trip_through_a_file(tmp_path, dataset):
    drawn = draw_few_shot(dataset, 2, 1)
    digest = export_draw(drawn, 2, 1, tmp_path / "draw.json")
    back = import_draw(tmp_path / "draw.json", dataset)
    assert (back.train, back.val, back.test) == (drawn.train, drawn.val, dataset.test)
    assert len(digest) == 64
    record = json.loads((tmp_path / "draw.json").read_text())
    assert record == record_draw(drawn, 2, 1).to_dict()
    assert record["hash"] == digest
    assert list(tmp_path.glob(".draw*")) == []


def test_the_hash_knows_images_classes_and_order_but_not_places(tmp_path, dataset):
    drawn = draw_few_shot(dataset, 2, 1)
    digest = record_draw(drawn, 2, 1).hash
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    moved = draw_few_shot(load_folder(tmp_path / "elsewhere"), 2, 1)
    assert record_draw(moved, 2, 1).hash == digest
    assert record_draw(draw_few_shot(load_folder(tmp_path / "elsewhere"), 2, 2), 2, 2).hash != digest
    assert record_draw(replace(moved, train=moved.train[::-1]), 2, 1).hash != digest
    assert record_draw(replace(moved, names=("dog", "cat")), 2, 1).hash != digest


def test_other_content_and_missing_files_are_all_named(tmp_path, dataset):
    drawn = draw_few_shot(dataset, 3, 1)
    export_draw(drawn, 3, 1, tmp_path / "draw.json")
    first, second = drawn.train[0].image, drawn.train[1].image
    first.write_bytes(first.read_bytes() + b"x")
    second.unlink()
    with pytest.raises(UserError, match="2 of 12 drawn images") as error:
        import_draw(tmp_path / "draw.json", load_folder(tmp_path / "data"))
    assert "content differs" in error.value.details[0]
    assert "not in this dataset" in error.value.details[1]


def test_a_changed_record_is_refused(tmp_path, dataset):
    export_draw(draw_few_shot(dataset, 1, 1), 1, 1, tmp_path / "draw.json")
    text = (tmp_path / "draw.json").read_text()
    (tmp_path / "draw.json").write_text(text.replace('"cat"', '"cow"'))
    with pytest.raises(UserError, match="do not match the hash"):
        import_draw(tmp_path / "draw.json", dataset)


def test_published_index_files_are_read(tmp_path, dataset):
    rows = [{"impath": f"./data/x/train/{c}/{k}.png", "label": y, "classname": c} for y, c, k in
            ((0, "big_dog", 3), (0, "big_dog", 0), (1, "cat", 5))]  # fmt: skip
    (tmp_path / "index.json").write_text(json.dumps({"train": {"data": rows, "indices": [3, 0, 11]}}))
    drawn = import_draw(tmp_path / "index.json", dataset)
    assert [dataset.path_of(i) for i in drawn.train] == [
        "train/big_dog/3.png",
        "train/big_dog/0.png",
        "train/cat/5.png",
    ]
    assert drawn.val == ()


def test_plain_positions_are_read(tmp_path, dataset):
    (tmp_path / "p.json").write_text('{"train": [5, 0, 7], "val": [1]}')
    drawn = import_draw(tmp_path / "p.json", dataset)
    assert drawn.train == tuple(dataset.train[i] for i in (5, 0, 7))
    assert drawn.val == (dataset.val[1],)
    (tmp_path / "p.json").write_text('{"train": [5, 99], "val": [-1]}')
    with pytest.raises(UserError, match="2 of 3 drawn images"):
        import_draw(tmp_path / "p.json", dataset)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"train": 3}',
        '{"train": {"data": [1]}}',
        '{"format": "dca-draw/1"}',
        '{"format": "dca-draw/1", "train": []}',
    ],
)
def test_what_is_no_draw_is_refused(tmp_path, dataset, content):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UserError):
        import_draw(tmp_path / "x.json", dataset)


@pytest.mark.parametrize(
    ("folder", "shots", "train", "val"),
    [
        ("caltech-101", 1, "33173bedf9ad", "d8cdaf6e3fcf"),
        ("caltech-101", 16, "e60a836bd33c", "53555d3fce94"),
        ("eurosat", 1, "07843a86e827", "1973d460e843"),
        ("eurosat", 16, "ad260707da91", "f171ab42c4e4"),
        ("oxford_flowers", 1, "2daab14963c6", "4d89ce5311ed"),
        ("oxford_flowers", 16, "ea366f552e24", "3a88b427e7b1"),
    ],
)
def test_path_hashes_equal_the_published_fingerprints(shared, folder, shots, train, val):
    drawn = draw_few_shot(load_dataset(shared / "images" / folder), shots, 1)
    record = record_draw(drawn, shots, 1).to_dict()
    assert record["paths_sha256"]["train"].startswith(train)
    assert record["paths_sha256"]["val"].startswith(val)
