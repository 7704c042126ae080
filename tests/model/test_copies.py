"""The same image in two classes, and test images that were trained on."""

from __future__ import annotations

import json
import logging
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dca import Classifier
from dca.model.copies import SharedImages, count_seen, describe_shared_images, find_shared_images
from dca.model.records import TrainingImage
from dca.report.page import render
from dca.report.reported_model import prepare_report
from dca.report.sections import SECTIONS, data_notes, headline
from dca.training.session import Session


def image(label: int, name: str) -> TrainingImage:
    return TrainingImage(label, name, name)


def test_classes_that_share_images_are_those_of_a_comparison_of_all_pairs() -> None:
    rng = np.random.default_rng(3)
    images = [image(int(label), f"{n}.jpg") for n, label in enumerate(rng.integers(0, 4, 60))]
    groups = rng.integers(0, 40, 60)
    involved: dict[tuple[str, str], set[str]] = {}
    for a, b in combinations(range(60), 2):
        if groups[a] == groups[b] and images[a].label != images[b].label:
            first, second = sorted((images[a].label, images[b].label))
            involved.setdefault((str(first), str(second)), set()).update((images[a].name, images[b].name))
    found = find_shared_images(images, groups, range(4))
    assert {one.labels: one.images for one in found} == {pair: len(names) for pair, names in involved.items()}
    assert len(found) > 3
    assert [one.images for one in found] == sorted((one.images for one in found), reverse=True)
    where = {each.name: (each.label, group) for each, group in zip(images, groups, strict=True)}
    for one in found:
        for first, second in one.examples:
            assert (str(where[first][0]), str(where[second][0])) == one.labels
            assert where[first][1] == where[second][1]


def test_copies_within_a_class_are_no_conflict() -> None:
    assert find_shared_images([image(0, "a"), image(0, "b"), image(1, "c")], [0, 0, 1], ["cat", "dog"]) == ()


def test_the_warning_names_classes_images_and_an_example() -> None:
    one = SharedImages(("cat", "dog"), 4, (("cat/1.jpg", "dog/7.jpg"), ("cat/2.jpg", "dog/8.jpg")))
    assert "cat and dog (4 images, e.g. cat/1.jpg ~ dog/7.jpg); keep each" in describe_shared_images([one])
    assert "and 2 more pairs of classes" in describe_shared_images([one] * 5)
    assert SharedImages.from_dict(json.loads(json.dumps(one.to_dict()))) == one


def test_seen_images_are_counted_by_content() -> None:
    assert count_seen(["a", "b"], ["b", "b", "c"]) == 2
    assert count_seen([], ["b"]) == 0


@pytest.fixture
def muddled(photos: Path, tmp_path: Path) -> Path:
    """The photos with a near-copy and a copy of a fish among the houses, and two training images in the test part."""
    folder = tmp_path / "muddled"
    shutil.copytree(photos, folder)
    fish = sorted((folder / "train" / "fish").iterdir())
    with Image.open(fish[0]) as opened:
        opened.convert("RGB").save(folder / "train" / "house" / "near.jpg", quality=90)
    shutil.copyfile(fish[1], folder / "train" / "house" / "same.png")
    for n in range(2):
        shutil.copyfile(fish[n], folder / "test" / "fish" / f"seen{n}.png")
    return folder


def test_a_fit_says_which_classes_share_images_and_that_it_trains_on_test_images(
    dca: Any, muddled: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "m.dca"
    said = dca("fit", muddled, "--backbone", tiny_folder, "-o", target)
    assert said.code == 0, said.err
    assert said.err.count("fish and house (4 images, e.g. fish/") == 1
    assert said.err.count("the model was trained on 2 of these 32 test images of muddled") == 1
    again = dca("fit", muddled, "--backbone", tiny_folder, "-o", target, "--json")
    result = json.loads(again.out)
    (shared,) = result["findings"]["shared_images"]
    assert (shared["labels"], shared["images"], len(shared["examples"])) == (["fish", "house"], 4, 2)
    assert result["targets"][0]["seen_in_training"] == 2
    assert again.err.count("fish and house") == 1, "a finished fit says it again"

    session = Session(device="cpu")
    model = Classifier.from_pretrained(target, backbone=str(tiny_folder), device="cpu")
    reported = prepare_report(model, "m", session, folder=target)
    notes, figures = data_notes.build(reported), headline.build(reported)
    assert not isinstance(notes, str)
    assert not isinstance(figures, str)
    assert any("fish and house (4 images" in note for note in notes["notes"])
    assert figures["seen"].startswith("the model was trained on 2 of these 32 test images")
    page = render(SECTIONS, reported, title="m", about="about")
    assert page.count("fish and house (4 images") == page.count("The model was trained on 2 of these 32") == 1


def test_a_fit_of_clean_photos_warns_of_nothing(dca: Any, photos: Path, tiny_folder: Path, tmp_path: Path) -> None:
    said = dca("fit", photos, "--backbone", tiny_folder, "-o", tmp_path / "m.dca", "--json")
    result = json.loads(said.out)
    assert result["findings"]["shared_images"] == []
    assert result["targets"][0]["seen_in_training"] == 0
    assert "warning" not in said.err


def test_fit_in_python_logs_the_warning(muddled: Path, tiny_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Classifier(backbone=str(tiny_folder), device="cpu").fit(muddled)
    (text,) = [record.getMessage() for record in caplog.records if "two classes" in record.getMessage()]
    assert "fish and house (4 images" in text


def test_copies_are_found_by_methods_that_hold_nothing_out(
    muddled: Path, tiny_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session(device="cpu")
    with caplog.at_level(logging.WARNING):
        Classifier("gda", views=0, backbone=str(tiny_folder)).fit(muddled, session=session)
    assert "fish and house" in caplog.text
