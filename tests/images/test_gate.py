"""The gate: which files are opened at all, how much is read of them, and that no file is a crash."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import os
import resource
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import EpsImagePlugin, Image, JpegImagePlugin

from dca.core.errors import UserError
from dca.datasets.walk import IMAGE_SUFFIXES
from dca.export import predict as exported
from dca.images import reading
from dca.images.convert import as_image
from dca.images.decode import (
    FORMATS,
    LEAST_BYTES,
    MOST_ASPECT,
    AsStored,
    Unreadable,
    center_crop,
    decode_image,
    depends_on_limit,
    is_image,
    may_have_rotation,
    open_bytes,
    open_image,
    pixel_limit,
    try_decode_all,
)
from dca.images.hashing import sha256_of
from dca.images.reading import read_images, summarize_image
from dca.serve.decode_worker import DecodeOptions, decode_frames
from helpers.small_images import photo

SOURCE = Path(__file__).resolve().parents[2] / "src" / "dca"
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n8 8 moveto\nshowpage\n%%EOF\n"
crop16 = partial(center_crop, size=16, resize=16, resample=3)
summarize = partial(summarize_image, crop=crop16)
WAY = {"size": 16, "resize": 16, "resample": 3}


# Nothing else opens images


def openers(text: str) -> list[int]:
    """Lines of a module that open images with Pillow: `Image.open`, `open` of `PIL.Image`, parsers and plugins."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr == "open":
            if isinstance(node.value, ast.Name) and node.value.id == "Image":
                found.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "PIL":
            names = {alias.name for alias in node.names}
            if node.module.endswith("Plugin") or "open" in names or "ImageFile" in names:
                found.append(node.lineno)
    return found


@pytest.mark.parametrize("text", [
    "from PIL import Image\nImage.open('x')", "from PIL.Image import open", "from PIL import ImageFile",
    "from PIL.PngImagePlugin import PngImageFile",
])  # fmt: skip
def test_a_planted_opener_is_found(text: str):
    assert openers(text)


def test_only_the_gate_opens_images():
    """The exported script stands alone, so it has the rules of the gate, see `test_the_exported_script_...`."""
    found = {str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py") if openers(file.read_text("utf-8"))}
    assert found == {"images/decode.py", "export/predict.py"}


# Formats


@pytest.fixture
def ghostscript(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The calls of Ghostscript."""
    calls = list[object]()
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args, **options: calls.append(args))
    return calls


def test_postscript_never_reaches_ghostscript(tmp_path: Path, ghostscript: list[object]):
    path = tmp_path / "x.jpg"
    path.write_bytes(POSTSCRIPT)
    with Image.open(path) as opened, contextlib.suppress(Exception):
        opened.load()
    assert ghostscript, "without the gate it does"
    ghostscript.clear()
    for call in (open_image, open_bytes):
        with pytest.raises(UserError, match="a format that is not opened"):
            call(path if call is open_image else POSTSCRIPT)
    for image in (path, AsStored(path)):
        assert isinstance(decode_image(image, summarize), Unreadable)
    assert not is_image(path)
    assert may_have_rotation(path)
    (read,) = read_images([path], crop16)
    assert isinstance(read.summary, Unreadable)
    facts, pixels, _ = decode_frames(POSTSCRIPT, DecodeOptions(((16, 16, 3),), 10**6, 10**9))
    assert b"image-format" in facts
    assert not pixels
    assert ghostscript == []


@pytest.mark.parametrize("kind", ["EPS", "ICO", "ICNS", "TGA", "PCX", "SGI", "PDF", "JPEG2000", "MSP", "DDS"])
def test_other_formats_are_refused_whatever_they_are_called(tmp_path: Path, kind: str):
    mode = "1" if kind == "MSP" else "RGB"
    photo(1, size=(32, 32)).convert(mode).save(tmp_path / "x", kind)
    (tmp_path / "x").rename(tmp_path / "x.png")
    with pytest.raises(UserError, match="a format that is not opened"):
        open_image(tmp_path / "x.png")
    with pytest.raises(Exception, match="cannot identify"):
        exported.open_image(tmp_path / "x.png")


@pytest.mark.parametrize("kind", sorted(set(FORMATS) - {"HEIF"}))
def test_every_format_of_the_gate_is_opened(tmp_path: Path, kind: str):
    Image.init()
    if kind not in Image.SAVE:
        pytest.skip(f"this Pillow has no {kind}")
    photo(1).save(tmp_path / "x", kind)
    assert open_image(tmp_path / "x").size == (32, 24)
    found = exported.crop_image(exported.open_image(tmp_path / "x"), WAY).transpose(2, 0, 1)
    assert np.array_equal(found, crop16(open_image(tmp_path / "x")))


def test_files_that_are_looked_for_are_those_that_are_opened():
    assert set.union(*map(set, FORMATS.values())) == IMAGE_SUFFIXES
    assert set(exported.FORMATS) == set(FORMATS) - {"HEIF"} | {"MPO"}
    assert exported.MOST_ASPECT == MOST_ASPECT


# Sizes


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    """A PNG of one bit per pixel; without rows, only its header is right."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def peak() -> float:
    """Most memory that this process has had, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


THIN = {"tall": (1, 300_000), "wide": (300_000, 1), "very wide": (80_000_000, 1), "just too tall": (3, 601)}


@pytest.mark.parametrize("size", THIN.values(), ids=THIN)
def test_very_long_images_are_refused_before_they_take_memory(tmp_path: Path, size: tuple[int, int]):
    data = png(*size, bytes((-(-size[0] // 8) + 1) * size[1]))
    (tmp_path / "x.png").write_bytes(data)
    before = peak()
    (outcome,) = try_decode_all([tmp_path / "x.png"], partial(center_crop, size=224, resize=224, resample=3))
    assert isinstance(outcome, Unreadable)
    assert f"one side is more than {MOST_ASPECT} times the other" in outcome.reason
    assert not outcome.too_large, "a higher limit on pixels does not help"
    with pytest.raises(UserError, match="one side is more than"):
        open_bytes(data)
    assert b"image-damaged" in decode_frames(data, DecodeOptions(((16, 16, 3),), 10**8, 10**9))[0]
    with pytest.raises(ValueError, match="times the other"):
        exported.open_image(tmp_path / "x.png")
    assert peak() - before < 100


@pytest.mark.parametrize("size", [(1, MOST_ASPECT), (MOST_ASPECT, 1), (5, 5 * MOST_ASPECT)])
def test_long_images_are_opened_up_to_the_limit(size: tuple[int, int]):
    image = open_bytes(png(*size, bytes((-(-size[0] // 8) + 1) * size[1])))
    assert summarize(image).crop.shape == (3, 16, 16)


@pytest.mark.parametrize("size", [(0, 0), (0, 5), (5, 0), (1, 300_000)])
def test_images_in_memory_have_the_same_limits(size: tuple[int, int]):
    outcome = decode_image(Image.new("RGB", size), crop16)
    assert isinstance(outcome, Unreadable)
    with pytest.raises(UserError, match="no pixels" if 0 in size else "times the other"):
        open_image(Image.new("RGB", size))
    with pytest.raises(ValueError, match="times the other"):
        exported.open_image(Image.new("RGB", size))


def test_a_thin_jpeg_over_the_limit_is_decoded_at_a_smaller_size(tmp_path: Path):
    photo(1, size=(400, 3)).save(tmp_path / "x.jpg")
    with pixel_limit(0.0005):
        assert open_image(tmp_path / "x.jpg").size == (200, 2)


# Bytes


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """A WebP file that is larger than any that is opened with a low limit on pixels, and takes no room on disk."""
    photo().save(tmp_path / "x.webp")
    with (tmp_path / "x.webp").open("r+b") as file:
        file.truncate(LEAST_BYTES + 1)
    return tmp_path / "x.webp"


def test_files_that_are_too_large_are_not_read(sparse: Path, monkeypatch: pytest.MonkeyPatch):
    with pixel_limit(1):
        reading_takes = peak()
        (outcome,) = try_decode_all([sparse], crop16)
        assert isinstance(outcome, Unreadable)
        assert outcome.too_large
        assert "the file is larger than 67.1 MB" in outcome.reason
        with pytest.raises(UserError, match=r"larger than 67.1 MB") as error:
            sha256_of(sparse)
        assert "--max-megapixels" in error.value.render("cli")
        (read,) = read_images([sparse], crop16)
        assert read.sha256 == ""
        assert isinstance(read.summary, Unreadable)
        assert peak() - reading_takes < 30
    assert sha256_of(sparse)
    assert isinstance(decode_image(sparse, crop16), np.ndarray), "what follows the image does not matter"


class Endless(io.RawIOBase):
    """A file without an end."""

    def __init__(self) -> None:
        self.count = 0

    def read(self, size: int = -1) -> bytes:
        assert size > 0
        self.count += size
        return bytes(size)


def test_an_endless_file_is_not_read_for_ever():
    endless = Endless()
    with pixel_limit(1), pytest.raises(UserError, match="larger than"):
        as_image(endless)
    assert endless.count < 1.1 * LEAST_BYTES


def test_a_large_file_gives_what_a_small_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is not kept in memory between hashing and decoding, but opened again."""
    photo(3).save(tmp_path / "x.png")
    (kept,) = read_images([tmp_path / "x.png"], crop16)
    monkeypatch.setattr(reading, "MOST_KEPT", 10)
    (opened_again,) = read_images([tmp_path / "x.png"], crop16)
    assert kept.sha256 == opened_again.sha256 == hashlib.sha256((tmp_path / "x.png").read_bytes()).hexdigest()
    assert not isinstance(kept.summary, Unreadable | None)
    assert not isinstance(opened_again.summary, Unreadable | None)
    assert np.array_equal(kept.summary.crop, opened_again.summary.crop)
    assert kept.summary.preview == opened_again.summary.preview


def test_only_images_that_the_limit_touches_depend_on_it(tmp_path: Path):
    photo(1, size=(100, 90)).save(tmp_path / "small.png")
    photo(1, size=(110, 100)).save(tmp_path / "large.png")
    (tmp_path / "text.png").write_text("no image")
    small, large, text = (tmp_path / f"{name}.png" for name in ("small", "large", "text"))
    assert not any(map(depends_on_limit, (small, large, text)))
    with pixel_limit(0.01):
        images = (small, large, text, photo(1, size=(200, 200)))
        assert list(map(depends_on_limit, images)) == [False, True, True, False]
    with pixel_limit(1000):
        assert not depends_on_limit(large)
        large.write_bytes(png(20_000, 20_000))
        assert depends_on_limit(large)


# Failures


FAILURES = [
    MemoryError(), OverflowError("too large"), struct.error("unpack"), SyntaxError("broken"), EOFError(),
    zlib.error("incorrect header"), Image.DecompressionBombError("bomb"), Image.DecompressionBombWarning("bomb"),
    RecursionError("deep"), IndexError(), KeyError("x"), TypeError("x"), AttributeError("x"), RuntimeError("x"),
    ZeroDivisionError(), OSError("truncated"), UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), AssertionError(),
]  # fmt: skip


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("step", ["open", "load"])
def test_whatever_a_decoder_raises_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, step: str
):
    def fail(*args: Any, **options: Any) -> None:
        raise error

    photo().save(tmp_path / "x.jpg")
    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "_open" if step == "open" else "load", fail)
    outcome = decode_image(tmp_path / "x.jpg", crop16)
    assert isinstance(outcome, Unreadable)
    assert outcome.reason
    assert outcome.too_large == ("Bomb" in type(error).__name__)
    for call in (lambda: open_image(tmp_path / "x.jpg"), lambda: open_bytes((tmp_path / "x.jpg").read_bytes())):
        with pytest.raises(UserError, match="cannot read"):
            call()


@pytest.mark.parametrize("error", [MemoryError(), OverflowError("x"), ValueError("x"), struct.error("x")], ids=repr)
def test_an_image_that_cannot_be_transformed_is_a_reason(error: Exception):
    def fail(image: Image.Image) -> None:
        raise error

    outcome = decode_image(photo(), fail)
    assert isinstance(outcome, Unreadable)
    assert outcome.reason


def test_too_little_memory_is_said_in_words():
    def fail(image: Image.Image) -> None:
        raise MemoryError

    outcome = decode_image(photo(), fail)
    assert isinstance(outcome, Unreadable)
    assert outcome.reason == "decoding it takes more memory than there is"


def test_errors_of_ours_are_not_hidden():
    def fail(image: Image.Image) -> None:
        raise RuntimeError("our bug")

    with pytest.raises(RuntimeError, match="our bug"):
        decode_image(photo(), fail)


@pytest.mark.parametrize("name", ["a" * 5000, "nul\0byte"])
def test_impossible_names_are_reasons(tmp_path: Path, name: str):
    outcome = decode_image(tmp_path / name, crop16)
    assert isinstance(outcome, Unreadable)
    assert outcome.reason == "no such file"


def test_a_folder_that_may_not_be_entered(tmp_path: Path):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    photo().save(tmp_path / "x.png")
    tmp_path.chmod(0)
    try:
        outcome = decode_image(tmp_path / "x.png", crop16)
    finally:
        tmp_path.chmod(0o700)
    assert isinstance(outcome, Unreadable)
    assert outcome.reason == "no permission to read it"


# Damaged files


def saved(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    """A file of some pixels."""
    file = io.BytesIO()
    photo(1).convert(mode).save(file, kind, **options)
    return file.getvalue()


@cache
def whole_files() -> list[bytes]:
    """One file of every kind that has a reader of its own: formats, modes, compressions, frames, EXIF data."""
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "words"
    more: dict[str, Any] = {"save_all": True, "append_images": [photo(2), photo(3)]}
    modes = {
        "PNG": ("L", "P", "RGBA", "1", "I;16", "LA"), "JPEG": ("L", "CMYK"), "GIF": ("P",), "BMP": ("L", "P", "1"),
        "TIFF": ("CMYK", "F", "I;16", "LAB", "RGBA"), "PPM": ("L", "1"), "WEBP": ("RGBA",),
    }  # fmt: skip
    found = [saved(kind) for kind in FORMATS if kind in Image.SAVE]
    found += [saved(kind, mode) for kind, kinds in modes.items() for mode in kinds]
    found += [saved(kind, exif=exif) for kind in ("JPEG", "PNG", "WEBP", "TIFF")]
    found += [saved(kind, **more) for kind in ("GIF", "PNG", "WEBP", "TIFF")]
    found += [saved("TIFF", compression=name) for name in ("tiff_lzw", "tiff_deflate", "packbits", "jpeg")]
    found += [saved("TIFF", "1", compression="group4"), saved("JPEG", progressive=True), saved("WEBP", lossless=True)]
    found += [saved("PNG", "P", transparency=bytes([0, 255, 99])), saved("GIF", "P", transparency=3)]
    found += [b"P3 4 4 255 " + b"1 2 3 " * 16, b"Pf\n4 4\n-1.0\n" + bytes(64), POSTSCRIPT]
    return found


# Numbers that sizes, counts and offsets may be set to.
VALUES = [
    bytes.fromhex(word)
    for word in ("00", "ff", "ffff", "7fff", "ffffffff", "7fffffff", "00000000", "00010000", "00000100", "ffff0000")
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A real file with some changes, more of them in its first bytes, where sizes and offsets are."""
    data = bytearray(draw(st.sampled_from(whole_files())))
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, min(len(data), draw(st.sampled_from([32, 128, len(data)])))))
        change = draw(st.sampled_from(["bit", "value", "cut", "insert", "remove", "repeat"]))
        if change == "bit" and start < len(data):
            data[start] ^= 1 << draw(st.integers(0, 7))
        elif change == "value":
            value = draw(st.sampled_from(VALUES))
            data[start : start + len(value)] = value
        elif change == "cut":
            del data[start:]
        elif change == "insert":
            data[start:start] = draw(st.binary(min_size=1, max_size=20))
        elif change == "remove":
            del data[start : start + draw(st.integers(1, 20))]
        elif change == "repeat":
            data += data[start : start + 100]
    return bytes(data)


# Seconds and megabytes that one damaged file may take where an image may have two million pixels.
MOST_SECONDS, MOST_MEGABYTES = 5.0, 200.0


@pytest.fixture
def bounded() -> Iterator[Callable[[bytes], None]]:
    """Opens bytes in every way there is, and fails if that takes long or much memory, or ends in another error."""
    before, longest = peak(), 0.0

    def check(data: bytes) -> None:
        nonlocal longest
        began = time.monotonic()
        outcome = decode_image(Path("x.jpg"), summarize, data=data)
        if isinstance(outcome, Unreadable):
            assert outcome.reason
            with pytest.raises(UserError, match="cannot read an image"):
                open_bytes(data)
        else:
            assert outcome.crop.shape == (3, 16, 16)
            assert open_bytes(data).mode == "RGB"
        facts, pixels, _ = decode_frames(data, DecodeOptions(((16, 16, 3),), 2_000_000, 10**9))
        assert (b'"error"' in facts) == (not pixels)
        longest = max(longest, time.monotonic() - began)

    with pixel_limit(2):
        yield check
    assert longest < MOST_SECONDS
    assert peak() - before < MOST_MEGABYTES


def test_every_whole_file_is_opened(bounded: Callable[[bytes], None]):
    for data in whole_files()[:-1]:
        bounded(data)
        assert open_bytes(data).mode == "RGB"


# Pillow's warnings about damaged files are no errors here, so that it reads on.
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=damaged())
def test_damaged_files_are_read_or_refused(bounded: Callable[[bytes], None], data: bytes):
    bounded(data)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=10_000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=damaged())
def test_ten_thousand_damaged_files_are_read_or_refused(bounded: Callable[[bytes], None], data: bytes):
    bounded(data)
