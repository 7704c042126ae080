from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from dca.clip import CLIP
from dca.core.errors import UserError
from dca.methods.gda import ALPHAS, GDA, GDAOptions, gaussian_part
from dca.methods.interface import Problem
from dca.methods.summary import parameter_count
from dca.methods.zero_shot import ZeroShot
from oracles.images import Images

CLASSES = ("cat", "dog", "a photo", "x")


def build(clip: CLIP, images: Images, shots: int = 3, **options: object) -> GDA:
    method = GDA.build(clip, Problem(names=CLASSES, shots=shots), GDAOptions(**options))  # type: ignore[arg-type]
    method.finish(images)
    method.seal()
    return method


def test_nothing_is_trained_and_51300_numbers_are_stored_on_vit_b_16() -> None:
    assert parameter_count(GDA) == 0
    features, labels = torch.randn(200, 512), torch.arange(200) % 100
    W, b = gaussian_part(features, labels, 100, GDAOptions())
    assert W.numel() + b.numel() == 51300


@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (1, 1, 1, 1), (4, 1, 2, 3)])
def test_probabilities_equal_the_equations(clip: CLIP, counts: tuple[int, ...]) -> None:
    """P as the pseudo-inverse of a D×D matrix; views stacked as samples."""
    images = Images(counts)
    method = build(clip, images, views=10, alpha=0.7)
    D = clip.config.embed_dim
    x = torch.cat([F.normalize(clip.encode_image(images.view(v)), dim=-1).detach() for v in range(10)]).double()
    y = images.labels.repeat(10)
    means = torch.stack([x[y == c].mean(0) for c in range(4)])
    n = len(x)
    S = torch.zeros(D, D, dtype=torch.float64)
    for f, c in zip(x, y, strict=True):
        S += torch.outer(f - means[c], f - means[c]) / (n - 1)
    P = D * torch.linalg.pinv((n - 1) * S + S.trace() * torch.eye(D, dtype=torch.float64))
    f = F.normalize(clip.encode_image(images.pixels), dim=-1).detach().double()
    t = F.normalize(clip.encode_text([f"a photo of a {name}." for name in CLASSES]), dim=-1).detach().double()
    logits = torch.empty(len(f), 4, dtype=torch.float64)
    for i in range(len(f)):
        for c in range(4):
            bias = math.log(1 / 4) - float(means[c] @ P @ means[c]) / 2
            logits[i, c] = clip.tau * float(f[i] @ t[c]) + 0.7 * (float(f[i] @ P @ means[c]) + bias)
    got = method.classify(method.encode(images.pixels))
    torch.testing.assert_close(got.double(), logits.softmax(-1), atol=1e-5, rtol=1e-4)


def test_without_the_gaussian_part_it_is_zero_shot(clip: CLIP) -> None:
    images = Images((2, 2, 2, 2))
    method = build(clip, images, alpha=0.0)
    plain = ZeroShot.build(clip, method.problem, ZeroShot.Options())
    plain.finish()
    plain.seal()
    f = method.encode(images.pixels)
    torch.testing.assert_close(method.classify(f), plain.classify(f))


def test_alpha_is_the_best_on_validation_images_and_else_follows_the_shots(clip: CLIP) -> None:
    images = Images((3, 3, 3, 3))
    assert float(build(clip, images, shots=1).alpha) == pytest.approx(1e-3)
    assert float(build(clip, images, shots=5).alpha) == pytest.approx(0.1)
    assert float(build(clip, images, shots=99).alpha) == pytest.approx(10.0)
    unseen = images.validation = Images((4, 4, 4, 4), seed=7)
    hits = []
    for alpha in ALPHAS:
        method = build(clip, images, alpha=alpha)
        probabilities = method.classify(method.encode(unseen.pixels))
        hits.append(int((probabilities.argmax(-1) == unseen.labels).sum()))
    assert float(build(clip, images).alpha) == pytest.approx(ALPHAS[hits.index(max(hits))])


def without(images: Images, i: int) -> Images:
    """The images except for one."""
    rest = Images((1,))
    keep = torch.arange(len(images.labels)) != i
    rest.labels, rest.pixels = images.labels[keep], images.pixels[keep]
    return rest


@pytest.mark.parametrize("views", [0, 3])
@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (4, 1, 2, 3)])
def test_leave_one_out_takes_the_least_log_loss_of_models_without_each_image(
    clip: CLIP, counts: tuple[int, ...], views: int
) -> None:
    """Validation images are not looked at; images that are alone in their class do not count."""
    images = Images(counts, validation=Images((1, 1, 1, 1), seed=7))
    losses = []
    for alpha in ALPHAS:
        loss = 0.0
        for i, y in enumerate(images.labels.tolist()):
            if counts[y] > 1:
                method = build(clip, without(images, i), views=views, alpha=alpha)
                p = method.classify(method.encode(images.pixels[i : i + 1]))[0, y]
                loss -= math.log(max(float(p.detach()), 1e-300))
        losses.append(loss)
    chosen = build(clip, images, views=views, select="loo")
    assert float(chosen.alpha) == pytest.approx(ALPHAS[losses.index(min(losses))])
    assert float(build(clip, images, views=views, select="loo", alpha=0.3).alpha) == pytest.approx(0.3)


def test_leave_one_out_of_classes_with_one_image_falls_back_to_the_shots(clip: CLIP) -> None:
    assert float(build(clip, Images((1, 1, 1, 1)), shots=1, select="loo").alpha) == pytest.approx(1e-3)


def test_leave_one_out_is_for_the_published_shrinkage() -> None:
    with pytest.raises(UserError, match=r"select=loo is for shrinkage=gda") as caught:
        GDAOptions(select="loo", shrinkage="oas")
    assert "use --set shrinkage=gda, or use --set select=validation" in caught.value.render("cli")


@pytest.mark.parametrize("shrinkage", ["ledoit_wolf", "oas", "convex"])
def test_other_estimates_fit_in(clip: CLIP, shrinkage: str) -> None:
    images = Images((3, 3, 3, 3))
    method = build(clip, images, shrinkage=shrinkage, alpha=100.0)
    assert torch.isfinite(method.classify(method.encode(images.pixels))).all()


def test_a_rotation_of_the_features_changes_nothing() -> None:
    """The pooled covariance turns with the features; so do the weights."""
    generator = torch.Generator().manual_seed(0)
    x = F.normalize(torch.randn(30, 12, generator=generator, dtype=torch.float64), dim=-1)
    Q = torch.linalg.qr(torch.randn(12, 12, generator=generator, dtype=torch.float64))[0]
    y = torch.arange(30) % 3
    W, b = gaussian_part(x, y, 3, GDAOptions())
    turned, bias = gaussian_part(x @ Q, y, 3, GDAOptions())
    torch.testing.assert_close(turned, W @ Q)
    torch.testing.assert_close(bias, b)
