"""Files to take away from the page, each made by the library when it is asked for."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from starlette.background import BackgroundTask

from dca.export.folder import export_onnx
from dca.model.classifier import Classifier
from dca.model.gallery import GALLERY
from dca.report.assemble import make_model_page
from dca.report.page import write_page
from dca.training.session import Session


@dataclass(frozen=True)
class Download:
    """A file to take away. cleanup: deletes it once it is sent."""

    path: Path
    name: str
    media_type: str
    cleanup: BackgroundTask


# Makes a file in a scratch folder: from the model, the name of the project and the folder of the model.
Maker = Callable[[Classifier, str, Path, Path], Path]


def _make_model(model: Classifier, name: str, folder: Path, scratch: Path) -> Path:
    """The model folder, as `dca predict` takes it."""
    model.save_pretrained(scratch / f"{name}.dca", gallery=(folder / GALLERY).is_file())
    return _zip(scratch / f"{name}.dca", scratch / f"{name}-model.zip")


def _make_onnx(model: Classifier, name: str, folder: Path, scratch: Path) -> Path:
    """`dca export --onnx`: a program without torch, with its script."""
    export_onnx(model, scratch / f"{name}-onnx", name=name)
    return _zip(scratch / f"{name}-onnx", scratch / f"{name}-onnx.zip")


def _make_web(model: Classifier, name: str, folder: Path, scratch: Path) -> Path:
    """`dca export --onnx --web`: a page that classifies in the browser."""
    export_onnx(model, scratch / f"{name}-web", name=name, web=True)
    return _zip(scratch / f"{name}-web", scratch / f"{name}-web.zip")


def _make_report(model: Classifier, name: str, folder: Path, scratch: Path) -> Path:
    """`dca report`: a page about the model."""
    html = make_model_page(model, name, Session(device="cpu"), folder=folder if folder.is_dir() else None)
    return write_page(scratch / f"{name}-report.html", html)


def _zip(folder: Path, target: Path) -> Path:
    """Pack a folder, under its own name."""
    return Path(shutil.make_archive(str(target.with_suffix("")), "zip", folder.parent, folder.name))


DOWNLOADS: Mapping[str, Maker] = MappingProxyType(
    {"model": _make_model, "onnx": _make_onnx, "web": _make_web, "report": _make_report}
)


async def make_download(kind: str, model: Classifier, name: str, folder: Path) -> Download:
    """Make a file to take away.

    Args:
        kind: One of `DOWNLOADS`.
        model: The model.
        name: The name of the project.
        folder: Folder of the model.

    Raises:
        UserError: If a package that it needs is missing, or it cannot be made.
    """
    scratch = Path(tempfile.mkdtemp(prefix="dca-download-"))
    try:
        path = await asyncio.to_thread(DOWNLOADS[kind], model, name, folder, scratch)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    media_type = "text/html" if path.suffix == ".html" else "application/zip"
    return Download(path, path.name, media_type, BackgroundTask(shutil.rmtree, scratch, ignore_errors=True))
