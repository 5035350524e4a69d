"""One rank evaluates between steps and the others wait for it in the next collective: it is seen, though no step holds it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from nsysx.findings import nsx111_straggler
from nsysx.model import Finding, Summary
from nsysx.pipeline import summarize
from tests.builder import Report
from tests.findings import findings_alone
from tests.ranks import rank_rows
from tests.ranks.test_rank_table import ALL_REDUCE

US, MS = 1_000, 1_000_000
BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
STEP, EVALUATION, FILE = 10 * MS, 60 * MS, "/job/train.py"


def job(
    path: Path, *, evaluates: tuple[int, ...] = (0,), timed: bool = True, infers_ns: int = 0, within: str = ""
) -> Path:
    """Write two ranks of ten steps (10 ms); after the eighth, some of them evaluate for 60 ms, then both broadcast.

    ``infers_ns``: before they do, those that do not evaluate infer for so long. ``within``: what it evaluates then lies in the step;
    "each step": in the other ones it infers something, too.
    """
    report = Report()
    threads = report.ranks(2)
    t = MS
    for i in range(10):
        for r, thread in enumerate(threads):
            for k in range(4):
                thread.launch(
                    t + k * 5 * US, kernel=f"gemm{k}", gpu_start=t + (k * 2 + 1) * MS, gpu_dur=2 * MS, device=r
                )
            thread.launch(t + 30 * US, kernel=ALL_REDUCE, gpu_start=t + 9 * MS, gpu_dur=100 * US, stream=20, device=r)
            thread.sync("cudaDeviceSynchronize_v3020", at=t + 50 * US, dur=STEP - 200 * US, device=r)
            longer = EVALUATION if within and i == 7 and r in evaluates else 0
            thread.add_range(f"step {i}", t, t + STEP + longer - 50 * US, domain="nsysx")
            if within == "each step":
                thread.add_range("evaluation Net", t + 60 * US, t + 200 * US, domain="nsysx")
        t += STEP
        if i != 7:
            continue
        for r, thread in enumerate(threads):
            came = t
            if r in evaluates:
                for k in range(6):  # batches, with some host code between them
                    at = t + k * EVALUATION // 6
                    thread.add_range("evaluation Net", at, at + EVALUATION // 8, domain="nsysx")
                    thread.launch(
                        at + 5 * US, kernel="infer", gpu_start=at + 20 * US, gpu_dur=EVALUATION // 8, device=r
                    )
                came = t + EVALUATION
            elif infers_ns:
                thread.add_range("evaluation Net", t, t + infers_ns, domain="nsysx")
                came = t + infers_ns
            done = t + (EVALUATION if evaluates else 0) + 100 * US
            thread.launch(
                came + 5 * US, kernel=BROADCAST, gpu_start=came + 20 * US, gpu_dur=done - came, stream=20, device=r
            )
            thread.sync("cudaDeviceSynchronize_v3020", at=came + 30 * US, dur=done - came, device=r)
        t += EVALUATION + MS
    if timed:
        lengths = [STEP] * 40
        loop = [STEP if n % 20 != 19 else STEP + EVALUATION for n in range(40)]
        steps = {"count": 40, "median_ns": STEP, "low_ns": STEP, "high_ns": STEP, "clock": "gpu", "lengths_ns": lengths}
        steps |= {"where": "between the windows", "loop_ns": loop}
        probes = [{"pid": 100 + r, "unrecorded_steps": steps} for r in range(2)]
        path.with_suffix("").with_suffix(".run.json").write_text(json.dumps({"probe": probes}))
    return report.write(path)


def late_ones(*reports: Path) -> list[Finding]:
    """Return the stragglers alone."""
    return [f for f in findings_alone("NSX111", *reports) if f.verdict == "found"]


def stragglers(summary: Summary) -> list[Finding]:
    return [f for f in summary.findings or () if f.code == "NSX111" and f.verdict == "found"]


def test_an_evaluation_on_one_rank_is_told_and_comes_first(tmp_path: Path) -> None:
    summary = summarize([job(tmp_path / "j.sqlite")], every_table=False)
    rows = summary.rows("ranks")
    assert [r["straggler"] for r in rows] == [False, False]
    (alone,) = rows[0]["lone_work"]
    assert rows[1]["lone_work"] is None
    assert (alone["collective"], alone["ranks"]) == ("broadcast", 1)
    assert alone["ns"] == pytest.approx(EVALUATION, rel=0.02)
    (finding,) = stragglers(summary)
    assert finding.title.startswith("Rank 0 alone evaluates between steps, for 60.00 ms; 1 rank more waits")
    assert finding.cost_ns_per_step == pytest.approx(EVALUATION / 20, rel=0.05)
    assert (
        finding.saving.likely_ns is None
        and finding.saving.confidence.startswith("1.13x faster over the loop")
        and "13.00 ms → 11.50 ms a step with what runs between steps, where 2 ranks share it"
        in finding.saving.confidence
    )
    assert summary.answer is not None
    assert "Share the evaluation" in summary.answer.do[0].text and "11.50 ms" in summary.answer.worth


CALLS, WAITS, TRAINS, OTHER, EVALUATES = (
    [FILE, n, name] for n, name in ((137, "report"), (138, "report"), (20, "step"), (9, "loss"), (55, "evaluate"))
)


@pytest.mark.parametrize(
    ("works", "waits", "line"),
    [
        ([[*OTHER, 50, False], [*CALLS, 1, False]], [[*WAITS, 80, True], [*TRAINS, 5, True]], 137),
        (
            [[*OTHER, 50, False], [*TRAINS, 9, True]],
            [[*WAITS, 80, True], [*TRAINS, 5, True]],
            None,
        ),  # no function of both
        (
            [[*OTHER, 50, False], [*EVALUATES, 9, True]],
            [[*WAITS, 80, True]],
            55,
        ),  # but one that is called an evaluation
        ([[*CALLS, 9, False]], [[*CALLS, 9, False]], None),  # at the same line
    ],
)
@pytest.mark.parametrize("entered", [False, True])
def test_the_line_of_one_rank_is_in_the_function_in_which_the_others_wait(
    works: list[list[object]], waits: list[list[object]], line: int | None, entered: bool, tmp_path: Path
) -> None:
    """Lines were noted in long steps while nothing recorded, or only by what they were entered."""
    path = job(tmp_path / "j.sqlite")
    beside = tmp_path / "j.run.json"
    noted = json.loads(beside.read_text())
    for probe, places in zip(noted["probe"], (works, waits), strict=True):
        entries = [place[:4] for place in places if entered]
        probe["long_steps"] = {"steps": 2, "samples": 90, "places": [] if entered else places, "entries": entries}
    beside.write_text(json.dumps(noted))
    (finding,) = late_ones(path)
    assert finding.where == {"near": "rank 0", **({"file": FILE, "line": line} if line else {})}


def test_without_a_timed_loop_it_is_as_often_as_recorded(tmp_path: Path) -> None:
    """Once in ten steps: the evaluation of 60 ms adds 6 ms to each, half of which goes."""
    summary = summarize([job(tmp_path / "j.sqlite", timed=False)], every_table=False)
    (finding,) = stragglers(summary)
    assert finding.cost_ns_per_step is None and finding.saving.likely_ns is None
    size = finding.saving.confidence
    assert (
        "runs 1 time in 10 steps, 6.00 ms for each" in size and "3.00 ms of that go" in size and "was not timed" in size
    )
    assert "Share the evaluation" in summary.answer.do[0].text


@pytest.mark.parametrize("within", ["one step", "each step"])
def test_what_each_step_infers_itself_is_no_evaluation_of_one_rank(tmp_path: Path, within: str) -> None:
    """A host that runs ahead has launched a reference's forward long before another one's does."""
    rows = rank_rows(job(tmp_path / "j.sqlite", within=within))
    assert (rows[0]["lone_work"] is None) is (within == "each step")


@pytest.mark.parametrize("evaluates", [(), (0, 1)])
def test_an_evaluation_on_all_ranks_or_on_none_is_nobodys(tmp_path: Path, evaluates: tuple[int, ...]) -> None:
    summary = summarize([job(tmp_path / "j.sqlite", evaluates=evaluates)], every_table=False)
    assert not stragglers(summary)
    assert [r["lone_work"] for r in summary.rows("ranks")] == [None, None]


@pytest.mark.parametrize(("infers_ns", "alone"), [(2 * MS, True), (24 * MS, False)])
def test_a_rank_that_has_done_its_part_of_an_evaluation_does_not_wait_for_a_lone_one(
    tmp_path: Path, infers_ns: int, alone: bool
) -> None:
    """One pass of a teacher's network before its gradients is no part of an evaluation; less than the other does is."""
    summary = summarize([job(tmp_path / "j.sqlite", infers_ns=infers_ns)], every_table=False)
    assert bool(stragglers(summary)) is alone


def job_of_steps(path: Path, evaluation_ns: int, steps: int, every: int = 10) -> Path:
    """Write two ranks of steps (10 ms); behind some, rank 0 evaluates, and the all-reduce of rank 1's next step waits for it."""
    report = Report()
    threads = report.ranks(2)
    t, late = MS, 0
    for i in range(steps):
        end = t + late + STEP
        for r, thread in enumerate(threads):
            begin = t + (late if r == 0 else 0)
            for k in range(4):
                start = begin + (k * 2 + 1) * MS
                thread.launch(begin + k * 5 * US, kernel=f"gemm{k}", gpu_start=start, gpu_dur=2 * MS, device=r)
            came, done = begin + 9 * MS, end - 900 * US
            thread.launch(begin + 30 * US, kernel=ALL_REDUCE, gpu_start=came, gpu_dur=done - came, stream=20, device=r)
            thread.sync("cudaDeviceSynchronize_v3020", at=begin + 50 * US, dur=end - begin - 200 * US, device=r)
            thread.add_range(f"step {i}", begin, end - 50 * US, domain="nsysx")
        t, late = end, evaluation_ns if i % every == every - 1 else 0
        for k in range(6 if late else 0):
            at, part = t + k * late // 6, late // 8
            threads[0].add_range("evaluation Net", at, at + part, domain="nsysx")
            threads[0].launch(at + 5 * US, kernel="infer", gpu_start=at + 20 * US, gpu_dur=part, device=0)
    loop = [STEP + (evaluation_ns if n % every == every - 1 else 0) for n in range(200)]
    probes = []
    for r, lengths in enumerate(([STEP] * 200, loop)):
        timed = {"count": 200, "median_ns": STEP, "low_ns": min(lengths), "high_ns": max(lengths), "clock": "gpu"}
        timed |= {"lengths_ns": lengths, "where": "between the windows", "loop_ns": loop}
        probes.append({"pid": 100 + r, "unrecorded_steps": timed})
    path.with_suffix("").with_suffix(".run.json").write_text(json.dumps({"probe": probes}))
    return report.write(path)


@pytest.mark.parametrize("steps", [12, 30])
def test_an_evaluation_that_is_most_of_the_work_of_one_rank_is_shared_not_taken_out(steps: int, tmp_path: Path) -> None:
    """The step behind it waits on the other rank. Three evaluations in a window left that rank without steps, and 7.9x was told."""
    summary = summarize([job_of_steps(tmp_path / "j.sqlite", 680 * MS, steps)], every_table=False)
    assert [bool(r["lone_work"]) for r in summary.rows("ranks")] == [True, False]
    (finding,) = stragglers(summary)
    assert finding.title.startswith("Rank 0 alone evaluates between steps, for 680.0 ms")
    assert (
        "78.00 ms → 44.00 ms a step with what runs between steps, where 2 ranks share it" in finding.saving.confidence
    )
    assert summary.answer is not None and "1.8x faster over the loop" in summary.answer.worth


@pytest.mark.parametrize("every", [1, 3])
def test_an_evaluation_that_is_over_before_the_others_have_computed_is_one_for_which_they_wait(
    every: int, tmp_path: Path
) -> None:
    """It takes less time than the step: then the wait comes behind it. Where it makes a straggler, that is told as this alone."""
    summary = summarize([job_of_steps(tmp_path / "j.sqlite", 5 * MS, 30, every)], every_table=False)
    (finding,) = stragglers(summary)
    assert finding.title.startswith("Rank 0 alone evaluates between steps, for 5.00 ms; 1 rank more waits")
    assert [way.name for way in finding.remedies] == ["shared-evaluation"]


@pytest.mark.parametrize(("seen", "line"), [({"file": FILE, "line": 40}, 40), ({}, 9)])
def test_the_place_is_where_the_rank_evaluates_and_else_where_the_others_wait(
    seen: dict[str, Any], line: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [{"ns": 900 * MS, "file": FILE, "line": 9, "ranks": 1, "collective": "all-reduce"}]
    rows = [{"rank": rank, "process": rank, "lone_work": times if rank == 0 else ()} for rank in range(2)]
    monkeypatch.setattr(nsx111_straggler, "rank_rows", lambda case: rows)
    monkeypatch.setattr(nsx111_straggler, "_unprofiled_of", lambda case, process: None)
    monkeypatch.setattr(nsx111_straggler, "line_of_one_rank", lambda case, process: seen)
    steps = SimpleNamespace(gpu=pl.DataFrame({"process": [0] * 10}))
    case: Any = SimpleNamespace(profile=SimpleNamespace(steps=steps), process=0, step_ns=10 * MS)
    (finding,) = nsx111_straggler._evaluating_alone(case)
    assert finding.where == {"file": FILE, "line": line, "near": "rank 0"}
