from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from conftest import make_clip
from dca.backbones.clip import CLIP, VIT_B_16
from dca.backbones.clip.weights import build_without_weights
from dca.backbones.dual_encoder import compute_digest
from dca.methods.base import Problem
from dca.methods.clip_svd import CLIPSVD, CLIPSVDOptions, decompose
from dca.methods.summary import parameter_count
from dca.methods.zero_shot import ZeroShot
from oracles import towers
from oracles.images import Images
from oracles.towers import CLASSES, NAMES, TEMPLATE, features_of_task


def build(clip: CLIP, *, trained: bool = True, **options: object) -> CLIPSVD:
    problem = Problem(names=CLASSES, shots=3, seed=1, template=TEMPLATE)
    method = CLIPSVD.build(clip, problem, CLIPSVDOptions(**options))  # type: ignore[arg-type]
    if trained:
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for s in method.values.values():
                s.mul_(1 + 0.3 * torch.randn(s.shape, generator=generator))
    return method


def replaced(clip: CLIP, method: CLIPSVD) -> CLIP:
    """A float64 copy whose matrices are W' = U diag(s) Vᵀ, made one by one from the weights themselves."""
    plain = towers.double(clip)
    for tower in ("visual", "text"):
        for layer, block in enumerate(getattr(plain, tower).blocks):
            W = block.attn.out.weight.shape[0]
            qkv = block.attn.qkv.weight
            places = {part: qkv[n * W : (n + 1) * W] for n, part in enumerate("qkv")}
            places |= {"out": block.attn.out.weight, "fc": block.mlp[0].weight, "proj": block.mlp[2].weight}
            for part, weight in places.items():
                if f"{tower}_{part}" in method.values:
                    U, _, V = torch.linalg.svd(weight, full_matrices=False)
                    s = method.values[f"{tower}_{part}"].detach().double()[layer]
                    weight.copy_(U @ torch.diag(s) @ V)
    return plain


@pytest.mark.parametrize("options", [{}, {"towers": "visual"}, {"towers": "text"}])
def test_logits_and_loss_equal_towers_with_other_matrices(clip: CLIP, options: dict[str, object]) -> None:
    images, method = Images((2, 1, 1, 2)), build(clip, **options)
    step = method.step(images.batch())
    with torch.no_grad():
        f, t = features_of_task(replaced(clip, method), images.pixels)
    logits = clip.tau * f @ t.T
    torch.testing.assert_close(step.probabilities.double(), logits.softmax(-1), atol=1e-5, rtol=0)
    assert list(step.terms) == ["cls"]
    assert float(step.terms["cls"].detach()) == pytest.approx(towers.cross_entropy(logits, images.labels), abs=1e-5)
    method.finish(images)
    method.build_head()
    torch.testing.assert_close(method.encode(images.pixels).double(), f, atol=1e-5, rtol=0)
    torch.testing.assert_close(method.text_features.double(), t, atol=1e-5, rtol=0)
    torch.testing.assert_close(method.classify(f.float()).double(), logits.softmax(-1), atol=1e-5, rtol=0)


def test_gradients_are_those_of_the_singular_values(clip: CLIP) -> None:
    """The gradient of s_i is u_iᵀ G v_i, where G is the gradient of the dense matrix."""
    images, method = Images((2, 1, 1, 2)), build(clip)
    method.step(images.batch()).terms["cls"].backward()
    dense = replaced(clip, method).float().requires_grad_(True)
    f = F.normalize(dense.encode_image(images.pixels), dim=-1)
    t = F.normalize(dense.encode_text([TEMPLATE.replace("{}", name) for name in NAMES]), dim=-1)
    F.cross_entropy(clip.tau * f @ t.T, images.labels).backward()
    for tower in ("visual", "text"):
        for layer, (block, own) in enumerate(
            zip(getattr(dense, tower).blocks, getattr(clip, tower).blocks, strict=True)
        ):
            for part, G, W in (
                ("v", block.attn.qkv.weight.grad.chunk(3)[2], own.attn.qkv.weight.chunk(3)[2]),
                ("out", block.attn.out.weight.grad, own.attn.out.weight),
                ("fc", block.mlp[0].weight.grad, own.mlp[0].weight),
                ("proj", block.mlp[2].weight.grad, own.mlp[2].weight),
            ):
                U, _, V = torch.linalg.svd(W.double(), full_matrices=False)
                expected = torch.stack([U[:, i] @ G.double() @ V[i] for i in range(len(V))])
                found = method.values[f"{tower}_{part}"].grad
                assert found is not None
                assert (found[layer].double() - expected).norm() <= 1e-3 * expected.norm() + 1e-6


def test_parameters_on_vit_b_16() -> None:
    assert parameter_count(CLIPSVD) == parameter_count(CLIPSVD, classes=10) == 12 * 6 * (768 + 512) == 92_160
    method = build(build_without_weights(VIT_B_16), trained=False)
    assert {s.shape for s in method.values.values()} == {(12, 768), (12, 512)}


def test_a_decomposition_gives_the_weights_back_and_is_made_once(clip: CLIP) -> None:
    for tower in (clip.visual, clip.text):
        found = decompose(tower)
        assert decompose(tower) is found
        for part, weight in (("fc", "mlp.0.weight"), ("proj", "mlp.2.weight"), ("out", "attn.out.weight")):
            U, s, V = found[part]
            for layer, block in enumerate(tower.blocks):
                expected = block.get_parameter(weight)
                torch.testing.assert_close(U[layer] @ s[layer].diag() @ V[layer], expected, atol=1e-6, rtol=0)
        parts = torch.stack([torch.cat([(U @ s.diag_embed() @ V)[0] for U, s, V in map(found.get, "qkv")])])  # type: ignore[misc]
        torch.testing.assert_close(parts[0], next(iter(tower.blocks)).attn.qkv.weight, atol=1e-6, rtol=0)


def test_at_zero_steps_it_is_zero_shot_with_the_template(clip: CLIP) -> None:
    images, method = Images((1, 1, 1, 1)), build(clip, trained=False)
    zero_shot = ZeroShot.build(clip, method.problem, ZeroShot.Options())
    zero_shot.finish()
    zero_shot.build_head()
    method.finish(images)
    method.build_head()
    expected = zero_shot.classify(zero_shot.encode(images.pixels))
    torch.testing.assert_close(method.classify(method.encode(images.pixels)), expected, atol=1e-6, rtol=0)


def test_nothing_of_it_stays_in_the_backbone() -> None:
    clip, images = make_clip(), Images((1, 1, 1, 1))
    before, digest = clip.encode_image(images.pixels), compute_digest(clip)
    method = build(clip)
    method.step(images.batch()).terms["cls"].backward()
    assert all(p.grad is not None and p.grad.abs().sum(-1).min() > 0 for p in method.parameters())
    assert all(p.grad is None for p in clip.parameters())
    assert not torch.allclose(method.encode(images.pixels), F.normalize(before, dim=-1), atol=1e-3)
    assert torch.equal(clip.encode_image(images.pixels), before)
    assert compute_digest(clip) == digest
    assert set(method.state_dict()) == {f"values.{name}" for name in method.values}, "no U and no V is saved"


@pytest.mark.parametrize(("classes", "shots", "epochs"), [(10, 16, 640), (1000, 16, 7), (2, 1, 200)])
def test_200_steps_a_shot_become_epochs(classes: int, shots: int, epochs: int) -> None:
    chosen = CLIPSVD.resolve(CLIPSVDOptions(), Problem(names=tuple(map(str, range(classes))), shots=shots))
    assert (chosen.epochs, chosen.batch_size) == (epochs, 32)
    assert (chosen.learning_rate, chosen.weight_decay, chosen.optimizer) == (5e-4, 0.01, "adamw")
    assert (chosen.final_rate, chosen.schedule, chosen.warmup_epochs) == (1e-6, "step", 0)
