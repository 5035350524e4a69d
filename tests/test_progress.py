"""The progress line: only on a terminal, only for what takes long, and nothing of it stays."""

from __future__ import annotations

import io
import sys
import time

import pytest

from nsysx import progress


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def on_terminal(monkeypatch):
    """Return what puts a terminal in place of stderr; a fixture cannot, because pytest sets its own before each test."""

    def make() -> Terminal:
        monkeypatch.setenv("TERM", "xterm")
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return make


def shows(terminal: Terminal, text: str) -> None:
    """Wait until something is shown."""
    end = time.monotonic() + 120
    while text not in terminal.getvalue():
        assert time.monotonic() < end, terminal.getvalue()
        time.sleep(0.01)


def test_what_is_quick_says_nothing(on_terminal, monkeypatch):
    terminal = on_terminal()
    monkeypatch.setattr(progress, "_PATIENCE_S", 600)
    with progress.Progress() as said:
        said("reading the report")
    said._timer.join(120)
    assert not said._timer.is_alive() and terminal.getvalue() == ""


def test_what_takes_long_shows_its_stage_and_takes_it_away(on_terminal, monkeypatch):
    terminal = on_terminal()
    monkeypatch.setattr(progress, "_PATIENCE_S", 0.05)
    with progress.Progress() as said:
        said("reading [red]x[/]")
        shows(terminal, "reading [red]x[/]")
        said("drawing the page")
        shows(terminal, "drawing the page")
    assert terminal.getvalue().rstrip().endswith(("\x1b[2K", "\x1b[?25h"))


def test_an_error_ends_it_and_goes_on(on_terminal, monkeypatch):
    terminal = on_terminal()
    monkeypatch.setattr(progress, "_PATIENCE_S", 0.01)
    with pytest.raises(KeyboardInterrupt), progress.Progress():
        shows(terminal, "working")
        raise KeyboardInterrupt
    length = len(terminal.getvalue())
    time.sleep(0.2)
    assert len(terminal.getvalue()) == length


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_no_line_where_nobody_looks(monkeypatch, term):
    monkeypatch.setattr(progress, "_PATIENCE_S", 0.01)
    monkeypatch.setenv("TERM", term)
    stream = Terminal() if term == "dumb" else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.Progress():
        time.sleep(0.1)
    assert stream.getvalue() == ""


def test_without_a_stderr_there_is_no_line(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with progress.Progress() as said:
        said("reading the report")
