"""What `nsysx try` measured stands beside what the report predicts, in every output; what is no such file changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Summary
from nsysx.reading import tried
from nsysx.render import answer_text, brief, html_page, markdown, terminal_answer
from nsysx.render import answer_words as answers
from tests.render import factory


def trial(change: str, verdict: str, ratio: float | None, *codes: str, **more: Any) -> dict[str, Any]:
    """Return a trial as ``nsysx.try/1`` has it, of a step of 20 ms."""
    step = None if ratio is None else 20e6 * ratio
    times = {"step_ns": step, "low_ns": step and 0.99 * step, "high_ns": step and 1.01 * step}
    given = {"change": change, "verdict": verdict, "ratio": ratio, **times, "findings": list(codes)}
    return {**given, "other_results": False, "reason": "", "where": "", **more}


def content(*trials: dict[str, Any]) -> dict[str, Any]:
    return {"schema": "nsysx.try/1", "baseline": {"step_ns": 20e6}, "trials": list(trials), "together": None}


OVERWRITTEN = "RuntimeError: output of a CUDA graph overwritten"


@pytest.fixture
def summary() -> Summary:
    made = factory.summary()
    code = made.answer.do[-1].code
    trials = content(
        trial("tf32", "faster", 0.5, "NSX116"),
        trial("advised", "slower", 1.25, code),
        trial("graphs", "fails", None, code, reason=OVERWRITTEN, where="/home/me/project/train.py:31"),
        trial("late", "cannot_tell", None, code, reason="it was not tried: the budget was used up"),
        trial("moon", "does_not_apply", None, code, reason="there is no moon"),
    )
    return replace(made, tried=tried.of_json(trials))


def test_the_changes_that_carry_out_the_advice_come_first(summary: Summary) -> None:
    lines = answers.build(summary).tried
    assert [line.partition(":")[0] for line in lines] == ["advised", "graphs", "tf32"]
    assert lines[0] == "advised: slower, 20.00 ms to 25.00 ms a step (25 % more, 24 to 26 %)"
    assert lines[1] == f"graphs: fails: {OVERWRITTEN} at project/train.py:31", "the home folder is hidden"


def test_every_output_has_them(summary: Summary) -> None:
    page, text = html_page.render(summary), markdown.render(summary)
    shown = "\n".join(line for line, _ in terminal_answer.lines(summary, 200))
    told = json.loads(brief.answer_json(summary))["care"]
    lines = answers.build(summary).tried[: answer_text.MOST_TRIED]
    for line in lines:
        assert line in page and line in text, line
    assert lines[0] in told
    assert "TRIED" in shown and "slower, 20.00 ms to 25.00 ms" in shown
    assert "there is no moon" not in page + text + shown and "the budget" not in page + text + shown
    assert Summary.from_json(json.loads(json.dumps(summary.to_json()))).tried == summary.tried


def test_the_file_is_found_by_the_reports_name(tmp_path: Path) -> None:
    (tmp_path / "a.try.json").write_text(json.dumps(content(trial("tf32", "faster", 0.5, "NSX116"))))
    for name in ("a.sqlite", "a.sqlite.xz", "a.nsys-rep"):
        (one,) = tried.beside(tmp_path / name)
        assert (one.change, one.now_ns, one.then_ns, one.codes) == ("tf32", 20_000_000, 10_000_000, ("NSX116",))
    assert tried.beside(tmp_path / "b.sqlite") == ()


@pytest.mark.parametrize(
    "wrong",
    [
        "", "[]", "{", '{"schema": "nsysx.try/2", "baseline": {}, "trials": []}', "[" * 100_000,
        json.dumps(content({"change": 3})), json.dumps(content(trial("x", "great", 0.5))),
        json.dumps(content(trial("x", "faster", 0.5))).replace("20000000.0", "NaN"),
        '{"schema": "nsysx.try/1", "trials": []}',
    ],
)  # fmt: skip
def test_what_is_no_such_file_is_left_out(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "a.try.json").write_text(wrong)
    assert all(one.now_ns is None for one in tried.beside(tmp_path / "a.sqlite"))


def test_the_report_of_a_command_is_found_beside_it(tmp_path: Path) -> None:
    for name, words in (("a", ["/x/python", "train.py"]), ("b", ["python", "other.py"]), ("c", ["python", "train.py"])):
        (tmp_path / f"{name}.run.json").write_text(json.dumps({"command": words}))
    (tmp_path / "a.sqlite").touch()
    (tmp_path / "b.sqlite").touch()
    assert tried.report_of(["python", "train.py"], tmp_path) == tmp_path / "a.sqlite", "c has no report"
    assert tried.report_of(["python", "train.py", "--more"], tmp_path) is None
