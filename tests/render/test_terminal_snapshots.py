"""The terminal output of three samples, as a reader sees it at 80 and at 120 columns.

After a change that is meant, write the snapshots again with NSYSX_UPDATE_SNAPSHOTS=1 and read the difference.
"""

from __future__ import annotations

import io
import lzma
import os
from pathlib import Path

import pytest
from rich.console import Console

from nsysx.pipeline import summarize
from nsysx.render import terminal

SAMPLES = Path(__file__).resolve().parents[2] / "sample_reports"
SNAPSHOTS = Path(__file__).resolve().parent / "snapshots"


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ["masked_lines", "masked_slow_loader", "event_linear"])
def test_terminal(name: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = Path(f"{name}.sqlite")
    report.write_bytes(lzma.decompress((SAMPLES / f"{name}.sqlite.xz").read_bytes()))
    Path(f"{name}.run.json").write_bytes((SAMPLES / f"{name}.run.json").read_bytes())
    out = io.StringIO()
    terminal.render(summarize([report]), Console(file=out, width=width, force_terminal=False, legacy_windows=False))
    text = out.getvalue()
    assert max(len(line) for line in text.splitlines()) <= width
    assert not any(line != line.rstrip() for line in text.splitlines())
    expected = SNAPSHOTS / f"{name}.{width}.txt"
    if os.environ.get("NSYSX_UPDATE_SNAPSHOTS"):
        expected.parent.mkdir(exist_ok=True)
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text(encoding="utf-8")
