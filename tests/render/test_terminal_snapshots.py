"""The terminal output of three samples, as a reader sees it at 80 and at 120 columns.

After a change that is meant, write the snapshots again with NSYSX_UPDATE_SNAPSHOTS=1 and read the difference.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from nsysx.render import terminal
from tests.samples import Samples

SNAPSHOTS = Path(__file__).resolve().parent / "snapshots"


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ["masked_lines", "masked_slow_loader", "event_linear"])
def test_terminal(name: str, width: int, recorded: Samples) -> None:
    out = io.StringIO()
    terminal.render(recorded.summary(name), Console(file=out, width=width, force_terminal=False, legacy_windows=False))
    text = out.getvalue()
    assert max(len(line) for line in text.splitlines()) <= width
    assert not any(line != line.rstrip() for line in text.splitlines())
    expected = SNAPSHOTS / f"{name}.{width}.txt"
    if os.environ.get("NSYSX_UPDATE_SNAPSHOTS"):
        expected.parent.mkdir(exist_ok=True)
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("key", ["waits", "copy_sites"])
def test_a_place_in_code_keeps_its_file_and_line_at_80_columns(key: str, recorded: Samples) -> None:
    """That is the width of a pipe, too: a call site without its line is none."""
    summary, out = recorded.summary("masked_lines"), io.StringIO()
    terminal.render(summary, Console(file=out, width=80), sections=[key])
    places = [f"{row['file'].rpartition('/')[2]}:{row['line']}" for row in summary.rows(key) if row["line"]]
    assert places
    assert set(places) <= set(out.getvalue().split())
