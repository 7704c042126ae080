from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import make_clip
from dca.backbones.blocks import Residual
from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.methods.base import Problem
from dca.methods.coop import CoOp, CoOpOptions
from dca.methods.summary import parameter_count
from dca.methods.tcp import TCP, TCPOptions
from oracles import towers
from oracles.images import Images
from oracles.steps import literal_logits, require_gradients, require_own_randomness, unit_images, values

CLASSES = ("cat", "dog", "a_photo", "x y z")


def build(clip: CLIP, dataset: str = "", template: str = "a photo of a {}.", **options: object) -> TCP:
    problem = Problem(names=CLASSES, shots=3, seed=1, dataset=dataset, template=template)
    return TCP.build(clip, problem, TCPOptions(**options))  # type: ignore[arg-type]


def loud(method: TCP) -> TCP:
    """Tokens and network far from zero, so that every part of the equations shows."""
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(parameter))))
    return method


def embedded(clip: CLIP, method: TCP, student: str, c: int) -> Tensor:
    """[SOS, V, student sentence, EOT] of class c, (T, W)."""
    table, tokenizer = clip.text.embedding.weight, clip.tokenizer
    words = tokenizer.encode(student.replace("{}", CLASSES[c].replace("_", " ")))
    return torch.cat([table[[tokenizer.sot_id]], method.context.double(), table[[*words, tokenizer.eot_id]]])


def written_out(clip: CLIP, method: TCP, student: str, teacher: str, block: int) -> tuple[Tensor, Tensor]:
    """t and t°, both (C, D), one class and one row at a time."""
    first, _, second = method.meta
    plain, t, t0 = towers.double(clip), [], []
    for c, name in enumerate(CLASSES):
        known = towers.encode_text(plain, towers.embed(plain, teacher.replace("{}", name.replace("_", " "))))
        hidden = first.weight.double() @ known + first.bias.double()
        hidden = hidden / (1 + (-1.702 * hidden).exp())
        Q = (second.weight.double() @ hidden + second.bias.double()).reshape(len(method.context), -1)

        def change(layer: int, x: Tensor, Q: Tensor = Q) -> Tensor:
            return torch.cat([x[:1], Q, x[1 + len(Q) :]]) if layer == block else x

        t.append(towers.encode_text(plain, embedded(plain, method, student, c), change))
        t0.append(known)
    return torch.stack(t), torch.stack(t0)


@pytest.mark.parametrize(
    ("dataset", "student", "teacher"),
    [
        ("", "{}.", "a photo of a {}."),
        ("ucf101", "person doing {}.", "a photo of a {}."),
        ("fgvc_aircraft", "{}, a type of aircraft.", "a photo of an aircraft {}."),
    ],
)
@pytest.mark.parametrize("block", [8, 1])
def test_step_and_probabilities_equal_the_equations(
    clip: CLIP, dataset: str, student: str, teacher: str, block: int
) -> None:
    images = Images((3, 2, 1, 2))
    method = loud(build(clip, dataset, block=block))
    with torch.no_grad():
        t, t0 = written_out(clip, method, student, teacher, min(block, 2))
        z = literal_logits(clip, unit_images(clip, images.pixels).double(), t)
    drift = 1 - sum(float(a @ b) for a, b in zip(t, t0, strict=True)) / 4
    expected = {"cls": towers.cross_entropy(z, images.labels), "text": 8 * drift}
    step = method.step(images.batch())
    assert values(step) == pytest.approx(expected, abs=1e-5, rel=1e-5)
    torch.testing.assert_close(step.probabilities.double(), z.softmax(-1), atol=1e-5, rtol=0)
    method.finish(images)
    method.build_head()
    got = method.classify(method.encode(images.pixels)).double()
    torch.testing.assert_close(got, z.softmax(-1), atol=1e-5, rtol=0)


def test_trained_parameters_on_vit_b_16() -> None:
    assert parameter_count(TCP) == 331_904
    assert parameter_count(TCP, classes=7) == 331_904


def test_tokens_that_replace_themselves_leave_coop(clip: CLIP, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q_c set to what block 2 would see anyway: the text features of CoOp with TCP's sentence."""
    method = loud(build(clip, "dtd"))
    plain, incoming = towers.double(clip), []

    def catch(layer: int, x: Tensor) -> Tensor:
        if layer == 2:
            incoming.append(x[1:5])
        return x

    with torch.no_grad():
        for c in range(len(CLASSES)):
            towers.encode_text(plain, embedded(plain, method, "{} texture.", c), catch)
    monkeypatch.setattr(method, "class_tokens", lambda: torch.stack(incoming).float())
    coop = CoOp.build(clip, method.problem, CoOpOptions(n_tokens=4, suffix=" texture."))
    with torch.no_grad():
        coop.context.copy_(method.context)
    torch.testing.assert_close(method.encode_text(), coop.encode_text(), atol=1e-5, rtol=0)


def test_what_the_tokens_replace_does_not_matter(clip: CLIP, monkeypatch: pytest.MonkeyPatch) -> None:
    method = loud(build(clip))
    expected = method.encode_text().detach()
    block = list(clip.text.blocks)[1]
    finish, disturbed = block.add_attention_and_mlp, slice(1, 5)

    def noisy(x: Tensor, *more: Any) -> Residual:
        output = finish(x, *more).total().clone()
        output[disturbed] = torch.randn(output[disturbed].shape, generator=torch.Generator().manual_seed(0))
        return Residual(output)

    monkeypatch.setattr(block, "add_attention_and_mlp", noisy)  # the last block before the tokens come in
    torch.testing.assert_close(method.encode_text().detach(), expected, atol=1e-6, rtol=0)
    disturbed = slice(5, 6)  # the first row behind them does matter
    assert (method.encode_text().detach() - expected).abs().max() > 1e-2


def test_the_context_acts_through_the_blocks_before(clip: CLIP) -> None:
    for block, acts in ((2, True), (0, False)):
        method = loud(build(clip, block=block))
        before = method.encode_text().detach()
        with torch.no_grad():
            method.context.copy_(method.context.flip(0))
        change = float((method.encode_text().detach() - before).abs().max())
        assert (change > 1e-4) == acts


def test_gradients_reach_context_and_network() -> None:
    clip = make_clip()
    method = build(clip)
    require_gradients(method, clip, Images((2, 1, 1, 1)))
    require_own_randomness(TCP, clip, method.problem)


def test_the_recipe_and_the_sentences_follow_the_dataset(clip: CLIP) -> None:
    chosen = build(clip).options
    assert (chosen.epochs, chosen.batch_size, chosen.learning_rate) == (50, 32, 0.002)
    assert (chosen.optimizer, chosen.adam_eps, chosen.weight_decay) == ("adam", 1e-3, 5e-4)
    assert [build(clip, name).options.epochs for name in ("imagenet", "sun397", "dtd")] == [25, 25, 50]
    own = build(clip, "oxford_pets", "a photo of a {}, a type of pet.")
    told = build(clip, sentence="{}, a type of pet.", teacher_sentence="a photo of a {}, a type of pet.")
    assert own.name_ids == told.name_ids
    assert torch.equal(own.teacher, told.teacher)
    assert build(clip, "stanford_cars").name_ids == build(clip, sentence="{}, a type of car").name_ids
    dtd = build(clip, teacher_sentence="a photo of a {}, a type of texture.")
    assert torch.equal(build(clip, "dtd").teacher, dtd.teacher)
    own = build(clip, "dtd", sentence="{}!")
    assert own.name_ids == build(clip, sentence="{}!").name_ids != build(clip, "dtd").name_ids


def test_another_dataset_is_asked_with_its_own_sentences(clip: CLIP) -> None:
    trained, there = loud(build(clip, "oxford_pets")), loud(build(clip, "dtd"))
    trained.finish(Images((1, 1, 1, 1)))
    trained.build_head()
    moved = trained.retarget(there.problem, (None,) * len(CLASSES))
    torch.testing.assert_close(moved.text_features, there.encode_text().detach(), atol=1e-6, rtol=0)


def test_sentences_without_a_place_for_the_name_are_refused() -> None:
    with pytest.raises(UserError, match="once, for the class name"):
        TCPOptions(sentence="a photo")


def test_the_finished_model_can_measure_mahalanobis_distances(clip: CLIP) -> None:
    images = Images((3, 3, 3, 3))
    method = build(clip, test_metric="mahalanobis")
    method.finish(images)
    method.build_head()
    assert method.train_features.shape == (12, 16)
    probabilities = method.classify(method.encode(images.pixels))
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(12))
