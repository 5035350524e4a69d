"""What must not change the steps of a program: another process, another device, an idle rank, an evaluation, the unit of time."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from nsysx.events import attribute, correlate, nvtx_ranges, steps
from nsysx.events.steps import StepTable
from nsysx.reading.load import load
from tests.builder import Report
from tests.examples import examples

US = 1_000

few = settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Program:
    """A training loop: in each step the host works ``host`` us before each launch, kernels take ``kernels`` us.

    ``marked``: ranges name the steps; else only the sequence shows them. ``late``: of each step, how much longer its host takes.
    """

    host: int
    kernels: tuple[int, ...]
    late: tuple[int, ...]
    marked: bool
    waits: bool


programs = st.builds(
    Program,
    host=st.integers(5, 60),
    kernels=st.lists(st.integers(2, 80), min_size=10, max_size=16).map(tuple),
    late=st.lists(st.integers(0, 20), min_size=7, max_size=14).map(tuple),
    marked=st.booleans(),
    waits=st.booleans(),
)


def build(
    program: Program, *, scale: int = 1, evaluation: int | None = None, others: tuple[str, ...] = (), shift: int = 0
) -> Report:
    """Return the report of a program. ``evaluation``: after this step one of 20 kernels; ``others``: what runs beside it."""
    report = Report()
    unit = US * scale
    main = report.process(100).thread(100, "python")
    now, free = 1_000 + shift, 0

    def run(names: list[str], lengths: list[int], host: int) -> None:
        nonlocal now, free
        for name, length in zip(names, lengths, strict=True):
            now += host
            begin = max(now + 8, free)
            main.launch(now * unit, 4 * unit, kernel=name, gpu_start=begin * unit, gpu_dur=length * unit)
            now, free = now + 4, begin + length

    names = [f"kernel_{i}" for i in range(len(program.kernels) - 1)] + ["fused_adam"]
    for i, late in enumerate(program.late):
        start = now
        now += 100 + late
        run(names, list(program.kernels), program.host)
        if program.waits:
            end = max(free, now) + 5
            main.sync(at=(now + 1) * unit, dur=(end - now - 1) * unit)
            now = end
        now += 20
        if program.marked:
            main.add_range(f"step {i}", start * unit, (now - 1) * unit)
        if i == evaluation:
            now = max(now, free)  # an evaluation begins when its model is trained
            begin = now
            run([f"eval_{k}" for k in range(20)], [50] * 20, 30)
            now = max(now, free) + 10
            if program.marked:
                main.add_range("evaluation", begin * unit, now * unit)
    if "process" in others:
        other = report.process(200).thread(200, "python")
        for i in range(5):
            other.launch(
                i * 50 * unit, 4 * unit, kernel=f"other_{i}", gpu_start=(i * 50 + 10) * unit, gpu_dur=unit, device=1
            )
    if "rank" in others:
        report.process(300).thread(300, "python").call("cudaGetDevice", 10 * unit, unit)
    return report


def read(report: Report) -> StepTable:
    trace = load(report.write(Path(tempfile.mkdtemp()) / "r.sqlite"))
    named = nvtx_ranges.read(trace)
    return steps.find(named, attribute.attribute(trace, correlate.correlate(trace), named))


def figures(table: StepTable, scale: int = 1) -> dict[str, Any]:
    """Return what is said about the steps of the shown process."""
    mine = pl.col("process") == table.process
    gpu = table.gpu.filter(mine & (pl.col("device") == 0))
    cpu = table.cpu.filter(mine)
    return {
        "rule": (table.source, table.rule),
        "steady": table.steady,
        "cpu": [(a // scale, b // scale) for a, b in cpu.select("start_ns", "end_ns").iter_rows()],
        "gpu": [(a // scale, b // scale) for a, b in gpu.select("start_ns", "end_ns").iter_rows()],
        "window": [
            (a // scale, b // scale)
            for a, b in table.windows.filter(mine & (pl.col("device") == 0)).select("start_ns", "end_ns").iter_rows()
        ],
        "trend": (table.trend.kind, table.trend.every),
    }


@few
@given(programs, st.sampled_from([("process",), ("rank",), ("process", "rank")]))
def test_what_runs_beside_a_program_changes_none_of_its_steps(program: Program, others: tuple[str, ...]) -> None:
    assert figures(read(build(program, others=others))) == figures(read(build(program)))


@few
@given(programs)
def test_a_second_device_changes_none_of_the_steps_of_the_first(program: Program) -> None:
    report = build(program)
    # The second device holds a share of every step, beside it.
    for call in [r for r in report.rows["CUPTI_ACTIVITY_KIND_KERNEL"] if r["deviceId"] == 0]:
        report.add("CUPTI_ACTIVITY_KIND_KERNEL", **{**call, "deviceId": 1, "contextId": 2, "end": call["end"] - US})
    assert figures(read(report))["gpu"] == figures(read(build(program)))["gpu"]
    assert figures(read(report))["steady"] == figures(read(build(program)))["steady"]


@few
@given(programs, st.integers(2, 5))
def test_times_of_another_unit_give_the_same_steps(program: Program, factor: int) -> None:
    assert figures(read(build(program, scale=factor)), factor) == figures(read(build(program)))


@few
@given(programs, st.integers(2, 4))
def test_an_evaluation_between_two_steps_changes_none(program: Program, after: int) -> None:
    """Steps before it keep their length and so do those behind it; the one that it follows ends with it."""
    # Steps that only the sequence shows must hold half of the computing.
    assume(program.marked or sum(program.kernels) * (len(program.late) - 2) > 20 * 50)
    plain, other = read(build(program)), read(build(program, evaluation=after))
    assert other.source == plain.source
    assert other.between["index"].to_list() == [after]
    for one, two in ((plain.gpu, other.gpu), (plain.cpu, other.cpu)):
        before, with_it = ((f["end_ns"] - f["start_ns"]).to_list() for f in (one, two))
        assert len(with_it) == len(before)
        last = len(before) - 1
        kept = [i for i in range(len(before)) if i not in (after, last)]
        if program.waits:  # else the GPU lags behind the CPU, and an evaluation lets it catch up
            assert [with_it[i] for i in kept] == [before[i] for i in kept]
    assert other.steady is not None
    assert not other.steady[0] <= after < other.steady[1]


@pytest.mark.parametrize("marked", [True, False])
def test_the_steps_of_the_plain_program(marked: bool) -> None:
    table = read(build(Program(20, (10,) * 12, (0,) * 10, marked, True)))
    assert (table.source, table.cpu.height) == ("user" if marked else "kernels", 10)
