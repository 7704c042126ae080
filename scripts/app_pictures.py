"""The pictures of the app in the README and the docs, of a project with built-in images.

    python scripts/app_pictures.py docs/images

starts `dca app` on a folder of its own and writes app-classes.webp (the classes and how good the model is), app.webp
(the same with an answer) and app-phone.webp (three parts of the page on a phone, one of them dark). Needs Chromium and
playwright; takes half a minute.
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
# The wide page is as high as all of it: thumbnails are fetched when they come near the screen.
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
        browser = tools.chromium.launch(executable_path=path, args=["--no-sandbox"])
        process, address = start_app(Path(place) / "paper")
        try:
            write_pictures(browser, address, images / "test" / "fish" / "000.png", chosen.out)
        finally:
            process.terminate()
            process.wait(60)
            browser.close()


if __name__ == "__main__":
    main()
