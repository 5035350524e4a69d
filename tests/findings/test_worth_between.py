"""The most that a change of GPU work may save: no more than leaves the work that stays, of which streams do some at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.findings._case import Case, ops_of
from nsysx.replay.engine import RemoveOps, ScaleOps, replay_of
from tests.findings import Program
from tests.findings.test_thresholds import judged
from tests.ranks.test_rank_table import ALL_REDUCE

MS = 1_000_000
GOES = "wgrad"


@pytest.mark.parametrize("stream", [20, None])
def test_communication_beside_the_work_that_stays_takes_no_time_of_its_own(stream: int | None, tmp_path: Path) -> None:
    """Of 4 ms of work 2 go, with 1.5 ms of communication beside the rest or, on the same stream, behind it."""

    def body(program: Program, number: int) -> None:
        for _ in range(20):
            program.launch(100)
        program.launch(1_500, ALL_REDUCE, **({} if stream is None else {"stream": stream}))
        for _ in range(20):
            program.launch(100, GOES)
        program.sync()

    profile, tables, _ = judged(Program().steps(body, 12).report.write(tmp_path / "r.sqlite"))
    case = Case(profile, tables, replay_of(profile))
    goes = ops_of(case.ops.filter(case.ops["name"].cast(str) == GOES))
    worth = case.worth_between(
        [ScaleOps(goes, 0.6, less_work=True)], [ScaleOps(goes, 0.5, less_work=True)], [RemoveOps(goes)], "what is left"
    )
    assert worth.most_ns is not None and worth.likely_ns is not None
    assert worth.most_ns == pytest.approx(2 * MS, rel=0.1)
    assert worth.likely_ns == pytest.approx(1 * MS, rel=0.15)


@pytest.mark.parametrize(("host_us", "lost"), [(10, False), (150, True)])
def test_a_slower_host_saves_less_where_the_gpu_waits_for_it_behind_the_change(
    host_us: int, lost: bool, tmp_path: Path
) -> None:
    """Of 10 ms on the GPU 2 go, behind 3 ms of a host that the GPU waits for, or for a tenth of that."""

    def body(program: Program, number: int) -> None:
        for _ in range(20):
            program.host(host_us)
            program.launch(5)
        for _ in range(60):
            program.launch(100)
        for _ in range(20):
            program.launch(100, GOES)
        program.sync()

    profile, tables, _ = judged(Program().steps(body, 12).report.write(tmp_path / "r.sqlite"))
    case = Case(profile, tables, replay_of(profile))
    goes = ops_of(case.ops.filter(case.ops["name"].cast(str) == GOES))
    half, whole = ([ScaleOps(goes, share, less_work=True)] for share in (0.1, 0.0))
    worth = case.worth_between(half, whole, whole, "what is left")
    host_ns = 20 * host_us * 1_000
    less_ns = 0.15 * host_ns if lost else 0.1 * 2 * MS
    assert worth.likely_ns is not None and worth.error_ns is not None
    assert worth.error_ns >= 0.8 * less_ns
    if not lost:
        assert worth.error_ns <= 2 * less_ns
