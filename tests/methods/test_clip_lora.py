from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.backbones.dual_encoder import compute_digest
from dca.methods.base import Problem
from dca.methods.clip_lora import CLIPLoRA, CLIPLoRAOptions
from dca.methods.shared.prompts import dropout
from dca.methods.summary import parameter_count
from dca.methods.zero_shot import ZeroShot
from dca.training.loop import learning_rate_at, make_optimizer
from oracles import towers
from oracles.images import Images
from oracles.towers import CLASSES, NAMES, TEMPLATE


def build(clip: CLIP, *, trained: bool = True, **options: object) -> CLIPLoRA:
    problem = Problem(names=CLASSES, shots=3, seed=1, template=TEMPLATE)
    method = CLIPLoRA.build(clip, problem, CLIPLoRAOptions(**options))  # type: ignore[arg-type]
    if trained:
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for B in method.up.values():
                B.copy_(0.2 * torch.randn(B.shape, generator=generator))
    return method


def written_out(clip: CLIP, method: CLIPLoRA, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """f and t through towers whose matrices are W + (α / √r) B A, made one by one."""

    def added(tower: str, layer: int) -> dict[str, Tensor]:
        if tower not in method.down:
            return {}
        A, B = method.down[tower].detach().double()[layer], method.up[tower].detach().double()[layer]
        scale = method.options.alpha / method.options.rank**0.5
        return {part: scale * B[place] @ A[place] for place, part in enumerate("qkv")}

    f = [towers.encode_image(clip, image, added=lambda layer: added("visual", layer)) for image in pixels.double()]
    sentences = [towers.embed(clip, TEMPLATE.replace("{}", name)) for name in NAMES]
    t = [towers.encode_text(clip, sentence, added=lambda layer: added("text", layer)) for sentence in sentences]
    return torch.stack(f), torch.stack(t)


@pytest.mark.parametrize("options", [{}, {"rank": 3, "alpha": 2.0}, {"towers": "visual"}, {"towers": "text"}])
def test_logits_and_loss_equal_the_equations(clip: CLIP, options: dict[str, object]) -> None:
    images, plain = Images((2, 1, 1, 2)), towers.double(clip)
    method = build(clip, dropout=0.0, **options)
    step = method.step(images.batch())
    with torch.no_grad():
        f, t = written_out(plain, method, images.pixels)
    logits = plain.tau * f @ t.T
    torch.testing.assert_close(step.probabilities.double(), logits.softmax(-1), atol=1e-5, rtol=0)
    assert list(step.terms) == ["cls"]
    assert float(step.terms["cls"].detach()) == pytest.approx(towers.cross_entropy(logits, images.labels), abs=1e-5)
    method.finish(images)
    method.build_head()
    torch.testing.assert_close(method.encode(images.pixels).double(), f, atol=1e-5, rtol=0)
    torch.testing.assert_close(method.classify(f.float()).double(), logits.softmax(-1), atol=1e-5, rtol=0)


def test_parameters_on_vit_b_16() -> None:
    assert parameter_count(CLIPLoRA) == parameter_count(CLIPLoRA, classes=10) == 184_320


def test_at_zero_steps_it_is_zero_shot_with_the_template(clip: CLIP) -> None:
    images = Images((1, 1, 1, 1))
    method = build(clip, trained=False)
    zero_shot = ZeroShot.build(clip, method.problem, ZeroShot.Options())
    zero_shot.finish()
    zero_shot.build_head()
    method.finish(images)
    method.build_head()
    expected = zero_shot.classify(zero_shot.encode(images.pixels))
    torch.testing.assert_close(method.classify(method.encode(images.pixels)), expected, atol=1e-6, rtol=0)


def test_it_starts_as_published(clip: CLIP) -> None:
    method = build(clip, trained=False, rank=8)
    assert {name: tuple(A.shape) for name, A in method.down.items()} == {"visual": (3, 3, 8, 32), "text": (3, 3, 8, 24)}
    for name, width in [("visual", 32), ("text", 24)]:
        A, B = method.down[name].detach(), method.up[name].detach()
        assert 0.98 * width**-0.5 < float(A.abs().max()) <= width**-0.5
        assert float(A.std()) == pytest.approx((3 * width) ** -0.5, rel=0.05)
        assert not B.any()
        assert B.shape == A.mT.shape


def test_dropout_is_drawn_from_the_batch_and_only_while_training(clip: CLIP) -> None:
    images, method = Images((1, 1, 1, 1)), build(clip)
    state = torch.get_rng_state()
    one, again, other = (float(method.step(images.batch(seed)).terms["cls"].detach()) for seed in (0, 0, 1))
    assert one == again != other
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(method.encode(images.pixels), method.encode(images.pixels))
    still = build(clip, dropout=0.0)
    torch.testing.assert_close(method.encode(images.pixels), still.encode(images.pixels))
    torch.testing.assert_close(method.encode_text(), still.encode_text())
    losses = [float(method.step(images.batch(seed)).terms["cls"].detach()) for seed in range(40)]
    assert sum(losses) / 40 == pytest.approx(float(still.step(images.batch()).terms["cls"].detach()), rel=0.2)


def test_dropout_keeps_the_mean() -> None:
    x = torch.ones(400, 50)
    dropped = dropout(x, 0.25, torch.Generator().manual_seed(0))
    assert dropped.unique().tolist() == pytest.approx([0, 4 / 3])
    assert float(dropped.mean()) == pytest.approx(1, abs=0.02)
    assert dropout(x, 0.25, None) is x


def test_nothing_of_it_stays_in_the_backbone() -> None:
    clip, images = make_clip(), Images((1, 1, 1, 1))
    before, digest = clip.encode_image(images.pixels), compute_digest(clip)
    method = build(clip)
    loss = method.step(images.batch()).terms["cls"]
    loss.backward()
    assert all(p.grad is not None and p.grad.flatten(2).abs().sum(-1).min() > 0 for p in method.parameters())
    assert all(p.grad is None for p in clip.parameters())
    assert not torch.allclose(method.encode(images.pixels), F.normalize(before, dim=-1), atol=1e-3)
    assert torch.equal(clip.encode_image(images.pixels), before)
    assert compute_digest(clip) == digest


@pytest.mark.parametrize(
    ("classes", "shots", "batch", "epochs"),
    [(10, 16, None, 1600), (1000, 16, None, 16), (100, 16, None, 160), (2, 1, None, 500), (10, 16, 500, 8000)],
)
def test_500_steps_a_shot_become_epochs(classes: int, shots: int, batch: int | None, epochs: int) -> None:
    problem = Problem(names=tuple(map(str, range(classes))), shots=shots)
    chosen = CLIPLoRA.resolve(CLIPLoRAOptions() if batch is None else CLIPLoRAOptions(batch_size=batch), problem)
    assert chosen.epochs == epochs
    size = chosen.batch_size
    steps = max(classes * shots // size, 1)
    assert 500 * shots <= epochs * steps < 500 * shots + steps


def test_adamw_falls_from_its_rate_to_the_last_one(clip: CLIP) -> None:
    chosen = CLIPLoRAOptions()
    optimizer = make_optimizer(build(clip), chosen, 2e-4)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["weight_decay"] == 0.01
    assert chosen.learning_rate == 2e-4
    rates = [learning_rate_at(epoch, 10, chosen, 2e-4) for epoch in (0, 5, 10)]
    assert rates == pytest.approx([2e-4, 1.005e-4, 1e-6])
