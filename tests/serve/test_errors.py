"""What a client is told: a code with its status, a message, and a hint in the words of the API."""

from __future__ import annotations

import errno
import json
import os
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from dca.core.errors import UserError
from dca.core.hints import set_shots
from dca.serve.errors import STATUS, RequestError
from serve.serving import client_of, service_of

SOURCES = files("dca.serve")


def test_every_code_is_described_and_used():
    spec = json.loads(SOURCES.joinpath("static", "openapi.json").read_text(encoding="utf-8"))
    assert spec["components"]["schemas"]["Error"]["properties"]["code"]["enum"] == list(STATUS)
    rooms = [Path(str(SOURCES)), Path(str(files("dca.projects")))]
    code = "".join(path.read_text(encoding="utf-8") for room in rooms for path in room.glob("*.py"))
    unused = {name for name in STATUS if len(re.findall(f'"{name}"', code)) < 2}
    assert unused == set()


def test_hints_of_the_command_line_are_not_given_to_clients():
    error = RequestError.from_user_error(UserError("too few", details=["a", "b"], hint=set_shots(2)), "refused", "wait")
    assert error.to_dict() == {"code": "refused", "message": "too few", "hint": "wait", "details": ["a", "b"]}
    assert error.status == 409


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_what_cannot_be_stored_is_507_and_tells_no_path(
    client: TestClient, folder: Path, images: list[Path], monkeypatch: pytest.MonkeyPatch, number: int
):
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    image = client.post("/api/predict", content=images[0].read_bytes()).json()["image"]
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        told = client.post("/api/correct", json={"image": image, "label": "fish"})
    assert told.status_code == 507
    assert told.json()["code"] == "not-stored"
    assert os.strerror(number) in told.json()["message"]
    assert str(folder) not in told.text
    assert client.get("/api/model").json()["corrections"] == 0
    assert client.post("/api/correct", json={"image": image, "label": "fish"}).status_code == 200


def test_an_image_whose_file_is_gone_must_be_sent_again(folder: Path, images: list[Path]):
    service = service_of(folder)
    with client_of(service) as client:
        image = client.post("/api/predict", content=images[0].read_bytes()).json()["image"]
        told = client.post("/api/correct", json={"image": image, "label": "fish"}).json()
        service.images._recent.clear()
        (folder / told["saved"]).unlink()
        again = client.post("/api/correct", json={"image": image, "label": "house"})
        assert (again.status_code, again.json()["code"]) == (404, "image-unknown")
