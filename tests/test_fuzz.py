"""Hostile input to every gate: it is taken or refused in words, in bounded time and memory, and never a traceback.

A few examples run with every test, 10,000 of each kind with `make test-slow`. Examples are derived from valid files,
and are the same every time. The server has the same in `serve/test_fuzz_server.py`.
"""

from __future__ import annotations

import copy
import io
import json
import shutil
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save
from torch import Tensor, nn

from dca.backbones.clip import CLIP
from dca.backbones.state_dict import PICKLE_SUFFIXES, read_state_dict
from dca.core.errors import UserError
from dca.datasets.archive import LISTS, unpack_archive
from dca.datasets.walk import IMAGE_SUFFIXES
from dca.images.decode import decode_image, open_bytes
from dca.model import checkpoint
from dca.model.classifier import Classifier
from helpers.fuzzing import HOW_MANY, JSON, damaged, fuzz

# Pixels that an image may have here, so that 10,000 images do not take hours.
PIXELS = 2_000_000


def image_files() -> list[bytes]:
    """A small image in each format, some of them with more than pixels."""
    image = Image.effect_noise((40, 30), 80).convert("RGB")
    exif = Image.Exif()
    exif[274] = 6
    files = []
    for kind, options in [
        ("JPEG", {"exif": exif}), ("JPEG", {"progressive": True}), ("PNG", {}), ("WEBP", {}), ("GIF", {}), ("BMP", {}),
        ("DIB", {}), ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"}), ("PPM", {}), ("AVIF", {}),
    ]:  # fmt: skip
        image.save(file := io.BytesIO(), kind, **options)
        files.append(file.getvalue())
    for mode in ("1", "P", "LA", "I;16"):
        image.convert("L").convert(mode).save(file := io.BytesIO(), "PNG")
        files.append(file.getvalue())
    return files


@pytest.mark.parametrize("examples", HOW_MANY)
def test_any_bytes_are_an_image_or_unreadable(examples: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", PIXELS)
    path, opened = tmp_path / "x.jpg", 0

    def check(data: bytes) -> None:
        nonlocal opened
        path.write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of damaged metadata
            decode_image(path, lambda image: image.resize((8, 8)))
            try:
                image = open_bytes(data)
            except UserError:
                return
        opened += 1
        assert image.mode == "RGB"
        assert image.width * image.height <= PIXELS

    fuzz(damaged(image_files()), check, examples)
    assert opened > examples // 50


class Net(nn.Module):
    """Something small to save."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.register_buffer("count", torch.arange(4))

    def forward(self, x: Tensor) -> Tensor:
        """As a layer."""
        return self.inner(x)


def checkpoints() -> list[tuple[str, bytes]]:
    """Suffix and content of a checkpoint in every container that is read, or refused."""
    torch.manual_seed(0)
    state = {"a.weight": torch.randn(3, 4), "module.b": torch.arange(5), "c": torch.randn(2, 2).T, "d": torch.ones(1)}
    found = [(".safetensors", save({name: tensor.contiguous() for name, tensor in state.items()}))]
    for value in (state, {"state_dict": state, "epoch": 3}, Net().state_dict()):
        for zipped in (True, False):
            torch.save(value, file := io.BytesIO(), _use_new_zipfile_serialization=zipped)
            found.append((".pt", file.getvalue()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and its archives are what others have
        for script in (torch.jit.script(Net()), torch.jit.trace(Net(), torch.ones(1, 3))):
            torch.jit.save(script, file := io.BytesIO())
            found.append((".pt", file.getvalue()))
    return found


@st.composite
def damaged_checkpoints(draw: st.DrawFn, seeds: Sequence[tuple[str, bytes]]) -> tuple[str, bytes]:
    """A checkpoint with changes anywhere, or in one member of its archive, whose checksum is then right."""
    suffix, data = draw(st.sampled_from(seeds))
    if not zipfile.is_zipfile(io.BytesIO(data)) or draw(st.booleans()):
        suffix = draw(st.sampled_from([suffix, ".safetensors", *sorted(PICKLE_SUFFIXES)]))
        return suffix, draw(damaged([data]))
    return suffix, draw(rebuilt_archives(data))


@st.composite
def rebuilt_archives(draw: st.DrawFn, data: bytes) -> bytes:
    """An archive with a change in one member, whose checksum is then right."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    changed = draw(st.sampled_from(sorted(members)))
    how = draw(st.sampled_from(["content", "missing", "name", "twice", "large"]))
    kind = draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]))
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", kind) as archive:
        warnings.simplefilter("ignore")  # of a member that is there twice
        for name, content in members.items():
            if name != changed:
                archive.writestr(name, content)
            elif how == "large":
                archive.writestr(name, content + bytes(2**22))
            elif how != "missing":
                new = draw(damaged([content])) if how in ("content", "twice") else content
                names = [f"../{name}", f"/{name}", name[1:], "a/b/c", f"{name}/{name}", f"\x1b{name}", "x" * 300 + name]
                name = draw(st.sampled_from(names)) if how == "name" else name
                archive.writestr(name or "x", new)
                if how == "twice":
                    archive.writestr(name, content)
    return file.getvalue()


@pytest.mark.parametrize("examples", HOW_MANY)
def test_any_checkpoint_is_tensors_or_refused(examples: int, tmp_path: Path) -> None:
    read = 0
    (tmp_path / "folder").mkdir()

    def check(value: tuple[str, bytes]) -> None:
        nonlocal read
        suffix, data = value
        path = tmp_path / "folder" / f"x{suffix}"
        path.write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about storages
            try:
                state = read_state_dict(path)
            except UserError:
                return
        read += 1
        assert all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in state.items())

    fuzz(damaged_checkpoints(checkpoints()), check, examples)
    assert read > examples // 50
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]  # no member was unpacked anywhere


def test_an_archive_that_grows_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1_000_000)}, stored := tmp_path / "stored.pt")
    assert read_state_dict(stored)["a"].shape == (1_000_000,)
    bomb, many = tmp_path / "bomb.pt", tmp_path / "many.pt"
    with zipfile.ZipFile(stored) as source, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in source.namelist():
            archive.writestr(name, source.read(name))
    with zipfile.ZipFile(many, "w") as archive:
        for number in range(20_001):
            archive.writestr(str(number), b"")
    for path in (bomb, many):
        with pytest.raises(UserError, match="an archive of"):
            read_state_dict(path)


def photo_archives() -> list[bytes]:
    """Zip files of photos, one for each way to compress."""
    found = []
    for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(file := io.BytesIO(), "w", kind) as archive:
            for n, image in enumerate(image_files()[:4]):
                archive.writestr(f"photos/{'cat' if n % 2 else 'dög'}/{n}.jpg", image)
            archive.writestr("photos/list.csv", b"path,label")
            archive.writestr("photos/run.sh", b"echo no")
        found.append(file.getvalue())
    return found


@pytest.mark.parametrize("examples", HOW_MANY)
def test_any_zip_is_photos_or_refused(examples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCA_CACHE", str(tmp_path / "cache"))
    path, seeds, read = tmp_path / "photos.zip", photo_archives(), 0

    def check(data: bytes) -> None:
        nonlocal read
        path.write_bytes(data)
        try:
            folder = unpack_archive(path)
        except UserError:
            assert not list((tmp_path / "cache" / "archives").glob("*/"))  # nothing half unpacked is found later
            return
        read += 1
        files = [file for file in folder.rglob("*") if file.is_file()]
        assert any(file.suffix in IMAGE_SUFFIXES for file in files)
        assert all(file.suffix in IMAGE_SUFFIXES | LISTS for file in files)
        shutil.rmtree(tmp_path / "cache")

    fuzz(damaged(seeds) | st.sampled_from(seeds).flatmap(rebuilt_archives), check, examples)
    assert read > examples // 50
    assert {found.name for found in tmp_path.iterdir()} <= {"cache", "photos.zip"}  # nothing is written elsewhere


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of the values inside a JSON value."""
    inside = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    return [here] * bool(here) + [place for key, part in list(inside)[:40] for place in places(part, (*here, key))]


@st.composite
def changed_json(draw: st.DrawFn, content: bytes) -> bytes:
    """A JSON file with another value somewhere."""
    raw = copy.deepcopy(json.loads(content))
    where = draw(st.sampled_from(places(raw)))
    target = raw
    for key in where[:-1]:
        target = target[key]
    target[where[-1]] = draw(JSON)
    return json.dumps(raw).encode()


@st.composite
def damaged_models(draw: st.DrawFn, files: Mapping[str, bytes]) -> tuple[str, bytes | None, bool]:
    """A file of a model, its changed content (None: it is missing), and whether the manifest is made to fit it."""
    name = draw(st.sampled_from(sorted(files)))
    fits = draw(st.booleans())
    if draw(st.integers(0, 19)) == 0:
        return name, None, fits
    if name.endswith(".json") and draw(st.booleans()):
        return name, draw(changed_json(files[name])), fits
    return name, draw(damaged([files[name]])), fits


@pytest.mark.parametrize("examples", HOW_MANY)
def test_any_model_folder_predicts_or_is_refused(
    examples: int, fitted: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    model, clip = Path(shutil.copytree(fitted, tmp_path / "model.dca")), CLIP.from_pretrained(tiny_folder)
    whole = {name: (model / name).read_bytes() for name in (*checkpoint.MANIFESTED, checkpoint.MANIFEST)
             if (model / name).is_file()}  # fmt: skip
    image, loaded = Image.new("RGB", (32, 32)), 0

    def check(value: tuple[str, bytes | None, bool]) -> None:
        nonlocal loaded
        name, content, fits = value
        for other, right in whole.items():
            (model / other).write_bytes(right)
        if content is None:
            (model / name).unlink()
        else:
            (model / name).write_bytes(content)
        if fits and name != checkpoint.MANIFEST:
            checkpoint.write_manifest(model)
        try:
            found = Classifier.from_pretrained(model, backbone=clip)
            probabilities = found.predict_proba(image)
            gallery = found.gallery()
        except UserError:
            return
        loaded += 1
        assert abs(float(probabilities.sum()) - 1) < 1e-4
        assert gallery is None or len(gallery) <= 1000

    fuzz(damaged_models(whole), check, examples)
    assert loaded > examples // 50
