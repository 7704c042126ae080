from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.backbones.dual_encoder import compute_digest
from dca.datasets.dataset import Dataset
from dca.methods.base import Problem
from dca.methods.summary import parameter_count
from dca.methods.two_sfs import TwoSFS, TwoSFSOptions
from dca.methods.zero_shot import ZeroShot
from dca.model.classifier import Classifier
from oracles import towers
from oracles.images import Images
from oracles.towers import CLASSES, TEMPLATE, features_of_task


def build(clip: CLIP, *, trained: bool = True, **options: object) -> TwoSFS:
    problem = Problem(names=CLASSES, shots=3, seed=1, template=TEMPLATE)
    method = TwoSFS.build(clip, problem, TwoSFSOptions(**options))  # type: ignore[arg-type]
    if trained:
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for values in method.norms.values():
                values.add_(0.3 * torch.randn(values.shape, generator=generator))
    method.prepare(Images((1, 1, 1, 1)))
    method.begin_stage(0)
    return method


def replaced(clip: CLIP, method: TwoSFS) -> CLIP:
    """A float64 copy whose layer norms hold the trained gains and biases: blocks in order, then those outside."""
    plain = towers.double(clip)
    outside = {"visual": [plain.visual.ln_pre, plain.visual.ln_post], "text": [plain.text.ln_final]}
    for tower in ("visual", "text"):
        norms = [norm for block in getattr(plain, tower).blocks for norm in (block.ln_1, block.ln_2)]
        norms += outside[tower] if method.options.norms == "all" else []
        for norm, (gain, bias) in zip(norms, method.norms[tower].detach().double(), strict=True):
            norm.weight.copy_(gain)
            norm.bias.copy_(bias)
    return plain


@pytest.mark.parametrize("norms", ["all", "blocks"])
def test_stage_1_equals_towers_with_other_norms(clip: CLIP, norms: str) -> None:
    images, method = Images((2, 1, 1, 2)), build(clip, norms=norms)
    step = method.step(images.batch())
    with torch.no_grad():
        f, t = features_of_task(replaced(clip, method), images.pixels)
    logits = clip.tau * f @ t.T
    torch.testing.assert_close(step.probabilities.double(), logits.softmax(-1), atol=1e-5, rtol=0)
    assert list(step.terms) == ["cls"]
    assert float(step.terms["cls"].detach()) == pytest.approx(towers.cross_entropy(logits, images.labels), abs=1e-5)
    torch.testing.assert_close(method.encode(images.pixels).double(), f, atol=1e-5, rtol=0)
    torch.testing.assert_close(method.classifier.detach().double(), t, atol=1e-5, rtol=0)
    step.terms["cls"].backward()
    assert all(p.grad is not None and p.grad.flatten(1).abs().sum(-1).min() > 0 for p in method.norms.values())
    assert method.classifier.grad is None


def test_stage_2_trains_a_cosine_classifier_on_adapted_features(clip: CLIP) -> None:
    images, method = Images((2, 1, 1, 2)), build(clip)
    with torch.no_grad():
        method.classifier.mul_(3.0).add_(0.1 * torch.randn(4, 16, generator=torch.Generator().manual_seed(2)))
    method.begin_stage(1)
    step = method.step(images.batch())
    with torch.no_grad():
        f, _ = features_of_task(replaced(clip, method), images.pixels)
    w = method.classifier.detach().double()
    logits = clip.tau * f @ torch.stack([row / row.norm() for row in w]).T
    torch.testing.assert_close(step.probabilities.double(), logits.softmax(-1), atol=1e-5, rtol=0)
    assert float(step.terms["cls"].detach()) == pytest.approx(towers.cross_entropy(logits, images.labels), abs=1e-5)
    step.terms["cls"].backward()
    assert method.classifier.grad is not None
    assert all(p.grad is None for p in method.norms.values())
    method.finish(images)
    method.build_head()
    torch.testing.assert_close(method.classify(f.float()).double(), logits.softmax(-1), atol=1e-5, rtol=0)


def test_parameters_on_vit_b_16() -> None:
    norms = 2 * ((2 * 12 + 2) * 768 + (2 * 12 + 1) * 512)
    assert norms == 65_536
    assert parameter_count(TwoSFS) == norms + 100 * 512
    assert parameter_count(TwoSFS, classes=10) == norms + 10 * 512
    assert parameter_count(TwoSFS, norms="blocks") == norms - 4096 + 100 * 512


def test_at_zero_steps_it_is_zero_shot_with_the_template(clip: CLIP) -> None:
    images, method = Images((1, 1, 1, 1)), build(clip, trained=False)
    zero_shot = ZeroShot.build(clip, method.problem, ZeroShot.Options())
    zero_shot.finish()
    zero_shot.build_head()
    method.finish(images)
    method.build_head()
    expected = zero_shot.classify(zero_shot.encode(images.pixels))
    torch.testing.assert_close(method.classify(method.encode(images.pixels)), expected, atol=1e-6, rtol=0)


def test_new_classes_keep_the_text_of_stage_1(clip: CLIP) -> None:
    images, method = Images((1, 1, 1, 1)), build(clip)
    with torch.no_grad():
        method.classifier.add_(0.1 * torch.randn(4, 16, generator=torch.Generator().manual_seed(2)))
    method.finish(images)
    method.build_head()
    names = ("a fox", "dog", "cat")
    other = method.retarget(Problem(names=names, shots=3, seed=1, template=TEMPLATE), [None, 1, 0])
    with torch.no_grad():
        plain = replaced(clip, method)
        fox = towers.encode_text(plain, towers.embed(plain, TEMPLATE.replace("{}", "a fox")))
    torch.testing.assert_close(other.text_features[0].double(), fox, atol=1e-5, rtol=0)
    assert torch.equal(other.text_features[1:], method.text_features[[1, 0]])
    more = method.with_class("a fox", Images((0,)))
    torch.testing.assert_close(more.text_features[4].double(), fox, atol=1e-5, rtol=0)
    assert torch.equal(more.text_features[:4], method.text_features)
    assert torch.equal(method.with_name(1, "a fox").text_features, method.text_features)
    assert torch.equal(method.without_class(1).text_features, method.text_features[[0, 2, 3]])


@pytest.mark.parametrize(("epochs", "stages"), [(10, (6, 4)), (5, (3, 2)), (2, (1, 1)), (1, (1, 0)), (0, (0, 0))])
def test_sixty_percent_of_the_epochs_are_stage_1(clip: CLIP, epochs: int, stages: tuple[int, int]) -> None:
    assert build(clip).stages(epochs) == stages


@pytest.mark.parametrize(("classes", "shots", "epochs"), [(10, 16, 960), (1000, 16, 10), (2, 1, 300)])
def test_300_steps_a_shot_become_epochs(classes: int, shots: int, epochs: int) -> None:
    chosen = TwoSFS.resolve(TwoSFSOptions(), Problem(names=tuple(map(str, range(classes))), shots=shots))
    assert (chosen.epochs, chosen.batch_size) == (epochs, 32)
    assert (chosen.learning_rate, chosen.weight_decay, chosen.optimizer) == (2e-4, 0.01, "adamw")
    assert (chosen.final_rate, chosen.schedule, chosen.warmup_epochs) == (1e-6, "step", 0)


def fitted(sample: Dataset, epochs: int, **more: object) -> Classifier:
    settings = {"epochs": epochs, "batch_size": 8, **more}
    return Classifier("two_sfs", seed=3, backbone=make_clip(), device="cpu", **settings)


def test_norms_move_in_stage_1_and_the_classifier_in_stage_2(sample: Dataset) -> None:
    one = fitted(sample, 2, first_share=1.0).fit(sample).method_
    both = fitted(sample, 4, first_share=0.5).fit(sample).method_
    assert isinstance(one, TwoSFS)
    assert isinstance(both, TwoSFS)
    torch.testing.assert_close(dict(one.norms), dict(both.norms), atol=0, rtol=0)
    assert not torch.equal(one.norms["visual"], build(make_clip(), trained=False).norms["visual"])
    torch.testing.assert_close(one.classifier, one.encode_sentences(one.updates()), atol=0, rtol=0)
    moved = (both.classifier - one.classifier).abs()
    assert 0 < float(moved.max().detach()) < 0.1
    second = fitted(sample, 2, first_share=0.0).fit(sample).method_
    assert isinstance(second, TwoSFS)
    start = build(make_clip(), trained=False)
    assert torch.equal(second.norms["text"], start.norms["text"])
    assert compute_digest(second.clip) == compute_digest(make_clip())


def test_a_run_that_stops_inside_stage_2_continues_there(
    sample: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dca.training.loop

    def stop(stage: str, done: int, total: int, note: str) -> None:
        if stage == "training" and "epoch 4/" in note:
            raise KeyboardInterrupt

    straight = fitted(sample, 4, first_share=0.5).fit(sample)
    rates = [row["learning_rate"] for row in straight.history_]
    assert rates[0] == rates[2] > rates[1] == rates[3], "each stage has the whole schedule"
    monkeypatch.setattr(dca.training.loop, "SAVE_EVERY", 0.0)
    with pytest.raises(KeyboardInterrupt):
        fitted(sample, 4, first_share=0.5).fit(sample, progress=stop, folder=tmp_path)
    resumed = fitted(sample, 4, first_share=0.5).fit(sample, folder=tmp_path)
    one, other = straight.method_.state_dict(), resumed.method_.state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert F.normalize(other["classifier"], dim=-1).isfinite().all()
