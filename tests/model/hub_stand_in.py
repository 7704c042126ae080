"""A small stand-in of the Hugging Face hub on loopback: the endpoints that a push and a download of a model use."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

TOKEN = "hf_of_the_test"
Files = dict[str, bytes]


class Hub(ThreadingHTTPServer):
    """Repositories: id -> list of commits, the last is `main`; each commit is path -> content."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, list[Files]] = {}
        self.private: dict[str, str | None] = {}
        self.objects: Files = {}
        self.messages: list[str] = []
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def sha(self, repo: str, number: int) -> str:
        return hashlib.sha1(f"{repo}/{number}".encode()).hexdigest()

    def at(self, repo: str, revision: str) -> tuple[str, Files] | None:
        """The commit and the files of a revision: main, or a commit."""
        commits = self.repos.get(repo, [])
        for number, files in enumerate(commits):
            if revision == self.sha(repo, number) or (revision == "main" and number == len(commits) - 1):
                return self.sha(repo, number), files
        return None


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def answer(self, status: int, value: Any = None, **headers: str) -> None:
        body = value if isinstance(value, bytes) else json.dumps({} if value is None else value).encode()
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str, message: str) -> None:
        self.answer(status, {"error": message}, X_Error_Code=code, X_Error_Message=message)

    def do(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        writes = self.command in ("POST", "PUT") and not path.startswith("/lfs/")
        if writes and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.refuse(401, "", "Invalid credentials in Authorization header")
        for pattern, act in ROUTES:
            if found := re.fullmatch(pattern, f"{self.command} {path}"):
                return act(self, body, *found.groups())
        return self.refuse(404, "", f"no such endpoint: {self.command} {path}")

    do_GET = do_HEAD = do_POST = do_PUT = do  # noqa: N815


def create(self: Handler, body: bytes) -> None:
    asked = json.loads(body)
    repo = f"{asked['organization'] or 'tester'}/{asked['name']}"
    if repo in self.server.repos:
        return self.answer(409, {"error": "You already created this model repo", "url": f"{self.server.url}/{repo}"})
    self.server.repos[repo] = [{}]
    self.server.private[repo] = asked.get("visibility")
    return self.answer(200, {"url": f"{self.server.url}/{repo}", "name": repo})


def validate(self: Handler, body: bytes) -> None:
    """The parts of the hub's check of a card that a model-index must pass."""
    content = json.loads(body)["content"]
    header = yaml.safe_load(content.split("---")[1])
    errors = []
    for entry in header.get("model-index", []):
        for result in entry["results"]:
            if not {"task", "dataset", "metrics"} <= result.keys() or not re.fullmatch(
                r"[\w./-]+", result["dataset"]["type"]
            ):
                errors.append({"message": f"model-index of {entry['name']}"})
    self.answer(400 if errors else 200, {"errors": errors, "warnings": []})


def preupload(self: Handler, body: bytes, repo: str, revision: str) -> None:
    if self.server.at(repo, revision) is None:
        return self.refuse(404, "RevisionNotFound" if repo in self.server.repos else "RepoNotFound", "not found")
    files = [
        {
            "path": f["path"],
            "uploadMode": "lfs" if f["path"].endswith(".safetensors") else "regular",
            "shouldIgnore": False,
        }
        for f in json.loads(body)["files"]
    ]
    return self.answer(200, {"files": files})


def lfs_batch(self: Handler, body: bytes, repo: str) -> None:
    objects = [
        {**o, "actions": {"upload": {"href": f"{self.server.url}/lfs/{o['oid']}"}}} for o in json.loads(body)["objects"]
    ]
    self.answer(200, {"transfer": "basic", "objects": objects})


def lfs_put(self: Handler, body: bytes, oid: str) -> None:
    if hashlib.sha256(body).hexdigest() != oid:
        return self.refuse(400, "", "another content")
    self.server.objects[oid] = body
    return self.answer(200)


def commit(self: Handler, body: bytes, repo: str, revision: str) -> None:
    if (found := self.server.at(repo, revision)) is None:
        return self.refuse(404, "RevisionNotFound", "not found")
    files = dict(found[1])
    for line in map(json.loads, body.splitlines()):
        value = line["value"]
        if line["key"] == "header":
            self.server.messages.append(value["summary"])
        elif line["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif line["key"] == "lfsFile":
            files[value["path"]] = self.server.objects[value["oid"]]
    self.server.repos[repo].append(files)
    oid = self.server.sha(repo, len(self.server.repos[repo]) - 1)
    answer = {"commitUrl": f"{self.server.url}/{repo}/commit/{oid}", "commitOid": oid}
    return self.answer(200, {**answer, "pullRequestUrl": f"{self.server.url}/{repo}/discussions/1"})


def info(self: Handler, body: bytes, repo: str, revision: str = "main") -> None:
    if (found := self.server.at(repo, revision)) is None:
        known = repo in self.server.repos
        return self.refuse(404, "RevisionNotFound" if known else "RepoNotFound", "not found")
    sha, files = found
    siblings = [{"rfilename": name} for name in files]
    return self.answer(200, {"_id": "1", "id": repo, "modelId": repo, "sha": sha, "siblings": siblings, "tags": []})


def tree(self: Handler, body: bytes, repo: str, revision: str) -> None:
    if (found := self.server.at(repo, revision)) is None:
        return self.refuse(404, "RevisionNotFound", "not found")
    rows = [
        {"type": "file", "path": n, "size": len(c), "oid": hashlib.sha1(c).hexdigest()} for n, c in found[1].items()
    ]
    return self.answer(200, rows)


def resolve(self: Handler, body: bytes, repo: str, revision: str, path: str) -> None:
    if (found := self.server.at(repo, revision)) is None:
        return self.refuse(404, "RevisionNotFound" if repo in self.server.repos else "RepoNotFound", "not found")
    sha, files = found
    if path not in files:
        return self.refuse(404, "EntryNotFound", "no such file")
    etag = f'"{hashlib.sha256(files[path]).hexdigest()}"'
    return self.answer(200, files[path], ETag=etag, X_Repo_Commit=sha, Accept_Ranges="bytes")


REPO = r"([\w.-]+/[\w.-]+)"
ROUTES = [
    ("POST /api/repos/create", create),
    ("POST /api/validate-yaml", validate),
    (rf"POST /api/models/{REPO}/preupload/(.+)", preupload),
    (rf"POST /{REPO}\.git/info/lfs/objects/batch", lfs_batch),
    ("PUT /lfs/(.+)", lfs_put),
    (rf"POST /api/models/{REPO}/commit/(.+)", commit),
    (rf"GET /api/models/{REPO}", info),
    (rf"GET /api/models/{REPO}/revision/(.+)", info),
    (rf"GET /api/models/{REPO}/tree/(.+)", tree),
    (rf"(?:GET|HEAD) /{REPO}/resolve/([^/]+)/(.+)", resolve),
]


@contextmanager
def stand_in() -> Iterator[Hub]:
    """A running stand-in."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
