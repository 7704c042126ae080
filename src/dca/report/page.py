"""A page: sections with their templates, rendered into one HTML file that loads nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from markupsafe import Markup, escape

from dca.core import text
from dca.core.errors import UserError
from dca.core.files import encode_utf8, explain_write_errors, remove_abandoned, write_bytes

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = Path(__file__).parent
S = TypeVar("S")


@dataclass(frozen=True)
class Section(Generic[S]):
    """One part of a page about a subject of type S.

    name: of the anchor. title: heading. build: from the subject to the values of the template, or to one sentence that
    says why the section is left out. template: by default `sections/NAME.html`.
    """

    name: str
    title: str
    build: Callable[[S], Mapping[str, Any] | str]
    template: str = ""


def percent(share: float, digits: int = 1) -> str:
    """A fraction in per cent for a page, where the sign stays with the number."""
    return text.percent(share, digits, space="\N{NO-BREAK SPACE}")


def insert_breaks(words: object) -> Markup:
    """Text that a browser may break after the separators of file and class names.

    >>> str(insert_breaks("a_<b>"))
    'a_<wbr>&lt;b&gt;'
    """
    return Markup(re.sub(r"([_/@\\-]|\.(?!\d))", r"\1<wbr>", str(escape(words))))


def format_points(points: float) -> str:
    """A difference of fractions in points, with a proper minus sign.

    >>> format_points(0.031), format_points(-0.031)
    ('+3.1', '−3.1')
    """
    return f"{100 * points:+.1f}".replace("-", "−")


def require_jinja() -> None:
    """Raise a UserError if jinja2 is not installed."""
    try:
        import jinja2  # noqa: F401
    except ImportError:
        problem = "reports need jinja2, which is not installed."
        raise UserError(problem, hint="pip install 'dca-prompt[report]'") from None


def make_environment(folder: Path | None = None) -> Environment:
    """Make the Jinja environment: templates of this package and of a folder, escaping on, shared filters."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([HERE / "templates", folder or HERE]),
        autoescape=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"percent": percent, "format_points": format_points, "insert_breaks": insert_breaks}
    environment.globals["pluralize"] = text.pluralize
    return environment


def render(sections: Sequence[Section[S]], subject: S, *, title: str, about: str, folder: Path | None = None) -> str:
    """Render the page about a subject.

    Args:
        sections: In the order of the page.
        subject: What the page is about.
        title: Heading of the page.
        about: One line below it.
        folder: Where the templates of the sections are; this package by default.

    Returns:
        The HTML.
    """
    templates, shown, left_out = make_environment(folder), [], []
    for section in sections:
        values = section.build(subject)
        if isinstance(values, str):
            left_out.append((section.title, values))
            continue
        template = templates.get_template(section.template or f"sections/{section.name}.html")
        body = template.render(**values)
        shown.append({"name": section.name, "title": section.title, "body": Markup(body)})
    style = Markup(read_chart_style() + _read_template("page.css"))
    page = templates.get_template("page.html")
    return page.render(title=title, about=about, sections=shown, left_out=left_out, style=style)


def read_chart_style() -> str:
    """Read the CSS of drawings, which pages and drawings in files of their own share; pages add dark mode."""
    return _read_template("chart.css")


def _read_template(name: str) -> str:
    return (HERE / "templates" / name).read_text(encoding="utf-8")


def write_page(path: Path, html: str) -> Path:
    """Write a page atomically; returns its path."""
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent, f".{path.name}.")
    write_bytes(path, encode_utf8(html))
    return path
