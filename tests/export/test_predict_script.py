"""predict.py: the same pixels and probabilities as the library, without torch."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import Said
from dca.backbones.preprocess import Preprocess
from dca.datasets.dataset import Dataset
from dca.export import predict
from dca.model.predict import predict_stream, prediction_row
from export.conftest import Finished

# Run predict.py with torch and dca out of reach, and say if they were loaded all the same.
WITHOUT_TORCH = """
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "dca", "onnx", "scipy"):
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Absent())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def noise(*shape: int, high: int = 256, kind: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(7).integers(0, high, shape).astype(kind)


IMAGES = {
    "rgb": Image.fromarray(noise(41, 67, 3)),
    "tall": Image.fromarray(noise(90, 33, 3)),
    "smaller than the crop": Image.fromarray(noise(9, 7, 3)),
    "grey": Image.fromarray(noise(50, 40)),
    "transparent": Image.fromarray(noise(50, 40, 4)),
    "16-bit grey": Image.fromarray(noise(50, 40, high=65536, kind=np.uint16)),
    "32-bit grey": Image.fromarray(noise(50, 40, high=4000, kind=np.int32)),
    "floats": Image.fromarray((noise(50, 40) / 255).astype(np.float32)),
    "floats below zero": Image.fromarray((noise(50, 40) / 9 - 3).astype(np.float32)),
    "palette": Image.fromarray(noise(50, 40, 3)).quantize(16),
    "cmyk": Image.fromarray(noise(50, 40, 3)).convert("CMYK"),
    "one bit": Image.fromarray(noise(50, 40)).convert("1"),
}
WAYS = [
    Preprocess(size=32, resize=32, resample=3, mean=(0.5,) * 3, std=(0.5,) * 3),  # type: ignore[arg-type]
    Preprocess(size=24, resize=31, resample=2, mean=(0.5,) * 3, std=(0.5,) * 3),  # type: ignore[arg-type]
    Preprocess(size=32, resize=None, resample=1, mean=(0.5,) * 3, std=(0.5,) * 3),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("way", WAYS, ids=["bicubic", "bilinear", "squeezed"])
@pytest.mark.parametrize("kind", IMAGES)
def test_the_crop_is_that_of_the_library(kind: str, way: Preprocess) -> None:
    found = predict.crop_image(predict.open_image(IMAGES[kind]), way.to_dict())
    assert found.shape == (way.size, way.size, 3)
    assert np.array_equal(found.transpose(2, 0, 1), way.crop(IMAGES[kind]))


def test_the_exif_rotation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    IMAGES["tall"].save(tmp_path / "a.jpg", exif=exif)
    found = predict.crop_image(predict.open_image(tmp_path / "a.jpg"), WAYS[0].to_dict())
    with Image.open(tmp_path / "a.jpg") as opened:
        assert np.array_equal(found.transpose(2, 0, 1), WAYS[0].crop(opened))
        assert not np.array_equal(found.transpose(2, 0, 1), WAYS[0].crop(Image.fromarray(np.asarray(opened))))


@pytest.fixture(scope="module")
def photos_of(hundred: Dataset, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three test images as files."""
    folder = tmp_path_factory.mktemp("files")
    paths = [folder / f"{n} é.png" for n in range(3)]
    for path, item in zip(paths, hundred.test[::40], strict=True):
        item.image.save(path)  # type: ignore[union-attr]
    return paths


def scripted(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(folder / "predict.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)


def test_it_runs_without_torch(exported: Finished, photos_of: list[Path]) -> None:
    done = scripted(exported.folder, *photos_of, "--json", "--top", 10, "--reject", 0.2, "--set-coverage", 0.8)
    assert done.returncode == 0, done.stderr
    found, model = json.loads(done.stdout), exported.model
    outcomes = [one for batch in predict_stream(model, photos_of, coverage=0.8) for one in batch]
    expected = [prediction_row(one, model.classes_.tolist(), 10, 0.2) for one in outcomes]
    assert [row["path"] for row in found] == list(map(str, photos_of))
    for row, other in zip(found, expected, strict=True):
        assert list(row) == list(other)
        assert row["label"] == other["label"]
        assert row["set"] == other["set"]
        assert row["p_value"] == pytest.approx(other["p_value"], abs=1e-5)
        assert [best["label"] for best in row["top"]] == [best["label"] for best in other["top"]]
        probabilities = [[best["probability"] for best in one["top"]] for one in (row, other)]
        np.testing.assert_allclose(*probabilities, atol=1e-5)


def test_folders_become_the_table_of_the_command_line(
    exported: Finished, photos_of: list[Path], tmp_path: Path, tiny_folder: Path, dca: Callable[..., Said]
) -> None:
    for number, path in enumerate(photos_of):
        folder = tmp_path / "photos" / f"{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder)
    shutil.copy(photos_of[0], tmp_path / "photos" / "=1+1.png")
    (tmp_path / "photos" / ".hidden.png").write_bytes(b"x")
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"no image")
    options = ["--top", "2", "--reject", "0.1", "--set-coverage", "0.8"]
    done = scripted(exported.folder, tmp_path / "photos", *options, "-o", tmp_path / "a.csv")
    assert (done.returncode, done.stdout) == (1, f"5 images in {tmp_path / 'a.csv'}; 1 cannot be read\n"), done.stderr
    exported.model.save_pretrained(tmp_path / "model")
    said = dca("predict", tmp_path / "model", tmp_path / "photos", "--backbone", tiny_folder, *options,
               "-o", tmp_path / "b.csv", "-q")  # fmt: skip
    assert said.code == 2, said.err
    tables = []
    for name in ("a.csv", "b.csv"):
        with (tmp_path / name).open(encoding="utf-8", newline="") as file:
            tables.append(sorted(csv.DictReader(file), key=lambda row: row["path"]))
    assert len(tables[0]) == len(tables[1]) == 5
    for row, other in zip(*tables, strict=True):
        assert list(row) == list(other)
        assert {k: v for k, v in row.items() if not is_number(k) and k != "error"} == {
            k: v for k, v in other.items() if not is_number(k) and k != "error"
        }
        assert bool(row["error"]) == bool(other["error"])
        for name in filter(is_number, row):
            assert row[name] == other[name] == "" or float(row[name]) == pytest.approx(float(other[name]), abs=1e-5)


def is_number(column: str) -> bool:
    return column.startswith(("probability", "p_value"))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--reject", "0.001"], "no p-value of this model is below 0.0476: use a larger rate"),
        (["--set-coverage", "0.99"], "a coverage of 0.99 is too much for 20 training images"),
        (["--set-coverage", "1.5"], "give a number between 0 and 1"),
        (["--top", "0"], "--top takes 1 or more"),
    ],
)
def test_what_the_model_cannot_keep_is_refused(
    exported: Finished, photos_of: list[Path], arguments: list[str], problem: str
) -> None:
    done = scripted(exported.folder, photos_of[0], *arguments)
    assert done.returncode == 2
    assert problem in done.stderr
    assert done.stdout == ""


def test_unreadable_images_are_named_and_the_others_predicted(
    exported: Finished, photos_of: list[Path], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    done = scripted(exported.folder, bad, photos_of[0])
    assert done.returncode == 1
    assert str(bad) in done.stderr
    assert "Traceback" not in done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{photos_of[0]}  {exported.model.predict(photos_of[0])}  0.")


def test_a_reader_that_closes_the_pipe_ends_it_quietly(exported: Finished, photos_of: list[Path]) -> None:
    command = [sys.executable, str(exported.folder / "predict.py"), *map(str, photos_of)]
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_session_can_be_used_from_a_program(exported: Finished, photos_of: list[Path]) -> None:
    model = predict.Model(exported.folder, threads=1)
    with Image.open(photos_of[0]) as opened:
        np.testing.assert_allclose(model.predict([opened]), exported.model.predict_proba(photos_of[:1]), atol=1e-5)
    assert model.predict([]).shape == (0, 10)


@pytest.mark.slow
def test_it_runs_in_a_fresh_environment(exported: Finished, photos_of: list[Path], tmp_path: Path) -> None:
    venv.create(tmp_path / "fresh", with_pip=True)
    python = tmp_path / "fresh" / "bin" / "python"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    wanted = [str(python), "-m", "pip", "install", "-q", "onnxruntime", "pillow", "numpy"]
    fetched = subprocess.run(wanted, capture_output=True, text=True, env=clean, check=False)
    if fetched.returncode:
        pytest.skip(f"needs a package index: {fetched.stderr[-200:]}")
    assert subprocess.run([str(python), "-c", "import torch"], capture_output=True, env=clean, check=False).returncode
    command = [str(python), str(exported.folder / "predict.py"), *map(str, photos_of), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=clean, check=True)
    found = [row["probability"] for row in json.loads(done.stdout)]
    np.testing.assert_allclose(found, exported.model.predict_proba(photos_of).max(axis=1), atol=1e-4)  # type: ignore[arg-type]
