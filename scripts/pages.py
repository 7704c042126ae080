"""Generated parts of the pages in docs/: the text between a mark `<!-- NAME -->` and the next `<!-- end -->`."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
END = "<!-- end -->"


def _mark(name: str) -> str:
    return f"<!-- {name} -->\n"


def split_page(page: str, name: str) -> tuple[str, str, str]:
    """The page up to its mark of this name, the generated part, and the rest."""
    before, mark, rest = page.partition(_mark(name))
    part, end, after = rest.partition(END)
    if not mark or not end:
        raise SystemExit(f"the page has no marks of {name}")
    return before + mark, part.removesuffix("\n"), f"\n{end}{after}"


def page_of(name: str) -> Path:
    """The page in docs/ that has the mark of this name."""
    for path in sorted(DOCS.glob("*.md")):
        if _mark(name) in path.read_text(encoding="utf-8"):
            return path
    raise SystemExit(f"no page in {DOCS} has the mark <!-- {name} -->")


def read_part(name: str) -> str:
    """The generated part of this name, as it is in docs/ now."""
    return split_page(page_of(name).read_text(encoding="utf-8"), name)[1]


def write_part(name: str, text: str, page: Path | None = None) -> Path:
    """Replace a generated part on a page, by default on the one in docs/ that has it; returns the page."""
    path = page or page_of(name)
    before, _, after = split_page(path.read_text(encoding="utf-8"), name)
    path.write_text(f"{before}{text}{after}", encoding="utf-8")
    return path
