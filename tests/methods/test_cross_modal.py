from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from conftest import make_clip
from dca import seeds
from dca.classifier import Classifier
from dca.clip import CLIP
from dca.data.dataset import Dataset
from dca.methods.base import Batch, Task
from dca.methods.cross_modal import CrossModal, CrossModalOptions, repeats
from dca.methods.shape import trained_on
from dca.methods.zero_shot import ZeroShot
from oracles.frozen import Images, cross_entropy, dot, unit

CLASSES = ("cat", "dog", "a photo", "x")
TWO = ("a photo of a {}.", "the {} itself")


def prepared(clip: CLIP, images: Images, **options: object) -> CrossModal:
    method = CrossModal.build(clip, Task(classes=CLASSES, shots=3), CrossModalOptions(**options))  # type: ignore[arg-type]
    method.prepare(images)
    return method


def test_it_trains_51200_parameters_on_vit_b_16() -> None:
    assert trained_on(CrossModal) == 51200


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
    wanted = torch.tensor(logits[: len(f)], dtype=torch.float64).softmax(-1)
    torch.testing.assert_close(method.classify(f).double(), wanted, atol=1e-5, rtol=0)


def test_rows_are_the_pictures_and_their_mirror_images_enough_for_an_epoch(clip: CLIP) -> None:
    images = Images((1, 2, 1, 1))
    method = prepared(clip, images, batch_size=2)
    rows, labels = method.training_rows(images)
    assert len(rows) == 200  # a hundred iterations of two images
    torch.testing.assert_close(rows[5:10], method.encode(images.pixels.flip(-1)))
    assert torch.equal(labels[:10], images.labels.repeat(2))
    assert repeats(100_000, 16) == 1


@pytest.mark.parametrize(("classes", "shots"), [(10, 1), (100, 16), (47, 4), (1000, 16)])
def test_epochs_make_about_12800_iterations(classes: int, shots: int) -> None:
    task = Task(classes=tuple(map(str, range(classes))), shots=shots)
    chosen = CrossModal.resolve(CrossModalOptions(), task)
    rows = 2 * classes * shots
    assert chosen.epochs * (rows * repeats(rows, 16) // 16) == pytest.approx(12800, rel=0.1)


def test_before_the_first_step_it_is_zero_shot(clip: CLIP) -> None:
    images = Images((1, 1, 1, 1))
    method = prepared(clip, images)
    method.finish(images)
    plain = ZeroShot.build(clip, method.task, ZeroShot.Options())
    plain.finish()
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
        method.epoch_done(1, 3)
    method.finish(images)
    torch.testing.assert_close(method.head, best)
    assert float(method.validated) == 1.0
    last = prepared(clip, images, keep="last")
    with torch.no_grad():
        last.weight.copy_(best)
    last.epoch_done(1, 1)
    last.finish(images)
    assert float(last.validated) == -1


@pytest.mark.parametrize("init", ["zeroshot", "random"])
def test_wise_mixes_the_text_features_in(clip: CLIP, init: str) -> None:
    images = Images((1, 1, 1, 1))
    method = prepared(clip, images, wise=0.5, init=init)
    with torch.no_grad():
        method.weight.add_(1.0)
    trained = method.weight.detach().clone()
    method.finish(images)
    t = F.normalize(clip.encode_text([f"a photo of a {name}." for name in CLASSES]), dim=-1)
    torch.testing.assert_close(method.head, (trained + t) / 2)


def test_a_resumed_run_remembers_the_best_weights(sample: Dataset, tmp_path: Path) -> None:
    """The best state may lie before the interruption."""
    import dca.train

    data = dataclasses.replace(sample, val=sample.test)

    def fit(folder: Path | None, epoch: int = 0) -> CrossModal:
        def told(stage: str, done: int, total: int, note: str) -> None:
            if stage == "training" and f"epoch {epoch}/" in note:
                raise KeyboardInterrupt

        model = Classifier("cross_modal", seed=3, backbone=make_clip(), epochs=3, learning_rate=0.1, warmup_epochs=0)
        return model.fit(data, progress=told, folder=folder).method_  # type: ignore[return-value]

    straight = fit(None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dca.train, "SAVE_EVERY", 0.0)
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path, epoch=3)
    resumed = fit(tmp_path)
    assert float(straight.validated) > 0
    assert torch.equal(straight.validated, resumed.validated)
    assert torch.equal(straight.head, resumed.head)
