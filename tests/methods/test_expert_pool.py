"""The closed form over several encoders: one product of experts for each, weighed together."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from dca import CLIP, Classifier, Session
from dca.backbones.pool import Pool
from dca.datasets.dataset import Dataset
from dca.methods.closed_form import ClosedForm
from dca.methods.shared.conformal import ConformalPredictor, LogitsWithoutEach
from dca.methods.shared.experts import TextGaussian
from dca.methods.shared.product_of_experts import (
    FULL_GAIN,
    LEAST_WEIGHT,
    MOST_LABELS,
    ExpertPool,
    Experts,
    FixedHyperparameters,
    LabelReader,
    class_weights,
    held_out_logits,
    refit_in_folds,
    select_hyperparameters,
    text_gain,
    weigh_by_zero_shot,
)
from helpers.colour_encoder import ColourEncoder

SIZES = (12, 20)


def unit(*shape: int, seed: int) -> Tensor:
    drawn = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return F.normalize(drawn, dim=-1)


def make_pool(
    counts: tuple[int, ...] = (5, 5, 5),
    noise: float = 1.0,
    fixed: FixedHyperparameters | None = None,
    text: float = 0.5,
) -> ExpertPool:
    """Two encoders, of which the first knows texts. noise: of the images; text: of the texts."""
    C, labels = len(counts), torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    parts = []
    for seed, D in enumerate(SIZES):
        centers = unit(C, D, seed=seed)
        x = F.normalize(centers[labels] + noise * unit(len(labels), D, seed=10 + seed), dim=-1)
        texts = F.normalize(centers + text * unit(C, D, seed=20), dim=-1) if seed == 0 else torch.zeros(C, D)
        gaussian = TextGaussian.from_features(x, labels, texts)
        parts.append(Experts.build(gaussian, 20.0, fixed or FixedHyperparameters(), width=2.0, most=100))
    return ExpertPool(tuple(parts))


def test_one_encoder_has_nothing_to_weigh() -> None:
    (first, _) = make_pool().parts
    assert ExpertPool((first,)).select() == (select_hyperparameters(first),)


def test_the_weights_have_the_least_log_loss_of_held_out_images() -> None:
    """A literal search over a fine grid finds no better pair, with labels smoothed as the scales' are."""
    pool = make_pool((6, 5, 7), noise=1.4)
    alone = [select_hyperparameters(part) for part in pool.parts]
    weights = [own.gaussian / one.gaussian for own, one in zip(pool.select(), alone, strict=True)]
    logits = [held_out_logits(*pair) for pair in zip(pool.parts, alone, strict=True)]
    N, C = logits[0].shape
    targets = (1 - 1 / (N + 2)) * F.one_hot(pool.labels, C).double() + 1 / (N + 2) / C

    def loss(a: float, b: float) -> float:
        each = -(targets * (a * logits[0] + b * logits[1]).log_softmax(dim=-1)).sum(dim=-1)
        return float(each @ class_weights(pool.labels))

    best = min(itertools.product(np.linspace(0, 2, 81), repeat=2), key=lambda pair: loss(*pair))
    assert weights == pytest.approx(best, abs=0.03)
    assert loss(*weights) <= loss(*best) + 1e-9


def test_head_and_held_out_predictions_are_sums_over_the_encoders() -> None:
    pool = make_pool()
    selected = pool.select()
    x, head = pool.features, pool.make_head(selected, torch.float64)
    parts = [part.gaussian.x for part in pool.parts]
    expected = sum(one.logits(own) for one, own in zip(head.heads, parts, strict=True))
    assert torch.allclose(head.logits(x), expected)
    assert torch.allclose(head.logits(x / 2**0.5), expected)  # of unit features of the whole pool
    held = sum(held_out_logits(part, own) for part, own in zip(pool.parts, selected, strict=True))
    assert torch.allclose(pool.held_out_logits(selected), held)


def test_scales_that_are_set_are_not_weighed() -> None:
    pool = make_pool(fixed=FixedHyperparameters(scales=(2.0, 0.0, 0.0)))
    assert [(own.gaussian, own.text, own.kernel) for own in pool.select()] == [(2.0, 0.0, 0.0)] * 2


@pytest.mark.parametrize("noise", [0.05, 3.0])
def test_at_one_image_per_class_texts_that_say_nothing_weigh_less(noise: float) -> None:
    pool = make_pool((1,) * 6, text=noise)
    first, _ = pool.parts
    gain, _ = text_gain(first.zero_shot, first.labels)
    value = min(max(gain / FULL_GAIN, LEAST_WEIGHT), 1.0)
    assert weigh_by_zero_shot(pool.parts) == pytest.approx([value / (1 + value), 1 / (1 + value)])
    assert (value == 1) == (noise < 1)
    alone = [select_hyperparameters(part) for part in pool.parts]
    found = [own.gaussian / one.gaussian for own, one in zip(pool.select(), alone, strict=True)]
    assert found == pytest.approx(weigh_by_zero_shot(pool.parts))


def test_prediction_sets_come_from_models_without_each_image() -> None:
    """The losses of the pool are those of the summed logits, for every image that is left out."""
    pool = make_pool()
    selected, new = pool.select(), torch.cat([unit(4, D, seed=30 + D) for D in SIZES], dim=-1)
    found = ConformalPredictor(pool, selected).losses_without_each(new)
    every = torch.arange(len(pool.labels))
    total = torch.zeros(4, len(every), 3, dtype=torch.float64)
    for part, own, x in zip(pool.parts, selected, pool.split(new), strict=True):
        total += LogitsWithoutEach.from_experts(part, own, every)(x)
    assert torch.allclose(found, -total.log_softmax(dim=-1), atol=1e-9)


def test_refits_keep_the_choice_where_a_fold_takes_a_vote_away() -> None:
    """Classes of two images have one left in a fold: k would be chosen by the larger classes alone."""
    pool = make_pool((6, 6, 2, 2))
    found, selected = refit_in_folds(pool, pool.source.groups), pool.select()
    expected = torch.zeros_like(found.probabilities)
    for out in torch.from_numpy(found.left_out):
        part = pool.take((~out).nonzero()[:, 0])
        assert set(part.labels[part.source.voters].tolist()) == {0, 1}
        assert part.select() != selected
        expected[out] += part.make_head(selected, torch.float64)(pool.features[out])
    assert torch.allclose(found.probabilities, expected / expected.sum(dim=-1, keepdim=True))


def test_names_are_read_through_the_most_probable_labels() -> None:
    reader = LabelReader(4 * unit(9, 12, seed=1), unit(9, seed=2), unit(9, 6, seed=3), unit(3, 6, seed=4), 20.0)
    for x, found in zip(unit(5, 12, seed=5), reader.logits(unit(5, 12, seed=5)), strict=True):
        scores = [float(w @ x + b) for w, b in zip(reader.weight, reader.bias, strict=True)]
        total = sum(map(math.exp, scores))
        best = sorted(range(9), key=lambda n: -scores[n])[:MOST_LABELS]
        text = sum(math.exp(scores[n]) / total * reader.label_text[n] for n in best)
        assert isinstance(text, Tensor)
        expected = [20 * float(text @ t / text.norm()) for t in reader.text]
        assert found.tolist() == pytest.approx(expected)


@pytest.fixture(scope="module")
def pool(clip: CLIP) -> Pool:
    return Pool([clip, ColourEncoder(labels=("cat", "dog", "oak", "sea", "car", "sky"))])


@pytest.fixture(scope="module")
def model(pool: Pool, sample: Dataset) -> Classifier:
    return Classifier(backbone=pool, device="cpu").fit(sample)


def test_a_model_over_a_pool_says_what_one_over_an_encoder_says(model: Classifier, sample: Dataset) -> None:
    images = [item.image for item in sample.test]
    details = model.predict_details(images, coverage=0.8)
    assert details.p_values is not None
    assert details.probabilities.shape == (len(images), 10)
    assert ((details.p_values > 0) & (details.p_values <= 1)).all()
    assert details.sets is not None
    assert all(details.sets)
    assert model.estimate_ is not None
    assert model.estimate_.zero_shot_accuracy is not None
    assert model.predict(images[0], reject=0.05) in (*model.classes_, "none of these")


def test_a_saved_model_names_its_encoders_and_predicts_the_same(
    model: Classifier, pool: Pool, sample: Dataset, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path / "m")
    again = Classifier.from_pretrained(tmp_path / "m", backbone=pool, device="cpu")
    images = [item.image for item in sample.test]
    assert np.array_equal(again.predict_proba(images), model.predict_proba(images))
    assert isinstance(again.method_, ClosedForm)
    (reader,) = [part.reader for part in again.method_.experts.parts if part.reader is not None]
    assert len(reader.bias) == 6


def test_classes_of_a_pool_are_added_removed_and_renamed(model: Classifier, sample: Dataset) -> None:
    new = [Image.new("RGB", (40, 40), (200, n * 30, 0)) for n in range(3)]
    more = model.add_class("lava", new)
    assert more.predict(new[0]) == "lava"
    fewer = more.remove_class("lava")
    images = [item.image for item in sample.test]
    assert np.allclose(fewer.predict_proba(images), model.predict_proba(images), atol=1e-6)
    label = str(model.classes_[0])
    assert "other" in model.rename_class(label, "other").classes_


@pytest.mark.parametrize("method", ["gda", "linear_probe", "tip_adapter", "tip_adapter_f"])
def test_methods_over_image_features_run_without_text_and_on_pools(method: str, pool: Pool, sample: Dataset) -> None:
    options = {} if method == "linear_probe" else {"views": 0}
    options |= {"epochs": 1, "train_views": 1} if method == "tip_adapter_f" else {}
    for backbone in (ColourEncoder(), pool):
        fitted = Classifier(method, backbone=backbone, device="cpu", **options).fit(
            sample, session=Session(device="cpu")
        )
        probabilities = fitted.predict_proba([item.image for item in sample.train])
        own = probabilities[np.arange(len(sample.train)), [item.label for item in sample.train]]
        assert np.allclose(probabilities.sum(axis=1), 1)
        assert own.mean() > 0.105  # of ten classes


def test_an_encoder_without_text_has_no_zero_shot_beside_it(sample: Dataset) -> None:
    fitted = Classifier(backbone=ColourEncoder(), device="cpu").fit(sample)
    assert fitted.estimate_ is not None
    assert fitted.estimate_.zero_shot_accuracy is None
