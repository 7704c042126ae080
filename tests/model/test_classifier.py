from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone

import dca.core.progress
from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.datasets import load_dataset
from dca.datasets.dataset import Dataset, LabelledImage
from dca.datasets.draws import draw_training_part
from dca.methods.registry import get_method
from dca.model.classifier import Classifier
from dca.model.inputs import as_dataset
from dca.study.protocols import subset
from dca.training.context import make_problem


@pytest.fixture(scope="module")
def model(sample: Dataset, clip: CLIP) -> Classifier:
    return Classifier("dca", shots=1, backbone=clip, epochs=1).fit(sample)


def pictures(count: int) -> list[Image.Image]:
    return [Image.new("RGB", (32, 32), (40 * n % 255, 90, 200 - 30 * n % 200)) for n in range(count)]


def test_one_picture_gives_a_name_and_several_an_array(model: Classifier, photos: Path):
    path = photos / "test" / "fish" / "000.png"
    for one in (path, str(path), Image.open(path)):
        assert type(model.predict(one)) is str
        assert model.predict(one) in model.classes_
    for several in ([path], (str(path), path), np.array([str(path)]), iter([path]), photos / "test" / "fish"):
        named = model.predict(several)
        assert isinstance(named, np.ndarray)
        assert named[0] == model.predict(path)
    assert model.predict([]).shape == (0,)


def test_probabilities_have_a_column_a_class_and_sum_to_one(model: Classifier, sample: Dataset):
    found = model.predict_proba([item.image for item in sample.test])
    assert found.shape == (len(sample.test), len(model.classes_))
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    assert tuple(model.classes_) == sample.names


def test_a_path_and_its_open_image_give_the_same_bits(model: Classifier, photos: Path):
    path = photos / "test" / "house" / "001.png"
    assert (model.predict_proba(path) == model.predict_proba(Image.open(path))).all()


def test_score_is_the_fraction_of_right_answers(model: Classifier, sample: Dataset):
    items = sample.test[:12]
    given = [item.image for item in items]
    labels = [sample.names[item.label] for item in items]
    right = model.predict(given) == np.array(labels)
    assert model.score(given, labels) == right.mean()
    assert model.score(given[:1], labels[:1]) == float(right[0]), "one class is enough to measure on"
    report = model.evaluate(given, labels)
    assert report.n == 12
    assert set(report.per_class) == set(labels)


def test_labels_are_matched_by_their_words(model: Classifier, sample: Dataset):
    balloon = next(i for i in sample.test if sample.names[i.label] == "hot air balloon")
    expected = float(model.predict(balloon.image) == "hot air balloon")
    assert model.score([balloon.image], ["Hot_Air_Balloon"]) == expected


def test_classes_of_the_same_name_keep_their_places(clip: CLIP):
    items = tuple(LabelledImage(picture, n) for n, picture in enumerate(pictures(3)))
    twins = Dataset("twins", ("ship", "crane", "plane"), ("missile", "crane", "missile"), train=items, test=items)
    fitted = Classifier("dca", backbone=clip, epochs=1).fit(twins)
    report = fitted.evaluate(twins)
    assert report.truth.tolist() == [0, 1, 2]
    assert set(report.per_class) == {"ship", "crane", "plane"}


def test_fit_takes_pictures_and_labels_of_any_kind(clip: CLIP):
    labels = np.array([3, 7, 3, 7])
    fitted = Classifier("dca", backbone=clip, shots=np.int64(2), seed=np.int32(1), epochs=np.int64(1)).fit(
        pictures(4), labels
    )
    assert fitted.classes_.tolist() == [3, 7]
    assert fitted.method_.options.epochs == 1


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([10, 2, 10, 2], [2, 10]),
        (np.array([1, 0, 1, 0]), [0, 1]),
        ((True, False, True, False), [False, True]),
        ([0.5, 1.5, 0.5, 1.5], [0.5, 1.5]),
        (["10", "2", "10", "2"], ["10", "2"]),
        ([7, "dog", 7, "dog"], [7, "dog"]),
    ],
)
def test_labels_come_back_as_they_were_given(clip: CLIP, tmp_path: Path, labels: Any, classes: list[Any]):
    given = pictures(4)
    model = Classifier("gda", shots=1, backbone=clip, views=0).fit(given, labels)
    assert model.classes_.tolist() == classes
    assert type(model.predict(given[0])) is type(classes[model.predict_proba(given[0]).argmax()])
    assert model.predict(given).tolist() == [classes[c] for c in model.predict_proba(given).argmax(axis=1)]
    assert model.score(given, labels) == np.mean([a == b for a, b in zip(model.predict(given), labels, strict=True)])
    model.save_pretrained(tmp_path / "m.dca")
    loaded = Classifier.from_pretrained(tmp_path / "m.dca", backbone=clip)
    assert loaded.classes_.tolist() == classes, "numbers stay numbers in a saved model, too"
    assert loaded.score(given, labels) == model.score(given, labels)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Class folders called by a shop's own codes, with their names in classnames.json."""
    for code, colour in (("A-17", "red"), ("A_18", "blue"), ("B-2", "lime")):
        (tmp_path / "shop" / code).mkdir(parents=True)
        for n in range(3):
            Image.new("RGB", (32, 32 + n), colour).save(tmp_path / "shop" / code / f"{n}.png")
    names = {"A-17": "bike rack", "A_18": "garden bench", "B-2": "tent"}
    (tmp_path / "shop/classnames.json").write_text(json.dumps(names))
    return tmp_path / "shop"


def test_predictions_are_labels_and_clip_reads_the_names(clip: CLIP, shop: Path):
    model = Classifier("gda", shots=2, backbone=clip, views=0).fit(shop)
    assert model.classes_.tolist() == ["A-17", "A_18", "B-2"]
    assert model.method_.problem.names == ("bike rack", "garden bench", "tent")
    assert model.predict(shop / "A_18/0.png") == "A_18"
    assert model.evaluate(shop).accuracy == 1.0
    model.save_pretrained(shop.parent / "m.dca")
    loaded = Classifier.from_pretrained(shop.parent / "m.dca", backbone=clip)
    assert loaded.predict(shop / "A_18/0.png") == "A_18"
    assert loaded.evaluate(shop).per_class == {"A-17": 1.0, "A_18": 1.0, "B-2": 1.0}


def test_a_model_is_measured_by_labels_without_their_names(clip: CLIP, shop: Path):
    model = Classifier("gda", shots=2, backbone=clip, views=0).fit(shop)
    (shop / "classnames.json").unlink()
    assert model.evaluate(shop).accuracy == 1.0
    (shop / "A-17").rename(shop / "a 17")
    assert model.evaluate(shop).accuracy == 1.0
    images = sorted(shop.glob("*/0.png"))
    assert model.score(images, ["A_18", "B-2", "bike rack"]) == 1.0
    (shop / "B-2").rename(shop / "C-3")
    with pytest.raises(UserError, match="does not know") as caught:
        model.evaluate(shop)
    assert caught.value.details == ("C-3: 3 images",)
    assert "the model knows: A-17 (bike rack), A_18 (garden bench), B-2 (tent)" in caught.value.hint


@pytest.mark.parametrize("name", ["eurosat", "dtd", "stanford_cars"])
def test_the_name_of_a_folder_does_not_change_the_training(shop: Path, name: str):
    dataset = load_dataset(shop.rename(shop.with_name(name)))
    assert (dataset.name, dataset.public) == (name, "")
    drawn, _ = draw_training_part(dataset, 2, 1)
    assert make_problem(drawn, 1, "strict").dataset == ""
    assert make_problem(drawn, 1, "strict") == make_problem(dataclasses.replace(drawn, name="photos"), 1, "strict")
    assert make_problem(dataclasses.replace(drawn, public=name), 1, "strict").dataset == name


def test_labels_that_differ_in_sign_are_two_classes(clip: CLIP):
    model = Classifier("gda", shots=1, backbone=clip, views=0).fit(pictures(4), [-1, 1, -1, 1])
    assert model.classes_.tolist() == [-1, 1]
    assert 0 <= model.score(pictures(4), [-1, 1, -1, 1]) <= 1


def test_a_pipe_is_an_unreadable_image(clip: CLIP, model: Classifier, tmp_path: Path):
    """Opening it would wait for a writer: a test that hangs here has failed."""
    os.mkfifo(tmp_path / "pipe.jpg")
    good = tmp_path / "good.png"
    pictures(1)[0].save(good)
    with pytest.raises(UserError, match="not a regular file"):
        model.predict([good, tmp_path / "pipe.jpg"])
    assert len(model.predict(tmp_path)) == 1
    with pytest.raises(UserError, match="not a regular file"):
        model.evaluate([good, tmp_path / "pipe.jpg"], list(model.classes_[:2]))
    with pytest.raises(UserError, match="not a regular file"):
        Classifier("gda", backbone=clip, views=0).fit([good, tmp_path / "pipe.jpg"], ["a", "b"])


def test_half_of_the_classes_keep_their_labels(clip: CLIP):
    whole = as_dataset(pictures(4), [3, 1, 2, 0])
    half = subset(whole, [2, 3])
    assert (half.names, half.labels) == (("2", "3"), (2, 3))


@pytest.mark.parametrize(
    ("X", "y", "part"),
    [
        (pictures(3), ["a", "b"], "3 images but 2 labels"),
        (pictures(2), None, "images without labels"),
        (pictures(2), ["a", "a"], "1 class ('a')"),
        ([], [], "no images"),
        (pictures(2), "ab", "a list of labels expected"),
        (pictures(1)[0], ["a"], "a list of images expected"),
        (pictures(2), ["a", None], "without a label"),
        (pictures(2), ["a", float("nan")], "without a label"),
        (pictures(2), ["cat", "Cat"], "'Cat' and 'cat'"),
        (pictures(2), ["sea_lake", "sea lake"], "'sea lake' and 'sea_lake'"),
        (pictures(2), [1, "1"], "1 and '1'"),
        (pictures(2), [[1, 0], [0, 1]], "labels that are no single values"),
        (pictures(2), np.eye(2), "labels that are no single values"),
        (pictures(2), ["cat", ""], "'' is not a readable name"),
        (pictures(2), ["cat", "do\udcffg"], "not a readable name"),
        (np.zeros((2, 8, 8, 3)) - 2, ["a", "b"], "from -2 to -2; [0, 1] or [0, 255] expected"),
        (np.zeros((2, 8, 8, 5)), ["a", "b"], "an array of shape (8, 8, 5) is no image"),
        ([1, 2], ["a", "b"], "not a int"),
        (["https://example.com/a.jpg", "b.jpg"], ["a", "b"], "is a URL"),
        ("https://example.com/photos", None, "is a URL"),
        ([b"hello", b""], ["a", "b"], "number 1: cannot read an image from 0 bytes"),
        (["nowhere.jpg", "nope.jpg"], ["a", "b"], "2 of 2 images cannot be read"),
        ("nowhere/at_all", None, "no such folder"),
    ],
)
def test_fit_refuses_what_it_cannot_learn_from(clip: CLIP, X: Any, y: Any, part: str):
    with pytest.raises(UserError) as caught:
        Classifier("dca", backbone=clip, epochs=1).fit(X, y)
    assert part in str(caught.value)


def test_every_class_needs_a_training_image(clip: CLIP):
    items = tuple(LabelledImage(picture, n) for n, picture in enumerate(pictures(2)))
    with pytest.raises(UserError, match="without training images") as caught:
        Classifier("dca", backbone=clip, epochs=1).fit(
            Dataset("some", (1, 2, 3, 4), ("ant", "bee", "cow", "doe"), train=items)
        )
    assert caught.value.details == ("3", "4")


def test_labels_beside_a_folder_are_refused(clip: CLIP, photos: Path, sample: Dataset):
    for source in (photos, str(photos), sample):
        with pytest.raises(UserError, match="labels given together"):
            Classifier(backbone=clip).fit(source, ["a"])


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"shots": 0}, "shots=None for all images"),
        ({"method": "gdaa", "shots": 0}, "unknown method 'gdaa'. Did you mean 'gda'?"),
        ({"shots": "4"}, "shots='4'"),
        ({"shots": True}, "shots=True"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"method": "dcaa"}, "Did you mean 'dca'?"),
        ({"epocs": 1}, "Did you mean 'epochs'?"),
        ({"epochs": "1"}, "epochs='1': int | None expected"),
        ({"device": "gpu"}, "device 'gpu' cannot be used"),
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"backbone": "vit-b-61"}, "Did you mean 'vit-b-16'?"),
    ],
)
def test_wrong_settings_are_said_at_fit(sample: Dataset, clip: CLIP, settings: dict[str, Any], part: str):
    with pytest.raises(UserError) as caught:
        Classifier(**{"backbone": clip, **settings}).fit(sample)
    assert part in str(caught.value)


def test_nothing_works_before_fit_and_the_error_says_so(clip: CLIP, tmp_path: Path):
    bare = Classifier(backbone=clip)
    for call in (bare.predict, bare.predict_proba, bare.score, bare.save_pretrained):
        with pytest.raises(UserError, match="not fitted"):
            call(tmp_path)


def test_an_unknown_class_in_the_test_data_is_named(model: Classifier):
    with pytest.raises(UserError, match="does not know") as caught:
        model.score(pictures(2), ["fish", "submarine"])
    assert caught.value.details == ("submarine: 1 image",)
    assert "classnames.json" in caught.value.hint


def test_a_clone_has_equal_parameters_and_no_fit(model: Classifier):
    bare = Classifier("dca", shots=2, epochs=1)
    assert clone(bare).get_params() == bare.get_params()
    assert clone(bare) is not bare
    copied = clone(Classifier("dca", shots=2, backbone="mini", epochs=1, alpha=0.5).set_params(alpha=2.0, shots=4))
    assert copied.get_params()["alpha"] == 2.0
    assert copied.shots == 4
    assert not hasattr(copied, "method_")


def test_scikit_learn_s_tools_take_a_classifier(clip: CLIP):
    selection = pytest.importorskip("sklearn.model_selection")
    given, labels = pictures(8), [4, 5] * 4
    bare = Classifier("gda", backbone=clip, views=0)
    own = selection.cross_val_score(bare, given, labels, cv=2, error_score="raise")
    theirs = selection.cross_val_score(bare, given, labels, cv=2, error_score="raise", scoring="accuracy")
    assert own.tolist() == theirs.tolist()
    search = selection.GridSearchCV(bare, {"shots": [1, 2], "rho": [0.1, 0.5]}, cv=2, error_score="raise")
    assert search.fit(given, [f"class {label}" for label in labels]).best_params_.keys() == {"shots", "rho"}


def test_a_classifier_asks_for_no_scikit_learn_itself():
    code = "import sys; from dca import Classifier; Classifier(); assert not any('sklearn' in m for m in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_the_constructor_stores_and_nothing_else():
    params = {"method": "no such", "shots": -3, "seed": "x", "backbone": "?", "device": "?", "precision": "?", "z": 1}
    params |= {"estimate": "?", "calibrate": "?"}
    assert Classifier(**params).get_params() == params
    assert "shots=-3" in repr(Classifier(**params))


class Terminal:
    """A stderr that says it is a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def test_fit_draws_bars_on_a_terminal_only(
    sample: Dataset, clip: CLIP, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    Classifier("dca", shots=1, backbone=clip, epochs=1).fit(sample)
    assert capsys.readouterr() == ("", "")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    Classifier("dca", shots=1, backbone=clip, epochs=1).fit(sample)
    assert "training" in terminal.text
    assert "epoch 1/1" in terminal.text
    shown = terminal.text
    Classifier("dca", shots=1, backbone=clip, epochs=1).fit(sample, progress=dca.core.progress.silent)
    assert terminal.text == shown
    assert capsys.readouterr().out == ""


def test_a_folder_of_pictures_is_walked_without_hidden_files(model: Classifier, photos: Path, tmp_path: Path):
    shutil.copytree(photos / "test" / "fish", tmp_path / "new" / "deep")
    (tmp_path / "new" / ".hidden.png").write_bytes(b"")
    (tmp_path / "new" / "notes.txt").write_text("no picture")
    assert len(model.predict(tmp_path / "new")) == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no images"):
        model.predict(tmp_path / "empty")


def test_every_missing_picture_is_listed(model: Classifier):
    with pytest.raises(UserError, match="no such file") as caught:
        model.predict(["one.jpg", "two.jpg"])
    assert caught.value.details == ("one.jpg", "two.jpg")
    with pytest.raises(UserError, match="no such file"):
        model.predict("x" * 5000)


def test_zero_shot_of_a_model_shares_its_classes_and_backbone(model: Classifier):
    plain = model.zero_shot()
    assert plain.clip is model.method_.clip
    assert plain.problem == model.method_.problem


def test_the_task_counts_the_images_a_class_has(sample: Dataset):
    assert make_problem(sample, 1, "strict").shots == 4


def test_a_model_without_training_is_saved_and_loaded_too(sample: Dataset, clip: CLIP, tmp_path: Path):
    plain = Classifier("zero-shot", backbone=clip).fit(sample)
    assert plain.history_ == []
    plain.save_pretrained(tmp_path / "zero.dca")
    loaded = Classifier.from_pretrained(tmp_path / "zero.dca", backbone=clip)
    given = [item.image for item in sample.test[:4]]
    assert (loaded.predict_proba(given) == plain.predict_proba(given)).all()


@pytest.mark.parametrize(
    "settings", [{"visual_tokens": 0}, {"contexts": "class"}, {"n_prompts": 6}, {"test_metric": "cosine"}]
)
def test_every_shape_of_model_is_saved_and_loaded_bit_for_bit(
    sample: Dataset, clip: CLIP, tmp_path: Path, settings: dict[str, Any]
):
    fitted = Classifier("dca", shots=2, backbone=clip, epochs=1, **settings).fit(sample)
    fitted.save_pretrained(tmp_path / "m.dca")
    loaded = Classifier.from_pretrained(tmp_path / "m.dca", backbone=clip)
    given = [item.image for item in sample.test[:4]]
    assert loaded.predict_proba(given).tobytes() == fitted.predict_proba(given).tobytes()


def test_paper_rules_take_what_a_methods_authors_took(sample: Dataset):
    whole = dataclasses.replace(sample, val=sample.test)
    for name, strict, paper in (("gda", 10, 30), ("linear_probe", 10, 10), ("dca", 0, 0)):
        use = get_method(name).validation
        for rules, count in (("strict", strict), ("paper", paper)):
            part, words = draw_training_part(whole, 1, 1, rules=rules, validation=use)
            assert len(part.val) == count
            assert words.startswith(f"{rules}: ")


def test_a_model_that_was_read_is_fitted_again_with_the_settings_it_was_given(
    sample: Dataset, clip: CLIP, tmp_path: Path
):
    """Not with the settled ones: a probed learning rate and the counted shots are results, not settings."""
    first = Classifier("dca", backbone=clip, epochs=1).fit(sample)
    assert first.method_.options.learning_rate is not None
    first.save_pretrained(tmp_path / "m.dca")
    loaded = Classifier.from_pretrained(tmp_path / "m.dca", backbone=clip)
    assert loaded.shots is None
    assert loaded.method_options == {"epochs": 1}
    again = loaded.fit(sample)
    given = [item.image for item in sample.test[:4]]
    assert again.predict_proba(given).tobytes() == first.predict_proba(given).tobytes()
