"""Methods on the small twins of RN50 and SigLIP 2: fitted, saved, loaded, exported; and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dca import Classifier, export_onnx
from dca.backbones.encoder import Ability
from dca.backbones.loading import load_encoder
from dca.backbones.siglip import SigLIP
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset
from dca.methods.registry import get_method, methods_for
from dca.model.conformance import short_options
from helpers.families import make_siglip, save_resnet, save_siglip

Backbones = dict[str, Path]
# Methods of every kind: closed form, cache of features, text prompts, prompts with visual tokens, layers.
METHODS = [
    pytest.param("closed_form", {}, id="closed_form"),
    pytest.param("dca", {"epochs": 1}, id="dca"),
    *(
        pytest.param(name, {"epochs": 1}, id=name, marks=pytest.mark.slow)
        for name in ("tip_adapter_f", "coop", "clip_lora")
    ),
]
# How far an exported program's probabilities may be from torch's.
CLOSE = 1e-4


@pytest.fixture(scope="module")
def backbones(tmp_path_factory: pytest.TempPathFactory) -> Backbones:
    folder = tmp_path_factory.mktemp("families")
    return {"resnet": save_resnet(folder / "resnet"), "siglip": save_siglip(folder / "siglip")}


def fit(backbone: Path, method: str, sample: Dataset, **options: Any) -> Classifier:
    return Classifier(method, backbone=backbone, device="cpu", **options).fit(sample)


@pytest.mark.parametrize("family", ["resnet", "siglip"])
@pytest.mark.parametrize(("name", "options"), METHODS)
def test_it_is_fitted_saved_loaded_and_exported(
    tmp_path: Path, backbones: Backbones, sample: Dataset, family: str, name: str, options: dict[str, Any]
) -> None:
    from dca.export.predict import Model

    if family == "resnet" and name == "clip_lora":
        options = {**options, "towers": "text"}
    model = fit(backbones[family], name, sample, **options)
    images = [item.image for item in sample.test[:6]]
    found = model.predict_proba(images)
    assert np.ptp(found, axis=0).max() > 1e-3  # so that the comparisons below can fail
    model.save_pretrained(tmp_path / "model.dca")
    again = Classifier.from_pretrained(tmp_path / "model.dca", backbone=backbones[family])
    np.testing.assert_allclose(again.predict_proba(images), found, atol=1e-6)
    export_onnx(again, tmp_path / "out")
    files = []
    for number, image in enumerate(images):
        files.append(tmp_path / f"{number}.png")
        image.save(files[-1])
    np.testing.assert_allclose(Model(tmp_path / "out").predict(files), found, atol=CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["resnet", "siglip"])
def test_every_method_that_runs_on_it_is_fitted(backbones: Backbones, sample: Dataset, family: str) -> None:
    encoder = load_encoder(backbones[family])
    for name in methods_for(encoder):
        kind = get_method(name)
        options = short_options(kind)
        if family == "resnet" and name in ("clip_lora", "clip_svd"):
            options["towers"] = "text"
        model = Classifier(name, backbone=encoder, device="cpu", **options).fit(sample)
        probabilities = model.predict_proba([item.image for item in sample.test[:3]])
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5, err_msg=name)


def test_dca_says_that_a_resnet_takes_no_tokens(backbones: Backbones, sample: Dataset) -> None:
    model = fit(backbones["resnet"], "dca", sample, epochs=1)
    (note,) = model.method_.notes()
    assert "takes no tokens" in note
    assert model.method_.options.visual_tokens == 0
    assert dict(model.method_.named_parameters())["visual.tokens"].numel() == 0
    assert len(model.method_.train_features)  # the covariance head is there
    on_siglip = fit(backbones["siglip"], "dca", sample, epochs=1)
    assert on_siglip.method_.notes() == []
    assert len(dict(on_siglip.method_.named_parameters())["visual.tokens"]) == 16


@pytest.mark.parametrize(
    ("family", "name", "options", "message", "way"),
    [
        ("resnet", "clip_lora", {}, "an image tower whose layers can be changed", "towers='text'"),
        ("resnet", "clip_svd", {}, "an image tower whose layers can be changed", "towers='text'"),
        ("resnet", "maple", {}, "an image tower that takes learned tokens", "methods that run on it: "),
        ("resnet", "vpt", {}, "an image tower that takes learned tokens", "methods that run on it: "),
        ("resnet", "two_sfs", {}, "an image tower whose layers can be changed", "methods that run on it: "),
        ("siglip", "prolip", {}, "an image tower that ends with a projection", "methods that run on it: "),
        ("siglip", "gallop", {}, "local features of an image's patches", "methods that run on it: "),
    ],
)
def test_what_cannot_run_is_refused_with_what_can(
    backbones: Backbones, sample: Dataset, family: str, name: str, options: dict[str, Any], message: str, way: str
) -> None:
    with pytest.raises(UserError) as caught:
        fit(backbones[family], name, sample, **options)
    assert message in str(caught.value)
    assert way in str(caught.value)


@pytest.mark.parametrize("family", ["resnet", "siglip"])
def test_the_end_of_either_tower_is_trained_by_cross_modal(backbones: Backbones, sample: Dataset, family: str) -> None:
    model = fit(backbones[family], "cross_modal", sample, form="partial", epochs=1)
    assert any(name.startswith("end.") for name, _ in model.method_.named_parameters())
    assert model.predict_proba([sample.test[0].image]).shape == (1, 10)


def test_tau_is_the_scale_and_the_bias_changes_no_answer(sample: Dataset) -> None:
    import torch

    first, second = make_siglip(), make_siglip()
    with torch.no_grad():
        second.logit_bias.fill_(-10.0)
    models = [
        Classifier("zero_shot", backbone=one, device="cpu", calibrate=False).fit(sample) for one in (first, second)
    ]
    images = [item.image for item in sample.test[:3]]
    np.testing.assert_array_equal(models[0].predict_proba(images), models[1].predict_proba(images))
    f = torch.nn.functional.normalize(first.encode_image(images), dim=-1)
    t = torch.nn.functional.normalize(
        first.encode_text([f"a photo of a {n}." for n in models[0].method_.problem.names]), dim=-1
    )
    expected = (first.logit_scale.exp() * f @ t.T).softmax(dim=-1)
    np.testing.assert_allclose(models[0].predict_proba(images), expected.numpy(), atol=1e-5)


def test_explanations_have_a_relevance_per_position(backbones: Backbones, sample: Dataset) -> None:
    from dca.model.explain import explain

    for family, side in (("resnet", 2), ("siglip", 4)):
        model = fit(backbones[family], "closed_form", sample)
        assert explain(model, sample.test[0].image).relevance.shape == (side, side)


def test_each_family_says_what_it_can_do(backbones: Backbones) -> None:
    resnet, siglip = (load_encoder(path) for path in backbones.values())
    assert isinstance(siglip, SigLIP)
    assert Ability.TEXT_PROMPTS in resnet.abilities & siglip.abilities
    assert Ability.IMAGE_TOKENS in siglip.abilities - resnet.abilities
