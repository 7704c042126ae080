"""predict.py: the same pixels and probabilities as the library, without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dca.backbones.preprocess import Preprocess
from dca.datasets.dataset import Dataset
from dca.export import predict
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
    found = predict.crop_image(IMAGES[kind], way.to_dict())
    assert found.shape == (way.size, way.size, 3)
    assert np.array_equal(found.transpose(2, 0, 1), way.crop(IMAGES[kind]))


def test_the_exif_rotation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    IMAGES["tall"].save(tmp_path / "a.jpg", exif=exif)
    found = predict.crop_image(tmp_path / "a.jpg", WAYS[0].to_dict())
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
    done = scripted(exported.folder, *photos_of, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["labels"] == exported.model.classes_.tolist()
    expected = exported.model.predict_proba(photos_of)  # type: ignore[arg-type]
    np.testing.assert_allclose([row["all"] for row in found["items"]], expected, atol=1e-5)
    assert [row["label"] for row in found["items"]] == exported.model.predict(photos_of).tolist()  # type: ignore[arg-type]


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
    found = [row["all"] for row in json.loads(done.stdout)["items"]]
    np.testing.assert_allclose(found, exported.model.predict_proba(photos_of), atol=1e-4)  # type: ignore[arg-type]
