"""Public datasets: one file each. A new file here, or an entry point `dca.datasets`, adds one."""

from __future__ import annotations

import pkgutil
import re
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from dca.core.errors import UserError, unknown_name
from dca.data.sources.entry import Entry


@cache
def entries() -> dict[str, Entry]:
    """Every known dataset by name: ours in the paper's order, then those of installed packages."""
    modules = (import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    place = {name: position for position, name in enumerate(_ORDER)}
    ours = sorted((module.ENTRY for module in modules), key=lambda entry: place.get(entry.name, len(place)))
    found = {entry.name: entry for entry in ours}
    for point in entry_points(group="dca.datasets"):
        entry = point.load()
        if not isinstance(entry, Entry):
            raise UserError(f"entry point dca.datasets '{point.name}' is not an Entry but {type(entry).__name__}.")
        found.setdefault(entry.name, entry)
    return found


def lookup(name: str) -> Entry | None:
    """The dataset of that name or alias, however it is spelled; None if there is none."""
    wanted = _folded(name)
    for entry in entries().values():
        if wanted in map(_folded, (entry.name, entry.folder, entry.title, *entry.aliases)):
            return entry
    return None


def get(name: str) -> Entry:
    """The dataset of that name or alias. Raises UserError with the nearest name."""
    entry = lookup(name)
    if entry is None:
        raise unknown_name("dataset", name, entries(), hint="`dca datasets` lists them")
    return entry


def _folded(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())


# The paper's order; a dataset not named here follows.
_ORDER = (
    "dtd",
    "fgvc_aircraft",
    "food101",
    "imagenet",
    "stanford_cars",
    "caltech101",
    "oxford_flowers",
    "oxford_pets",
    "sun397",
    "ucf101",
    "eurosat",
    "imagenetv2",
    "imagenet_sketch",
    "imagenet_a",
    "imagenet_r",
)
