"""The page in a real browser: upload, predict, correct, refit, undo, keyboard, phone width, a second tab."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serve.serving import OPTIONS, Live

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test-browser")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = os.environ.get("DCA_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
Start = Callable[..., Live]
Page = Any
WIDE, PHONE = {"width": 1366, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as tools:
        try:
            # Without a sandbox: tests often run as root in a container, and visit only our own page.
            found = tools.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        except sync_api.Error as error:
            pytest.skip(f"no Chromium to test with (make test-browser): {str(error).splitlines()[0]}")
        yield found
        found.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Page]]:
    """Opens pages; the test fails if one of them reports an error or asks another host."""
    contexts: list[Any] = []
    faults: list[str] = []

    def opened(address: str, viewport: dict[str, int] = WIDE, **settings: Any) -> Page:
        context = browser.new_context(viewport=viewport, **settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: faults.append(line.text) if "Security" in line.text else None)
        page.on(
            "request", lambda r: None if "127.0.0.1" in r.url or r.url.startswith("blob:") else faults.append(r.url)
        )
        page.goto(address)
        page.wait_for_selector("#classes li, #token-form:not([hidden])")  # the script listens
        return page

    yield opened
    for context in contexts:
        context.close()
    assert faults == []


def own(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "blob:http://127.0.0.1:"))


def show(page: Page, *paths: Path) -> None:
    """Choose image files."""
    page.set_input_files("#file", [str(path) for path in paths])


def said(page: Page, text: str) -> None:
    """Wait until the line for screen readers says this."""
    sync_api.expect(page.locator("#status")).to_contain_text(text, timeout=20_000)


def test_look_correct_refit_undo(live: Start, open_page: Callable[..., Page], images: list[Path], folder: Path):
    page = open_page(live().address)
    sync_api.expect(page.locator("#classes li")).to_have_count(10)
    assert page.locator("#refit").is_disabled()
    show(page, images[0])
    sync_api.expect(page.locator(".answer")).to_have_count(5)
    sync_api.expect(page.locator("#near li")).to_have_count(5)
    page.locator(".answer").nth(1).click()
    said(page, "Press Refit")
    sync_api.expect(page.locator(".answer.right")).to_have_count(1)
    page.locator("#other-label").fill("narwhal")
    page.locator("#other button").click()
    said(page, "narwhal")
    sync_api.expect(page.locator("#classes .new")).to_contain_text("narwhal")
    assert len(list((folder / "corrections" / "narwhal").iterdir())) == 1
    page.locator("#refit").click()
    sync_api.expect(page.locator("#change")).to_contain_text("Refitted in")
    sync_api.expect(page.locator("#change th", has_text="narwhal")).to_have_count(1)
    sync_api.expect(page.locator("#classes li")).to_have_count(11)
    for left in ("Undone: refit", "narwhal", "of an image"):
        page.locator("#undo").click()
        said(page, left)
        sync_api.expect(page.locator("#refit")).to_be_visible()
    sync_api.expect(page.locator("#undo")).to_be_disabled()
    assert list((folder / "corrections").glob("*/*")) == []


def test_everything_by_keyboard(live: Start, open_page: Callable[..., Page], images: list[Path], folder: Path):
    page = open_page(live().address)
    page.on("filechooser", lambda chooser: chooser.set_files([str(path) for path in images[:4]]))
    page.wait_for_timeout(200)  # until the browser knows that someone listens
    page.keyboard.press("o")
    sync_api.expect(page.locator("#tray .thumb")).to_have_count(4)
    sync_api.expect(page.locator("#tray .thumb.current")).to_have_count(1)
    page.keyboard.press("ArrowRight")
    sync_api.expect(page.locator("#tray .thumb").nth(1)).to_have_attribute("aria-current", "true")
    page.keyboard.press("2")
    sync_api.expect(page.locator("#tray .thumb")).to_have_count(3)
    sync_api.expect(page.locator("#refit")).to_be_enabled()
    page.keyboard.press("n")
    page.keyboard.type("sea unicorn r")  # letters in a field are no commands
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#tray .thumb")).to_have_count(2)
    sync_api.expect(page.locator("#refit")).to_be_enabled()
    page.keyboard.press("r")
    said(page, "Refitted")
    page.keyboard.press("u")
    said(page, "Undone: refit")
    assert {path.name for path in (folder / "corrections").iterdir()} >= {"sea unicorn r"}


def test_controls_can_be_reached_and_have_names(live: Start, open_page: Callable[..., Page], images: list[Path]):
    page = open_page(live().address)
    show(page, images[0])
    sync_api.expect(page.locator(".answer")).to_have_count(5)
    nameless = page.locator("button, input, a").evaluate_all(
        "all => all.filter(e => !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length))"
        ".map(e => e.outerHTML)"
    )
    assert nameless == []
    reached = set()
    for _ in range(25):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"skip", "choose", "other-label"} <= reached
    assert any("answer" in name for name in reached)


@pytest.mark.slow
def test_a_second_tab_follows(live: Start, open_page: Callable[..., Page], images: list[Path]):
    address = live().address
    first, second = open_page(address), open_page(address)
    for page in (first, second):
        show(page, images[0])
        sync_api.expect(page.locator(".answer")).to_have_count(5)
    second.locator("#other-label").fill("narwhal")
    second.locator("#other button").click()
    sync_api.expect(first.locator("#answer-title")).to_have_text("Labelled: narwhal")
    first.locator("#refit").click()
    sync_api.expect(second.locator(".answer", has_text="narwhal")).to_have_count(1)
    sync_api.expect(second.locator("#refit")).to_be_disabled()


def test_pasting_and_dropping(live: Start, open_page: Callable[..., Page], images: list[Path]):
    page = open_page(live().address)
    give = """([kind, bytes]) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], 'x.png', {type: 'image/png'}));
        const event = kind === 'paste' ? new ClipboardEvent('paste', {clipboardData: data, bubbles: true})
            : new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true});
        document.body.dispatchEvent(event);
    }"""
    for kind, path in (("paste", images[0]), ("drop", images[1])):
        before = page.locator("#shown").get_attribute("src")
        page.evaluate(give, [kind, list(path.read_bytes())])
        sync_api.expect(page.locator(".answer")).to_have_count(5)
        sync_api.expect(page.locator("#shown")).not_to_have_attribute("src", before or "none")


@pytest.mark.parametrize(
    ("viewport", "scheme"),
    [(PHONE, "light"), (PHONE, "dark"), ({"width": 320, "height": 640}, "light"), (WIDE, "dark")],
)
def test_nothing_is_cut_off(
    live: Start, open_page: Callable[..., Page], images: list[Path], viewport: dict[str, int], scheme: str
):
    page = open_page(live().address, viewport, color_scheme=scheme)
    show(page, *images[:5])
    sync_api.expect(page.locator("#tray .thumb")).to_have_count(5)
    show(page, images[6])
    sync_api.expect(page.locator("#near li")).to_have_count(5)
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    assert page.locator("#refit").bounding_box()["height"] >= 40
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, back[4:-1].split(","))) < 200) == (scheme == "dark")


def test_bad_files_are_named_and_nothing_breaks(
    live: Start, open_page: Callable[..., Page], images: list[Path], tmp_path: Path
):
    page = open_page(live().address)
    (tmp_path / "bad.png").write_bytes(b"no image at all")
    show(page, tmp_path / "bad.png")
    said(page, "not an image in a known format")
    show(page, images[0])
    sync_api.expect(page.locator(".answer")).to_have_count(5)


def test_none_of_these_is_said(live: Start, open_page: Callable[..., Page], images: list[Path]):
    page = open_page(live(replace(OPTIONS, reject=1.01)).address)
    show(page, images[0])
    sync_api.expect(page.locator("#none")).to_contain_text("Perhaps none of these")
    said(page, "Perhaps none of these")


def test_the_rate_of_false_rejections_is_said(live: Start, open_page: Callable[..., Page]):
    page = open_page(live().address)
    sync_api.expect(page.locator("#rejection")).to_contain_text("p ≤ 0.050; about 5\u00a0% of good images")
    page = open_page(live(replace(OPTIONS, reject=0)).address)
    sync_api.expect(page.locator("#rejection")).to_contain_text("not given: switched off")


def test_the_token_is_asked_for_or_in_the_address(live: Start, open_page: Callable[..., Page], images: list[Path]):
    address = live(replace(OPTIONS, token="s3cret")).address
    page = open_page(address)
    page.locator("#token").fill(f"{address}/#token=s3cret")
    page.locator("#token-form button").click()
    sync_api.expect(page.locator("#classes li")).to_have_count(10)
    sync_api.expect(page.locator("#token-form")).to_be_hidden()
    other = open_page(f"{address}/#token=s3cret")
    sync_api.expect(other.locator("#classes li")).to_have_count(10)
    assert "s3cret" not in other.url
    assert other.context.cookies() == []
    other.reload()
    sync_api.expect(other.locator("#classes li")).to_have_count(10)
    show(other, images[0])
    sync_api.expect(other.locator("#near img[src]")).to_have_count(5)


def test_limits_are_said(live: Start, open_page: Callable[..., Page], images: list[Path]):
    page = open_page(live(replace(OPTIONS, corrections=2, undo_steps=3)).address)
    sync_api.expect(page.locator("#limits")).to_contain_text(
        "Up to 2 corrections (2,000 MB) are kept; the last 3 steps"
    )
    for n in range(2):
        sync_api.expect(page.locator("#quota")).to_be_hidden()
        show(page, images[n])
        said(page, "%")  # the answer for this image, not for the one before it
        page.locator(".answer").first.click()
        said(page, "Saved as")
    sync_api.expect(page.locator("#quota")).to_contain_text("2 of 2 corrections")
    sync_api.expect(page.locator("#quota")).to_contain_text("--max-corrections")


def test_corrections_that_cannot_be_learned_are_named(
    live: Start, open_page: Callable[..., Page], photos: Path, folder: Path
):
    fish = sorted((photos / "train" / "fish").iterdir())
    (folder / "corrections" / "house").mkdir(parents=True)
    for path in fish:
        shutil.copy(path, folder / "corrections" / "house")
    page = open_page(live().address)
    notice = page.locator("#no-refit")
    sync_api.expect(notice).to_contain_text("classes without training images (fish). To mend it: undo labels")
    page.locator("#undo").click()
    said(page, "Undone")
    page.locator("#refit").click()
    sync_api.expect(page.locator("#change")).to_contain_text("Refitted in")
    sync_api.expect(notice).to_be_hidden()


def test_a_model_that_cannot_be_refitted_says_what_to_run(
    live: Start, open_page: Callable[..., Page], images: list[Path], folder: Path
):
    (folder / "gallery.safetensors").unlink()
    page = open_page(live().address)
    sync_api.expect(page.locator("#no-refit")).to_contain_text("dca fit PHOTOS/ -o photos.dca")
    show(page, images[0])
    page.locator(".answer").first.click()
    said(page, "Saved as")
    assert page.locator("#refit").is_disabled()
