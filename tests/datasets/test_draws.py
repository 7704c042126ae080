from __future__ import annotations

import json
from dataclasses import replace

import pytest

from conftest import shared as shared_folder
from dca.core.errors import UserError
from dca.datasets import load_dataset
from dca.datasets.draws import draw_few_shot, draw_record, export_draw, import_draw
from dca.datasets.folder import load_folder
from helpers.small_images import make_folder


@pytest.fixture
def shared():
    """Real images, split files and published draws, if they are beside the repository."""
    return shared_folder("data")


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
    assert record == draw_record(drawn, 2, 1)
    assert record["hash"] == digest
    assert list(tmp_path.glob(".draw*")) == []


def test_the_hash_knows_images_classes_and_order_but_not_places(tmp_path, dataset):
    drawn = draw_few_shot(dataset, 2, 1)
    digest = draw_record(drawn, 2, 1)["hash"]
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    moved = draw_few_shot(load_folder(tmp_path / "elsewhere"), 2, 1)
    assert draw_record(moved, 2, 1)["hash"] == digest
    assert draw_record(draw_few_shot(load_folder(tmp_path / "elsewhere"), 2, 2), 2, 2)["hash"] != digest
    assert draw_record(replace(moved, train=moved.train[::-1]), 2, 1)["hash"] != digest
    assert draw_record(replace(moved, names=("dog", "cat")), 2, 1)["hash"] != digest


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
    record = draw_record(draw_few_shot(load_dataset(shared / "images" / folder), shots, 1), shots, 1)
    assert record["paths_sha256"]["train"].startswith(train)
    assert record["paths_sha256"]["val"].startswith(val)
