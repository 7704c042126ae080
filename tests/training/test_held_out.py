"""Predictions for training images by models that have not seen them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.core import seeds
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset, LabelledImage
from dca.features.store import FeatureStore
from dca.images import decode
from dca.methods.base import HeldOutPredictions
from dca.methods.registry import get_method
from dca.stats.folds import assign_folds
from dca.training import held_out as module
from dca.training.context import FitContext
from dca.training.evaluate import predict_probabilities
from dca.training.fit import fit
from dca.training.held_out import PREDICTED, NothingHeldOutError, predict_held_out
from dca.training.resume import FOLDS, METRICS, STATE
from dca.training.session import Session
from dca.training.support import ImageSupport

# A method over frozen features that has no leave-one-out of its own.
FOLDED: dict[str, Any] = {"views": 0, "shrinkage": "oas"}


def pattern(seed: int) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 255, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((40, 40), Image.Resampling.BICUBIC)


def drawn(counts: tuple[int, ...], **parts: Any) -> Dataset:
    items = tuple(LabelledImage(pattern(100 * y + n), y) for y, count in enumerate(counts) for n in range(count))
    names = ("cat", "dog", "x", "a photo")[: len(counts)]
    return Dataset("drawn", names, names, train=items, **parts)


@pytest.fixture(scope="module")
def clip() -> CLIP:
    return make_clip()


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(device="cpu", store=FeatureStore(tmp_path / "store"))


def held(
    name: str, source: Dataset, session: Session, clip: CLIP, folder: Path | None = None, **options: Any
) -> HeldOutPredictions:
    kind = get_method(name)
    chosen = kind.parse_options(options)
    method, _ = fit(kind, chosen, source, FitContext(session=session, encoder=clip, seed=1))
    return predict_held_out(method, chosen, source, FitContext(session=session, encoder=clip, seed=1, folder=folder))


def test_each_fold_is_predicted_by_a_fit_on_the_others(session: Session, clip: CLIP):
    """Literally: one fit per fold, and the folds as `assign_folds` has them; also with validation images."""
    source = drawn((4, 2, 1), val=tuple(LabelledImage(pattern(500 + n), n % 3) for n in range(6)))
    found = held("gda", source, session, clip, **FOLDED)
    assert found.how == "4-fold cross-validation"
    labels = np.array([item.label for item in source.train])
    order = torch.randperm(len(labels), generator=seeds.generator(1, "folds")).numpy()
    left_out = assign_folds(labels, np.arange(len(labels)), order, 4)
    kind = get_method("gda")
    whole, _ = fit(kind, kind.parse_options(FOLDED), source, FitContext(session=session, encoder=clip, seed=1))
    alpha = float(whole.alpha)  # type: ignore[arg-type]  # folds keep what the search found
    options = kind.parse_options({**FOLDED, "alpha": alpha})
    for i, item in enumerate(source.train):
        each = []
        for out in left_out[left_out[:, i]]:
            rest = tuple(other for other, left in zip(source.train, out, strict=True) if not left)
            part = dataclasses.replace(source, train=rest)
            method, _ = fit(kind, options, part, FitContext(session=session, encoder=clip, seed=1))
            (p,) = predict_probabilities([method], [item.image], session)
            each.append(p[0])
        assert len(each) == {0: 1, 1: 2, 2: 0}[item.label], "those of a rare class are left out again"
        if each:
            assert found.probabilities[i] == pytest.approx(np.mean(each, axis=0), abs=1e-3)
    assert found.known.tolist() == [y != 2 for y in labels]


def test_a_method_that_knows_its_held_out_predictions_is_not_fitted_again(
    session: Session, clip: CLIP, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "fit", lambda *_, **__: pytest.fail("fitted again"))
    assert held("zero_shot", drawn((2, 2)), session, clip).known.all()
    assert held("linear_probe", drawn((2, 2)), session, clip, c=0.3).how == "approximate leave-one-out"


def test_near_copies_are_never_on_both_sides(session: Session, clip: CLIP, monkeypatch: pytest.MonkeyPatch):
    """One image four times, at other sizes: a model that had seen one of them would know the others."""
    one = pattern(1)
    copies = tuple(LabelledImage(one.resize((size, size)), 0) for size in (40, 38, 36, 34))
    others = tuple(LabelledImage(pattern(9 + n), n % 2) for n in range(6))
    source = dataclasses.replace(drawn((1, 1)), train=(*copies, *others))
    images = ImageSupport(source.train, session, clip, 1)
    assert images.groups.tolist() == [0, 0, 0, 0, 1, 2, 3, 4, 5, 6]
    trained: list[set[int]] = []

    def watched(kind: Any, chosen: Any, part: Dataset, *rest: Any, **more: Any) -> Any:
        trained.append({source.train.index(item) for item in part.train})
        return fit(kind, chosen, part, *rest, **more)

    monkeypatch.setattr(module, "fit", watched)
    held("linear_probe", source, session, clip, c=0.3)
    assert len(trained) == 4
    assert all({0, 1, 2, 3} <= rows or not {0, 1, 2, 3} & rows for rows in trained)


def test_thumbnails_are_decoded_once_per_session(session: Session, clip: CLIP, monkeypatch: pytest.MonkeyPatch):
    source = drawn((2, 2))
    first = ImageSupport(source.train, session, clip, 1).groups
    monkeypatch.setattr(decode, "_open", lambda image: pytest.fail("decoded"))
    assert ImageSupport(source.train, session, clip, 1).groups.tolist() == first.tolist()


@pytest.mark.parametrize("name", ["gda", "linear_probe", "tip_adapter"])
def test_one_image_per_class_leaves_nothing_to_hold_out(session: Session, clip: CLIP, name: str):
    with pytest.raises(NothingHeldOutError, match="every class has one training image"):
        held(name, drawn((1, 1, 1)), session, clip)


def test_progress_names_the_fold(session: Session, clip: CLIP):
    said: list[tuple[str, str]] = []
    watched = session.with_progress(lambda stage, done, total, note: said.append((stage, note)))
    held("coop", drawn((2, 2)), watched, clip, epochs=1, warmup_epochs=0)
    notes = [note for stage, note in said if stage == "validating"]
    assert any(note.startswith("fold 2/2  training  epoch 1/1  loss") for note in notes)


TRAINING = {"epochs": 2, "warmup_epochs": 0, "n_tokens": 2}


def test_finished_folds_are_not_fitted_again(session: Session, clip: CLIP, tmp_path: Path):
    source, place = drawn((3, 3)), tmp_path / "run"
    straight = held("coop", source, session, clip, **TRAINING)

    def stop(stage: str, done: int, total: int, note: str) -> None:
        if note.startswith("fold 2/3  training  epoch 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        held("coop", source, session.with_progress(stop), clip, place_of(place), **TRAINING)
    first, second = place / FOLDS / "1-of-3", place / FOLDS / "2-of-3"
    assert sorted(path.name for path in first.iterdir()) == [METRICS, PREDICTED], "the state is gone"
    assert (second / STATE).is_file(), "the first epoch of the second fold is kept"
    notes: list[str] = []
    watched = session.with_progress(lambda stage, done, total, note: notes.append(note))
    resumed = held("coop", source, watched, clip, place, **TRAINING)
    assert resumed.probabilities.tobytes() == straight.probabilities.tobytes()
    assert not any(note.startswith(("fold 1/3", "fold 2/3  training  epoch 1")) for note in notes)
    assert any(note.startswith("fold 2/3  training  epoch 2") for note in notes)


def place_of(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_damaged_fold_or_one_of_other_images_is_named_with_the_way_out(session: Session, clip: CLIP, tmp_path: Path):
    place = place_of(tmp_path / "run")
    held("gda", drawn((2, 2)), session, clip, place, **FOLDED)
    other = dataclasses.replace(drawn((2, 2)), train=tuple(LabelledImage(pattern(900 + n), n // 2) for n in range(4)))
    with pytest.raises(UserError, match="predictions of other images") as caught:
        held("gda", other, session, clip, place, **FOLDED)
    assert "delete" in caught.value.hint
    file = place / FOLDS / "1-of-2" / PREDICTED
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(UserError, match="1-of-2: the interrupted cross-validation cannot be continued"):
        held("gda", drawn((2, 2)), session, clip, place, **FOLDED)


@pytest.mark.parametrize("name", ["gda", "tip_adapter"])
def test_exact_leave_one_out_is_a_fit_without_the_image(name: str, session: Session, clip: CLIP):
    """Literally, with what was searched on validation images held fixed."""
    source = drawn((4, 3, 1), val=tuple(LabelledImage(pattern(500 + n), n % 3) for n in range(6)))
    kind = get_method(name)
    chosen = kind.parse_options({"views": 2})
    whole, _ = fit(kind, chosen, source, FitContext(session=session, encoder=clip, seed=1))
    found = held(name, source, session, clip, views=2)
    assert found.how == "leave-one-out"
    for i, item in enumerate(source.train):
        if item.label == 2:
            assert np.isnan(found.probabilities[i]).all()
            continue
        part = dataclasses.replace(source, train=source.train[:i] + source.train[i + 1 :])
        again, _ = fit(kind, whole.options_for_folds(chosen), part, FitContext(session=session, encoder=clip, seed=1))
        (p,) = predict_probabilities([again], [item.image], session)
        # A fitted GDA keeps its weights in float32.
        assert found.probabilities[i] == pytest.approx(p[0], abs=1e-3 if name == "gda" else 1e-5)
