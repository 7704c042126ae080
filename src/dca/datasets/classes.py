"""Class names of public datasets, as lists in this package. Methods may read them, too.

Class names that mean nothing to CLIP: codes, numbers, words of other scripts.

Which class of one dataset or model is which class of another.

WordNet ids of classes, by which versions of ImageNet are matched: two of its classes may share a name.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

from dca.core.text import normalize_name, pluralize
from dca.datasets.dataset import Dataset


def class_list(name: str) -> tuple[tuple[str, str], ...]:
    """Key and name of every class of a public dataset; empty if there is no list."""
    file = resources.files("dca.datasets") / "classnames" / f"{name}.txt"
    if not file.is_file():
        return ()
    pairs = (line.split("\t") for line in file.read_text(encoding="utf-8").splitlines() if line)
    return tuple((key, name) for key, name in pairs)


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
    many = pluralize(len(odd), "class name", "are", of=len(dataset.names))
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


def match_labels(
    labels: Sequence[Any], names: Sequence[str], known_labels: Sequence[Any], known_names: Sequence[str]
) -> tuple[int | None, ...]:
    """For each class its index among the known ones, or None.

    Classes are matched by label (as it is, as text, then folded), and those left over by folded name.
    What two known classes share identifies neither, and a class already matched is not matched again.

    >>> match_labels(("dog", "bkr"), ("dog", "bike rack"), (0, 1, 2), ("Bike_rack", "cat", "Dog"))
    (2, 0)
    """
    folded = [normalize_name(name) for name in names]
    found: list[int | None] = [None] * len(labels)
    rounds: tuple[tuple[Sequence[Any], Sequence[Any]], ...] = (
        (labels, known_labels),
        _each(str, labels, known_labels),
        _each(lambda label: normalize_name(str(label)), labels, known_labels),
        (folded, [normalize_name(name) for name in known_names]),
    )
    for wanted, known in rounds:
        taken = set(found)
        index = {value: place for value, place in _index(known).items() if place not in taken}
        found = [index.get(key) if place is None else place for key, place in zip(wanted, found, strict=True)]
    return tuple(found)


def match_keys(keys: Sequence[str], known: Sequence[str]) -> tuple[int | None, ...]:
    """For each key its index among the known ones, or None.

    >>> match_keys(("n2", "n9"), ("n1", "n2"))
    (1, None)
    """
    index = _index(known)
    return tuple(index.get(key) for key in keys)


def _each(
    function: Callable[[Any], str], wanted: Sequence[Any], known: Sequence[Any]
) -> tuple[Sequence[str], Sequence[str]]:
    return [function(label) for label in wanted], [function(label) for label in known]


def _index(known: Sequence[Any]) -> dict[Any, int]:
    """Place of every value that occurs once."""
    count = Counter(known)
    return {value: place for place, value in enumerate(known) if count[value] == 1}


def distinct_labels(names: Sequence[str], keys: Sequence[str]) -> tuple[str, ...]:
    """A label for each class: its name, with the key where two classes share a name (ImageNet).

    >>> distinct_labels(["tench", "missile", "missile"], ["n1", "n2", "n3"])
    ('tench', 'missile (n2)', 'missile (n3)')
    """
    count = Counter(names)
    marks = keys or [str(y) for y in range(len(names))]
    return tuple(f"{name} ({mark})" if count[name] > 1 else name for name, mark in zip(names, marks, strict=True))


def wordnet_ids(labels: Sequence[Any], public: str = "", keys: Sequence[str] = ()) -> tuple[str, ...]:
    """The WordNet id of each class; empty unless all of them are known.

    They are the keys, or else the labels themselves, or else those of the catalog's classes with these labels.

    labels: of a dataset or a model. public: name of the public dataset that it is, or was fitted on.

    >>> wordnet_ids(["n01440764", "n01443537"])
    ('n01440764', 'n01443537')
    >>> wordnet_ids(["sunglasses (n04356056)", "tench"], "imagenet"), wordnet_ids(["cat", "dog"])
    (('n04356056', 'n01440764'), ())
    """
    from dca.datasets import catalog

    found = tuple(keys)
    if not found:
        entry = catalog.entries().get(public)
        pairs = entry.class_list() if entry is not None else ()
        ids = [key for key, _ in pairs]
        of_label = dict(zip(distinct_labels([name for _, name in pairs], ids), ids, strict=True))
        found = tuple(of_label.get(str(label), str(label)) for label in labels)
    return found if all(re.fullmatch(r"n\d{8}", key) for key in found) else ()
