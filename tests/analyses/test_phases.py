"""Device time by phase: every busy instant has one phase, that of the work that began last."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysx.analyses.phases import _busy
from nsysx.pipeline import summarize
from tests.builder import Report
from tests.events.test_steps import PERIOD, US, own_step, work

#: (start, length, phase) of GPU ops on a few streams.
OPS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(0, 2)), min_size=1, max_size=14)


@given(OPS)
def test_of_work_that_runs_at_once_the_one_that_began_last_has_the_instant(ops: list[tuple[int, int, int]]) -> None:
    ops.sort(key=lambda op: (op[0], -op[1]))  # of equal begins the shorter one began last
    expected = [0, 0, 0]
    for t in range(80):
        running = [phase for start, length, phase in ops if start <= t < start + length]
        if running:
            expected[running[-1]] += 1
    start, length, phase = (np.array(column, np.int64) for column in zip(*ops, strict=True))
    assert _busy(start, start + length, phase, 3).tolist() == expected


def test_two_streams_of_other_phases_cost_no_more_than_their_blocks() -> None:
    """The time of the whole is conserved for many ops whose ends do not nest."""
    dice = random.Random(7)
    start = np.arange(0, 200_000, 10)
    end = start + np.array([dice.randrange(5, 35) for _ in start])
    phase = np.array([i // 100 % 2 for i in range(len(start))])
    found = _busy(start, end, phase, 2)
    reach = np.maximum.accumulate(end)
    idle = np.maximum(start[1:] - reach[:-1], 0).sum()
    assert found.sum() == reach[-1] - start[0] - idle
    assert (found > 0).all()


@pytest.mark.parametrize("steps", ["", "all"])
def test_phases_on_the_cpu_sum_to_the_window_of_the_ledger(tmp_path: Path, steps: str) -> None:
    """Steps of 1 ms whose ranges end 100 us early; in 30 us of what is left the next batch is fetched."""
    report = Report()
    main = report.process(1).thread(1, "python")
    for i in range(10):
        t = i * PERIOD
        own_step(main, i, t)
        main.add_range("forward", t + 10 * US, t + 510 * US, domain="nsysx")
        main.add_range("data", t + 950 * US, t + 980 * US, domain="nsysx")
        work(main, t + 20 * US)
    summary = summarize([report.write(tmp_path / "r.sqlite")], **({"steps": steps} if steps else {}), every_table=False)
    cpu = {r["name"]: r["cpu_ns"] for r in summary.rows("phases")}
    (ledger,) = summary.rows("cpu_ledger")
    assert sum(cpu.values()) == ledger["window_ns"]
    if not steps:
        assert cpu == {"forward": 9 * 500 * US, None: 9 * 400 * US, "(between steps)": 8 * 70 * US, "data": 8 * 30 * US}
