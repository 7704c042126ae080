from __future__ import annotations

import doctest
import pickle
from types import ModuleType

import pytest

from dca.core import errors, options
from dca.core.errors import MOST_DETAILS, UserError, counted, unknown_name


def test_an_error_reads_as_problem_places_and_way_out():
    error = UserError("2 files cannot be read", details=["a.jpg: empty", "b.jpg: cut"], hint="remove them")
    assert str(error) == "2 files cannot be read\n  a.jpg: empty\n  b.jpg: cut\n  fix: remove them"
    assert str(UserError("no")) == "no"


def test_a_long_list_is_cut_and_counted():
    lines = str(UserError("many", details=[f"file {n}" for n in range(MOST_DETAILS + 1500)])).splitlines()
    assert len(lines) == MOST_DETAILS + 2
    assert lines[-1] == "  ... and 1,500 more"


def test_an_error_survives_the_way_between_processes():
    error = pickle.loads(pickle.dumps(UserError("a", details=["b"], hint="c")))
    assert (error.problem, error.details, error.hint) == ("a", ("b",), "c")


def test_the_nearest_name_is_suggested_and_a_far_one_is_not():
    assert "Did you mean 'coop'?" in str(unknown_name("method", "colop", ["coop", "dca"]))
    far = str(unknown_name("method", "zzz", ["coop", "dca"]))
    assert "Did you mean" not in far
    assert "one of: coop, dca" in far


def test_numbers_nouns_and_verbs_agree():
    assert counted(0, "image") == "0 images"
    assert counted(1, "image", "are") == "1 image is"
    assert counted(1200, "image", "are") == "1,200 images are"
    assert counted(1, "class", "have", of=3) == "1 of 3 classes has"
    assert counted(2, "class", "have", of=3) == "2 of 3 classes have"
    assert counted(1, "row", of=1) == "1 of 1 row"
    assert counted(1, "image", "lie") == "1 image lies"


def test_a_name_that_shares_a_few_letters_is_not_suggested():
    assert "Did you mean" not in str(unknown_name("dataset", "nofolder", ["oxford_flowers", "dtd"]))


@pytest.mark.parametrize("module", [errors, options])
def test_examples_of_the_ground_are_true(module: ModuleType):
    assert doctest.testmod(module).failed == 0
