"""Where the time of a job goes: parts sum to each rank's steps, waiting is told by who is late and by what that rank does."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsysx.model import Summary
from nsysx.pipeline import summarize
from nsysx.ranks import job_ledger
from nsysx.ranks.rank_places import HostLine
from tests.examples import examples
from tests.ranks import test_late_lines
from tests.ranks.test_one_job import rank
from tests.ranks.test_random_jobs import _RECORDED, Job, programs, slowed
from tests.ranks.test_straggler import job

MS = 1_000_000


def conserves(of: Summary) -> None:
    """Hold the parts of each rank, and of all, against the table of ranks."""
    ranks, parts, places = (of.rows(key) for key in ("ranks", "job_ledger", "communication_places"))
    for row in ranks:
        theirs = [p for p in parts if p["rank"] == row["rank"]]
        if not theirs:
            continue
        assert sum(p["time_ns"] for p in theirs) == row["window_ns"]
        assert all(p["time_ns"] > 0 for p in theirs)
        waits = {p["waits_for"]: 0 for p in theirs if p["part"] == "waits"}
        for p in theirs:
            if p["part"] == "waits":
                waits[p["waits_for"]] += p["time_ns"]
        assert waits == {w["rank"]: w["ns"] for w in row["waits_for"] or ()}
        here = [p for p in places if p["rank"] == row["rank"]]
        assert sum(p["exposed_ns"] for p in here) == row["comm_ns"]
        if row["exposed_wait_ns"] is not None:
            for column in ("wait_ns", "transfer_ns", "unmatched_ns"):
                assert sum(p[column] for p in here) == row[f"exposed_{column}"]
    whole = [p for p in parts if p["rank"] is None]
    of_parts = {p["part"]: sum(q["time_ns"] for q in whole if q["part"] == p["part"]) for p in whole}
    assert list(of_parts) == sorted(of_parts, key=lambda part: (-of_parts[part], part)), "few rows are seen at first"
    by_step = {r["rank"]: r for r in of.rows("rank_waits")}
    for row in ranks:
        if row["rank"] in by_step:
            one = by_step[row["rank"]]
            assert one["wait_ns"] == row["exposed_wait_ns"] and one["steps"] == row["steps"]
            assert one["longest_ns"] <= one["wait_ns"]
            assert len(one["by_step_ns"]) != one["steps"] or sum(one["by_step_ns"]) == one["wait_ns"]
    assert sum(p["time_ns"] for p in parts if p["rank"] is None) == sum(row["window_ns"] for row in ranks)


@settings(max_examples=examples(3), deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.integers(2, 4), st.sampled_from(("compute", "host")), st.integers(0, 400))
def test_parts_sum_to_the_steps_of_each_rank(program: list[Any], count: int, what: str, us: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = (
            Job([slowed(program, what, us), *[program] * (count - 1)])
            .run(_RECORDED)
            .report.write(Path(folder) / "j.sqlite")
        )
        conserves(summarize([path], every_table=False))


@pytest.mark.parametrize(
    ("idle", "cause", "detail"), [("data DataLoader", "input", None), ("", "compute", "GEMM (kernels take longer)")]
)
def test_waiting_is_told_by_what_the_late_rank_does(tmp_path: Path, idle: str, cause: str, detail: str | None) -> None:
    of = summarize([job(tmp_path / "j.sqlite", [[20 * MS] * 12, [40 * MS] * 12], idle=idle)], every_table=False)
    conserves(of)
    waits = [p for p in of.rows("job_ledger") if p["rank"] == 0 and p["part"] == "waits"]
    assert (waits[0]["waits_for"], waits[0]["cause"], waits[0]["detail"]) == (1, cause, detail)
    assert waits[0]["time_ns"] > 0.95 * sum(p["time_ns"] for p in waits)
    assert not [p for p in of.rows("job_ledger") if p["rank"] == 1 and p["part"] == "waits" and p["waits_for"] == 0]


def test_waiting_for_a_line_names_it(tmp_path: Path) -> None:
    of = summarize([test_late_lines.job(tmp_path / "j.sqlite", 8 * MS)], every_table=False)
    conserves(of)
    waits = max(
        (p for p in of.rows("job_ledger") if p["rank"] == 0 and p["part"] == "waits"), key=lambda p: p["time_ns"]
    )
    assert (waits["cause"], waits["detail"]) == ("host", "train.py:37")
    assert waits["time_ns"] / waits["steps"] == pytest.approx(8 * MS, rel=0.05)
    places = {(p["collective"], tuple(p["members"]), p["line"]) for p in of.rows("communication_places")}
    assert places == {("allreduce", (0, 1), 40)}


def parts(idle_ns: int, **ns: int) -> dict[str, int]:
    return dict.fromkeys(("compute_ns", "copy_ns", "memset_ns"), 0) | ns | {"idle_ns": idle_ns}


def test_waiting_is_divided_by_excess_and_the_rest_is_in_turn() -> None:
    late = rank(
        1,
        steps=2,
        parts=parts(60, compute_ns=100),
        idle_causes={"host_code": 60},
        host_lines={HostLine("a/b.py", 3, ""): 20},
    )
    waits = rank(
        0,
        steps=2,
        parts=parts(20, compute_ns=80),
        idle_causes={"host_code": 20},
        host_lines={HostLine("a/b.py", 3, ""): 5},
    )
    assert job_ledger.why(late, waits, 90) == [
        job_ledger.Why("host", "b.py:3", 30),
        job_ledger.Why("compute", None, 20),
        job_ledger.Why("host", None, 10),
        job_ledger.Why(job_ledger.IN_TURN, None, 30),
    ]
    assert sum(w.ns for w in job_ledger.why(late, waits, 31)) == 31
    assert job_ledger.why(waits, late, 7) == [job_ledger.Why(job_ledger.IN_TURN, None, 7)]
