"""What a model can do, it does with an encoder that knows no texts and with several encoders, too."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dca import Classifier, Session, UserError
from dca.datasets.dataset import Dataset
from dca.datasets.sample import load_sample
from dca.model.explain import explain
from dca.model.findings import doubtful_labels
from dca.model.predict import PredictionOptions, predict_to_file
from dca.report.assemble import make_model_page
from serve.serving import client_of, picture, service_of

LITE, POOL = "efficientnet-lite0", "mini,efficientnet-lite0"
OTHERS = ("gda", "linear_probe", "tip_adapter", "tip_adapter_f")


@pytest.fixture(scope="module")
def few() -> Dataset:
    return load_sample(per_class_train=6, per_class_test=2)


@pytest.fixture(scope="module", params=[pytest.param(LITE, marks=pytest.mark.slow), POOL])
def model(request: pytest.FixtureRequest, few: Dataset) -> Classifier:
    return Classifier(backbone=request.param, device="cpu").fit(few)


@pytest.fixture(scope="module")
def saved(model: Classifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model.save_pretrained(folder := tmp_path_factory.mktemp("models") / "m.dca")
    return folder


def images_of(dataset: Dataset) -> list[Image.Image]:
    return [item.image for item in dataset.test if isinstance(item.image, Image.Image)]


def test_the_estimate_the_p_values_and_the_sets_are_there(model: Classifier, few: Dataset) -> None:
    found, images = model.estimate_, images_of(few)
    assert found is not None
    assert 0 <= found.low <= found.accuracy <= found.high <= 1
    assert (found.zero_shot_accuracy is None) == (model.backbone == LITE)
    assert model.score(few) > 0.8
    p_values = model.p_values(images)
    assert ((p_values > 0) & (p_values <= 1)).all()
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    assert model.predict(noise, reject=0.1) == "none of these"
    assert all(label in held for label, held in zip(model.predict(images), model.prediction_sets(images), strict=True))


def test_wrong_labels_are_found(model: Classifier, few: Dataset) -> None:
    (wrong, *others), classes = few.train, len(few.names)
    swapped = type(wrong)(wrong.image, (wrong.label + 3) % classes)
    mixed = type(few)("mixed", few.labels, few.names, (swapped, *others))
    found = Classifier(backbone=model.backbone, device="cpu").fit(mixed)
    assert 0 in [row.index for row in doubtful_labels(found.training_images_, found.classes_.tolist())]


def test_classes_are_added_removed_and_renamed(model: Classifier, few: Dataset) -> None:
    images, truth = images_of(few), [few.labels[item.label] for item in few.test]
    first = str(model.classes_[0])
    fewer = model.remove_class(first)
    assert first not in fewer.classes_
    again = fewer.add_class(first, [item.image for item in few.train if item.label == 0])
    assert np.mean([a == b for a, b in zip(again.predict(images), truth, strict=True)]) > 0.8
    if model.backbone == POOL:  # an encoder without text has nothing to read another name with
        assert "something else" in model.rename_class(first, "something else").classes_
    assert "another label" in model.rename_class(first, "another label", label_only=True).classes_


def test_a_saved_model_names_its_encoders_by_hash_and_predicts_the_same(
    model: Classifier, saved: Path, few: Dataset
) -> None:
    again = Classifier.from_pretrained(saved, device="cpu")
    assert np.array_equal(again.predict_proba(images_of(few)), model.predict_proba(images_of(few)))
    card = (saved / "README.md").read_text(encoding="utf-8")
    for member in model.method_.encoder.members:
        assert f"- {member.source}, sha256 {member.digest}" in card
    assert "licence Apache-2.0" in card
    with pytest.raises(UserError, match="backbone"):
        Classifier.from_pretrained(saved, backbone="mini", device="cpu")


def test_predictions_in_bulk_are_those_in_memory(saved: Path, few: Dataset, tmp_path: Path) -> None:
    paths = []
    for number, image in enumerate(images_of(few)):
        image.save(tmp_path / f"{number}.png")
        paths.append(str(tmp_path / f"{number}.png"))
    model = Classifier.from_pretrained(saved, device="cpu")
    done = predict_to_file(model, paths, tmp_path / "out.csv", PredictionOptions(top=1))
    assert done.predicted == len(paths)
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        labels = [row["label"] for row in csv.DictReader(file)]
    assert labels == [str(label) for label in model.predict(paths)]


def test_the_gallery_the_explanation_and_the_page_are_made(model: Classifier, few: Dataset, tmp_path: Path) -> None:
    gallery = model.gallery()
    assert gallery is not None
    assert gallery.features.shape == (len(few.train), model.method_.encoder.feature_dim)
    found = explain(model, few.train[0].image)
    assert found.nearest[0].similarity == pytest.approx(1, abs=1e-4)
    side = model.method_.encoder.patches_per_side
    assert found.relevance.shape == (side, side)
    for data in (None, few):
        page = make_model_page(model, "m", Session(device="cpu"), dataset=data)
        assert "How good is it?" in page
        assert ">nan" not in page.lower()


def test_the_server_predicts_corrects_and_refits(saved: Path) -> None:
    with client_of(service_of(saved)) as client:
        answer = client.post("/api/predict", content=picture())
        assert answer.status_code == 200, answer.text
        sha256, label = answer.json()["image"], client.get("/api/model").json()["classes"][0]["label"]
        corrected = client.post("/api/correct", json={"image": sha256, "label": label})
        assert corrected.status_code == 200, corrected.text
        refitted = client.post("/api/refit")
        assert refitted.status_code == 200, refitted.text


@pytest.mark.parametrize("method", ["closed_form", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_methods_over_image_features_need_no_text(method: str, few: Dataset) -> None:
    options = {"epochs": 1, "train_views": 1, "views": 0} if method == "tip_adapter_f" else {}
    options |= {"views": 0} if method == "tip_adapter" else {}
    model = Classifier(method, backbone=LITE, device="cpu", calibrate=False, **options).fit(few)
    assert model.score(few) > 0.5


@pytest.mark.parametrize("method", ["zero_shot", "cross_modal", "dca", "clip_lora"])
def test_methods_that_need_more_say_what_runs(method: str, few: Dataset) -> None:
    with pytest.raises(UserError, match=f"{method} needs .*, which {LITE} does not have") as caught:
        Classifier(method, backbone=LITE, device="cpu").fit(few)
    assert "methods that run on it: closed_form, gda" in str(caught.value)
