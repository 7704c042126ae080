from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from dca.backbones.clip import CLIP
from dca.backbones.dual_encoder import compute_digest
from dca.core import seeds
from dca.methods.base import Batch, Problem
from dca.methods.prolip import ProLIP, ProLIPOptions, penalty_strength
from dca.methods.summary import parameter_count
from dca.methods.zero_shot import ZeroShot
from dca.training.loop import Trainer
from oracles import towers
from oracles.frozen import cross_entropy, dot, softmax, unit
from oracles.images import Images

CLASSES = ("cat", "dog", "a photo", "x")


def prepared(clip: CLIP, images: Images, shots: int = 3, **options: object) -> tuple[ProLIP, Batch]:
    method = ProLIP.build(clip, Problem(names=CLASSES, shots=shots), ProLIPOptions(**options))  # type: ignore[arg-type]
    rows, labels = method.training_rows(images)
    method.prepare(images)
    return method, Batch(rows, labels, seeds.generator(0, "test"))


def disturb(method: ProLIP) -> None:
    with torch.no_grad():
        noise = torch.randn(method.projection.shape, generator=torch.Generator().manual_seed(5))
        method.projection.add_(0.1 * noise)


def test_it_trains_393216_parameters_on_vit_b_16() -> None:
    assert parameter_count(ProLIP) == 393216


@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (1, 4, 2, 1)])
def test_loss_and_probabilities_equal_the_equations(clip: CLIP, counts: tuple[int, ...]) -> None:
    """Every row of every image through every layer of a tower that ends with the trained projection."""
    images = Images(counts)
    method, batch = prepared(clip, images, views=1, rule="1/N^2")
    disturb(method)
    plain = towers.double(clip)
    first = plain.visual.projection.weight.detach().flatten().tolist()
    with torch.no_grad():
        plain.visual.projection.weight.copy_(method.projection)
        f = [towers.encode_image(plain, image).tolist() for image in images.view(0, 0.5).double()]
        t = [towers.encode_text(plain, towers.embed(plain, f"a photo of a {name}.")).tolist() for name in CLASSES]
    logits = [[clip.tau * dot(x, t_c) for t_c in unit(t)] for x in unit(f)]
    moved = [a - b for a, b in zip(method.projection.double().flatten().tolist(), first, strict=True)]
    step = method.step(batch)
    terms = {name: float(term.detach()) for name, term in step.terms.items()}
    expected = {"cls": cross_entropy(logits, images.labels.tolist()), "near_clip": dot(moved, moved) / 9}
    assert terms == pytest.approx(expected, rel=1e-5)
    wanted = torch.tensor([softmax(row) for row in logits], dtype=torch.float64)
    torch.testing.assert_close(step.probabilities.double(), wanted, atol=1e-5, rtol=0)
    method.finish(images)
    got = method.build_head().classify(method.encode(images.view(0, 0.5))).detach()
    torch.testing.assert_close(got.double(), wanted, atol=1e-5, rtol=0)


def test_a_fit_equals_adam_over_all_images_with_a_falling_rate(clip: CLIP) -> None:
    images, epochs = Images((2, 1, 3, 2)), 5
    chosen = ProLIPOptions(views=0, epochs=epochs, learning_rate=1e-3)
    method = ProLIP.build(clip, Problem(names=CLASSES, shots=2), chosen)
    Trainer(method, images, method.options, seed=1).run()  # type: ignore[arg-type]
    first = clip.visual.projection.weight.detach()
    W = first.clone().requires_grad_()
    t = F.normalize(clip.encode_text([f"a photo of a {name}." for name in CLASSES]), dim=-1).detach()
    x = clip.encode_unprojected(images.pixels).detach()
    optimizer = torch.optim.Adam([W], lr=1e-3, eps=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        f = x @ W.T
        loss = F.cross_entropy(clip.tau * f / f.norm(dim=1, keepdim=True) @ t.T, images.labels)
        loss = loss + 0.5 * ((W - first) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    torch.testing.assert_close(method.projection.detach(), W.detach(), atol=1e-5, rtol=0)
    assert float((W.detach() - first).abs().max()) > 1e-3


@pytest.mark.parametrize(("rule", "shots", "expected"), [("1/N", 4, 0.25), ("1/N^2", 4, 0.0625), ("1/N", 1, 1.0)])
def test_the_penalty_falls_with_the_shots(clip: CLIP, rule: str, shots: int, expected: float) -> None:
    assert penalty_strength(rule, shots) == expected  # type: ignore[arg-type]
    method, _ = prepared(clip, Images((1, 1, 1, 1)), shots, rule=rule)
    assert method.options.strength == expected
    assert prepared(clip, Images((1, 1, 1, 1)), shots, rule=rule, strength=0.3)[0].options.strength == 0.3


def test_a_step_takes_all_images_and_one_view_of_each(clip: CLIP) -> None:
    images = Images((1, 7, 2, 1))
    method, batch = prepared(clip, images, shots=2, views=3)
    assert batch.inputs.shape == (11, 3, clip.config.vision.width)
    assert (method.options.batch_size or 0) >= 11
    for v in range(3):
        torch.testing.assert_close(batch.inputs[:, v], clip.encode_unprojected(images.view(v, 0.5)).detach())


def test_before_the_first_step_it_is_zero_shot(clip: CLIP) -> None:
    images = Images((1, 1, 1, 1))
    method, batch = prepared(clip, images)
    plain = ZeroShot.for_problem(clip, method.problem)
    got = method.build_head().classify(method.encode(images.pixels)).detach()
    torch.testing.assert_close(got, plain.classify(plain.encode(images.pixels)))
    assert float(method.step(batch).terms["near_clip"].detach()) == 0


def test_gradients_reach_the_projection_and_not_clip(clip: CLIP) -> None:
    before = compute_digest(clip)
    method, batch = prepared(clip, Images((2, 2, 2, 2)), strength=0.0)
    step = method.step(batch)
    assert list(step.terms) == ["cls"]
    step.terms["cls"].backward()
    assert [name for name, _ in method.named_parameters()] == ["projection"]
    assert float(method.projection.grad.abs().max()) > 0  # type: ignore[union-attr]
    assert all(p.grad is None for p in clip.parameters())
    disturb(method)
    assert compute_digest(clip) == before, "CLIP's own projection is not the trained tensor"


def test_other_classes_are_read_by_the_same_projection(clip: CLIP) -> None:
    images = Images((1, 1, 1, 1))
    method, _ = prepared(clip, images)
    disturb(method)
    other = method.retarget(Problem(names=("tree", "dog"), shots=3), [None, 1])
    assert torch.equal(other.projection, method.projection)
    t = F.normalize(clip.encode_text(["a photo of a tree.", "a photo of a dog."]), dim=-1)
    f = method.encode(images.pixels)
    torch.testing.assert_close(other.classify(f), (clip.tau * f @ t.T).softmax(-1))


def test_damaged_results_are_named(clip: CLIP) -> None:
    method, _ = prepared(clip, Images((1, 1, 1, 1)))
    state = {**method.state_dict(), "text_features": torch.zeros(3, 2)}
    assert any("text_features" in line for line in method.check_results(state))
