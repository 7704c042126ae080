"""Public datasets: one file each. A new file here, or an entry point `dca.datasets`, adds one."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from dca.core.errors import UserError, unknown_name
from dca.core.hints import list_datasets
from dca.core.text import normalize_name
from dca.datasets.layouts import CatalogEntry


@cache
def entries() -> dict[str, CatalogEntry]:
    """Every known dataset by name: ours in the paper's order, then those of installed packages."""
    modules = (import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    place = {name: position for position, name in enumerate(_ORDER)}
    ours = sorted((module.ENTRY for module in modules), key=lambda entry: place.get(entry.name, len(place)))
    found = {entry.name: entry for entry in ours}
    for point in entry_points(group="dca.datasets"):
        entry = point.load()
        if not isinstance(entry, CatalogEntry):
            raise UserError(f"entry point dca.datasets '{point.name}' is not an Entry but {type(entry).__name__}.")
        found.setdefault(entry.name, entry)
    return found


def lookup(name: str) -> CatalogEntry | None:
    """The dataset with this name, folder, title or alias; None if there is none. Names are compared folded."""
    wanted = normalize_name(name)
    for entry in entries().values():
        if wanted in map(normalize_name, (entry.name, entry.folder, entry.title, *entry.aliases)):
            return entry
    return None


def title_of(name: str) -> str:
    """How tables call a dataset; a name that is no public dataset stays as it is.

    >>> title_of("oxford_flowers"), title_of("eurosat@noise"), title_of("mine")
    ('Flowers102', 'EuroSAT, noise', 'mine')
    """
    own, _, change = name.partition("@")
    entry = lookup(own)
    return ", ".join([entry.title, *([change] if change else [])]) if entry else name


def get(name: str) -> CatalogEntry:
    """Like `lookup`, but raises UserError with the nearest name if there is none."""
    entry = lookup(name)
    if entry is None:
        raise unknown_name("dataset", name, entries(), hint=list_datasets())
    return entry


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
