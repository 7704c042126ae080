from __future__ import annotations

import doctest
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import ModuleType

import pytest

from dca.core import errors, hints, options, seeds, sqlite
from dca.core.errors import MOST_DETAILS, UserError, unknown_name
from dca.core.hints import set_shots


def test_an_error_reads_as_problem_places_and_way_out():
    error = UserError("2 files cannot be read", details=["a.jpg: empty", "b.jpg: cut"], hint="remove them")
    assert str(error) == "2 files cannot be read\n  a.jpg: empty\n  b.jpg: cut\n  fix: remove them"
    assert str(UserError("no")) == "no"


def test_a_long_list_is_cut_and_counted():
    lines = str(UserError("many", details=[f"file {n}" for n in range(MOST_DETAILS + 1500)])).splitlines()
    assert len(lines) == MOST_DETAILS + 2
    assert lines[-1] == "  ... and 1,500 more"


def test_an_error_survives_the_way_between_processes():
    sent = UserError("a", details=["b"], hint=["c", set_shots(2)])
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool, pytest.raises(UserError) as caught:
        pool.submit(fail, sent).result()
    for error in (pickle.loads(pickle.dumps(sent)), caught.value):
        assert (error.problem, error.details, error.hint_parts) == ("a", ("b",), ("c", set_shots(2)))
        assert error.render("cli") == "a\n  b\n  fix: c, or use --shots 2"


def fail(error: UserError) -> None:
    raise error


def test_the_nearest_name_is_suggested_and_a_far_one_is_not():
    assert "Did you mean 'coop'?" in str(unknown_name("method", "colop", ["coop", "dca"]))
    far = str(unknown_name("method", "zzz", ["coop", "dca"]))
    assert "Did you mean" not in far
    assert "one of: coop, dca" in far


def test_a_name_that_shares_a_few_letters_is_not_suggested():
    assert "Did you mean" not in str(unknown_name("dataset", "nofolder", ["oxford_flowers", "dtd"]))


@pytest.mark.parametrize("module", [hints, errors, options, seeds, sqlite])
def test_examples_in_docstrings_are_true(module: ModuleType):
    assert doctest.testmod(module).failed == 0
