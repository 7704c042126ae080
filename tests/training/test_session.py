"""A session loads, hashes and decodes once; stored features belong to an image and a view."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import make_clip, tiny_config
from dca.backbones import dual_encoder
from dca.backbones.clip import CLIP
from dca.core import device
from dca.datasets.dataset import Dataset
from dca.datasets.folder import load_folder
from dca.features.store import FeatureStore
from dca.images import decode
from dca.images.crops import view_crops
from dca.model.classifier import Classifier
from dca.runs.result import RunResult
from dca.runs.run import run
from dca.runs.spec import FitSpec
from dca.training import features
from dca.training.session import Session


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often images are decoded and encoded, backbones loaded and hashed."""
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str, what: str, size: Any = lambda *_: 1) -> None:
        real = getattr(owner, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            counts[what] += size(*args)
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, counting)

    count(decode, "_open", "decoded")
    count(CLIP, "encode_image", "encoded", lambda clip, images, *_: len(images))
    count(dual_encoder, "compute_digest", "backbone hashed")
    monkeypatch.setattr(CLIP, "from_pretrained", _counting_load(counts))
    return counts


def _counting_load(counts: Counter[str]) -> Any:
    real = CLIP.from_pretrained

    def load(*args: Any, **kwargs: Any) -> CLIP:
        counts["backbone loaded"] += 1
        return real(*args, **kwargs)

    return load


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(device="cpu", store=FeatureStore(tmp_path / "store"))


def fitted(method: str, photos: Path, tiny_folder: Path, place: Path, session: Session, **spec: Any) -> RunResult:
    chosen = FitSpec(data=str(photos), method=method, backbone=str(tiny_folder), **{"shots": 2, **spec})
    return run(chosen, place, session=session).result


@pytest.mark.parametrize("method", ["gda", "linear_probe", "tip_adapter", "tip_adapter_f", "clap", "cross_modal"])
def test_a_warm_run_decodes_nothing_and_hashes_the_backbone_at_most_once(
    method: str, photos: Path, tiny_folder: Path, tmp_path: Path, session: Session, counted: Counter[str]
) -> None:
    options = {"epochs": 1} if method in ("tip_adapter_f", "clap", "cross_modal") else {}
    if method == "linear_probe":
        options = {"iterations": 20}  # its search is long
    first = fitted(method, photos, tiny_folder, tmp_path / "cold", session, options=options)
    assert counted["decoded"] > 0
    counted.clear()
    warm = Session(device="cpu", store=session.store)
    again = fitted(method, photos, tiny_folder, tmp_path / "warm", warm, options=options)
    assert (counted["decoded"], counted["encoded"]) == (0, 0)
    assert counted["backbone hashed"] <= 1
    assert again.accuracy == first.accuracy


def test_a_second_run_in_the_same_session_reloads_nothing(
    photos: Path, tiny_folder: Path, tmp_path: Path, session: Session, counted: Counter[str], monkeypatch: Any
) -> None:
    fitted("coop", photos, tiny_folder, tmp_path / "one", session, options={"epochs": 1})
    counted.clear()
    monkeypatch.setattr("dca.training.session.sha256_of", lambda image: pytest.fail(f"hashed again: {image}"))
    fitted("coop", photos, tiny_folder, tmp_path / "two", session, options={"epochs": 2})
    assert counted["backbone loaded"] == counted["backbone hashed"] == 0
    assert counted["decoded"] == 0, "training images stay decoded, test images stay encoded"


def test_another_seed_or_shot_number_encodes_only_unseen_images(
    photos: Path, tiny_folder: Path, tmp_path: Path, session: Session, counted: Counter[str]
) -> None:
    data = load_folder(photos)
    fitted("gda", photos, tiny_folder, tmp_path / "a", session, options={"views": 3})
    seen = {item.image for item in _drawn(data, 2, 1)}
    for place, shots, seed in (("b", 2, 2), ("c", 3, 1)):
        counted.clear()
        fitted("gda", photos, tiny_folder, tmp_path / place, session, shots=shots, seed=seed, options={"views": 3})
        new = {item.image for item in _drawn(data, shots, seed)} - seen
        validation = counted["encoded"] - 3 * len(new)
        assert 0 <= validation <= 4 * len(data.names), "and validation images, once each"
        assert len(new) > 0
        seen |= new


def _drawn(data: Dataset, shots: int, seed: int) -> Any:
    from dca.datasets.draws import draw_few_shot

    return draw_few_shot(data, shots, seed).train


def test_views_of_an_image_do_not_depend_on_other_images_or_the_seed(sample: Dataset, tmp_path: Path) -> None:
    clip, images = make_clip(), [item.image for item in sample.train[:4]]
    alone = Session(device="cpu", store=FeatureStore(tmp_path / "one")).frozen_features(clip, images[2:3], views=3)
    together = Session(device="cpu", store=FeatureStore(tmp_path / "two")).frozen_features(clip, images, views=3)
    torch.testing.assert_close(together.view(3, 4, -1)[:, 2], alone, atol=1e-5, rtol=1e-5)


def _view(clip: CLIP, image: Image.Image, session: Session, number: int | None, mirrored: bool) -> torch.Tensor:
    """One view of an image, made by itself: uint8 (1, 3, S, S)."""
    if number is None:
        crop = torch.from_numpy(clip.preprocess.crop(image))[None]
    else:
        crop = view_crops(image, clip.preprocess.size, [number], session.hash_image(image))
    return crop.flip(-1) if mirrored else crop


def test_features_equal_a_plain_encoding_of_each_view(sample: Dataset, session: Session) -> None:
    """The literal twin: every view cropped and encoded by itself."""
    clip, images = make_clip(), [item.image for item in sample.train[:5]]
    for views, mirrored in ((0, False), (0, True), (2, False), (2, True)):
        wanted = features.Views(range(views) if views else None, mirrored)
        rows = [
            clip.encode_image(clip.preprocess.normalize(_view(clip, image, session, place, mirrored)))
            for place in wanted.numbers or [None]
            for image in map(decode.open_image, images)
        ]
        for _ in range(2):  # computed, then read
            found = session.frozen_features(clip, images, views=views, mirrored=mirrored)
            torch.testing.assert_close(found, torch.cat(rows), atol=1e-5, rtol=1e-5)


def test_views_of_another_crop_range_are_stored_apart(sample: Dataset, session: Session, counted: Counter[str]) -> None:
    """The twin: each crop made and encoded by itself. Keys of the usual range are as they always were."""
    clip, images = make_clip(), [item.image for item in sample.train[:3]]
    assert features.Views(range(2)).keys("c0ffee") == [
        hashlib.sha256(f"c0ffee view {number}".encode()).hexdigest() for number in range(2)
    ]
    usual = session.frozen_features(clip, images, views=2)
    rows = [
        clip.encode_image(clip.preprocess.normalize(view_crops(image, size, [view], session.hash_image(image), 0.5)))
        for view in range(2)
        for image in map(decode.open_image, images)
        for size in [clip.preprocess.size]
    ]
    for _ in range(2):  # computed, then read
        found = session.frozen_features(clip, images, views=2, crop_low=0.5)
        torch.testing.assert_close(found, torch.cat(rows), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found, usual, atol=1e-3)
    counted.clear()
    assert torch.equal(session.frozen_features(clip, images, views=2), usual)
    assert counted["encoded"] == 0


def test_only_missing_views_are_encoded(sample: Dataset, session: Session, counted: Counter[str]) -> None:
    clip, images = make_clip(), [item.image for item in sample.train[:5]]
    few = session.frozen_features(clip, images, views=2)
    counted.clear()
    more = session.frozen_features(clip, images, views=3)
    assert counted["encoded"] == len(images)
    assert torch.equal(more[: len(few)], few)


def test_a_backbone_by_name_and_by_path_shares_its_features(
    tiny_folder: Path, sample: Dataset, session: Session, counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dca.backbones.sources.mini_folder", lambda: tiny_folder)
    images = [item.image for item in sample.test[:3]]
    session.frozen_features(session.load_backbone("mini"), images)
    counted.clear()
    session.frozen_features(session.load_backbone(str(tiny_folder)), images)
    assert counted["encoded"] == 0


def test_a_changed_file_is_hashed_again(tmp_path: Path, session: Session) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(b"one")
    first = session.hash_image(path)
    path.write_bytes(b"other")
    assert session.hash_image(path) != first


def test_a_thousand_predictions_from_eight_threads_equal_those_of_one(sample: Dataset) -> None:
    """Three methods on one backbone, one of them with low-rank updates, one with visual tokens."""
    clip = make_clip()
    short = {"epochs": 1, "warmup_epochs": 0, "batch_size": 8}
    models = [Classifier(name, backbone=clip, device="cpu", **short).fit(sample) for name in ("dca", "clip_lora")]
    models.append(Classifier("zero_shot", backbone=clip, device="cpu").fit(sample))
    images = [item.image for item in sample.test[:10]]
    alone = {(m, n): models[m].predict_proba(image) for m in range(3) for n, image in enumerate(images)}
    asked = [(n % 3, n % len(images)) for n in range(1000)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda place: models[place[0]].predict_proba(images[place[1]]), asked))
    assert all(np.array_equal(got, alone[place]) for got, place in zip(found, asked, strict=True))


def test_fitting_in_another_precision_moves_no_other_model(sample: Dataset) -> None:
    clip = make_clip()
    model = Classifier("zero_shot", backbone=clip, device="cpu").fit(sample)
    before = model.predict_proba(sample.test[0].image)
    Classifier("gda", backbone=clip, device="cpu", precision="bf16", views=0).fit(sample)
    assert np.array_equal(model.predict_proba(sample.test[0].image), before)


def wide_clip() -> CLIP:
    """The width of ViT-B, and little else of it."""
    config = tiny_config()
    vision = dataclasses.replace(config.vision, width=768, layers=1, heads=12, hidden=64, patch_size=16)
    return make_clip(dataclasses.replace(config, vision=vision))


@pytest.mark.parametrize("there", [True, False])
def test_full_size_towers_compute_frozen_features_in_bfloat16_where_the_processor_can(
    there: bool, sample: Dataset, session: Session, counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "multiplies_bf16", lambda: there)
    clip, images = wide_clip(), [item.image for item in sample.test[:4]]
    automatic, exact = session.load_backbone(clip), session.load_backbone(clip, "fp32")
    assert automatic.precision == ("float32, features bfloat16" if there else "float32")
    assert exact.precision == session.load_backbone("mini").precision == "float32"
    found, wanted = session.frozen_features(automatic, images), session.frozen_features(exact, images)
    # Each precision has features of its own in the store.
    assert counted["encoded"] == (2 if there else 1) * len(images)
    assert torch.equal(found, wanted) is not there
    assert float(torch.cosine_similarity(found, wanted).min()) > 0.999
    assert torch.equal(wanted, session.frozen_features(exact, images))
    assert torch.equal(found, session.frozen_features(automatic, images))


def test_loading_a_backbone_and_slow_hashing_are_said(tiny_folder: Path, tmp_path: Path, monkeypatch):
    seen: list[tuple[str, int, int]] = []
    session = Session(device="cpu", progress=lambda stage, done, total, note: seen.append((stage, done, total)))
    session.load_backbone(tiny_folder)
    session.load_backbone(tiny_folder)
    assert seen == [("backbone", 0, 1), ("backbone", 1, 1)]
    (tmp_path / "a.jpg").write_bytes(b"x")
    session.hash_images([tmp_path / "a.jpg"] * 3)
    assert len(seen) == 2
    monkeypatch.setattr("dca.training.session.SLOW", -1.0)
    session.hash_images([tmp_path / "a.jpg"] * 3)
    assert len(seen) == 2  # known already
    for name in ("b.jpg", "c.jpg"):
        (tmp_path / name).write_bytes(name.encode())
    session.hash_images([tmp_path / "a.jpg", tmp_path / "b.jpg", tmp_path / "c.jpg"])
    assert seen[2:] == [("hashing", n, 2) for n in (1, 2)]


def test_images_that_were_checked_are_not_decoded_again(
    clip: CLIP, sample: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(device="cpu", store=FeatureStore(tmp_path))  # with stored features nothing would be decoded
    images = [item.image for item in sample.test[:4]]
    session.require_readable(clip, images)
    for module in ("dca.images.decode", "dca.training.pipeline"):
        monkeypatch.setattr(f"{module}.decode_image", lambda *_, **__: pytest.fail("decoded again"))
    kept = torch.cat([source.crops for source in session.crop_sources(images, clip)])
    assert torch.equal(kept, torch.from_numpy(np.stack([clip.preprocess.crop(image) for image in images])))
    assert session.frozen_features(clip, images).shape == (4, clip.config.embed_dim)


def test_copies_are_compared_once_and_near_copies_only_where_thumbnails_are_wanted(
    sample: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(device="cpu", store=FeatureStore(tmp_path))
    first, second = (item.image for item in sample.test[:2])
    near = first.resize((first.width * 2, first.height * 2))
    images = [first, second, near, first.copy()]
    exact = session.group_copies(images, decode=False).tolist()
    assert exact[3] == exact[0]
    assert len(set(exact)) == 3, "the numbers themselves are arbitrary"
    assert session.group_copies(images).tolist() == [0, 1, 0, 0]
    monkeypatch.setattr("dca.training.session.group_copies", lambda *_: pytest.fail("compared again"))
    assert session.group_copies(images).tolist() == [0, 1, 0, 0]
    assert session.group_copies(images, decode=False).tolist() == [0, 1, 0, 0], "the thumbnails are there now"
