"""Every method, from `dca fit` over `dca predict` to `dca eval`; a new method is tested by existing."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from conftest import tiny_config
from dca.datasets.sample import SAMPLE_CLASSES
from dca.methods.base import Method
from dca.methods.registry import all_methods, get_method

METHODS = sorted(all_methods())


def parsed(text: str) -> Any:
    """JSON as the standard has it: Python's own reader would take NaN and Infinity."""

    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} is no JSON: {text}")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def their_folder(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """A checkpoint of which `transformers` wrote every file: model, tokenizer and preprocessing."""
    transformers = pytest.importorskip("transformers", reason="needs transformers, which makes the checkpoint")
    folder = tmp_path_factory.mktemp("theirs") / "clip"
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(0)
        transformers.CLIPModel(transformers.CLIPConfig(**tiny_config().to_hf())).save_pretrained(folder)
    tokenizer = transformers.CLIPTokenizer.from_pretrained(tiny_folder)
    images = transformers.CLIPImageProcessor.from_pretrained(tiny_folder)
    transformers.CLIPProcessor(images, tokenizer).save_pretrained(folder)
    assert "transformers_version" in json.loads((folder / "config.json").read_text())
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """Two classes of the photos, for a backbone that is not tiny."""
    folder = tmp_path_factory.mktemp("two") / "photos"
    for part in ("train", "test"):
        for name in ("fish", "house"):
            shutil.copytree(photos / part / name, folder / part / name)
    return folder


def fit_and_use(dca: Any, photos: Path, method: str, backbone: str, target: Path) -> dict[str, Any]:
    """Fit, measure, predict; what the three commands print must be finite and must agree. Returns what fit says."""
    trains = get_method(method).trains_on != "nothing"
    short = ("--set", "epochs=1", "--set", "warmup_epochs=0") if trains else ("--set", "epochs=1") * (method == "blend")
    said = dca("fit", photos, "--method", method, "--backbone", backbone, "--shots", 2, "-o", target, "--json", *short)
    assert said.code == 0, said.err
    fit = parsed(said.out)
    assert (fit["method"], fit["backbone"], fit["model"]) == (method, Path(backbone).name, str(target))
    assert 0 <= fit["accuracy"] <= 1
    assert 0 <= fit["zero_shot_accuracy"] <= 1
    assert fit["trained_parameters"] > 0 or not trains
    log = target / "metrics.jsonl"
    rows = [parsed(line) for line in log.read_text().splitlines()] if log.exists() else []
    assert len(rows) == int(trains), "one row per epoch"

    said = dca("eval", target, photos, "--json")
    assert said.code == 0, said.err
    measured = parsed(said.out)
    assert measured["n"] == fit["test_images"]
    assert measured["accuracy"] == fit["accuracy"]
    assert 0 <= measured["ece"] <= 1

    said = dca("predict", target, photos / "test", "--top", fit["classes"], "--json")
    assert said.code == 0, said.err
    predicted = parsed(said.out)
    assert len(predicted) == fit["test_images"]
    for row in predicted:
        assert {best["label"] for best in row["top"]} == set(measured["per_class"])
        assert all(0 <= best["probability"] <= 1 for best in row["top"])
        assert sum(best["probability"] for best in row["top"]) == pytest.approx(1, abs=1e-5)
    right = Counter(Path(row["path"]).parent.name for row in predicted if Path(row["path"]).parent.name == row["label"])
    count = fit["test_images"] // fit["classes"]
    assert {name: right[name] / count for name in measured["per_class"]} == pytest.approx(measured["per_class"])
    return fit


def test_all_methods_that_the_readme_promises_are_here():
    assert len([name for name in METHODS if get_method(name).__module__.startswith("dca.")]) >= 17


@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_made_by_transformers_is_fitted_measured_and_asked(
    dca: Any, photos: Path, their_folder: Path, tmp_path: Path, method: str
):
    fit = fit_and_use(dca, photos, method, str(their_folder), tmp_path / "m.dca")
    assert fit["classes"] == len(SAMPLE_CLASSES)
    assert fit["images"] == 2 * len(SAMPLE_CLASSES)


def test_the_embedded_model_is_fitted_measured_and_asked(dca: Any, two: Path, tmp_path: Path):
    """With the method of this package, which has prompts in both towers."""
    assert get_method("dca").encode is not Method.encode
    fit_and_use(dca, two, "dca", "mini", tmp_path / "m.dca")
