from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dca.backbones.clip import CLIP
from dca.core import options
from dca.core.errors import UserError
from dca.core.options import option


@dataclass(frozen=True, kw_only=True)
class Some:
    """Options of every kind."""

    count: int | None = option(None, "how many", low=1)
    rate: float = option(0.5, "how fast", low=0, high=1, source="paper")
    exact: bool = option(True, "whether")
    way: Literal["left", "right"] = option("left", "where to")
    words: tuple[str, ...] = option((), "some words")
    sizes: tuple[int, ...] = option((), "some sizes", low=0)

    def __post_init__(self) -> None:
        options.check_limits(self)


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
        ("words=none", {"words": ()}),
        ('words=["none"]', {"words": ("none",)}),
        ('words=["a {}, a pet.", "b"]', {"words": ("a {}, a pet.", "b")}),
        ("sizes=[1, 2]", {"sizes": (1, 2)}),
        ("sizes=1,2", {"sizes": (1, 2)}),
    ],
)
def test_text_becomes_a_value_of_the_annotated_type(pair: str, expected: dict[str, Any]):
    assert options.parse(Some, [pair]) == Some(**expected)


def test_hyphens_in_names_are_underscores():
    from dca.methods.registry import get_method

    chosen = options.parse(get_method("zero-shot").Options, ["batch-size=4"])
    assert chosen.batch_size == 4


def test_all_problems_of_a_command_line_are_in_one_error():
    with pytest.raises(UserError) as caught:
        options.parse(Some, ["cuont=3", "rate=fast", "exact", "exact=perhaps", "sizes=1,x"])
    details = "\n".join(caught.value.details)
    assert len(caught.value.details) == 5
    for part in ("Did you mean 'count'?", "rate=fast: a number", "not key=value", "true or false", "sizes=1,x"):
        assert part in details


def test_an_error_says_where_to_look_the_options_up_and_keeps_a_better_way_out():
    for line in (["rate=fast"], ["rate=2"], ["cuont=3"]):
        with pytest.raises(UserError) as caught:
            options.parse(Some, line, hint="see the list")
        assert caught.value.hint == "see the list"
    with pytest.raises(UserError) as caught:
        options.from_dict(Some, {"cuont": 3})
    assert caught.value.hint.startswith("known: count, rate"), "where there is no list to look at"


@pytest.mark.parametrize(
    ("name", "default", "allowed"),
    [
        ("count", "auto", "at least 1"),
        ("rate", "0.5", "0 to 1"),
        ("way", "left", "left|right"),
        ("words", "none", ""),
        ("hint", "none", ""),
        ("ending", "(empty)", ""),
        ("two", '["a", "b"]', ""),
    ],
)
def test_a_default_and_its_limits_can_be_seen(name: str, default: str, allowed: str):
    @dataclass(frozen=True, kw_only=True)
    class More(Some):
        hint: str | None = option(None, "a word to start from", empty="none")
        ending: str = option("", "what stands behind it")
        two: tuple[str, ...] = option(("a", "b"), "some more words")

    info = next(info for info in options.describe_options(More) if info.name == name)
    assert (info.format_default(), info.format_limits()) == (default, allowed)


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
    from dca.methods.registry import all_methods

    for method in all_methods().values():
        described = options.describe_options(method.Options)
        assert {option.name for option in described} == {f.name for f in dataclasses.fields(method.Options)}
        assert all(option.help and option.source for option in described)


def test_none_and_auto_mean_what_the_help_of_every_option_says(clip: CLIP):
    from dca.methods.base import Problem
    from dca.methods.registry import all_methods

    problem = Problem(names=("cat", "dog"), shots=1)
    for method in all_methods().values():
        for info in options.describe_options(method.Options):
            for word in ("none", "auto"):
                if f"{word}:" in info.help and info.name not in method.unused_options():
                    chosen = method.parse_options([f"{info.name}={word}"])
                    assert getattr(chosen, info.name) in (None, ()), f"{method.name}: {info.name}={word}"
                    method.build(clip, problem, chosen)


def test_options_of_the_loop_are_refused_where_no_loop_trains():
    from dca.methods.registry import get_method

    gda, coop = get_method("gda"), get_method("coop")
    with pytest.raises(UserError, match="gda is not trained in steps") as caught:
        gda.parse_options(["epochs=50", "views=2", "momentum=0.5"])
    assert caught.value.details == ("epochs=50", "momentum=0.5")
    assert "dca methods show gda" in caught.value.render("cli")
    with pytest.raises(UserError, match="epochs=50"):
        gda.parse_options({"epochs": 50})
    assert gda.parse_options({"epochs": None, "momentum": 0.9, "views": 2}).views == 2, "as a saved model names them"
    assert coop.parse_options(["epochs=50"]).epochs == 50
    assert coop.unused_options() == []
    assert {"epochs", "batch_size", "optimizer", "augment"} <= set(get_method("linear_probe").unused_options())


def test_an_error_of_a_method_names_it_in_the_way_out():
    from dca.methods.registry import get_method

    for line in ("epochs=abc", "epochs=-1", "epocs=3"):
        with pytest.raises(UserError) as caught:
            get_method("coop").parse_options([line])
        assert "fix: see the options and their limits with `dca methods show coop`" in caught.value.render("cli")


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Options whose annotation lists the texts allowed."""

    way: Literal["left", "right"] = option("left", "where to")
    side: Literal["in", "out"] | None = option(None, "which side")

    def __post_init__(self) -> None:
        options.check_limits(self)


def test_the_annotation_lists_the_texts_allowed():
    assert [option.choices for option in options.describe_options(Chosen)] == [("left", "right"), ("in", "out")]
    assert options.parse(Chosen, ["way=right", "side=none"]) == Chosen(way="right", side=None)
    assert options.from_dict(Chosen, {"side": "out"}).side == "out"


@pytest.mark.parametrize(
    ("values", "detail"),
    [
        ({"way": "up"}, "way=up: one of left, right"),
        ({"side": "up"}, "side=up: one of in, out"),
        ({"way": 3}, "way=3: one of left, right expected"),
    ],
)
def test_other_texts_are_refused(values: dict[str, Any], detail: str):
    with pytest.raises(UserError) as caught:
        options.from_dict(Chosen, values)
    assert detail in caught.value.details[0]
