from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from dca.backbones.clip import CLIP
from dca.core import seeds
from dca.core.errors import UserError
from dca.datasets.dataset import Dataset
from dca.datasets.draws import draw_few_shot
from dca.methods.base import Batch, Problem, Step, TrainingOptions
from dca.methods.cross_modal import CrossModal, CrossModalOptions
from dca.methods.dca import DCA, DCAOptions
from dca.methods.two_sfs import TwoSFS, TwoSFSOptions
from dca.training import resume
from dca.training.context import make_problem
from dca.training.loop import StepProgress, Trainer
from dca.training.resume import STATE, read_metrics
from dca.training.schedule import draw_batches, learning_rate_at
from dca.training.session import Session
from dca.training.support import ImageSupport
from oracles.images import Images


@pytest.fixture(scope="module")
def images(sample: Dataset, clip: CLIP) -> ImageSupport:
    return ImageSupport(draw_few_shot(sample, 2, 1).train, Session(device="cpu"), clip, 1)


@pytest.fixture
def trainer(sample: Dataset, clip: CLIP, images: ImageSupport) -> Trainer:
    return make(sample, clip, images)


def make(sample: Dataset, clip: CLIP, images: ImageSupport, **options: Any) -> Trainer:
    problem = make_problem(draw_few_shot(sample, 2, 1), 1, "strict")
    chosen = DCAOptions(**{"epochs": 3, "batch_size": 8, "warmup_epochs": 1, **options})
    method = DCA.build(clip, problem, chosen)
    return Trainer(method, images, method.options, 1)


def test_the_rate_warms_up_and_then_falls_along_a_cosine():
    recipe = TrainingOptions(warmup_epochs=2, warmup_rate=1e-5)
    rates = [learning_rate_at(epoch, 10, recipe, 0.1) for epoch in range(10)]
    assert rates[:2] == [1e-5, 1e-5]
    assert rates[2] == 0.1
    assert rates[7] == pytest.approx(0.05)
    assert rates[2:] == sorted(rates[2:], reverse=True)


@pytest.mark.parametrize(("count", "size", "sizes"), [(20, 8, [8, 8]), (5, 8, [5]), (8, 8, [8]), (16, 8, [8, 8])])
def test_batches_cover_a_random_order_and_leave_a_short_last_one_out(count: int, size: int, sizes: list[int]):
    found = list(draw_batches(count, size, seeds.generator(1, "x")))
    assert [len(indices) for indices in found] == sizes
    taken = torch.cat(found).tolist()
    assert len(set(taken)) == len(taken)
    assert taken != sorted(taken)


@pytest.mark.parametrize(("count", "size", "sizes"), [(20, 8, [8, 8, 4]), (5, 8, [5]), (16, 8, [8, 8])])
def test_a_short_last_batch_is_kept_where_asked_for(count: int, size: int, sizes: list[int]):
    found = draw_batches(count, size, seeds.generator(1, "x"), "keep")
    assert [len(indices) for indices in found] == sizes
    assert sorted(torch.cat(found).tolist()) == list(range(count))
    dropped = draw_batches(count, size, seeds.generator(1, "x"))
    assert all(torch.equal(a, b) for a, b in zip(dropped, found, strict=False))
    assert len(draw_batches(count, size, seeds.generator(1, "x"), "keep", 1)) == 1


def test_every_image_counts_once_an_epoch_if_the_short_last_batch_is_kept(
    sample: Dataset, clip: CLIP, images: ImageSupport, monkeypatch: pytest.MonkeyPatch
):
    size = len(images) - 3  # the last batch has three images
    seen: list[int] = []
    for last in ("drop", "keep"):
        trainer = make(sample, clip, images, epochs=1, batch_size=size, last_batch=last, learning_rate=0.1)
        plain = trainer.method.step

        def counting(batch: Batch, plain: Any = plain) -> Step:
            seen.append(len(batch.labels))
            return plain(batch)

        monkeypatch.setattr(trainer.method, "step", counting)
        (row,) = trainer.run()
        assert 0 <= row["accuracy"] <= 1
    assert seen == [size, size, 3]


def test_closed_form_steps_equal_backpropagation_with_a_short_last_batch(clip: CLIP, monkeypatch: pytest.MonkeyPatch):
    images = Images((2, 2, 2, 1))
    problem = Problem(names=("cat", "dog", "a photo", "x"), shots=3)
    weights, rows = [], []
    for closed in (True, False):
        chosen = CrossModalOptions(batch_size=3, epochs=2, last_batch="keep", keep="last")
        method = CrossModal.build(clip, problem, chosen)
        if not closed:
            monkeypatch.setattr(CrossModal, "analytic_steps", None)
        trainer = Trainer(method, images, method.options, 1)  # type: ignore[arg-type]
        assert len({len(rows) for rows in trainer._order(seeds.generator(1, "epoch"))}) == 2
        rows.append(trainer.run()[-1]["accuracy"])
        weights.append(method.weight.detach())
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-6)
    assert rows[0] == rows[1]


def test_one_row_an_epoch_with_every_loss_term_and_its_sum(trainer: Trainer):
    rows = trainer.run()
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    for row in rows:
        terms = [value for name, value in row.items() if name.startswith("loss_")]
        assert len(terms) == 3
        assert row["loss"] == pytest.approx(sum(terms))
        assert 0 <= row["accuracy"] <= 1
        assert row["seconds"] >= 0
    assert rows[0]["learning_rate"] == trainer.options.warmup_rate
    assert rows[1]["learning_rate"] == trainer.rate


def test_the_progress_counts_every_step_to_the_end(trainer: Trainer):
    ticks: list[StepProgress] = []
    trainer.run(None, ticks.append)
    assert [tick.done for tick in ticks] == list(range(1, 7))
    assert {tick.total for tick in ticks} == {6}
    assert [tick.epoch for tick in ticks] == [1, 1, 2, 2, 3, 3]
    assert all(math.isfinite(tick.loss) for tick in ticks)


def test_training_lowers_the_loss(sample: Dataset, clip: CLIP, images: ImageSupport):
    rows = make(sample, clip, images, epochs=12, augment=False).run()
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_momentum_is_part_of_the_state(trainer: Trainer, sample: Dataset, clip: CLIP, images: ImageSupport):
    """Without it, a resumed run would differ: the second run starts from the parameters alone."""
    trainer.run()
    first = make(sample, clip, images)
    first.epochs = 2
    first.run()
    bare = make(sample, clip, images)
    bare.method.load_state_dict(first.method.state_dict())
    bare.rows = list(first.rows)
    bare._epoch(2, None)
    assert any(not a.equal(b) for a, b in zip(bare.method.parameters(), trainer.method.parameters(), strict=True)), (
        "a run without its momentum ends elsewhere"
    )


def test_a_state_taken_up_is_the_state_that_was_saved(
    trainer: Trainer, sample: Dataset, clip: CLIP, images: ImageSupport, tmp_path: Path
):
    trainer.run(tmp_path)
    other = make(sample, clip, images, epochs=5)
    assert other._restore(tmp_path) == 3
    assert other.rate == trainer.rate
    assert other.rows == trainer.rows == read_metrics(tmp_path)
    for (name, mine), theirs in zip(other.method.named_parameters(), trainer.method.parameters(), strict=True):
        assert mine.equal(theirs), name
        momentum = trainer.optimizer.state[theirs]["momentum_buffer"]
        assert other.optimizer.state[mine]["momentum_buffer"].equal(momentum)


def test_an_interrupt_before_the_first_epoch_ends_saves_nothing(trainer: Trainer, tmp_path: Path):
    def stop(tick: StepProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.run(tmp_path, stop)
    assert list(tmp_path.iterdir()) == []
    assert trainer._restore(tmp_path) == 0


def test_states_are_written_at_intervals_and_at_the_end(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    written: list[int] = []
    serialised = resume.save_tensors
    monkeypatch.setattr(
        resume, "save_tensors", lambda *a, **k: written.append(len(trainer.rows)) or serialised(*a, **k)
    )
    trainer.run(tmp_path)
    assert written == [3], "and the state is serialised only when it is written"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_stops_with_a_rate_to_try(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, value: float
):
    def broken(batch: Any) -> Step:
        loss = sum(p.sum() for p in trainer.method.parameters()) * value
        return Step({"cls": loss}, torch.ones(len(batch.labels), 10))

    monkeypatch.setattr(trainer.method, "step", broken)
    with pytest.raises(UserError, match="diverged in epoch 1: loss term cls") as caught:
        trainer.run()
    assert "--set learning_rate=" in caught.value.render("cli")
    with pytest.raises(UserError, match="no finite gradient") as caught:
        trainer.probe_learning_rate()
    assert "dca methods show dca" in caught.value.render("cli")


def test_parameters_that_leave_the_numbers_stop_the_run_in_that_epoch(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
):
    def broken(batch: Any) -> Step:
        zero = sum((p - p.detach()).abs().sum().sqrt() for p in trainer.method.parameters())
        return Step({"cls": zero}, torch.ones(len(batch.labels), 10))

    monkeypatch.setattr(trainer.method, "step", broken)
    trainer.epochs = 1
    trainer.batch_size = len(trainer.images)
    with pytest.raises(UserError, match="a trained value is not finite"):
        trainer.run()


def test_the_probed_rate_moves_the_tokens_by_the_stated_share(
    trainer: Trainer, sample: Dataset, clip: CLIP, images: ImageSupport
):
    parameters = list(trainer.method.parameters())
    size = math.sqrt(sum(float(p.detach().square().sum()) for p in parameters))
    generator = seeds.generator(1, "probe")
    steps = list(draw_batches(len(images), 8, generator))
    for indices in steps:
        terms = trainer.method.step(next(trainer._batches([indices], generator))).terms
        (torch.stack(list(terms.values())).sum() / len(steps)).backward()
    gradient = math.sqrt(sum(float(p.grad.square().sum()) for p in parameters if p.grad is not None))
    assert trainer.rate * gradient == pytest.approx(0.02 * 2**1.5 * size, rel=1e-4)


def test_no_rows_where_nothing_was_saved_and_a_bad_row_is_named(tmp_path: Path):
    assert read_metrics(tmp_path) == []
    for bad in ('{"epoch": 1}', "[]", "{", '{"epoch": 1, "seconds": "2"}'):
        (tmp_path / "metrics.jsonl").write_text('{"epoch": 1, "seconds": 0.5}\n' + bad + "\n")
        with pytest.raises(UserError, match="line 2 is not a row"):
            read_metrics(tmp_path)


def test_training_options_without_numbers_are_refused(trainer: Trainer, images: ImageSupport):
    with pytest.raises(ValueError, match="must be numbers"):
        Trainer(trainer.method, images, dataclasses.replace(trainer.options, epochs=None), 1)


def test_a_finished_state_is_left_as_it_is(trainer: Trainer, tmp_path: Path):
    trainer.run(tmp_path)
    before = (tmp_path / STATE).stat().st_mtime_ns
    assert len(trainer.run(tmp_path)) == 3
    assert (tmp_path / STATE).stat().st_mtime_ns == before


def test_each_stage_has_its_own_optimiser_and_schedule(sample: Dataset, clip: CLIP, images: ImageSupport) -> None:
    """Against two optimisers and two of torch's schedules, one after the other."""
    problem = make_problem(draw_few_shot(sample, 2, 1), 1, "strict")
    chosen = TwoSFSOptions(epochs=4, batch_size=8, first_share=0.5, learning_rate=1e-3)
    ours, theirs = (Trainer(TwoSFS.build(clip, problem, chosen), images, chosen, 1) for _ in range(2))
    recorders = [ours._gradients]
    ours.method.on_epoch_end = lambda *at, done=ours.method.on_epoch_end: (recorders.append(ours._gradients), done(*at))  # type: ignore[method-assign, misc]
    ours.run()
    assert [one is recorders[0] for one in recorders] == [True, True, True, False, False], "recorded anew"
    method = theirs.method
    assert isinstance(method, TwoSFS)
    for stage, trained in enumerate([list(method.norms.values()), [method.classifier]]):
        method.begin_stage(stage)
        optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.01)
        steps = 2 * (len(images.labels) // 8)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=1e-6)
        for epoch in (2 * stage, 2 * stage + 1):
            generator = seeds.generator(1, "epoch", epoch)
            for indices in list(draw_batches(len(images.labels), 8, generator)):
                optimizer.zero_grad()
                method.step(next(theirs._batches([indices], generator))).terms["cls"].backward()
                optimizer.step()
                falling.step()
        if stage == 0:
            with torch.no_grad():
                method.classifier.copy_(method.encode_sentences(method.updates()))
    for name, value in method.state_dict().items():
        torch.testing.assert_close(ours.method.state_dict()[name], value, atol=1e-5, rtol=0)
