"""Which Python line a call belongs to, and what the windows leave in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsysx.pipeline import summarize
from tests import reports
from tests.builder import Report, Thread
from tests.reports import gather

DOMAIN = "Python Backtrace on CUDA"


class Python:
    """A thread whose calls carry Python backtraces, innermost frame first."""

    def __init__(self) -> None:
        self.report = Report()
        self.main = self.report.process(1).thread(1)

    def mark(self, at: int, *frames: tuple[str, int, str], thread: Thread | None = None) -> None:
        string = self.report.string
        stack = [{"File": string(f), "Line": line, "Function": string(name)} for f, line, name in frames]
        (thread or self.main).mark("python", at, domain=DOMAIN, json=json.dumps({DOMAIN: {"Frames": stack}}))

    def lines(self, folder: Path) -> dict[int, tuple[object, ...]]:
        given = gather(self.report, folder)
        starts = dict(given.attributed.api_calls.select("call", "start_ns").iter_rows())
        return {starts[call]: tuple(rest) for call, *rest in given.lines().iter_rows()}


def test_the_first_frame_of_the_users_own_code(tmp_path: Path) -> None:
    python = Python()
    python.main.sync(at=10_000, dur=500)
    python.mark(
        10_000,
        ("/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", 33, "item"),
        ("<frozen importlib._bootstrap>", 1, "f"),
        ("/home/me/my project/train.py", 41, "training_step"),
        ("/home/me/my project/train.py", 90, "<module>"),
    )
    assert python.lines(tmp_path) == {10_000: ("/home/me/my project/train.py", 41, "training_step")}


def test_where_all_code_is_a_librarys_the_innermost_frame(tmp_path: Path) -> None:
    python = Python()
    python.main.sync(at=10_000, dur=500)
    python.mark(10_000, ("/x/site-packages/a.py", 1, "inner"), ("/x/site-packages/b.py", 2, "outer"))
    assert python.lines(tmp_path) == {10_000: ("/x/site-packages/a.py", 1, "inner")}


def test_each_call_has_its_own_line_and_some_have_none(tmp_path: Path) -> None:
    python = Python()
    other = python.report.processes[0].thread(2)
    for at, line in ((10_000, 1), (20_000, None), (30_000, 3)):
        python.main.sync(at=at, dur=500)
        if line:
            python.mark(at + 100, ("/me/a.py", line, "f"))
    other.sync(at=10_050, dur=500)  # the mark of another thread says nothing here
    assert python.lines(tmp_path) == {10_000: ("/me/a.py", 1, "f"), 30_000: ("/me/a.py", 3, "f")}


def test_a_mark_just_in_front_of_its_call_counts(tmp_path: Path) -> None:
    python = Python()
    python.main.sync(at=10_000, dur=5000)
    python.mark(9_950, ("/me/a.py", 7, "f"))
    assert python.lines(tmp_path) == {10_000: ("/me/a.py", 7, "f")}


def test_names_are_escaped_once(tmp_path: Path) -> None:
    """Nsight stores names HTML-escaped."""
    python = Python()
    python.main.sync(at=10_000, dur=500)
    python.mark(10_000, ("/me/a.py", 7, "&lt;module&gt;"))
    assert python.lines(tmp_path) == {10_000: ("/me/a.py", 7, "<module>")}


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "3", '{"Python Backtrace on CUDA": null}', '{"Python Backtrace on CUDA": {"Frames": 3}}',
        '{"Python Backtrace on CUDA": {"Frames": [3]}}', '{"Python Backtrace on CUDA": {"Frames": []}}',
        '{"Python Backtrace on CUDA": {"Frames": [{"File": 1e99, "Line": 1, "Function": 1}]}}',
        '{"Python Backtrace on CUDA": {"Frames": [{"File": 99999999999999999999999, "Line": 1, "Function": 1}]}}',
        '{"Python Backtrace on CUDA": {"Frames": [{"File": 12345, "Line": 1, "Function": 12345}]}}',
        '{"Python Backtrace on CUDA": {"Frames": [{"File": 1, "Line": 99999999999999999999999, "Function": 1}]}}',
        '{"Python Backtrace on CUDA": {"Frames": [{"File": 1, "Line": -5, "Function": 1}]}}',
        '{"Python Backtrace on CUDA": {"Frames": [{"File": 1, "Line": NaN, "Function": 1}]}}',
        "[" * 100_000,
    ],
)  # fmt: skip
def test_a_backtrace_of_nonsense_is_none(tmp_path: Path, text: str) -> None:
    python = Python()
    python.main.sync(at=10_000, dur=500)
    python.main.mark("python", 10_000, domain=DOMAIN, json=text)
    for file, line, _ in python.lines(tmp_path).values():
        assert isinstance(file, str)
        assert line is None or isinstance(line, int)


@pytest.mark.parametrize(
    "text", ["train.py:² f", "train.py:99999999999999999999999 f", "x", "", ":", "a:b c", ":12 f", "a b.py:7 f"]
)
def test_a_line_of_the_probe_that_is_none(tmp_path: Path, text: str) -> None:
    """A range of the user can look like one of ours."""
    python = Python()
    python.main.mark(f"nsysx:sync {text}", 9_990)
    python.main.sync(at=10_000, dur=500)
    for _, line, _ in python.lines(tmp_path).values():
        assert line in (None, 7, 12)


def test_the_line_of_a_wait_is_in_the_summary(tmp_path: Path) -> None:
    summary = summarize([reports.training().write(tmp_path / "r.sqlite")], every_table=False)
    (row,) = [r for r in summary.rows("waits") if r["api"] == "cudaStreamSynchronize"]
    assert (row["file"], row["line"], row["calls"]) == ("/home/me/train.py", 12, 5)


def test_windows_hold_what_begins_in_them(tmp_path: Path) -> None:
    given = gather(reports.training(), tmp_path, window="1:3")
    assert given.scope.steps == 2
    assert given.calls.equals(given.steady_calls)
    start, end = given.steps.cpu_windows.select("start_ns", "end_ns").row(0)
    assert given.steady_calls["start_ns"].is_between(start, end, closed="left").all()
    assert set(given.steady_ops["call"].to_list()) <= set(given.steady_calls["call"].to_list())
    whole = gather(reports.training(), tmp_path, window="all")
    assert whole.calls.equals(whole.attributed.api_calls)
    assert whole.steady_ops.equals(whole.attributed.gpu_ops)
    assert whole.scope.steps == 0
