"""Colour on a terminal, and none with NO_COLOR."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pty = pytest.importorskip("pty")
# Escape sequences that set a colour; those that move the cursor or make text bold are no colours.
COLOR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;\dm]")
CODE = """
from dca.cli.common import showing
with showing(quiet=False) as progress:
    for done in range(3):
        progress("features", done, 2, "note")
"""


def terminal(code: str, **variables: str) -> bytes:
    """What a program writes to stderr on a terminal."""
    ours, theirs = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    env |= {"TERM": "xterm-256color", "COLUMNS": "100", **variables}
    subprocess.run([sys.executable, "-c", code], env=env, stderr=theirs, check=True, timeout=300)
    os.close(theirs)
    found = b""
    try:
        while part := os.read(ours, 65536):
            found += part
    except OSError:  # Linux: the other end is closed
        pass
    os.close(ours)
    return found


def test_bars_are_coloured_unless_no_color_is_set() -> None:
    assert COLOR.search(terminal(CODE))
    plain = terminal(CODE, NO_COLOR="1")
    assert b"features" in plain
    assert not COLOR.search(plain)


@pytest.mark.parametrize("arguments", ['"--help"', '"fit", "nowhere/"'])
def test_texts_and_errors_have_no_colour(arguments: str) -> None:
    found = terminal(f"import sys; sys.stdout = sys.stderr; from dca.cli import main; main([{arguments}])")
    assert found
    assert not COLOR.search(found)
