"""Libraries of a GPU start in the background."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace

import pytest
import torch

from dca.core import warm_up


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "_begun", None)


def test_a_cpu_has_nothing_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "first_calls", lambda device: pytest.fail("called"))
    warm_up.begin(torch.device("cpu"))
    warm_up.wait()


def test_a_gpu_starts_once_in_the_background_and_can_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, go = SimpleNamespace(type="cuda"), Event()
    seen: list[object] = []

    def first_calls(device: object) -> None:
        go.wait(5)
        seen.append(device)

    monkeypatch.setattr(warm_up, "first_calls", first_calls)
    warm_up.begin(gpu)  # type: ignore[arg-type]
    warm_up.begin(gpu)  # type: ignore[arg-type]
    assert not seen
    go.set()
    warm_up.wait()
    assert seen == [gpu]


def test_the_calls_exist_and_errors_are_left_to_those_who_need_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[bool] = []

    def installed() -> bool:
        called.append(True)
        return False

    monkeypatch.setattr(warm_up, "installed", installed)
    warm_up.first_calls(torch.device("cpu"))
    assert called  # every call before it succeeded
    monkeypatch.setattr(torch, "eye", lambda *_, **__: 1 / 0)
    warm_up.first_calls(torch.device("cpu"))
