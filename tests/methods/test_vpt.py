from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from conftest import make_clip
from dca.backbones.blocks import Residual
from dca.backbones.clip import CLIP, VIT_B_16
from dca.backbones.clip.weights import build_without_weights
from dca.backbones.dual_encoder import ExtraTokens
from dca.core.errors import UserError
from dca.methods.base import Problem
from dca.methods.shared.gaussian import paper_gammas
from dca.methods.summary import parameter_count
from dca.methods.vpt import SIZES, VPT, VPTOptions
from dca.methods.zero_shot import ZeroShot
from oracles import dca as slow
from oracles import towers
from oracles.images import Images

CLASSES = ("cat", "dog", "a_photo", "x")
NAMES = ("cat", "dog", "a photo", "x")
PLACEMENTS = sorted(SIZES)
PATCHES = 16


def build(clip: CLIP, shots: int = 3, **options: object) -> VPT:
    return VPT.build(clip, Problem(names=CLASSES, shots=shots, seed=1), VPTOptions(**options))  # type: ignore[arg-type]


def written_out(clip: CLIP, method: VPT, pixels: Tensor) -> Tensor:
    """f of each image, the tokens put into and taken out of a list of rows by hand."""
    tokens, n = method.tokens.detach().double(), method.tokens.shape[1]
    placement = method.options.placement

    def put(layer: int, x: Tensor) -> Tensor:
        own = [*x[: 1 + PATCHES]] if placement == "maple" else [x[0], *x[len(x) - PATCHES :]]
        fresh = [*tokens[layer]]
        return torch.stack([*own, *fresh] if placement == "maple" else [own[0], *fresh, *own[1:]])

    def before_norm(layer: int, x: Tensor) -> Tensor:
        return x if placement == "dapt" else put(0, x)

    def change(layer: int, x: Tensor) -> Tensor:
        if layer >= len(tokens) or (layer == 0 and placement != "dapt"):
            assert len(x) == 1 + PATCHES + n
            return x
        return put(layer, x)

    return torch.stack([towers.encode_image(clip, image, change, before_norm) for image in pixels.double()])


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_logits_and_loss_equal_the_equations(clip: CLIP, placement: str, depth: int) -> None:
    images, plain = Images((2, 1, 1, 2)), towers.double(clip)
    method = build(clip, placement=placement, depth=depth, tokens=3)
    method.prepare(images)
    step = method.step(images.batch())
    with torch.no_grad():
        f = written_out(plain, method, images.pixels)
        t = torch.stack([towers.encode_text(plain, towers.embed(plain, f"a photo of a {c}.")) for c in NAMES])
        logits = plain.tau * f @ t.T
    torch.testing.assert_close(method.encode(images.pixels).double(), f, atol=1e-5, rtol=0)
    torch.testing.assert_close(step.probabilities.double(), logits.softmax(-1), atol=1e-5, rtol=0)
    assert list(step.terms) == ["cls"]
    assert float(step.terms["cls"].detach()) == pytest.approx(towers.cross_entropy(logits, images.labels), abs=1e-5)
    method.finish(images)
    method.build_head()
    torch.testing.assert_close(method.classify(f.float()).double(), logits.softmax(-1), atol=1e-5, rtol=0)


def test_parameters_on_vit_b_16() -> None:
    assert parameter_count(VPT) == 46_080
    problem = Problem(names=tuple(f"class {c}" for c in range(100)), shots=16)
    counts = {
        (placement, n, depth): VPT.build(
            build_without_weights(VIT_B_16), problem, VPTOptions(placement=placement, tokens=n, depth=depth)
        ).count_parameters()
        for placement, n, depth in [("dapt", 8, None), ("maple", None, None), ("original", None, None)]
    }
    assert list(counts.values()) == [6_144, 73_728, 46_080]


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("depth", [1, 3])
def test_no_tokens_is_clip(clip: CLIP, placement: str, depth: int) -> None:
    pixels = Images((2, 2)).pixels
    method = build(clip, placement=placement, tokens=0, depth=depth)
    torch.testing.assert_close(method.encode(pixels), F.normalize(clip.encode_image(pixels), dim=-1))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_where_among_the_patches_the_tokens_stand_does_not_matter(clip: CLIP, placement: str) -> None:
    pixels = Images((2, 2)).pixels
    extra = build(clip, placement=placement, depth=3).extra()
    other = dataclasses.replace(extra, position="end" if extra.position == "after_cls" else "after_cls")
    torch.testing.assert_close(
        clip.encode_image(pixels, tokens=extra), clip.encode_image(pixels, tokens=other), atol=1e-5, rtol=0
    )


def test_normalised_tokens_after_ln_pre_equal_tokens_before_it(clip: CLIP) -> None:
    pixels = Images((2, 2)).pixels
    before, after = build(clip, placement="maple", tokens=4, depth=1), build(clip, placement="dapt", tokens=4)
    with torch.no_grad():
        after.tokens.copy_(clip.visual.ln_pre(before.tokens))
    torch.testing.assert_close(before.encode(pixels), after.encode(pixels), atol=1e-5, rtol=0)


def rows_of_tokens(method: VPT) -> slice:
    n = method.tokens.shape[1]
    return slice(1, 1 + n) if method.options.placement != "maple" else slice(1 + PATCHES, None)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_replaced_outputs_do_not_matter_and_kept_ones_do(placement: str) -> None:
    """Noise on what block 0 makes of its tokens is lost where block 1 has tokens of its own, and only there."""
    clip, images = make_clip(), Images((1, 1, 1, 1))

    def noise(module: torch.nn.Module, inputs: object, output: Residual) -> Residual:
        noisy = output.total().clone()
        noisy[:, rows_of_tokens(method)] += torch.randn_like(noisy[:, rows_of_tokens(method)])
        return Residual(noisy)

    for depth, same in [(2, True), (1, False)]:
        method = build(clip, placement=placement, depth=depth, tokens=3)
        clean = method.encode(images.pixels)
        handle = clip.visual.blocks[0].register_forward_hook(noise)
        assert torch.equal(method.encode(images.pixels), clean) == same
        handle.remove()


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_sequence_keeps_its_length_beyond_the_depth(placement: str, depth: int) -> None:
    clip, lengths = make_clip(), []
    for block in clip.visual.blocks:
        block.register_forward_pre_hook(lambda module, inputs: lengths.append(inputs[0].x.shape[1]))
    build(clip, placement=placement, depth=depth, tokens=5).encode(Images((1, 1)).pixels)
    assert lengths == [1 + PATCHES + 5] * 3


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_tokens_start_as_published(clip: CLIP, placement: str) -> None:
    tokens = build(clip, placement=placement, tokens=40, depth=12).tokens.detach()
    reach = (6 / (3 * 8**2 + 32)) ** 0.5
    assert tokens.shape == (3, 40, 32)
    if placement == "maple":
        assert float(tokens.std()) == pytest.approx(0.02, rel=0.05)
    else:
        assert 0.98 * reach < float(tokens.abs().max()) <= reach
        assert float(tokens.std()) == pytest.approx(reach / 3**0.5, rel=0.05)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_gradients_reach_every_token_and_nothing_else(placement: str) -> None:
    clip, images = make_clip(), Images((1, 1, 1, 1))
    method = build(clip, placement=placement, depth=3, tokens=2)
    method.prepare(images)
    method.step(images.batch()).terms["cls"].backward()
    assert method.tokens.grad is not None
    assert method.tokens.grad.abs().sum(-1).min() > 0
    assert all(p.grad is None for p in clip.parameters())


def test_dropout_is_drawn_from_the_batch_and_only_while_training(clip: CLIP) -> None:
    images, method = Images((1, 1, 1, 1)), build(clip, dropout=0.5)
    method.prepare(images)
    state = torch.get_rng_state()
    one, again, other = (float(method.step(images.batch(seed)).terms["cls"].detach()) for seed in (0, 0, 1))
    assert one == again != other
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(method.encode(images.pixels), method.encode(images.pixels))
    extra: ExtraTokens = method.extra(torch.Generator().manual_seed(0))
    dropped = extra.layers[0] == 0
    assert 0.4 < float(dropped.float().mean()) < 0.6
    torch.testing.assert_close(extra.layers[0][~dropped], 2 * method.tokens[0][~dropped])


def test_the_sentence_is_ours_or_the_dataset_s(clip: CLIP) -> None:
    problem = Problem(names=CLASSES, shots=2, template="{} texture.")
    images = Images((1, 1, 1, 1))
    own = VPT.build(clip, problem, VPTOptions(template=None))
    zero_shot = ZeroShot.build(clip, problem, ZeroShot.Options())
    zero_shot.finish()
    zero_shot.build_head()
    own.finish(images)
    own.build_head()
    torch.testing.assert_close(own.text_features, zero_shot.text_features)
    elsewhere = dataclasses.replace(problem, template="a {} seen from above.")
    zero_shot.problem = elsewhere
    zero_shot.finish()
    zero_shot.build_head()
    moved = own.retarget(elsewhere, (None,) * len(CLASSES))
    torch.testing.assert_close(moved.text_features, zero_shot.text_features)
    assert VPT.build(clip, problem, VPTOptions()).options.template == "a photo of a {}."
    with pytest.raises(UserError, match="is missing"):
        VPTOptions(template="a photo")


def test_the_recipe_follows_placement_shots_and_dataset() -> None:
    def recipe(shots: int, dataset: str = "", **options: str) -> tuple[object, ...]:
        chosen = VPT.resolve(VPTOptions(**options), Problem(names=CLASSES, shots=shots, dataset=dataset))  # type: ignore[arg-type]
        return chosen.epochs, chosen.batch_size, chosen.learning_rate

    assert [recipe(k)[0] for k in (1, 2, 4, 8, 16)] == [50, 100, 100, 200, 200]
    assert recipe(16, "imagenet") == (50, 32, None)
    assert recipe(16, placement="original") == (200, 32, None)
    assert recipe(16, placement="maple") == (5, 4, 0.0025)


@pytest.mark.parametrize("center", ["text", "visual"])
@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (4, 2, 3, 3)])
def test_mahalanobis_probabilities_equal_the_equations(clip: CLIP, center: str, counts: tuple[int, ...]) -> None:
    images = Images(counts)
    method = build(clip, test_metric="mahalanobis", center=center)
    method.finish(images)
    method.build_head()
    x, t = method.encode(images.pixels).detach().double(), method.encode_text().double()
    f = method.encode(Images((3, 2), seed=9).pixels).detach()
    got = method.classify(f)
    for n, row in enumerate(f.double()):
        distances = []
        for c in range(len(CLASSES)):
            own = x[images.labels == c]
            middle = t[c] if center == "text" else own.mean(0)
            sigma = slow.dense_covariance(own, middle, *paper_gammas(3), True)
            distances.append(float(slow.dense_distance(sigma, row, t[c])))
        expected = torch.tensor(slow.probability(distances, clip.tau, 1e-6, "inverse"))
        torch.testing.assert_close(got[n], expected, atol=1e-5, rtol=1e-4)


def test_euclidean_probabilities_equal_the_equations(clip: CLIP) -> None:
    method = build(clip, test_metric="euclidean")
    method.finish(Images((1, 1, 1, 1)))
    method.build_head()
    f = method.encode(Images((1, 1), seed=9).pixels).detach()
    t = method.encode_text()
    for row, got in zip(f, method.classify(f), strict=True):
        distances = [float((row - t[c]).square().sum()) for c in range(len(CLASSES))]
        expected = torch.tensor(slow.probability(distances, clip.tau, 1e-6, "inverse"))
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


def test_training_features_are_stored_only_for_covariances_and_checked(clip: CLIP) -> None:
    images = Images((2, 3, 1, 2))
    cosine, covariance = build(clip), build(clip, test_metric="mahalanobis")
    for method, shape in [(cosine, (0, 16)), (covariance, (8, 16))]:
        method.finish(images)
        method.build_head()
        assert method.train_features.shape == shape
        twin = build(clip, test_metric=method.options.test_metric)
        twin.restore(method.state_dict())
        f = method.encode(images.pixels)
        assert torch.equal(twin.classify(f), method.classify(f))
    for one, other in [(cosine, covariance), (covariance, cosine)]:
        with pytest.raises(UserError, match="not those of a 'vpt' model") as caught:
            one.restore(other.state_dict())
        assert any("train_" in line for line in caught.value.details)
    state = {**cosine.state_dict(), "text_features": torch.ones(3, 16)}
    with pytest.raises(UserError) as caught:
        cosine.restore(state)
    assert list(caught.value.details) == ["text_features: shape (3, 16), expected (4, 16)"]


def test_an_indefinite_covariance_is_named_by_class(clip: CLIP) -> None:
    method = build(clip, test_metric="mahalanobis", gamma1=0.0, gamma2=500.0)
    method.finish(Images((3, 3, 3, 3)))
    with pytest.raises(UserError, match="gamma1=0, gamma2=500") as caught:
        method.build_head()
    assert all(line.removeprefix("class ") in CLASSES for line in caught.value.details)
