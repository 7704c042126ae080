"""Classes: what they are called, and which class of one dataset or model is which class of another.

A class has a label (what the user calls it), a name (the text that CLIP reads) and, in public datasets, a key (its
official folder, WordNet id or number). Names come from the lists of this package for public datasets, from
`classnames.json` beside a user's images, or from the label itself.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dca.core.errors import UserError, nearest
from dca.core.text import normalize_name, pluralize, to_printable

if TYPE_CHECKING:
    from dca.datasets.dataset import Dataset

# File beside the class folders, or beside an image list, that gives classes their names.
CLASS_NAMES_FILE = "classnames.json"
MOST_EXAMPLES = 3


# Names and labels


def read_class_list(name: str) -> tuple[tuple[str, str], ...]:
    """Key and name of every class of a public dataset, in label order; empty if this package has no such list."""
    file = resources.files("dca.datasets") / "classnames" / f"{name}.txt"
    if not file.is_file():
        return ()
    pairs = (line.split("\t") for line in file.read_text(encoding="utf-8").splitlines() if line)
    return tuple((key, name) for key, name in pairs)


def label_to_name(label: str) -> str:
    """The name of a class whose label is all that is known of it: spaces for underscores.

    >>> label_to_name("sea_or_lake")
    'sea or lake'
    """
    return " ".join(unicodedata.normalize("NFC", label).replace("_", " ").split())


def distinct_labels(names: Sequence[str], keys: Sequence[str]) -> tuple[str, ...]:
    """A label for each class: its name, with the key where two classes share a name (ImageNet).

    >>> distinct_labels(["tench", "missile", "missile"], ["n1", "n2", "n3"])
    ('tench', 'missile (n2)', 'missile (n3)')
    """
    count = Counter(names)
    marks = keys or [str(y) for y in range(len(names))]
    return tuple(f"{name} ({mark})" if count[name] > 1 else name for name, mark in zip(names, marks, strict=True))


# classnames.json


def read_names_by_label(path: Path) -> Mapping[str, str]:
    """Label -> name, as a `classnames.json` file says; empty if there is no such file.

    Raises UserError if it holds anything but a JSON object of texts.
    """
    if not path.is_file():
        return {}
    expected = 'a JSON object such as {"bkr": "bike rack", "n01440764": "tench"}'
    try:
        names = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON ({error}).", hint=f"write {expected}") from error
    if not isinstance(names, dict):
        raise UserError(f"{path}: expected a JSON object, found a {type(names).__name__}.", hint=f"write {expected}")
    if faults := [f"{key}: {value!r}" for key, value in names.items() if not isinstance(value, str)]:
        count = pluralize(len(faults), "name", "are")
        raise UserError(f"{path}: {count} not text.", details=faults, hint=f"write {expected}")
    return names


def unused_names(dataset: Dataset) -> tuple[list[str], bool]:
    """Entries of classnames.json that name no class, and whether some class has no entry.

    If some class has none, the unused entries are probably misspelled.
    """
    if dataset.root is None:
        return [], False
    known = [to_printable(label) for label in read_names_by_label(dataset.root / CLASS_NAMES_FILE)]
    missing = [label for label in dataset.labels if label not in known]
    unused = []
    for label in known:
        if label not in dataset.labels:
            close = nearest(label, missing)
            unused.append(f"'{label}'" + (f" (did you mean '{close}'?)" if close else ""))
    return unused, bool(missing)


# Names that mean nothing to CLIP


class OddName(NamedTuple):
    """A class whose name CLIP probably does not understand, and why."""

    label: Any
    name: str
    reason: str


def find_odd_names(dataset: Dataset) -> list[OddName]:
    """The classes whose names CLIP probably does not understand."""
    pairs = zip(dataset.labels, dataset.names, strict=True)
    return [OddName(label, name, reason) for label, name in pairs if (reason := why_odd(name))]


def explain_renaming(label: Any) -> str:
    """How to tell CLIP what a class is, with its label as the example."""
    example = json.dumps({str(label): "bike rack"}, ensure_ascii=False)
    return f"say what it is in English in {CLASS_NAMES_FILE}, e.g. {example}"


def name_warnings(dataset: Dataset) -> list[str]:
    """One warning about names that CLIP probably does not understand, if there are any."""
    odd = find_odd_names(dataset)
    if not odd:
        return []
    examples = ", ".join(f"'{name}' ({reason})" for _, name, reason in odd[:MOST_EXAMPLES])
    count = pluralize(len(odd), "class name", "are", of=len(dataset.names))
    return [f"{count} not words CLIP knows: {examples}; {explain_renaming(odd[0].label)}"]


def why_odd(name: str) -> str:
    """Why CLIP probably does not understand a class name; empty if it should.

    >>> why_odd("n01440764"), why_odd("bkr"), why_odd("sea lake"), why_odd("737-800")
    ('a code', 'not a word', '', '')
    """
    words = re.findall(r"[^\W\d_]+", name)
    letters = "".join(words)
    if not letters:
        # Aircraft are called 737-800; a bare number is most likely a label.
        return "" if re.fullmatch(r"\d+-\d+", name) else "a number"
    if not letters.isascii() and not any(word.isascii() and len(word) > 2 for word in words):
        return "" if _is_latin(letters) else "not in Latin letters; CLIP reads English"
    if re.fullmatch(r"(class|label|category|cat|folder|group|type|c|id)[ -]*\d+", name, re.IGNORECASE):
        return "a number, not a name"
    if re.fullmatch(r"[a-z]{1,3}[ -]?\d{4,}\w*", name, re.IGNORECASE):
        return "a code"
    if len(letters) == 1 and not re.search(r"\d{3}", name):
        return "one letter"
    if len(words) == 1 and letters.islower() and not re.search(r"[aeiouyåäöüéè]", letters):
        return "not a word"
    return ""


def _is_latin(letters: str) -> bool:
    return all(ord(letter) < 0x250 for letter in letters)


# Matching


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
    matches: list[int | None] = [None] * len(labels)
    rounds: tuple[tuple[Sequence[Any], Sequence[Any]], ...] = (
        (labels, known_labels),
        _apply_to_both(str, labels, known_labels),
        _apply_to_both(lambda label: normalize_name(str(label)), labels, known_labels),
        (folded, [normalize_name(name) for name in known_names]),
    )
    for wanted, known in rounds:
        taken = set(matches)
        free = {value: y for value, y in _index_of_unique(known).items() if y not in taken}
        matches = [free.get(value) if y is None else y for value, y in zip(wanted, matches, strict=True)]
    return tuple(matches)


def find_key_positions(keys: Sequence[str], known: Sequence[str]) -> tuple[int | None, ...]:
    """For each key its index among the known ones, or None.

    >>> find_key_positions(("n2", "n9"), ("n1", "n2"))
    (1, None)
    """
    index = _index_of_unique(known)
    return tuple(index.get(key) for key in keys)


def _apply_to_both(
    function: Callable[[Any], str], wanted: Sequence[Any], known: Sequence[Any]
) -> tuple[Sequence[str], Sequence[str]]:
    return [function(label) for label in wanted], [function(label) for label in known]


def _index_of_unique(known: Sequence[Any]) -> dict[Any, int]:
    """Index of every value that occurs once."""
    count = Counter(known)
    return {value: y for y, value in enumerate(known) if count[value] == 1}


def wordnet_ids(
    labels: Sequence[Any], keys: Sequence[str] = (), classes: Sequence[tuple[str, str]] = ()
) -> tuple[str, ...]:
    """The WordNet id of each class; empty unless all of them are known.

    They are the keys, or else the labels themselves, or else the keys of the public dataset's classes with these
    labels. By them versions of ImageNet are matched: two of its classes may share a name.

    labels, keys: of a dataset or a model. classes: key and name of each class of the public dataset that it is, or was
    fitted on (`CatalogEntry.class_list`).

    >>> wordnet_ids(["n01440764", "n01443537"])
    ('n01440764', 'n01443537')
    >>> wordnet_ids(["sunglasses (n04356056)", "tench"], classes=read_class_list("imagenet"))
    ('n04356056', 'n01440764')
    >>> wordnet_ids(["cat", "dog"])
    ()
    """
    ids = tuple(keys)
    if not ids:
        known = [key for key, _ in classes]
        by_label = dict(zip(distinct_labels([name for _, name in classes], known), known, strict=True))
        ids = tuple(by_label.get(str(label), str(label)) for label in labels)
    return ids if all(re.fullmatch(r"n\d{8}", key) for key in ids) else ()
