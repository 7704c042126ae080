"""The pictures of the app in the README and the docs, of a project with built-in images.

    python scripts/app_pictures.py docs/images

starts `dca app` on a folder of its own and writes app-classes.webp (the classes and how good the model is), app.webp
(the same with an answer), app-phone.webp (three parts of the page on a phone, one of them dark), and app-state-*.webp
(every state of docs/app-states.md). Needs Chromium and playwright; takes two minutes.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import httpx
from PIL import Image

from dca.datasets.sample import write_sample

CLASSES = ("butterfly", "fish", "lighthouse", "mushroom")
PHOTOS = 8
WRONG = ("butterfly", "fish")  # a photo of the first is also put into the class of the second
COPY = "lighthouse"  # a photo of this class is there twice
TOKEN = "pictures of the docs"
SHOWN_FOLDER = "/home/you/dca-projects"
# The wide page is as high as all of it: thumbnails are fetched when they come near the screen.
# Space around a part of the page, in pixels.
MARGIN = 12
# Pixels that hold the whole page, also on a phone: thumbnails come when they are near the screen.
HIGH = 6000
WIDE, PHONE = {"width": 1200, "height": 2600}, {"width": 390, "height": 844}


def write_project(folder: Path, images: Path) -> None:
    """A few photos per class, one of them in a wrong class, and one twice."""
    for label in CLASSES:
        (folder / label).mkdir(parents=True)
        for path in sorted((images / "train" / label).iterdir())[:PHOTOS]:
            shutil.copyfile(path, folder / label / path.name)
    source, target = WRONG
    shutil.copyfile(sorted((images / "train" / source).iterdir())[PHOTOS], folder / target / "wrong.png")
    first = Image.open(min((folder / COPY).iterdir()))
    first.resize((first.width * 2, first.height * 2)).save(folder / COPY / "copy.jpg")


def start_app(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """The server as a process of its own, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "dca", "app", str(folder), "--port", str(port)]
    process = subprocess.Popen(command, env={**os.environ, "DCA_TOKEN": TOKEN})
    for _ in range(1200):
        try:
            httpx.get(f"http://127.0.0.1:{port}/icon.svg")
            return process, f"http://127.0.0.1:{port}/#token={TOKEN}"
        except httpx.TransportError:
            time.sleep(0.1)
    raise SystemExit("the server does not start")


def open_page(browser: Any, address: str, test_image: Path, viewport: dict[str, int], scheme: str) -> Any:
    """The page when the model has learned all photos and answers for an image."""
    page = browser.new_context(viewport=viewport, color_scheme=scheme, device_scale_factor=1).new_page()
    page.set_default_timeout(300_000)
    page.goto(address)
    page.get_by_text("knows all").wait_for()
    page.set_input_files("#file", str(test_image))
    page.locator(".answer").first.wait_for()
    return page


def write_pictures(browser: Any, address: str, test_image: Path, out: Path) -> None:
    """The whole page, and three parts of it on a phone."""
    page = open_page(browser, address, test_image, WIDE, "light")
    page.wait_for_timeout(3000)  # until thumbnails are there, and bars have their lengths
    missing = page.evaluate("[...document.images].filter(i => i.checkVisibility() && !i.naturalWidth).length")
    if missing:
        raise SystemExit(f"{missing} pictures of the page are not there yet: try again")
    whole = Image.open(io.BytesIO(page.screenshot()))
    for name, below in (("app-classes", page.get_by_role("heading", name="Try it")), ("app", page.locator("#tray"))):
        end = below.evaluate("e => (e.closest('.card') ?? e).getBoundingClientRect().top + scrollY")
        save_picture(whole.crop((0, 0, whole.width, int(end) - 8)), out / f"{name}.webp")
    parts = []
    for selector, scheme in ((".class-card", "light"), ("#doubtful", "light"), (".answer", "dark")):
        page = open_page(browser, address, test_image, PHONE, scheme)
        page.locator(selector).first.evaluate("e => e.scrollIntoView({block: 'center'})")
        page.wait_for_timeout(1000)
        parts.append(Image.open(io.BytesIO(page.screenshot())))
    row = Image.new("RGB", (sum(part.width + 20 for part in parts) - 20, parts[0].height), "white")
    for n, part in enumerate(parts):
        row.paste(part, (n * (part.width + 20), 0))
    save_picture(row, out / "app-phone.webp")


class States:
    """Takes the pictures of the states of the page, in the order in which a person meets them.

    Args:
        browser: With a camera that shows a moving picture.
        address: Of a server with one project, `paper`.
        images: The built-in images, in train/ and test/.
        out: The folder of the pictures.
    """

    def __init__(self, browser: Any, address: str, images: Path, out: Path) -> None:
        self._browser, self._address, self._images, self._out = browser, address, images, out

    def write(self) -> None:
        """Write all of them."""
        page = self._open()
        self._begin(page)
        self._look_at_photos(page)
        self._try(page)
        self._go_wrong(page)
        page.context.close()
        for scheme, width in (("dark", 1100), ("light", 390), ("dark", 390)):
            page = self._open(width, scheme)
            page.get_by_text("knows all").wait_for()
            page.set_input_files("#file", str(self._test("fish")))
            page.locator(".answer").first.wait_for()
            name = "phone" if width == 390 else "wide"
            self._save(page, f"{name}-{scheme}-photos", "#board", "#quality")
            self._save(page, f"{name}-{scheme}-answer", "#try", "#ship")
            page.context.close()

    def _begin(self, page: Any) -> None:
        page.get_by_text("knows all").wait_for()
        page.locator("#all-projects").click()
        page.locator("#projects button").wait_for()
        self._save(page, "projects", ".start")
        page.locator("#project-name").fill("things")
        page.locator("#new-project button").click()
        page.locator("body.app #teach").wait_for()
        self._save(page, "empty", "#board", "#ship")
        page.locator("#new-class").click()
        page.locator("#ask-text").fill("test picture")
        self._save(page, "new-class", "#ask")
        page.keyboard.press("Enter")
        page.locator(".class-card").wait_for()
        self._save(page, "class-without-photos", "#board", "#quality")
        page.get_by_role("button", name="Camera: test picture").click()
        page.wait_for_timeout(1000)
        page.locator("#camera-hold").hover()
        page.mouse.down()
        page.wait_for_timeout(1500)
        page.mouse.up()
        self._save(page, "camera", "#camera")
        page.locator("#camera-close").click()
        page.get_by_text("One class has photos").wait_for()
        self._save(page, "one-class", "#board", "#quality")
        page.locator("#all-projects").click()
        page.locator("#projects button", has_text="paper").click()
        page.get_by_text("knows all").wait_for()

    def _look_at_photos(self, page: Any) -> None:
        self._save(page, "classes", "#board")
        for n in (1, 2, 4):
            page.locator("[data-label=fish] .photo").nth(n).click()
        self._save_view(page, "selected", "[data-label=fish]")
        page.locator("#selection-move").click()
        self._save(page, "move", "#ask")
        page.locator("#ask-text").fill("mushroom")
        page.keyboard.press("Enter")
        page.locator("#status.on").wait_for()
        page.locator("#fit-bar").wait_for()
        self._save(page, "learning", "#quality")
        page.locator("#status.on", has_text="Moved").wait_for(state="hidden")
        page.locator("#undo").click()
        page.get_by_text("Undone: moving 3 photos to mushroom").wait_for()
        self._save_view(page, "undo", "header")
        page.get_by_text("knows all").wait_for()
        page.locator("#doubtful").wait_for()
        self._save(page, "quality", "#quality")
        self._save(page, "doubtful", "#doubtful")
        page.locator("#tidy summary").click()
        self._save(page, "copies", "#tidy")
        page.locator("[data-label=fish] .photo").first.dblclick()
        page.locator("#closer-similar img").first.wait_for()
        self._save(page, "similar", "#closer")
        page.locator("#closer-close").click()

    def _try(self, page: Any) -> None:
        self._save(page, "try", "#try", ".tray-box")
        page.set_input_files("#file", str(self._test("fish")))
        page.locator(".answer").first.wait_for()
        self._save(page, "answer", "#try", "main")
        Image.effect_noise((96, 96), 90).convert("RGB").save(self._out / "noise.png")
        page.set_input_files("#file", str(self._out / "noise.png"))
        page.locator("#none").wait_for()
        (self._out / "noise.png").unlink()
        self._save(page, "none-of-these", ".answer-side")
        page.set_input_files("#file", [str(self._test(label, 1)) for label in CLASSES])
        page.locator("#tray li").nth(3).wait_for()
        self._save(page, "tray", ".tray-box")
        page.locator("#live-toggle").click()
        page.locator("#live-toggle[aria-pressed=true]").wait_for()
        page.wait_for_timeout(1500)
        self._save(page, "live", "main")
        page.locator("#live-toggle").click()
        self._save(page, "ship", "#ship")

    def _go_wrong(self, page: Any) -> None:
        damaged = self._out / "damaged.jpg"
        damaged.write_bytes(b"not an image")
        page.get_by_role("button", name="Add photos: fish").click()
        page.set_input_files("#photo-input", str(damaged))
        page.locator("#failures").wait_for()
        damaged.unlink()
        self._save(page, "not-added", "#failures")
        page.locator("#failures button").click()
        page.get_by_role("button", name="Rename: fish").click()
        page.locator("#ask-text").fill("mushroom")
        page.keyboard.press("Enter")
        page.locator("#status.bad").wait_for()
        self._save_view(page, "refused", "#board")
        page.locator("#all-projects").click()
        page.locator("#project-name").fill("many")
        page.locator("#new-project button").click()
        page.locator("body.app #teach").wait_for()
        page.locator("#status.on").wait_for(state="hidden")
        with page.expect_file_chooser() as chooser:
            page.locator("#add-folder").click()
        chooser.value.set_files(str(self._images / "train"))
        page.locator(".class-card img").first.wait_for()
        page.locator("#progress").wait_for()
        self._save_view(page, "adding", "header")
        page.locator("#progress").wait_for(state="hidden")
        other = self._open(token="wrong")
        other.locator("#token-form").wait_for()
        self._save(other, "token", "header", "#token-form")
        other.context.close()

    def _open(self, width: int = 1100, scheme: str = "light", token: str = TOKEN) -> Any:
        context = self._browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, has_touch=width == 390
        )
        context.route("**/api/**", self._hide_folder)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{self._address.partition('#')[0]}#token={token}&project=paper")
        return page

    def _hide_folder(self, route: Any) -> None:
        """Show another name of the workspace, whose own one is that of a temporary folder."""
        from playwright.sync_api import Error

        try:
            response = route.fetch()
        except Error:  # the page was closed meanwhile
            return
        if "json" in response.headers.get("content-type", ""):
            route.fulfill(response=response, body=response.text().replace(str(self._images.parent), SHOWN_FOLDER))
        else:
            route.fulfill(response=response)

    def _test(self, label: str, number: int = 0) -> Path:
        return sorted((self._images / "test" / label).iterdir())[number]

    def _save_view(self, page: Any, name: str, first: str) -> None:
        """What is on the screen, with an element at its top."""
        page.locator(first).first.evaluate("e => e.scrollIntoView({block: 'start'})")
        page.wait_for_timeout(700)
        save_picture(Image.open(io.BytesIO(page.screenshot())), self._out / f"app-state-{name}.webp")

    def _save(self, page: Any, name: str, first: str, last: str = "") -> None:
        """The part of the page from the top of one element to the bottom of another."""
        size = page.viewport_size
        page.set_viewport_size({"width": size["width"], "height": 3000})
        page.wait_for_timeout(700)
        boxes = [page.locator(selector).first.bounding_box() for selector in (first, last or first)]
        top = min(box["y"] for box in boxes) - MARGIN
        bottom = max(box["y"] + box["height"] for box in boxes if box) + MARGIN
        whole = Image.open(io.BytesIO(page.screenshot()))
        fixed = page.locator(first).evaluate("e => e.closest('dialog') !== null")
        left, right = 0, whole.width
        if fixed:
            left, right = max(0, boxes[0]["x"] - MARGIN), min(whole.width, boxes[0]["x"] + boxes[0]["width"] + MARGIN)
        save_picture(
            whole.crop((int(left), max(0, int(top)), int(right), min(int(bottom), whole.height))),
            self._out / f"app-state-{name}.webp",
        )
        page.set_viewport_size(size)


def save_picture(picture: Image.Image, path: Path) -> None:
    """As WebP, small enough for a repository."""
    picture.convert("RGB").save(path, quality=80, method=6)
    click.echo(f"{path}: {picture.width} x {picture.height}, {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder of the pictures")
    chosen = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as place, sync_playwright() as tools:
        images = write_sample(Path(place) / "images")
        write_project(Path(place) / "paper", images)
        names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
        path = os.environ.get("DCA_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
        camera = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        browser = tools.chromium.launch(executable_path=path, args=["--no-sandbox", *camera])
        process, address = start_app(Path(place) / "paper")
        try:
            write_pictures(browser, address, images / "test" / "fish" / "000.png", chosen.out)
            States(browser, address, images, chosen.out).write()
        finally:
            process.terminate()
            process.wait(60)
            browser.close()


if __name__ == "__main__":
    main()
