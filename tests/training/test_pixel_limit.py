"""What is stored of an image is found again only where the limit on pixels reads the same of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from dca.backbones.clip import CLIP
from dca.core.errors import UserError
from dca.features.store import MemoryStore
from dca.images.decode import StoredImage, pixel_limit
from dca.training.session import Session
from helpers.small_images import photo


@pytest.fixture
def session() -> Session:
    return Session(device="cpu", store=MemoryStore())


def test_stored_features_do_not_let_a_refused_image_pass(session: Session, clip: CLIP, tmp_path: Path):
    photo(1, size=(120, 100)).save(tmp_path / "large.png")
    photo(2, size=(60, 50)).save(tmp_path / "small.png")
    images = [tmp_path / "large.png", tmp_path / "small.png"]
    usual = session.frozen_features(clip, images)
    for again in (session, Session(device="cpu", store=session.store)):
        with pixel_limit(0.01):
            (fault,) = again.unreadable_images(clip, images)
            assert fault.image == images[0]
            assert fault.too_large
            with pytest.raises(UserError, match="million pixels"):
                again.frozen_features(clip, images)
            assert torch.equal(again.frozen_features(clip, images[1:]), usual[1:])
        assert again.unreadable_images(clip, images) == []
        assert torch.equal(again.frozen_features(clip, images), usual)


def test_a_jpeg_that_is_decoded_at_a_smaller_size_has_features_of_its_own(session: Session, clip: CLIP, tmp_path: Path):
    photo(1, size=(120, 100)).save(tmp_path / "x.jpg")
    photo(1, size=(120, 100)).resize((60, 50)).save(tmp_path / "half.jpg")
    usual = session.frozen_features(clip, [tmp_path / "x.jpg"])
    with pixel_limit(0.01):
        reduced = session.frozen_features(clip, [tmp_path / "x.jpg"])
        fresh = Session(device="cpu", store=MemoryStore()).frozen_features(clip, [tmp_path / "x.jpg"])
    assert torch.equal(reduced, fresh)
    assert not torch.equal(reduced, usual)
    assert torch.equal(session.frozen_features(clip, [tmp_path / "x.jpg"]), usual)


def test_a_higher_limit_changes_no_key_of_ordinary_images(session: Session, tmp_path: Path):
    """So features that are stored stay valid, and a run goes on under another limit."""
    photo(1).save(tmp_path / "x.png")
    images = [tmp_path / "x.png", photo(2), StoredImage("0a" * 32, "cat/1.jpg", b"")]
    usual = session.content_keys(images)
    assert usual == session.hash_images(images)
    for limit in (0.01, 1000):
        with pixel_limit(limit):
            assert session.content_keys(images) == usual


@pytest.mark.parametrize("limit", [0.01, 1000])
def test_an_image_that_a_limit_reads_is_not_decoded_twice(
    session: Session, clip: CLIP, tmp_path: Path, limit: float, monkeypatch: pytest.MonkeyPatch
):
    photo(1, size=(60, 50)).save(tmp_path / "x.png")
    session.frozen_features(clip, [tmp_path / "x.png"])
    with pixel_limit(limit):
        monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded again"))
        other = Session(device="cpu", store=session.store)
        assert other.unreadable_images(clip, [tmp_path / "x.png"]) == []
