"""The page in a real browser: nothing is cut, nothing is loaded, everything can be reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dca.model.comparison import compare
from dca.report.assemble import make_comparison_page
from dca.report.page import render
from dca.report.reported_model import ReportedModel, to_zero_shot
from dca.report.sections import SECTIONS
from report.browser_checks import OVERFLOWING, problems


@pytest.fixture(scope="module")
def pages(tested: ReportedModel, held_out: ReportedModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page with test images, the page without, and a comparison."""
    folder = tmp_path_factory.mktemp("pages")
    assert tested.dataset is not None
    both = compare([("mine", tested.model), ("zero-shot", to_zero_shot(tested.model))], tested.dataset)
    texts = {
        "tested": render(SECTIONS, tested, title="tested", about="about"),
        "held_out": render(SECTIONS, held_out, title="held out", about="about"),
        "compared": make_comparison_page(both),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.mark.parametrize("name", ["tested", "held_out", "compared"])
@pytest.mark.parametrize("width", [1366, 390])
def test_nothing_is_cut_and_nothing_is_loaded(browser: Any, pages: dict[str, Path], name: str, width: int) -> None:
    assert problems(browser, pages[name], width) == []


def test_numbers_of_classes_stay_on_one_line_on_a_phone(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(pages["held_out"].as_uri())
    page.locator("#per_class summary", has_text="Precision").click()
    lines = page.locator(".scores td, .scores thead th").evaluate_all(
        """all => all.map((e) => {
            const range = document.createRange();
            range.selectNodeContents(e);
            return new Set([...range.getClientRects()].map((one) => one.top)).size;
        })"""
    )
    assert len(lines) >= 60
    assert max(lines) == 1
    page.close()


def test_a_cell_leads_to_its_images_by_keyboard(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.new_page(viewport={"width": 1366, "height": 900})
    page.goto(pages["tested"].as_uri())
    link = page.locator(".matrix a").first
    target = link.get_attribute("href")
    assert not page.locator(target).is_visible()
    link.focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.locator(target).wait_for(state="visible")
    assert page.locator(f"{target} img").count() > 0
    page.close()


def test_the_other_plane_is_a_key_away(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.goto(pages["tested"].as_uri())
    first, second = page.locator(".tabs > .tab").all()
    assert first.is_visible()
    page.locator("#map-pair").focus()
    page.keyboard.press("ArrowRight")
    assert second.is_visible()
    assert not first.is_visible()
    assert page.evaluate(OVERFLOWING) == []
    page.close()


def test_dark_and_print_have_colours_of_their_own(browser: Any, pages: dict[str, Path]) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        page.goto(pages["held_out"].as_uri())
        colours[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        if scheme == "dark":
            page.emulate_media(media="print")
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
            assert not page.locator("nav").is_visible()
        page.close()
    assert colours["light"] != colours["dark"]
