from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.backbones.clip.vision import TowerEnd
from dca.backbones.dual_encoder import compute_digest
from dca.core import seeds
from dca.core.errors import UserError
from dca.core.progress import silent
from dca.datasets.dataset import Dataset
from dca.methods.base import Batch, Problem
from dca.methods.cross_modal import CrossModal, CrossModalOptions, load_vector, repeats_per_epoch
from dca.methods.summary import parameter_count
from dca.methods.zero_shot import ZeroShot
from dca.model.classifier import Classifier
from oracles import towers
from oracles.frozen import cross_entropy, dot, unit
from oracles.images import Images

CLASSES = ("cat", "dog", "a photo", "x")
TWO = ("a photo of a {}.", "the {} itself")


def prepared(clip: CLIP, images: Images, **options: object) -> CrossModal:
    method = CrossModal.build(clip, Problem(names=CLASSES, shots=3), CrossModalOptions(**options))  # type: ignore[arg-type]
    method.prepare(images)
    return method


def disturbed(clip: CLIP, images: Images, **options: object) -> CrossModal:
    """The partial form, with an end and a head that are no longer CLIP's."""
    method = prepared(clip, images, form="partial", **options)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in method.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return method


def the_end(method: CrossModal) -> TowerEnd:
    assert isinstance(method.end, TowerEnd)
    return method.end


def end_vector(method: CrossModal) -> Tensor:
    return parameters_to_vector(the_end(method).parameters()).detach()


def test_it_trains_51200_parameters_on_vit_b_16() -> None:
    assert parameter_count(CrossModal) == 51200
    assert parameter_count(CrossModal, form="partial") == 7533824


def test_the_loss_equals_the_equations(clip: CLIP) -> None:
    """A batch as large as the number of sentences holds each of them once."""
    images = Images((2, 2, 2, 2))
    method = prepared(clip, images, templates=TWO)
    with torch.no_grad():
        method.weight.mul_(1.7).add_(0.1)
    f = F.normalize(clip.encode_image(images.pixels), dim=-1).detach()
    step = method.step(Batch(f, images.labels, seeds.generator(0, "test")))
    samples = f.double().tolist()
    labels = images.labels.tolist()
    for template in TWO:
        samples += unit(clip.encode_text([template.format(name) for name in CLASSES]).double().tolist())
        labels += [0, 1, 2, 3]
    logits = [[clip.tau * dot(x, w) for w in method.weight.double().tolist()] for x in samples]
    assert float(step.terms["cls"].detach()) == pytest.approx(cross_entropy(logits, labels), rel=1e-5)
    method.finish(images)
    method.build_head()
    wanted = torch.tensor(logits[: len(f)], dtype=torch.float64).softmax(-1)
    torch.testing.assert_close(method.classify(f).double(), wanted, atol=1e-5, rtol=0)


def test_the_partial_forms_logits_and_loss_equal_the_equations(clip: CLIP) -> None:
    """Every row of every image through every layer of a tower whose end is the trained one."""
    images = Images((2, 2, 2, 2))
    method, plain = disturbed(clip, images, templates=TWO), towers.double(clip)
    for mine, theirs in (
        (plain.visual.blocks[-1], the_end(method).block),
        (plain.visual.ln_post, the_end(method).ln_post),
        (plain.visual.projection, the_end(method).projection),
    ):
        mine.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        f = [towers.encode_image(plain, image).tolist() for image in images.pixels.double()]
        t = [
            towers.encode_text(plain, towers.embed(plain, template.format(name))).tolist()
            for template in TWO
            for name in CLASSES
        ]
    labels = [*images.labels.tolist(), *(2 * [0, 1, 2, 3])]
    logits = [[math.exp(4) * dot(x, w) for w in method.weight.double().tolist()] for x in f + t]
    step = method.step(Batch(method.rows(images.pixels), images.labels, seeds.generator(0, "test")))
    assert float(step.terms["cls"].detach()) == pytest.approx(cross_entropy(logits, labels), rel=1e-5)
    wanted = torch.tensor(logits[: len(f)], dtype=torch.float64).softmax(-1)
    torch.testing.assert_close(step.probabilities.double(), wanted, atol=1e-5, rtol=0)
    method.finish(images)
    method.build_head()
    shown = method.classify(method.encode(images.pixels)).detach()
    torch.testing.assert_close(shown.double(), wanted, atol=1e-5, rtol=0)


def test_partial_gradients_reach_the_end_and_the_head_and_nothing_else(clip: CLIP) -> None:
    images = Images((1, 1, 1, 1))
    before, method = compute_digest(clip), prepared(clip, images, form="partial")
    names = {name for name, _ in method.named_parameters()}
    copied = {
        *(f"end.block.{name}" for name, _ in clip.visual.blocks[-1].named_parameters()),
        *(f"end.{part}" for part in ("ln_post.weight", "ln_post.bias", "projection.weight")),
    }
    assert names == copied | {"weight"}
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    rows, labels = method.training_rows(images)
    assert not rows.requires_grad
    step = method.step(Batch(rows[:8], labels[:8], seeds.generator(0, "test")))
    step.terms["cls"].backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.any() for p in method.parameters())
    assert all(p.grad is None for p in clip.parameters())
    optimizer.step()
    assert compute_digest(clip) == before
    mine, theirs = the_end(method).block.mlp[0].weight, clip.visual.blocks[-1].mlp[0].weight
    assert not torch.equal(mine, theirs)


def test_partial_rows_are_what_enters_the_last_block(clip: CLIP) -> None:
    images = Images((1, 2, 1, 1))
    method = disturbed(clip, images, batch_size=2)
    assert not method.has_frozen_image_tower
    assert prepared(clip, images).has_frozen_image_tower
    rows, labels = method.training_rows(images)
    assert rows.shape == (200, 17, clip.config.vision.width)
    assert torch.equal(labels[:10], images.labels.repeat(2))
    with torch.no_grad():
        torch.testing.assert_close(method.features(rows[5:10]), method.encode(images.pixels.flip(-1)))


def test_partial_before_the_first_step_is_zero_shot_at_its_own_scale(clip: CLIP) -> None:
    images = Images((1, 1, 1, 1))
    plain = ZeroShot.build(clip, Problem(names=CLASSES, shots=3), ZeroShot.Options())
    plain.finish()
    plain.build_head()
    with torch.no_grad():
        wanted = plain.classify(plain.encode(images.pixels))
        for tau, scale in ((clip.tau, clip.tau), (None, math.exp(4))):
            method = prepared(clip, images, form="partial", tau=tau)
            method.finish(images)
            method.build_head()
            shown = method.classify(method.encode(images.pixels))
            scaled = (wanted.log() * scale / clip.tau).softmax(dim=-1)
            torch.testing.assert_close(shown, scaled, atol=1e-5, rtol=0)


def test_partial_takes_the_authors_batch_rate_and_decay(clip: CLIP) -> None:
    problem = Problem(names=CLASSES, shots=3)
    linear = CrossModal.resolve(CrossModalOptions(), problem)
    assert (linear.batch_size, linear.learning_rate, linear.weight_decay, linear.tau) == (16, 1e-4, 0.01, None)
    partial = CrossModal.resolve(CrossModalOptions(form="partial", weight_decay=0.0), problem)
    assert (partial.batch_size, partial.learning_rate, partial.weight_decay) == (4, 1e-5, 0.0)
    assert partial.tau == pytest.approx(54.598, abs=1e-3)


def test_partial_keeps_the_best_end_with_its_head(clip: CLIP) -> None:
    """And a finished model holds it once."""
    images = Images((2, 2, 2, 2), validation=Images((2, 2, 2, 2)))
    method = disturbed(clip, images)
    with torch.no_grad():
        f = method.encode(images.pixels)
        best = torch.linalg.lstsq(f, F.one_hot(images.labels, 4).float()).solution.T
        kept = end_vector(method)
        for weight, change in ((best, 0.0), (best, 0.5), (-best, 0.0)):
            method.weight.copy_(weight)
            load_vector(the_end(method), kept + change)
            method.on_epoch_end(1, 3)
    assert "best_end" in method.state_dict()
    method.finish(images)
    method.build_head()
    assert torch.equal(method.final_weight, best)
    assert torch.equal(end_vector(method), kept)
    assert float(method.validated) == 1.0
    assert set(method.state_dict()) == {*dict(method.named_parameters()), "final_weight", "validated"}
    torch.testing.assert_close(method.encode(images.pixels), f)


def test_wise_leaves_the_trained_end_as_it_is(clip: CLIP) -> None:
    images = Images((1, 1, 1, 1))
    method = disturbed(clip, images, wise=0.5)
    end, weight = end_vector(method), method.weight.detach().clone()
    method.finish(images)
    method.build_head()
    assert torch.equal(end_vector(method), end)
    t = F.normalize(clip.encode_text([f"a photo of a {name}." for name in CLASSES]), dim=-1)
    torch.testing.assert_close(method.final_weight, (weight + t) / 2)


def test_rows_are_made_in_the_towers_precision_and_kept_in_float32() -> None:
    clip, images = make_clip(), Images((1, 1, 1, 1))
    exact = prepared(clip, images, form="partial").rows(images.pixels)
    method = prepared(clip.with_dtype(torch.bfloat16), images, form="partial")
    rough = method.rows(images.pixels)
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, exact)
    torch.testing.assert_close(rough, exact, atol=0.1, rtol=0.1)
    assert method.encode(images.pixels).dtype == torch.float32


@pytest.mark.parametrize("counts", [(1, 1), (1, 2, 4)])
def test_partial_fits_few_and_unequal_images(counts: tuple[int, ...], sample: Dataset) -> None:
    train = tuple(item for c, count in enumerate(counts) for item in [i for i in sample.train if i.label == c][:count])
    tiny = dataclasses.replace(
        sample, labels=sample.labels[: len(counts)], names=sample.names[: len(counts)], train=train, test=()
    )
    model = Classifier("cross_modal", backbone=make_clip(), form="partial", epochs=1).fit(tiny)
    assert np.isfinite(model.predict_proba([sample.test[0].image])).all()  # type: ignore[list-item]


@pytest.fixture(scope="module")
def partly(sample: Dataset) -> Classifier:
    model = Classifier(
        "cross_modal", seed=3, backbone=make_clip(), form="partial", epochs=2, learning_rate=1e-3, warmup_epochs=0
    )
    return model.fit(dataclasses.replace(sample, val=sample.test))


def test_partial_learns_and_leaves_the_backbone_alone(partly: Classifier) -> None:
    method, fresh = partly.method_, make_clip()
    assert compute_digest(method.clip) == compute_digest(fresh)
    assert all(p.grad is None for p in method.clip.parameters())
    moved: list[tuple[str, Tensor]] = list(TowerEnd(fresh.visual).named_parameters())
    end = the_end(method).state_dict()  # type: ignore[arg-type]
    assert all(not torch.equal(end[name], first) for name, first in moved)
    assert partly.history_[-1]["loss"] < partly.history_[0]["loss"]


def test_partial_saved_and_loaded_gives_the_same_probabilities(
    partly: Classifier, sample: Dataset, tmp_path: Path
) -> None:
    partly.save_pretrained(tmp_path / "model")
    loaded = Classifier.from_pretrained(tmp_path / "model", backbone=make_clip())
    pictures = [item.image for item in sample.test[:7]]
    assert np.array_equal(partly.predict_proba(pictures), loaded.predict_proba(pictures))
    state = partly.method_.state_dict()
    state["end.ln_post.bias"] = torch.zeros(3)
    with pytest.raises(UserError, match="not those of a 'cross_modal' model") as caught:
        loaded.method_.restore(state)
    assert "end.ln_post.bias: shape (3,), expected (32,)" in caught.value.details


def test_rows_are_the_pictures_and_their_mirror_images_enough_for_an_epoch(clip: CLIP) -> None:
    images = Images((1, 2, 1, 1))
    method = prepared(clip, images, batch_size=2)
    rows, labels = method.training_rows(images)
    assert len(rows) == 200  # a hundred iterations of two images
    torch.testing.assert_close(rows[5:10], method.encode(images.pixels.flip(-1)))
    assert torch.equal(labels[:10], images.labels.repeat(2))
    assert repeats_per_epoch(100_000, 16) == 1


@pytest.mark.parametrize(("classes", "shots"), [(10, 1), (100, 16), (47, 4), (1000, 16)])
def test_epochs_make_about_12800_iterations(classes: int, shots: int) -> None:
    problem = Problem(names=tuple(map(str, range(classes))), shots=shots)
    chosen = CrossModal.resolve(CrossModalOptions(), problem)
    rows = 2 * classes * shots
    assert chosen.epochs * (rows * repeats_per_epoch(rows, 16) // 16) == pytest.approx(12800, rel=0.1)


def test_before_the_first_step_it_is_zero_shot(clip: CLIP) -> None:
    images = Images((1, 1, 1, 1))
    method = prepared(clip, images)
    method.finish(images)
    method.build_head()
    plain = ZeroShot.build(clip, method.problem, ZeroShot.Options())
    plain.finish()
    plain.build_head()
    f = method.encode(images.pixels)
    torch.testing.assert_close(method.classify(f), plain.classify(f))


def test_random_first_weights_follow_the_seed(clip: CLIP) -> None:
    one, other = (prepared(clip, Images((1, 1, 1, 1)), init="random") for _ in range(2))
    assert torch.equal(one.weight, other.weight)
    assert float(one.weight.detach().abs().max()) <= clip.config.embed_dim**-0.5


def test_the_best_weights_on_validation_images_are_kept(clip: CLIP) -> None:
    images = Images((2, 2, 2, 2), validation=Images((2, 2, 2, 2)))
    method = prepared(clip, images)
    f = method.encode(images.pixels)
    best = torch.linalg.lstsq(f, F.one_hot(images.labels, 4).float()).solution.T
    for weight in (-best, best, 0 * best):
        with torch.no_grad():
            method.weight.copy_(weight)
        method.on_epoch_end(1, 3)
    method.finish(images)
    method.build_head()
    torch.testing.assert_close(method.final_weight, best)
    assert float(method.validated) == 1.0
    last = prepared(clip, images, keep="last")
    with torch.no_grad():
        last.weight.copy_(best)
    last.on_epoch_end(1, 1)
    last.finish(images)
    last.build_head()
    assert float(last.validated) == -1


def test_of_equally_good_states_the_first_is_kept(clip: CLIP, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where float32 rounds the share down, as it does 0.7."""
    images = Images((1, 1, 1, 1), validation=Images((1, 1, 1, 1)))
    method = prepared(clip, images)
    monkeypatch.setattr("dca.methods.cross_modal.accuracy", lambda logits, labels: 0.7)
    method.on_epoch_end(1, 2)
    first = method.final_weight
    with torch.no_grad():
        method.weight.add_(1.0)
    method.on_epoch_end(2, 2)
    assert torch.equal(method.final_weight, first)


@pytest.mark.parametrize("init", ["zeroshot", "random"])
def test_wise_mixes_the_text_features_in(clip: CLIP, init: str) -> None:
    images = Images((1, 1, 1, 1))
    method = prepared(clip, images, wise=0.5, init=init)
    with torch.no_grad():
        method.weight.add_(1.0)
    trained = method.weight.detach().clone()
    method.finish(images)
    method.build_head()
    t = F.normalize(clip.encode_text([f"a photo of a {name}." for name in CLASSES]), dim=-1)
    torch.testing.assert_close(method.final_weight, (trained + t) / 2)


@pytest.mark.parametrize("gathered", [1, 2**24])
def test_the_linear_form_is_trained_as_by_its_steps(
    gathered: int, sample: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several steps at a time, with gradients in closed form, against `step` and backpropagation."""
    import dca.training.loop

    data = dataclasses.replace(sample, val=sample.test)

    def fit() -> Classifier:
        model = Classifier("cross_modal", seed=3, backbone=make_clip(), epochs=3, learning_rate=0.01, templates=TWO)
        return model.fit(data)

    monkeypatch.setattr(dca.training.loop, "GATHERED", gathered)
    fast = fit()
    monkeypatch.setattr(CrossModal, "analytic_steps", None)
    slow = fit()
    for name in ("weight", "final_weight", "validated"):
        one, other = (model.method_.state_dict()[name] for model in (fast, slow))
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    for mine, literal in zip(fast.history_, slow.history_, strict=True):
        assert mine["accuracy"] == literal["accuracy"]
        assert mine["loss"] == pytest.approx(literal["loss"], rel=1e-5)


@pytest.mark.parametrize("form", ["linear", "partial"])
def test_a_resumed_run_remembers_the_best_state(form: str, sample: Dataset, tmp_path: Path) -> None:
    """The best state may be from before the interruption."""
    import dca.training.loop

    data = dataclasses.replace(sample, val=sample.test)
    rate = {"linear": 0.1, "partial": 0.003}[form]

    def fit(folder: Path | None, epoch: int = 0) -> CrossModal:
        def told(stage: str, done: int, total: int, note: str) -> None:
            if stage == "training" and f"epoch {epoch}/" in note:
                raise KeyboardInterrupt

        model = Classifier(
            "cross_modal", seed=3, backbone=make_clip(), form=form, epochs=3, learning_rate=rate, warmup_epochs=0
        )
        return model.fit(data, progress=told, folder=folder).method_  # type: ignore[return-value]

    straight = fit(None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dca.training.loop, "SAVE_EVERY", 0.0)
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path, epoch=3)
    resumed = fit(tmp_path)
    assert float(straight.validated) > 0
    one, other = straight.state_dict(), resumed.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_grid_is_the_authors_and_leaves_what_is_given(clip: CLIP) -> None:
    problem = Problem(names=tuple(map(str, range(20))), shots=2)
    points = CrossModal.candidate_options(CrossModalOptions(search="grid"), problem)
    found = [(p.learning_rate, p.weight_decay, 2 * (p.batch_size or 0)) for p in points]
    assert found == [(r, d, b) for r in (1e-3, 1e-4) for d in (0.0, 0.01, 1e-4) for b in (8, 32)]
    assert len(CrossModal.candidate_options(CrossModalOptions(search="grid", form="partial"), problem)) == 9
    given = CrossModal.candidate_options(CrossModalOptions(search="grid", learning_rate=0.5, batch_size=3), problem)
    assert {(p.learning_rate, p.batch_size) for p in given} == {(0.5, 3)}
    assert len(given) == 3
    assert CrossModal.candidate_options(CrossModalOptions(), problem) == [CrossModalOptions()]
    with pytest.raises(UserError, match="keep=last"):
        CrossModalOptions(search="grid", keep="last")


@pytest.mark.parametrize(("names", "templates", "sizes"), [(10, (), {4}), (2, (), {4}), (10, TWO, {4, 16})])
def test_batches_of_more_sentences_than_there_are_are_left_out(
    names: int, templates: tuple[str, ...], sizes: set[int]
) -> None:
    """EuroSAT has ten sentences, so that a batch of 32 needs more than there are."""
    problem = Problem(names=tuple(map(str, range(names))), shots=4)
    points = CrossModal.candidate_options(CrossModalOptions(search="grid", templates=templates), problem)
    assert {p.batch_size for p in points} == sizes


def searched(data: Dataset, folder: Path | None = None, progress: Any = None, **options: object) -> CrossModal:
    model = Classifier(
        "cross_modal", seed=3, backbone=make_clip(), epochs=1, warmup_epochs=0, init="random", tau=1.0, **options
    )
    return model.fit(data, folder=folder, progress=progress or silent).method_  # type: ignore[return-value]


def test_the_first_best_point_on_validation_images_is_kept(sample: Dataset) -> None:
    """Equal to the fit of that point alone; what is saved says which it was."""
    data = dataclasses.replace(sample, val=sample.test)
    points = [(r, d) for r in (1e-3, 1e-4) for d in (0.0, 0.01, 1e-4)]
    alone = [searched(data, batch_size=4, learning_rate=r, weight_decay=d) for r, d in points]
    wanted = max(range(6), key=lambda n: float(alone[n].validated))
    assert len({float(method.validated) for method in alone}) > 1, "nothing to select"
    found = searched(data, batch_size=4, search="grid")
    assert (found.options.learning_rate, found.options.weight_decay) == points[wanted]
    assert torch.equal(found.final_weight, alone[wanted].final_weight)
    assert found.options_for_folds(CrossModalOptions(search="grid")).search == "none"
    assert found.options_for_folds(CrossModalOptions(search="grid")).learning_rate == points[wanted][0]
    assert found.notes() == []


def test_without_validation_images_the_grid_is_one_fixed_point(sample: Dataset) -> None:
    found, plain = (searched(dataclasses.replace(sample, val=()), search=search) for search in ("grid", "none"))
    assert torch.equal(found.final_weight, plain.final_weight)
    assert "no validation images" in found.notes()[0]


def test_an_interrupted_search_continues(sample: Dataset, tmp_path: Path) -> None:
    data = dataclasses.replace(sample, val=sample.test)

    def told(stage: str, done: int, total: int, note: str) -> None:
        if "candidate 4/" in note:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        searched(data, tmp_path, told, search="grid")
    trained: list[str] = []
    resumed = searched(data, tmp_path, lambda stage, done, total, note: trained.append(note), search="grid")
    assert not [note for note in trained if "candidate 1/" in note and "epoch" in note]
    straight = searched(data, search="grid")
    assert torch.equal(resumed.final_weight, straight.final_weight)
