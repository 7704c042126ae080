"""What is wrong with a page in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Elements that reach over the edge of the window, other than inside a scrolling region that is within it.
OVERFLOWING = """() => [...document.querySelectorAll('body *')].filter(e => {
  const box = e.getBoundingClientRect();
  if (!box.width || e.closest('.skip, .stack thead') || (box.right <= innerWidth + 1 && box.left >= -1)) return false;
  const region = e.parentElement.closest('.scroll');
  return !region || region.getBoundingClientRect().right > innerWidth + 1;
}).map(e => e.tagName + '.' + e.className)"""

# Texts that are cut off inside their own box.
CUT = """() => [...document.querySelectorAll('h1, h2, h3, p, dd, dt, li, td, th')]
  .filter(e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display != 'inline' && e.clientWidth)
  .map(e => e.tagName + ': ' + e.textContent.slice(0, 60))"""

# Texts of one drawing that lie over each other, or outside the drawing.
COLLIDING = """() => [...document.querySelectorAll('svg.chart')].flatMap(svg => {
  const frame = svg.getBoundingClientRect(), texts = [...svg.querySelectorAll('text')], wrong = [];
  texts.forEach((one, n) => {
    const a = one.getBoundingClientRect();
    if (a.right > frame.right + 1 || a.left < frame.left - 1 || a.bottom > frame.bottom + 1 || a.top < frame.top - 1)
      wrong.push('outside: ' + one.textContent);
    texts.slice(n + 1).forEach(other => {
      const b = other.getBoundingClientRect();
      const w = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const h = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (w > 1 && h > 3) wrong.push(one.textContent + ' / ' + other.textContent);
    });
  });
  return wrong;
})"""


def problems(browser: Any, path: Path, width: int) -> list[str]:
    """Whatever is cut, overlapping, wider than the window, loaded from elsewhere or complained about."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    found: list[str] = []
    page.on("console", lambda message: found.append(message.text))
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("request", lambda request: None if _own(request.url) else found.append(request.url))
    page.goto(path.as_uri())
    if page.evaluate("document.documentElement.scrollWidth") > width:
        found.append("the page is wider than the window")
    found += [line for check in (OVERFLOWING, CUT, COLLIDING) for line in page.evaluate(check)]
    page.close()
    return found


def _own(address: str) -> bool:
    return address.startswith(("file:", "data:"))
