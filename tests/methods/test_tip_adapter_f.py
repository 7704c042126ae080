from __future__ import annotations

import math

import pytest
import torch

from dca.backbones.clip import CLIP
from dca.core import seeds
from dca.core.errors import UserError
from dca.methods.base import Batch, Problem
from dca.methods.summary import parameter_count
from dca.methods.tip_adapter import TipAdapter, TipAdapterOptions
from dca.methods.tip_adapter_f import TipAdapterF, TipAdapterFOptions
from dca.training.loop import Trainer
from oracles.frozen import cross_entropy, dot, unit
from oracles.images import Images

CLASSES = ("cat", "dog", "a photo", "x")


def build(clip: CLIP, dataset: str = "", shots: int = 3, **options: object) -> TipAdapterF:
    problem = Problem(names=CLASSES, shots=shots, dataset=dataset)
    return TipAdapterF.build(clip, problem, TipAdapterFOptions(**options))  # type: ignore[arg-type]


def test_it_trains_819200_parameters_on_vit_b_16_at_16_shots() -> None:
    assert parameter_count(TipAdapterF) == 819200
    assert parameter_count(TipAdapterF, shots=4) == 819200 // 4


def test_the_loss_equals_the_equations(clip: CLIP) -> None:
    """At keys that are no longer unit vectors, with one view: nothing is left to chance."""
    images = Images((2, 1, 3, 2))
    method = build(clip, dataset="dtd", train_views=1, crop_low=0.08)
    method.prepare(images)
    with torch.no_grad():
        method.keys.add_(0.1 * torch.randn(method.keys.shape, generator=torch.Generator().manual_seed(0)))
    rows, labels = method.training_rows(images)
    step = method.step(Batch(rows, labels, seeds.generator(0, "test")))
    f = unit(clip.encode_image(images.view(0)).double().tolist())
    t = unit(clip.encode_text([f"a photo of a {name}." for name in CLASSES]).double().tolist())
    logits = []
    for x in f:
        row = [clip.tau * dot(x, t_c) for t_c in t]
        for key, label in zip(method.keys.double().tolist(), labels.tolist(), strict=True):
            row[label] += 2.0 * math.exp(-1.0 * (1 - dot(x, key)))
        logits.append(row)
    assert float(step.terms["cls"].detach()) == pytest.approx(cross_entropy(logits, labels.tolist()), rel=1e-5)


def test_before_the_first_step_it_is_tip_adapter(clip: CLIP) -> None:
    images = Images((3, 3, 3, 3), validation=Images((2, 2, 2, 2), seed=4))
    method = build(clip)
    method.prepare(images)
    method.finish(images)
    method.build_head()
    plain = TipAdapter.build(clip, method.problem, TipAdapterOptions())
    plain.finish(images)
    plain.build_head()
    f = method.encode(images.pixels)
    assert torch.equal(method.alpha_beta, plain.alpha_beta)
    torch.testing.assert_close(method.classify(f), plain.classify(f))


def test_a_batch_holds_one_view_of_each_image_and_all_views_occur(clip: CLIP) -> None:
    from dca.methods.shared.frozen_features import draw_unit_view

    inputs = torch.eye(4).expand(64, 4, 4)  # view v of every image is the v-th unit vector
    drawn = draw_unit_view(Batch(inputs, torch.zeros(64, dtype=torch.int64), seeds.generator(0, "draw")))
    assert drawn.shape == (64, 4)
    assert (drawn.sum(dim=0) > 4).all()
    assert (drawn.sum(dim=1) == 1).all()


def test_gradients_reach_the_keys_and_nothing_else(clip: CLIP) -> None:
    images = Images((2, 2, 2, 2))
    method = build(clip, train_views=2)
    method.prepare(images)
    rows, labels = method.training_rows(images)
    assert rows.shape == (8, 2, clip.config.embed_dim)
    method.step(Batch(rows, labels, seeds.generator(0, "test"))).terms["cls"].backward()
    assert [name for name, _ in method.named_parameters()] == ["keys"]
    assert float(method.keys.grad.abs().sum()) > 0  # type: ignore[union-attr]
    assert all(p.grad is None for p in clip.parameters())


def test_eurosat_trains_longer() -> None:
    assert TipAdapterF.resolve(TipAdapterFOptions(), Problem(names=CLASSES, shots=1, dataset="eurosat")).epochs == 100
    assert TipAdapterF.resolve(TipAdapterFOptions(), Problem(names=CLASSES, shots=1)).epochs == 20


def test_as_many_keys_come_back_as_were_saved(clip: CLIP) -> None:
    """The shots of a problem are an average; the keys are as many as the images."""
    images = Images((1, 5, 2, 1))
    method = build(clip, shots=2)
    method.prepare(images)
    method.finish(images)
    method.build_head()
    again = build(clip, shots=2)
    again.restore(method.state_dict())
    f = method.encode(images.pixels)
    assert torch.equal(again.classify(f), method.classify(f))
    with pytest.raises(UserError, match="not those"):
        again.restore({**method.state_dict(), "keys": torch.zeros(9, 3)})


def test_the_short_last_batch_is_kept_as_in_the_authors_code(clip: CLIP) -> None:
    images = Images((2, 2, 2, 1))
    for chosen, sizes in (({}, [4, 3]), ({"last_batch": "drop"}, [4])):
        method = build(clip, batch_size=4, train_views=1, epochs=2, **chosen)
        trainer = Trainer(method, images, method.options, seed=1)  # type: ignore[arg-type]
        assert [len(rows) for rows in trainer._order(seeds.generator(1, "epoch"))] == sizes
        assert len(trainer.run()) == 2


def test_keys_and_training_take_the_crop_range(clip: CLIP) -> None:
    images = Images((1, 2, 1, 1))
    method = build(clip, views=2, train_views=1, crop_low=0.5)
    method.prepare(images)
    encoded = [clip.encode_image(images.view(v, 0.5)) for v in range(2)]
    expected = torch.nn.functional.normalize(torch.stack(encoded).mean(dim=0), dim=-1)
    torch.testing.assert_close(method.keys.detach(), expected)
    torch.testing.assert_close(method.training_rows(images)[0][:, 0], encoded[0])
    plain = TipAdapter.build(clip, method.problem, TipAdapter.parse_options({"views": 2, "crop_low": 0.5}))
    plain.finish(images)
    torch.testing.assert_close(plain.keys, expected)
