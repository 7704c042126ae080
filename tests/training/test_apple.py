"""Apple's GPU, with stand-ins: frozen features are made there where it has a route, and the CPU does all else."""

from __future__ import annotations

import copy
import logging
from typing import Any, Self

import pytest
import torch
from PIL import Image

from dca.backbones.clip import CLIP
from dca.core.device import resolve_device, split_device
from dca.features.store import MemoryStore
from dca.training.session import Session

MPS = torch.device("mps")


class OnApple(CLIP):
    """Stands for a CLIP on Apple's GPU, and counts; `failing`: it meets an operation without a route."""

    failing, encoded = False, 0

    def to_device(self, device: torch.device | str) -> Self:
        return self

    def encode_image(self, images: Any, **more: Any) -> torch.Tensor:
        if type(self).failing:
            raise NotImplementedError("The operator 'aten::_upsample_bicubic2d' is not implemented for MPS")
        type(self).encoded += len(images)
        return CLIP.encode_image(self._original, images, **more)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, clip: CLIP) -> Session:
    def to_device(self: CLIP, device: torch.device | str) -> CLIP:
        if torch.device(device).type != "mps":
            return self
        moved = copy.copy(self)
        moved.__class__ = OnApple
        moved.__dict__["_original"] = self
        return moved

    monkeypatch.setattr(OnApple, "encoded", 0)
    monkeypatch.setattr(OnApple, "failing", False)
    monkeypatch.setattr(type(clip), "to_device", to_device)
    monkeypatch.setattr("dca.training.session.resolve_device", lambda name: MPS)
    return Session(device="mps", store=MemoryStore())


def images() -> list[Image.Image]:
    return [Image.new("RGB", (40, 30 + n), (n, 90, 200 - n)) for n in range(5)]


def test_auto_takes_cuda_then_apple_s_gpu_then_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for cuda, mps, expected in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr("torch.cuda.is_available", lambda found=cuda: found)
        monkeypatch.setattr("torch.backends.mps.is_available", lambda found=mps: found)
        assert resolve_device("auto").type == expected


def test_methods_stay_on_the_cpu() -> None:
    assert split_device(MPS) == (torch.device("cpu"), MPS)
    for name in ("cpu", "cuda:1"):
        assert split_device(torch.device(name)) == (torch.device(name),) * 2


def test_frozen_features_are_made_there(session: Session, clip: CLIP) -> None:
    assert (session.device.type, session.feature_device.type) == ("cpu", "mps")
    found = session.frozen_features(clip, images())
    assert OnApple.encoded == 1 + len(images()), "one image to try it"
    assert found.device.type == "cpu"
    assert torch.equal(found, clip.encode_image(images()))
    assert clip.device.type == "cpu"


def test_what_has_no_route_there_runs_on_the_cpu(
    session: Session, clip: CLIP, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(OnApple, "failing", True)
    with caplog.at_level(logging.WARNING):
        found = session.frozen_features(clip, images())
        session.frozen_features(clip, images()[:2])
    assert torch.equal(found, clip.encode_image(images()))
    assert caplog.text.count("stays on the CPU") == 1
    assert "_upsample_bicubic2d" in caplog.text
