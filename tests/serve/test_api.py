"""The API: predict, correct, refit, undo, the tray. A refit from stored features equals a fit from the images."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from starlette.testclient import TestClient

from dca.datasets.corrections import read_corrections
from dca.model.classifier import Classifier
from dca.serve.projects_service import ProjectsService
from dca.serve.server import api_routes
from dca.training.session import Session
from serve.serving import OPTIONS, client_of, picture, service_of

SPEC = json.loads(files("dca.serve").joinpath("static", "openapi.json").read_text(encoding="utf-8"))


def predict(client: TestClient, data: bytes) -> dict[str, Any]:
    found = client.post("/api/predict", content=data)
    assert found.status_code == 200, found.text
    return found.json()


def corrected(client: TestClient, data: bytes, label: str) -> dict[str, Any]:
    image = predict(client, data)["image"]
    found = client.post("/api/correct", json={"image": image, "label": label})
    assert found.status_code == 200, found.text
    return found.json()


def test_the_answer_is_that_of_the_model(client: TestClient, folder: Path, images: list[Path]):
    model = Classifier.from_pretrained(folder, device="cpu")
    for path in images[:3]:
        data = path.read_bytes()
        told, expected = predict(client, data), model.predict_proba(path)
        shown = {row["label"]: row["probability"] for row in told["top"]}
        best = (-expected).argsort()[:5]
        assert list(shown) == [str(model.classes_[c]) for c in best]
        np.testing.assert_allclose(list(shown.values()), expected[best], atol=1e-6)
        assert told["p_value"] == pytest.approx(model.p_values(path))
        assert told["image"] == hashlib.sha256(data).hexdigest()


def test_nearest_training_images_are_named_and_shown(client: TestClient, photos: Path):
    path = sorted((photos / "train" / "fish").iterdir())[0]
    near = predict(client, path.read_bytes())["nearest"]
    assert near[0]["label"] == "fish"
    assert near[0]["similarity"] == pytest.approx(1, abs=1e-3)
    shown = client.get(f"/api/images/{near[0]['image']}")
    assert shown.headers["content-type"] == "image/jpeg"
    assert shown.content.startswith(b"\xff\xd8")


def test_the_rate_of_false_rejections_is_what_the_model_can_keep(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def state(reject: float | None = None) -> dict[str, Any]:
        with client_of(service_of(folder, replace(OPTIONS, reject=reject))) as client:
            found = client.get("/api/model").json()
        jsonschema.validate(found, {**SPEC, **SPEC["components"]["schemas"]["State"]})
        return found["rejection"]

    assert state() == {"rate": 0.05, "images": 40, "needed": 9}
    assert state(0.2)["rate"] == 0.2
    assert state(0)["rate"] is None
    for images, rate in ((12, 0.077), (8, None), (0, None)):
        smallest = 1 / (images + 1) if images else None
        monkeypatch.setattr(Classifier, "smallest_p_value", property(lambda _, smallest=smallest: smallest))
        assert state() == {"rate": rate, "images": images, "needed": 9}


def test_none_of_these_is_decided_by_the_p_value(folder: Path, images: list[Path]):
    data = images[0].read_bytes()
    with client_of(service_of(folder)) as client:
        usual = predict(client, data)["p_value"]
    for reject, none in ((usual, True), (usual - 1e-6, False), (0, False)):
        with client_of(service_of(folder, replace(OPTIONS, reject=reject))) as client:
            assert predict(client, data)["none_of_these"] is none


def test_a_correction_is_an_ordinary_file(client: TestClient, folder: Path, images: list[Path]):
    data = images[0].read_bytes()
    told = corrected(client, data, "fish")
    assert told["saved"] == f"corrections/fish/{told['image']}.png"
    assert (folder / told["saved"]).read_bytes() == data
    assert told["state"]["pending"] == 1
    assert predict(client, data)["corrected"] == "fish"


def test_the_last_label_of_an_image_counts(client: TestClient, folder: Path, images: list[Path]):
    for label in ("fish", "house", "narwhal"):
        corrected(client, images[0].read_bytes(), label)
    (found,) = read_corrections(folder)
    assert found.label == "narwhal"
    assert [path.parent.name for path in (folder / "corrections").glob("*/*")] == ["narwhal"]


def test_labels_that_read_alike_are_one_class(client: TestClient, images: list[Path]):
    assert corrected(client, images[0].read_bytes(), "  Hot_Air   BALLOON ")["label"] == "hot air balloon"
    assert corrected(client, images[1].read_bytes(), "snow owl")["label"] == "snow owl"
    assert corrected(client, images[2].read_bytes(), "Snow-Owl")["label"] == "snow owl"


def test_a_refit_equals_a_fit_on_all_images(
    client: TestClient, folder: Path, photos: Path, images: list[Path], tiny_folder: Path, tmp_path: Path
):
    """The slow way: all training images and the corrected ones as files, fitted from scratch."""
    corrected(client, images[0].read_bytes(), "narwhal")
    corrected(client, images[1].read_bytes(), "fish")
    told = client.post("/api/refit", json={"image": predict(client, images[2].read_bytes())["image"]}).json()
    place = Path(shutil.copytree(photos / "train", tmp_path / "all"))
    for label, path in (("narwhal", images[0]), ("fish", images[1])):
        (place / label).mkdir(exist_ok=True)
        shutil.copyfile(path, place / label / f"zz{path.name}")
    whole = Classifier(backbone=str(tiny_folder), device="cpu").fit(place)
    expected = dict(zip(whole.classes_.tolist(), whole.predict_proba(images[2]), strict=True))
    for row in told["after"]["answer"]["top"]:
        assert row["probability"] == pytest.approx(expected[row["label"]], abs=1e-4)
    assert told["after"]["accuracy"]["value"] == pytest.approx(whole.estimate_.accuracy, abs=1e-6)
    assert "narwhal" in [one["label"] for one in told["state"]["classes"]]
    assert told["state"]["pending"] == 0


def test_a_refit_teaches_the_corrected_image(client: TestClient, images: list[Path]):
    data = images[0].read_bytes()
    image = corrected(client, data, "narwhal")["image"]
    told = client.post("/api/refit", json={"image": image}).json()
    assert "narwhal" not in [row["label"] for row in told["before"]["answer"]["top"]]
    assert told["after"]["answer"]["nearest"][0]["label"] == "narwhal"
    assert "narwhal" in [row["label"] for row in predict(client, data)["top"]]


def test_a_correction_of_a_training_image_replaces_it(client: TestClient, photos: Path):
    path = sorted((photos / "train" / "fish").iterdir())[0]
    before = {one["label"]: one["images"] for one in client.get("/api/model").json()["classes"]}
    corrected(client, path.read_bytes(), "house")
    after = {one["label"]: one["images"] for one in client.post("/api/refit").json()["state"]["classes"]}
    assert after == {**before, "fish": before["fish"] - 1, "house": before["house"] + 1}


def test_undo_goes_back_step_by_step(client: TestClient, folder: Path, images: list[Path]):
    data = images[0].read_bytes()
    first = predict(client, data)
    corrected(client, data, "fish")
    corrected(client, data, "narwhal")
    client.post("/api/refit")
    undone = [client.post("/api/undo").json() for _ in range(3)]
    assert [told["undone"] for told in undone] == ["refit", "label 'narwhal' of an image", "label 'fish' of an image"]
    assert undone[1]["state"]["corrections"] == 1
    assert list((folder / "corrections").glob("*/*")) == []
    assert predict(client, data)["top"] == first["top"]
    assert client.post("/api/undo").status_code == 409


def test_undo_is_bounded_and_says_how_far_it_goes(folder: Path, images: list[Path]):
    with client_of(service_of(folder, replace(OPTIONS, undo_steps=2))) as client:
        assert client.get("/api/model").json()["limits"]["undo_steps"] == 2
        for label in ("fish", "house", "narwhal"):
            told = corrected(client, images[0].read_bytes(), label)
        assert told["state"]["undo_steps"] == 2
        assert [client.post("/api/undo").status_code for _ in range(3)] == [200, 200, 409]
    (found,) = read_corrections(folder)
    assert found.label == "fish"


@pytest.mark.parametrize("limit", ["corrections", "correction_bytes"])
def test_corrections_have_a_quota_that_is_said_before_it_is_reached(folder: Path, images: list[Path], limit: str):
    first, second = images[0].read_bytes(), images[1].read_bytes()
    most = {"corrections": 1, "correction_bytes": len(first) + len(second) - 1}
    with client_of(service_of(folder, replace(OPTIONS, **{limit: most[limit]}))) as client:
        quota = corrected(client, first, "fish")["state"]["quota"]
        assert quota["used_bytes"] == len(first)
        assert quota[{"corrections": "images", "correction_bytes": "bytes"}[limit]] == most[limit]
        image = predict(client, second)["image"]
        told = client.post("/api/correct", json={"image": image, "label": "fish"})
        assert (told.status_code, told.json()["code"]) == (507, "corrections-full")
        assert told.json()["hint"] == quota["hint"]
        assert "--max-corrections" in quota["hint"]
        corrected(client, first, "house")  # another label takes no more room
        for _ in range(2):
            client.post("/api/undo")
        corrected(client, second, "fish")


def test_a_server_starts_also_if_its_corrections_cannot_be_learned(
    folder: Path, photos: Path, images: list[Path], caplog: pytest.LogCaptureFixture
):
    """All images of a class are relabelled: no image of it is left to learn from."""
    fish = sorted((photos / "train" / "fish").iterdir())
    with client_of(service_of(folder)) as client:
        for path in fish:
            corrected(client, path.read_bytes(), "house")
        told = client.post("/api/refit")
        assert (told.status_code, told.json()["code"]) == (409, "refit-refused")
        before = predict(client, images[0].read_bytes())["top"]
    with client_of(service_of(folder)) as client:
        state = client.get("/api/model").json()
        jsonschema.validate(state, {**SPEC, **SPEC["components"]["schemas"]["State"]})
        failure = state["refit"]["failure"]
        assert failure == told.json()
        assert failure["details"] == ["fish"]
        assert failure["hint"] in caplog.text
        assert (state["corrections"], state["pending"]) == (len(fish), len(fish))
        assert predict(client, images[0].read_bytes())["top"] == before, "the stored model predicts"
        client.post("/api/undo")
        assert "failure" not in client.post("/api/refit").json()["state"]["refit"]


def test_a_bug_in_a_refit_does_not_keep_a_server_from_starting(
    folder: Path, images: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    with client_of(service_of(folder)) as client:
        corrected(client, images[0].read_bytes(), "narwhal")
    monkeypatch.setattr("dca.model.refit.Refitter.refit", lambda *_: 1 / 0)
    with client_of(service_of(folder)) as client:
        assert client.get("/api/model").json()["refit"]["failure"]["code"] == "bug"
        assert client.post("/api/refit").status_code == 500
    assert "ZeroDivisionError" in caplog.text


def test_a_second_page_sees_what_the_first_did(client: TestClient, images: list[Path]):
    before = client.get("/api/model").json()["revision"]
    corrected(client, images[0].read_bytes(), "fish")
    late = client.post("/api/undo", json={"revision": before})
    assert late.status_code == 409
    assert "meantime" in late.json()["message"]
    now = client.get("/api/model").json()
    assert (now["revision"], now["corrections"]) == (before + 1, 1)
    assert client.post("/api/undo", json={"revision": now["revision"]}).status_code == 200


def test_corrections_are_there_after_a_restart_and_can_be_undone(folder: Path, images: list[Path]):
    with client_of(service_of(folder)) as client:
        corrected(client, images[0].read_bytes(), "narwhal")
    with client_of(service_of(folder)) as client:
        state = client.get("/api/model").json()
        assert (state["corrections"], state["pending"], state["undo"]) == (1, 0, "refit")
        assert "narwhal" in [row["label"] for row in predict(client, images[0].read_bytes())["top"]]
        client.post("/api/undo")
        assert client.post("/api/undo").json()["state"]["corrections"] == 0
    assert read_corrections(folder) == []


def test_unreadable_corrections_are_left_alone(folder: Path, images: list[Path], caplog: pytest.LogCaptureFixture):
    place = folder / "corrections" / "fish"
    place.mkdir(parents=True)
    (place / "broken.jpg").write_bytes(b"not an image")
    shutil.copyfile(images[0], place / "mine.png")
    with client_of(service_of(folder)) as client:
        assert client.get("/api/model").json()["corrections"] == 1
    assert "broken.jpg" in caplog.text
    assert (place / "broken.jpg").is_file()


def test_refit_without_corrections_is_refused(client: TestClient):
    told = client.post("/api/refit")
    assert told.status_code == 409
    assert told.json()["message"] == "there are no new corrections"


def test_a_trained_model_keeps_corrections_and_names_the_command(fitted: Path, tmp_path: Path, images: list[Path]):
    folder = Path(shutil.copytree(fitted, tmp_path / "photos.dca"))
    with client_of(service_of(folder)) as client:
        told = corrected(client, images[0].read_bytes(), "fish")
        assert told["state"]["refit"]["possible"] is False
        answer = client.post("/api/refit")
        assert answer.status_code == 409
        assert answer.json()["command"].startswith("dca fit PHOTOS/ -o photos.dca --method dca ")
        assert (folder / told["saved"]).is_file()


def test_images_that_are_not_held_must_be_sent_again(client: TestClient):
    told = client.post("/api/correct", json={"image": "0" * 64, "label": "fish"})
    assert told.status_code == 404
    assert "/api/predict" in told.json()["hint"]


@pytest.mark.parametrize("label", ["", "  ", ".", "..", 7, None, "a\nb\x00", "x" * 81, ["fish"], "\ud800"])
def test_labels_must_be_readable(client: TestClient, images: list[Path], label: Any):
    image = predict(client, images[0].read_bytes())["image"]
    content = json.dumps({"image": image, "label": label}).encode()
    told = client.post("/api/correct", content=content, headers={"content-type": "application/json"})
    assert told.status_code == 422, told.text


@pytest.mark.parametrize("body", [b"[1]", b"{", b"nonsense", b"\xff\xfe", b"[" * 50_000, b'{"a":' * 9_000])
def test_bodies_that_are_no_json_object_are_refused(client: TestClient, body: bytes):
    for path in ("/api/correct", "/api/refit", "/api/undo"):
        assert client.post(path, content=body).status_code == 400


def test_the_tray_asks_for_the_least_certain_image_first(client: TestClient, images: list[Path]):
    for path in images[:6]:
        told = client.post("/api/tray", content=path.read_bytes())
        assert told.status_code == 201
    rows = client.get("/api/tray").json()["images"]
    assert len(rows) == client.get("/api/model").json()["tray"] == 6
    assert rows[0]["doubt"] == max(row["doubt"] for row in rows)
    image = rows[0]["image"]
    client.post("/api/correct", json={"image": image, "label": "fish"})
    assert image not in [row["image"] for row in client.get("/api/tray").json()["images"]]
    client.post("/api/undo")
    assert image in [row["image"] for row in client.get("/api/tray").json()["images"]]
    assert client.delete(f"/api/tray/{image}").status_code == 200
    assert client.delete(f"/api/tray/{image}").status_code == 404


def test_a_folder_fills_the_tray(folder: Path, photos: Path):
    service = service_of(folder, tray=photos / "test" / "fish")
    with client_of(service) as client:
        for _ in range(100):
            if client.get("/api/model").json()["tray"] == 3:
                break
            client.portal.call(asyncio.sleep, 0.1)
        (first, *_) = client.get("/api/tray").json()["images"]
        assert client.post("/api/correct", json={"image": first["image"], "label": "fish"}).status_code == 200


def test_a_full_tray_refuses_images(folder: Path, images: list[Path]):
    with client_of(service_of(folder, replace(OPTIONS, tray_images=1))) as client:
        assert client.post("/api/tray", content=images[0].read_bytes()).status_code == 201
        assert client.post("/api/tray", content=images[1].read_bytes()).status_code == 409


def test_old_images_are_forgotten(folder: Path):
    with client_of(service_of(folder, replace(OPTIONS, recent_bytes=1))) as client:
        first = predict(client, picture(colour=1))["image"]
        second = predict(client, picture(colour=99))["image"]
        assert client.get(f"/api/images/{first}").status_code == 404
        assert client.get(f"/api/images/{second}").status_code == 200


def test_metrics_count_requests_and_batches(client: TestClient, images: list[Path]):
    predict(client, images[0].read_bytes())
    client.get("/api/images/0")
    text = client.get("/metrics").text
    assert 'dca_requests_total{code="200",route="/api/predict"} 1' in text
    assert 'dca_requests_total{code="422",route="/api/images/{image}"} 1' in text
    assert "dca_batch_images_count 1" in text
    assert re.search(r"^dca_resident_bytes [1-9]", text, re.MULTILINE)


def resolved(schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({**schema, "components": SPEC["components"]})


def test_every_route_is_described(client: TestClient, folder: Path, tiny_folder: Path, tmp_path: Path):
    one, many = service_of(folder), ProjectsService(tmp_path / "work", Session(device="cpu"), str(tiny_folder), OPTIONS)
    routes = [*api_routes(one), *api_routes(many)]
    api = {(route.path, method.lower()) for route in routes for method in route.methods or ()}
    described = {(path, method) for path, methods in SPEC["paths"].items() for method in methods}
    assert {pair for pair in api if pair[1] != "head"} == described
    assert client.get("/openapi.json").json() == SPEC


def test_answers_are_as_described(client: TestClient, images: list[Path]):
    data, other = images[0].read_bytes(), images[1].read_bytes()
    image = predict(client, data)["image"]
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("get", "/api/model", {}),
        ("post", "/api/predict", {"content": data}),
        ("post", "/api/predict", {"content": b"x"}),
        ("post", "/api/tray", {"content": other}),
        ("get", "/api/tray", {}),
        ("delete", "/api/tray/" + hashlib.sha256(other).hexdigest(), {}),
        ("post", "/api/correct", {"json": {"image": image, "label": "narwhal"}}),
        ("post", "/api/correct", {"json": {"image": "1" * 64, "label": "narwhal"}}),
        ("post", "/api/refit", {"json": {"image": image}}),
        ("post", "/api/refit", {}),
        ("post", "/api/undo", {"json": {}}),
        ("get", "/api/model", {}),
    ]
    for method, path, arguments in calls:
        told = client.request(method, path, **arguments)
        template = re.sub(r"/[0-9a-f]{64}$", "/{image}", path)
        answer = SPEC["paths"][template][method]["responses"][str(told.status_code)]
        resolved(answer["content"]["application/json"]["schema"]).validate(told.json())
