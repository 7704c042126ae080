from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from dca import list_methods
from dca.backbones.clip import CLIP
from dca.methods.base import Method, Problem
from dca.model.prompt_words import _prompt_angles, describe_prompts

NAMES = ("cat", "dog", "photo")
# Methods that learn vectors in the place of words.
LEARNERS = {"blend", "cocoop", "coop", "dapt", "dca", "gallop", "lamm", "maple", "promptsrc", "tcp"}


def built(clip: CLIP, name: str, **options: object) -> Method:
    kind = list_methods()[name]
    return kind.build(clip, Problem(names=NAMES, shots=1), kind.parse_options(options))


def test_every_method_that_learns_prompts_shows_them(clip: CLIP) -> None:
    shown = {name for name in list_methods() if len(built(clip, name).text_contexts())}
    assert shown == LEARNERS
    for name in shown:
        for context in built(clip, name).text_contexts():
            assert context.shape[-1] == clip.config.text.width
            assert context.dim() in (2, 3)


def test_words_that_a_prompt_starts_from_are_its_nearest(clip: CLIP) -> None:
    method = built(clip, "coop", phrase="photo of cat")
    method.text_features = method.encode_text().detach()
    found = describe_prompts(method, NAMES)
    assert found is not None
    (prompt,) = found.prompts
    assert prompt.sentence == "photo of cat"
    assert [words[0].distance for words in prompt.tokens] == pytest.approx([0, 0, 0], abs=1e-5)
    assert all(a.distance <= b.distance for words in prompt.tokens for a, b in pairwise(words))
    assert found.typical_distance > 0
    assert found.angles == ()
    assert found.to_dict()["prompts"][0]["tokens"][0][0]["text"] == "photo"


def test_prompts_per_class_are_named_by_class(clip: CLIP) -> None:
    method = built(clip, "coop", phrase="photo", contexts="class")
    method.text_features = method.encode_text().detach()
    found = describe_prompts(method, ["a", "b", "c"])
    assert found is not None
    assert [prompt.name for prompt in found.prompts] == ["a", "b", "c"]


def test_a_method_without_prompts_has_none(clip: CLIP) -> None:
    assert describe_prompts(built(clip, "gda"), NAMES) is None


def test_angles_are_means_over_classes() -> None:
    def unit(degrees: float) -> list[float]:
        return [math.cos(math.radians(degrees)), math.sin(math.radians(degrees))]

    features = torch.tensor([[unit(0), unit(0)], [unit(30), unit(60)]])
    assert _prompt_angles(features)[0] == pytest.approx((0, 45), abs=1e-4)
    assert _prompt_angles(features[:1]) == ()
