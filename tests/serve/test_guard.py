"""Which requests are answered: hosts, origins, tokens; and the headers of every answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from dca.core.errors import UserError
from dca.serve.options import ServeOptions
from dca.serve.server import STATIC
from serve.serving import ADDRESS, OPTIONS, client_of, service_of


@pytest.fixture(scope="module")
def local(closed_form: Path) -> Iterator[TestClient]:
    with client_of(service_of(closed_form)) as found:
        yield found


@pytest.fixture(scope="module")
def remote(closed_form: Path) -> Iterator[TestClient]:
    options = replace(OPTIONS, host="0.0.0.0", token="s3cret", names=("pets.example",))
    with client_of(service_of(closed_form, options)) as found:
        yield found


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "192.168.0.7:8080", "", "127.0.0.1.evil.example"]
)
def test_other_host_names_are_refused(local: TestClient, host: str):
    for path in ("/", "/api/model", "/metrics"):
        told = local.get(path, headers={"host": host})
        assert told.status_code == 421, host
        assert "hint" in told.json()


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:9", "[::1]:8080", "LOCALHOST", "127.0.0.1"])
def test_this_machine_is_known(local: TestClient, host: str):
    assert local.get("/api/model", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_other_sites_are_refused(local: TestClient, headers: dict[str, str]):
    for method, path in (
        ("POST", "/api/undo"),
        ("POST", "/api/predict"),
        ("GET", "/api/model"),
        ("OPTIONS", "/api/undo"),
    ):
        told = local.request(method, path, headers=headers)
        assert told.status_code == 403
        assert "access-control-allow-origin" not in told.headers


def test_the_own_page_is_answered(local: TestClient):
    own = {"origin": ADDRESS, "sec-fetch-site": "same-origin"}
    assert local.get("/api/model", headers=own).status_code == 200
    assert local.post("/api/undo", headers=own).status_code == 409  # nothing to undo


def test_changes_need_a_header_that_forms_cannot_send(local: TestClient):
    bare = TestClient(local.app, base_url=ADDRESS)
    for path in ("/api/undo", "/api/refit", "/api/correct", "/api/predict", "/api/tray"):
        told = bare.post(path, content=b"x")
        assert told.status_code == 403
        assert "X-DCA" in told.json()["hint"]
    assert bare.get("/api/model").status_code == 200


def test_other_machines_need_the_token(remote: TestClient):
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "s3cret"},
        {"authorization": "Basic s3cret"},
    ):
        for path in ("/api/model", "/metrics", "/api/images/" + "0" * 64):
            told = remote.get(path, headers=headers)
            assert told.status_code == 401
            assert told.headers["www-authenticate"] == "Bearer"
    good = {"authorization": "Bearer s3cret"}
    assert remote.get("/api/model", headers=good).status_code == 200
    assert remote.get("/", headers={}).status_code == 200


@pytest.mark.parametrize(("host", "status"), [("10.1.2.3:8080", 200), ("pets.example", 200), ("evil.example", 421)])
def test_other_machines_use_an_address_or_a_known_name(remote: TestClient, host: str, status: int):
    told = remote.get("/api/model", headers={"host": host, "authorization": "Bearer s3cret"})
    assert told.status_code == status


def test_a_token_is_made_and_can_be_left_out_on_this_machine_only():
    made = {ServeOptions(host=host).token for host in ("127.0.0.1", "0.0.0.0", "::", "192.168.0.7", "my.host")}
    assert len(made) == 5
    assert min(map(len, made)) >= 32
    assert ServeOptions(host="0.0.0.0", token="mine").token == "mine"
    assert "mine" not in repr(ServeOptions(token="mine"))
    assert ServeOptions(host="localhost", token="").token == ""
    for host in ("0.0.0.0", "::", "192.168.0.7", "my.host"):
        with pytest.raises(UserError, match="a token is needed"):
            ServeOptions(host=host, token="")


def test_this_machine_needs_the_token_too(closed_form: Path):
    with client_of(service_of(closed_form, replace(OPTIONS, token="s3cret"))) as client:
        assert client.get("/api/model").status_code == 401
        told = client.post("/api/undo")
        assert (told.status_code, told.json()["code"]) == (401, "token-needed")
        assert client.get("/api/model", headers={"authorization": "Bearer s3cret"}).status_code == 200


def test_tokens_are_compared_in_constant_time(closed_form: Path, monkeypatch: pytest.MonkeyPatch):
    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append((a, b)) or False)
    with client_of(service_of(closed_form, replace(OPTIONS, token="s3cret"))) as client:
        assert client.get("/api/model", headers={"authorization": "Bearer s3cret"}).status_code == 401
    assert compared == [(b"s3cret", b"s3cret")]


@pytest.mark.parametrize("path", [*STATIC, "/api/model", "/nothing", "/../../etc/passwd", "/static/page.js"])
def test_every_answer_has_the_headers(local: TestClient, path: str):
    told = local.get(path)
    policy = told.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert told.headers["x-content-type-options"] == "nosniff"
    assert told.headers["x-frame-options"] == "DENY"
    assert told.headers["referrer-policy"] == "no-referrer"
    assert told.headers["cross-origin-resource-policy"] == "same-origin"
    assert told.headers["cache-control"] == "no-store"
    assert told.status_code == (200 if path in STATIC or path == "/api/model" else 404)


def test_the_page_needs_no_other_host(local: TestClient):
    for path in STATIC:
        text = local.get(path).text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text
        assert "https://" not in text
    page = local.get("/").text
    assert "style=" not in page
    assert "<script>" not in page
    assert "onclick" not in page


def test_wrong_methods_are_answered_as_json(local: TestClient):
    told = local.put("/api/predict", content=b"x")
    assert told.status_code == 405
    assert told.json()["message"] == "Method Not Allowed"
