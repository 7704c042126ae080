from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.methods.base import Batch, Problem
from dca.methods.lamm import LAMM, LAMMOptions
from dca.methods.summary import parameter_count
from dca.methods.zero_shot import ZeroShot
from dca.training.schedule import make_optimizer
from oracles.images import Images
from oracles.steps import literal_logits, require_gradients, require_own_randomness, unit_images, values
from oracles.text import encode_sequences_padded
from oracles.towers import cross_entropy

CLASSES = ("cat dog", "dog photo cat", "a_photo of", "x y z")


def build(clip: CLIP, classes: tuple[str, ...] = CLASSES, shots: int = 3, **options: object) -> LAMM:
    return LAMM.build(clip, Problem(names=classes, shots=shots, seed=1), LAMMOptions(**options))  # type: ignore[arg-type]


def moved(method: LAMM) -> LAMM:
    with torch.no_grad():
        method.labels.add_(0.3 * torch.randn(method.labels.shape, generator=torch.Generator().manual_seed(2)))
    return method


def written_out(clip: CLIP, labels: Tensor | None) -> Tensor:
    """Text features (C, D) of "a photo of a NAME.", the first tokens of NAME taken from `labels`."""
    table, tokenizer = clip.text.embedding.weight, clip.tokenizer
    sequences = []
    for c, name in enumerate(CLASSES):
        own = table[[*tokenizer.encode(name.replace("_", " ")), *tokenizer.encode(".")]].clone()
        if labels is not None:
            own[: labels.shape[1]] = labels[c]
        front = table[[tokenizer.sot_id, *tokenizer.encode("a photo of a")]]
        sequences.append(torch.cat([front, own, table[[tokenizer.eot_id]]]))
    return encode_sequences_padded(clip, sequences)


def entropy_between(p: Tensor, q: Tensor, T: float) -> float:
    """Mean over images of -Σ softmax(p/T) log softmax(q/T), written out."""
    total = 0.0
    for a, b in zip(p.tolist(), q.tolist(), strict=True):
        pa, qb = ([math.exp(v / T) for v in row] for row in (a, b))
        total -= sum(x / sum(pa) * math.log(y / sum(qb)) for x, y in zip(pa, qb, strict=True))
    return total / len(p)


@pytest.mark.parametrize(("anchor", "distillation"), [("code", "student"), ("paper", "teacher")])
def test_step_and_probabilities_equal_the_equations(clip: CLIP, anchor: str, distillation: str) -> None:
    images = Images((3, 2, 1, 2))
    method = moved(build(clip, anchor=anchor, distillation=distillation, recipe="paper"))
    assert method.labels.shape == (4, 2, 24)
    with torch.no_grad():
        f = unit_images(clip, images.pixels)
        t, t0 = written_out(clip, method.labels), written_out(clip, None)
        z, z0 = literal_logits(clip, f, t), literal_logits(clip, f, t0)
        start = torch.stack(
            [clip.text.embedding.weight[clip.tokenizer.encode(c.replace("_", " "))[:2]] for c in CLASSES]
        )
        names = float((method.labels - start).pow(2).sum())
    drift = sum(1 - float(t[y] @ t0[y]) for y in images.labels.tolist()) / len(f)
    order = (z, z0) if distillation == "student" else (z0, z)
    expected = {
        "cls": cross_entropy(z, images.labels),
        "names": names if anchor == "code" else names / 3,
        "features": drift,
        "distillation": 0.05 * 4 * entropy_between(*order, 2.0),
    }
    step = method.step(images.batch())
    assert values(step) == pytest.approx(expected, abs=1e-5, rel=1e-5)
    torch.testing.assert_close(step.probabilities, z.softmax(-1), atol=1e-5, rtol=0)
    method.finish(images)
    method.build_head()
    torch.testing.assert_close(method.classify(method.encode(images.pixels)), z.softmax(-1), atol=1e-5, rtol=0)


def test_it_starts_at_zero_shot_clip_with_nothing_to_hold(clip: CLIP) -> None:
    images = Images((2, 2, 2, 2))
    method = build(clip)
    plain = ZeroShot.build(clip, method.problem, ZeroShot.Options(templates=("a photo of a {}.",)))
    plain.finish()
    plain.build_head()
    f = method.encode(images.pixels)
    difference = clip.tau * f @ (method.encode_text() - plain.text_features).mT
    assert float(difference.detach().abs().max()) < 1e-4
    terms = values(method.step(images.batch()))
    z = clip.tau * f @ plain.text_features.mT
    p = (z / 2).softmax(-1)
    entropy = float(-(p * p.log()).sum(-1).mean())
    assert terms["names"] == 0
    assert terms["features"] == pytest.approx(0, abs=1e-6)
    assert terms["distillation"] == pytest.approx(0.05 * 4 * entropy, abs=1e-5)


def test_trained_parameters_on_vit_b_16() -> None:
    assert parameter_count(LAMM) == 51_200
    assert parameter_count(LAMM, classes=7) == 7 * 512


def test_the_shortest_name_decides_how_many_tokens_are_learned(clip: CLIP) -> None:
    assert build(clip, ("cat", "x y z")).labels.shape[1] == 1
    assert build(clip, ("x y", "x y z")).labels.shape[1] == 2
    assert build(clip, ("x y", "x y z"), n_tokens=1).labels.shape[1] == 1
    assert build(clip, ("x y", "x y z"), n_tokens=5).labels.shape[1] == 2


def test_equal_names_have_rows_of_their_own(clip: CLIP) -> None:
    method = moved(build(clip, ("cat", "cat", "dog")))
    t = method.encode_text()
    assert float((t[0] - t[1]).detach().abs().max()) > 1e-3


def test_the_feature_term_needs_two_labels(clip: CLIP) -> None:
    images = Images((3, 1, 1, 1))
    method = moved(build(clip))
    alike = Batch(images.pixels[:3], images.labels[:3], images.batch().generator)
    assert values(method.step(alike))["features"] == 0
    assert values(method.step(images.batch()))["features"] > 0


def test_gradients_reach_every_name(clip: CLIP) -> None:
    fresh = make_clip()
    method = build(fresh)
    require_gradients(method, fresh, Images((2, 1, 1, 1)))
    assert method.labels.grad is not None
    assert method.labels.grad.abs().sum(-1).min() > 0
    require_own_randomness(LAMM, clip, method.problem)


def test_the_recipe_is_one_for_all_shots(clip: CLIP) -> None:
    for shots in (1, 16):
        chosen = build(clip, shots=shots).options
        assert (chosen.epochs, chosen.batch_size, chosen.learning_rate) == (50, 32, 0.002)
    assert build(clip, learning_rate=None).options.learning_rate is None


def test_names_that_do_not_fit_are_listed(clip: CLIP) -> None:
    with pytest.raises(UserError, match="longer than"):
        build(clip, ("cat", "z" * 75))


def longer_tokens(size: float) -> CLIP:
    """The same backbone with token embeddings that are `size` times as long, and divided by it where they are read."""
    clip = make_clip()
    with torch.no_grad():
        clip.text.embedding.weight.mul_(size)
    read = clip.text.encode_packed
    clip.text.encode_packed = lambda x, *others: read(x / size, *others)  # type: ignore[method-assign]
    return clip


def trained(clip: CLIP, **options: object) -> Tensor:
    """Text features (C, D) after a few steps."""
    images, method = Images((3, 2, 1, 2)), build(clip, **options)
    optimizer = make_optimizer(method, method.options, rate=0.02)
    for _ in range(3):
        optimizer.zero_grad()
        torch.stack(list(method.step(images.batch()).terms.values())).sum().backward()
        optimizer.step()
    return method.encode_text().detach()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_length_of_token_embeddings_does_not_matter(optimizer: str) -> None:
    """Learning rate, weight decay and anchor act on scaled vectors; as published they do not."""
    rest = {"optimizer": optimizer, "weight_decay": 0.01}
    scaled, paper = ([trained(longer_tokens(size), recipe=r, **rest) for size in (1, 4)] for r in ("scaled", "paper"))
    torch.testing.assert_close(scaled[0], scaled[1], atol=1e-4, rtol=1e-4)
    assert float((scaled[0] - written_out(make_clip(), None)).abs().max()) > 1e-3
    assert float((paper[0] - paper[1]).abs().max()) > 1e-3


def test_on_a_backbone_like_openai_clip_both_recipes_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    clip = make_clip()
    monkeypatch.setattr("dca.methods.shared.prompts.CLIP_TAU", clip.tau)
    monkeypatch.setattr("dca.methods.lamm.CLIP_TOKEN_NORM", float(clip.text.embedding.weight.norm(dim=-1).mean()))
    torch.testing.assert_close(trained(clip, recipe="scaled"), trained(clip, recipe="paper"), atol=1e-5, rtol=1e-4)


def test_the_published_recipe_learns_the_raw_embeddings(clip: CLIP) -> None:
    method = build(clip, recipe="paper")
    start = torch.stack([clip.text.embedding.weight[clip.tokenizer.encode(c.replace("_", " "))[:2]] for c in CLASSES])
    assert torch.equal(method.labels.detach(), start.detach())
