from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from dca.backbones.clip import CLIP
from dca.core import seeds
from dca.methods.base import Batch, Problem
from dca.methods.clap import CLAP, CLAPOptions, class_multipliers
from dca.methods.summary import parameter_count
from dca.methods.zero_shot import ZeroShot
from dca.training.loop import Trainer
from oracles.frozen import cross_entropy, dot, mean_of, softmax, unit
from oracles.images import Images

CLASSES = ("cat", "dog", "a photo", "x")


def prepared(clip: CLIP, images: Images, **options: object) -> tuple[CLAP, Batch]:
    method = CLAP.build(clip, Problem(names=CLASSES, shots=3), CLAPOptions(**options))  # type: ignore[arg-type]
    rows, labels = method.training_rows(images)
    method.prepare(images)
    return method, Batch(rows, labels, seeds.generator(0, "test"))


def test_it_trains_51200_parameters_on_vit_b_16() -> None:
    assert parameter_count(CLAP) == 51200


@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (1, 4, 2, 1)])
def test_the_loss_equals_the_equations(clip: CLIP, counts: tuple[int, ...]) -> None:
    images = Images(counts)
    method, batch = prepared(clip, images, views=1, strength=0.7, recipe="paper")
    with torch.no_grad():
        method.weight.add_(0.3 * torch.randn(method.weight.shape, generator=torch.Generator().manual_seed(0)))
    t = clip.encode_text([f"a photo of a {name}." for name in CLASSES]).double().tolist()
    f = unit(clip.encode_image(images.view(0)).double().tolist())
    w = method.weight.double().tolist()
    labels = images.labels.tolist()
    zero_shot = [softmax([clip.tau * dot(x, t_c) for t_c in unit(t)]) for x in f]
    lam = [mean_of([[p[c]] for p, y in zip(zero_shot, labels, strict=True) if y == c])[0] for c in range(4)]
    logits = [[clip.tau * dot(x, w_c) for w_c in unit(w)] for x in f]
    apart = [sum((a - b) ** 2 for a, b in zip(w[c], t[c], strict=True)) for c in range(4)]
    terms = {name: float(term.detach()) for name, term in method.step(batch).terms.items()}
    expected = {"cls": cross_entropy(logits, labels), "near_text": 0.7 * dot(lam, apart) / 4}
    assert terms == pytest.approx(expected, rel=1e-5)
    method.build_head()
    got = method.classify(method.encode(images.view(0)))
    wanted = torch.tensor([softmax(row) for row in logits], dtype=torch.float64)
    torch.testing.assert_close(got.double(), wanted, atol=1e-5, rtol=0)


def test_multipliers_average_all_views_of_a_class(clip: CLIP) -> None:
    images = Images((2, 1, 1, 3))
    method, _ = prepared(clip, images, views=3)
    t = F.normalize(clip.encode_text([f"a photo of a {name}." for name in CLASSES]), dim=-1)
    for c in range(4):
        seen = []
        for v in range(3):
            f = F.normalize(clip.encode_image(images.view(v)[images.labels == c]), dim=-1)
            seen += (clip.tau * f @ t.T).softmax(-1)[:, c].tolist()
        assert float(method._lambda[c]) == pytest.approx(sum(seen) / len(seen), rel=1e-5)
        assert 0 < float(method._lambda[c]) < 1


def test_forms_of_the_multipliers() -> None:
    f, y = F.normalize(torch.randn(12, 6, generator=torch.Generator().manual_seed(0)), dim=-1), torch.arange(12) % 3
    t = F.normalize(torch.randn(3, 6, generator=torch.Generator().manual_seed(1)), dim=-1)
    own = class_multipliers(f, y, t, 10.0, "class")
    torch.testing.assert_close(class_multipliers(f, y, t, 10.0, "mean"), own.mean().expand(3))
    torch.testing.assert_close(class_multipliers(f, y, t, 10.0, "corrected"), own / own.mean())
    assert class_multipliers(f, y, t, 10.0, "one").tolist() == [1, 1, 1]
    assert class_multipliers(f, y, t, 10.0, "none").tolist() == [0, 0, 0]


def test_before_the_first_step_it_is_zero_shot(clip: CLIP) -> None:
    images = Images((1, 1, 1, 1))
    method, batch = prepared(clip, images)
    plain = ZeroShot.build(clip, method.problem, ZeroShot.Options())
    plain.finish()
    plain.build_head()
    method.build_head()
    f = method.encode(images.pixels)
    torch.testing.assert_close(method.classify(f), plain.classify(f))
    assert float(method.step(batch).terms["near_text"].detach()) == 0


def test_zs_lp_has_no_penalty_and_gradients_reach_the_prototypes_alone(clip: CLIP) -> None:
    method, batch = prepared(clip, Images((2, 2, 2, 2)), multipliers="none")
    step = method.step(batch)
    assert list(step.terms) == ["cls"]
    step.terms["cls"].backward()
    assert [name for name, _ in method.named_parameters()] == ["weight"]
    assert (method.weight.grad.abs().sum(dim=1) > 0).all()  # type: ignore[union-attr]
    assert all(p.grad is None for p in clip.parameters())


def trained(clip: CLIP, images: Images, size: float, **options: object) -> CLAP:
    """After a few epochs with text vectors that are `size` times as long."""
    chosen = CLAPOptions(views=2, epochs=6, batch_size=5, **options)  # type: ignore[arg-type]
    method = CLAP.build(clip, Problem(names=CLASSES, shots=3), chosen)
    texts = size * method.texts()
    method.texts = lambda: texts  # type: ignore[method-assign]
    Trainer(method, images, chosen, seed=1).run()  # type: ignore[arg-type]
    return method.build_head()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_length_of_text_vectors_does_not_matter(clip: CLIP, optimizer: str) -> None:
    """Learning rate, warm-up, weight decay and penalty all act on scaled vectors; as published they do not."""
    images = Images((3, 2, 1, 3))

    def probabilities(size: float, recipe: str) -> torch.Tensor:
        method = trained(clip, images, size, recipe=recipe, optimizer=optimizer, weight_decay=0.01, warmup_rate=0.05)
        return method.classify(method.encode(images.pixels)).detach()

    torch.testing.assert_close(probabilities(8.0, "scaled"), probabilities(1.0, "scaled"), atol=1e-5, rtol=1e-4)
    assert float((probabilities(8.0, "paper") - probabilities(1.0, "paper")).abs().max()) > 1e-2


def test_on_a_backbone_like_openai_clip_both_recipes_are_the_same(clip: CLIP, monkeypatch: pytest.MonkeyPatch) -> None:
    images = Images((2, 2, 2, 2))
    size = 10 / float(CLAP.build(clip, Problem(names=CLASSES, shots=2), CLAPOptions()).texts().norm(dim=-1).mean())
    monkeypatch.setattr("dca.methods.shared.prompts.CLIP_TAU", clip.tau)
    scaled, paper = (trained(clip, images, size, recipe=recipe, strength=1.0) for recipe in ("scaled", "paper"))
    torch.testing.assert_close(scaled.weight, paper.weight, atol=1e-4, rtol=1e-5)


def test_the_published_recipe_starts_at_the_raw_text_vectors(clip: CLIP) -> None:
    method, _ = prepared(clip, Images((1, 1, 1, 1)), recipe="paper")
    assert method.options.strength == 1
    assert torch.equal(method.weight.detach(), clip.encode_text([f"a photo of a {name}." for name in CLASSES]).detach())


def test_raw_names_are_read_with_their_underscores(clip: CLIP) -> None:
    problem = Problem(
        names=("apple pie", "ramen"), shots=1, dataset="food101", template="a photo of {}, a type of food."
    )
    plain, raw = (CLAP.build(clip, problem, CLAPOptions(names=names)).texts()[0] for names in ("plain", "raw"))
    assert torch.equal(
        raw, clip.encode_text(["a photo of apple_pie, a type of food.", "a photo of ramen, a type of food."])
    )
    assert not torch.allclose(raw[0], plain[0], atol=1e-3)
    torch.testing.assert_close(raw[1], plain[1])


@pytest.mark.parametrize(("batch_size", "steps", "rows"), [(5, 1, 5), (4, 2, 4), (256, 1, 24)])
def test_steps_over_shuffled_views_are_as_many_as_the_images_make(
    clip: CLIP, batch_size: int, steps: int, rows: int
) -> None:
    """8 images of 3 views: the authors' loop draws batches from all 24 rows, also more rows than images."""
    images = Images((2, 2, 2, 2))
    chosen = CLAPOptions(views=3, epochs=1, batch_size=batch_size, sampling="views")
    method = CLAP.build(clip, Problem(names=CLASSES, shots=2), chosen)
    trainer = Trainer(method, images, method.options, seed=1)  # type: ignore[arg-type]
    order = trainer._order(seeds.generator(1, "epoch"))
    assert [len(indices) for indices in order] == [rows] * steps
    batch = trainer._batch(order[0], seeds.generator(1, "draw"))
    every = [F.normalize(clip.encode_image(images.view(v)), dim=-1) for v in range(3)]
    for row, index, label in zip(batch.inputs, order[0].tolist(), batch.labels.tolist(), strict=True):
        image, view = divmod(index, 3)
        torch.testing.assert_close(F.normalize(row[0], dim=-1), every[view][image])
        assert label == int(images.labels[image])
    trainer.run()
    assert torch.isfinite(method.weight).all()
