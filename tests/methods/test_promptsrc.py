from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import make_clip
from dca.backbones.blocks import Residual
from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset
from dca.methods.base import Problem
from dca.methods.promptsrc import PromptSRC, PromptSRCOptions, epoch_weights, teacher_sentences
from dca.methods.summary import parameter_count
from dca.model.classifier import Classifier
from oracles import towers
from oracles.images import Images
from oracles.steps import literal_logits, require_gradients, require_own_randomness, values

CLASSES = ("cat", "dog", "a_photo", "x y z")
OWN = "a drawing of a {}."


def build(clip: CLIP, dataset: str = "", template: str = OWN, **options: object) -> PromptSRC:
    problem = Problem(names=CLASSES, shots=3, seed=1, dataset=dataset, template=template)
    return PromptSRC.build(clip, problem, PromptSRCOptions(**options))  # type: ignore[arg-type]


def loud(method: PromptSRC) -> PromptSRC:
    """Tokens far from zero, so that every one of them shows."""
    with torch.no_grad():
        for seed, parameter in enumerate(method.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return method


def image_features(clip: CLIP, method: PromptSRC, pixels: Tensor) -> Tensor:
    """f, one image at a time: tokens behind the patches, before ln_pre, replaced at each block."""
    visual = method.visual.double()
    n = visual.shape[1]

    def before(layer: int, x: Tensor) -> Tensor:
        return torch.cat([x, visual[0]])

    def change(layer: int, x: Tensor) -> Tensor:
        return torch.cat([x[: len(x) - n], visual[layer]]) if 1 <= layer < len(visual) else x

    return torch.stack([towers.encode_image(clip, image, change, before) for image in pixels.double()])


def text_features(clip: CLIP, method: PromptSRC) -> Tensor:
    """t, one class at a time."""
    table, tokenizer, deep = clip.text.embedding.weight, clip.tokenizer, method.deep.double()

    def change(layer: int, x: Tensor) -> Tensor:
        return torch.cat([x[:1], deep[layer - 1], x[5:]]) if 1 <= layer <= len(deep) else x

    rows = []
    for name in CLASSES:
        words = [*tokenizer.encode(name.replace("_", " ")), *tokenizer.encode("."), tokenizer.eot_id]
        x = torch.cat([table[[tokenizer.sot_id]], method.context.double(), table[words]])
        rows.append(towers.encode_text(clip, x, change))
    return torch.stack(rows)


def teacher_features(clip: CLIP, method: PromptSRC, templates: tuple[str, ...]) -> Tensor:
    """t°: mean of features that are not normalised, then normalised."""
    rows = []
    for name in CLASSES:
        written = [template.replace("{}", name.replace("_", " ")) for template in templates]
        mean = torch.stack([clip.encode_text([sentence])[0] for sentence in written]).mean(0)
        rows.append(mean / mean.norm())
    return torch.stack(rows).double()


def divergence(z0: Tensor, z: Tensor) -> float:
    """Σ over images and classes of p° log(p° / p)."""
    p0, p = z0.softmax(-1).tolist(), z.softmax(-1).tolist()
    return sum(a * math.log(a / b) for r, s in zip(p0, p, strict=True) for a, b in zip(r, s, strict=True))


@pytest.mark.parametrize("depth", [1, 2, 9])
def test_step_and_probabilities_equal_the_equations(clip: CLIP, depth: int) -> None:
    images = Images((1, 2, 1, 1))
    method, plain = loud(build(clip, depth=depth)), towers.double(clip)
    with torch.no_grad():
        f, t = image_features(plain, method, images.pixels), text_features(plain, method)
        f0 = torch.stack([towers.encode_image(plain, image) for image in images.pixels.double()])
        t0 = teacher_features(clip, method, tuple(teacher_sentences()))
        z, z0 = literal_logits(plain, f, t), literal_logits(plain, f0, t0)
    expected = {
        "cls": towers.cross_entropy(z, images.labels),
        "text": 25 * float((t - t0).abs().sum()) / (4 * 16),
        "image": 10 * float((f - f0).abs().sum()) / (5 * 16),
        "logits": divergence(z0, z) / (5 * 4),
    }
    step = method.step(images.batch())
    assert values(step) == pytest.approx(expected, abs=1e-5, rel=1e-5)
    torch.testing.assert_close(step.probabilities.double(), z.softmax(-1), atol=1e-5, rtol=0)
    method.finish(images)
    method.build_head()
    got = method.classify(method.encode(images.pixels)).double()
    torch.testing.assert_close(got, z.softmax(-1), atol=1e-5, rtol=0)


def test_trained_parameters_on_vit_b_16() -> None:
    assert parameter_count(PromptSRC) == 46_080
    assert parameter_count(PromptSRC, depth=3) == 15_360


def test_text_starts_from_a_photo_of_a_and_the_rest_is_random(clip: CLIP) -> None:
    method = build(clip)
    words = clip.tokenizer.encode("a photo of a")
    assert torch.equal(method.context, clip.text.embedding.weight[words])
    assert method.deep.shape == (2, 4, 24)
    assert method.visual.shape == (3, 4, 32)
    for tokens in (method.deep, method.visual):
        assert float(tokens.detach().std()) == pytest.approx(0.02, rel=0.15)
    require_own_randomness(PromptSRC, clip, method.problem)


def test_without_visual_tokens_the_image_term_is_zero(clip: CLIP, monkeypatch: pytest.MonkeyPatch) -> None:
    images = Images((1, 1, 1, 1))
    method = build(clip, visual_tokens=0)
    terms = values(method.step(images.batch()))
    assert terms["image"] == pytest.approx(0, abs=1e-6)
    assert terms["text"] > 0
    monkeypatch.setattr(method, "encode_text", lambda: method.teacher)
    terms = values(method.step(images.batch()))
    assert terms["text"] == 0
    assert terms["logits"] == pytest.approx(0, abs=1e-6)


def noisy(output: Tensor, rows: slice) -> Residual:
    noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(0))
    changed = output.clone()
    changed[:, rows] = noise[:, rows]
    return Residual(changed)


def test_visual_tokens_replace_what_the_block_before_made_of_theirs(clip: CLIP) -> None:
    """Noise in the token rows of block 0 is gone at block 1; without tokens there it is not."""
    images, deep, shallow = Images((1, 1, 0, 0)), loud(build(clip)), loud(build(clip, depth=1))
    expected = [m.encode(images.pixels).detach() for m in (deep, shallow)]
    handle = next(iter(clip.visual.blocks)).register_forward_hook(lambda m, i, o: noisy(o.total(), slice(-4, None)))
    try:
        got = [m.encode(images.pixels).detach() for m in (deep, shallow)]
    finally:
        handle.remove()
    torch.testing.assert_close(got[0], expected[0], atol=1e-6, rtol=0)
    assert float((got[1] - expected[1]).abs().max()) > 1e-3


def test_text_tokens_replace_what_the_block_before_made_of_theirs(clip: CLIP, monkeypatch: pytest.MonkeyPatch) -> None:
    deep, shallow = loud(build(clip)), loud(build(clip, depth=1))
    expected = [m.encode_text().detach() for m in (deep, shallow)]
    block = next(iter(clip.text.blocks))
    finish = block.add_attention_and_mlp

    def disturbed(x: Tensor, *more: Any) -> Residual:
        """SOS is the first of the packed rows, the context of four tokens follows."""
        return Residual(noisy(finish(x, *more).total()[None], slice(1, 5)).x[0])

    monkeypatch.setattr(block, "add_attention_and_mlp", disturbed)
    got = [m.encode_text().detach() for m in (deep, shallow)]
    monkeypatch.undo()
    torch.testing.assert_close(got[0], expected[0], atol=1e-6, rtol=0)
    assert float((got[1] - expected[1]).abs().max()) > 1e-3


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_beyond_the_depth_tokens_flow_on(clip: CLIP, depth: int) -> None:
    """CLS, 16 patches and 4 tokens at every block, whatever the depth."""
    lengths: list[int] = []
    hooks = [
        block.register_forward_pre_hook(lambda m, inputs: lengths.append(inputs[0].x.shape[1]))
        for block in clip.visual.blocks
    ]
    build(clip, depth=depth).encode(Images((1,)).pixels)
    for hook in hooks:
        hook.remove()
    assert lengths == [1 + 16 + 4] * 3


def test_gradients_reach_every_token() -> None:
    clip = make_clip()
    method = build(clip)
    require_gradients(method, clip, Images((2, 1, 1, 1)))
    for parameter in method.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum(-1).min() > 0


@pytest.mark.parametrize(("mean", "spread", "first", "last_ten"), [(30, 30, 0.014, 0.20), (45, 5, 0.0, 0.79)])
def test_epoch_weights_are_those_of_the_paper(mean: float, spread: float, first: float, last_ten: float) -> None:
    w = epoch_weights(50, mean, spread)
    assert float(w.sum()) == pytest.approx(1)
    assert float(w[0]) == pytest.approx(first, abs=1e-3)
    assert float(w[-10:].sum()) == pytest.approx(last_ten, abs=0.01)
    assert int(w.argmax()) == mean - 1


def test_the_mean_of_constant_tokens_is_those_tokens(clip: CLIP) -> None:
    method = loud(build(clip, "dtd"))
    before = [p.detach().clone() for p in method.parameters()]
    method.prepare(Images((1, 1, 1, 1)))
    for epoch in range(1, 51):
        method.on_epoch_end(epoch, 50)
    for parameter, value in zip(method.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), value, atol=1e-6, rtol=1e-6)


def test_the_model_is_the_weighted_mean_of_its_epochs(clip: CLIP) -> None:
    method = build(clip, epochs=5, average_mean=4.0, average_spread=1.0)
    images = Images((1, 1, 1, 1))
    method.prepare(images)
    w = [math.exp(-((e - 4) ** 2) / 2) for e in range(1, 6)]
    expected = 0.0
    for epoch in range(1, 6):
        with torch.no_grad():
            method.visual.fill_(float(epoch**2))
        expected += w[epoch - 1] / sum(w) * epoch**2
        assert "average" in method.state_dict()
        method.on_epoch_end(epoch, 5)
    torch.testing.assert_close(method.visual.detach(), torch.full_like(method.visual, expected))
    method.finish(images)
    method.build_head()
    assert "average" not in method.state_dict()


def test_a_run_stopped_after_its_last_epoch_ends_the_same(sample: Dataset, tmp_path: Path) -> None:
    """The state of a whole training holds the mean; taking it up again averages nothing twice."""
    fits = []
    for folder in (tmp_path, tmp_path, None):
        model = Classifier("promptsrc", seed=3, backbone=make_clip(), epochs=3, batch_size=8)
        fits.append(model.fit(sample, folder=folder).method_.state_dict())
    assert fits[0].keys() == fits[1].keys() == fits[2].keys()
    assert "average" not in fits[0]
    for name, tensor in fits[0].items():
        assert torch.equal(tensor, fits[1][name])
        assert torch.equal(tensor, fits[2][name])


def test_the_weights_follow_dataset_and_epochs(clip: CLIP) -> None:
    def of(dataset: str, **options: object) -> tuple[float | None, float | None]:
        chosen = build(clip, dataset, **options).options
        return chosen.average_mean, chosen.average_spread

    assert of("") == of("imagenet") == (30, 30)
    assert of("eurosat") == of("stanford_cars") == (45, 5)
    assert of("eurosat", epochs=20) == (18, 2)
    assert of("eurosat", average_mean=3.0, average_spread=2.0) == (3, 2)
    chosen = build(clip).options
    assert (chosen.epochs, chosen.batch_size, chosen.learning_rate) == (50, 4, 0.0025)


def test_the_authors_ask_with_sixty_sentences() -> None:
    found = teacher_sentences()
    assert len(found) == len(set(found)) == 60
    assert all(sentence.count("{}") == 1 and sentence.endswith(".") for sentence in found)
    # One of each kind of theirs, and two that CLIP's authors have and they have not.
    assert {"a photo of a {}.", "itap of the {}.", "a tattoo of a {}.", "a photo of many {}."} < set(found)
    assert {"the toy {}.", "a cartoon {}.", "the {} in a video game.", "a photo of the cool {}."} < set(found)
    assert not {"a photo of the large {}.", "art of the {}."} & set(found)


def test_the_teachers_sentences_can_be_chosen(clip: CLIP) -> None:
    method = build(clip, teacher_templates=("art of the {}.", OWN))
    expected = teacher_features(clip, method, ("art of the {}.", OWN)).float()
    torch.testing.assert_close(method.teacher, expected, atol=1e-6, rtol=0)
    with pytest.raises(UserError, match="for the class name"):
        build(clip, teacher_templates=("a photo",))
