"""``nsysx run --try``: what was recorded is tried at once, on the first remedies of its report."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nsysx import pipeline
from nsysx.cli.try_ import try_remedies
from nsysx.inject.nsysx_probe import changes
from nsysx.trying import chosen_changes
from tests.light_torch import LIGHT_LINE
from tests.samples import Samples
from tests.trying.test_try import BY_HAND

RUN = [sys.executable, "-m", "nsysx", "run"]


def test_the_first_remedies_of_a_report_are_tried_and_written_beside_it_and_into_its_page(
    tmp_path: Path, recorded: Samples, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report is of a GPU, the program runs on the CPU: a remedy that needs a GPU does not apply, and that is told."""
    monkeypatch.chdir(tmp_path)
    report, page = tmp_path / "mine.sqlite", tmp_path / "mine.html"
    shutil.copy(recorded.report("tiny_stack"), report)
    page.write_text("the page without what was tried")
    whole = BY_HAND.replace(LIGHT_LINE, "").replace("range(60)", "range(2)")  # one of the remedies compiles the network
    (tmp_path / "train.py").write_text(whole.replace("{steps}", "4000"))
    summary = pipeline.summarize([report], timelines=True)
    names = [
        ",".join(c.name for c in made)
        for made in chosen_changes.remedies(summary.answer, summary.findings or (), changes.changes_by_name())
    ]
    assert 1 <= len(names) <= 3
    try_remedies([sys.executable, "train.py"], report, page, summary)
    said = capsys.readouterr()
    assert not said.out, "stdout is the program's"
    written = json.loads((tmp_path / "mine.try.json").read_text())
    assert [t["change"] for t in written["trials"]] == names and written["baseline"]["runs"] >= 1
    for name in names:
        assert f"{name}: " in said.err, said.err
    assert "Verdict: " in said.err and page.read_text().startswith("<!DOCTYPE html>")
    assert (tmp_path / "mine.log.jsonl").read_text().count("\n") == len(names)


@pytest.mark.parametrize("other", ["--no-report", "--per-rank"])
def test_a_run_without_a_report_of_the_whole_job_is_not_tried(tmp_path: Path, other: str) -> None:
    done = subprocess.run(
        [*RUN, "--try", other, "--", "true"], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 2 and f"--try does not go with {other}" in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())


def test_a_recording_is_tried_at_once_and_keeps_the_programs_output_and_exit_code(tmp_path: Path) -> None:
    """With a real nsys. A CPU's report advises what it may: the recording is whole, and what came of trying is told."""
    nsys = os.environ.get("NSYSX_TEST_NSYS", "")
    assert nsys, "set NSYSX_TEST_NSYS to a real nsys; scripts/test does, scripts/install_nsys gets one"
    (tmp_path / "train.py").write_text(BY_HAND.replace("{steps}", "60") + "print('trained')\n")
    words = [*RUN, "--nsys", nsys, "-o", "r", "--try", "--", sys.executable, "train.py"]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout == "trained\n", done.stderr
    assert (tmp_path / "r.html").exists()
    assert "Verdict: " in done.stderr or "no remedy is tried: " in done.stderr, done.stderr
    failing = [*words[:-2], sys.executable, "-c", "raise SystemExit(3)"]
    failing.insert(len(RUN), "--force")
    done = subprocess.run(failing, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 3 and "Verdict: " not in done.stderr, done.stderr
