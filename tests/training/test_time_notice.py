"""The notice that training will take long, with a clock that the tests set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dca.backbones.clip import CLIP
from dca.core.progress import silent
from dca.datasets.dataset import Dataset
from dca.datasets.draws import draw_few_shot
from dca.methods.dca import DCA, DCAOptions
from dca.methods.gda import GDA
from dca.training.context import FitContext
from dca.training.fit import fit
from dca.training.held_out import count_fits, fold_progress, predict_held_out
from dca.training.session import Session, TimeNotice

TOLD = "training will take about {}; closed_form, the default method, trains nothing and is much faster"


class Clock:
    """A clock that goes on only when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def heard(*_: object) -> None:
    """Progress that is shown somewhere."""


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def take(clock: Clock, notice: TimeNotice, each: float, steps: range, total: int, **options: Any) -> int:
    """Take steps of `each` seconds until the notice is given; returns the last step."""
    pace = notice.start_timer(options.pop("progress", heard), **options)
    for done in steps:
        clock.now += each
        pace.step(done, total)
        if notice.given:
            return done
    return steps[-1]


@pytest.mark.parametrize(
    ("each", "total", "words", "after"),
    [
        (0.5, 840, "7 minutes", 5),  # two seconds after the first step
        (5.0, 100, "8 minutes", 3),  # three steps
        (16.0, 1000, "4 hours", 2),  # two slow steps
        (0.01, 7000, "1 minute", 202),
    ],
)
def test_long_training_is_announced_as_soon_as_its_pace_is_known(
    caplog: pytest.LogCaptureFixture, each: float, total: int, words: str, after: int
):
    clock = Clock()
    last = take(clock, TimeNotice(clock), each, range(1, total + 1), total)
    assert told(caplog) == [TOLD.format(words)]
    assert abs(last - after) <= 1, "the floating-point clock may be a step off"


def test_short_training_is_not_announced(caplog: pytest.LogCaptureFixture):
    clock = Clock()
    take(clock, TimeNotice(clock), 0.5, range(1, 100), 99)
    assert told(caplog) == []


def test_a_slow_beginning_does_not_count_as_the_pace(caplog: pytest.LogCaptureFixture):
    clock = Clock()
    pace = TimeNotice(clock).start_timer(heard)
    clock.now += 40  # features are computed, the first batch is read
    for done in range(1, 101):
        clock.now += 0.1
        pace.step(done, 100)
    assert told(caplog) == []


def test_only_what_is_left_counts_for_a_fit_that_continues(caplog: pytest.LogCaptureFixture):
    clock = Clock()
    take(clock, TimeNotice(clock), 0.5, range(761, 841), 840)
    assert told(caplog) == []
    take(clock, TimeNotice(clock), 0.5, range(601, 841), 840)
    assert told(caplog) == [TOLD.format("2 minutes")]


def test_the_fits_to_come_count(caplog: pytest.LogCaptureFixture):
    clock = Clock()
    take(clock, TimeNotice(clock), 0.5, range(1, 81), 80, fits=5)
    assert told(caplog) == [TOLD.format("3 minutes")]


def test_it_is_said_once_however_many_fits_there_are(caplog: pytest.LogCaptureFixture):
    clock = Clock()
    notice = TimeNotice(clock)
    for _ in range(3):
        take(clock, notice, 1.0, range(1, 200), 199)
    assert len(told(caplog)) == 1


def test_nothing_is_said_where_progress_is_not_shown(caplog: pytest.LogCaptureFixture):
    clock = Clock()
    take(clock, TimeNotice(clock), 1.0, range(1, 200), 199, progress=silent)
    take(clock, TimeNotice(clock), 1.0, range(1, 200), 199, progress=fold_progress(silent, 0, 5))
    assert told(caplog) == []


def test_an_estimate_multiplies_only_what_is_trained(sample: Dataset):
    assert count_fits(DCA, sample, estimate=True) == 4, "four images per class: four folds"
    assert count_fits(DCA, sample, estimate=False) == 1
    assert count_fits(GDA, sample, estimate=True) == 1


@pytest.fixture
def slow(clip: CLIP, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session in which every step of a method takes a minute."""
    session = Session(device="cpu", progress=heard)
    clock = session.time_notice.clock = Clock()
    real = DCA.step

    def step(self: DCA, batch: Any) -> Any:
        clock.now += 60
        return real(self, batch)

    monkeypatch.setattr(DCA, "step", step)
    return session


def test_a_fit_says_it_already_while_it_looks_for_the_learning_rate(
    sample: Dataset, clip: CLIP, slow: Session, caplog: pytest.LogCaptureFixture
):
    options = DCAOptions(epochs=3, batch_size=8, warmup_epochs=1)
    fit(DCA, options, draw_few_shot(sample, 2, 1), FitContext(session=slow, encoder=clip, seed=1))
    # Two trial steps and 3 epochs of two steps.
    assert told(caplog) == [TOLD.format("8 minutes")]


def test_a_fit_that_continues_counts_what_is_left(
    sample: Dataset, clip: CLIP, slow: Session, caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    options, source = DCAOptions(epochs=3, batch_size=8, warmup_epochs=1), draw_few_shot(sample, 2, 1)

    def stop(stage: str, done: int, total: int, note: str) -> None:
        if stage == "training" and done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(DCA, options, source, FitContext(session=slow.with_progress(stop), encoder=clip, seed=1, folder=tmp_path))
    caplog.clear()
    slow.time_notice.given = False
    fit(DCA, options, source, FitContext(session=slow, encoder=clip, seed=1, folder=tmp_path))
    (_, notice) = told(caplog)
    assert notice == TOLD.format("6 minutes"), "two trial steps and two epochs of two steps"


def test_folds_say_it_for_those_to_come(sample: Dataset, clip: CLIP, slow: Session, caplog: pytest.LogCaptureFixture):
    options, source = DCAOptions(epochs=1, batch_size=4, warmup_epochs=0), draw_few_shot(sample, 2, 1)
    method, _ = fit(DCA, options, source, FitContext(session=slow.with_progress(silent), encoder=clip, seed=1))
    assert told(caplog) == []
    predict_held_out(method, options, source, FitContext(session=slow, encoder=clip, seed=1))
    # Two folds of ten images: two trial steps and two steps each.
    assert told(caplog) == [TOLD.format("8 minutes")]
