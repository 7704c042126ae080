"""Changed images: each change against its definition, written out."""

from __future__ import annotations

import colorsys
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dca.core.errors import UserError
from dca.datasets import load_dataset, shifts
from dca.datasets import shifts as source
from dca.datasets.sample import write_sample
from dca.datasets.shifts import shift_dataset


@pytest.fixture(scope="module")
def image() -> Image.Image:
    """A small image with edges and colours."""
    y, x = np.mgrid[:24, :30]
    values = np.stack([8 * x, 10 * y, 120 + 100 * ((x // 6 + y // 6) % 2)], axis=2)
    return Image.fromarray(values.astype(np.uint8), "RGB")


@pytest.mark.parametrize("kind", shifts.SHIFTS)
def test_a_change_keeps_the_size_is_the_same_every_time_and_changes_something(kind: str, image: Image.Image) -> None:
    changed = shifts.SHIFTS[kind].apply(image)
    assert (changed.mode, changed.size) == ("RGB", image.size)
    again = shifts.SHIFTS[kind].apply(image.copy())
    assert np.array_equal(np.asarray(changed), np.asarray(again))
    assert not np.array_equal(np.asarray(changed), np.asarray(image))
    assert shifts.SHIFTS[kind].about


def test_noise_is_gaussian_and_depends_on_the_image() -> None:
    flat, other = Image.new("RGB", (200, 200), (128, 128, 128)), Image.new("RGB", (200, 200), (128, 128, 129))
    drawn = np.asarray(shifts.noise(flat)).astype(float) - 128
    assert abs(drawn.mean()) < 0.5
    assert drawn.std() == pytest.approx(30, rel=0.02)
    assert abs(np.corrcoef(drawn[:, 1:].ravel(), drawn[:, :-1].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(drawn.ravel(), np.asarray(shifts.noise(other)).ravel())[0, 1]) < 0.02


def test_a_sketch_is_the_length_of_the_gradient(image: Image.Image) -> None:
    pixels = np.asarray(image).astype(float)
    levels = pixels[..., 0] * 0.299 + pixels[..., 1] * 0.587 + pixels[..., 2] * 0.114
    changed, (height, width) = np.asarray(shifts.sketch(image)).astype(int), levels.shape
    for y in range(height):
        for x in range(width):
            across = levels[y, min(x + 1, width - 1)] - levels[y, max(x - 1, 0)]
            down = levels[min(y + 1, height - 1), x] - levels[max(y - 1, 0), x]
            wanted = max(0.0, 255 * (1 - math.hypot(across, down) / 64))
            assert changed[y, x].tolist() == pytest.approx([wanted] * 3, abs=1)


def test_hues_are_turned_by_a_third() -> None:
    for colour in ((200, 30, 40), (20, 160, 90), (90, 80, 200)):
        found = shifts.hue(Image.new("RGB", (2, 2), colour)).getpixel((0, 0))
        hue, saturation, value = colorsys.rgb_to_hsv(*(level / 255 for level in colour))
        wanted = colorsys.hsv_to_rgb((hue + 1 / 3) % 1, saturation, value)
        assert found == pytest.approx([255 * level for level in wanted], abs=10)  # 256 hues only


def test_blocks_have_one_colour_and_posters_four_levels(image: Image.Image) -> None:
    blocks = np.asarray(shifts.pixelate(image))
    assert (blocks[0::2, 0::2] == blocks[1::2, 1::2]).all()
    assert blocks[0, 0].tolist() == pytest.approx(np.asarray(image)[:2, :2].mean((0, 1)).tolist(), abs=1)
    assert set(np.unique(np.asarray(shifts.posterise(image)))) <= {0, 64, 128, 192}
    grey = np.asarray(shifts.grey(image))
    assert (grey[..., 0] == grey[..., 1]).all()


def test_a_shifted_dataset_has_the_classes_and_changed_test_images(tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "photos", per_class_train=1, per_class_test=2, size=32)
    plain, changed = load_dataset(folder), load_dataset(f"{folder}@grey")
    assert changed.name == "photos@grey"
    assert (changed.labels, changed.names, changed.template) == (plain.labels, plain.names, plain.template)
    assert changed.counts() == {"train": 0, "val": 0, "test": 20}
    assert [item.label for item in changed.test] == [item.label for item in plain.test]
    for one, other in zip(plain.test, changed.test, strict=True):
        with Image.open(one.image) as before, Image.open(other.image) as after:  # type: ignore[arg-type]
            wanted = shifts.grey(before.convert("RGB"))
            assert np.array_equal(np.asarray(after), np.asarray(wanted))
    assert changed.split.endswith("grey: no colours")


def test_only_missing_files_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = load_dataset(write_sample(tmp_path / "photos", per_class_train=1, per_class_test=2, size=32))
    files = [item.image for item in shift_dataset(sample, "blur").test]
    files[3].unlink()  # type: ignore[union-attr]
    written = []
    write = source._write
    monkeypatch.setattr(source, "_write", lambda file, *rest: (written.append(file), write(file, *rest)))
    assert [item.image for item in shift_dataset(sample, "blur").test] == files
    assert written == [files[3]]


def test_names_that_are_wrong_are_answered(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown kind of shift 'nois'.*Did you mean 'noise'"):
        load_dataset("sample@nois")
    with pytest.raises(UserError, match="eurosatt"):
        load_dataset("eurosatt@noise")
    with pytest.raises(UserError, match="has no test images to change"):
        shift_dataset(load_dataset("sample@noise").__class__("x", (), (), ()), "noise")
    odd = write_sample(tmp_path / "photos@home", per_class_train=1, per_class_test=1, size=32)
    assert load_dataset(odd).name == "photos@home", "a folder that is there is a folder"


def test_the_page_about_protocols_lists_every_kind() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "protocols.md").read_text(encoding="utf-8")
    for kind, shift in shifts.SHIFTS.items():
        assert f"| `{kind}` | {shift.about} |\n" in page
