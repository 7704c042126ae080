"""A page: sections with their templates, rendered into one HTML file that loads nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from markupsafe import Markup, escape

from dca.core.errors import UserError
from dca.core.files import encode_utf8, explain_write_errors, write_bytes
from dca.core.text import pluralize

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


def soft(text: object) -> Markup:
    """Text that may be broken after the separators of file and class names.

    >>> str(soft("a_<b>"))
    'a_<wbr>&lt;b&gt;'
    """
    return Markup(re.sub(r"([_/@\\-]|\.(?!\d))", r"\1<wbr>", str(escape(text))))


def signed(points: float) -> str:
    """A difference of fractions in points, with a proper minus sign.

    >>> signed(0.031), signed(-0.031)
    ('+3.1', '−3.1')
    """
    return f"{100 * points:+.1f}".replace("-", "−")


def need_jinja() -> None:
    """Raise a UserError if jinja2 is not installed."""
    try:
        import jinja2  # noqa: F401
    except ImportError:
        problem = "reports need jinja2, which is not installed."
        raise UserError(problem, hint="pip install 'dca-prompt[report]'") from None


def environment(folder: Path | None = None) -> Environment:
    """Templates of this package and of a folder, with escaping on, and the filters that they share."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader([HERE / "templates", folder or HERE]),
        autoescape=True,
        undefined=StrictUndefined,
    )
    made.filters |= {"percent": percent, "signed": signed, "soft": soft}
    made.globals["counted"] = pluralize
    return made


def render(sections: Sequence[Section[S]], subject: S, *, title: str, about: str, folder: Path | None = None) -> str:
    """The page about a subject.

    Args:
        sections: In the order of the page.
        subject: What the page is about.
        title: Heading of the page.
        about: One line below it.
        folder: Where the templates of the sections are; this package by default.

    Returns:
        The HTML.
    """
    templates, shown, left_out = environment(folder), [], []
    for section in sections:
        values = section.build(subject)
        if isinstance(values, str):
            left_out.append((section.title, values))
            continue
        template = templates.get_template(section.template or f"sections/{section.name}.html")
        body = template.render(**values)
        shown.append({"name": section.name, "title": section.title, "body": Markup(body)})
    style = Markup(chart_style() + _text("page.css"))
    page = templates.get_template("page.html")
    return page.render(title=title, about=about, sections=shown, left_out=left_out, style=style)


def chart_style() -> str:
    """The rules for drawings, which pages and drawings in files of their own share; pages add those of dark mode."""
    return _text("chart.css")


def _text(name: str) -> str:
    return (HERE / "templates" / name).read_text(encoding="utf-8")


def write(path: Path, html: str) -> Path:
    """Write a page atomically; returns its path."""
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, encode_utf8(html))
    return path
