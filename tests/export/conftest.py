"""One exported model for all tests of the export."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from conftest import make_clip, shared
from dca.datasets.dataset import Dataset
from dca.datasets.sample import load_sample
from dca.export.folder import ExportResult, export_onnx
from dca.model.classifier import Classifier


@pytest.fixture(scope="session")
def hundred() -> Dataset:
    """The sample with 2 training and 10 test images per class, 100 in all."""
    return load_sample(per_class_train=2, per_class_test=10, size=48)


class Finished(NamedTuple):
    """A classifier and its export."""

    model: Classifier
    done: ExportResult

    @property
    def folder(self) -> Path:
        return self.done.folder


@pytest.fixture(scope="session")
def exported(hundred: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The default method on the tiny backbone, exported."""
    model = Classifier(seed=3, backbone=make_clip(), device="cpu").fit(hundred)
    return Finished(model, export_onnx(model, tmp_path_factory.mktemp("export") / "out", data=hundred))


class Photos(NamedTuple):
    """The default model on 48 photos in six classes, exported, and 100 others."""

    model: Classifier
    folder: Path
    others: list[Path]


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Photos:
    source = shared("data", "images", "caltech-101", "101_ObjectCategories")
    folders = [source / name for name in ("ant", "butterfly", "crayfish", "dolphin", "lobster", "scorpion")]
    paths = [sorted(folder.iterdir()) for folder in folders]
    train = [path for own in paths for path in own[:8]]
    model = Classifier(backbone="mini,efficientnet-lite0", device="cpu", precision="fp32").fit(
        train, [path.parent.name for path in train]
    )
    assert len(model.method_.encoder.members) == 2
    others = [path for own in zip(*(own[8:] for own in paths), strict=False) for path in own][:100]
    folder = tmp_path_factory.mktemp("pool")
    result = export_onnx(model, folder / "out", name="sea", data=None)
    assert result.parity.difference < 1e-5
    return Photos(model, folder / "out", others)
