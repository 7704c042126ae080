"""Hostile input to every gate: it is taken or refused in words, in bounded time and memory, and never a traceback.

A few examples run with every test, 10,000 of each kind with `make test-slow`. Examples are derived from valid files,
and are the same every time.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import resource
import shutil
import socket
import string
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save
from starlette.testclient import TestClient
from torch import Tensor, nn

from dca.backbones.clip import CLIP
from dca.backbones.state_dict import PICKLE_SUFFIXES, read_state_dict
from dca.core.errors import UserError
from dca.images.decode import decode_image, open_bytes
from dca.model import checkpoint
from dca.model.classifier import Classifier
from dca.serve.errors import STATUS
from serve.serving import OPTIONS, client_of, picture, service_of

pytest_plugins = ["serve.conftest"]
HOW_MANY = [pytest.param(60, id="few"), pytest.param(10_000, id="many", marks=pytest.mark.slow)]
# Bounds of one input: seconds of computing, and growth of the memory of the process over all inputs, in bytes.
SECONDS, MEMORY = 5.0, 1_500_000_000
# Pixels that an image may have here, so that 10,000 images do not take hours.
PIXELS = 2_000_000


def fuzz(inputs: st.SearchStrategy[Any], check: Callable[[Any], None], examples: int) -> None:
    """Check so many inputs; each within `SECONDS`, all of them within `MEMORY`."""
    before = peak_memory()

    @settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(inputs)
    def run(value: Any) -> None:
        began = time.process_time()
        check(value)
        assert time.process_time() - began < SECONDS

    run()
    assert peak_memory() - before < MEMORY


def peak_memory() -> int:
    """Largest memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@st.composite
def damaged(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """One of the files with a few changes: bytes, lengths and counts, parts of another file, an early end."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 5))):
        # Most fields that decide something are near the start.
        at = draw(st.integers(0, min(len(data), draw(st.sampled_from([32, 256, len(data)])))))
        match draw(st.sampled_from(["byte", "number", "insert", "delete", "splice", "cut"])):
            case "byte":
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "number":
                size = draw(st.sampled_from([2, 4, 8]))
                value = draw(st.sampled_from([0, 1, 255, 2**15, 2 ** (8 * size - 1) - 1, 2 ** (8 * size) - 1]))
                data[at : at + size] = value.to_bytes(size, draw(st.sampled_from(["little", "big"])))
            case "insert":
                data[at:at] = draw(st.binary(max_size=16))
            case "delete":
                del data[at : at + draw(st.integers(1, 64))]
            case "splice":
                other = draw(st.sampled_from(seeds))
                data[at:] = other[draw(st.integers(0, len(other))) :]
            case "cut":
                del data[at:]
    return bytes(data)


def image_files() -> list[bytes]:
    """A small image in each format, some of them with more than pixels."""
    image = Image.effect_noise((40, 30), 80).convert("RGB")
    exif = Image.Exif()
    exif[274] = 6
    files = []
    for kind, options in [
        ("JPEG", {"exif": exif}), ("JPEG", {"progressive": True}), ("PNG", {}), ("WEBP", {}), ("GIF", {}), ("BMP", {}),
        ("DIB", {}), ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"}), ("PPM", {}), ("AVIF", {}),
    ]:  # fmt: skip
        image.save(file := io.BytesIO(), kind, **options)
        files.append(file.getvalue())
    for mode in ("1", "P", "LA", "I;16"):
        image.convert("L").convert(mode).save(file := io.BytesIO(), "PNG")
        files.append(file.getvalue())
    return files


@pytest.mark.parametrize("examples", HOW_MANY)
def test_any_bytes_are_an_image_or_unreadable(examples: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", PIXELS)
    path, opened = tmp_path / "x.jpg", 0

    def check(data: bytes) -> None:
        nonlocal opened
        path.write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of damaged metadata
            decode_image(path, lambda image: image.resize((8, 8)))
            try:
                image = open_bytes(data)
            except UserError:
                return
        opened += 1
        assert image.mode == "RGB"
        assert image.width * image.height <= PIXELS

    fuzz(damaged(image_files()), check, examples)
    assert opened > examples // 10


class Net(nn.Module):
    """Something small to save."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.register_buffer("count", torch.arange(4))

    def forward(self, x: Tensor) -> Tensor:
        """As a layer."""
        return self.inner(x)


def checkpoints() -> list[tuple[str, bytes]]:
    """Suffix and content of a checkpoint in every container that is read, or refused."""
    torch.manual_seed(0)
    state = {"a.weight": torch.randn(3, 4), "module.b": torch.arange(5), "c": torch.randn(2, 2).T, "d": torch.ones(1)}
    found = [(".safetensors", save({name: tensor.contiguous() for name, tensor in state.items()}))]
    for value in (state, {"state_dict": state, "epoch": 3}, Net().state_dict()):
        for zipped in (True, False):
            torch.save(value, file := io.BytesIO(), _use_new_zipfile_serialization=zipped)
            found.append((".pt", file.getvalue()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and its archives are what others have
        for script in (torch.jit.script(Net()), torch.jit.trace(Net(), torch.ones(1, 3))):
            torch.jit.save(script, file := io.BytesIO())
            found.append((".pt", file.getvalue()))
    return found


@st.composite
def damaged_checkpoints(draw: st.DrawFn, seeds: Sequence[tuple[str, bytes]]) -> tuple[str, bytes]:
    """A checkpoint with changes anywhere, or in one member of its archive, whose checksum is then right."""
    suffix, data = draw(st.sampled_from(seeds))
    if not zipfile.is_zipfile(io.BytesIO(data)) or draw(st.booleans()):
        suffix = draw(st.sampled_from([suffix, ".safetensors", *sorted(PICKLE_SUFFIXES)]))
        return suffix, draw(damaged([data]))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    changed = draw(st.sampled_from(sorted(members)))
    how = draw(st.sampled_from(["content", "missing", "name", "twice", "large"]))
    kind = draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", kind) as archive:
        warnings.simplefilter("ignore")  # of a member that is there twice
        for name, content in members.items():
            if name != changed:
                archive.writestr(name, content)
            elif how == "large":
                archive.writestr(name, content + bytes(2**22))
            elif how != "missing":
                new = draw(damaged([content])) if how in ("content", "twice") else content
                name = draw(st.sampled_from([f"../{name}", f"/{name}", name[1:], "a/b/c"])) if how == "name" else name
                archive.writestr(name or "x", new)
                if how == "twice":
                    archive.writestr(name, content)
    return suffix, file.getvalue()


@pytest.mark.parametrize("examples", HOW_MANY)
def test_any_checkpoint_is_tensors_or_refused(examples: int, tmp_path: Path) -> None:
    read = 0
    (tmp_path / "folder").mkdir()

    def check(value: tuple[str, bytes]) -> None:
        nonlocal read
        suffix, data = value
        path = tmp_path / "folder" / f"x{suffix}"
        path.write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about storages
            try:
                state = read_state_dict(path)
            except UserError:
                return
        read += 1
        assert all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in state.items())

    fuzz(damaged_checkpoints(checkpoints()), check, examples)
    assert read > examples // 50
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]  # no member was unpacked anywhere


def test_an_archive_that_grows_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1_000_000)}, stored := tmp_path / "stored.pt")
    assert read_state_dict(stored)["a"].shape == (1_000_000,)
    bomb, many = tmp_path / "bomb.pt", tmp_path / "many.pt"
    with zipfile.ZipFile(stored) as source, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in source.namelist():
            archive.writestr(name, source.read(name))
    with zipfile.ZipFile(many, "w") as archive:
        for number in range(20_001):
            archive.writestr(str(number), b"")
    for path in (bomb, many):
        with pytest.raises(UserError, match="an archive of"):
            read_state_dict(path)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([10**30, "\x1b[2J"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of the values inside a JSON value."""
    inside = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    return [here] * bool(here) + [place for key, part in list(inside)[:40] for place in places(part, (*here, key))]


@st.composite
def changed_json(draw: st.DrawFn, content: bytes) -> bytes:
    """A JSON file with another value somewhere."""
    raw = copy.deepcopy(json.loads(content))
    where = draw(st.sampled_from(places(raw)))
    target = raw
    for key in where[:-1]:
        target = target[key]
    target[where[-1]] = draw(JSON)
    return json.dumps(raw).encode()


@st.composite
def damaged_models(draw: st.DrawFn, files: Mapping[str, bytes]) -> tuple[str, bytes | None, bool]:
    """A file of a model, its changed content (None: it is missing), and whether the manifest is made to fit it."""
    name = draw(st.sampled_from(sorted(files)))
    fits = draw(st.booleans())
    if draw(st.integers(0, 19)) == 0:
        return name, None, fits
    if name.endswith(".json") and draw(st.booleans()):
        return name, draw(changed_json(files[name])), fits
    return name, draw(damaged([files[name]])), fits


@pytest.mark.parametrize("examples", HOW_MANY)
def test_any_model_folder_predicts_or_is_refused(
    examples: int, closed_form: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    model, clip = Path(shutil.copytree(closed_form, tmp_path / "model.dca")), CLIP.from_pretrained(tiny_folder)
    whole = {name: (model / name).read_bytes() for name in (*checkpoint.MANIFESTED, checkpoint.MANIFEST)
             if (model / name).is_file()}  # fmt: skip
    image, loaded = Image.new("RGB", (32, 32)), 0

    def check(value: tuple[str, bytes | None, bool]) -> None:
        nonlocal loaded
        name, content, fits = value
        for other, right in whole.items():
            (model / other).write_bytes(right)
        if content is None:
            (model / name).unlink()
        else:
            (model / name).write_bytes(content)
        if fits and name != checkpoint.MANIFEST:
            checkpoint.write_manifest(model)
        try:
            found = Classifier.from_pretrained(model, backbone=clip)
            probabilities = found.predict_proba(image)
            gallery = found.gallery()
        except UserError:
            return
        loaded += 1
        assert abs(float(probabilities.sum()) - 1) < 1e-4
        assert gallery is None or len(gallery) <= 1000

    fuzz(damaged_models(whole), check, examples)
    assert loaded > examples // 50


PATHS = [
    *(
        "/",
        "/api/model",
        "/api/predict",
        "/api/correct",
        "/api/refit",
        "/api/undo",
        "/api/tray",
        "/metrics",
        "/page.js",
    ),
    *("/api/images/" + "0a" * 32, "/api/tray/" + "0a" * 32, "/openapi.json", "/api/images/../../etc/passwd"),
]
HEADERS = ["host", "origin", "sec-fetch-site", "authorization", "content-type", "accept-encoding", "x-dca", "expect"]
TEXT = st.text(string.printable.strip() + " é", max_size=20)


@st.composite
def requests(draw: st.DrawFn, images: Sequence[bytes], known: Sequence[str]) -> tuple[str, str, dict[str, str], bytes]:
    """Method, path, headers and body of a request."""
    method = draw(st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH"]))
    path = draw(st.sampled_from(PATHS) | TEXT.map(lambda text: f"/{text}"))
    headers = draw(st.dictionaries(st.sampled_from(HEADERS), TEXT, max_size=2)) if draw(st.booleans()) else {}
    fields = st.fixed_dictionaries(
        {},
        optional={
            "image": st.sampled_from([*known, "0a" * 32]) | JSON,
            "label": st.sampled_from(["cat", "none of these", "\u202e", "a" * 90]) | TEXT | JSON,
            "revision": JSON,
        },
    )
    body = draw(damaged(images) | fields.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40))
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

        fuzz(requests(images, known), check, examples)
        assert client.get("/api/model").status_code == 200
    assert seen >= {200, 405}
    kept = folder / "corrections"
    assert all(path.suffix in (".jpg", ".png", ".webp", ".gif") for path in kept.rglob("*") if path.is_file())


def require_known_answer(client: TestClient, method: str, path: str, headers: dict[str, str], body: bytes) -> int:
    """Send a request; the status of its response, which is no error of the server."""
    raw = {name: value.encode("latin-1") for name, value in headers.items()}
    answer = client.request(method, path, content=body, headers=raw)  # an exception in the server is raised here
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
