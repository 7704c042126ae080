"""The page of `dca app` in a real browser: from an empty page to a model that works elsewhere."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve.test_page import BROWSER, PHONE, WIDE, Page, said, sync_api

TOKEN = "an app of tests"
# The camera of these browsers is a moving picture, which nobody needs to allow.
CAMERA = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as tools:
        try:
            found = tools.chromium.launch(executable_path=BROWSER, args=CAMERA)
        except sync_api.Error as error:
            pytest.skip(f"no Chromium to test with (make test-browser): {str(error).splitlines()[0]}")
        yield found
        found.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Page]]:
    """Opens pages; the test fails if one of them reports an error, or asks another host."""
    contexts: list[Any] = []
    faults: list[str] = []

    def opened(address: str, viewport: dict[str, int] = WIDE, **settings: Any) -> Page:
        context = browser.new_context(viewport=viewport, accept_downloads=True, **settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: faults.append(line.text) if "Security" in line.text else None)
        page.on(
            "request",
            lambda r: None if "127.0.0.1" in r.url or r.url.startswith(("blob:", "data:")) else faults.append(r.url),
        )
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert faults == []


class App:
    """`dca app` as a process of its own, which can be killed and started again at the same address."""

    def __init__(self, workspace: Path, backbone: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._command = [
            *(sys.executable, "-m", "dca", "app", str(workspace), "--backbone", str(backbone), "--port", str(self.port))
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/#token={TOKEN}"

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, env={**os.environ, "DCA_TOKEN": TOKEN})
        for _ in range(600):
            try:
                httpx.get(f"http://127.0.0.1:{self.port}/icon.svg")
                return
            except httpx.TransportError:
                time.sleep(0.1)
        raise AssertionError("the server does not start")

    def end(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None


@pytest.fixture
def app(tmp_path: Path, tiny_folder: Path) -> Iterator[App]:
    found = App(tmp_path / "work", tiny_folder)
    found.start()
    yield found
    found.end()


def create(page: Page, name: str = "things") -> None:
    page.locator("#project-name").fill(name)
    page.locator("#new-project button").click()
    sync_api.expect(page.locator("body.app #teach")).to_be_visible()


def learned(page: Page, photos: int) -> None:
    """Wait until the model knows so many photos."""
    sync_api.expect(page.locator("#fit-words")).to_contain_text(f"knows all {photos} photos", timeout=120_000)


def drop(page: Page, files: dict[str, bytes], target: str = "#board") -> None:
    """Drop files as a person does, also in folders: names with "/" are folders."""
    tree: dict[str, Any] = {}
    for path, data in files.items():
        *folders, name = path.split("/")
        inner = tree
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[name] = list(data)
    page.evaluate(
        """([tree, target]) => {
            const entry = (name, value) => Array.isArray(value)
                ? {name, isFile: true, file: (done) => done(new File([new Uint8Array(value)], name))}
                : {name, isDirectory: true, createReader: () => {
                    const left = Object.entries(value).map(([n, v]) => entry(n, v));
                    return {readEntries: (done) => done(left.splice(0, 2))};
                }};
            const top = Object.entries(tree).map(([name, value]) => entry(name, value));
            const flat = Object.entries(tree).filter(([, v]) => Array.isArray(v))
                .map(([n, v]) => new File([new Uint8Array(v)], n));
            const event = new Event('drop', {bubbles: true, cancelable: true});
            event.dataTransfer = {items: top.map((one) => ({webkitGetAsEntry: () => one})), files: flat};
            document.querySelector(target).dispatchEvent(event);
        }""",
        [tree, target],
    )


def read_photos(photos: Path, label: str, folder: str = "") -> dict[str, bytes]:
    return {f"{folder}{label}/{p.name}": p.read_bytes() for p in sorted((photos / "train" / label).iterdir())}


def zip_of(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in files.items():
            packed.writestr(name, data)
    return path


def tree_of(root: Path) -> dict[str, int]:
    return {
        folder.name: len(list(folder.iterdir())) for folder in sorted(root.iterdir()) if not folder.name.startswith(".")
    }


@pytest.mark.parametrize("viewport", [WIDE, pytest.param(PHONE, marks=pytest.mark.slow)], ids=["desktop", "phone"])
def test_from_an_empty_page_to_a_working_onnx_model(
    app: App, open_page: Callable[..., Page], photos: Path, tmp_path: Path, viewport: dict[str, int]
):
    page = open_page(app.address, viewport)
    root = tmp_path / "work" / "things"
    sync_api.expect(page.locator("#project-name")).to_be_focused()
    create(page)
    # Folders that are dropped, one photo of which is in the wrong one.
    files = read_photos(photos, "fish", "photos/") | read_photos(photos, "guitar", "photos/")
    wrong = next(name for name in files if "/fish/" in name)
    files["photos/guitar/wrong.png"] = files.pop(wrong)
    drop(page, files)
    learned(page, 8)
    # A zip, in which folders become classes, too.
    page.set_input_files("#photo-input", str(zip_of(tmp_path / "more.zip", read_photos(photos, "cactus", "all/"))))
    learned(page, 12)
    # The camera.
    page.locator("#new-class").click()
    page.locator("#ask-text").fill("test picture")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Camera: test picture").click()
    sync_api.expect(page.locator("#camera")).to_be_visible()
    page.wait_for_timeout(1000)
    hold = page.locator("#camera-hold")
    hold.hover()
    page.mouse.down()
    page.wait_for_timeout(1200)
    page.mouse.up()
    page.locator("#camera-close").click()
    sync_api.expect(page.locator("#progress")).to_be_hidden()
    taken = tree_of(root)["test picture"]
    assert taken >= 2
    learned(page, 12 + taken)
    # The wrong label is put right, and a class renamed.
    page.locator("[data-label=guitar] [title^='wrong']").click()
    page.locator("#selection-move").click()
    page.locator("#ask-text").fill("fish")
    page.keyboard.press("Enter")
    said(page, "Moved 1 photo to fish")
    page.get_by_role("button", name="Rename: test picture").click()
    page.locator("#ask-text").fill("nothing")
    page.keyboard.press("Enter")
    said(page, "Renamed")
    page.locator("#undo").click()
    said(page, "Undone: renaming test picture to nothing")
    page.locator("#redo").click()
    said(page, "Done again")
    page.reload()
    sync_api.expect(page.locator(".class-card")).to_have_count(4)
    assert tree_of(root) == {"cactus": 4, "fish": 4, "guitar": 4, "nothing": taken}
    learned(page, 12 + taken)
    # It is tried, and taken away.
    page.set_input_files("#file", str(sorted((photos / "test" / "fish").iterdir())[0]))
    sync_api.expect(page.locator(".answer")).to_have_count(4)
    best = page.locator(".answer .name").first.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    with page.expect_download(timeout=180_000) as waiting:
        page.locator("[data-download=onnx]").click()
    waiting.value.save_as(tmp_path / "out.zip")
    zipfile.ZipFile(tmp_path / "out.zip").extractall(tmp_path / "out")
    exported = tmp_path / "out" / "things-onnx"
    image = str(sorted((photos / "test" / "fish").iterdir())[0])
    told = subprocess.run(
        [sys.executable, exported / "predict.py", image], capture_output=True, text=True, cwd=exported
    )
    assert told.returncode == 0, told.stderr
    assert best in told.stdout.splitlines()[0]


@pytest.mark.slow
def test_nothing_that_was_saved_is_lost_when_the_server_is_killed(
    app: App, open_page: Callable[..., Page], photos: Path, tmp_path: Path
):
    page = open_page(app.address)
    create(page)
    labels = sorted(p.name for p in (photos / "train").iterdir())
    files = {name: data for label in labels for name, data in read_photos(photos, label, "photos/").items()}
    drop(page, files)
    sync_api.expect(page.locator("#progress-words")).to_contain_text("of 40 photos")
    for _ in range(400):
        if page.locator("#progress-bar").evaluate("bar => bar.value") >= 6:
            break
        page.wait_for_timeout(20)
    saved = page.locator("#progress-bar").evaluate("bar => bar.value")
    app.end(signal.SIGKILL)
    root = tmp_path / "work" / "things"
    assert sum(tree_of(root).values()) >= saved
    app.start()  # the page goes on by itself
    sync_api.expect(page.locator("#progress")).to_be_hidden(timeout=120_000)
    assert sorted(p.read_bytes() for p in root.glob("*/*.*")) == sorted(files.values())
    learned(page, 40)
    app.end(signal.SIGKILL)
    app.start()
    page.reload()
    sync_api.expect(page.locator(".class-card")).to_have_count(10)
    learned(page, 40)
    page.locator("#undo").click()
    said(page, "Undone: adding")


def test_a_doubtful_label_takes_one_key(app: App, open_page: Callable[..., Page], photos: Path, tmp_path: Path):
    root = tmp_path / "work" / "things"
    for label in ("fish", "guitar", "cactus"):
        shutil.copytree(photos / "train" / label, root / label)
    page = open_page(app.address)
    learned(page, 12)
    rows = httpx.get(
        f"http://127.0.0.1:{app.port}/api/projects/things/findings", headers={"Authorization": f"Bearer {TOKEN}"}
    ).json()["doubtful"]
    sync_api.expect(page.locator("#doubtful")).to_be_visible(visible=bool(rows))
    for left in range(len(rows), 0, -1):
        sync_api.expect(page.locator("#doubtful-words")).to_contain_text(f"{left} label")
        page.keyboard.press("y")
        said(page, "Kept as")
    sync_api.expect(page.locator("#doubtful")).to_be_hidden()


def test_many_photos_are_selected_moved_deleted_and_come_back(
    app: App, open_page: Callable[..., Page], photos: Path, tmp_path: Path
):
    root = tmp_path / "work" / "things"
    for label in ("fish", "guitar"):
        shutil.copytree(photos / "train" / label, root / label)
    page = open_page(app.address)
    sync_api.expect(page.locator("[data-label=fish] .photo")).to_have_count(4)
    page.locator("[data-label=fish] .photo").nth(0).click()
    page.locator("[data-label=fish] .photo").nth(2).click(modifiers=["Shift"])
    sync_api.expect(page.locator("#selection-count")).to_have_text("3 photos selected")
    page.keyboard.press("Delete")
    said(page, "Deleted 3 photos")
    assert tree_of(root) == {"fish": 1, "guitar": 4}
    page.keyboard.press("Control+z")
    said(page, "Undone")
    assert tree_of(root) == {"fish": 4, "guitar": 4}
    page.get_by_role("button", name="Delete: guitar").click()
    said(page, "Deleted the class guitar")
    sync_api.expect(page.locator("#fit-words")).to_contain_text("Add photos of a second one")
    page.keyboard.press("u")
    said(page, "Undone")
    learned(page, 8)


@pytest.mark.slow
def test_a_button_offers_more_photos_than_a_few(app: App, open_page: Callable[..., Page], photos: Path, tmp_path: Path):
    folder = tmp_path / "work" / "things" / "fish"
    folder.mkdir(parents=True)
    images = sorted((photos / "train").glob("*/*"))
    for path in images[:15]:
        shutil.copy(path, folder / f"{path.parent.name} {path.name}")
    page = open_page(app.address)
    sync_api.expect(page.locator(".photo")).to_have_count(15)
    sync_api.expect(page.get_by_text("more of fish")).to_be_hidden()
    shutil.copy(images[15], folder)
    sync_api.expect(page.get_by_text("Show 4 more of fish")).to_be_visible(timeout=20_000)
    sync_api.expect(page.locator(".photo")).to_have_count(12)
    page.get_by_text("Show 4 more of fish").click()
    sync_api.expect(page.locator(".photo")).to_have_count(16)


def test_photos_like_this_one_and_answers_as_a_table(
    app: App, open_page: Callable[..., Page], photos: Path, tmp_path: Path
):
    root = tmp_path / "work" / "things"
    for label in ("fish", "guitar"):
        shutil.copytree(photos / "train" / label, root / label)
    page = open_page(app.address)
    learned(page, 8)
    page.locator(".photo").first.dblclick()
    sync_api.expect(page.locator("#closer-similar li")).to_have_count(7)
    page.locator("#closer-close").click()
    images = [sorted((photos / "test" / label).iterdir())[0] for label in ("fish", "guitar")]
    page.set_input_files("#file", [str(image) for image in images])
    sync_api.expect(page.locator("#tray .thumb")).to_have_count(2)
    with page.expect_download() as waiting:
        page.locator("#csv").click()
    rows = waiting.value.path().read_text().splitlines()
    assert rows[0] == "path,label,probability,p_value"
    assert {row.split(",")[0] for row in rows[1:]} == {image.name for image in images}


def test_the_newest_image_is_looked_at_when_several_are_dropped(
    app: App, open_page: Callable[..., Page], photos: Path, tmp_path: Path
):
    root = tmp_path / "work" / "things"
    for label in ("fish", "guitar"):
        shutil.copytree(photos / "train" / label, root / label)
    page = open_page(app.address)
    learned(page, 8)
    images = [sorted((photos / "test" / label).iterdir())[0] for label in ("fish", "guitar", "cactus")]
    drop(page, {images[0].name: images[0].read_bytes()}, "#drop")
    sync_api.expect(page.locator(".answer")).to_have_count(2)
    before = page.locator("#shown").get_attribute("src")
    drop(page, {f"{n}.webp": image.read_bytes() for n, image in enumerate(images[1:])}, "#drop")
    sync_api.expect(page.locator("#tray .current")).to_have_count(1)
    assert page.locator("#shown").get_attribute("src") != before


def test_bad_archives_and_odd_files_are_refused_with_a_reason(
    app: App, open_page: Callable[..., Page], photos: Path, tmp_path: Path
):
    page = open_page(app.address)
    create(page)
    (tmp_path / "bad.zip").write_bytes(b"PK no archive")
    page.set_input_files("#photo-input", str(tmp_path / "bad.zip"))
    said(page, "not a readable zip")
    bomb = {"cat/zeros.png": bytes(15_000_000), "cat/../../../up.png": b"x", "cat/note.txt": b"words"}
    page.set_input_files("#photo-input", str(zip_of(tmp_path / "bomb.zip", bomb)))
    sync_api.expect(page.locator("#failures")).to_contain_text("too large when unpacked")
    sync_api.expect(page.locator("#failures")).to_contain_text("up.png: not an image in a known format")
    assert not list(tmp_path.glob("**/up*"))
    drop(page, {"words.txt": b"words"})
    said(page, "no image is among the 1 file")
    drop(page, {"loose.webp": read_photos(photos, "fish").popitem()[1]})
    page.locator("#ask-text").fill("fish")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator(".class-card")).to_have_count(1)


def test_a_file_that_is_gone_before_it_was_read_is_named(
    app: App, open_page: Callable[..., Page], photos: Path, tmp_path: Path
):
    page = open_page(app.address)
    create(page)
    images = sorted((photos / "test").glob("*/*"))[:6]
    files = [Path(shutil.copy(path, tmp_path / f"photo {n}.png")) for n, path in enumerate(images)]
    network = page.context.new_cdp_session(page)
    slow = {"offline": False, "latency": 2000, "downloadThroughput": -1, "uploadThroughput": -1}
    network.send("Network.emulateNetworkConditions", slow)
    page.set_input_files("#photo-input", [str(path) for path in files])
    page.locator("#ask-text").fill("fish")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#progress")).to_be_visible()
    files[-1].unlink()  # four are sent at a time, and it waits for them
    network.send("Network.emulateNetworkConditions", {**slow, "latency": 0})
    told = ["photo 5.png: it cannot be read; was it moved?"]
    sync_api.expect(page.locator("#failures li")).to_have_text(told, timeout=20_000)
    assert tree_of(tmp_path / "work" / "things") == {"fish": 5}


def test_the_camera_answers_what_it_sees(app: App, open_page: Callable[..., Page], photos: Path, tmp_path: Path):
    root = tmp_path / "work" / "things"
    for label in ("fish", "guitar"):
        shutil.copytree(photos / "train" / label, root / label)
    page = open_page(app.address)
    learned(page, 8)
    page.locator("#live-toggle").click()
    sync_api.expect(page.locator(".answer")).to_have_count(2)
    page.locator("#live-toggle").click()
    sync_api.expect(page.locator("#live")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_on_a_phone_everything_can_be_touched(
    app: App, open_page: Callable[..., Page], photos: Path, tmp_path: Path, scheme: str
):
    root = tmp_path / "work" / "things"
    for label in ("fish", "guitar"):
        shutil.copytree(photos / "train" / label, root / label)
    page = open_page(app.address, PHONE, color_scheme=scheme, has_touch=True)
    learned(page, 8)
    gone = Path(shutil.copy(next((photos / "test" / "fish").iterdir()), tmp_path / "gone.png"))
    page.set_input_files("#file", str(gone))
    sync_api.expect(page.locator(".answer")).to_have_count(2)
    gone.unlink()  # what was looked at is not there any more: the page goes on
    page.set_input_files("#file", [str(p) for p in sorted((photos / "train" / "cactus").iterdir())])
    sync_api.expect(page.locator("#tray .remove")).to_have_count(4)
    small = page.locator("button:visible, summary:visible, nav a:visible, input:visible").evaluate_all(
        "all => all.filter(e => { const b = e.getBoundingClientRect(); return b.width < 44 || b.height < 44; })"
        ".map(e => `${e.id || e.className || e.textContent} ${JSON.stringify(e.getBoundingClientRect())}`)"
    )
    assert small == []
    nameless = page.locator("button:visible, input:visible, progress:visible, video:visible").evaluate_all(
        "all => all.filter(e => !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length))"
        ".map(e => e.outerHTML)"
    )
    assert nameless == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.slow
def test_a_look_at_the_server_that_finds_nothing_new_leaves_the_page_as_it_is(
    app: App, open_page: Callable[..., Page], photos: Path, tmp_path: Path
):
    root = tmp_path / "work" / "things"
    for label in ("fish", "guitar"):
        shutil.copytree(photos / "train" / label, root / label)
    page = open_page(app.address)
    learned(page, 8)
    sync_api.expect(page.locator(".photo img[src]")).to_have_count(8)
    page.wait_for_load_state("networkidle")
    page.evaluate(
        """() => {
            window.written = [];
            const name = (one) => one.target.id || one.target.className;
            new MutationObserver((all) => window.written.push(...all.map(name)))
                .observe(document.body, {childList: true, characterData: true, subtree: true});
        }"""
    )
    with page.expect_response(lambda answer: answer.url.endswith("/model")):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(200)
    assert page.evaluate("window.written") == []
    (root / "empty").mkdir()  # a change without new findings
    sync_api.expect(page.locator(".class-card")).to_have_count(3)
    page.wait_for_load_state("networkidle")
    written = set(page.evaluate("window.written"))
    assert "cards" in written
    assert not written & {"advice", "doubtful-image", "doubtful-title", "tidy-list"}


def test_nothing_of_a_project_stays_on_the_page_of_another_one(
    app: App, open_page: Callable[..., Page], photos: Path, tmp_path: Path
):
    """Classes of both may have the same name, and photos the same key."""
    for name, source in (("one", "fish"), ("two", "cactus")):
        for label, kind in (("animal", source), ("thing", "guitar")):
            shutil.copytree(photos / "train" / kind, tmp_path / "work" / name / label)
        first = min((tmp_path / "work" / name / "animal").iterdir())
        first.rename(first.with_stem(f"only in {name}"))
    page = open_page(f"{app.address}&project=one")
    learned(page, 8)
    page.set_input_files("#file", str(sorted((photos / "test" / "fish").iterdir())[0]))
    sync_api.expect(page.locator(".answer")).to_have_count(2)
    page.locator("#all-projects").click()
    page.locator("#projects button", has_text="two").click()
    sync_api.expect(page.locator("#title")).to_have_text("two")
    learned(page, 8)
    sync_api.expect(page.locator("[data-label=animal] [title^='only in two']")).to_have_count(1)
    sync_api.expect(page.locator("[data-label=animal] [title^='only in one']")).to_have_count(0)
    sync_api.expect(page.locator(".answer")).to_have_count(0)


def test_a_project_is_not_left_while_photos_are_on_their_way(
    app: App, open_page: Callable[..., Page], photos: Path, tmp_path: Path
):
    """They go where the open project is."""
    (tmp_path / "work" / "other").mkdir()
    shutil.copytree(photos / "train" / "cactus", tmp_path / "work" / "other" / "cactus")
    page = open_page(app.address)
    page.locator("#all-projects").click()
    create(page)
    page.route("**/photos?class=*&name=*", lambda route: (page.wait_for_timeout(500), route.continue_()))
    drop(page, read_photos(photos, "fish", "photos/") | read_photos(photos, "guitar", "photos/"))
    sync_api.expect(page.locator("#progress")).to_be_visible()
    page.locator("#all-projects").click()
    said(page, "Photos are still being saved")
    sync_api.expect(page.locator("#progress")).to_be_hidden()
    assert tree_of(tmp_path / "work" / "things") == {"fish": 4, "guitar": 4}
    assert tree_of(tmp_path / "work" / "other") == {"cactus": 4}


def test_an_answer_about_a_project_that_was_left_changes_nothing(app: App, open_page: Callable[..., Page]):
    page = open_page(app.address)
    create(page, "one")
    sync_api.expect(page.locator("#title")).to_have_text("one")
    with page.expect_request("**/api/projects/one/model"):
        page.route("**/api/projects/one/model", lambda route: (page.wait_for_timeout(1500), route.continue_()))
    page.locator("#all-projects").click()
    sync_api.expect(page.locator("#title")).to_have_text("dca")
    page.wait_for_timeout(2500)
    sync_api.expect(page.locator("#title")).to_have_text("dca")


def test_several_projects(app: App, open_page: Callable[..., Page], tmp_path: Path):
    page = open_page(app.address)
    create(page, "one")
    page.locator("#all-projects").click()
    create(page, "two words")
    sync_api.expect(page.locator("#command")).to_have_text("dca predict 'two words.dca' IMAGE...")
    page.locator("#new-class").click()
    page.locator("#ask-text").fill("only here")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator(".class-card")).to_have_count(1)
    page.locator("#all-projects").click()
    page.locator("#projects button", has_text="one").click()
    sync_api.expect(page.locator("#title")).to_have_text("one")
    sync_api.expect(page.locator(".class-card")).to_have_count(0)
    assert (tmp_path / "work" / "two words" / "only here").is_dir()
