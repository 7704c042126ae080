import numpy as np
import pytest

from pretrain.captions import STYLES, fill_templates, find_meanings, meaning_of_caption, meaning_of_name, noun_meaning
from pretrain.colours import dominant_colour
from pretrain.lexicon import Lexicon, read_lexicon
from pretrain.pack import Record

EMPTY = Lexicon({})


def record(**known):
    return Record(id="source/1", offset=0, length=0, **known)


def test_templates_take_the_article_that_fits():
    assert fill_templates(("a photo of {a}.", "a {}"), "owl") == ("a photo of an owl.", "a owl")


def test_every_style_has_its_own_wordings():
    meaning = meaning_of_name("cat", "photo", 1, "cat")
    assert len(meaning.wordings) == len(STYLES)
    assert all("black and white" in w or "greyscale" in w for w in meaning.wordings[STYLES.index("grey")])
    assert meaning_of_caption("A dog runs.", 1).wordings[0] == ("A dog runs.",)


def test_names_kinds_and_colours_become_meanings(lexicon_file):
    lexicon = read_lexicon(str(lexicon_file))
    meanings = find_meanings(record(names=("daisy", "oxeye"), wnid="n03"), "photo", lexicon, "white")
    said = {w for m in meanings for w in m.wordings[0]}
    assert {"a photo of a daisy.", "oxeye", "a photo of a daisy, a type of flower.", "a white daisy"} <= said
    assert "a photo of a plant." in said
    assert len({m.key for m in meanings}) == 1


def test_equal_names_have_equal_keys_across_sources():
    a, b = (find_meanings(record(names=("dog",)), kind, EMPTY)[0] for kind in ("photo", "drawing"))
    assert a.key == b.key


def test_scenes_tell_their_inventory():
    meanings = find_meanings(record(names=("person", "dog"), auto="a person and two dogs"), "photo", EMPTY)
    texts = {m.text for m in meanings}
    assert texts == {"a person and two dogs", "person", "a person and a dog"}


def test_land_seen_from_above_has_synonyms():
    said = {w for m in find_meanings(record(names=("farmland",)), "aerial", EMPTY) for w in m.wordings[0]}
    assert "a centered satellite photo of annual crop land." in said


def test_image_without_text_has_no_meaning():
    assert find_meanings(record(), "photo", EMPTY) == []


def test_lexicon_knows_what_has_a_body_and_what_is_everyday(lexicon_file):
    lexicon = read_lexicon(str(lexicon_file))
    assert [n.wnid for n in lexicon.visible()] == ["n00001930", "n01", "n02", "n03"]
    assert lexicon.kinds("n03") == ["flower", "plant"]
    assert lexicon.describe(lexicon.nouns["n02"]) == "flower, plant: a plant grown for its blossoms"
    assert "daisy, a kind of flower" in noun_meaning(lexicon.nouns["n03"], lexicon).wordings[0]


def test_ambiguous_words_are_not_looked_up(lexicon_file):
    lexicon = read_lexicon(str(lexicon_file))
    assert lexicon.find("daisy").wnid == "n03"
    assert lexicon.find("unheard of") is None


@pytest.mark.parametrize(
    ("rgb", "name"),
    [((220, 30, 30), "red"), ((250, 220, 40), "yellow"), ((40, 80, 220), "blue"), ((90, 60, 30), "brown"),
     ((250, 250, 250), "white"), ((5, 5, 5), "black"), ((128, 128, 128), ""), ((245, 130, 180), "pink")],
)  # fmt: skip
def test_dominant_colour_has_its_usual_name(rgb, name):
    assert dominant_colour(np.broadcast_to(np.array(rgb, np.uint8)[:, None, None], (3, 16, 16))) == name
