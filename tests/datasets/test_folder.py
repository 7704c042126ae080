from __future__ import annotations

import json
import os
import socket
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dca.core.errors import UserError
from dca.datasets.folder import load_folder
from dca.datasets.walk import list_images
from helpers.small_images import make_folder, photo


def names(items):
    return [(item.image.name, item.label) for item in items]


def test_class_folders_are_read_in_sorted_order(tmp_path):
    make_folder(tmp_path / "photos", {"sea_lake": 2, "forest": 1})
    dataset = load_folder(tmp_path / "photos")
    assert dataset.name == "photos"
    assert dataset.names == ("forest", "sea lake")
    assert dataset.labels == ("forest", "sea_lake")
    assert dataset.keys == ()
    assert dataset.public == ""
    assert names(dataset.train) == [("0.png", 0), ("0.png", 1), ("1.png", 1)]
    assert dataset.val == dataset.test == ()
    assert dataset.path_of(dataset.train[2]) == "sea_lake/1.png"


@pytest.mark.parametrize("val", ["val", "valid", "Validation"])
def test_train_val_and_test_folders(tmp_path, val):
    for part, n in (("train", 3), (val, 1), ("test", 2)):
        make_folder(tmp_path / part, {"a": n, "b": n})
    dataset = load_folder(tmp_path)
    assert dataset.counts() == {"train": 6, "val": 2, "test": 4}
    assert dataset.names == ("a", "b")


def test_a_class_may_be_called_train(tmp_path):
    make_folder(tmp_path, {"train": 1, "plane": 1, "test": 1})
    assert load_folder(tmp_path).names == ("plane", "test", "train")


def test_a_class_called_test_is_no_part_for_evaluation(tmp_path):
    make_folder(tmp_path, {"test": 2})
    dataset = load_folder(tmp_path, for_evaluation=True)
    assert dataset.names == ("test",)
    assert len(dataset.train) == 2


def test_a_part_with_metadata_alone_is_enough_for_evaluation(tmp_path):
    make_folder(tmp_path / "test", {"a": 2})
    (tmp_path / "test" / "metadata.csv").write_text("file_name,label\na/0.png,cat\na/1.png,dog\n")
    dataset = load_folder(tmp_path, for_evaluation=True)
    assert dataset.names == ("cat", "dog")
    assert dataset.counts() == {"train": 0, "val": 0, "test": 2}


def test_evaluation_takes_the_test_part_and_the_names_of_all(tmp_path):
    make_folder(tmp_path / "train", {"a": 1, "b": 1})
    make_folder(tmp_path / "test", {"a": 2, "c": 1})
    dataset = load_folder(tmp_path, for_evaluation=True)
    assert dataset.names == ("a", "b", "c")
    assert dataset.counts() == {"train": 0, "val": 0, "test": 3}


def test_a_test_class_without_training_images_is_named(tmp_path):
    make_folder(tmp_path / "train", {"a": 1, "b": 1})
    make_folder(tmp_path / "test", {"a": 1, "c": 2})
    with pytest.raises(UserError, match=r"test/c \(2 images\)"):
        load_folder(tmp_path)


def test_a_class_may_lack_test_images(tmp_path):
    make_folder(tmp_path / "train", {"a": 1, "b": 1})
    make_folder(tmp_path / "test", {"a": 1, "b": 0})
    assert load_folder(tmp_path).counts()["test"] == 1


def test_suffixes_hidden_files_nested_folders(tmp_path):
    make_folder(tmp_path, {"a": 1, "b": 1})
    for name in ("UP.JPG", "mixed.JpEg", "deep/er/x.WebP"):
        path = tmp_path / "a" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        photo().save(path)
    for name in ("a/.hidden.png", "a/._0.png", "a/notes.txt", "a/.cache/y.png", "__MACOSX/a/z.png", ".git/x.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    assert [p for p, y in names(load_folder(tmp_path).train) if y == 0] == ["0.png", "UP.JPG", "x.WebP", "mixed.JpEg"]


def test_links_are_followed_without_loops(tmp_path):
    make_folder(tmp_path / "real", {"x": 2})
    make_folder(tmp_path / "photos", {"a": 1})
    (tmp_path / "photos/b").symlink_to(tmp_path / "real/x", target_is_directory=True)
    (tmp_path / "photos/a/again").symlink_to(tmp_path / "photos/a", target_is_directory=True)
    (tmp_path / "photos/a/up").symlink_to(tmp_path / "photos", target_is_directory=True)
    dataset = load_folder(tmp_path / "photos")
    assert dataset.names == ("a", "b")
    assert sum(item.label == 1 for item in dataset.train) == 2


def test_classnames_json_maps_folders_to_words(tmp_path):
    make_folder(tmp_path, {"n01440764": 1, "bkr": 1, "cat_dog": 1})
    (tmp_path / "classnames.json").write_text(json.dumps({"n01440764": "tench", "bkr": " bike  rack "}))
    dataset = load_folder(tmp_path)
    assert dataset.names == ("bike rack", "cat dog", "tench")
    assert dataset.labels == ("bkr", "cat_dog", "n01440764")


@pytest.mark.parametrize(
    ("content", "says"),
    [('{"a": 3}', "not text"), ('["a"]', "expected a JSON object"), ("{", "not valid JSON"), ('{"a": " "}', "no name")],
)
def test_bad_classnames_json(tmp_path, content, says):
    make_folder(tmp_path, {"a": 1, "b": 1})
    (tmp_path / "classnames.json").write_text(content)
    with pytest.raises(UserError, match=says) as error:
        load_folder(tmp_path)
    assert error.value.hint


def test_class_names_equal_up_to_case_or_unicode_form_are_listed_together(tmp_path):
    composed, decomposed = unicodedata.normalize("NFC", "café"), unicodedata.normalize("NFD", "café")
    make_folder(tmp_path, {composed: 1, decomposed: 1, "Dog": 1, "dog": 1, "sea lake": 1, "sea_lake": 1, "fox": 1})
    if len(os.listdir(tmp_path)) < 7:
        pytest.skip("this file system does not tell these names apart")
    with pytest.raises(UserError) as error:
        load_folder(tmp_path)
    assert len(error.value.details) == 3
    assert "'Dog' and 'dog'" in str(error.value)


def test_missing_folder_names_its_neighbours(tmp_path):
    make_folder(tmp_path / "photos", {"a": 1})
    with pytest.raises(UserError, match="beside it: photos"):
        load_folder(tmp_path / "holiday")


def test_images_without_class_folders(tmp_path):
    photo().save(tmp_path / "x.png")
    with pytest.raises(UserError, match="images but no class folders") as error:
        load_folder(tmp_path)
    assert "found 1 image directly inside" in str(error.value)


def test_a_list_among_loose_images_is_pointed_to(tmp_path):
    photo().save(tmp_path / "x.png")
    (tmp_path / "labels.csv").write_text("path,label\nx.png,cat\n")
    with pytest.raises(UserError, match=r"if labels.csv holds the labels"):
        load_folder(tmp_path)


def test_names_that_are_not_text_can_still_be_printed(tmp_path):
    folder = os.fsencode(tmp_path / "photos")
    for name in (b"caf\xe9", b"dog"):
        try:
            os.makedirs(os.path.join(folder, name))
        except OSError:
            pytest.skip("this file system takes only UTF-8 names")
        photo().save(os.fsdecode(os.path.join(folder, name, b"\xff.png")))
    with pytest.raises(UserError, match="is not UTF-8 text") as error:
        load_folder(tmp_path / "photos")
    str(error.value).encode()
    (tmp_path / "photos/classnames.json").write_text(json.dumps({"caf\udce9": "coffee house"}))
    dataset = load_folder(tmp_path / "photos")
    assert dataset.names == ("coffee house", "dog")
    assert dataset.labels == ("caf\ufffd", "dog")
    dataset.path_of(dataset.train[0]).encode()


def test_no_images_at_all(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_text("x")
    with pytest.raises(UserError, match="no images found"):
        load_folder(tmp_path)


def test_one_class_only(tmp_path):
    make_folder(tmp_path, {"cat": 3})
    with pytest.raises(UserError, match="3 images in 1 class"):
        load_folder(tmp_path)


def test_empty_classes_are_listed_together(tmp_path):
    make_folder(tmp_path, {"a": 1, "b": 0, "c": 0, "d": 1})
    with pytest.raises(UserError, match="2 of 4 classes have no training images") as error:
        load_folder(tmp_path)
    assert error.value.details == ("b", "c")


def test_a_single_picture_is_not_a_dataset(tmp_path):
    photo().save(tmp_path / "x.png")
    with pytest.raises(UserError, match="not a folder or a CSV list"):
        load_folder(tmp_path / "x.png")


def test_thousands_of_classes(tmp_path):
    """Not more than it needs: making and removing folders is slow on some disks."""
    photo().save(tmp_path / "one.png")
    (tmp_path / "photos").mkdir()
    for k in range(3000):
        folder = f"{tmp_path}/photos/class_{k:04d}"
        os.mkdir(folder)
        os.symlink(f"{tmp_path}/one.png", f"{folder}/x.png")
    dataset = load_folder(tmp_path / "photos")
    assert len(dataset.names) == len(dataset.train) == 3000
    assert dataset.names[-1] == "class 2999"


# Links, pipes, sockets and devices


def images_of(dataset):
    """Label -> paths of its training images, relative to the dataset."""
    found = {label: [] for label in dataset.labels}
    for item in dataset.train:
        found[dataset.labels[item.label]].append(dataset.path_of(item))
    return found


@pytest.mark.parametrize("target", [".", "..", "../../..", "../dog", "../dog/puppies", "../../photos/dog"])
def test_a_link_to_a_folder_above_or_to_another_class_brings_in_no_images(tmp_path, target):
    photos = make_folder(tmp_path / "photos", {"cat": 2, "dog": 2, "dog/puppies": 1})
    before = images_of(load_folder(photos))
    (photos / "cat/up").symlink_to(target, target_is_directory=True)
    (photos / "cat/deep").mkdir()
    (photos / "cat/deep/up").symlink_to(f"../{target}", target_is_directory=True)
    assert images_of(load_folder(photos)) == before
    assert len(before["cat"]) == 2


def test_a_link_into_another_part_brings_in_no_test_images(tmp_path):
    for part in ("train", "test"):
        make_folder(tmp_path / part, {"cat": 2, "dog": 2})
    (tmp_path / "train/cat/more").symlink_to(tmp_path / "test/cat", target_is_directory=True)
    assert load_folder(tmp_path).counts() == {"train": 4, "val": 0, "test": 4}


@pytest.mark.parametrize("target", [".", "..", "dog", "dog/puppies"])
def test_a_class_that_is_a_link_to_another_class_or_above_is_no_class(tmp_path, target):
    photos = make_folder(tmp_path / "photos", {"cat": 2, "dog": 2, "dog/puppies": 1})
    (photos / "hound").symlink_to(target, target_is_directory=True)
    assert load_folder(photos).labels == ("cat", "dog")


def test_links_to_places_outside_and_within_the_class_are_followed(tmp_path):
    make_folder(tmp_path / "elsewhere", {"more": 2})
    photos = make_folder(tmp_path / "photos", {"cat": 1, "cat/old": 1, "dog": 1})
    (photos / "cat/more").symlink_to(tmp_path / "elsewhere/more", target_is_directory=True)
    (photos / "cat/same").symlink_to(photos / "cat/old", target_is_directory=True)
    assert images_of(load_folder(photos))["cat"] == [
        "cat/0.png", "cat/more/0.png", "cat/more/1.png", "cat/old/0.png", "cat/same/0.png",
    ]  # fmt: skip


def test_two_classes_may_be_links_and_one_of_them_link_to_the_other(tmp_path):
    store = make_folder(tmp_path / "store", {"x": 2, "y": 1})
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "a").symlink_to(store / "x", target_is_directory=True)
    (photos / "b").symlink_to(store / "y", target_is_directory=True)
    (store / "y/more").symlink_to(store / "x", target_is_directory=True)
    assert {label: len(found) for label, found in images_of(load_folder(photos)).items()} == {"a": 2, "b": 1}


def test_validation_may_be_a_link_to_the_test_folder(tmp_path):
    for part in ("train", "test"):
        make_folder(tmp_path / part, {"cat": 2, "dog": 2})
    (tmp_path / "val").symlink_to("test", target_is_directory=True)
    assert load_folder(tmp_path).counts() == {"train": 4, "val": 4, "test": 4}


def test_images_of_a_folder_do_not_include_those_above_it(tmp_path):
    photos = make_folder(tmp_path / "photos", {"cat": 2, "dog": 1})
    (photos / "cat/up").symlink_to("..", target_is_directory=True)
    assert [path.name for path in list_images(photos / "cat")] == ["0.png", "1.png"]


def test_pipes_sockets_and_devices_are_no_images(tmp_path):
    photos = make_folder(tmp_path / "photos", {"cat": 1, "dog": 1})
    os.mkfifo(photos / "cat/pipe.jpg")
    (photos / "cat/device.jpg").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(photos / "cat/socket.jpg"))
        assert images_of(load_folder(photos)) == {"cat": ["cat/0.png"], "dog": ["dog/0.png"]}
        for name in ("pipe.jpg", "socket.jpg", "device.jpg"):
            table = tmp_path / "list.csv"
            table.write_text(f"path,label\nphotos/cat/{name},cat\nphotos/dog/0.png,dog\n")
            with pytest.raises(UserError, match=rf"line 2: not a regular file: photos/cat/{name}"):
                load_folder(table)


def test_a_pipe_is_no_dataset(tmp_path):
    os.mkfifo(tmp_path / "list.csv")
    with pytest.raises(UserError, match="not a folder or a CSV list"):
        load_folder(tmp_path / "list.csv")


# Image lists


@pytest.fixture
def listed(tmp_path):
    make_folder(tmp_path / "img", {"a": 3, "b": 3})
    return tmp_path


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_csv_with_splits(listed):
    table = write(
        listed / "data.csv", "path,label,split",
        "img/a/0.png,big_cat,train", "img/a/1.png,big_cat,test", "img/b/0.png,dog,", "img/b/1.png,dog,Valid",
    )  # fmt: skip
    dataset = load_folder(table)
    assert dataset.name == "data"
    assert dataset.names == ("big cat", "dog")
    assert dataset.labels == ("big_cat", "dog")
    assert dataset.counts() == {"train": 2, "val": 1, "test": 1}
    assert dataset.path_of(dataset.train[0]) == "img/a/0.png"


@pytest.mark.parametrize(
    "lines",
    [
        ("img/a/0.png,cat", "img/b/0.png,dog"),
        ("Path;Label", "img/a/0.png;cat", "", "img/b/0.png;dog"),
        ("file_name\tclass\twidth", "img/a/0.png\tcat\t3", "img/b/0.png\tdog\t4"),
        ("path,label", "img\\a\\0.png,cat", "img\\b\\0.png,dog"),
        ("\ufefffilename,label", '"img/a/0.png","cat"', '"img/b/0.png","dog"'),
    ],
)
def test_csv_dialects(listed, lines):
    dataset = load_folder(write(listed / "data.csv", *lines))
    assert dataset.names == ("cat", "dog")
    assert len(dataset.train) == 2


def test_numbered_labels_sort_as_numbers(listed):
    write(listed / "classnames.json", '{"2": "cat", "10": "dog"}')
    dataset = load_folder(write(listed / "d.csv", "path,label", "img/a/0.png,10", "img/b/0.png,2"))
    assert dataset.labels == ("2", "10")
    assert dataset.names == ("cat", "dog")


def test_bad_rows_are_all_listed_with_their_lines(listed):
    table = write(
        listed / "data.csv", "path,label,split",
        "img/a/0.png,cat,train",
        "img/none.png,cat,train",
        "img/b/0.png,,train",
        ",dog,train",
        "img/b/1.png,dog,tset",
        "img/b/2.png",
        "img/a/0.png,dog,train",
        "img/a/1.png,cat,train,extra",
        "img/a/0.png,cat,test",
        "img/b/0.png,dog,",
    )  # fmt: skip
    with pytest.raises(UserError, match="8 of 10 rows") as error:
        load_folder(table)
    text = str(error.value)
    for line, says in {
        3: "no such file: img/none.png", 4: "no label", 5: "no path", 6: "'tset' is none of", 7: "1 cell",
        8: "label 'dog' here and 'cat' in line 2", 9: "4 cells", 10: "listed again (first in line 2)",
    }.items():  # fmt: skip
        assert any(d.startswith(f"line {line}:") and says in d for d in error.value.details), (line, text)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "first line is ''"),
        (b"path,label\n", "no rows"),
        (b"name,colour\nx,y\n", "expected a header"),
        (b"path,colour\nx,y\n", "no label column"),
        (b"path,label\nimg/a/0.png,\xff\xfe\n", r"not UTF-8 text \(line 2\)"),
    ],
)
def test_lists_that_are_no_lists(listed, content, says):
    (listed / "data.csv").write_bytes(content)
    with pytest.raises(UserError) as error:
        load_folder(listed / "data.csv")
    import re

    assert re.search(says, str(error.value))


def test_hugging_face_metadata_csv(listed):
    write(listed / "img/metadata.csv", "file_name,label", "a/0.png,cat", "b/0.png,dog")
    dataset = load_folder(listed / "img")
    assert dataset.names == ("cat", "dog")
    assert len(dataset.train) == 2


def test_hugging_face_metadata_jsonl_in_split_folders(tmp_path):
    for part in ("train", "test"):
        make_folder(tmp_path / part, {"images": 2})
        rows = [{"file_name": f"images/{k}.png", "label": label} for k, label in enumerate(("cat", "dog"))]
        write(tmp_path / part / "metadata.jsonl", *map(json.dumps, rows))
    dataset = load_folder(tmp_path)
    assert dataset.names == ("cat", "dog")
    assert dataset.counts() == {"train": 2, "val": 0, "test": 2}


def test_metadata_of_captions_leaves_the_folders_in_charge(listed):
    write(listed / "img/metadata.csv", "file_name,text", "a/0.png,a cat")
    assert load_folder(listed / "img").names == ("a", "b")


def test_labels_that_read_alike_are_placed_in_the_list_that_holds_them(listed, monkeypatch):
    monkeypatch.chdir(listed)
    write(listed / "d.csv", "path,label", "img/a/0.png,Cat", "img/b/0.png,cat")
    with pytest.raises(UserError, match=r"^d\.csv: 1 class name is") as error:
        load_folder("d.csv")
    assert error.value.hint.startswith("give one class one label in the list")


def test_a_path_listed_twice_is_named_in_full(listed):
    rows = ("img/a/0.png,cat", "img/b/0.png,dog", "img/b/0.png,dog", "img/a/0.png,dog")
    with pytest.raises(UserError) as error:
        load_folder(write(listed / "d.csv", "path,label", *rows))
    assert error.value.details == (
        "line 4: img/b/0.png is listed again (first in line 3)",
        "line 5: img/a/0.png has label 'dog' here and 'cat' in line 2",
    )


def test_bad_json_lines_are_listed(listed):
    table = write(listed / "d.jsonl", '{"path": "img/a/0.png", "label": "cat"}', "{", "[1]", '{"path": "img/b/0.png"}')
    with pytest.raises(UserError, match="3 of 4 rows") as error:
        load_folder(table)
    assert [d.split(":")[0] for d in error.value.details] == ["line 2", "line 3", "line 4"]


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_as_a_list_give_a_user_error_or_rows(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("fuzz")
    for name in ("x.csv", "x.jsonl"):
        (folder / name).write_bytes(content)
        with pytest.raises(UserError):
            load_folder(folder / name)
