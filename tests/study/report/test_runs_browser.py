"""The report about runs in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from report.browser_checks import problems


@pytest.mark.parametrize("width", [1366, 390])
def test_nothing_is_cut_and_nothing_is_loaded(browser: Any, report: Path, width: int) -> None:
    assert problems(browser, report / "index.html", width) == []


def test_a_number_opens_the_list_of_its_runs(browser: Any, report: Path) -> None:
    page = browser.new_page(viewport={"width": 1366, "height": 900})
    page.goto((report / "index.html").as_uri())
    link = page.locator("#few_shot a.run[href^='#runs-']").first
    target = link.get_attribute("href")
    assert not page.locator(target).is_visible()
    link.focus()
    page.keyboard.press("Enter")
    page.locator(target).wait_for(state="visible")
    with page.expect_navigation():
        page.locator(f"{target} a").first.click()
    assert page.url.endswith("/result.json")
    assert '"accuracy"' in page.content()
    page.close()


def test_a_drawing_is_shown_by_itself(browser: Any, report: Path) -> None:
    page = browser.new_page()
    page.goto((report / "figures" / "curves-average-vit-b-16-paper.svg").as_uri())
    mark = page.locator("circle").first
    assert page.evaluate("e => getComputedStyle(e).fill", mark.element_handle()) != "rgb(0, 0, 0)"
    page.close()
