from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.methods.base import Problem
from dca.methods.gda import ALPHAS, GDA, GDAOptions, gaussian_weights
from dca.methods.shared.frozen_features import log_loss_at_best_scale
from dca.methods.summary import parameter_count
from dca.methods.zero_shot import ZeroShot
from oracles.images import Images

CLASSES = ("cat", "dog", "a photo", "x")


def build(clip: CLIP, images: Images, shots: int = 3, **options: object) -> GDA:
    method = GDA.build(clip, Problem(names=CLASSES, shots=shots), GDAOptions(**options))  # type: ignore[arg-type]
    method.finish(images)
    method.build_head()
    return method


def test_nothing_is_trained_and_51300_numbers_are_stored_on_vit_b_16() -> None:
    assert parameter_count(GDA) == 0
    features, labels = torch.randn(200, 512), torch.arange(200) % 100
    W, b = gaussian_weights(features, labels, 100, GDAOptions())
    assert W.numel() + b.numel() == 51300


@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (1, 1, 1, 1), (4, 1, 2, 3)])
def test_probabilities_equal_the_equations(clip: CLIP, counts: tuple[int, ...]) -> None:
    """P as the pseudo-inverse of a D×D matrix; views stacked as samples."""
    images = Images(counts)
    method = build(clip, images, views=10, alpha=0.7, crop_low=0.08)
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
    plain.build_head()
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


def literal_losses(clip: CLIP, images: Images, views: int, counts: tuple[int, ...]) -> list[float]:
    """Log-loss of each α at its best scale: a refit without each image, its own distance as of a new image."""
    kept = [(i, y) for i, y in enumerate(images.labels.tolist()) if counts[y] > 1]
    parts = []
    for i, y in kept:
        model = build(clip, without(images, i), views=views, alpha=1.0)
        f = model.encode(images.pixels[i : i + 1]).detach()[0].double()
        gaussian = model.weight.double() @ f + model.bias.double()
        rest = without(images, i)
        rows = torch.stack([rest.view(v) for v in range(views)]) if views else rest.pixels[None]
        x = F.normalize(clip.encode_image(rows.flatten(0, 1)), dim=-1).detach().double()
        c = rest.labels.repeat(max(views, 1))
        means = torch.stack([x[c == k].mean(0) if (c == k).any() else torch.zeros_like(x[0]) for k in range(4)])
        M = (x - means[c]).T @ (x - means[c])
        P = len(f) * torch.linalg.inv(M + M.trace() / (len(x) - 1) * torch.eye(len(f), dtype=torch.float64))
        gaussian[y] += (f - means[y]) @ P @ (f - means[y]) / (2 * counts[y] ** 2)
        parts.append((clip.tau * model.text_features.double() @ f, gaussian))
    y = torch.tensor([y for _, y in kept])
    scales = torch.logspace(-6, 3, 3000, dtype=torch.float64)
    losses = []
    for alpha in ALPHAS:
        z = torch.stack([text + alpha * gaussian for text, gaussian in parts])
        losses.append(min(float(F.cross_entropy(t * z, y)) for t in scales))
    return losses


@pytest.mark.parametrize("views", [0, 3])
@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (4, 1, 2, 3)])
def test_leave_one_out_takes_the_least_log_loss_of_models_without_each_image(
    clip: CLIP, counts: tuple[int, ...], views: int
) -> None:
    """Validation images are not looked at; images that are alone in their class do not count."""
    images = Images(counts, validation=Images((1, 1, 1, 1), seed=7))
    losses = literal_losses(clip, images, views, counts)
    chosen = build(clip, images, views=views, select="loo")
    assert losses[ALPHAS.index(pytest.approx(float(chosen.alpha)))] == pytest.approx(min(losses), abs=1e-4)
    assert float(build(clip, images, views=views, select="loo", alpha=0.3).alpha) == pytest.approx(0.3)


def test_log_loss_at_its_best_temperature() -> None:
    z = 5 * torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    y = (z + 8 * torch.randn(40, 4, generator=torch.Generator().manual_seed(1))).argmax(dim=1)
    least = min(float(F.cross_entropy(t * z, y)) for t in torch.logspace(-4, 2, 4000))
    assert log_loss_at_best_scale(z, y) == pytest.approx(least, abs=1e-5)
    assert log_loss_at_best_scale(100 * z + 3, y) == pytest.approx(least, abs=1e-5)
    assert log_loss_at_best_scale(-z, y) == pytest.approx(math.log(4), abs=0.01)  # worse than nothing: t goes to 0


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
    W, b = gaussian_weights(x, y, 3, GDAOptions())
    turned, bias = gaussian_weights(x @ Q, y, 3, GDAOptions())
    torch.testing.assert_close(turned, W @ Q)
    torch.testing.assert_close(bias, b)


def test_the_crop_range_reaches_the_views(clip: CLIP) -> None:
    images = Images((2, 2, 2, 2))
    wide, narrow = (build(clip, images, views=2, alpha=1.0, crop_low=low) for low in (0.08, 0.5))
    assert not torch.allclose(wide.weight, narrow.weight, atol=1e-3)
    f = F.normalize(torch.stack([clip.encode_image(images.view(v, 0.5)) for v in range(2)], dim=1), dim=-1)
    weight, _ = gaussian_weights(f.flatten(0, 1), images.labels.repeat_interleave(2), 4, GDAOptions())
    torch.testing.assert_close(narrow.weight.double(), weight, rtol=1e-4, atol=1e-4)
