"""What a change saves of the GPU's own work where no replay comes near the recorded steps, and the step that it is a share of."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nsysx.findings._case import Case, ops_of
from nsysx.replay import engine
from nsysx.replay.engine import RemoveHost, RemoveOps, ScaleOps, replay_of
from tests.findings import Program
from tests.findings.test_thresholds import judged
from tests.ranks.test_rank_table import ALL_REDUCE

US, MS = 1_000, 1_000_000
GONE, COMM = "wgrad", ALL_REDUCE


def working(program: Program, number: int) -> None:
    """4 ms of work, 1 ms of which goes, and 2 ms of communication behind it."""
    for _ in range(30):
        program.launch(100)
    for _ in range(10):
        program.launch(100, GONE)
    program.launch(2_000, COMM)


def waiting(program: Program, number: int) -> None:
    """The GPU waits for its host for most of the step."""
    program.launch(1_000, GONE)
    program.host(6_000)
    program.launch(1_000)


@pytest.fixture(autouse=True)
def _distrusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "TRUSTED_ERROR", -1.0)


def case_of(folder: Path, body: Callable[[Program, int], None], timed_ns: int = 0) -> Case:
    """Return the case of a program; ``timed_ns``: its step as it was timed without the profiler, 0 where it was not."""
    lengths = {"lengths_ns": [timed_ns] * 60, "after_ns": [], "clock": "gpu", "where": "between the windows"}
    record = {"pid": 100, "unrecorded_steps": {**lengths, "detached": False}, "window_pauses_ns": [MS, MS]}
    folder.mkdir(exist_ok=True)
    path = Program().steps(body, 12).report.write(folder / "r.sqlite")
    if timed_ns:
        (folder / "r.run.json").write_text(json.dumps({"probe": [record]}))
    profile, tables, _ = judged(path)
    return Case(profile, tables, replay_of(profile))


def named(case: Case, name: str) -> frozenset[int]:
    return ops_of(case.ops.filter(case.ops["name"].cast(str) == name))


def test_work_that_goes_is_priced_by_its_time(tmp_path: Path) -> None:
    case = case_of(tmp_path, working)
    worth = case.worth(RemoveOps(named(case, GONE)))
    assert worth.source == "time" and not worth.bound and "misses the recorded step" in worth.confidence
    assert worth.most_ns is not None and worth.most_ns >= 1 * MS - 10 * US
    assert 0.8 * MS < (worth.likely_ns or 0) <= worth.most_ns
    half = case.worth(ScaleOps(named(case, GONE), 0.5, less_work=True))
    assert half.likely_ns == pytest.approx((worth.likely_ns or 0) / 2, rel=0.01)


def test_communication_and_hosts_are_not_priced_by_their_time(tmp_path: Path) -> None:
    """A collective may only wait for another rank, and a host for its device."""
    case = case_of(tmp_path, working)
    assert case.worth(RemoveOps(named(case, COMM))).likely_ns is None
    assert case.worth_or_freed(RemoveOps(named(case, COMM))).likely_ns is None
    assert case.worth(RemoveHost()).likely_ns is None
    both = case.worth(RemoveOps(named(case, GONE) | named(case, COMM)))
    work = case.worth(RemoveOps(named(case, GONE)))
    assert (both.most_ns or 0) > (work.most_ns or 0)  # at most it does not wait
    assert (both.likely_ns or 0) - (both.error_ns or 0) == pytest.approx(
        (work.likely_ns or 0) - (work.error_ns or 0), abs=2
    )


def test_work_of_a_gpu_that_waits_for_its_host_may_save_nothing(tmp_path: Path) -> None:
    case = case_of(tmp_path, waiting)
    worth = case.worth(RemoveOps(named(case, GONE)))
    assert (worth.likely_ns or 0) - (worth.error_ns or 0) <= 1
    assert worth.most_ns is not None and worth.most_ns >= 1 * MS - 10 * US


@pytest.mark.traced
def test_a_step_that_was_timed_is_the_shown_one_and_its_idle_time_is_what_the_work_leaves(tmp_path: Path) -> None:
    """6 ms as recorded, of which 2 ms work: without the profiler 5 ms, so that 3 of 4 ms of idle time stay."""
    timed = case_of(tmp_path, waiting, 5 * MS)
    assert timed.recorded_ns == pytest.approx(6 * MS, rel=0.02)
    assert timed.step_ns == pytest.approx(5 * MS, rel=0.01)
    assert timed.per_step(timed.idle["real_ns"].sum()) == pytest.approx(3 * MS, rel=0.05)


def test_a_step_that_was_not_timed_is_as_recorded(tmp_path: Path) -> None:
    case = case_of(tmp_path, waiting)
    assert case.step_ns == case.recorded_ns == pytest.approx(6 * MS, rel=0.02)
    assert case.idle["real_ns"].to_list() == case.idle["ns"].to_list()
