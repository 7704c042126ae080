"""Files of datasets are fetched from a server of this machine: resumed, checked and unpacked."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from dca.core.errors import UserError
from dca.datasets import catalog, downloads
from dca.datasets.catalog import SplitFile
from dca.datasets.downloads import Source, fetch, fetch_all, list_missing, sources_of, unpack

CONTENT = bytes(range(256)) * 5000


class Server:
    """Files by path; `cut` ends an answer after so many bytes, `ranges` says whether parts are given."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut, self.ranges = 0, True
        self.asked: list[str] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = Thread(target=self._server.serve_forever, daemon=True)
        self.thread.start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range", "")
        self.asked.append(wanted)
        content = self.files.get(request.path)
        if content is None:
            request.send_error(404)
            return
        first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.ranges else 0
        if first >= len(content):
            request.send_error(416)
            return
        request.send_response(206 if first else 200)
        request.send_header("Content-Length", str(len(content) - first))
        request.end_headers()
        request.wfile.write(content[first : first + self.cut] if self.cut else content[first:])

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    made.files["/a.bin"] = CONTENT
    yield made
    made.close()


def source(server: Server, **changes: Any) -> Source:
    facts = {"file": "a.bin", "url": server.url("/a.bin"), "sha256": hashlib.sha256(CONTENT).hexdigest()}
    return Source(**{**facts, **changes})


def test_a_file_is_fetched_and_its_digest_returned(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    digest = fetch(source(server), tmp_path / "a.bin", lambda _, done, total, __: seen.append((done, total)))
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert digest == hashlib.sha256(CONTENT).hexdigest()
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_file_goes_on_where_it_was(server: Server, tmp_path: Path, ranges: bool) -> None:
    server.cut, server.ranges = 1000, ranges
    with pytest.raises(UserError) as caught:
        fetch(source(server), tmp_path / "a.bin")
    assert "1,000 of 1,280,000" in caught.value.problem
    assert (tmp_path / "a.bin.part").stat().st_size == 1000
    assert not (tmp_path / "a.bin").exists()
    server.cut = 0
    fetch(source(server), tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert server.asked == ["", "bytes=1000-"]


def test_a_complete_part_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(CONTENT)
    fetch(source(server), tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


@pytest.mark.parametrize(
    "changes", [{"sha256": "0" * 64}, {"sha256": "", "md5": "0" * 32}, {"bytes": len(CONTENT) + 1, "sha256": ""}]
)
def test_another_file_is_refused_and_deleted(server: Server, tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(UserError) as caught:
        fetch(source(server, **changes), tmp_path / "a.bin")
    assert "is not a.bin" in caught.value.problem
    assert "expected" in caught.value.details[0]
    assert list(tmp_path.iterdir()) == []


def test_a_page_in_place_of_a_larger_file_is_stopped_at_the_known_size(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="sends more than 10 bytes"):
        fetch(source(server, bytes=10), tmp_path / "a.bin")


@pytest.mark.parametrize("scheme", ["file", "ftp", "data"])
def test_only_addresses_of_http_are_opened(scheme: str, tmp_path: Path) -> None:
    (tmp_path / "private").write_bytes(CONTENT)
    address = {"file": (tmp_path / "private").as_uri(), "ftp": "ftp://127.0.0.1/x", "data": "data:,x"}[scheme]
    with pytest.raises(UserError, match="unknown url type"):
        fetch(Source(file="a.bin", url=address), tmp_path / "a.bin")
    assert not (tmp_path / "a.bin").exists()


@pytest.mark.parametrize("path", ["/nothing", "refused", "no address"])
def test_what_cannot_be_reached_is_said(server: Server, tmp_path: Path, path: str) -> None:
    url = {"/nothing": server.url("/nothing"), "refused": "http://127.0.0.1:1/x"}.get(path, "no address")
    with pytest.raises(UserError, match="cannot be fetched"):
        fetch(source(server, url=url), tmp_path / "a.bin")


def tar_of(*members: tuple[str, bytes | None], link: str = "") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            if content is None:
                entry.type, entry.linkname = tarfile.SYMTYPE, link
            else:
                entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content or b""))
    return made.getvalue()


def zip_of(*members: tuple[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return made.getvalue()


@pytest.mark.parametrize("pack", [tar_of, zip_of])
@pytest.mark.parametrize("name", ["../out.jpg", "/out.jpg", "a/../../out.jpg", "..\\out.jpg"])
def test_archives_cannot_write_outside_of_the_folder(tmp_path: Path, pack: Any, name: str) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "archive").write_bytes(pack((name, b"x")))
    with pytest.raises(UserError, match="leads out of the folder"):
        unpack(tmp_path / "archive", tmp_path / "inside")
    assert list((tmp_path / "inside").iterdir()) == []
    assert not (tmp_path / "out.jpg").exists()


def test_links_and_damaged_archives_are_refused(tmp_path: Path) -> None:
    (tmp_path / "linked").write_bytes(tar_of(("a", None), link="/etc/passwd"))
    with pytest.raises(UserError, match="a link or a device"):
        unpack(tmp_path / "linked", tmp_path / "inside")
    (tmp_path / "cut").write_bytes(tar_of(("a", b"x" * 100_000))[:80])
    with pytest.raises(UserError, match="cannot be unpacked"):
        unpack(tmp_path / "cut", tmp_path / "inside")


@pytest.mark.parametrize("how", ["gz", "bz2", "xz"])
def test_a_flipped_byte_anywhere_in_an_archive_is_said_in_a_line(how: str, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40
    with tarfile.open(tmp_path / "whole", f"w:{how}") as archive:
        archive.addfile(member := tarfile.TarInfo("a"), io.BytesIO(b""))
        member.name, member.size = "b", len(content)
        archive.addfile(member, io.BytesIO(content))
    data, refused = (tmp_path / "whole").read_bytes(), 0
    for at in range(0, len(data), 3):
        (tmp_path / "flipped").write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        try:
            unpack(tmp_path / "flipped", tmp_path / "inside")
        except UserError:
            refused += 1
    assert refused > 10


def test_archives_within_archives_and_leading_folders(server: Server, tmp_path: Path) -> None:
    inner = tar_of(("images/a.jpg", b"1"))
    server.files["/c.zip"] = zip_of(("top/inner.tar.gz", inner), ("top/readme.txt", b"2"), ("top/", b""))
    wanted = Source(file="c.zip", url=server.url("/c.zip"), unpack=True, strip=1, inner=("inner.tar.gz",))
    assert list(fetch_all(tmp_path, (wanted,))) == ["c.zip"]
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert found - {".fetched.json"} == {"images/a.jpg", "readme.txt"}
    server.asked.clear()
    assert fetch_all(tmp_path, (wanted,)) == {}
    assert server.asked == []


def test_an_archive_whose_unpacking_was_interrupted_is_unpacked_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/d.tar.gz"] = tar_of(("images/a.jpg", b"1"), ("images/b.jpg", b"2"))
    wanted = Source(file="d.tar.gz", url=server.url("/d.tar.gz"), unpack=True)
    with monkeypatch.context() as patch:
        patch.setattr(downloads, "unpack", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fetch_all(tmp_path, (wanted,))
    assert list_missing(tmp_path, (wanted,)) == [wanted]
    server.asked.clear()
    fetch_all(tmp_path, (wanted,))
    assert server.asked == []
    assert (tmp_path / "images" / "b.jpg").read_bytes() == b"2"
    assert not (tmp_path / "d.tar.gz").exists()


def test_every_dataset_says_where_its_files_are() -> None:
    for name, entry in catalog.entries().items():
        sources = sources_of(name)
        assert sources, name
        assert all(one.url.startswith("http") for one in sources)
        if isinstance(entry.layout, SplitFile):
            assert entry.layout.file in {one.file for one in sources}
    assert any("midframes" in one.file and one.by_hand for one in sources_of("ucf101"))


def test_the_docs_list_every_file() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "datasets.md").read_text(encoding="utf-8")
    for name in catalog.entries():
        for one in sources_of(name):
            assert one.url in text
            assert (one.sha256 or one.md5) in text


def test_split_files_have_the_checksums_of_the_copies_beside_the_clone() -> None:
    shared = Path(__file__).resolve().parents[3] / "shared" / "data" / "images"
    found = list(shared.glob("*/split_zhou_*.json")) if shared.is_dir() else []
    if not found:
        pytest.skip("no copies of public split files in ../shared/data")
    listed = {one.file: one for name in catalog.entries() for one in sources_of(name)}
    for path in found:
        assert listed[path.name].sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert listed[path.name].bytes == path.stat().st_size


def test_the_command_fetches_says_the_licence_and_checks(
    server: Server, tmp_path: Path, dca: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = json.dumps({"train": [["a.jpg", 0, "Forest"]], "val": [], "test": []}).encode()
    server.files |= {"/e.zip": zip_of(("2750/a.jpg", b"no image")), "/split.json": split}
    sources = (
        Source(file="EuroSAT.zip", url=server.url("/e.zip"), unpack=True),
        Source(file="split_zhou_EuroSAT.json", url=server.url("/split.json")),
    )
    monkeypatch.setattr(downloads, "sources_of", lambda _: sources)
    listed = dca("datasets", "get", "eurosat", "--root", tmp_path, "--dry-run")
    assert "licence  MIT" in listed.err
    assert "size unknown, checksum unknown" in listed.err
    assert server.asked == []
    refused = dca("datasets", "get", "eurosat", "--root", tmp_path)
    assert refused.code == 2
    assert "--yes" in refused.err
    done = dca("datasets", "get", "eurosat", "--root", tmp_path, "--yes")
    assert "fetched EuroSAT.zip" in done.out
    assert (tmp_path / "eurosat" / "2750" / "a.jpg").is_file()
    assert "official" in done.out + done.err, "the sizes are not those of the public split"
    again = json.loads(dca("datasets", "get", "eurosat", "--root", tmp_path, "--json").out)
    assert again["missing"] == []
    assert again["fetched"] == {}
