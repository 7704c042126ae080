"""Hostile uploads are answered with 4xx, and the server goes on."""

from __future__ import annotations

import asyncio
import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from PIL import Image
from starlette.testclient import TestClient

from dca.serve import decoder as decoding
from serve.serving import OPTIONS, client_of, picture, service_of


@pytest.fixture(scope="module")
def server(closed_form: Path) -> Iterator[TestClient]:
    with client_of(service_of(closed_form)) as found:
        yield found


@pytest.fixture(autouse=True)
def _alive(server: TestClient) -> Iterator[None]:
    """After every test the server still predicts."""
    yield
    assert server.post("/api/predict", content=picture(colour=7)).status_code == 200


def png(width: int, height: int, rows: bytes) -> bytes:
    """A PNG file whose header claims this size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def saved(kind: str) -> bytes:
    Image.new("RGB", (8, 8)).save(file := io.BytesIO(), kind)
    return file.getvalue()


HOSTILE = {
    "one byte": (b"x", 415),
    "text": (b"hello, I am no image", 415),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>', 415),
    "svg with entities": (b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><svg>&a;</svg>', 415),
    "html": (b"<html><script>alert(1)</script>", 415),
    "gif and script": (b"GIF89a/*<script>alert(1)</script>*/=1", 415),
    "jpeg start only": (b"\xff\xd8\xff", 415),
    "cut off": (picture()[:600], 422),
    "zeros": (bytes(1000), 415),
    "zip": (b"PK\x03\x04" + bytes(200), 415),
    "pdf": (saved("PDF"), 415),
    "postscript": (saved("EPS"), 415),
    "icon": (saved("ICO"), 415),
    "pixel bomb": (png(60_000, 60_000, bytes(10)), 413),
    "a little too large": (png(1001, 1000, bytes(3004 * 1000)), 413),
    "wide bomb": (png(2**31 - 1, 1, bytes(10)), 413),
    "no width": (png(0, 10, bytes(10)), 415),
    "rows missing": (png(900, 900, bytes(10)), 422),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(server: TestClient, name: str):
    data, status = HOSTILE[name]
    for path in ("/api/predict", "/api/tray"):
        told = server.post(path, content=data)
        assert 400 <= told.status_code < 500
        assert told.status_code == status, told.text
        assert told.json()["message"]


def test_a_bomb_that_unpacks_on_the_way_is_refused(server: TestClient):
    """A comment of 20 kB that would be 20 MB of text."""
    text = b"bomb\x00\x00" + zlib.compress(bytes(20_000_000), 9)
    data = png(8, 8, bytes(25 * 8))
    chunk = struct.pack(">I", len(text)) + b"zTXt" + text + struct.pack(">I", zlib.crc32(b"zTXt" + text))
    told = server.post("/api/predict", content=data[:33] + chunk + data[33:])
    assert told.status_code in (200, 413, 422)  # Pillow may leave the text alone


def test_too_many_bytes_are_refused(server: TestClient):
    told = server.post("/api/predict", content=b"x" * (OPTIONS.upload_bytes + 1))
    assert told.status_code == 413
    assert told.headers["connection"] == "close"

    parts = (bytes(50_000) for _ in range(10))
    assert server.post("/api/predict", content=parts).status_code == 413  # no length stated


def test_an_empty_body_is_refused(server: TestClient):
    assert server.post("/api/predict", content=b"").status_code == 400


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"])
def test_other_content_types_are_refused(server: TestClient, kind: str):
    told = server.post("/api/predict", content=picture(), headers={"content-type": kind})
    assert told.status_code == 415
    assert "application/octet-stream" in told.json()["hint"]


def test_polyglots_are_only_ever_images_to_others(server: TestClient):
    """A valid JPEG with an archive or a page behind it is an image; what is shown of it is made anew."""
    zipfile.ZipFile(file := io.BytesIO(), "w").writestr("evil.html", "<script>alert(1)</script>")
    for tail in (file.getvalue(), b"<script>alert(1)</script>"):
        told = server.post("/api/predict", content=picture() + tail)
        assert told.status_code == 200
        shown = server.get(f"/api/images/{told.json()['image']}")
        assert shown.headers["content-type"] == "image/jpeg"
        assert tail[:20] not in shown.content


def test_metadata_is_not_shown_to_others(server: TestClient):
    image, exif = Image.open(io.BytesIO(picture())), Image.Exif()
    exif[0x010E] = "secret place"
    image.save(file := io.BytesIO(), "JPEG", exif=exif, comment=b"secret words")
    told = server.post("/api/predict", content=file.getvalue()).json()
    assert b"secret" not in server.get(f"/api/images/{told['image']}").content


def test_labels_lead_to_no_other_place(folder: Path):
    labels = [
        "../../evil",
        "/etc/passwd",
        "a\\b",
        "CON",
        ".hidden",
        "~",
        "%2e%2e%2f",
        "a" * 80,
        "名前",
    ]
    with client_of(service_of(folder)) as client:
        for number, label in enumerate(labels):
            image = client.post("/api/predict", content=picture(colour=number)).json()["image"]
            told = client.post("/api/correct", json={"image": image, "label": label})
            assert told.status_code == 200, told.text
            assert told.json()["label"] == label
            (made,) = folder.parent.rglob(f"{image}.jpg")
            assert made.parent.parent == folder / "corrections"
    with client_of(service_of(folder)) as again:
        assert {label.strip() for label in labels} <= {
            one["label"] for one in again.get("/api/model").json()["classes"]
        }


@pytest.mark.parametrize(
    "image", ["../config.json", "%2e%2e%2fconfig.json", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "."]
)
def test_image_names_are_never_paths(server: TestClient, image: str):
    for method in ("GET", "DELETE"):
        told = server.request(method, f"/api/{'images' if method == 'GET' else 'tray'}/{image}")
        assert told.status_code in (404, 405, 422)
    assert server.post("/api/correct", json={"image": image, "label": "fish"}).status_code == 422


def test_file_names_of_clients_are_not_read(server: TestClient):
    headers = {"content-disposition": 'attachment; filename="../../evil.sh"', "x-file-name": "../evil"}
    told = server.post("/api/predict", content=picture("PNG"), headers=headers)
    assert told.status_code == 200


def test_decoding_that_takes_too_long_is_ended(closed_form: Path):
    with client_of(service_of(closed_form, replace(OPTIONS, decode_seconds=1e-4))) as client:
        for _ in range(2):  # the second finds a new process
            told = client.post("/api/predict", content=picture())
            assert told.status_code == 422
            assert "took longer" in told.json()["message"]


def test_decoding_that_needs_too_much_memory_is_refused(closed_form: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(type(OPTIONS), "decode_memory", property(lambda self: 2**21))
    options = replace(OPTIONS, pixels=50_000_000, upload_bytes=10**6)
    with client_of(service_of(closed_form, options)) as client:
        told = client.post("/api/predict", content=png(6000, 6000, bytes(18_001 * 6000)))
        assert told.status_code in (413, 422)
        assert client.post("/api/predict", content=picture(size=(8, 8))).status_code == 200


def test_decoders_that_are_killed_while_idle_cost_no_image(closed_form: Path):
    service = service_of(closed_form, replace(OPTIONS, decoders=2))
    with client_of(service) as client:
        for colour in range(3):
            for process in list(service.intake._decoders._all):
                process.kill()
            assert client.post("/api/predict", content=picture(colour=colour)).status_code == 200


def test_an_image_that_kills_every_decoder_is_refused(closed_form: Path, monkeypatch: pytest.MonkeyPatch):
    exchange = decoding._exchange

    async def die(process: Any, data: bytes) -> Any:
        if data.startswith(b"\x89PNG"):
            process.kill()
        return await exchange(process, data)

    monkeypatch.setattr(decoding, "_exchange", die)
    service = service_of(closed_form)
    with client_of(service) as client:
        told = client.post("/api/predict", content=picture("PNG"))
        assert (told.status_code, told.json()["code"]) == (422, "image-damaged")
        assert client.post("/api/predict", content=picture("BMP")).status_code == 200


@pytest.mark.parametrize("way", ["no process", "ends at once"])
def test_a_decoder_that_cannot_be_replaced_is_tried_again(
    closed_form: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: str
):
    """Predictions are refused meanwhile, not left waiting, and work as soon as a process starts again."""
    service = service_of(closed_form)
    monkeypatch.setattr(decoding, "LONGEST_PAUSE", 0.2)
    with client_of(service) as client:
        with monkeypatch.context() as patch:
            if way == "no process":
                patch.setattr(
                    "asyncio.create_subprocess_exec", AsyncMock(side_effect=BlockingIOError(11, "no process"))
                )
            else:
                patch.setattr(decoding, "WORKER", "dca.no_such_module")
            for process in list(service.intake._decoders._all):
                process.kill()
            for colour in range(2):
                told = client.post("/api/predict", content=picture(colour=colour))
                assert (told.status_code, told.json()["code"]) == (503, "no-decoder")
                assert int(told.headers["retry-after"]) > 0
            assert "dca_decoders 0" in client.get("/metrics").text
        for _ in range(100):
            if client.post("/api/predict", content=picture()).status_code == 200:
                break
            client.portal.call(asyncio.sleep, 0.1)
        assert "dca_decoders 1" in client.get("/metrics").text
    assert caplog.text.count("cannot be started") == 1


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_usual_formats_are_decoded(server: TestClient, kind: str):
    assert server.post("/api/predict", content=picture(kind)).json()["width"] == 48


def test_the_worker_needs_no_torch():
    import subprocess
    import sys

    code = f"import sys, {decoding.WORKER}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
