from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
import socket
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from dca.core.errors import UserError
from dca.images.crops import DecodedImages
from dca.images.decode import (
    AsStored,
    Unreadable,
    center_crop,
    decode_all,
    is_image,
    may_have_rotation,
    open_image,
    pixel_limit,
    to_rgb,
    try_decode_all,
)
from dca.images.hashing import sha256_of
from helpers.small_images import photo


def crop8(image):
    """A stand-in for a backbone's evaluation crop."""
    return np.asarray(image.resize((8, 8))).transpose(2, 0, 1)


def crop8_row(image):
    return torch.tensor(crop8(image))[None]


def test_rgb_comes_back_pixel_for_pixel(tmp_path):
    image = photo(3)
    image.save(tmp_path / "x.png")
    for source in (tmp_path / "x.png", image):
        assert open_image(source).mode == "RGB"
        assert np.array_equal(open_image(source), image)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(tmp_path, orientation):
    image = photo(1, size=(16, 8))
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
    photo().save(out, "jpeg", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\x99" * 40)
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
    image = photo(2, mode="RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    image = image.convert(mode)
    white = Image.new("RGBA", image.size, "white")
    expected = Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    assert np.array_equal(open_image(image), expected)


def test_palette_with_transparent_colours(tmp_path):
    image = photo(2).quantize(4)
    image.save(tmp_path / "x.png", transparency=bytes([0, 255, 255, 255]))
    shown = np.asarray(open_image(tmp_path / "x.png"))
    assert (shown[np.asarray(image) == 0] == 255).all()
    assert np.array_equal(shown[np.asarray(image) != 0], np.asarray(image.convert("RGB"))[np.asarray(image) != 0])


def test_rgba_png_named_jpg_is_read_by_content(tmp_path):
    photo(1, mode="RGBA").save(tmp_path / "x.jpg", format="png")
    assert open_image(tmp_path / "x.jpg").mode == "RGB"


def test_animated_gif_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    assert np.asarray(open_image(tmp_path / "x.gif"))[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("mode", ["1", "L", "P", "YCbCr", "HSV", "LAB", "I;16", "I", "F", "CMYK"])
def test_every_mode_becomes_rgb(mode):
    image = photo(1)
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
    photo(1, size=(200, 200)).save(whole, "jpeg")
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "text.jpg").write_text("hello")
    (tmp_path / "cut.jpg").write_bytes(whole.getvalue()[:-700])
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "dangling.jpg").symlink_to(tmp_path / "nowhere.jpg")
    bomb(tmp_path / "bomb.png")
    os.mkfifo(tmp_path / "pipe.jpg")
    reasons = {
        "empty.jpg": "0 bytes", "text.jpg": "not an image", "cut.jpg": "truncated", "folder.jpg": "a folder",
        "dangling.jpg": "a broken link", "bomb.png": "million pixels", "missing.jpg": "no such file",
        "pipe.jpg": "not a regular file",
    }  # fmt: skip
    return {tmp_path / name: reason for name, reason in reasons.items()}


def test_pipes_sockets_and_devices_are_never_opened(tmp_path):
    """Opening a pipe would wait for a writer: a test that hangs here has failed."""
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "device.jpg").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket.jpg"))
        for name in ("pipe.jpg", "device.jpg", "socket.jpg"):
            with pytest.raises(UserError, match="not a regular file"):
                open_image(tmp_path / name)
            with pytest.raises(UserError, match="not a regular file"):
                sha256_of(tmp_path / name)
            assert not is_image(tmp_path / name)


def test_an_image_is_known_by_its_bytes(tmp_path):
    photo().save(tmp_path / "IMG_7", format="png")
    (tmp_path / "note.jpg").write_text("hello")
    assert is_image(tmp_path / "IMG_7")
    assert not is_image(tmp_path / "note.jpg")
    assert not is_image(tmp_path / "nothing")


def test_conversion_leaves_its_argument_alone():
    image = photo(1, mode="RGBA")
    image.putalpha(100)
    before = image.tobytes()
    assert np.array_equal(to_rgb(image), open_image(image))
    assert image.tobytes() == before


@pytest.mark.parametrize("upright", [True, False])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_converting_gives_another_image_even_where_nothing_is_to_be_done(mode, upright):
    image = photo(1, mode=mode)
    found = to_rgb(image, upright=upright)
    found.putpixel((0, 0), (1, 2, 3))
    assert np.array_equal(image, photo(1, mode=mode))


@pytest.mark.parametrize("orientation", [None, 1, 6])
@pytest.mark.parametrize("name", ["x.jpg", "x.png", "x.webp"])
def test_files_are_decoded_as_pillow_s_own_steps_do_it(tmp_path, name, orientation):
    """No step copies an image that it need not change; the pixels are those of the steps that copy."""
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    photo(3).save(tmp_path / name, exif=exif)
    with Image.open(tmp_path / name) as opened:
        expected = ImageOps.exif_transpose(opened).convert("RGB")
    assert np.array_equal(open_image(tmp_path / name), expected)
    (found,) = decode_all([tmp_path / name], lambda image: center_crop(image, 16, None, 3))
    assert np.array_equal(found, np.asarray(expected.resize((16, 16), Image.Resampling.BICUBIC)).transpose(2, 0, 1))


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
    lambda images: decode_all(images, crop8),
    lambda images: DecodedImages(images, 8, crop8),
])  # fmt: skip
def test_all_unreadable_files_come_in_one_error(tmp_path, broken, run):
    photo().save(tmp_path / "good.png")
    images = [tmp_path / "good.png", *broken, tmp_path / "good.png"]
    with pytest.raises(UserError, match="8 of 10 images cannot be read") as error:
        run(images)
    assert len(error.value.details) == 8
    for line, (path, reason) in zip(error.value.details, broken.items(), strict=True):
        assert line.startswith(str(path))
        assert reason in line
    outcomes = try_decode_all(images, crop8)
    assert [isinstance(out, Unreadable) for out in outcomes] == [False] + [True] * 8 + [False]


@settings(max_examples=60, deadline=None)
@given(
    data=st.binary(max_size=300),
    kind=st.sampled_from(["png", "jpeg", "gif", "tiff", "webp", "bmp"]),
    at=st.floats(0, 1),
)
def test_damaged_files_are_read_or_refused_never_a_crash(tmp_path_factory, data, kind, at):
    out = io.BytesIO()
    photo(1).save(out, kind)
    content = bytearray(out.getvalue())
    start = int(at * len(content))
    content[start : start + len(data)] = data
    path = tmp_path_factory.mktemp("fuzz") / "x"
    path.write_bytes(content)
    with contextlib.suppress(UserError):
        assert open_image(path).mode == "RGB"


def test_decode_keeps_the_order_and_reports_progress():
    images = [photo(k) for k in range(20)]
    seen = []
    sizes = decode_all(images, lambda image: np.asarray(image).sum(), workers=4, progress=lambda *at: seen.append(at))
    assert sizes == [np.asarray(image).sum() for image in images]
    assert seen == [(k, 20) for k in range(1, 21)]


def test_each_image_may_have_its_own_function():
    images = [photo(0), photo(1)]
    sizes = decode_all(images, [lambda image: image.width, lambda image: -image.height])
    assert sizes == [32, -24]


def test_hash_is_of_the_file_or_of_the_pixels(tmp_path):
    image = photo()
    image.save(tmp_path / "x.png")
    assert sha256_of(tmp_path / "x.png") == hashlib.sha256((tmp_path / "x.png").read_bytes()).hexdigest()
    assert sha256_of(image) == sha256_of(image.copy()) != sha256_of(image.transpose(Image.Transpose.TRANSPOSE))


def jpeg(path, size, **options):
    """A JPEG of a smooth gradient in two directions."""
    across, down = np.meshgrid(np.linspace(0, 255, size[0]), np.linspace(0, 255, size[1]))
    Image.fromarray(np.stack([across, down, 255 - across], 2).astype(np.uint8)).save(path, quality=95, **options)


@pytest.mark.parametrize(("side", "scale"), [(100, 1), (101, 2), (170, 2)])
def test_a_large_jpeg_is_decoded_at_a_smaller_size(tmp_path, side, scale):
    jpeg(tmp_path / "x.jpg", (side, side))
    with pixel_limit(0.01):
        image = open_image(tmp_path / "x.jpg")
    assert image.size == (-(-side // scale), -(-side // scale))
    whole = open_image(tmp_path / "x.jpg").resize(image.size, Image.Resampling.BOX)
    assert np.abs(np.asarray(image, int) - np.asarray(whole, int)).max() <= 6


def test_the_rotation_of_a_large_jpeg_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    jpeg(tmp_path / "x.jpg", (180, 90), exif=exif)
    with pixel_limit(0.01):
        assert open_image(tmp_path / "x.jpg").size == (45, 90)


@pytest.mark.parametrize(
    ("name", "side", "options"),
    [("x.jpg", 174, {}), ("x.jpg", 101, {"progressive": True}), ("x.png", 101, {})],
)
def test_images_over_the_limit_are_refused_with_both_limits(tmp_path, name, side, options):
    jpeg(tmp_path / name, (side, side), **(options if name == "x.jpg" else {}))
    with pixel_limit(0.01):
        (fault,) = try_decode_all([tmp_path / name], crop8)
        assert fault.too_large
        assert "million pixels" in fault.reason
        with pytest.raises(UserError, match="cannot be read") as error:
            decode_all([tmp_path / name], crop8)
        assert "MAX_IMAGE_PIXELS" in error.value.hint
        assert "--max-megapixels" in error.value.render("cli")
    assert open_image(tmp_path / name).size == (side, side)


def test_a_large_jpeg_gives_no_warning_and_is_known_as_an_image(tmp_path):
    """Pillow warns above its limit and refuses twice as much; warnings are errors here."""
    jpeg(tmp_path / "x.jpg", (168, 168))
    with pixel_limit(0.01):
        assert is_image(tmp_path / "x.jpg")
        assert open_image(tmp_path / "x.jpg").size == (84, 84)


def test_the_limit_is_back_after_the_block():
    before = Image.MAX_IMAGE_PIXELS
    with pixel_limit(0.01), contextlib.suppress(ValueError):
        raise ValueError
    with pixel_limit(None):
        assert before == Image.MAX_IMAGE_PIXELS
    assert before == Image.MAX_IMAGE_PIXELS


def test_a_photo_with_a_second_picture_inside_gives_the_first(tmp_path):
    """Phones write such files (MPO), which are JPEGs by their first bytes."""
    first, second = photo(1), photo(2)
    first.save(tmp_path / "x.jpg", format="MPO", save_all=True, append_images=[second])
    with Image.open(tmp_path / "x.jpg") as opened:
        expected = np.asarray(opened.convert("RGB"))
    assert np.array_equal(open_image(tmp_path / "x.jpg"), expected)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp"])  # Pillow always turns TIFF files
def test_without_its_exif_rotation_an_image_is_as_it_is_stored(tmp_path, suffix):
    exif = Image.Exif()
    exif[0x0112] = 6
    photo(1, size=(16, 8)).save(tmp_path / f"x.{suffix}", exif=exif)
    photo(1, size=(16, 8)).save(tmp_path / f"plain.{suffix}")
    found = decode_all([AsStored(tmp_path / f"x.{suffix}")], lambda image: image)[0]
    assert found.size == (16, 8)
    assert np.array_equal(found, open_image(tmp_path / f"plain.{suffix}"))
    assert np.array_equal(to_rgb(found), found), "a later step turns it"
    assert open_image(tmp_path / f"x.{suffix}").size == (8, 16)


def test_only_a_jpeg_header_without_a_rotation_rules_one_out(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    photo().save(tmp_path / "turned.jpg", exif=exif)
    photo().save(tmp_path / "plain.jpg")
    photo().save(tmp_path / "plain.png")
    (tmp_path / "text.jpg").write_text("no image")
    names = ("plain.jpg", "turned.jpg", "plain.png", "text.jpg", "missing.jpg")
    assert [may_have_rotation(tmp_path / name) for name in names] == [False, True, True, True, True]
    assert may_have_rotation(photo())
