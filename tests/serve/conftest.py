"""A small model to serve, a client of it, and a server with a real socket."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from dca.model.classifier import Classifier
from dca.serve.options import ServeOptions
from dca.serve.server import create_server, open_socket
from serve.serving import OPTIONS, Live, client_of, service_of


@pytest.fixture(scope="session")
def closed_form(tmp_path_factory: pytest.TempPathFactory, photos: Path, tiny_folder: Path) -> Path:
    """A model of the default method on the photos; tests that change it take a copy."""
    model = Classifier(backbone=str(tiny_folder), device="cpu").fit(photos / "train")
    model.save_pretrained(folder := tmp_path_factory.mktemp("served") / "photos.dca")
    return folder


@pytest.fixture
def folder(closed_form: Path, tmp_path: Path) -> Path:
    """A model folder of the test's own."""
    return Path(shutil.copytree(closed_form, tmp_path / "photos.dca"))


@pytest.fixture
def client(folder: Path) -> Iterator[TestClient]:
    """A client of a server for the model of `folder`."""
    with client_of(service_of(folder)) as found:
        yield found


@pytest.fixture(scope="session")
def images(photos: Path) -> list[Path]:
    """Test images, one per class."""
    return [sorted(place.iterdir())[0] for place in sorted((photos / "test").iterdir())]


@pytest.fixture
def live(folder: Path) -> Iterator[Callable[..., Live]]:
    """Starts servers that end with the test."""
    ends: list[Callable[[], None]] = []

    def start(options: ServeOptions = OPTIONS, tray: Path | None = None) -> Live:
        listening = open_socket(ServeOptions(port=0))
        service, up = service_of(folder, options, tray), threading.Event()
        server = create_server(service, up.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()

        def end() -> None:
            server.should_exit = True
            thread.join(30)
            listening.close()

        ends.append(end)
        assert up.wait(60)
        return Live(listening.getsockname()[1], service)

    yield start
    for end in ends:
        end()
