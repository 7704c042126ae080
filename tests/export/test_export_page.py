"""The page of an export: the same crops as the library, and a real browser without a network."""

from __future__ import annotations

import base64
import csv
import functools
import io
import json
import re
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
from PIL import Image

from dca.core.errors import UserError
from dca.core.progress import silent
from dca.datasets.dataset import Dataset
from dca.export import page, predict
from export.conftest import Finished, Photos

# Reads one job per line: pixels, sizes and preprocessing; prints the crop.
CROP_IN_NODE = """
const { cropPixels } = require(process.argv[1]);
const jobs = JSON.parse(require("fs").readFileSync(0, "utf8"));
const out = jobs.map((job) => Buffer.from(cropPixels(Buffer.from(job.rgba, "base64"), job.width, job.height,
                                                  job.preprocess)).toString("base64"));
console.log(JSON.stringify(out));
"""
SIZES = [(64, 64), (64, 48), (48, 96), (333, 200), (20, 31), (1, 1), (100, 70), (300, 7)]
# Pillow resizes these vertically first since version 13.
TALL = [(48, 97), (40, 100), (7, 300), (58, 113)]
WAYS = [{"size": 32, "resize": resize, "resample": n} for n in page.FILTERS for resize in (32, 45)]
WAYS += [{"size": 32, "resize": 45, "resample": 3, "even": True}]
SQUEEZED = [{"size": 32, "resize": None, "resample": n} for n in page.FILTERS]


def test_the_page_crops_images_exactly_as_pillow_does() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    rng = np.random.default_rng(0)
    jobs: list[dict[str, Any]] = []
    expected = []
    new = int(PIL.__version__.partition(".")[0]) >= 13
    for width, height in SIZES + TALL * new:
        pixels = rng.integers(0, 256, (height, width, 4), dtype=np.uint8)
        for way in WAYS + SQUEEZED * new:
            rgba = base64.b64encode(pixels.tobytes()).decode()
            jobs.append({"rgba": rgba, "width": width, "height": height, "preprocess": way})
            expected.append(predict.crop_image(Image.fromarray(pixels[..., :3].copy()), way))
    script = str(files("dca.export") / "web" / "resample.js")
    command = [node, "-e", CROP_IN_NODE, script]
    done = subprocess.run(command, input=json.dumps(jobs), capture_output=True, text=True, check=True)
    for job, text, crop in zip(jobs, json.loads(done.stdout), expected, strict=True):
        found = np.frombuffer(base64.b64decode(text), np.uint8).reshape(32, 32, 3)
        assert np.array_equal(found, crop), {name: job[name] for name in ("width", "height", "preprocess")}


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DCA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def false_npm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program called npm before all others."""
    folder.mkdir()
    (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_missing_npm_is_named(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="npm is not installed") as caught:
        page.fetch_runtime(silent)
    assert caught.value.render("cli").splitlines()[1] == (
        "  fix: install Node.js, which brings npm, or leave out --web"
    )


def test_what_npm_says_is_passed_on(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    false_npm(tmp_path / "bin", "echo 'npm error network request failed' >&2; exit 1", monkeypatch)
    with pytest.raises(UserError, match=f"npm cannot fetch onnxruntime-web {page.VERSION}") as caught:
        page.fetch_runtime(silent)
    assert caught.value.details == ("npm error network request failed",)
    assert not any(own_cache.iterdir()), "nothing is kept of it"


def test_the_runtime_is_fetched_once(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = {"name": "onnxruntime-web", "version": page.VERSION, "license": "MIT", "repository": {"url": "https://a.b"}}
    parts = {f"package/dist/{name}": name.encode() for name in page.RUNTIME_FILES}
    parts |= {"package/package.json": json.dumps(about).encode(), "package/dist/other.js": b"", "../evil": b"x"}
    with tarfile.open(tmp_path / "package.tgz", "w:gz") as archive:
        for name, content in parts.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    false_npm(tmp_path / "bin", f"cp '{tmp_path / 'package.tgz'}' .", monkeypatch)
    kept = page.fetch_runtime(silent)
    assert {path.name for path in kept.iterdir()} == {*page.RUNTIME_FILES, page.NOTICE}
    assert "licence MIT" in (kept / page.NOTICE).read_text()
    monkeypatch.setenv("PATH", str(tmp_path))  # npm is gone
    assert page.fetch_runtime(silent) == kept


def test_filters_that_the_page_does_not_have_are_refused() -> None:
    with pytest.raises(UserError, match="Pillow's filter 6"):
        page.fetch_runtime_for([{"preprocess": {"resample": 6}}], silent)


def test_a_model_over_2_gb_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx.data").write_bytes(b"")
    with pytest.raises(UserError, match="too large for a browser") as caught:
        page.write_page(tmp_path, tmp_path)
    assert "use --int8" in caught.value.render("cli")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def serve_with_page(export: Path, folder: Path) -> Iterator[str]:
    """Address of a plain file server for a copy of an export with its page."""
    try:
        runtime = page.fetch_runtime(silent)
    except UserError as error:
        pytest.skip(f"needs onnxruntime-web: {error.problem}")
    shutil.copytree(export, folder)
    page.write_page(folder, runtime)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


@contextmanager
def open_page(site: str) -> Iterator[Any]:
    """The page in a browser that can reach nothing but this server; fails if it tried, or if a script failed."""
    if shutil.which("chromium") is None:
        pytest.skip("needs Chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    only_here = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    camera = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    with sync_api.sync_playwright() as player:
        browser = player.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", only_here, "--proxy-server=direct://", *camera],
        )
        view = browser.new_page()
        asked, wrong = [], []
        view.on("request", lambda request: asked.append(request.url))
        view.on("pageerror", lambda error: wrong.append(str(error)))
        view.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        view.goto(site)
        sync_api.expect(view.locator("#state")).to_have_text("Ready.", timeout=120_000)
        yield view
        browser.close()
    assert [url for url in asked if not url.startswith((site, "blob:", "data:"))] == []
    assert wrong == []


@pytest.fixture(scope="module")
def site(exported: Finished, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_with_page(exported.folder, tmp_path_factory.mktemp("site") / "site") as address:
        yield address


@pytest.fixture
def opened(site: str) -> Iterator[Any]:
    with open_page(site) as view:
        yield view


def classified(view: Any, path: Path) -> tuple[list[str], list[float]]:
    """The classes and probabilities that the page shows for a file that is chosen."""
    view.set_input_files("#file", str(path))
    return shown(view, path)


def shown(view: Any, path: Path) -> tuple[list[str], list[float]]:
    """The classes and probabilities that the page shows, as soon as it shows those of this file."""
    from playwright.sync_api import expect

    expect(view.locator("#state")).to_have_text(re.compile(rf"^{re.escape(path.name)}: .* in this browser"))
    newest = view.locator("#answers > li").first
    labels = newest.locator(".words span:first-child").all_inner_texts()
    return labels, [float(row.get_attribute("data-p")) for row in newest.locator("[data-p]").all()]


def read_table(view: Any, folder: Path) -> list[dict[str, str]]:
    """The CSV file that the page gives."""
    with view.expect_download() as download:
        view.click("#save")
    download.value.save_as(folder / "table.csv")
    assert download.value.suggested_filename == f"{view.title()}.csv"
    with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def make_files(image: Image.Image, folder: Path) -> dict[Path, float]:
    """Files of several kinds, and how far the page may be from the library on them."""
    exif = Image.Exif()
    exif[0x0112] = 6
    image.resize((140, 90)).save(folder / "plain.png")
    holes = image.resize((60, 70)).convert("RGBA")
    holes.putalpha(Image.linear_gradient("L").resize((60, 70)).point(lambda value: 255 if value > 80 else 0))
    holes.save(folder / "holes.png")
    image.resize((90, 140)).save(folder / "turned.jpg", quality=95, exif=exif)
    return {folder / "plain.png": 1e-5, folder / "holes.png": 1e-5, folder / "turned.jpg": 0.02}


def require_same(found: tuple[list[str], list[float]], exported: Finished, path: Path, tolerance: float) -> None:
    expected = exported.model.predict_proba(path)
    order = np.argsort(expected)[::-1][:3]
    np.testing.assert_allclose(found[1], expected[order], atol=tolerance)
    assert tolerance > 1e-3 or found[0] == exported.model.classes_[order].tolist()


def test_images_are_classified_in_a_browser(opened: Any, exported: Finished, hundred: Dataset, tmp_path: Path) -> None:
    image = hundred.test[30].image
    assert isinstance(image, Image.Image)
    for path, tolerance in make_files(image, tmp_path).items():
        require_same(classified(opened, path), exported, path, tolerance)


def test_a_dropped_image_is_classified(opened: Any, exported: Finished, hundred: Dataset, tmp_path: Path) -> None:
    image, path = hundred.test[50].image, tmp_path / "dropped.png"
    assert isinstance(image, Image.Image)
    image.save(path)
    carried = opened.evaluate_handle(
        """([name, text]) => {
            const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)), carried = new DataTransfer();
            carried.items.add(new File([bytes], name, { type: "image/png" }));
            return carried;
        }""",
        [path.name, base64.b64encode(path.read_bytes()).decode()],
    )
    opened.dispatch_event("#drop", "drop", {"dataTransfer": carried})
    require_same(shown(opened, path), exported, path, 1e-5)


def test_a_file_that_is_no_image_is_refused_and_the_next_one_works(opened: Any, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    (tmp_path / "notes.png").write_text("no image")
    opened.set_input_files("#file", str(tmp_path / "notes.png"))
    expect(opened.locator("#state")).to_have_text(re.compile("notes.png cannot be read as an image"))
    assert opened.locator("#answers [data-p]").count() == 0
    Image.new("RGB", (40, 40), "red").save(tmp_path / "red.png")
    labels, _ = classified(opened, tmp_path / "red.png")
    assert len(labels) == 3


def save_all(images: Sequence[Any], folder: Path) -> list[Path]:
    """Images as PNG files, in two folders."""
    paths = [folder / f"{number % 2}" / f"{number:03}.png" for number in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        (image if isinstance(image, Image.Image) else Image.open(image)).convert("RGB").save(path)
    return sorted(paths)


def test_the_table_of_a_folder_is_that_of_predict_py(
    opened: Any, exported: Finished, hundred: Dataset, tmp_path: Path
) -> None:
    """A folder of 100 images, with "none of these" and sets: every cell, and what the page shows of it."""
    from playwright.sync_api import expect

    assert opened.title() == "out"
    paths = save_all([item.image for item in hundred.test], tmp_path / "photos")
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    opened.fill("#top", "10")
    opened.set_input_files("#folder", str(tmp_path / "photos"))
    expect(opened.locator("#state")).to_have_text(re.compile("^100 images: .* in this browser"), timeout=120_000)
    for box, field, value in (("#reject", "#rate", "20"), ("#sets", "#coverage", "80")):
        opened.check(box)
        opened.fill(field, value)
        opened.dispatch_event(field, "change")
    found, model = read_table(opened, tmp_path), predict.Model(exported.folder)
    options = {"top": 10, "reject": 0.2, "coverage": 0.8}
    rows = {row["path"]: row for row in predict.predict_rows(model, list(map(str, paths)), **options)}
    assert list(found[0]) == predict.list_columns(model, 10, 0.8)
    assert any(row["label"] == "none of these" for row in found)
    for row in found:
        expected = rows[str(tmp_path / row["path"])]
        assert row["label"] == expected["label"]
        assert row["set"] == "; ".join(expected["set"])
        assert float(row["p_value"]) == pytest.approx(expected["p_value"], abs=5e-5)
        best = [float(row["probability"]), *(float(row[f"probability_{n}"]) for n in range(2, 11))]
        np.testing.assert_allclose(best, [one["probability"] for one in expected["top"]], atol=1e-5)
    first = opened.locator("#answers > li").first
    assert first.locator("strong").inner_text() == found[-1]["label"]
    assert "p-value" in first.locator(".more").inner_text()
    opened.click("#clear")
    assert opened.locator("#answers > li").count() == 0


def test_what_the_model_cannot_keep_is_said(opened: Any) -> None:
    from playwright.sync_api import expect

    assert opened.input_value("#rate") == "5", "20 images can keep it"
    opened.check("#reject")
    opened.fill("#rate", "1")
    opened.dispatch_event("#rate", "change")
    expect(opened.locator("#state")).to_have_text("This model cannot keep that rate: it works from 4.8 % on.")
    opened.uncheck("#reject")
    expect(opened.locator("#state")).to_have_text("Ready.")
    opened.check("#sets")
    opened.fill("#coverage", "99")
    opened.dispatch_event("#coverage", "change")
    expect(opened.locator("#state")).to_have_text("That is too much for 20 training images: ask for less.")


def test_the_camera_is_classified_live(opened: Any) -> None:
    from playwright.sync_api import expect

    opened.click("#camera")
    expect(opened.locator("#live-answer strong")).not_to_be_empty()
    assert opened.locator("#live-answer [data-p]").count() == 3
    opened.click("#camera")
    expect(opened.locator("#live")).to_be_hidden()
    assert opened.evaluate("document.querySelector('#video').srcObject") is None


def test_it_fits_a_phone(opened: Any, tmp_path: Path) -> None:
    opened.set_viewport_size({"width": 390, "height": 844})
    Image.new("RGB", (40, 40), "red").save(tmp_path / f"{'long name ' * 12}.png")
    classified(opened, tmp_path / f"{'long name ' * 12}.png")
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390
    small = """Array.from(document.querySelectorAll("button, .button, .options label"))
        .filter((one) => one.offsetParent && one.offsetHeight < 44).map((one) => one.textContent)"""
    assert opened.evaluate(small) == []


@pytest.mark.slow
def test_the_default_with_its_pool_is_equal_in_a_browser(pool: Photos, tmp_path: Path) -> None:
    """100 photos: probabilities, p-values and sets of torch and of the browser."""
    from playwright.sync_api import expect

    paths = save_all(pool.others, tmp_path / "photos")
    with (
        serve_with_page(pool.folder, tmp_path / "site") as address,
        open_page(address) as view,
    ):
        assert view.title() == "sea"
        view.fill("#top", "6")
        view.check("#sets")
        view.set_input_files("#file", list(map(str, paths)))
        expect(view.locator("#state")).to_have_text(re.compile("^100 images: .* in this browser"), timeout=500_000)
        found = {row["path"]: row for row in read_table(view, tmp_path)}
    details = pool.model.predict_details(paths, coverage=0.9)  # type: ignore[arg-type]
    assert details.p_values is not None
    assert details.sets is not None
    for number, path in enumerate(paths):
        row = found[path.name]
        by_label = {row["label"]: float(row["probability"])}
        by_label |= {row[f"label_{n}"]: float(row[f"probability_{n}"]) for n in range(2, 7)}
        expected = dict(zip(pool.model.classes_, details.probabilities[number], strict=True))
        assert by_label == pytest.approx(expected, abs=1e-5)
        assert float(row["p_value"]) == pytest.approx(details.p_values[number], abs=5e-5)
        assert set(row["set"].split("; ")) == set(details.sets[number])
