"""Libraries of a GPU start in the background."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace

import pytest
import torch

from dca.core import device as warm_up


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "_starting", None)


def test_a_cpu_has_nothing_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "call_gpu_libraries", lambda device: pytest.fail("called"))
    warm_up.start_gpu_libraries(torch.device("cpu"))
    warm_up.wait_for_gpu_libraries()


def test_a_gpu_starts_once_in_the_background_and_can_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, go = SimpleNamespace(type="cuda"), Event()
    seen: list[object] = []

    def first_calls(device: object) -> None:
        go.wait(5)
        seen.append(device)

    monkeypatch.setattr(warm_up, "call_gpu_libraries", first_calls)
    warm_up.start_gpu_libraries(gpu)  # type: ignore[arg-type]
    warm_up.start_gpu_libraries(gpu)  # type: ignore[arg-type]
    assert not seen
    go.set()
    warm_up.wait_for_gpu_libraries()
    assert seen == [gpu]


def test_the_calls_exist_and_errors_are_left_to_those_who_need_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[bool] = []

    def installed() -> bool:
        called.append(True)
        return False

    monkeypatch.setattr(warm_up, "triton_installed", installed)
    warm_up.call_gpu_libraries(torch.device("cpu"))
    assert called  # every call before it succeeded
    monkeypatch.setattr(torch, "eye", lambda *_, **__: 1 / 0)
    warm_up.call_gpu_libraries(torch.device("cpu"))
