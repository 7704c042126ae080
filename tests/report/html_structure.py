"""Ids, links and tags of a page, for the tests."""

from __future__ import annotations

from html.parser import HTMLParser


class Structure(HTMLParser):
    """Ids, links and tags of a page, and whether its tags are closed in order."""

    VOID = ("meta", "link", "img", "input", "br", "col", "wbr")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.images_without_words = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.ids += [str(found["id"])] if "id" in found else []
        self.links += [str(found["href"])] if tag == "a" else []
        self.images_without_words += tag == "img" and not found.get("alt")
        assert not [name for name in found if name.startswith("on")], found
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def structure(html: str) -> Structure:
    parser = Structure()
    parser.feed(html)
    assert parser.open == []
    return parser
