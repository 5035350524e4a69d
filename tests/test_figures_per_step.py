"""What must not change the figures of a step, from its ledgers to its savings.

Another process, another device, an idle rank, an evaluation between two steps, the unit of time, how many steps are replayed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from nsysx.model import Summary
from nsysx.pipeline import summarize
from nsysx.replay import replayed_window
from tests.builder import Report
from tests.events.test_step_properties import US, Program, build, programs
from tests.examples import examples

few = settings(max_examples=examples(3), deadline=None, suppress_health_check=list(HealthCheck))

#: All steps alike, so that any of them stands for the others.
even_programs = programs.map(lambda p: replace(p, late=(p.late[0],) * len(p.late), waits=True))

#: A replay of other steps of the same program differs by the ends of its window.
_CLOSE = 0.02
#: What such a difference may be at least: launch latencies are medians of whole microseconds.
_LEAST_NS = 1_500


def summary(report: Report) -> Summary:
    with tempfile.TemporaryDirectory() as folder:
        return summarize([report.write(Path(folder) / "r.sqlite")])


def figures(summary: Summary) -> dict[str, float]:
    """Return every figure of one step of the shown process by name: ledgers, tables that sum, verdict, replay, findings."""
    told: dict[str, float] = {}
    shown = summary.steps.scope
    assert shown is not None and shown.steps
    for key, table in summary.tables.items():
        if table.shown.covers == "whole" or not table.rows:
            continue
        names = [c.name for c in table.columns if c.unit == "ns" and (c.sums or table.scope is None)]
        for row in table.rows:
            if row.get("process", shown.processes[0]) != shown.processes[0] or row.get("device", 0) != 0:
                continue
            scope = table.scope or summary.scope_of(row)
            told[f"{key}/rows"] = told.get(f"{key}/rows", 0) + 1
            name = "/".join(str(value) for value in row.values() if isinstance(value, str))
            for column in names:
                if isinstance(row[column], int):
                    whole = f"{key}/{name}/{column}"
                    told[whole] = told.get(whole, 0) + scope.per_step(row[column])
    told |= {f"verdict/{name}": ns for name, ns in summary.verdict.parts.items()}
    known = summary.unprofiled
    assert known is not None
    told |= {"step": known.step_ns, "recorded": known.recorded_ns, "busy": known.gpu_busy_ns, "idle": known.gpu_idle_ns}
    told |= {f"idle/{name}": ns for name, ns in known.idle_causes.items()}
    for found in summary.findings or ():
        if found.verdict == "found":
            told |= {
                f"{found.code}/cost": found.cost_ns_per_step or 0,
                f"{found.code}/saving": found.saving_ns_per_step or 0,
            }
    return told


def differences(one: Summary, two: Summary, scale: int = 1) -> dict[str, tuple[float, float]]:
    """Return the figures that are not as close as two replays of the same steps are."""
    a, b = figures(one), {name: ns / scale for name, ns in figures(two).items()}
    rooms = {name.partition("/")[0] for name in a} & {name.partition("/")[0] for name in b}  # no phases without a range
    assert {"verdict", "step", "gpu_ledger", "cpu_ledger"} <= rooms
    return {
        name: (a.get(name, 0), b.get(name, 0))
        for name in {*a, *b}
        if name.partition("/")[0] in rooms and abs(a.get(name, 0) - b.get(name, 0)) > max(_CLOSE * a["step"], _LEAST_NS)
    }


@few
@given(programs, st.sampled_from([("process",), ("rank",), ("process", "rank")]))
def test_what_runs_beside_a_program(program: Program, others: tuple[str, ...]) -> None:
    alone, beside = summary(build(program)), summary(build(program, others=others))
    assert figures(beside) == figures(alone)
    assert (beside.verdict.code, beside.verdict.sentence) == (alone.verdict.code, alone.verdict.sentence)


@few
@given(programs)
def test_a_second_device_of_the_process(program: Program) -> None:
    """It holds a share of every step and is done before the first one: the step is that of the busiest."""
    report = build(program)
    for call in [r for r in report.rows["CUPTI_ACTIVITY_KIND_KERNEL"] if r["deviceId"] == 0]:
        report.add("CUPTI_ACTIVITY_KIND_KERNEL", **{**call, "deviceId": 1, "contextId": 2, "end": call["end"] - US})
    one, two = summary(build(program)), summary(report)
    assert two.unprofiled is not None and one.unprofiled is not None
    assert two.unprofiled.device == 0
    for name in ("step_ns", "recorded_ns", "gpu_busy_ns", "gpu_idle_ns", "idle_causes"):
        assert getattr(two.unprofiled, name) == getattr(one.unprofiled, name), name
    assert two.verdict.parts == one.verdict.parts


@few
@given(programs)
def test_times_of_another_unit(program: Program) -> None:
    one, two = summary(build(program)), summary(build(program, scale=2))
    # A rule asks for microseconds here and there: what only one of the two finds is not compared.
    codes = {f.code for s in (one, two) for f in s.findings or () if f.verdict == "found"}
    both = {
        c for c in codes if all(any(f.code == c and f.verdict == "found" for f in s.findings or ()) for s in (one, two))
    }
    # And the price of a CUDA graph is in microseconds of this world.
    priced = {"NSX102/saving"}
    off = differences(one, two, 2)
    assert not {
        name: pair for name, pair in off.items() if name.partition("/")[0] not in codes - both and name not in priced
    }


@few
@given(even_programs, st.integers(2, 4))
def test_an_evaluation_between_two_steps(program: Program, after: int) -> None:
    # Steps that only the sequence shows must hold half of the computing.
    assume(program.marked or sum(program.kernels) * (len(program.late) - 2) > 20 * 50)
    assert differences(summary(build(program)), summary(build(program, evaluation=after))) == {}


@few
@given(even_programs, st.integers(2, 3))
def test_only_some_of_the_steps_are_replayed(program: Program, part: int) -> None:
    whole = summary(build(program))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replayed_window, "MOST_REPLAYED_OPS", len(program.late) * len(program.kernels) // part)
        some = summary(build(program))
    assert some.replay and whole.replay and some.replay["steps"] < whole.replay["steps"]
    assert differences(whole, some) == {}


def test_these_figures_are_enough_to_see_a_fault() -> None:
    """One step that is counted twice shows in more than the step itself."""
    program = Program(20, (10,) * 12, (0,) * 10, marked=True, waits=True)
    slower: Callable[[Program], Program] = lambda p: replace(p, host=p.host + 5)  # noqa: E731
    off = differences(summary(build(program)), summary(build(slower(program))))
    assert {"step", "idle"} <= off.keys() and len(off) > 5
