from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from conftest import shared as shared_folder
from dca.datasets import catalog, load_dataset
from dca.datasets.check import check_folder, check_public
from dca.images.hashing import find_near_copies, make_thumbnail
from helpers.miniatures import SPLIT_FILES, WNID_FOLDERS, miniature, split_path
from helpers.small_images import make_folder, photo


@pytest.fixture
def shared():
    """Real images, split files and published draws, if they are beside the repository."""
    return shared_folder("data")


def busy(seed, size=(96, 72)):
    """An image with detail of its own."""
    noise = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


@pytest.fixture
def photos(tmp_path):
    """Two parts, two classes, all images different."""
    for p, part in enumerate(("train", "test")):
        for c, name in enumerate(("cat", "dog")):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(6):
                busy(100 * p + 10 * c + i).save(tmp_path / part / name / f"{i}.png")
    return tmp_path


def found(report):
    return {finding.what: finding for finding in report.findings}


def test_a_good_folder_has_no_findings(photos):
    report = check_folder(photos)
    assert report.findings == ()
    assert report.ok
    assert report.facts["classes"] == 2
    assert report.facts["fewest_per_class"] == 6
    assert json.loads(json.dumps(report.describe()))["ok"] is True


def test_unreadable_images_block(photos):
    (photos / "train/cat/note.jpg").write_text("hello")
    (photos / "train/dog/zero.jpg").write_bytes(b"")
    report = check_folder(photos)
    finding = found(report)["2 images cannot be read"]
    assert finding.examples[0].startswith("train/cat/note.jpg: not an image")
    assert not report.ok
    assert check_folder(photos, open_images=False).ok


def test_the_same_file_in_train_and_test_is_a_leak(photos):
    shutil.copy(photos / "train/cat/0.png", photos / "test/cat/copy.png")
    finding = found(check_folder(photos))["1 test image is the same file as a training or validation image"]
    assert finding.examples == ("train/cat/0.png ~ test/cat/copy.png",)


def test_a_smaller_recompressed_copy_in_test_is_a_leak(photos):
    busy(0).resize((64, 48)).save(photos / "test/cat/small.jpg", quality=70)
    finding = found(check_folder(photos))["1 test image is nearly the same image as a training or validation image"]
    assert finding.examples == ("train/cat/0.png ~ test/cat/small.jpg",)


def test_one_picture_under_two_labels_is_a_conflict(photos):
    shutil.copy(photos / "train/cat/0.png", photos / "train/dog/copy.png")
    assert "1 image pair is the same file under different labels" in found(check_folder(photos))


def test_a_file_in_three_classes_is_the_same_in_all_of_them(photos):
    (photos / "train/fox").mkdir()
    for k in range(4):
        busy(500 + k).save(photos / f"train/fox/{k}.png")
    for name in ("dog", "fox"):
        shutil.copy(photos / "train/cat/0.png", photos / f"train/{name}/copy.png")
    told = [finding for finding in check_folder(photos).findings if "image pair" in finding.what]
    assert [finding.what for finding in told] == ["2 image pairs are the same file under different labels"]


def test_copies_inside_a_part_are_noted(photos):
    shutil.copy(photos / "train/cat/0.png", photos / "train/cat/copy.png")
    assert found(check_folder(photos))["1 image pair is the same file within a part"].level == "note"


def test_near_empty_classes_strays_small_and_long_images(photos):
    make_folder(photos / "train", {"fox": 1})
    busy(77, (400, 60)).save(photos / "train/cat/long.png")
    photo().save(photos / "train/loose.png")
    findings = found(check_folder(photos))
    assert findings["1 of 3 classes has fewer than 4 training images"].examples == ("fox: 1 image",)
    assert findings["1 image is in no class and not used"].examples == ("train/loose.png",)
    assert findings["1 image is smaller than 32 px"].examples == ("train/fox/0.png: 32x24",)
    assert findings["1 image is more than 4 times longer than wide"].examples == ("train/cat/long.png: 400x60",)


def test_a_folder_that_cannot_be_read_is_one_blocker(tmp_path):
    make_folder(tmp_path, {"a": 1, "b": 0})
    report = check_folder(tmp_path)
    assert not report.ok
    assert report.findings[0].examples == ("b",)


def test_odd_class_names_come_with_advice(tmp_path):
    make_folder(tmp_path, {"n01440764": 4, "bkr": 4, "cat": 4})
    finding = next(f for f in check_folder(tmp_path, open_images=False).findings if "class names" in f.what)
    assert finding.what.startswith("2 of 3 class names")
    assert "classnames.json" in finding.advice
    assert '{"bkr": "bike rack"}' in finding.advice


def test_the_example_of_a_name_is_a_class_that_was_flagged(tmp_path):
    make_folder(tmp_path, {"-dash": 4, "bkr": 4})
    finding = next(f for f in check_folder(tmp_path, open_images=False).findings if "class names" in f.what)
    assert '{"bkr": "bike rack"}' in finding.advice


def test_a_name_that_belongs_to_no_class_is_said(tmp_path, caplog):
    make_folder(tmp_path, {"bkr": 4, "cat": 4})
    (tmp_path / "classnames.json").write_text('{"bkrr": "bike rack", "zebra": "zebra"}')
    finding = found(check_folder(tmp_path))["2 names in classnames.json without a class"]
    assert finding.level == "warning"
    assert finding.examples == ("'bkrr' (did you mean 'bkr'?)", "'zebra'")
    assert not caplog.records, "the report says it"
    load_dataset(tmp_path)
    assert "no class is called 'bkrr' (did you mean 'bkr'?), 'zebra'" in caplog.text


def test_names_of_more_classes_than_there_are_do_no_harm(tmp_path, caplog):
    make_folder(tmp_path, {"bkr": 4, "cat": 4})
    (tmp_path / "classnames.json").write_text('{"bkr": "bike rack", "cat": "cat", "zbr": "zebra"}')
    finding = found(check_folder(tmp_path))["1 name in classnames.json without a class"]
    assert finding.level == "note"
    load_dataset(tmp_path)
    assert not caplog.records


def test_files_that_are_not_taken_are_counted_and_named(photos):
    (photos / "train/cat/notes.txt").write_text("a note")
    (photos / "train/Thumbs.db").write_bytes(b"x")
    text = "1 file is not used: no image by the end of the name"
    finding = found(check_folder(photos))[text]
    assert (finding.level, finding.examples) == ("note", ("train/cat/notes.txt",))
    busy(900).save(photos / "test/dog/IMG_7", format="png")
    busy(901).save(photos / "outside.png")
    findings = found(check_folder(photos))
    finding = findings["2 files are not used: no image by the end of the name"]
    assert finding.examples == ("test/dog/IMG_7 (an image)", "train/cat/notes.txt")
    assert finding.level == "warning"
    assert findings["1 image is in no class and not used"].examples == ("outside.png",)


def test_images_that_metadata_name_are_used(tmp_path):
    for k in range(8):
        busy(k).save(tmp_path / f"{k}.png")
    rows = [f"{k}.png,{('cat', 'dog')[k % 2]}" for k in range(8)]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,label", *rows]))
    assert check_folder(tmp_path).findings == ()


def test_no_near_copies_among_different_or_flat_pictures():
    different = [make_thumbnail(busy(k)) for k in range(60)]
    flat = [make_thumbnail(Image.new("RGB", (40, 40), (0, 30, 90 + k))) for k in range(20)]
    assert find_near_copies(np.stack(different + flat)) == []


def test_links_that_are_not_followed_are_named(tmp_path):
    photos = make_folder(tmp_path / "photos", {"cat": 4, "dog": 4})
    (photos / "cat/up").symlink_to("..", target_is_directory=True)
    (photos / "dog/cats").symlink_to("../cat", target_is_directory=True)
    (photos / "hound").symlink_to("dog", target_is_directory=True)
    finding = found(check_folder(photos))["3 links are not followed: they lead to another class or to a folder above"]
    assert (finding.level, finding.examples) == ("warning", ("cat/up", "dog/cats", "hound"))


def test_pipes_are_named(tmp_path):
    photos = make_folder(tmp_path / "photos", {"cat": 4, "dog": 4})
    os.mkfifo(photos / "cat/pipe.jpg")
    findings = found(check_folder(photos))
    finding = findings["1 file is not used: not a regular file (a pipe, socket or device)"]
    assert (finding.level, finding.examples) == ("warning", ("cat/pipe.jpg",))


def test_near_copies_equal_the_pairwise_loop_in_blocks():
    pictures = [busy(k % 20, (80 + 3 * k, 64)) for k in range(40)]
    thumbs = np.stack([make_thumbnail(image) for image in pictures])
    pairs = find_near_copies(thumbs, block=7)
    assert sorted(pairs) == [(k, k + 20) for k in range(20)]
    assert sorted(find_near_copies(thumbs)) == sorted(pairs)


def test_real_flowers_have_few_near_copies(shared):
    files = sorted((shared / "images/oxford_flowers/jpg").iterdir())[:600]
    thumbs = np.stack([make_thumbnail(Image.open(file)) for file in files])
    assert len(find_near_copies(thumbs)) < 10


def test_a_zoo_of_odd_files_is_read_or_listed_with_the_reason(tmp_path):
    """Everything people have in folders, in one folder."""
    cat, dog = tmp_path / "photos/cat", tmp_path / "photos/dog"
    for folder in (cat, dog):
        folder.mkdir(parents=True)
    for k in range(4):
        busy(k).save(dog / f"{k}.PNG")
    busy(10).save(cat / "MIXED.JpG")
    busy(11).convert("CMYK").save(cat / "cmyk.jpg")
    Image.fromarray(np.random.default_rng(0).integers(0, 65536, (40, 40), dtype=np.uint16)).save(cat / "deep.png")
    busy(12).save(cat / "moving.gif", save_all=True, append_images=[busy(13)])
    busy(14).convert("RGBA").save(cat / "rgba.jpg", format="png")
    (cat / "link.png").symlink_to(dog / "missing.png")
    busy(15).save(tmp_path / "outside.png")
    (cat / "good_link.png").symlink_to(tmp_path / "outside.png")
    (cat / "text.jpg").write_text("I am a text file")
    (cat / "again").symlink_to(cat, target_is_directory=True)
    report = check_folder(tmp_path / "photos")
    assert report.facts["train"] == 12
    unreadable = report.findings[0]
    assert unreadable.what == "2 images cannot be read"
    assert [line.split(": ") for line in unreadable.examples] == [
        ["cat/link.png", "a broken link"],
        ["cat/text.jpg", "not an image, or in a format that is not opened"],
    ]
    assert [finding.level for finding in report.findings[1:]] == []


# Public datasets


@pytest.fixture
def mini(tmp_path):
    return lambda name: miniature(name, tmp_path)


@pytest.mark.parametrize("name", tuple(catalog.entries()))
def test_check_of_a_miniature_finds_only_the_sizes_wrong(mini, name):
    report = check_public(catalog.get(name), mini(name))
    assert [f.what for f in report.findings] == ["the split sizes differ from the official ones"]
    assert report.ok


@pytest.mark.parametrize("name", sorted(SPLIT_FILES))
def test_check_names_a_deleted_file(mini, name):
    folder = mini(name)
    key, _ = catalog.get(name).class_list()[1]
    gone = split_path(name, 1, key, "test", 0)
    (folder / SPLIT_FILES[name][1] / gone).unlink()
    report = check_public(catalog.get(name), folder)
    finding = next(f for f in report.findings if "missing" in f.what)
    assert finding.what == f"1 of {catalog.get(name).classes:,} test images is missing"
    assert finding.examples == (gone,)
    assert not report.ok


@pytest.mark.parametrize("name", sorted(SPLIT_FILES))
def test_check_names_a_missing_split_and_a_wrong_class(mini, name):
    folder = mini(name)
    file = folder / SPLIT_FILES[name][0]
    split = json.loads(file.read_text())
    for rows in split.values():
        for row in rows:
            row[2] = "teapot" if row[1] == 2 else row[2]
    file.write_text(json.dumps(split))
    wrong = next(f for f in check_public(catalog.get(name), folder).findings if "wrong" in f.what)
    assert wrong.examples == (f"label 2: 'teapot', expected '{catalog.get(name).class_list()[2][1]}'",)
    file.unlink()
    missing = check_public(catalog.get(name), folder)
    assert file.name in missing.findings[0].what
    assert not missing.ok


def test_check_of_aircraft(mini):
    folder, entry = mini("fgvc_aircraft"), catalog.get("fgvc_aircraft")
    (folder / "images/train10.jpg").unlink()
    report = check_public(entry, folder)
    assert "images/train10.jpg" in next(f for f in report.findings if "missing" in f.what).examples
    (folder / "variants.txt").write_text((folder / "variants.txt").read_text().replace("727-200", "727-201"))
    assert "'727-200' is not in variants.txt" in str(check_public(entry, folder).findings[0])
    (folder / "images_variant_val.txt").unlink()
    assert "images_variant_val.txt is missing" in check_public(entry, folder).findings[0].what


@pytest.mark.parametrize("name", sorted(WNID_FOLDERS))
def test_check_names_missing_class_folders_and_parts(mini, name):
    folder, entry = mini(name), catalog.get(name)
    part = WNID_FOLDERS[name][-1]
    first = folder / part / ("0" if name == "imagenetv2" else entry.class_list()[0][0])
    shutil.rmtree(first)
    key, words = entry.class_list()[0]
    finding = next(f for f in check_public(entry, folder).findings if "no test images" in f.what)
    assert finding.examples == (f"{key} ({words})",)
    (folder / part).rename(folder / "elsewhere")
    report = check_public(entry, folder)
    assert not report.ok
    assert "are not in it" in report.findings[0].what


def test_check_names_the_class_that_lacks_an_image(mini):
    folder, entry = mini("imagenetv2"), catalog.get("imagenetv2")
    base = folder / WNID_FOLDERS["imagenetv2"][0]
    for y in range(1000):
        for i in range(9 if y != 7 else 8):
            (base / str(y) / f"{i}.jpeg").symlink_to(folder.parent / "one.jpg")
    report = check_public(entry, folder)
    key, words = entry.class_list()[7]
    assert report.findings[0].examples == (
        "test: 9,999 listed, 10,000 official",
        f"test, {key} ({words}): 9 of 10",
    )


def test_check_can_open_the_images(mini):
    folder = mini("eurosat")
    bad = folder / "2750/Forest/train0.jpg"
    bad.unlink()
    bad.write_text("not an image")
    entry = catalog.get("eurosat")
    assert check_public(entry, folder).ok
    report = check_public(entry, folder, open_images=True)
    assert any("Forest/train0.jpg: not an image" in line for f in report.findings for line in f.examples)


@pytest.mark.parametrize(("folder", "name"), [("caltech-101", "caltech101"), ("oxford_flowers", "oxford_flowers")])
def test_check_finds_nothing_wrong_with_whole_datasets(shared, folder, name):
    report = check_public(catalog.get(name), shared / "images" / folder)
    assert report.findings == ()
    assert report.facts["present"] == report.facts["official"]


def test_check_says_what_is_there_of_eurosat(shared):
    report = check_public(catalog.get("eurosat"), shared / "images/eurosat")
    assert report.facts["present"]["test"] == 8100
    assert sum(report.facts["present"].values()) == 9394
    assert len(report.facts["complete_draws"]) == 15
    assert report.ok
    assert [f.level for f in report.findings] == ["warning", "warning"]
    assert all("every image that the public draws" in f.advice for f in report.findings)
