"""The gallery of training images that travels with a model."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from dca import CLIP, Classifier, UserError
from dca.datasets.dataset import Dataset
from dca.images.reading import encode_jpeg
from dca.model.gallery import GALLERY, Gallery


@pytest.fixture(scope="module")
def model(sample: Dataset, tiny_folder: Path) -> Classifier:
    return Classifier("closed_form", backbone=tiny_folder, device="cpu").fit(sample)


def test_a_saved_gallery_is_read_as_it_was(model: Classifier, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "model")
    known, found = model.gallery(), Gallery.load(tmp_path / "model" / GALLERY)
    assert known is not None
    assert found is not None
    assert torch.equal(found.features, known.features)
    assert (found.labels, found.sha256, found.names, found.jpegs) == (
        known.labels, known.sha256, known.names, known.jpegs,
    )  # fmt: skip
    loaded = Classifier.from_pretrained(tmp_path / "model").gallery()
    assert loaded is not None
    assert loaded.sha256 == tuple(image.sha256 for image in model.training_images_)


def test_features_are_those_of_the_images(model: Classifier, sample: Dataset) -> None:
    gallery = model.gallery()
    assert gallery is not None
    clip = model.method_.clip
    crops = torch.stack([torch.from_numpy(clip.preprocess.crop(item.image)) for item in sample.train[:3]])
    expected = clip.encode_image(clip.preprocess.normalize(crops))
    torch.testing.assert_close(gallery.features[:3], expected, rtol=1e-5, atol=1e-6)


def test_nearest_by_cosine(model: Classifier) -> None:
    gallery = model.gallery()
    assert gallery is not None
    places, values = gallery.nearest(gallery.features[5:6] * 7, 3)
    similar = [torch.cosine_similarity(gallery.features[5], row, dim=0).item() for row in gallery.features]
    expected = sorted(range(len(gallery)), key=lambda place: -similar[place])[:3]
    assert places[0].tolist()[0] == 5
    assert [similar[place] for place in places[0].tolist()] == pytest.approx([similar[p] for p in expected], abs=1e-5)
    assert values[0].tolist() == pytest.approx([similar[place] for place in expected], abs=1e-5)
    assert gallery.nearest(gallery.features[:1], 10_000)[0].shape == (1, len(gallery))


def test_thumbnails_are_small_jpegs_without_metadata() -> None:
    photo = Image.new("RGB", (640, 320), "red")
    photo.info.update(comment=b"secret", exif=b"Exif\0\0secret")
    with Image.open(io.BytesIO(encode_jpeg(photo))) as small:
        assert (small.format, small.size) == ("JPEG", (128, 64))
        assert not {"comment", "exif"} & set(small.info)


def test_class_changes_change_the_gallery(model: Classifier, sample: Dataset) -> None:
    known, gone = model.gallery(), model.classes_[2]
    assert known is not None
    fewer = model.remove_class(gone).gallery()
    assert fewer is not None
    assert len(fewer) == len(known) - 4
    assert fewer.labels == tuple(c - (c > 2) for c in known.labels if c != 2)
    more = model.add_class("zebra", [sample.test[0].image]).gallery()
    assert more is not None
    assert more.labels == (*known.labels, 10)
    assert len(more.jpegs) == len(more.features) == len(known) + 1


def test_models_without_gallery(model: Classifier, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "model", gallery=False)
    assert not (tmp_path / "model" / GALLERY).exists()
    assert Classifier.from_pretrained(tmp_path / "model").gallery() is None
    assert Classifier.from_pretrained(tmp_path / "model").remove_class(model.classes_[0]).gallery() is None


CUT, EMPTY, OTHER = (lambda data: data[:-50]), (lambda data: b""), (lambda data: data.replace(b"sizes", b"sizez"))


@pytest.mark.parametrize("damage", [CUT, EMPTY, OTHER])
def test_a_damaged_gallery_is_named(model: Classifier, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    model.save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / GALLERY
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"gallery\.safetensors: not a readable gallery"):
        Gallery.load(tmp_path / "model" / GALLERY)


def test_saving_names_the_training_image_that_is_gone_and_the_way_out(photos: Path, clip: CLIP, tmp_path: Path) -> None:
    own = tmp_path / "photos"
    shutil.copytree(photos / "train", own)
    model = Classifier(backbone=clip, device="cpu").fit(own)
    gone = min((own / "fish").iterdir())
    gone.unlink()
    with pytest.raises(UserError, match=f"training images.*{gone.name}") as caught:
        model.save_pretrained(tmp_path / "m.dca")
    assert "gallery=False" in str(caught.value.hint)
    model.save_pretrained(tmp_path / "m.dca", gallery=False)
    assert Classifier.from_pretrained(tmp_path / "m.dca", backbone=clip).gallery() is None
