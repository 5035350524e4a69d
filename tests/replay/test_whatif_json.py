"""``whatif --json`` gives the figures of its text, from the same replay, and of the library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import nsysx
from nsysx import units
from tests.test_cli import nsysx as command

SAMPLES = Path(__file__).resolve().parents[2] / "sample_reports"


@pytest.mark.parametrize("name", ["tiny_stack", "ddp"])
def test_its_figures_are_those_of_the_text(name: str) -> None:
    report = SAMPLES / f"{name}.sqlite.xz"
    text = command("whatif", report).stdout
    told = json.loads(command("whatif", report, "--json", "-").stdout)
    assert told["schema"] == "nsysx.whatif/1" and told["trusted"]
    assert f"recorded   {units.duration(told['recorded_ns'])} a step" in text
    assert f"real       {units.duration(told['step_ns'])} without profiler" in text
    of_job = told["job"]["changes"] if told["job"] else []
    rows = {row["option"]: row for row in (*told["changes"], *of_job)}
    shown = {line.split("  step ")[0].strip(): line for line in text.splitlines() if line.startswith("--")}
    assert set(rows) == set(shown) and rows
    for option, row in rows.items():
        assert f"step {units.duration(row['step_ns'])}, saves {units.duration(row['saving_ns'])} " in shown[option]
    if told["advised"] is not None:
        assert f"step {units.duration(told['advised']['step_ns'])} (" in text
        assert told["advised"]["finding"] in text


@pytest.mark.traced
def test_a_change_is_that_of_the_library(tmp_path: Path) -> None:
    report = SAMPLES / "tiny_stack.sqlite.xz"
    kept = tmp_path / "whatif.json"
    done = command("whatif", report, "--graph", "all", "--fuse-optimizer", "--json", kept)
    assert done.returncode == 0, done.stderr
    told, s = json.loads(kept.read_text(encoding="utf-8")), nsysx.report(report)
    assert told["job"] is None and told["advised"] is None
    graph = s.whatif(graph="all")
    assert [row["change"] for row in told["changes"]] == [*graph.changes, *s.whatif(fuse_optimizer=True).changes]
    assert told["changes"][0]["saving_ns"] == graph.saving_ns and told["changes"][0]["step_ns"] == graph.step_ns
    assert told["together"]["saving_ns"] == s.whatif(graph="all", fuse_optimizer=True).saving_ns
    assert len(told["changes"][0]["alternatives"]) == 2
    refused = command("whatif", report, "--json", kept)
    assert refused.returncode == 2 and "exists" in refused.stderr


def test_changes_of_a_job_alone() -> None:
    told = json.loads(command("whatif", SAMPLES / "ddp.sqlite.xz", "--equal-ranks", "--json", "-").stdout)
    assert [row["option"] for row in told["job"]["changes"]] == ["--equal-ranks"]
    row = told["job"]["changes"][0]
    assert abs(told["job"]["step_ns"] - row["saving_ns"] - row["step_ns"]) <= 1
