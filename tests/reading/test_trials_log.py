"""The log of what was tried: appended to, read with the report, damaged lines left out, and nothing advised that was refuted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nsysx.advice import Tried, verdict_of
from nsysx.answer import answered
from nsysx.reading import trials_log, tried
from tests.samples import Samples

MS = 1_000_000


def trial(change: str, verdict: str, ratio: float, by: str = "try") -> Tried:
    now = 20 * MS
    then = round(ratio * now)
    return Tried(change, verdict, now, then, then - MS, then + MS, (), False, "", "", by=by)  # type: ignore[arg-type]


def test_the_last_line_about_a_change_holds(tmp_path: Path) -> None:
    report = tmp_path / "a run.sqlite.xz"
    trials_log.append(report, [trial("tf32", "faster", 0.9), trial("fused", "same", 1.0)])
    path = trials_log.append(report, [trial("tf32", "slower", 1.2, "compare")])
    assert path == tmp_path / "a run.log.jsonl"
    assert [(t.change, t.verdict, t.by) for t in trials_log.logged(report)] == [
        ("fused", "same", "try"), ("tf32", "slower", "compare"),
    ]  # fmt: skip
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["decided"] for line in lines] == ["keep it", "leave it", "leave it"]


@pytest.mark.parametrize("text", ["", "hello\n", "[1]\n{\n", '{"schema": "nsysx.log/2", "change": "x"}\n', "\0" * 100])
def test_lines_that_are_none_are_left_out(text: str, tmp_path: Path) -> None:
    report = tmp_path / "a.sqlite"
    trials_log.append(report, [trial("tf32", "faster", 0.9)])
    with trials_log.log_beside(report).open("a") as file:
        file.write(text + "\n")
    assert [t.change for t in tried.beside(report)] == ["tf32"]


def test_nothing_is_read_of_what_is_no_file(tmp_path: Path) -> None:
    trials_log.log_beside(tmp_path / "a.sqlite").mkdir()
    assert tried.beside(tmp_path / "a.sqlite") == ()
    assert tried.beside(tmp_path / "none.sqlite") == ()


def test_a_later_try_of_other_changes_does_not_bring_back_what_was_refuted(recorded: Samples, tmp_path: Path) -> None:
    """NAME.try.json holds the last session alone; the log holds all."""
    summary = recorded.summary("tiny_stack")
    advised = next(f for f in summary.findings or () if f.remedies and f.verdict == "found")
    report = tmp_path / "a.sqlite"
    trials_log.append(report, [trial(remedy.name, "same", 1.0) for remedy in advised.remedies])
    trials_log.append(report, [trial("tf32", "same", 1.0)])
    told = answered(replace(summary, tried=tried.beside(report)))
    again = next(f for f in told.findings or () if f.code == advised.code)
    assert all(remedy.refuted for remedy in again.remedies)
    assert told.answer.do[0].text != summary.answer.do[0].text


@pytest.mark.parametrize(("verdict", "told"), [("faster", "changes_results"), ("slower", "slower"), ("fails", "fails")])
def test_a_change_of_results_is_the_verdict_unless_it_is_slower_anyway(verdict: str, told: str) -> None:
    assert verdict_of(verdict, other_results=True) == told  # type: ignore[arg-type]
    assert verdict_of(verdict, other_results=False) == verdict  # type: ignore[arg-type]
