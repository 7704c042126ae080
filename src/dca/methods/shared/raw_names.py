"""Class names with the underscores that public split files have; everything else here reads them as words."""

from __future__ import annotations

# Public datasets whose names have underscores.
UNDERSCORED = {"caltech101", "food101", "oxford_pets", "sun397", "ucf101"}
# In SUN397 a space stands only behind these; longer ones first.
PLACES = (
    *("indoor_procenium", "barrel_storage", "bottle_storage", "establishment", "indoor_seats", "broadleaf"),
    *("coral_reef", "cultivated", "needleleaf", "south_asia", "vegetation", "east_asia", "frontseat", "backseat"),
    *("baseball", "exterior", "football", "interior", "platform", "natural", "outdoor", "vehicle", "indoor", "office"),
    *("plunge", "public", "block", "urban", "water", "door", "home", "sand", "shop", "wild", "fan"),
)
# Names that begin with such a word and have an underscore behind it.
COMPOUNDS = {"baseball field", "home office", "office building", "water tower"}


def raw_name(name: str, dataset: str) -> str:
    """A class name as the split file of a public dataset has it, from its words; other names as they are.

    >>> raw_name("outdoor apartment building", "sun397"), raw_name("apple pie", "food101")
    ('outdoor apartment_building', 'apple_pie')
    """
    if dataset not in UNDERSCORED:
        return name
    raw = name.replace(" ", "_")
    if dataset == "sun397" and name not in COMPOUNDS:
        for place in PLACES:
            if raw.startswith(f"{place}_"):
                return f"{place} {raw[len(place) + 1 :]}"
    return raw
