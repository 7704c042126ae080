"""Zero-shot CLIP and its ensembles from the equations, one number at a time."""

from __future__ import annotations

import pytest

from dca.backbones.clip import CLIP
from dca.methods.base import Problem
from dca.methods.registry import get_method
from dca.methods.shared.frozen_features import SEVEN_TEMPLATES, encode_class_texts, unit_mean
from dca.methods.zero_shot import ZeroShot, ZeroShotOptions
from oracles.frozen import dot, mean_of, softmax, unit
from oracles.images import Images

CLASSES = ("cat", "red_fox", "a photo")
OWN = "{}, a type of animal."


def written(clip: CLIP, templates: tuple[str, ...]) -> list[list[float]]:
    """Of each class: the mean of the unit features of its sentences, made a unit vector."""
    features = []
    for name in ("cat", "red fox", "a photo"):
        rows = [clip.encode_text([template.replace("{}", name)])[0].double().tolist() for template in templates]
        features += unit([mean_of(unit(rows))])
    return features


@pytest.mark.parametrize(
    ("options", "templates"),
    [
        ({}, (OWN,)),
        ({"templates": ("a {}.", "two {}, or more.")}, ("a {}.", "two {}, or more.")),
        ({"ensemble": "seven"}, SEVEN_TEMPLATES),
        ({"ensemble": "seven", "templates": ("a {}.",)}, ("a {}.",)),
    ],
)
@pytest.mark.parametrize("dataset", ["", "imagenet"])
def test_probabilities_equal_the_equations(
    clip: CLIP, options: dict[str, object], templates: tuple[str, ...], dataset: str
) -> None:
    images, problem = Images((2, 1, 1)), Problem(names=CLASSES, shots=1, dataset=dataset, template=OWN)
    method = ZeroShot.build(clip, problem, ZeroShotOptions(**options))  # type: ignore[arg-type]
    method.finish()
    method.build_head()
    text = written(clip, templates)
    got = method.classify(method.encode(images.pixels)).tolist()
    for row, f in zip(got, unit(clip.encode_image(images.pixels).double().tolist()), strict=True):
        assert row == pytest.approx(softmax([clip.tau * dot(f, t) for t in text]), abs=1e-5)


@pytest.mark.parametrize("name", ["tip_adapter", "tip_adapter_f", "gda", "cross_modal", "clap"])
def test_methods_beside_zero_shot_have_its_sentences_and_on_imagenet_an_ensemble(clip: CLIP, name: str) -> None:
    kind = get_method(name)
    for dataset, templates, expected in (
        ("", (), (OWN,)),
        ("imagenet", (), kind.imagenet_templates),  # type: ignore[attr-defined]
        ("imagenet", ("a {}.",), ("a {}.",)),
    ):
        problem = Problem(names=CLASSES, shots=1, dataset=dataset, template=OWN)
        method = kind.build(clip, problem, kind.Options(templates=templates))  # type: ignore[call-arg]
        texts = method.texts()  # type: ignore[operator]
        assert texts.shape[0] == len(expected)
        for row, t in zip(unit_mean(texts).tolist(), written(clip, tuple(expected)), strict=True):
            assert row == pytest.approx(t, abs=1e-5)


def test_the_published_ensembles(clip: CLIP) -> None:
    assert len(SEVEN_TEMPLATES) == 7
    assert len(get_method("clap").imagenet_templates) == 8  # type: ignore[attr-defined]
    problem = Problem(names=CLASSES, shots=1, template=OWN)
    assert encode_class_texts(clip, problem).shape == (1, 3, clip.config.embed_dim)


def test_its_predictions_are_held_out_as_they_are(clip: CLIP) -> None:
    images = Images((2, 1, 1))
    method = ZeroShot.for_problem(clip, Problem(names=CLASSES, shots=1))
    expected = method.classify(method.encode(images.pixels)).detach().double().numpy()
    method.temperature = 3.0
    held = method.predict_held_out(images)
    assert held.known.all()
    assert held.probabilities == pytest.approx(expected, abs=1e-6), "without the temperature"
