"""Parts of the tests of the server: options with small limits, clients, image files."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from starlette.testclient import TestClient

from dca.model.classifier import Classifier
from dca.serve.options import ServeOptions
from dca.serve.server import create_app
from dca.serve.service import ModelService

ADDRESS = "http://127.0.0.1:8080"
# Small limits, so that tests need no large files.
OPTIONS = ServeOptions(token="", decoders=1, upload_bytes=300_000, pixels=1_000_000, decode_seconds=20)


def service_of(folder: Path, options: ServeOptions = OPTIONS, tray: Path | None = None) -> ModelService:
    return ModelService(folder, Classifier.from_pretrained(folder, device="cpu"), options, tray)


def client_of(service: ModelService) -> TestClient:
    return TestClient(create_app(service), base_url=ADDRESS, headers={"X-DCA": "1"})


def picture(kind: str = "JPEG", size: tuple[int, int] = (48, 40), colour: int = 0) -> bytes:
    """An image file with a little of everything in it."""
    image = Image.effect_noise(size, 90).convert("RGB")
    image.paste((colour, 90, 200 - colour // 2), (5, 5, size[0] // 2, size[1] // 2))
    image.save(file := io.BytesIO(), kind)
    return file.getvalue()


@dataclass(frozen=True)
class Live:
    """A server in a thread, with a real socket."""

    port: int
    service: ModelService

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"
