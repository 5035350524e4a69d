"""Garbage collections and compilations, from the marks that the probe leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.analyses import reason, rows
from tests.builder import Report, Thread

MS = 1_000_000


def steps(report: Report, count: int = 6, *, tells: bool = True) -> Thread:
    """Steps of 1 ms, whose kernel runs from 0.1 to 0.6 ms."""
    main = report.process(100).thread(100)
    if tells:
        main.mark('info {"pid": 100, "pauses": true}', at=0, domain="nsysx")
    for step in range(count):
        at = MS * step
        main.launch(at=at + 10_000, dur=5_000, gpu_start=at + 100_000, gpu_dur=500_000)
        main.add_range("forward", at + 5_000, at + 800_000, domain="nsysx")
        main.add_range(f"step {step}", at, at + 900_000, domain="nsysx")
    return main


def gc(main: Thread, start: int, ns: int, *, at: int, **facts: object) -> None:
    """Note a collection in a mark at ``at``."""
    said = {"ago_ns": at - start - ns, "ns": ns, "generation": 2, "collected": 7, "thread": main.global_tid & 0xFFFFFF}
    main.mark(f"gc {json.dumps(said | facts)}", at=at, domain="nsysx")


def test_a_collection_has_its_own_time_step_and_idle(tmp_path: Path) -> None:
    report = Report()
    main = steps(report)
    gc(main, 3 * MS + 400_000, 300_000, at=3 * MS + 950_000)
    gc(main, 4 * MS + 910_000, 20_000, at=4 * MS + 960_000, generation=0)
    first, second = rows(report, tmp_path, "garbage_collection")
    assert first == {
        "start_ns": 3 * MS + 400_000,
        "step": 3,
        "steady": True,
        "duration_ns": 300_000,
        "gpu_idle_ns": 100_000,  # the kernel works until 0.6 ms
        "generation": 2,
        "collected": 7,
        "phase": "forward",
        "module": "forward",  # without ranges of modules those of phases stand for them
    }
    assert (second["step"], second["phase"], second["gpu_idle_ns"], second["generation"]) == (None, None, 20_000, 0)


def test_a_collection_lies_in_the_module_that_was_open(tmp_path: Path) -> None:
    """Where a step has no marks, only calls of one module on both sides say which it was."""
    report = Report()
    main = report.process(100).thread(100)
    main.mark('info {"pid": 100, "pauses": true}', at=0, domain="nsysx")
    main.mark('info {"marks":true}', at=1, domain="nsysx")
    for step in range(8):
        at = 10 + MS * step
        marked = step < 3
        if step == 3:
            main.mark('info {"marks":false}', at=at - 5, domain="nsysx")
        for i, (module, kernel) in enumerate((("a", "x"), ("a", "y"), ("b", "z"))):
            main.launch(at=at + 100_000 * (i + 1), dur=5_000, kernel=kernel, gpu_start=at + 150_000 * (i + 1))
            if marked and i != 1:
                end = at + 100_000 * (i + 1) + (150_000 if i == 0 else 50_000)
                main.add_range(f"{module}:Linear", at + 100_000 * (i + 1) - 1_000, end, domain="nsysx")
        main.add_range("forward", at + 5_000, at + 800_000, domain="nsysx")
        main.add_range(f"step {step}", at, at + 900_000, domain="nsysx")
    for step, at in ((1, 240_000), (1, 260_000), (5, 150_000), (5, 260_000)):
        gc(main, 10 + MS * step + at, 5_000, at=10 + MS * step + 950_000)
    found = [(r["step"], r["module"]) for r in rows(report, tmp_path, "garbage_collection")]
    assert found == [(1, "a"), (1, None), (5, "a"), (5, None)]


def test_none_is_an_answer_and_not_listening_is_another(tmp_path: Path) -> None:
    report = Report()
    steps(report)
    assert rows(report, tmp_path, "garbage_collection") == []
    assert rows(report, tmp_path, "compilations") == []
    report = Report()
    steps(report, tells=False)
    assert "nsysx run" in reason(report, tmp_path, "garbage_collection")
    assert "nsysx run" in reason(report, tmp_path, "compilations")


@pytest.mark.parametrize(
    "text",
    [
        "gc {", "gc []", 'gc {"ago_ns": -5, "ns": 1}', 'gc {"ago_ns": 1, "ns": true}', 'gc {"ago_ns": 1e400, "ns": 1}',
        'gc {"ns": 5}', 'gc {"ago_ns": 99999999999999999999, "ns": 1}', "gc " + "[" * 5000, "gc now", "compile me",
    ],
)  # fmt: skip
def test_a_mark_that_says_nothing_sensible_is_no_pause(text: str, tmp_path: Path) -> None:
    report = Report()
    main = steps(report)
    main.mark(text, at=2 * MS, domain="nsysx")
    main.mark(text, at=2 * MS)  # a stranger's
    gc(main, MS, 1_000, at=2 * MS, thread="x", generation="2", collected=None)
    (row,) = rows(report, tmp_path, "garbage_collection")
    assert (row["start_ns"], row["generation"], row["collected"]) == (MS, None, None)


def test_a_compilation_has_its_reason_and_place(tmp_path: Path) -> None:
    report = Report()
    main = steps(report)
    said = {
        "ago_ns": 50_000,
        "ns": 700_000,
        "id": "0/1",
        "function": "forward",
        "file": "/home/me/net.py",
        "line": 12,
        "backward": False,
        "reason": "0/0: scale == 1",
        "failed": None,
    }
    main.mark(f"compile {json.dumps(said)}", at=2 * MS + 880_000, domain="nsysx")
    (row,) = rows(report, tmp_path, "compilations")
    assert (row["start_ns"], row["duration_ns"], row["step"]) == (2 * MS + 130_000, 700_000, 2)
    assert (row["function"], row["place"], row["reason"]) == ("forward", "net.py:12", "0/0: scale == 1")
    assert row["gpu_idle_ns"] == 230_000


def test_of_several_processes_each_has_its_own(tmp_path: Path) -> None:
    report = Report()
    one = steps(report)
    other = report.process(200).thread(200)
    gc(other, MS, 200_000, at=2 * MS)
    gc(one, MS + 50_000, 100_000, at=2 * MS)
    first, second = rows(report, tmp_path, "garbage_collection")
    assert (first["step"], first["gpu_idle_ns"]) == (None, None), "it has no steps and no device"
    assert (second["step"], second["gpu_idle_ns"]) == (1, 50_000)
