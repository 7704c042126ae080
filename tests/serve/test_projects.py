"""The API of projects: what the page does is on disk, is what `dca fit` reads, and comes back at the next start."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from dca.core.processes import BACKGROUND_NICENESS
from dca.model.classifier import Classifier
from dca.projects.fitting import PhotoContent, fit_project
from dca.runs.run import run
from dca.runs.spec import FitSpec
from dca.serve import open_project
from dca.serve.intake import Intake
from dca.serve.options import ServeOptions
from dca.serve.projects_service import ProjectsService
from dca.serve.server import create_app
from dca.training.session import Session
from serve.serving import ADDRESS, OPTIONS, picture

CLASSES = ("cactus", "fish", "guitar")


@pytest.fixture
def start(tiny_folder: Path, tmp_path: Path) -> Iterator[Callable[..., TestClient]]:
    """Starts servers of one workspace; they end with the test."""
    running: list[TestClient] = []

    def started(options: ServeOptions = OPTIONS, workspace: Path = tmp_path / "work") -> TestClient:
        service = ProjectsService(workspace, Session(device="cpu"), str(tiny_folder), options)
        client = TestClient(create_app(service), base_url=ADDRESS, headers={"X-DCA": "1"})
        client.__enter__()
        running.append(client)
        return client

    yield started
    for client in running:
        client.__exit__(None, None, None)


@pytest.fixture
def project(photos: Path, tmp_path: Path) -> Path:
    """A folder of photos in the workspace, as a person makes it."""
    root = tmp_path / "work" / "things"
    for label in CLASSES:
        shutil.copytree(photos / "train" / label, root / label)
    return root


BASE = "/api/projects/things"


def state(client: TestClient, base: str = BASE) -> dict[str, Any]:
    return client.get(f"{base}/model").json()


def fitted(client: TestClient, base: str = BASE) -> dict[str, Any]:
    """The state, once the model knows all photos."""
    for _ in range(600):
        found = state(client, base)
        if found["fitted"]:
            return found
        assert found["fit"]["status"] != "impossible", found["fit"]
        time.sleep(0.1)
    raise AssertionError(found)


def photos_of(client: TestClient, label: str) -> list[dict[str, Any]]:
    return client.get(f"{BASE}/photos", params={"class": label}).json()["photos"]


def test_from_nothing_to_a_model(start: Callable[..., TestClient], photos: Path, tmp_path: Path):
    client = start()
    assert client.get("/api/workspace").json()["projects"] == []
    assert client.post("/api/projects", json={"name": "things"}).status_code == 201
    assert client.get("/api/workspace").json()["projects"] == ["things"]
    assert state(client)["fit"]["status"] in ("waiting", "impossible")
    data = sorted((photos / "test" / "fish").iterdir())[0].read_bytes()
    answer = client.post(f"{BASE}/predict", content=data).json()
    assert answer["top"] == []
    for label in CLASSES:
        for file in sorted((photos / "train" / label).iterdir()):
            where = {"class": label, "name": file.name, "drop": "1"}
            sent = client.post(f"{BASE}/photos", params=where, content=file.read_bytes())
            assert sent.status_code == 201, sent.text
            again = client.post(f"{BASE}/photos", params=where, content=file.read_bytes())
            assert again.json()["photo"] is None
    found = fitted(client)
    assert found["reading"] == 0
    assert {row["label"]: row["images"] for row in found["classes"]} == dict.fromkeys(CLASSES, 4)
    assert all(row["version"] >= 4 for row in found["classes"])  # so that a page looks at them again
    assert found["accuracy"]["images"] == 12
    assert client.post(f"{BASE}/predict", content=data).json()["top"][0]["label"] in CLASSES
    root = tmp_path / "work" / "things"
    assert {p.name for p in (root / "fish").iterdir()} == {p.name for p in (photos / "train" / "fish").iterdir()}
    model = Classifier.from_pretrained(tmp_path / "work" / "things.dca")
    assert list(model.classes_) == list(CLASSES)
    undone = client.post(f"{BASE}/undo").json()["undone"]
    assert undone == "adding 12 photos"
    assert state(client)["photos"] == 0
    assert client.post(f"{BASE}/redo").json()["redone"] == "adding 12 photos"
    assert state(client)["photos"] == 12


def test_recall_is_not_said_of_a_class_that_has_changed_since_the_fit(start: Callable[..., TestClient], project: Path):
    def recall(found: dict[str, Any]) -> dict[str, int | None]:
        return {row["label"]: row["recall"] and row["recall"][1] for row in found["classes"]}

    client = start()
    assert recall(fitted(client)) == dict.fromkeys(CLASSES, 4)
    key = photos_of(client, "fish")[0]["photo"]
    moved = client.post(f"{BASE}/photos/move", json={"photos": [key], "to": "guitar"}).json()
    assert recall(moved) == {"cactus": 4, "fish": None, "guitar": None}
    assert recall(client.post(f"{BASE}/undo").json()["state"]) == dict.fromkeys(CLASSES, 4)


def test_the_command_line_and_the_page_make_the_same_model(
    start: Callable[..., TestClient], project: Path, tiny_folder: Path
):
    fitted(client := start())
    told = client.post(f"{BASE}/predict", content=next((project / "fish").iterdir()).read_bytes()).json()
    client.post(f"{BASE}/photos/delete", json={"photos": [photos_of(client, "cactus")[0]["photo"]]})
    client.post(f"{BASE}/undo")
    fitted(client)
    spec = FitSpec(data=str(project), backbone=str(tiny_folder))
    again = run(spec, project.with_name("things.dca"), device="cpu", gallery=True)
    assert again.classifier is None  # finished already: the same run
    other = run(spec, project.with_name("other.dca"), device="cpu", gallery=True).classifier
    assert other is not None
    probabilities = other.predict_proba(next((project / "fish").iterdir()))
    expected = dict(zip(map(str, other.classes_), probabilities, strict=True))
    for row in told["top"]:
        assert row["probability"] == pytest.approx(expected[row["label"]], abs=1e-4)


def test_it_opens_where_it_was_left(start: Callable[..., TestClient], project: Path, tiny_folder: Path):
    client = start()
    fitted(client)
    client.post(f"{BASE}/classes", json={"label": "empty"})
    client.__exit__(None, None, None)
    service = ProjectsService(project.parent, Session(device="cpu"), str(tiny_folder), OPTIONS)
    with TestClient(create_app(service), base_url=ADDRESS, headers={"X-DCA": "1"}) as again:
        found = state(again)
        assert found["fitted"]  # the model beside the project is taken over, without another fit
        assert found["fit"]["status"] == "done"
        assert found["undo"] == "creating the class empty"
        assert [row["label"] for row in found["classes"]] == ["cactus", "empty", "fish", "guitar"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one priority for all threads of a process")
def test_a_fit_leaves_the_cores_to_uploads_and_the_page(
    start: Callable[..., TestClient], project: Path, monkeypatch: pytest.MonkeyPatch
):
    niceness = []

    def fit(*arguments: Any) -> Classifier:
        niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return fit_project(*arguments)

    monkeypatch.setattr(open_project, "fit_project", fit)
    fitted(start())
    assert niceness == [min(os.getpriority(os.PRIO_PROCESS, 0) + BACKGROUND_NICENESS, 19)]


def test_many_uploads_are_encoded_together(
    start: Callable[..., TestClient], photos: Path, monkeypatch: pytest.MonkeyPatch
):
    """One connection: each is saved when its request ends, and encoded later, with those that came meanwhile."""
    encode = Intake._process

    def encode_slowly(*arguments: Any) -> Any:
        time.sleep(0.1)
        return encode(*arguments)

    monkeypatch.setattr(Intake, "_process", encode_slowly)
    client = start()
    client.post("/api/projects", json={"name": "things"})
    files = sorted((photos / "train").glob("*/*"))
    for file in files:
        where = {"class": file.parent.name, "name": file.name}
        assert client.post(f"{BASE}/photos", params=where, content=file.read_bytes()).json()["photo"]["name"]
    assert state(client)["photos"] == len(files)
    fitted(client)
    counted = dict(line.split() for line in client.get("/metrics").text.splitlines() if not line.startswith("#"))
    assert int(counted["dca_batch_images_sum"]) == len(files)
    assert int(counted["dca_batch_images_count"]) < len(files) / 2


def test_while_photos_keep_coming_a_fit_waits_for_twice_as_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The fit of 10 photos took 2 s, and a change comes every moment since 30 s."""
    intake, session = cast(Intake, None), cast(Session, None)
    opened = open_project.OpenProject(tmp_path, intake, session, ("mini", "auto"), OPTIONS)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    content = cast(PhotoContent, None)
    opened._fitted_photos, opened._fit = 10, replace(opened._fit, seconds=2.0)
    opened._changed_at, opened._waiting_since = 100.0, 70.0
    opened._contents = {str(n): content for n in range(19)}
    assert opened._pause() == pytest.approx(open_project.QUIET_SECONDS)
    opened._contents["19"] = content
    assert opened._pause() < 0
    opened._waiting_since = 93.0
    assert opened._pause() == pytest.approx(open_project.QUIET_SECONDS)  # not yet: it is less than 8 s
    opened._changed_at = 50.0
    assert opened._pause() < 0
    opened._encoding.add("20")
    opened._contents.clear()
    assert opened._pause() == pytest.approx(open_project.QUIET_SECONDS)  # what is being encoded is a change to come


def test_changes_made_by_hand_are_followed(start: Callable[..., TestClient], project: Path, photos: Path):
    client = start()
    first = fitted(client)
    shutil.copytree(photos / "train" / "house", project / "house")
    for _ in range(100):
        if state(client)["photos"] == 16:
            break
        time.sleep(0.1)
    found = fitted(client)
    assert found["revision"] > first["revision"]
    assert [row["label"] for row in found["classes"]] == ["cactus", "fish", "guitar", "house"]


def test_classes_are_created_renamed_merged_and_deleted(start: Callable[..., TestClient], project: Path):
    client = start()
    fitted(client)

    def labels() -> list[str]:
        return [row["label"] for row in state(client)["classes"]]

    assert client.post(f"{BASE}/classes", json={"label": "a/b"}).json()["code"] == "invalid-label"
    assert client.post(f"{BASE}/classes", json={"label": "Fish"}).json()["code"] == "class-exists"
    assert client.post(f"{BASE}/classes/rename", json={"label": "none", "to": "x"}).json()["code"] == "class-unknown"
    client.post(f"{BASE}/classes/rename", json={"label": "fish", "to": "trout"})
    assert labels() == ["cactus", "guitar", "trout"]
    client.post(f"{BASE}/classes/merge", json={"label": "trout", "to": "guitar"})
    assert labels() == ["cactus", "guitar"]
    assert len(list((project / "guitar").iterdir())) == 8
    client.post(f"{BASE}/classes/delete", json={"label": "cactus"})
    for _ in range(100):
        if (found := state(client))["fit"]["status"] == "impossible":
            break
        time.sleep(0.1)
    assert found["fit"]["reason"] == "photos of at least two classes are needed"
    assert client.get(f"{BASE}/downloads/report").json()["code"] == "no-model"
    for _ in range(3):
        assert client.post(f"{BASE}/undo").status_code == 200
    assert client.post(f"{BASE}/undo").json()["code"] == "nothing-to-undo"
    assert fitted(client)["fit"]["status"] == "done"


def test_a_wrong_label_is_found_confirmed_or_moved(start: Callable[..., TestClient], project: Path):
    shutil.move(sorted((project / "fish").iterdir())[0], project / "guitar" / "wrong.webp")
    client = start()
    fitted(client)
    (row,) = [one for one in photos_of(client, "guitar") if one["name"] == "wrong.webp"]
    client.post(f"{BASE}/photos/confirm", json={"photos": [row["photo"]]})
    assert row["photo"] not in [d["photo"]["photo"] for d in client.get(f"{BASE}/findings").json()["doubtful"]]
    moved = client.post(f"{BASE}/photos/move", json={"photos": [row["photo"]], "to": "fish"})
    assert moved.status_code == 200
    assert (project / "fish" / "wrong.webp").is_file()
    assert client.post(f"{BASE}/photos/move", json={"photos": [row["photo"]], "to": "fish"}).status_code == 404


def test_findings_name_copies_and_what_is_missing(start: Callable[..., TestClient], project: Path):
    first = sorted((project / "fish").iterdir())[0]
    shutil.copy(first, project / "fish" / "copy.webp")
    (project / "lonely").mkdir()
    (project / "lonely" / "one.png").write_bytes(picture("PNG"))
    client = start()
    found = fitted(client)
    findings = client.get(f"{BASE}/findings").json()
    assert [sorted(one["name"] for one in group) for group in findings["copies"]] == [sorted([first.name, "copy.webp"])]
    assert findings["unmeasured"] == ["lonely"]
    assert "cannot be measured" in found["accuracy"]["caveats"][0]


def test_an_image_that_was_tried_becomes_a_photo(start: Callable[..., TestClient], project: Path, photos: Path):
    client = start()
    fitted(client)
    data = sorted((photos / "test" / "fish").iterdir())[0].read_bytes()
    answer = client.post(f"{BASE}/predict", content=data).json()
    near = client.get(f"{BASE}/similar/{answer['image']}").json()["photos"]
    assert len(near) == 12
    kept = client.post(f"{BASE}/correct", json={"image": answer["image"], "label": "fish"}).json()
    assert (project / kept["saved"]).read_bytes() == data
    again = client.post(f"{BASE}/correct", json={"image": answer["image"], "label": "shark"}).json()
    assert again["saved"].startswith("shark/")
    assert not (project / kept["saved"]).exists()
    assert client.get(f"{BASE}/similar/{near[0]['photo']['photo']}").json()["photos"][0]["similarity"] <= 1


def test_unreadable_photos_are_named_and_left_out(start: Callable[..., TestClient], project: Path):
    (project / "fish" / "bad.jpg").write_bytes(b"no image")
    client = start()
    found = fitted(client)
    assert found["unreadable"] == 1
    (row,) = client.get(f"{BASE}/photos", params={"unreadable": "1"}).json()["photos"]
    assert row["fault"].startswith("not an image")
    refused = client.post(f"{BASE}/photos", params={"class": "fish"}, content=b"no image")
    assert refused.json()["code"] == "image-format"


def test_only_projects_of_the_workspace_are_opened(start: Callable[..., TestClient], project: Path):
    client = start()
    for name in ("nothing", "..%2Fwork", "things.dca", "."):
        assert client.get(f"/api/projects/{name}/model").status_code == 404
    other = start()
    assert state(client)["photos"] == 12
    assert other.get(f"{BASE}/model").json()["code"] == "project-in-use"


def test_limits(start: Callable[..., TestClient], project: Path):
    client = start(replace(OPTIONS, project_photos=13))
    fitted(client)
    sent = [client.post(f"{BASE}/photos", params={"class": "x"}, content=picture(colour=n)) for n in (1, 2)]
    assert [one.status_code for one in sent] == [201, 507]


def test_a_model_of_the_command_line_is_not_replaced(
    start: Callable[..., TestClient], project: Path, tiny_folder: Path
):
    target = project.with_name("things.dca")
    run(FitSpec(data=str(project), method="gda", options={"views": 0}, backbone=str(tiny_folder)), target, device="cpu")
    before = (target / "config.json").read_bytes()
    client = start()
    for _ in range(200):
        if (found := state(client))["fit"]["status"] == "impossible":
            break
        time.sleep(0.1)
    assert "rename things.dca" in found["fit"]["reason"]
    assert (target / "config.json").read_bytes() == before


def test_a_model_with_a_class_of_the_command_line_is_not_replaced(
    start: Callable[..., TestClient], project: Path, photos: Path, tiny_folder: Path
):
    """The photos of the class that `dca add-class` added are not in the folder: another fit would lose them."""
    target = project.with_name("things.dca")
    made = run(FitSpec(data=str(project), backbone=str(tiny_folder)), target, device="cpu", gallery=True).classifier
    assert made is not None
    extended = made.add_class("house", sorted((photos / "train" / "house").iterdir()))
    shutil.rmtree(target)
    extended.save_pretrained(target, gallery=True)
    client = start()
    for _ in range(200):
        if (found := state(client))["fit"]["status"] == "impossible":
            break
        time.sleep(0.1)
    assert "things.dca was changed after its fit" in found["fit"]["reason"]
    assert "house" in Classifier.from_pretrained(target, backbone=tiny_folder).classes_


def test_a_model_without_left_out_predictions_is_opened(
    start: Callable[..., TestClient], project: Path, tiny_folder: Path
):
    target = project.with_name("things.dca")
    made = run(FitSpec(data=str(project), backbone=str(tiny_folder)), target, device="cpu", gallery=True).classifier
    assert made is not None
    made.training_images_ = tuple(replace(image, held_out=None) for image in made.training_images_)
    shutil.rmtree(target)
    made.save_pretrained(target, gallery=True)
    client = start()
    assert fitted(client)["fit"]["status"] == "done"
    assert client.get(f"{BASE}/findings").json()["needed"] == []


def test_downloads(start: Callable[..., TestClient], project: Path, tmp_path: Path):
    client = start()
    fitted(client)
    packed = client.get(f"{BASE}/downloads/model")
    assert packed.headers["content-disposition"] == 'attachment; filename="things-model.zip"'
    zipfile.ZipFile(io.BytesIO(packed.content)).extractall(tmp_path / "out")
    assert list(Classifier.from_pretrained(tmp_path / "out" / "things.dca").classes_) == list(CLASSES)
    onnx = zipfile.ZipFile(io.BytesIO(client.get(f"{BASE}/downloads/onnx").content))
    assert {"things-onnx/model.onnx", "things-onnx/predict.py"} <= set(onnx.namelist())
    assert json.loads(onnx.read("things-onnx/classes.json"))["name"] == "things"
    assert b"<html" in client.get(f"{BASE}/downloads/report").content
    assert client.get(f"{BASE}/downloads/other").status_code == 404
