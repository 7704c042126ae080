from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dca import options
from dca.errors import UserError
from dca.options import opt


@dataclass(frozen=True, kw_only=True)
class Some:
    """Options of every kind."""

    count: int | None = opt(None, "how many", low=1)
    rate: float = opt(0.5, "how fast", low=0, high=1, source="paper")
    exact: bool = opt(True, "whether")
    way: str = opt("left", "where to", choices=("left", "right"))
    words: tuple[str, ...] = opt((), "some words")
    sizes: tuple[int, ...] = opt((), "some sizes", low=0)

    def __post_init__(self) -> None:
        options.check(self)


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("count=3", {"count": 3}),
        (" count = 3 ", {"count": 3}),
        ("count=auto", {"count": None}),
        ("count=None", {"count": None}),
        ("rate=1e-3", {"rate": 0.001}),
        ("exact=No", {"exact": False}),
        ("exact=1", {"exact": True}),
        ("way=right", {"way": "right"}),
        ("words=a photo, a drawing", {"words": ("a photo", "a drawing")}),
        ("words=", {"words": ()}),
        ('words=["a {}, a pet.", "b"]', {"words": ("a {}, a pet.", "b")}),
        ("sizes=[1, 2]", {"sizes": (1, 2)}),
        ("sizes=1,2", {"sizes": (1, 2)}),
    ],
)
def test_text_becomes_a_value_of_the_annotated_type(pair: str, expected: dict[str, Any]):
    assert options.parse(Some, [pair]) == Some(**expected)


def test_hyphens_in_names_are_underscores():
    from dca.methods.base import get_method

    chosen = options.parse(get_method("zero-shot").Options, ["batch-size=4"])
    assert chosen.batch_size == 4


def test_all_problems_of_a_command_line_are_in_one_error():
    with pytest.raises(UserError) as caught:
        options.parse(Some, ["cuont=3", "rate=fast", "exact", "exact=perhaps", "sizes=1,x"])
    details = "\n".join(caught.value.details)
    assert len(caught.value.details) == 5
    for part in ("Did you mean 'count'?", "rate=fast: a number", "not key=value", "true or false", "sizes=1,x"):
        assert part in details


def test_all_values_out_of_range_are_in_one_error():
    with pytest.raises(UserError) as caught:
        Some(count=0, rate=2.0, way="up", sizes=(1, -1))
    assert caught.value.details == (
        "count=0: at least 1", "rate=2.0: at most 1", "way=up: one of left, right", "sizes=-1: at least 0"
    )  # fmt: skip


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_refused(value: float):
    with pytest.raises(UserError, match="out of range") as caught:
        Some(rate=value)
    assert "a finite number expected" in caught.value.details[0]


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("count", "3", "count='3': int | None expected"),
        ("count", True, "count=True"),
        ("count", 3.0, "count=3.0"),
        ("rate", "fast", "rate='fast': float expected"),
        ("exact", 1, "exact=1: bool expected"),
        ("words", "abc", "words='abc'"),
        ("words", [["a"]], "words=[['a']]"),
        ("sizes", [1, None], "sizes=[1, None]"),
    ],
)
def test_values_of_the_wrong_type_are_refused(name: str, value: Any, part: str):
    with pytest.raises(UserError) as caught:
        options.from_dict(Some, {name: value})
    assert part in caught.value.details[0]


@given(
    st.builds(
        Some,
        count=st.none() | st.integers(1, 100),
        rate=st.floats(0, 1),
        exact=st.booleans(),
        way=st.sampled_from(["left", "right"]),
        words=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    )
)
def test_options_survive_json(chosen: Some):
    import json

    assert options.from_dict(Some, json.loads(json.dumps(dataclasses.asdict(chosen)))) == chosen


def test_every_option_of_every_method_has_help_and_an_origin():
    from dca.methods.base import all_methods

    for method in all_methods().values():
        described = options.describe(method.Options)
        assert {row["name"] for row in described} == {f.name for f in dataclasses.fields(method.Options)}
        assert all(row["help"] and row["source"] for row in described)
