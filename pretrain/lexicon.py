"""Nouns and their hypernyms (WordNet's, in a gzipped JSONL)."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


def _words(text: str) -> frozenset[str]:
    """The comma-separated entries of a text."""
    return frozenset(" ".join(entry.split()) for entry in text.split(","))


# Too general to be visible in an image: not used as kinds.
ABSTRACT = _words("""
    entity, physical entity, abstraction, abstract entity, object, whole, unit, artifact, living thing, organism,
    being, matter, thing, causal agent, substance, part, relation, instrumentality, instrumentation, psychological
    feature, attribute, group, communication, event, state, act, measure, process, physical process, chordate,
    vertebrate, placental, vascular plant, tracheophyte, domestic animal, carnivore, solid, article, commodity,
    consumer goods, goods, ungulate, even-toed ungulate, aquatic vertebrate, diapsid, conveyance, self-propelled
    vehicle, wheeled vehicle, way, covering, creation, geological formation, natural object, plant part, plant
    structure, plant organ, reproductive structure, foodstuff, nutriment, device, bony fish, teleost fish,
    angiosperm, spermatophyte, seed plant, woody plant, rosid dicot genus, invertebrate, arthropod
""")
PHYSICAL = "n00001930"
# Everyday words for kinds of things; most hypernyms are not everyday words.
EVERYDAY = _words("""
    animal, bird, fish, shark, insect, spider, reptile, snake, lizard, turtle, amphibian, frog, mammal, dog, cat,
    big cat, bear, monkey, ape, horse, rodent, whale, crustacean, mollusk, butterfly, beetle, plant, flower, tree,
    shrub, herb, grass, fern, mushroom, fungus, orchid, lily, fruit, vegetable, food, dish, bread, dessert,
    beverage, drink, vehicle, car, truck, boat, ship, sailing vessel, aircraft, airplane, train, bicycle,
    motorcycle, tool, weapon, gun, clothing, garment, footwear, shoe, hat, headdress, furniture, chair, table, lamp,
    building, house, tower, bridge, container, vessel, bottle, bag, box, cup, machine, computer, musical instrument,
    stringed instrument, wind instrument, percussion instrument, toy, ball, sports equipment, appliance, kitchen
    utensil, utensil, timepiece, clock, jewelry, fabric, rock, stone, mountain, body of water, land, road, person,
    dinosaur, fossil, seafood, cooking utensil, bulbous plant, vine, succulent, cactus, instrument, optical
    instrument
""")


@dataclass(frozen=True)
class Noun:
    """One meaning: its words, its definition, and the ids of its hypernyms."""

    wnid: str
    lemmas: tuple[str, ...]
    gloss: str
    hypernyms: tuple[str, ...]


class Lexicon:
    """Nouns by id and by word."""

    def __init__(self, nouns: dict[str, Noun]) -> None:
        self.nouns = nouns

    @cached_property
    def _by_word(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for noun in self.nouns.values():
            for lemma in noun.lemmas:
                found[lemma.lower()].append(noun.wnid)
        return found

    def find(self, word: str) -> Noun | None:
        """The noun of a word that has only one meaning, else None."""
        ids = self._by_word.get(word.lower(), [])
        return self.nouns[ids[0]] if len(ids) == 1 else None

    def chain(self, wnid: str) -> list[Noun]:
        """The nouns above this one, nearest first, along the first hypernym of each."""
        above: list[Noun] = []
        noun = self.nouns.get(wnid)
        while noun and noun.hypernyms and len(above) < 20:
            noun = self.nouns.get(noun.hypernyms[0])
            if noun:
                above.append(noun)
        return above

    def kinds(self, wnid: str, most: int = 3) -> list[str]:
        """Plain words for what this noun is a kind of: the nearest one, then everyday ones."""
        words = [noun.lemmas[0] for noun in self.chain(wnid)]
        words = [w for w in words if w not in ABSTRACT and w == w.lower()]
        return list(dict.fromkeys(words[:1] + [w for w in words if w in EVERYDAY]))[:most]

    def describe(self, noun: Noun) -> str:
        """Word, kind and definition in one text, for the sentence encoder."""
        kinds = self.kinds(noun.wnid, 1)
        gloss = noun.gloss.split(";")[0]
        return f"{noun.lemmas[0]}, {kinds[0]}: {gloss}" if kinds else f"{noun.lemmas[0]}: {gloss}"

    def visible(self) -> list[Noun]:
        """Nouns for physical things, in file order."""
        below: dict[str, bool] = {PHYSICAL: True}

        def physical(wnid: str) -> bool:
            if wnid not in below:
                below[wnid] = False  # ends the recursion should the file hold a cycle
                noun = self.nouns.get(wnid)
                below[wnid] = any(physical(h) for h in noun.hypernyms) if noun else False
            return below[wnid]

        return [noun for noun in self.nouns.values() if physical(noun.wnid)]


def read_lexicon(path: str) -> Lexicon:
    """Lexicon of a file; an empty one for an empty path."""
    nouns: dict[str, Noun] = {}
    if path:
        with gzip.open(Path(path), "rt", encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                nouns[row["wnid"]] = Noun(row["wnid"], tuple(row["lemmas"]), row["gloss"], tuple(row["hypernyms"]))
    return Lexicon(nouns)
