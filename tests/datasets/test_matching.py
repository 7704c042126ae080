from __future__ import annotations

from dca.datasets.classes import match_keys, match_labels


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
    assert match_keys(("n2", "N1", "n1"), ("n1", "n2")) == (1, None, 0)
