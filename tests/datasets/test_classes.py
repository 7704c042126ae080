"""What classes are called, and which class of one dataset is which class of another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dca.datasets.classes import find_key_positions, label_to_name, match_labels, read_class_list, why_odd


def test_lists_have_a_key_and_a_name_of_every_class() -> None:
    found = read_class_list("imagenet")
    assert len(found) == len({key for key, _ in found}) == 1000
    assert found[0] == ("n01440764", "tench")
    assert all(name.strip() == name != "" for _, name in found)


def test_a_dataset_without_a_list_has_none() -> None:
    assert read_class_list("nowhere") == ()


@given(st.text(max_size=30))
def test_words_have_no_underscores_and_single_spaces(key):
    words = label_to_name(key)
    assert "_" not in words
    assert words == " ".join(words.split())


WORDS = "cat|sea lake|737-800|Boeing 737-800|BMW X5|café|2012 Audi TTS|hard-leaved pocket orchid|Yak-42|A320|rhythm"
CODES = "3|0017|n01440764|bkr|class 3|label 7|x|犬|кошка|IMG 0001|C10"


@pytest.mark.parametrize("name", WORDS.split("|"))
def test_words_pass(name):
    assert why_odd(name) == ""


@pytest.mark.parametrize("name", CODES.split("|"))
def test_codes_do_not(name):
    assert why_odd(name)


def test_labels_count_before_names():
    known = (("a", "b"), ("dog", "cat"))
    assert match_labels(("b", "a"), ("dog", "cat"), *known) == (1, 0)
    assert match_labels(("x", "y"), ("Cat", "DOG"), *known) == (1, 0)


def test_an_exact_label_counts_before_a_folded_one():
    assert match_labels(("sea lake", "sea_lake"), ("1", "2"), ("sea_lake", "sea lake"), ("x", "y")) == (1, 0)
    assert match_labels(("Sea-Lake",), ("1",), ("sea_lake", "forest"), ("x", "y")) == (0,)


def test_numbers_match_their_text():
    assert match_labels(("1", "-1"), ("1", "-1"), (-1, 1), ("-1", "1")) == (1, 0)


def test_what_two_known_classes_share_identifies_neither():
    assert match_labels(("x",), ("missile",), ("missile (1)", "missile (2)"), ("missile", "missile")) == (None,)


def test_a_class_is_matched_once():
    assert match_labels(("a", "dog"), ("dog", "hot dog"), ("dog", "cat"), ("dog", "cat")) == (None, 0)


def test_keys_match_exactly():
    assert find_key_positions(("n2", "N1", "n1"), ("n1", "n2")) == (1, None, 0)
