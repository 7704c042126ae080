from __future__ import annotations

import re
import sys

import pytest

from dca.core import progress


def test_bars_are_silent_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]):
    with progress.progress_bars() as told:
        assert told is progress.silent
        told("training", 1, 2, "note")
    assert capsys.readouterr() == ("", "")


def test_bars_can_be_switched_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress.progress_bars(enabled=False) as told:
        assert told is progress.silent


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    told = progress.log_lines()
    for second in range(75):
        now = 1000.0 + second
        told(*("training", second, 2000, "epoch 1/50") if second < 50 else ("reading", second, 80, ""))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["training 30/2,000  epoch 1/50", "reading 60/80"]


def test_what_the_caller_gives_is_used_as_it_is():
    calls: list[tuple[str, int, int, str]] = []
    with progress.default_progress(lambda *call: calls.append(call)) as told:
        progress.stage_progress(told, "reading")(1, 4)
    assert calls == [("reading", 1, 4, "")]


def test_nothing_is_shown_for_a_few_steps_and_lines_in_a_script():
    with progress.default_progress(None, 1) as told:
        assert told is progress.silent
    with progress.default_progress(None) as told:
        assert told is not progress.silent


def test_a_notebook_gets_one_line_that_is_gone_in_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    class Shell:
        kernel = object()

    class IPython:
        get_ipython = staticmethod(Shell)

    assert not progress.in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", IPython)  # type: ignore[arg-type]
    assert progress.in_notebook()
    monkeypatch.setattr(progress, "REDRAW_EVERY", 1e9)
    with progress.default_progress(None) as told:
        for done in range(1, 101):
            told("features", done, 100, "")
        told("testing", 0, 10, "")
        told("testing", 10, 10, "94 %")
    out, err = capsys.readouterr()
    assert err == ""
    assert out == (f"\rfeatures 1/100\rfeatures 100/100\r{'testing 0/10':<16}\r{'testing 10/10  94 %':<16}\r{'':<19}\r")


@pytest.mark.parametrize("colourless", [True, False])
def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch, colourless: bool):
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if colourless:
        monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with progress.progress_bars() as told:
        told("training", 1, 2, "note")
    colours = re.findall(r"\x1b\[(?:\d+;)*(?:3[0-7]|38;[\d;]+|9[0-7])m", terminal.getvalue())
    assert bool(colours) != colourless
