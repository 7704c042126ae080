"""dca serve on the command line: what it says, and what it refuses."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dca.core.files import exclusive_lock
from dca.model.classifier import Classifier
from dca.serve.options import ServeOptions
from dca.serve.server import open_socket, page_address


def test_a_missing_model_or_folder_is_named(dca, fitted: Path, tmp_path: Path):
    assert "no such model folder" in dca("serve", tmp_path / "none.dca").err
    assert dca("serve", fitted, "--tray", tmp_path / "none").code == 2


def test_a_missing_package_is_named(dca, fitted: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dca.serve.find_spec", lambda name: None)
    told = dca("serve", fitted)
    assert told.code == 2
    assert "pip install 'dca-prompt[serve]'" in told.err


def test_a_port_in_use_is_named(dca, fitted: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        told = dca("serve", fitted, "--port", taken.getsockname()[1])
    assert told.code == 2
    assert "choose another --port" in told.err


def test_a_rate_that_the_model_cannot_keep_is_refused(
    dca, fitted: Path, photos: Path, tiny_folder: Path, tmp_path: Path
):
    dca("fit", photos / "train", "--backbone", tiny_folder, "-o", tmp_path / "m.dca")
    for model, rate, way in ((tmp_path / "m.dca", 0.01, "--reject 0.025"), (fitted, 0.05, "--estimate")):
        told = dca("serve", model, "--port", 0, "--reject", rate)
        assert told.code == 2
        assert way in told.err


def test_one_server_per_model(dca, fitted: Path):
    with exclusive_lock(fitted):
        told = dca("serve", fitted, "--port", 0)
    assert told.code == 2
    assert "is writing" in told.err


@pytest.mark.parametrize("command", ["serve", "app"])
def test_threads_share_freed_memory_before_anything_is_loaded(
    dca, fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
):
    done: list[str] = []
    monkeypatch.setattr("dca.core.device.share_freed_memory", lambda: done.append("share"))
    for name in ("serve", "serve_projects"):
        monkeypatch.setattr(f"dca.serve.server.{name}", lambda *_, **__: done.append("serve"))
    load = Classifier.from_pretrained
    monkeypatch.setattr(
        Classifier, "from_pretrained", lambda *given, **more: done.append("load") or load(*given, **more)
    )
    assert dca(command, fitted if command == "serve" else tmp_path / "work").code == 0
    assert done == ["share", *(["load"] if command == "serve" else []), "serve"]


def test_the_address_holds_the_token():
    with open_socket(ServeOptions(port=0)) as listening:
        port = listening.getsockname()[1]
        assert page_address(listening, ServeOptions(token="")) == f"http://127.0.0.1:{port}/"
        assert page_address(listening, ServeOptions(host="::", token="abc")) == f"http://[::]:{port}/#token=abc"


def test_help_teaches_with_an_example(dca):
    told = dca("serve", "--help")
    assert "dca serve photos.dca --host 0.0.0.0" in told.out
    assert "/api/predict" in told.out


def test_a_server_without_decoding_processes_does_not_start(dca, fitted: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dca.serve.decoder.WORKER", "dca.no_such_module")
    told = dca("serve", fitted, "--port", 0)
    assert told.code == 2
    assert "no process that decodes images can be started: it ended at once" in told.err
    assert "http://" not in told.out


def test_other_machines_are_not_served_without_a_token(dca, fitted: Path):
    told = dca("serve", fitted, "--port", 0, "--host", "0.0.0.0", "--no-token")
    assert told.code == 2
    assert "so a token is needed" in told.err
    assert "leave out --no-token" in told.err


@pytest.mark.parametrize("flags", [(), ("--no-token",)])
def test_the_printed_address_holds_a_token(dca, fitted: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]):
    def served(folder: Path, model: object, options: ServeOptions, *, tray: object, on_ready: object) -> None:
        with open_socket(options) as listening:
            on_ready(page_address(listening, options))

    monkeypatch.setattr("dca.serve.server.serve", served)
    monkeypatch.delenv("DCA_TOKEN", raising=False)
    told = dca("serve", fitted, "--port", 0, *flags).out
    (address,) = [line for line in told.splitlines() if line.startswith("http://127.0.0.1:")]
    assert ("/#token=" in address) is (flags == ())
    assert ("no token" in told) is (flags != ())
    monkeypatch.setenv("DCA_TOKEN", "chosen")
    assert ("#token=chosen" in dca("serve", fitted, "--port", 0, *flags).out) is (flags == ())
