"""NSX111: work that ranks deal out in a few steps alone, of which one of them has more."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysx.catalogue import DeviceActivity, StepLimit
from nsysx.findings import _dealt_at_times
from nsysx.judging import rank_verdict
from nsysx.model import Finding, Summary
from nsysx.pipeline import summarize
from nsysx.ranks import work_at_times
from nsysx.ranks.rank_places import WorkPlace
from nsysx.ranks.rank_record import LedgerTiles, Rank
from tests.builder import Report
from tests.ranks.test_lone_work import stragglers
from tests.ranks.test_one_job import rank
from tests.ranks.test_rank_table import ALL_REDUCE

US, MS = 1_000, 1_000_000
WORK, FILE = 8 * MS, "/job/train.py"
#: Kernels of a rank in a step: name, and how long each of them runs (ms).
Kernels = Sequence[tuple[str, int]]
Extra = Callable[[int, int], Kernels]
#: What the host of rank 0 was seen at in long steps, and that of rank 1: it waits.
LOOKS = [[[FILE, 72, "root", 30, False], [FILE, 70, "root", 20, False]], [[FILE, 196, "main", 1, False]]]


def job(path: Path, extra: Extra, *, ranks: int = 2, held_ms: int = 0, looks: Any = LOOKS, every: int = 10) -> Path:
    """Write 30 steps of ranks that compute for 8 ms each, and ``extra(rank, step)`` besides; then all meet.

    ``held_ms``: before that the host of rank 0 is held in each step ``every``; ``looks``: at which lines hosts were in long steps.
    """
    report = Report()
    threads = report.ranks(ranks)
    t = MS
    for i in range(30):
        mine = [[*((f"gemm{k}", 2) for k in range(4)), *extra(r, i)] for r in range(ranks)]
        held = [held_ms * MS * (r == 0 and i % every == every - 1) for r in range(ranks)]
        done = max(h + sum(ms for _, ms in kernels) * MS for h, kernels in zip(held, mine, strict=True)) + t + 150 * US
        for r, thread in enumerate(threads):
            at = t + held[r]
            came = at + 50 * US
            for k, (kernel, ms) in enumerate(mine[r]):
                thread.launch(at + k * 5 * US, kernel=kernel, gpu_start=came, gpu_dur=ms * MS, device=r)
                came += ms * MS
            last = at + 5 * len(mine[r]) * US
            thread.launch(last, kernel=ALL_REDUCE, gpu_start=came, gpu_dur=done - came, stream=7, device=r)
            thread.sync("cudaDeviceSynchronize_v3020", at=last + 10 * US, dur=done - last - 20 * US, device=r)
            thread.add_range(f"step {i}", t, done + 50 * US, domain="nsysx")
            thread.add_range("backward", at, at + 15 * US, domain="nsysx")
        t = done + 60 * US
    longest = [
        max(sum(ms for _, ms in extra(r, i)) for r in range(ranks)) + held_ms * (i % every == every - 1)
        for i in range(200)
    ]
    lengths = [WORK + 200 * US + ms * MS for ms in longest]
    timed: dict[str, Any] = {
        "count": 200,
        "median_ns": sorted(lengths)[100],
        "low_ns": min(lengths),
        "high_ns": max(lengths),
    }
    timed |= {"clock": "gpu", "lengths_ns": lengths, "where": "between the windows", "loop_ns": lengths}
    probes: list[dict[str, Any]] = [{"pid": 100 + r, "unrecorded_steps": timed} for r in range(ranks)]
    for probe, places in zip(probes, looks, strict=False):
        samples = sum(place[3] for place in places)
        probe["long_steps"] = {"steps": 2, "samples": samples, "places": places, "entries": []}
    path.with_suffix("").with_suffix(".run.json").write_text(json.dumps({"probe": probes}))
    return report.write(path)


def refresh(*of_rank: Kernels, every: int = 10) -> Extra:
    return lambda r, i: of_rank[r] if i % every == every - 1 else ()


#: Six roots of matrices that are twice as wide, and six of the others.
WIDE, NARROW = (("gemm_wide", 8),) * 6, (("gemm_narrow", 2),) * 6


def found(path: Path) -> tuple[Finding, Summary]:
    summary = summarize([path], every_table=False)
    (finding,) = stragglers(summary)
    return finding, summary


def test_work_that_is_dealt_out_by_number_in_each_tenth_step_is_dealt_out_by_cost(tmp_path: Path) -> None:
    finding, summary = found(job(tmp_path / "j.sqlite", refresh(WIDE, NARROW)))
    at_times = summary.rows("ranks")[0]["late_at_times"]
    assert at_times["cause"] == "compute" and at_times["even_ns"] == pytest.approx(18 * MS, rel=0.02)
    dealt = at_times["dealt"]
    assert [dealt[k] for k in ("kind", "ns", "others_ns", "kernels", "others_kernels", "mean_ns", "line")] == [
        "gemm", 48 * MS, 12 * MS, 6, 6, 30 * MS, None
    ]  # fmt: skip
    assert finding.title == "Rank 0 is late in every 10th step, by 36.00 ms; its peers wait for it"
    assert [way.name for way in finding.remedies] == ["dealt-by-cost"]
    assert finding.fix == (
        "Deal out by cost, not by number, what root computes on each rank in each 10th step: rank 0 48.00 ms, its peers 12.00 ms, in "
        "about as many kernels"
    )
    assert finding.where == {"near": "rank 0", "file": FILE, "line": 72}
    # In each tenth step 18 of 36 ms go, at worst a sixth of the even share of 30 ms less.
    saving = finding.saving
    assert not saving.bound and saving.most_ns == pytest.approx(1.8 * MS, rel=0.02)
    assert (saving.most_ns or 0) - (saving.likely_ns or 0) == pytest.approx(0.25 * MS, abs=2)
    assert saving.error_ns == pytest.approx(0.25 * MS, abs=2)
    answer = summary.answer
    assert answer is not None and answer.do[0].text.startswith("Deal out by cost")
    cause = answer.certainty.parts[0]
    assert "of the waiting is for a rank with more work in the same step" in cause.reason
    assert not any(row["turn_even_ns"] for row in summary.rows("ranks"))


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ({"84": "if self.owner[n] != self.rank:"}, " (owners in self.owner, read at train.py:84)"),
        ({"84": "if rank == owners[p]:  # its own"}, " (owners in owners, read at train.py:84)"),
        ({"84": "if owners[p] == rank:", "90": "if holder[p] == rank:"}, ""),  # which of them is not known
        ({"84": "mine = params[rank::world]", "90": "if ranks[0] == 0:"}, ""),
    ],
)
def test_the_line_at_which_a_rank_knows_its_own_is_told(lines: dict[str, str], told: str, tmp_path: Path) -> None:
    path = job(tmp_path / "j.sqlite", refresh(WIDE, NARROW))
    record = path.with_suffix(".run.json")
    noted = json.loads(record.read_text())
    noted["probe"][1]["of_ranks"] = {FILE: lines}
    record.write_text(json.dumps(noted))
    finding, _ = found(path)
    assert f"in each 10th step{told}: rank 0" in finding.fix


def test_a_rank_that_mostly_waits_for_one_that_is_late_at_times_says_for_which(tmp_path: Path) -> None:
    summary = summarize([job(tmp_path / "j.sqlite", refresh(WIDE, NARROW))], every_table=False)
    assert summary.verdict is not None
    rows, waits = summary.rows("ranks"), replace(summary.verdict, code=StepLimit.COMM)
    said = rank_verdict._in_turn(waits, rows, rows[1]).sentence.removeprefix(waits.sentence)
    assert said.endswith("of the exposed communication is waiting for rank 0.")
    assert rank_verdict._in_turn(waits, rows, rows[0]) == waits  # it waits for none
    others = [{**rows[1], "waits_for": [{**part, "rank": 2} for part in rows[1]["waits_for"]]}]
    assert rank_verdict._in_turn(waits, rows, others[0]) == waits


def test_of_more_ranks_the_mean_is_what_each_would_have(tmp_path: Path) -> None:
    finding, summary = found(job(tmp_path / "j.sqlite", refresh(WIDE, NARROW, NARROW, NARROW), ranks=4, looks=()))
    assert summary.rows("ranks")[0]["late_at_times"]["dealt"]["mean_ns"] == 21 * MS
    assert finding.saving.most_ns == pytest.approx(2.7 * MS, rel=0.02) and finding.where == {"near": "rank 0"}
    assert finding.fix.startswith("Deal out by cost, not by number, what each rank computes in each 10th step: ")


def test_an_evaluation_that_is_shared_unevenly_is_shared_evenly(tmp_path: Path) -> None:
    looks = [[[FILE, 90, "evaluate", 50, False]], []]
    finding, _ = found(job(tmp_path / "j.sqlite", refresh(WIDE, NARROW[:3]), looks=looks))
    assert [way.name for way in finding.remedies] == ["mixed-shares"] and "in fewer kernels" in finding.fix
    assert finding.fix.startswith("Share evenly what the ranks evaluate in each 10th step")


@pytest.mark.parametrize(
    ("extra", "held_ms"),
    [
        (refresh(WIDE, ()), 0),  # one alone evaluates
        (refresh(WIDE, (("gemm_narrow", 1),)), 0),  # the other as good as nothing
        (refresh(WIDE, (("vectorized_elementwise_kernel", 4),) * 3), 0),  # the other does something else
        (refresh(WIDE, (("gemm_wide", 6),) * 6), 0),  # the same kernels: slower, and no more work
        (refresh(NARROW, NARROW), 60),  # its host is held up
    ],
)
def test_what_one_rank_does_alone_is_not_dealt_out(extra: Extra, held_ms: int, tmp_path: Path) -> None:
    summary = summarize([job(tmp_path / "j.sqlite", extra, held_ms=held_ms)], every_table=False)
    at_times = summary.rows("ranks")[0]["late_at_times"]
    assert at_times is not None and at_times["dealt"] is None
    (finding,) = stragglers(summary)
    assert "Deal out" not in finding.fix and finding.saving.bound == (not held_ms)
    assert finding.where == {"near": "rank 0", "file": FILE, "line": 72}  # and not the one look at rank 1


@pytest.mark.parametrize(
    "extra",
    [
        refresh(WIDE, WIDE),  # dealt out evenly
        lambda r, i: WIDE if i % 10 == 4 + 5 * r else (),  # in turn
        refresh((("gemm_wide", 3),), (("gemm_narrow", 1),)),  # too little to matter
    ],
)
def test_where_no_rank_is_late_at_times_nothing_is_dealt_out(extra: Extra, tmp_path: Path) -> None:
    summary = summarize([job(tmp_path / "j.sqlite", extra)], every_table=False)
    assert not stragglers(summary) and not any(row["late_at_times"] for row in summary.rows("ranks"))


def test_what_ranks_save_that_share_a_gpu_is_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_dealt_at_times, "others_of_gpu", lambda profile: 1)
    saving = found(job(tmp_path / "j.sqlite", refresh(WIDE, NARROW)))[0].saving
    assert saving.bound and saving.likely_ns == pytest.approx(1.8 * MS, rel=0.02)


#: The line of a refresh that calls that of a root for each matrix it owns, and a line of usual steps.
REFRESH, ROOT, USUAL = (WorkPlace("gemm", FILE, line, f"f{line}(x)") for line in (111, 71, 90))


def worked(report: int, ns: int, **outside: int) -> Rank:
    """Return a rank that computes for 90 ns in each of ten steps, and for ``ns`` more in the last one."""
    work = np.array([90] * 9 + [90 + ns], np.int64)
    tiles = LedgerTiles(np.arange(10), np.arange(10) + 1, {}, {}, work={"gemm": work}, kernels={"gemm": work // 10})
    mean = 90 + ns / 10
    known = {REFRESH: ns / 10, ROOT: ns / 20, USUAL: 90.0} if outside else {}
    parts = {a.column: 0 for a in DeviceActivity}
    return replace(
        rank(report, steps=10, compute_by_place={WorkPlace("gemm", None, None, ""): mean}, parts=parts),
        tiles=tiles,
        compute_outside=known,
    )


def test_where_such_a_step_was_x_rayed_the_call_below_which_it_lies_is_its_place() -> None:
    late = np.arange(10) == 9
    dealt = work_at_times.dealt(worked(0, 1_000, lines=1), [worked(1, 300, lines=1)], late)
    assert dealt is not None and (dealt.file, dealt.line, dealt.text) == (FILE, 111, "f111(x)")
    assert (dealt.kind, dealt.ns, dealt.others_ns, dealt.mean_ns) == ("gemm", 1_000, 300, 650)
    dealt = work_at_times.dealt(worked(0, 1_000), [worked(1, 300)], late)
    assert dealt is not None and dealt.file is None
    assert work_at_times.dealt(worked(0, 1_000), [], late) is None
    assert work_at_times.dealt(worked(0, 1_000), [worked(1, 300)], np.ones(10, np.bool_)) is None
