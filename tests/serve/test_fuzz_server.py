"""Hostile requests and bytes: every one is answered with a known code, or the connection is closed."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import string
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from starlette.testclient import TestClient

from dca.serve.errors import STATUS
from dca.serve.projects_service import ProjectsService
from dca.serve.server import create_app
from dca.training.session import Session
from helpers.fuzzing import HOW_MANY, JSON, damaged, fuzz
from serve.serving import ADDRESS, OPTIONS, client_of, picture, service_of

# Each with its method, but for GET.
PATHS = [
    *("/", "/api/model", "/api/tray", "/metrics", "/page.js", "/openapi.json", "/api/images/../../etc/passwd"),
    *("/api/images/" + "0a" * 32, "/api/tray/" + "0a" * 32),
    *("POST /api/predict", "POST /api/correct", "POST /api/refit", "POST /api/undo"),
]
# Of a workspace and its project "things"; PHOTO stands for a photo of it.
PROJECT_PATHS = [
    *("/api/projects", "/api/workspace", "/api/projects/none/model", "/api/projects/..%2F..%2Fetc/photos"),
    *(f"/api/projects/things/{rest}" for rest in (
        "model", "findings", "downloads/model", "downloads/none", "photos?class=", "photos?unreadable=1&start=-1",
        "photos/PHOTO?large=1", "photos/..%2F..%2Fx", "similar/PHOTO",
    )),
    *(f"POST /api/projects/things/{rest}" for rest in (
        "predict", "correct", "refit", "undo", "undo", "redo", "photos?class=cat", "photos?class=dog&name=..%2Fx.jpg",
        "photos?class=..%2Fout&name=..%2Fx", "photos/move", "photos/delete", "photos/confirm", "classes",
        "classes/rename", "classes/merge", "classes/delete",
    )),
]  # fmt: skip
HEADERS = ["host", "origin", "sec-fetch-site", "authorization", "content-type", "accept-encoding", "x-dca", "expect"]
PHOTO = "PHOTO"
TEXT = st.text(string.printable.strip() + " é", max_size=20)


@st.composite
def requests(
    draw: st.DrawFn, paths: Sequence[str], images: Sequence[bytes], known: Sequence[str]
) -> tuple[str, str, dict[str, str], bytes]:
    """Method, path, headers and body of a request. known: hashes of images."""
    target = draw(st.sampled_from(paths) | TEXT.map(lambda text: f"/{text}"))
    method, path = ("POST", target.removeprefix("POST ")) if target.startswith("POST ") else ("GET", target)
    if draw(st.integers(0, 3)) == 0:
        method = draw(st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH"]))
    headers = draw(st.dictionaries(st.sampled_from(HEADERS), TEXT, max_size=2)) if draw(st.booleans()) else {}
    label = st.sampled_from(["cat", "dog", "fox", "none of these", "\u202e", "../out", ".dca", "con", "a" * 90])
    label = label | TEXT | JSON
    values = {
        "image": st.sampled_from([*known, "0a" * 32]) | JSON,
        "label": label,
        "to": label,
        "name": label,
        "photos": st.just([PHOTO]) | st.lists(st.just(PHOTO) | TEXT, max_size=2) | JSON,
    }
    fields = st.fixed_dictionaries(values) | st.fixed_dictionaries({}, optional={**values, "revision": JSON})
    texts = fields.map(lambda value: json.dumps(value).encode())
    body = draw(st.sampled_from(images) | damaged(images) | texts | texts | st.binary(max_size=40))
    return method, path, headers, body


@pytest.mark.parametrize("examples", HOW_MANY)
def test_any_request_is_answered_with_a_known_code(examples: int, closed_form: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(closed_form, tmp_path / "photos.dca"))
    images = [picture(kind) for kind in ("JPEG", "PNG", "WEBP", "GIF")]
    options = replace(OPTIONS, corrections=5, tray_images=3)
    with client_of(service_of(folder, options)) as client:
        known = [client.post("/api/predict", content=image).json()["image"] for image in images]
        seen: set[int] = set()

        def check(value: tuple[str, str, dict[str, str], bytes]) -> None:
            seen.add(require_known_answer(client, *value))

        fuzz(requests(PATHS, images, known), check, examples)
        assert client.get("/api/model").status_code == 200
    assert seen >= {200, 405}
    kept = folder / "corrections"
    assert all(path.suffix in (".jpg", ".png", ".webp", ".gif") for path in kept.rglob("*") if path.is_file())


@pytest.mark.parametrize("examples", HOW_MANY)
def test_any_request_to_a_project_is_answered_and_stays_in_its_folder(
    examples: int, tiny_folder: Path, tmp_path: Path
) -> None:
    root = tmp_path / "work" / "things"
    images = [picture(kind, colour=n) for n, kind in enumerate(("JPEG", "PNG", "WEBP"))]
    for label in ("cat", "dog", "fox"):
        (root / label).mkdir(parents=True)
        for n, image in enumerate(images):
            (root / label / f"{n}.jpg").write_bytes(image)
    service = ProjectsService(tmp_path / "work", Session(device="cpu"), str(tiny_folder), OPTIONS)
    with TestClient(create_app(service), base_url=ADDRESS, headers={"X-DCA": "1"}) as client:
        seen: set[int] = set()

        def check(value: tuple[str, str, dict[str, str], bytes]) -> None:
            method, path, headers, body = value
            listed = client.get("/api/projects/things/photos", params={"class": "cat"}).json()["photos"]
            key = listed[0]["photo"] if listed else "0a" * 8
            path, body = path.replace(PHOTO, key), body.replace(PHOTO.encode(), key.encode())
            seen.add(require_known_answer(client, method, path, headers, body))

        fuzz(requests(PROJECT_PATHS, images, []), check, examples)
        assert client.get("/api/projects/things/model").status_code == 200
    assert seen >= {200, 404}
    assert {path.name for path in tmp_path.iterdir()} == {"work"}
    kept = [path for path in root.rglob("*") if path.is_file() and path.relative_to(root).parts[0] != ".dca"]
    assert all(path.suffix in (".jpg", ".png", ".webp") for path in kept)
    assert all(len(path.relative_to(root).parts) == 2 for path in kept)


def require_known_answer(client: TestClient, method: str, path: str, headers: dict[str, str], body: bytes) -> int:
    """Send a request; the status of its response, which is no error of the server."""
    raw = {name: value.encode("latin-1") for name, value in headers.items()}
    address = f"{str(client.base_url).rstrip('/')}{path}"
    answer = client.request(method, address, content=body, headers=raw)  # an exception in the server is raised here
    assert answer.status_code != 500
    if answer.status_code >= 400 and method != "HEAD":
        told = answer.json()
        assert STATUS[told["code"]] == answer.status_code
        assert told["message"]
    return answer.status_code


@contextmanager
def no_tracebacks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail if an exception is logged."""
    with caplog.at_level(logging.WARNING):
        yield
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("examples", HOW_MANY)
def test_any_bytes_on_the_socket_end_in_a_response_or_a_closed_connection(
    examples: int, live: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    port, image = live().port, picture()
    host = b"Host: 127.0.0.1\r\n"
    seeds = [
        b"GET /api/model HTTP/1.1\r\n" + host + b"\r\n",
        b"POST /api/predict HTTP/1.1\r\nX-DCA: 1\r\nContent-Length: %d\r\n" % len(image) + host + b"\r\n" + image,
        b"POST /api/correct HTTP/1.1\r\nX-DCA: 1\r\nTransfer-Encoding: chunked\r\n"
        + host
        + b"\r\n2\r\n{}\r\n0\r\n\r\n",
        b"GET / HTTP/1.0\r\nExpect: 100-continue\r\n" + host + b"\r\nGET /metrics HTTP/1.1\r\n" + host + b"\r\n",
    ]

    def check(data: bytes) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda: connection.recv(65536), b""))
            except ConnectionError:
                return
        assert not answer or answer.startswith(b"HTTP/1.")
        assert b" 500 " not in answer[:20]

    with no_tracebacks(caplog):
        fuzz(damaged(seeds), check, examples)
        check(seeds[0])


@pytest.mark.parametrize("path", ["GET /", "GET /api/model", "POST /api/refit", "POST /api/predict"])
def test_a_body_that_is_no_http_has_one_response(
    path: str, live: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    port = live().port
    head = f"{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-DCA: 1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with no_tracebacks(caplog):
        for parts in ([head + b"no chunk\r\n"], [head, b"no chunk\r\n"], [head + b"2\r\n{}\r\n", b"no chunk\r\n"]):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                for part in parts:
                    connection.sendall(part)
                connection.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda: connection.recv(65536), b""))
            assert answer.count(b"HTTP/1.1 ") == 1, answer
            assert not answer.startswith(b"HTTP/1.1 5")
