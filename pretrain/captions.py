"""Texts of an image: its meanings, each with several wordings.

A training step draws one meaning of the image (its name, a synonym, its kind, a caption) and
one wording of that meaning. Images that augmentation made grey or blurry get a wording that
mentions it, so that the text tower learns these words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from pretrain.lexicon import Lexicon, Noun
from pretrain.pack import Record

STYLES = ("plain", "grey", "blurry")
# {} is the bare name, {a} the name with its article. Common prompts write "a photo of a {}" whatever follows.
TEMPLATES = {
    "photo": (
        "a photo of a {}.", "a photo of a {}.", "a photo of a {}.", "a photo of {a}.", "a photo of the {}.", "{}",
        "{a}", "a picture of {a}.", "an image of {a}.", "a close-up photo of {a}.", "a good photo of the {}.",
        "a cropped photo of {a}.", "this is {a}.", "a small photo of the {}.", "a photo of many {}.",
    ),
    "drawing": (
        "an icon of {a}", "a drawing of {a}.", "a cartoon {}", "clip art of {a}", "{}", "{a}", "a symbol for {}",
        "a pictogram of {a}", "a simple drawing of a {}.", "an illustration of {a}", "a picture of {a}.",
    ),
    "art": ("a painting of {a}.", "a drawing of {a}.", "art of {a}", "{a}", "{}", "a picture of {a}."),
    "aerial": (
        "an aerial photo of {}.", "a satellite photo of {}.", "a centered satellite photo of {}.",
        "a satellite image of {}.", "{} from above", "{}", "an aerial view of {}.", "a photo of {} from the air.",
        "remote sensing image of {}.", "a centered satellite photo of the {}.",
    ),
    "product": ("a photo of {a}.", "{}", "{a} on a white background", "a product photo of {a}.", "a photo of a {}."),
}  # fmt: skip
STYLED = {
    "grey": ("a black and white photo of {a}.", "a greyscale photo of {a}.", "{a} in black and white"),
    "blurry": ("a blurry photo of {a}.", "a blurred picture of {a}.", "a low resolution photo of a {}."),
}
KIND_TEMPLATES = ("a photo of a {}, a type of {}.", "{}, a kind of {}", "a photo of {a}, which is a {}.")
COLOUR_TEMPLATES = ("a photo of a {c} {}.", "a {c} {}", "a photo of a {}, mostly {c}.")
# Words for land seen from above that mean nearly the same.
LAND = {
    "farmland": ("annual crop land", "farm fields", "crop land", "agricultural land", "arable land"),
    "farm field": ("annual crop land", "farmland", "crop land", "agricultural land"),
    "agricultural": ("annual crop land", "farmland", "crop land", "rows of crops", "permanent crop land"),
    "meadow": ("pasture land", "grassland", "pasture", "green pasture land"),
    "grassland": ("pasture land", "meadow", "pasture", "herbaceous vegetation land"),
    "bare land": ("bare soil", "barren land", "dry land"),
    "chaparral": ("shrubland", "herbaceous vegetation land", "shrubs", "scattered vegetation"),
    "forest": ("woodland", "trees", "dense forest"),
    "mountain": ("mountains", "hills", "natural land"),
    "river": ("a river", "a winding river", "water"),
    "pond": ("lake", "sea or lake", "water"),
    "beach": ("coast", "sea and beach", "shore"),
    "river or lake": ("river", "lake", "sea or lake", "water"),
    "port": ("harbor", "ships in a harbor"),
    "industrial": ("industrial buildings", "industrial area", "factories", "warehouses"),
    "industrial area": ("industrial buildings", "factories", "warehouses"),
    "commercial": ("commercial buildings", "commercial area", "city centre"),
    "residential area": ("residential buildings", "houses", "a residential neighbourhood"),
    "dense residential": ("residential buildings", "dense housing", "houses"),
    "medium residential": ("residential buildings", "houses", "a residential neighbourhood"),
    "sparse residential": ("residential buildings", "scattered houses", "a house among trees"),
    "viaduct": ("highway", "highway or road", "overpass", "elevated road"),
    "freeway": ("highway", "highway or road", "motorway", "road"),
    "overpass": ("highway", "highway or road", "road crossing"),
    "intersection": ("road", "crossroads", "highway or road"),
    "runway": ("airport runway", "landing strip"),
}


@dataclass(frozen=True)
class Meaning:
    """One fact about an image.

    key: images and texts with equal keys belong together. text: the meaning in plain words,
    for the sentence encoder. wordings: the texts of each style; a style without texts uses the plain ones.
    """

    key: int
    text: str
    wordings: tuple[tuple[str, ...], ...]


def hash_key(*parts: str) -> int:
    """Number of a key, in [0, 2**63)."""
    return int.from_bytes(hashlib.blake2b("/".join(parts).encode(), digest_size=8).digest(), "big") >> 1


def with_article(name: str) -> str:
    """The name after "a" or "an".

    >>> with_article("owl"), with_article("cat")
    ('an owl', 'a cat')
    """
    return ("an " if name[:1].lower() in "aeiou" else "a ") + name


def fill_templates(templates: Sequence[str], name: str, *more: str, colour: str = "") -> tuple[str, ...]:
    """The name in every template."""
    return tuple(t.format(name, *more, a=with_article(name), c=colour) for t in templates)


def meaning_of_name(name: str, kind: str, key: int, text: str, extra: Sequence[str] = ()) -> Meaning:
    """A name as meaning, with the templates of its kind of image."""
    plain = fill_templates(TEMPLATES.get(kind, TEMPLATES["photo"]), name) + tuple(extra)
    styled = tuple(fill_templates(STYLED[s], name) if kind in ("photo", "product") else () for s in STYLES[1:])
    return Meaning(key, text, (plain, *styled))


def meaning_of_caption(caption: str, key: int) -> Meaning:
    """A sentence as meaning, used unchanged."""
    start = caption[:1].lower() + caption[1:]
    grey = (f"a black and white photo of {start}", f"black and white: {start}")
    blurry = (f"a blurry photo of {start}", f"blurry: {start}")
    return Meaning(key, caption, ((caption,), grey, blurry))


def find_meanings(record: Record, kind: str, lexicon: Lexicon, colour: str = "") -> list[Meaning]:
    """The meanings of an image; one that occurs twice is drawn twice as often.

    colour: name of the dominant colour of the image; empty if there is none.
    """
    found = [meaning_of_caption(c, hash_key("image", record.id)) for c in record.captions]
    if record.auto:
        return found * 2 + _scene(record)
    if not record.names:
        return found
    return found + _things(record, kind, lexicon, colour)


def _scene(record: Record) -> list[Meaning]:
    """Meanings of an image of several things: all of them, the largest, the two largest."""
    key = hash_key("scene", record.auto)
    wordings = (f"a photo of {record.auto}.", record.auto, f"{record.auto} in a photo")
    whole = Meaning(key, record.auto, (wordings, (), ()))
    largest = record.names[0]
    meanings = [whole] * 3 + [meaning_of_name(largest, "photo", hash_key("name", largest), largest)]
    if len(record.names) > 1:
        pair = f"{with_article(largest)} and {with_article(record.names[1])}"
        meanings.append(Meaning(hash_key("scene", pair), pair, ((f"a photo of {pair}.", pair), (), ())))
    return meanings


def _things(record: Record, kind: str, lexicon: Lexicon, colour: str) -> list[Meaning]:
    """Meanings of an image of one thing: name, synonyms, kinds and colour."""
    first = record.names[0]
    key = hash_key("name", first.lower())
    noun = lexicon.nouns.get(record.wnid) or (lexicon.find(first) if kind != "aerial" else None)
    text = lexicon.describe(noun) if noun else first
    kinds = lexicon.kinds(noun.wnid) if noun else []
    extra = [w for k in kinds for w in fill_templates(KIND_TEMPLATES, first, k)] if kind == "photo" else []
    meanings = [meaning_of_name(first, kind, key, text, extra)] * 4
    for name in (*LAND.get(first, ()), *record.names[1:4]):
        meanings.append(meaning_of_name(name, kind, key, text if record.wnid else name))
    meanings += [meaning_of_name(k, kind, key, k) for k in kinds[:2]]
    if colour and kind in ("photo", "product"):
        plain = fill_templates(COLOUR_TEMPLATES, first, colour=colour)
        meanings.append(Meaning(key, f"{colour} {first}", (plain, (), ())))
    return meanings


def noun_meaning(noun: Noun, lexicon: Lexicon) -> Meaning:
    """A noun of the lexicon, without any image: its words, kinds and definition."""
    kinds = lexicon.kinds(noun.wnid, 2)
    words = noun.lemmas[:3]
    plain = [w for lemma in words for w in (f"a photo of a {lemma}.", lemma)]
    plain += [w for k in kinds for w in fill_templates(KIND_TEMPLATES[:2], words[0], k)]
    plain.append(f"{words[0]}: {noun.gloss.split(';')[0]}")
    return Meaning(hash_key("noun", noun.wnid), lexicon.describe(noun), (tuple(plain), (), ()))
