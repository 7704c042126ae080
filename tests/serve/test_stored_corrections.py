"""Corrected images are read once, and not again at every start."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dca import CLIP
from dca.core.errors import UserError
from dca.datasets.corrections import Correction
from dca.model.gallery import Gallery
from dca.serve.decoder import DecoderPool
from dca.serve.encoder import ImageFeatures
from dca.serve.stored_corrections import FILE, StoredCorrections
from dca.serve.workspace import CorrectedImage
from serve.serving import client_of, picture, service_of

IMAGES = [picture("PNG", colour=40 * n) for n in range(3)]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The files that have been decoded."""
    files, decode = list[bytes](), DecoderPool.decode

    async def counted(self: DecoderPool, data: bytes) -> Any:
        files.append(data)
        return await decode(self, data)

    monkeypatch.setattr(DecoderPool, "decode", counted)
    return files


@pytest.fixture
def stored(folder: Path) -> Path:
    """The file of a model with three corrections."""
    with client_of(service_of(folder)) as client:
        for image, label in zip(IMAGES, ("fish", "narwhal", "fish"), strict=True):
            found = client.post("/api/predict", content=image).json()["image"]
            assert client.post("/api/correct", json={"image": found, "label": label}).status_code == 200
    return folder / "corrections" / FILE


def look(folder: Path) -> tuple[Any, list[bytes], torch.Tensor]:
    """What a server knows when it has started: its state, the thumbnails and features of the corrected images."""
    service = service_of(folder)
    with client_of(service) as client:
        images = service.workspace.corrected_images()
        small = [client.get(f"/api/images/{image.sha256}").content for image in images]
        assert small == [image.thumbnail for image in images]
        return client.get("/api/model").json(), small, torch.stack([image.features.frozen for image in images])


def test_the_next_start_decodes_nothing(stored: Path, folder: Path, decoded: list[bytes]) -> None:
    state, small, features = look(folder)
    assert decoded == []
    assert (state["corrections"], state["pending"]) == (3, 0)
    stored.unlink()
    state_again, small_again, features_again = look(folder)
    assert sorted(decoded) == sorted(IMAGES)
    assert state_again == state
    assert small_again == small
    torch.testing.assert_close(features_again, features, rtol=1e-4, atol=1e-5)
    assert stored.is_file()  # although nothing was corrected
    decoded.clear()
    look(folder)
    assert decoded == []


def test_only_images_that_are_not_stored_are_read(stored: Path, folder: Path, decoded: list[bytes]) -> None:
    image = picture("PNG", colour=7)
    (folder / "corrections" / "fish" / "mine.png").write_bytes(image)
    assert look(folder)[0]["corrections"] == 4
    assert decoded == [image]


def flip(path: Path) -> None:
    """Change one bit."""
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)


def change(path: Path, change: Callable[[torch.Tensor], torch.Tensor], space: str = "") -> None:
    """Write other features, with a right hash."""
    known = path.read_bytes().partition(b'"encoder":"')[2][:16].decode()
    gallery = Gallery.load(path, known)
    assert gallery is not None
    Gallery(change(gallery.features), gallery.labels, gallery.sha256, gallery.names, gallery.jpegs).write(
        path, space or known
    )


def test_a_damaged_file_costs_time_only(stored: Path, folder: Path, decoded: list[bytes]) -> None:
    wanted = look(folder)
    flip(stored)
    found = look(folder)
    assert sorted(decoded) == sorted(IMAGES)
    assert found[:2] == wanted[:2]
    torch.testing.assert_close(found[2], wanted[2], rtol=1e-4, atol=1e-5)
    decoded.clear()
    look(folder)
    assert decoded == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-40]),
        flip,
        lambda path: path.write_bytes(b""),
        lambda path: change(path, lambda features: features.log()),  # negative ones are not finite
        lambda path: change(path, lambda features: features[:, :-1]),
        lambda path: change(path, lambda features: features.double()),
        lambda path: change(path, lambda features: features, "0123456789abcdef"),
    ],
)
def test_a_file_that_is_damaged_or_of_another_backbone_is_not_used(
    tmp_path: Path, clip: CLIP, damage: Callable[[Path], None]
) -> None:
    (tmp_path / "corrections").mkdir()
    store, features = StoredCorrections(tmp_path, clip), ImageFeatures(torch.randn(clip.feature_dim), None)
    correction = Correction(tmp_path / "corrections" / "fish" / "a.png", "fish", "0a" * 32)
    store.write([CorrectedImage(correction, 1, b"a thumbnail", features)])
    (found,) = store.read().values()
    assert found.thumbnail == b"a thumbnail"
    torch.testing.assert_close(found.features.frozen, features.frozen, rtol=0, atol=0)
    damage(tmp_path / "corrections" / FILE)
    assert StoredCorrections(tmp_path, clip).read() == {}


def test_nothing_stays_of_images_that_are_corrections_no_longer(stored: Path, folder: Path) -> None:
    with client_of(service_of(folder)) as client:
        client.post("/api/undo", json={})  # the refit
        client.post("/api/undo", json={})
    shutil.rmtree(folder / "corrections" / "narwhal")
    with client_of(service_of(folder)):
        pass
    assert stored.read_bytes().count(b"\xff\xd8\xff") == 1
    shutil.rmtree(folder / "corrections" / "fish")
    with client_of(service_of(folder)):
        pass
    assert not stored.exists()


def test_a_server_that_cannot_write_it_starts_and_ends(
    stored: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stored.unlink()

    def refuse(*_: object) -> None:
        raise UserError("no space")

    monkeypatch.setattr(Gallery, "write", refuse)
    assert look(folder)[0]["corrections"] == 3
    assert "not stored: no space" in caplog.text
    assert not stored.exists()


def test_a_failed_start_removes_nothing(stored: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stored.read_bytes()

    async def fail(self: DecoderPool) -> None:
        raise UserError("no processes")

    monkeypatch.setattr(DecoderPool, "start", fail)
    service = service_of(folder)
    with client_of(service):
        assert service.failure is not None
    assert stored.read_bytes() == before
    assert StoredCorrections(folder, service.intake.encoder).read()
