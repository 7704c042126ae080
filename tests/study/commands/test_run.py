"""dca study run, and what it leaves to dca fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import pytest

from dca.cli import group
from dca.study.commands import COMMANDS


def flags(*words: str) -> set[str]:
    """All flags of a command."""
    context, command = click.Context(group), group
    for word in words:
        found = command.get_command(context, word)  # type: ignore[attr-defined]
        assert found is not None
        command = found
    return {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}


def test_a_fit_has_no_flag_of_the_study() -> None:
    study = {"--protocol", "--target", "--rules", "--measured-on", "--draw", "--track"}
    assert not flags("fit") & study
    assert flags("study", "run") == (flags("fit") | study) - {"--open", "--other"}
    assert "--classes-per-step" not in flags("fit")


@pytest.mark.parametrize("words", [(), ("fit",), ("study",), ("study", "run")])
def test_help_is_read_in_a_minute(dca: Callable[..., Any], words: tuple[str, ...]) -> None:
    """About 250 words."""
    text = dca(*words, "--help").out
    assert len(text.splitlines()) <= 95
    assert "study" in text


def test_the_group_lists_its_commands(dca: Callable[..., Any]) -> None:
    text = dca("study", "--help").out
    for name in COMMANDS:
        assert f"\n  {name} " in text


def test_a_flag_of_the_study_is_pointed_to(dca: Callable[..., Any]) -> None:
    said = dca("fit", "photos/", "--protocol", "base-to-new")
    assert said.code == 2
    assert "dca study run photos/ --protocol base-to-new" in said.err
    assert "dca study sweep my.toml" in dca("sweep", "my.toml").err
