from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from small_pictures import picture

from dca.core.errors import UserError
from dca.data.decode import Unreadable, attempt
from dca.data.image_store import ImageStore, decode, open_image, sha256_of, stored_side, stream


def crop8(image):
    """A stand-in for a backbone's evaluation crop."""
    return np.asarray(image.resize((8, 8))).transpose(2, 0, 1)


def test_rgb_comes_back_pixel_for_pixel(tmp_path):
    image = picture(3)
    image.save(tmp_path / "x.png")
    for source in (tmp_path / "x.png", image):
        assert open_image(source).mode == "RGB"
        assert np.array_equal(open_image(source), image)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(tmp_path, orientation):
    image = picture(1, size=(16, 8))
    turns = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270",
             7: "TRANSVERSE", 8: "ROTATE_90"}  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / "x.png", exif=exif)
    name = turns.get(orientation)
    expected = image.transpose(getattr(Image.Transpose, name)) if name else image
    assert np.array_equal(open_image(tmp_path / "x.png"), expected)


@pytest.mark.filterwarnings("ignore:.*EXIF")
def test_damaged_exif_does_not_matter(tmp_path):
    out = io.BytesIO()
    picture().save(out, "jpeg", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\x99" * 40)
    (tmp_path / "x.jpg").write_bytes(out.getvalue())
    assert open_image(tmp_path / "x.jpg").size == (32, 24)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path, suffix):
    values = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(values).save(tmp_path / f"x{suffix}")
    pixels = np.asarray(open_image(tmp_path / f"x{suffix}"))[..., 0].ravel()
    assert np.array_equal(pixels, np.arange(256))


@pytest.mark.parametrize("scale", [1.0, 255.0, 65535.0, 1e7])
def test_float_images_use_their_range(tmp_path, scale):
    values = (np.linspace(0, 1, 256, dtype=np.float32) * scale).reshape(16, 16)
    Image.fromarray(values).save(tmp_path / "x.tif")
    pixels = np.asarray(open_image(tmp_path / "x.tif"))[..., 0].ravel().astype(int)
    assert np.abs(pixels - np.arange(256)).max() <= 1


def test_cmyk_jpeg(tmp_path):
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "x.jpg")
    assert np.abs(np.asarray(open_image(tmp_path / "x.jpg"), int) - (255, 0, 0)).max() < 8


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_transparency_is_laid_on_white(tmp_path, mode):
    image = picture(2, mode="RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    image = image.convert(mode)
    white = Image.new("RGBA", image.size, "white")
    expected = Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    assert np.array_equal(open_image(image), expected)


def test_palette_with_transparent_colours(tmp_path):
    image = picture(2).quantize(4)
    image.save(tmp_path / "x.png", transparency=bytes([0, 255, 255, 255]))
    shown = np.asarray(open_image(tmp_path / "x.png"))
    assert (shown[np.asarray(image) == 0] == 255).all()
    assert np.array_equal(shown[np.asarray(image) != 0], np.asarray(image.convert("RGB"))[np.asarray(image) != 0])


def test_rgba_png_named_jpg_is_read_by_content(tmp_path):
    picture(1, mode="RGBA").save(tmp_path / "x.jpg", format="png")
    assert open_image(tmp_path / "x.jpg").mode == "RGB"


def test_animated_gif_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    assert np.asarray(open_image(tmp_path / "x.gif"))[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("mode", ["1", "L", "P", "YCbCr", "HSV", "LAB", "I;16", "I", "F", "CMYK"])
def test_every_mode_becomes_rgb(mode):
    image = picture(1)
    image = (
        image.convert("L").convert("I").convert("I;16")
        if mode == "I;16"
        else (image.convert("L").convert(mode) if mode in "IF" else image if mode == "LAB" else image.convert(mode))
    )
    assert open_image(image).mode == "RGB"


def bomb(path, side=60_000):
    """A PNG that claims to be huge."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b""))


@pytest.fixture
def broken(tmp_path):
    """One file of each unreadable kind, with the reason that is given."""
    whole = io.BytesIO()
    picture(1, size=(200, 200)).save(whole, "jpeg")
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "text.jpg").write_text("hello")
    (tmp_path / "cut.jpg").write_bytes(whole.getvalue()[:-700])
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "dangling.jpg").symlink_to(tmp_path / "nowhere.jpg")
    bomb(tmp_path / "bomb.png")
    reasons = {
        "empty.jpg": "0 bytes", "text.jpg": "not an image", "cut.jpg": "truncated", "folder.jpg": "a folder",
        "dangling.jpg": "a broken link", "bomb.png": "million pixels", "missing.jpg": "no such file",
    }  # fmt: skip
    return {tmp_path / name: reason for name, reason in reasons.items()}


def test_phone_photos_name_the_package_they_need(tmp_path):
    if importlib.util.find_spec("pillow_heif"):
        pytest.skip("pillow-heif is installed: these are read")
    (tmp_path / "x.HEIC").write_bytes(b"\0\0\0\x18ftypheic" + bytes(40))
    with pytest.raises(UserError, match=r"dca-prompt\[heif\]"):
        open_image(tmp_path / "x.HEIC")


def test_each_unreadable_file_is_an_error_with_its_reason(broken):
    for path, reason in broken.items():
        with pytest.raises(UserError, match=reason):
            open_image(path)


@pytest.mark.parametrize("run", [
    lambda pictures: decode(pictures, crop8),
    lambda pictures: list(stream(pictures, crop8, 2)),
    lambda pictures: ImageStore(pictures, 8),
])  # fmt: skip
def test_all_unreadable_files_come_in_one_error(tmp_path, broken, run):
    picture().save(tmp_path / "good.png")
    pictures = [tmp_path / "good.png", *broken, tmp_path / "good.png"]
    with pytest.raises(UserError, match="7 of 9 images cannot be read") as error:
        run(pictures)
    assert len(error.value.details) == 7
    for line, (path, reason) in zip(error.value.details, broken.items(), strict=True):
        assert line.startswith(str(path))
        assert reason in line
    outcomes = attempt(pictures, crop8)
    assert [isinstance(out, Unreadable) for out in outcomes] == [False] + [True] * 7 + [False]


@settings(max_examples=60, deadline=None)
@given(
    data=st.binary(max_size=300),
    kind=st.sampled_from(["png", "jpeg", "gif", "tiff", "webp", "bmp"]),
    at=st.floats(0, 1),
)
def test_damaged_files_are_read_or_refused_never_a_crash(tmp_path_factory, data, kind, at):
    out = io.BytesIO()
    picture(1).save(out, kind)
    content = bytearray(out.getvalue())
    start = int(at * len(content))
    content[start : start + len(data)] = data
    path = tmp_path_factory.mktemp("fuzz") / "x"
    path.write_bytes(content)
    with contextlib.suppress(UserError):
        assert open_image(path).mode == "RGB"


def test_decode_keeps_the_order_and_reports_progress():
    pictures = [picture(k) for k in range(20)]
    seen = []
    sizes = decode(pictures, lambda image: np.asarray(image).sum(), workers=4, progress=lambda *at: seen.append(at))
    assert sizes == [np.asarray(image).sum() for image in pictures]
    assert seen == [(k, 20) for k in range(1, 21)]


def test_stream_yields_every_picture_in_batches():
    pictures = [picture(k) for k in range(11)]
    seen = []
    batches = list(stream(pictures, crop8, 4, lambda *at: seen.append(at), workers=3))
    assert [tuple(batch.shape) for batch in batches] == [(4, 3, 8, 8), (4, 3, 8, 8), (3, 3, 8, 8)]
    assert batches[0].dtype == torch.uint8
    assert torch.equal(torch.cat(batches), torch.from_numpy(np.stack([crop8(image) for image in pictures])))
    assert seen[-1] == (11, 11)


def test_stream_decodes_only_a_few_batches_ahead():
    opened = []

    def crop(image):
        opened.append(1)
        return crop8(image)

    batches = stream([picture(0)] * 200, crop, 4, workers=2)
    next(batches)
    batches.close()
    assert len(opened) < 30


def test_an_error_of_the_crop_is_not_hidden():
    def crop(image):
        raise RuntimeError("our bug")

    with pytest.raises(RuntimeError, match="our bug"):
        list(stream([picture()], crop, 1))


def test_hash_is_of_the_file_or_of_the_pixels(tmp_path):
    image = picture()
    image.save(tmp_path / "x.png")
    assert sha256_of(tmp_path / "x.png") == hashlib.sha256((tmp_path / "x.png").read_bytes()).hexdigest()
    assert sha256_of(image) == sha256_of(image.copy()) != sha256_of(image.transpose(Image.Transpose.TRANSPOSE))


def test_store_keeps_small_images_and_shrinks_large_ones():
    store = ImageStore([picture(1, (50, 40)), picture(2, (300, 200))], image_size=16)
    assert [image.size for image in store.images] == [(50, 40), (96, 64)]
    assert np.array_equal(store.images[0], picture(1, (50, 40)))
    assert store.nbytes == 3 * (50 * 40 + 96 * 64)


def test_same_generator_same_batch_on_any_call():
    store = ImageStore([picture(k, (60, 40)) for k in range(6)], image_size=16)
    batches = [store.augment([3, 1, 3], 16, torch.Generator().manual_seed(s), "cpu") for s in (1, 1, 2)]
    assert torch.equal(batches[0], batches[1])
    assert not torch.equal(batches[0], batches[2])
    assert batches[0].shape == (3, 3, 16, 16)
    assert batches[0].min() >= 0
    assert batches[0].max() <= 1


@pytest.mark.parametrize(
    ("count", "size", "side"), [(160, 224, 896), (16, 64, 256), (5000, 224, 463), (50_000, 224, 448)]
)
def test_large_sets_are_stored_smaller(count, size, side):
    assert stored_side(count, size) == side
