from __future__ import annotations

import doctest
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dca.core import text
from dca.core.text import format_bytes, format_seconds, normalize_name, pluralize


def test_numbers_nouns_and_verbs_agree():
    assert pluralize(0, "image") == "0 images"
    assert pluralize(1, "image", "are") == "1 image is"
    assert pluralize(1200, "image", "are") == "1,200 images are"
    assert pluralize(1, "class", "have", of=3) == "1 of 3 classes has"
    assert pluralize(2, "class", "have", of=3) == "2 of 3 classes have"
    assert pluralize(1, "row", of=1) == "1 of 1 row"
    assert pluralize(1, "image", "lie") == "1 image lies"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (89.4, "89 s"),
        (89.6, "1 min 30 s"),
        (119.4, "1 min 59 s"),
        (119.7, "2 min 0 s"),
        (3600, "60 min 0 s"),
    ],
)
def test_durations_never_have_sixty_seconds(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (999.6, "1.0 kB"),
        (999_940, "999.9 kB"),
        (999_960, "1.0 MB"),
        (999_960_000, "1.0 GB"),
        (5e12, "5000.0 GB"),
    ],
)
def test_sizes_change_the_unit_before_they_read_a_thousand(count, text):
    assert format_bytes(count) == text


@given(st.floats(0, 1e6))
def test_no_duration_reads_sixty_seconds(seconds):
    assert " 60 s" not in f" {format_seconds(seconds)}" or format_seconds(seconds) == "60 s"


@pytest.mark.parametrize(
    "spelling", ["Sea Lake", "sea_lake", "SEA-LAKE", " sea  lake ", "sea/lake", "sea. lake", "ｓｅａ lake", "sea,lake"]
)
def test_spellings_of_one_name_fold_to_the_same_text(spelling):
    assert normalize_name(spelling) == "sea lake"


def test_other_signs_keep_names_apart():
    assert len({normalize_name(name) for name in ("c", "c#", "c++", "c sharp")}) == 4
    assert normalize_name("sealake") != normalize_name("sea lake")
    assert normalize_name(unicodedata.normalize("NFD", "Café")) == normalize_name("café")


def test_numbers_keep_sign_and_point():
    assert len({normalize_name(number) for number in ("1", "-1", "+1", "1.5", "1 5", "15")}) == 6
    assert normalize_name(" -1 ") == "-1"


@given(st.text(max_size=40))
def test_folding_twice_changes_nothing(name):
    assert normalize_name(normalize_name(name)) == normalize_name(name)


def test_the_examples_are_true():
    assert doctest.testmod(text).failed == 0
