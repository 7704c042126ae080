"""WordNet ids of classes, by which versions of ImageNet are matched: two of its classes may share a name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dca.data.sources import catalog
from dca.data.sources.layouts import distinct_labels


def wordnet_ids(labels: Sequence[Any], public: str = "", keys: Sequence[str] = ()) -> tuple[str, ...]:
    """The WordNet id of each class; empty unless all of them are known.

    They are the keys, or else the labels themselves, or else those of the catalog's classes with these labels.

    labels: of a dataset or a model. public: name of the public dataset that it is, or was fitted on.

    >>> wordnet_ids(["n01440764", "n01443537"])
    ('n01440764', 'n01443537')
    >>> wordnet_ids(["sunglasses (n04356056)", "tench"], "imagenet"), wordnet_ids(["cat", "dog"])
    (('n04356056', 'n01440764'), ())
    """
    found = tuple(keys)
    if not found:
        entry = catalog.entries().get(public)
        pairs = entry.class_list() if entry is not None else ()
        ids = [key for key, _ in pairs]
        of_label = dict(zip(distinct_labels([name for _, name in pairs], ids), ids, strict=True))
        found = tuple(of_label.get(str(label), str(label)) for label in labels)
    return found if all(re.fullmatch(r"n\d{8}", key) for key in found) else ()
