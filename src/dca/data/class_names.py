"""Class names that mean nothing to CLIP: codes, numbers, words of other scripts."""

from __future__ import annotations

import json
import re
from typing import Any

from dca.core.wording import counted
from dca.data.dataset import Dataset

NAMES = "classnames.json"
MOST_EXAMPLES = 3


def odd_names(dataset: Dataset) -> list[tuple[Any, str, str]]:
    """Label, name and reason of every class whose name CLIP probably does not understand."""
    pairs = zip(dataset.labels, dataset.names, strict=True)
    return [(label, name, reason) for label, name in pairs if (reason := odd_name(name))]


def name_advice(label: Any) -> str:
    """How to tell CLIP what a class is, with its label as the example."""
    example = json.dumps({str(label): "bike rack"}, ensure_ascii=False)
    return f"say what it is in English in {NAMES}, e.g. {example}"


def name_warnings(dataset: Dataset) -> list[str]:
    """One warning about names that CLIP probably does not understand, if there are any."""
    odd = odd_names(dataset)
    if not odd:
        return []
    examples = ", ".join(f"'{name}' ({reason})" for _, name, reason in odd[:MOST_EXAMPLES])
    many = counted(len(odd), "class name", "are", of=len(dataset.names))
    return [f"{many} not words CLIP knows: {examples}; {name_advice(odd[0][0])}"]


def odd_name(name: str) -> str:
    """Why CLIP probably does not understand a class name; empty if it should.

    >>> odd_name("n01440764"), odd_name("bkr"), odd_name("sea lake"), odd_name("737-800")
    ('a code', 'not a word', '', '')
    """
    words = re.findall(r"[^\W\d_]+", name)
    letters = "".join(words)
    if not letters:
        # Aircraft are called 737-800; a bare number is most likely a label.
        return "" if re.fullmatch(r"\d+-\d+", name) else "a number"
    if not letters.isascii() and not any(word.isascii() and len(word) > 2 for word in words):
        return "" if _latin(letters) else "not in Latin letters; CLIP reads English"
    if re.fullmatch(r"(class|label|category|cat|folder|group|type|c|id)[ -]*\d+", name, re.IGNORECASE):
        return "a number, not a name"
    if re.fullmatch(r"[a-z]{1,3}[ -]?\d{4,}\w*", name, re.IGNORECASE):
        return "a code"
    if len(letters) == 1 and not re.search(r"\d{3}", name):
        return "one letter"
    if len(words) == 1 and letters.islower() and not re.search(r"[aeiouyåäöüéè]", letters):
        return "not a word"
    return ""


def _latin(letters: str) -> bool:
    return all(ord(letter) < 0x250 for letter in letters)
