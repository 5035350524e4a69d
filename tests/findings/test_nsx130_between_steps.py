"""NSX130: what runs between the steps, with much of it and with next to nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysx import units
from nsysx.advice import Alternative
from nsysx.answer import as_if_chosen, first_action, loop_worth
from nsysx.catalogue import StepLimit
from nsysx.events.between_parts import (
    COPIES_IN_PAGEABLE,
    COPIES_OUT_PAGEABLE,
    HOST_CODE,
    BetweenPart,
    BetweenSteps,
    between_steps,
)
from nsysx.events.coverage import BETWEEN, EVALUATION
from nsysx.findings import _loop_worth
from nsysx.findings import nsx130_between_steps as rule
from nsysx.model import Finding
from nsysx.pipeline import ReadingOptions, gather_job
from nsysx.replay import whatif_json
from nsysx.replay.engine import Withheld, unprofiled_of
from nsysx.saving import Saving
from nsysx.step_time import Unprofiled
from tests.answer.test_first_action import finding, led
from tests.builder import Report
from tests.findings import Program, healthy
from tests.render import factory

US, MS = 1_000, 1_000_000
#: Workers that start anew every 32 steps.
LOADER = {"workers": 12, "persistent_workers": False, "iterators": 8, "first_step": 0, "last_step": 224}


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Finding]:
    """Return what the rule says of a loop that takes so many times as long as its steps, of which ``part`` is what runs between."""

    def told(times: float | None, part: str = BETWEEN, loader: dict[str, Any] | None = None) -> Finding:
        def with_loop(profile: Any) -> Any:
            real = unprofiled_of(profile)
            assert not isinstance(real, Withheld)
            covered = replace(profile.steps.coverage, parts={part: 1})
            object.__setattr__(profile.steps, "coverage", covered)
            return replace(real, loop_ns=None if times is None else round(times * real.step_ns))

        monkeypatch.setattr(rule, "measured_loop", lambda case: with_loop(case.profile))
        settings = None if loader is None else {"loaders": [{**LOADER, **loader}]}
        record = {"pid": 100, "backend": "nvtx", "ranges": {}, "ranges_pushed": 1, "settings": settings}
        (tmp_path / "r.run.json").write_text(json.dumps({"probe": [record]}))
        return Program().steps(healthy).finding(tmp_path, "NSX130")

    return told


def test_much_between_steps_is_told_by_name_with_its_share_of_the_loop(found: Callable[..., Finding]) -> None:
    evaluation = found(2.0, EVALUATION)
    assert (
        evaluation.verdict == "found"
        and "evaluation takes" in evaluation.title
        and "50 % of the loop" in evaluation.title
    )
    assert [way.name for way in evaluation.remedies] == ["evaluated-rarely"]
    assert evaluation.saving_ns_per_step is None, "it is no time of the step"
    assert [way.name for way in found(2.0).remedies] == ["beside-the-loop"]


@pytest.mark.parametrize(
    ("loader", "part", "remedy"),
    [
        ({}, BETWEEN, "persistent-workers"),
        ({}, EVALUATION, "evaluated-rarely"),
        ({"iterators": 2, "last_step": 32}, BETWEEN, "persistent-workers"),
        ({"iterators": 1, "last_step": 0}, BETWEEN, "beside-the-loop"),
        ({"persistent_workers": True}, BETWEEN, "beside-the-loop"),
        ({"last_step": 22_400}, BETWEEN, "beside-the-loop"),  # epochs so long that workers hardly ever start
    ],
)
def test_workers_that_start_anew_between_steps_are_kept(
    found: Callable[..., Finding], loader: dict[str, Any], part: str, remedy: str
) -> None:
    finding = found(2.0, part, loader)
    assert [way.name for way in finding.remedies] == [remedy]
    assert ("num_workers=12, persistent_workers=True" in finding.paste) == (remedy == "persistent-workers")
    assert ("every 32 steps" in finding.fix) == (remedy == "persistent-workers")


def test_what_goes_between_steps_is_a_factor_of_the_loop(found: Callable[..., Finding]) -> None:
    """As long again as a step: twice as fast over the loop, whose time per step then is the step's."""
    finding = found(2.0, BETWEEN, {})
    row = next(row for row in finding.evidence if "loop_then_ns" in row)
    assert (row["loop_ns"], row["loop_then_ns"]) == (2 * row["step_ns"], row["step_ns"])
    worth = finding.saving.confidence
    assert worth.startswith("up to 2.0x faster over the loop")
    assert worth.endswith(
        f": {units.duration(row['loop_ns'])} → {units.duration(row['step_ns'])} a step with what runs between steps"
    )


def real_loop(rest_ns: int | None, step_ns: int = 28 * MS, low_ns: int = 24 * MS, high_ns: int = 32 * MS) -> Unprofiled:
    return Unprofiled(
        step_ns, low_ns, high_ns, "in_process", 90, step_ns, 1, 0, 20, 1.0, step_ns, 0, {}, {}, 0, 37 * MS, rest_ns, 200
    )


@pytest.mark.parametrize(
    ("rest_ns", "spread"),
    [(None, " (1.28 to 1.4, by the length of a step)"), (50 * MS, " (1.22 to 1.4, by the length of a step)")],
)
def test_the_same_pause_is_a_smaller_factor_of_longer_steps(rest_ns: int | None, spread: str) -> None:
    """9 ms beside steps of 24 to 32 ms, and of 41 ms in all that followed."""
    words = _loop_worth.in_words(real_loop(rest_ns), 9 * MS)
    assert words == f"1.3x faster over the loop{spread}: 37.00 ms → 28.00 ms a step with what runs between steps"
    alike = _loop_worth.in_words(real_loop(None, low_ns=28 * MS, high_ns=28 * MS), 9 * MS)
    assert alike.startswith("1.3x faster over the loop: 37.00 ms")


def test_a_pause_is_told_of_the_loop_and_how_sure_by_the_setting() -> None:
    """Workers that start anew: the answer, its certainty, `whatif` and the brief have the loop's figures, which no step holds."""
    evidence = [{"step_ns": 28 * MS, "between_ns": 9 * MS, "loop_ns": 37 * MS, "loop_then_ns": 28 * MS}]
    saving = Saving(None, "up to 1.3x faster over the loop")
    for more, level in (({"set_in_program": "x"}, "certain"), ({}, "likely")):
        given = replace(finding("NSX130", 9), saving=saving, evidence=(*evidence, more))
        summary = replace(factory.summary(), findings=(given,))
        summary = replace(summary, answer=as_if_chosen(summary, given))
        assert summary.answer.worth == "Up to 1.3x faster over the loop."
        assert [half.level for half in summary.answer.certainty.parts] == [level, "likely"]
        worth = loop_worth.of_advised(summary)
        assert worth == (37 * MS, 28 * MS)
        told = whatif_json.advised(summary.answer, worth)
        assert told is not None and (told["loop_then_ns"], told["saving_ns"]) == (28 * MS, 9 * MS)
    assert loop_worth.of_advised(replace(summary, findings=(replace(given, evidence=()),))) is None


@pytest.mark.parametrize(("made", "line"), [("train.py:9", 9), (None, None)])
def test_workers_that_start_anew_are_told_where_their_loader_is_made(
    found: Callable[..., Finding], made: str | None, line: int | None
) -> None:
    assert found(2.0, BETWEEN, {"made": made}).where.get("line") == line


@pytest.mark.parametrize(("evaluates", "remedy"), [(False, "persistent-workers"), (True, "evaluated-rarely")])
def test_a_window_that_ends_between_steps_evaluates_only_where_a_forward_is_seen(
    found: Callable[..., Finding], monkeypatch: pytest.MonkeyPatch, evaluates: bool, remedy: str
) -> None:
    part = BetweenPart(HOST_CODE, evaluates, 10, 0, 0)
    monkeypatch.setattr(rule, "between_steps", lambda _: BetweenSteps(np.array([0]), np.array([10]), (part,), ()))
    assert [way.name for way in found(2.0, "no step lies behind it", {}).remedies] == [remedy]


@pytest.mark.parametrize(
    ("forwards", "read", "size", "stretches", "told"),
    [
        (64, 64, 512, 2, True),
        (14, 14, 512, 2, False),  # few in a row
        (64, 2, 512, 2, False),  # an evaluation that reads its sums at its end
        (64, 64, 1 << 20, 2, False),  # batches of data
        (64, 64, 512, 1, False),  # more steps for each of them
    ],
)
def test_a_network_that_is_called_and_read_in_turn_between_steps_is_no_evaluation(
    found: Callable[..., Finding],
    monkeypatch: pytest.MonkeyPatch,
    forwards: int,
    read: int,
    size: int,
    stretches: int,
    told: bool,
) -> None:
    parts = (
        BetweenPart(HOST_CODE, True, 10, 0, 0),
        BetweenPart(COPIES_OUT_PAGEABLE, False, 5, read, 8 * read),
        BetweenPart(COPIES_IN_PAGEABLE, False, 5, forwards, size * forwards),
    )
    begin = np.arange(stretches) * 100
    between = BetweenSteps(begin, begin + 10, parts, (), forwards, stretches)
    monkeypatch.setattr(rule, "between_steps", lambda _: between)
    monkeypatch.setattr(rule, "STEPS_TO_ROUNDS", 4)  # the program has 8 steps
    finding = found(2.0, EVALUATION)
    assert ([way.name for way in finding.remedies] == ["policy-at-once"]) is told
    assert ("a loop of 32 calls of a network takes" in finding.title) is told
    assert finding.where["near"] == ("a loop between steps" if told else "evaluation between steps")


@pytest.mark.parametrize("made", [True, False])
def test_a_rollout_is_part_of_the_loop(
    found: Callable[..., Finding], monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    monkeypatch.setattr(rule, "made_between_steps", lambda _: made)
    finding = found(2.0, EVALUATION)
    assert [way.name for way in finding.remedies] == ["rollout-graphed" if made else "evaluated-rarely"]
    assert ("a rollout takes" in finding.title) is made
    assert finding.where["near"] == ("a rollout between steps" if made else "evaluation between steps")


@pytest.mark.parametrize("times", [None, 1.0, 1.09])
def test_next_to_nothing_between_steps_is_clear(found: Callable[..., Finding], times: float | None) -> None:
    assert found(times).verdict == "clear"


def evaluation(copied: int) -> Report:
    """Return a program of eight steps of 2 ms; the window ends in an evaluation that copies outputs to the host."""
    report = Report()
    report.gpu(0, pids=[(100, 0)])
    thread = (process := report.process(100)).thread(100, "python3")
    process.context()
    t = MS
    for i in range(8):
        thread.add_range(f"step {i}", t, t + (2 if i < 7 else 10) * MS, domain="nsysx")
        thread.launch(t + 10 * US, kernel="gemm", gpu_start=t + 20 * US, gpu_dur=MS)
        t += 2 * MS
    t -= 2 * MS
    thread.add_range("evaluation Net", t + 2 * MS, t + 3 * MS, domain="nsysx")
    thread.launch(t + 2 * MS + 10 * US, kernel="gemm", gpu_start=t + 2 * MS + 30 * US, gpu_dur=MS)
    thread.memcpy(t + 4 * MS, 4 * MS, kind="DtoH", bytes=copied, gpu_start=t + 4 * MS, gpu_dur=4 * MS, pageable=True)
    return report


def test_what_an_evaluation_at_the_end_of_the_window_does_is_divided_to_the_nanosecond(tmp_path: Path) -> None:
    profile = gather_job([evaluation(1 << 30).write(tmp_path / "r.sqlite")], ReadingOptions()).profile
    recorded = between_steps(profile)
    assert recorded is not None
    # From the beginning of the evaluation to the end of the step that the window cuts.
    assert recorded.ns == sum(part.ns for part in recorded.parts) == 8 * MS
    first, second = recorded.parts[:2]
    assert (first.what, first.ns, first.calls, first.bytes) == (COPIES_OUT_PAGEABLE, 4 * MS, 1, 1 << 30)
    assert (second.what, second.evaluates, second.bytes) == (HOST_CODE, False, 0)
    assert recorded.share(COPIES_OUT_PAGEABLE) == 0.5
    assert (recorded.forwards, recorded.evaluating) == (1, 1)
    words = rule._in_words(recorded)
    assert words.startswith(
        "Of the 8.00 ms of that which were recorded, 50 % copies to pageable host memory (1.0 GiB), 38 % host code"
    )
    assert rule._copied_out(recorded) == 1 << 30


def between(ms: float) -> Finding:
    way = Alternative("evaluated-rarely", "")
    return replace(
        finding("NSX130", 0),
        saving=replace(finding("NSX130", 0).saving, likely_ns=None),
        remedies=(way,),
        evidence=({"between_ns": round(ms * 1e6)},),
    )


def test_what_runs_between_steps_competes_by_what_it_takes() -> None:
    graph, line = finding("NSX102", 8, bound=True), finding("NSX123", 8)
    assert led(StepLimit.LAUNCH, graph, between(9)) == "NSX130"
    assert led(StepLimit.LAUNCH, graph, between(7)) == "NSX102"
    assert led(StepLimit.LAUNCH, line, between(9)) == "NSX123", "a line of the step with its place tells more"
    assert led(StepLimit.LAUNCH, between(9)) == "NSX130"
    assert first_action.between_ns(between(9)) == 9_000_000
