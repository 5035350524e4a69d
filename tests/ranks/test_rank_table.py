"""Many ranks: what each waits for is known here to the nanosecond, because the reports are built from it."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysx import pipeline
from nsysx.errors import NsysxError
from nsysx.model import Summary
from nsysx.pipeline import Job, ReadingOptions, gather_job, summarize, summary_of
from nsysx.ranks import collect, job_compared, rank_checks, rank_table
from nsysx.reading import nccl_notes
from nsysx.render import grids, json_text
from tests.builder import Process, Report, Thread
from tests.ranks import rank_rows

PERIOD, TRANSFER, STEPS = 1_000_000, 50_000, 12
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
SAMPLES = Path(__file__).resolve().parents[2] / "sample_reports"
EPOCH = 1_795_228_332_660_273_255


def steps(
    process: Process, compute: int, slowest: int, *, device: int = 0, phase: int = 0, first: int = 0, hidden: int = 0
) -> Thread:
    """Add training steps: ``compute`` ns of work, then an all-reduce that ends TRANSFER after the slowest rank came.

    ``hidden`` ns of other work run while the all-reduce waits; ``phase`` shifts everything, ``first`` leaves early steps out.
    """
    thread = process.thread(process.pid, "python3")
    for i in range(first, STEPS):
        t = phase + 1_000_000 + i * PERIOD
        thread.add_range(f"step {i}", t, t + PERIOD - 100, domain="nsysx")
        thread.launch(t + 1_000, kernel="gemm", gpu_start=t + 10_000, gpu_dur=compute, device=device)
        came, done = t + 10_000 + compute, t + 10_000 + slowest + TRANSFER
        thread.launch(t + 2_000, kernel=ALL_REDUCE, gpu_start=came, gpu_dur=done - came, stream=20, device=device)
        if hidden:
            thread.launch(t + 3_000, kernel="add", gpu_start=came, gpu_dur=hidden, device=device)
        thread.sync("cudaDeviceSynchronize_v3020", at=t + 5_000, dur=done - t, device=device)
    return thread


def one_report(path: Path, compute: Sequence[int], **options: Any) -> Path:
    """Write a report of several processes whose correlation ids are the same."""
    report = Report()
    for i, ns in enumerate(compute):
        process = report.process(100 + i)
        steps(process, ns, max(compute), device=i, **options)
        report.gpu(i, pids=[(100 + i, i)])
    return report.write(path)


def reports(folder: Path, compute: Sequence[int], *, starts: Sequence[int], clocks: Sequence[int]) -> list[Path]:
    """Write one report per rank. ``starts``: when each session began; ``clocks``: how wrong each host's clock is."""
    written = []
    for i, (ns, start, wrong) in enumerate(zip(compute, starts, clocks, strict=True)):
        report = Report(utc_epoch_ns=EPOCH + start + wrong)
        steps(report.process(100), ns, max(compute))
        report.gpu(pids=[(100, 0)])
        report.shift(-start)
        written.append(report.write(folder / f"rank{i}.sqlite"))
    return written


_OPTIONS = ReadingOptions(every_table=False)

#: A report with its inode and the time of its last change: as it was written.
Written = tuple[tuple[Path, int, int], ...]


def _written(paths: Sequence[Path]) -> Written:
    return tuple((path, path.stat().st_ino, path.stat().st_mtime_ns) for path in paths)


@lru_cache(maxsize=2)
def _job(written: Written) -> Job:
    return gather_job([path for path, *_ in written], _OPTIONS)


@lru_cache(maxsize=2)
def _summary(written: Written) -> Summary:
    return summary_of(_job(written), _OPTIONS)


def summary(*paths: Path) -> Summary:
    """Return the Summary of reports, made once for as long as they are as they were written."""
    return _summary(_written(paths))


def table(*paths: Path, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of ranks, for which no rule is asked."""
    rows = rank_rows(*paths, **options) if options else _job(_written(paths)).rank_table.rows or ()
    return [dict(row) for row in rows]


def checks(*paths: Path) -> dict[str, Any]:
    return {c.check: c for c in summary(*paths).quality}


def test_straggler_of_one_report(tmp_path: Path) -> None:
    path = one_report(tmp_path / "job.sqlite", [300_000, 300_000, 500_000])
    rows = table(path)
    assert [r["straggler"] for r in rows] == [False, False, True]
    n = rows[0]["steps"]
    assert n >= STEPS // 2
    for r in rows:
        assert r["collectives"] == n
        assert r["transfer_ns"] == TRANSFER * n
        assert r["exposed_wait_ns"] == r["wait_ns"]
        assert r["exposed_transfer_ns"] == r["transfer_ns"]
        assert r["comm_ns"] == r["exposed_wait_ns"] + r["exposed_transfer_ns"]
        assert r["window_ns"] == sum(r[f"{k}_ns"] for k in ("compute", "comm", "copy", "memset", "idle"))
        assert sum(r["idle_causes"].values()) == r["idle_ns"]
        assert r["clock_correction_ns"] == 0
    assert [r["wait_ns"] for r in rows] == [200_000 * n, 200_000 * n, 0]
    assert [r["delay_ns"] for r in rows] == [0, 0, 400_000 * n]
    assert [r["last_share"] for r in rows] == [0, 0, 1]
    assert rows[2]["late_because"] == {"compute": 200_000}
    said = summarize([path], every_table=False).verdict.evidence[-1]
    assert said.startswith("rank 2 is 200 us per step behind its peers in GPU work")


def test_one_rank_of_reports_that_hold_several(tmp_path: Path) -> None:
    """Which rank is shown changes nothing about the ranks: the others of its report count as those of other reports."""
    paths = [one_report(tmp_path / f"node{n}.sqlite", [300_000, 300_000 + n]) for n in range(2)]
    everyone = table(*paths)
    assert [r["rank"] for r in everyone] == [0, 1, 2, 3]
    assert all(table(*paths, rank=rank) == everyone for rank in range(4))


def test_waiting_behind_compute_is_not_exposed(tmp_path: Path) -> None:
    path = one_report(tmp_path / "job.sqlite", [300_000, 500_000], hidden=40_000)
    fast, slow = table(path)
    n = fast["steps"]
    assert fast["wait_ns"] == 200_000 * n
    assert fast["exposed_wait_ns"] == 160_000 * n
    assert slow["exposed_transfer_ns"] == (TRANSFER - 40_000) * n
    assert fast["hidden_comm_ns"] == slow["hidden_comm_ns"] == 40_000 * n


def test_equal_ranks_have_no_straggler(tmp_path: Path) -> None:
    rows = table(one_report(tmp_path / "job.sqlite", [300_000, 300_000]))
    assert not any(r["straggler"] for r in rows)
    assert all(r["wait_ns"] == 0 and r["late_because"] == {} for r in rows)


@pytest.mark.parametrize("wrong", [0, 3_000_000, -40_000])
def test_sessions_and_clocks_are_aligned(tmp_path: Path, wrong: int) -> None:
    paths = reports(tmp_path, [300_000, 500_000], starts=[0, 700_000], clocks=[0, wrong])
    rows = table(*paths)
    assert [r["report"] for r in rows] == ["rank0.sqlite", "rank1.sqlite"]
    assert rows[1]["clock_correction_ns"] == -wrong
    assert [r["straggler"] for r in rows] == [False, True]
    assert rows[0]["wait_ns"] == 200_000 * rows[0]["collectives"]
    assert ("rank clocks" in checks(*paths)) == (abs(wrong) > 1_000_000)


def test_a_report_without_session_start(tmp_path: Path) -> None:
    paths = []
    for i, ns in enumerate([300_000, 500_000]):
        report = Report(utc_epoch_ns=None if i else EPOCH)
        steps(report.process(100), ns, 500_000)
        report.shift(i * 123_456_789)
        paths.append(report.write(tmp_path / f"{i}.sqlite"))
    rows = table(*paths)
    assert [r["straggler"] for r in rows] == [False, True]
    assert rows[0]["wait_ns"] == 200_000 * rows[0]["collectives"]
    assert "does not say when" in checks(*paths)["rank clocks"].detail


def test_a_capture_that_began_later(tmp_path: Path) -> None:
    """Three steps are missing in one report: the n-th collective there is the n+3rd here."""
    paths = []
    for i, (ns, first) in enumerate([(300_000, 0), (500_000, 3)]):
        report = Report()
        steps(report.process(100), ns, 500_000, first=first)
        paths.append(report.write(tmp_path / f"{i}.sqlite"))
    rows = table(*paths)
    assert rows[0]["wait_ns"] == 200_000 * rows[0]["collectives"] > 0
    assert rows[1]["wait_ns"] == 0
    assert "9 to 12 collectives" in checks(*paths)["rank lengths"].detail


def test_a_rank_without_collectives_of_its_own_steps_is_not_named(tmp_path: Path) -> None:
    """The others wait for it, but what its own steps hold says nothing about it."""
    path = one_report(tmp_path / "job.sqlite", [300_000, 500_000])
    early, late = collect.records(pipeline.gather(path, pipeline.ReadingOptions()))
    last = int(late.end_ns[-1])
    late = replace(late, window=(last, last + 1_000), tiles=None)
    rows = rank_table.table(job_compared.compare([early, late]), "").rows
    assert rows is not None
    assert [(r["collectives"] > 0, r["straggler"]) for r in rows] == [(True, False), (False, False)]
    assert rows[0]["exposed_wait_ns"] > 0
    assert rank_table.sentence(rows) is None


def test_groups_that_do_not_run_together_are_not_mixed(tmp_path: Path) -> None:
    """Two pairs of ranks, each with its own all-reduce, half a period apart."""
    report = Report()
    for i, (ns, slowest, phase) in enumerate(
        [(100_000, 100_000, 0), (200_000, 300_000, 500_000), (60_000, 100_000, 0), (300_000, 300_000, 500_000)]
    ):
        steps(report.process(100 + i), ns, slowest, device=i, phase=phase)
    rows = table(report.write(tmp_path / "job.sqlite"))
    n = rows[0]["collectives"]
    assert [r["wait_ns"] for r in rows] == [0, 100_000 * n, 40_000 * n, 0]
    assert rows[3]["straggler"]


def test_without_collectives_nothing_is_claimed(tmp_path: Path) -> None:
    report = Report()
    for i in range(2):
        thread = report.process(100 + i).thread(100 + i)
        for k in range(8):
            thread.add_range(f"step {k}", k * 10_000, k * 10_000 + 9_000, domain="nsysx")
            thread.launch(k * 10_000 + 100, kernel="gemm", gpu_start=k * 10_000 + 2_000, gpu_dur=3_000, device=i)
    path = report.write(tmp_path / "job.sqlite")
    for row in table(path):
        for key in ("wait_ns", "transfer_ns", "exposed_wait_ns", "last_share", "delay_ns", "clock_correction_ns"):
            assert row[key] is None
        assert row["straggler"] is False
    assert checks(path)["collectives"].status == "missing"


def test_the_whole_capture_is_not_divided_by_steps(tmp_path: Path) -> None:
    summary = summarize([one_report(tmp_path / "all.sqlite", [300_000, 400_000])], steps="all", every_table=False)
    rows = summary.rows("ranks")
    assert [r["steps"] for r in rows] == [0, 0]
    assert all(r["window_ns"] > (STEPS - 1) * PERIOD for r in rows)
    shown = grids.grid(summary.tables["ranks"], top=5, redact=False, width=80)
    assert shown.scope == "in the whole capture"


def test_one_rank_is_not_compared(tmp_path: Path) -> None:
    summary = summarize([one_report(tmp_path / "one.sqlite", [300_000])], every_table=False)
    assert summary.tables["ranks"].rows is None
    assert "one rank" in summary.tables["ranks"].reason
    assert not any(c.check in {"collectives", "rank lengths"} for c in summary.quality)


def test_messages_that_wait_for_their_receiver_are_matched(tmp_path: Path) -> None:
    """Of four messages a step one is with the receiver before it asks; the capture of one rank began a message earlier."""
    report = Report()
    for rank in range(2):
        process = report.process(100 + rank)
        thread = process.thread(100 + rank, "python3")
        report.gpu(rank, pids=[(100 + rank, rank)])
        if rank == 0:
            thread.launch(100_000, kernel=SEND, gpu_start=110_000, gpu_dur=50_000, stream=20, device=rank)
        for i in range(STEPS):
            t = 1_000_000 + i * PERIOD
            thread.add_range(f"step {i}", t, t + PERIOD - 100, domain="nsysx")
            thread.launch(t + 1_000, kernel="gemm", gpu_start=t + 10_000, gpu_dur=20_000, device=rank)
            for n in range(4):
                begin = t + 50_000 + n * 150_000 + (60_000 if n == 1 and rank else 0)
                thread.launch(t + 2_000 + n, kernel=SEND, gpu_start=begin, gpu_dur=50_000, stream=20, device=rank)
    rows = table(report.write(tmp_path / "r.sqlite"))
    assert [row["collectives"] for row in rows] == [4 * row["steps"] for row in rows]
    assert all(row["bubble_ns"] is not None and row["exposed_unmatched_ns"] == 0 for row in rows)


def test_the_shown_rank(tmp_path: Path) -> None:
    paths = reports(tmp_path, [300_000, 500_000], starts=[0, 0], clocks=[0, 0])
    first, second = summarize(paths, every_table=False), summarize(paths, rank=1, every_table=False)
    assert first.capture.files == second.capture.files == ("rank0.sqlite", "rank1.sqlite")
    assert [dict(r) for r in first.rows("ranks")] == [dict(r) for r in second.rows("ranks")]
    compute = [s.rows("gpu_ledger")[0]["compute_ns"] for s in (first, second)]
    assert compute[1] * 3 == compute[0] * 5


@pytest.mark.traced
def test_pool_and_serial_agree_to_the_byte(tmp_path: Path) -> None:
    paths = reports(tmp_path, [300_000, 400_000, 500_000], starts=[0, 5, 9], clocks=[0, 0, 0])
    alone = json_text.render(summarize(paths, workers=1))
    assert json_text.render(summarize(paths, workers=2)) == alone


@pytest.mark.traced
def test_cluster_and_serial_agree_to_the_byte(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    paths = reports(tmp_path, [300_000, 500_000], starts=[0, 5], clocks=[0, 0])
    alone = json_text.render(summarize(paths, workers=1))
    assert json_text.render(summarize(paths, cluster="local")) == alone


# -- what NCCL notes itself ----------------------------------------------------------------------------------------------

WORLD, PAIR = 14_639_155_052_552_205_260, 12_898_407_679_887_880_862
KERNELS = {
    "ncclAllReduce": ALL_REDUCE,
    "ncclAllGather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclBroadcast": "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclSend": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "ncclAlltoAll": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}


def noted(thread: Thread, name: str, start: int, end: int, **payload: int) -> None:
    """Add a range of NCCL's, with its payload as an export with --include-json=true has it."""
    row = thread.add_range(name, start, end, domain="NCCL")
    words = {"comm": "NCCL communicator ID", "size": "Message size [bytes]", "peer": "Peer rank", "of": "No. of ranks"}
    if payload:
        row["jsonText"] = json.dumps({words.get(k, k): v for k, v in payload.items()})


def member(thread: Thread, comm: int, of: int, rank: int) -> None:
    noted(thread, "ncclCommInitRankConfig", 100, 200, comm=comm, of=of, Rank=rank)


def collective(
    thread: Thread, name: str, at: int, start: int, end: int, *, device: int = 0, stream: int = 20, **payload: int
) -> None:
    """Add a call of NCCL's with its kernel."""
    noted(thread, name, at, at + 40, **payload)
    thread.launch(at + 10, kernel=KERNELS[name], gpu_start=start, gpu_dur=end - start, device=device, stream=stream)


def job(report: Report, number: int, *, steps: int = 8, device: int = 0) -> Iterator[tuple[int, int, Thread]]:
    """Add a process with steps of compute, and yield (step, begin of its communication on the GPU, thread) of each."""
    process = report.process(100 + number)
    thread = process.thread(100 + number, "python3")
    report.gpu(device, pids=[(100 + number, device)])
    for i in range(steps):
        t = 1_000_000 + i * PERIOD
        thread.add_range(f"step {i}", t, t + PERIOD - 100, domain="nsysx")
        thread.launch(t + 1_000, kernel="gemm", gpu_start=t + 10_000, gpu_dur=90_000, device=device)
        yield i, t + 100_000, thread


def test_communicators_are_told_apart_by_name(tmp_path: Path) -> None:
    """Two pairs of ranks whose all-reduces run at the same time: by time alone all four would seem to wait together."""
    report = Report()
    for r, (came, done) in enumerate([(0, 300_000), (200_000, 300_000), (50_000, 320_000), (120_000, 320_000)]):
        for i, t, thread in job(report, r, device=r):
            if not i:
                member(thread, WORLD, 4, r)
                noted(thread, "ncclCommInitRankConfig", 300, 400, comm=PAIR + r // 2, of=2, Rank=r % 2)
            at, comm = t - 98_000, PAIR + r // 2
            collective(thread, "ncclAllReduce", at, t + came, t + done, device=r, comm=comm, size=4_000_000)
    rows = table(report.write(tmp_path / "job.sqlite"))
    n = rows[0]["collectives"]
    assert n > 4
    assert [r["wait_ns"] // n for r in rows] == [200_000, 0, 70_000, 0]
    assert [r["delay_ns"] // n for r in rows] == [0, 200_000, 0, 70_000]
    assert [r["by_collective"][0]["communicator"] for r in rows] == [0, 0, 1, 1]
    assert str(PAIR) not in json_text.render(summarize([tmp_path / "job.sqlite"]))


def test_bytes_and_bus_bandwidth(tmp_path: Path) -> None:
    report = Report()
    for r in range(2):
        for i, t, thread in job(report, r, device=r):
            if not i:
                member(thread, WORLD, 2, r)
            late, end = r * 1_000, t + 101_000
            collective(thread, "ncclAllReduce", t - 90_000, t + late, end, device=r, comm=WORLD, size=8_000_000)
            collective(thread, "ncclAllGather", t - 89_000, end, end + 10_000, device=r, comm=WORLD, size=1_000_000)
            collective(
                thread, "ncclAlltoAll", t - 88_000, end + 10_000, end + 20_000, device=r, comm=WORLD, size=500_000
            )
    path = report.write(tmp_path / "job.sqlite")
    row = table(path)[0]
    n = row["steps"]
    assert row["bytes"] == 9_500_000 * n
    # 2 ranks: an all-reduce sends each byte over the link once each way, 2 (n - 1) / n = 1.
    assert row["bus_bytes_per_s"] == pytest.approx(9_500_000 / 120_000e-9)
    by_kind = {c["kind"]: c for c in row["by_collective"]}
    assert list(by_kind) == ["allreduce", "allgather", "alltoall"]
    assert by_kind["allreduce"] == {
        "communicator": 0, "ranks": 2, "kind": "allreduce", "calls": n, "transfer_ns": 100_000 * n, "wait_ns": 1_000 * n,
        "bytes": 8_000_000 * n, "bus_bytes_per_s": pytest.approx(8e13 / 1e3),
    }  # fmt: skip
    assert checks(path)["nccl messages"].status == "ok"


def test_a_capture_that_saw_no_communicator_made_has_bytes_but_no_bandwidth(tmp_path: Path) -> None:
    report = Report()
    for r in range(2):
        for _, t, thread in job(report, r, device=r):
            collective(thread, "ncclAllReduce", t - 90_000, t, t + 1_000, device=r, comm=WORLD, size=1_000)
    path = report.write(tmp_path / "job.sqlite")
    row = table(path)[0]
    assert (row["bytes"], row["bus_bytes_per_s"]) == (1_000 * row["steps"], None)
    assert "how many ranks" in checks(path)["nccl messages"].detail


def test_calls_of_a_group_are_one_kernel(tmp_path: Path) -> None:
    """The kernel of a group starts inside the last ncclGroupEnd; a group of several communicators says nothing."""
    report = Report()
    for r in range(2):
        for i, t, thread in job(report, r, device=r):
            if not i:
                member(thread, WORLD, 2, r)
            for group, (stream, other) in enumerate([(20, WORLD), (21, PAIR)]):
                at = t - 95_000 + group * 1_000
                noted(thread, "ncclGroupStart", at, at + 5)
                noted(thread, "ncclGroupStart", at + 10, at + 15)
                noted(thread, "ncclAllReduce", at + 20, at + 25, comm=WORLD, size=3_000)
                noted(thread, "ncclAllReduce", at + 30, at + 35, comm=other, size=1_000)
                noted(thread, "ncclGroupEnd", at + 40, at + 45)
                noted(thread, "ncclGroupEnd", at + 50, at + 90)
                start = t + group * 50_000
                thread.launch(at + 60, kernel=ALL_REDUCE, gpu_start=start, gpu_dur=10_000, device=r, stream=stream)
    row = table(report.write(tmp_path / "job.sqlite"))[0]
    n = row["steps"]
    assert row["collectives"] == 2 * n
    assert row["bytes"] == 4_000 * n
    assert {(c["communicator"], c["bytes"]) for c in row["by_collective"]} == {(0, 4_000 * n), (None, None)}


def test_messages_between_two_ranks_are_matched_by_who_they_are(tmp_path: Path) -> None:
    """A pipeline of three: the first has one message per step, the middle two, the last one, at different times."""
    report = Report()
    for r in range(3):
        for i, t, thread in job(report, r, device=r):
            if not i:
                member(thread, WORLD, 3, r)
            for link in (0, 1):  # of ranks (0, 1) and (1, 2)
                if r in (link, link + 1):
                    come, done = t + 100_000 * link + 30_000 * (r - link), t + 100_000 * link + 40_000
                    peer = link + 1 if r == link else link
                    at = t - 95_000 + link * 1_000
                    collective(thread, "ncclSend", at, come, done, device=r, comm=WORLD, size=10_000, peer=peer)
    rows = table(report.write(tmp_path / "job.sqlite"))
    n = rows[0]["steps"]
    assert [r["collectives"] for r in rows] == [n, 2 * n, n]
    assert [r["wait_ns"] for r in rows] == [30_000 * n, 30_000 * n, 0]
    assert [r["delay_ns"] for r in rows] == [None, None, None]  # a receive waits for no straggler


def test_a_root_that_is_done_before_the_others_begin(tmp_path: Path) -> None:
    report = Report()
    for r in range(2):
        for i, t, thread in job(report, r, device=r):
            if not i:
                member(thread, WORLD, 2, r)
            start = t + r * 60_000
            collective(thread, "ncclBroadcast", t - 95_000, start, start + 20_000, device=r, comm=WORLD, size=1_000)
    rows = table(report.write(tmp_path / "job.sqlite"))
    assert [r["collectives"] for r in rows] == [rows[0]["steps"]] * 2


@pytest.mark.parametrize(
    "payload",
    ["", "[1, 2", "{}", '{"NCCL communicator ID": "x"}', '{"NCCL communicator ID": true}', "[" * 5_000, "null", "7"],
)
def test_payloads_that_say_nothing(tmp_path: Path, payload: str) -> None:
    report = Report()
    for r in range(2):
        for _, t, thread in job(report, r, device=r):
            collective(thread, "ncclAllReduce", t - 95_000, t, t + 10_000, device=r, comm=WORLD, size=-5)
    for row in report.rows["NVTX_EVENTS"]:
        if row.get("jsonText"):
            row["jsonText"] = payload
    path = report.write(tmp_path / "job.sqlite")
    for row in table(path):
        assert row["collectives"] == row["steps"]
        assert row["bytes"] is row["bus_bytes_per_s"] is None
    assert checks(path)["nccl messages"].status == "missing"
    assert "--include-json" in checks(path)["nccl messages"].fix


def test_one_report_without_payload_leaves_the_streams(tmp_path: Path) -> None:
    paths = []
    for r, come in enumerate((0, 80_000)):
        report = Report()
        for i, t, thread in job(report, r):
            if not i:
                member(thread, WORLD, 2, r)
            collective(thread, "ncclAllReduce", t - 95_000, t + come, t + 100_000, comm=WORLD, size=1_000)
        if r:
            report.drop("NVTX_EVENTS", "jsonText")
        paths.append(report.write(tmp_path / f"{r}.sqlite"))
    rows = table(*paths)
    assert rows[0]["wait_ns"] == 80_000 * rows[0]["steps"]
    assert checks(*paths)["nccl messages"].detail.startswith("rank 1:")


# -- ranks that are missing, elsewhere, or given in another order --------------------------------------------------------


def rank_reports(
    folder: Path, ranks: Sequence[int], of: int, *, host: Callable[[int], str] | None = None
) -> list[Path]:
    """Write a report for each of some ranks of a job of ``of``; rank r comes to its all-reduce r * 50 us after rank 0."""
    paths = []
    for r in ranks:
        report = Report()
        for i, t, thread in job(report, r):
            if not i:
                member(thread, WORLD, of, r)
            end = t + 50_000 * of
            collective(thread, "ncclAllReduce", t - 95_000, t + 50_000 * r, end, comm=WORLD, size=1_000)
            thread.sync("cudaDeviceSynchronize_v3020", at=t - 90_000, dur=end - t + 95_000)
        if host:
            report.add(
                "TARGET_INFO_SYSTEM_ENV", devStateName="Cpu", name="Hostname", nameEnum=1, value=host(r), globalVid=1
            )
        paths.append(report.write(folder / f"part{r}.sqlite"))
    return paths


def test_ranks_have_the_numbers_of_the_job(tmp_path: Path) -> None:
    first, second, last = rank_reports(tmp_path, (0, 1, 2), 3)
    rows = table(last, first, second)
    assert [(r["rank"], r["report"]) for r in rows] == [(0, first.name), (1, second.name), (2, last.name)]
    assert rows[2]["straggler"]
    shown = {c.check: c for c in summarize([last, first, second], every_table=False).quality}["ranks"]
    assert "shows rank 2" in shown.detail, "the first report given is the one to look at"
    assert (
        "shows rank 1"
        in {c.check: c for c in summarize([last, first, second], rank=1, every_table=False).quality}["ranks"].detail
    )


def test_file_names_give_the_numbers_where_nothing_else_does(tmp_path: Path) -> None:
    paths = reports(tmp_path, [300_000, 300_000, 500_000], starts=[0, 0, 0], clocks=[0, 1, 0])
    paths[2] = paths[2].rename(tmp_path / "job.rank10.sqlite")
    rows = table(paths[0], paths[2], paths[1])
    assert [r["rank"] for r in rows] == [0, 1, 10]
    assert rows[2]["straggler"]
    paths[2] = paths[2].rename(tmp_path / "last.sqlite")
    assert [r["rank"] for r in table(paths[2], paths[1], paths[0])] == [0, 1, 2]


def test_a_missing_rank_is_said_and_costs_nothing_else(tmp_path: Path) -> None:
    first, second, last = rank_reports(tmp_path, (0, 1, 3), 4)
    rows = table(first, second, last)
    n = rows[0]["steps"]
    assert [r["rank"] for r in rows] == [0, 1, 3]
    assert [r["wait_ns"] for r in rows] == [150_000 * n, 100_000 * n, 0]
    assert rows[2]["straggler"]
    said = checks(first, second, last)["rank count"]
    assert (said.status, said.detail.partition(".")[0]) == ("warn", "3 of 4 ranks are here; missing: 2")
    with pytest.raises(NsysxError, match="--rank 2") as caught:
        summarize([first, second, last], rank=2)
    assert caught.value.exit_code == 4


def test_a_report_of_one_rank_says_of_how_many(tmp_path: Path) -> None:
    assert "one rank of 4" in summarize(rank_reports(tmp_path, (1,), 4), every_table=False).tables["ranks"].reason


def test_other_machines_are_said_but_not_named(tmp_path: Path) -> None:
    paths = rank_reports(tmp_path, (0, 1, 2), 3, host=lambda r: f"gpubox{r // 2}.lab.example")
    assert [r["host"] for r in table(*paths)] == [0, 0, 1]
    assert checks(*paths)["rank hosts"].detail.startswith("the ranks ran on 2 machines")
    assert "gpubox" not in json_text.render(summarize(paths))


# -- conservation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_exposed_communication_is_waiting_transfer_and_unmatched(tmp_path: Path, seed: int) -> None:
    """Collectives that overlap compute, each other and the edges of the steady steps, some of them on one rank only."""
    dice = random.Random(seed)
    report = Report()
    plan = [(dice.randrange(0, 700_000), dice.randrange(1_000, 300_000)) for _ in range(4)]
    for r in range(3):
        for _, t, thread in job(report, r, device=r, steps=10):
            for k, (at, length) in enumerate(plan):
                if k < 3 or r == 1:
                    start = t + at + dice.randrange(0, 150_000)
                    name = ("ncclAllReduce", "ncclAllGather", "ncclAllReduce", "ncclBroadcast")[k]
                    collective(
                        thread, name, t - 98_000 + k * 100, start, t + at + 150_000 + length, device=r, stream=20 + k
                    )
            busy = t + dice.randrange(0, 600_000)
            thread.launch(t - 90_000, kernel="add", gpu_start=busy, gpu_dur=dice.randrange(1, 300_000), device=r)
    rows = table(report.write(tmp_path / "job.sqlite"))
    assert any(r["exposed_unmatched_ns"] for r in rows)
    for r in rows:
        parts = ("exposed_wait_ns", "exposed_transfer_ns", "exposed_unmatched_ns")
        assert r["comm_ns"] == sum(r[p] for p in parts)
        assert all(r[p] >= 0 for p in parts)
        assert r["window_ns"] == sum(r[f"{k}_ns"] for k in ("compute", "comm", "copy", "memset", "idle"))
        assert r["wait_ns"] == sum(c["wait_ns"] for c in r["by_collective"])
        assert r["transfer_ns"] == sum(c["transfer_ns"] for c in r["by_collective"])
    assert sum(r["delay_ns"] for r in rows) == sum(r["wait_ns"] for r in rows)


# -- recorded on H200s -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        ("ddp",),
        ("ddp_per_rank.rank1", "ddp_per_rank.rank0"),
        ("ddp_four.rank2", "ddp_four.rank0", "ddp_four.rank3", "ddp_four.rank1"),
    ],
)
def test_twice_the_batch_on_the_last_rank(tmp_path: Path, names: Sequence[str]) -> None:
    paths = []
    for name in names:
        paths.append(tmp_path / f"{name}.sqlite")
        paths[-1].write_bytes(lzma.decompress((SAMPLES / f"{name}.sqlite.xz").read_bytes()))
    rows = table(*paths)
    *early, late = rows
    assert [r["rank"] for r in rows] == list(range(len(rows)))
    assert [r["straggler"] for r in rows] == [False] * len(early) + [True]
    assert next(iter(late["late_because"])) == "compute"
    for row in early:
        assert row["exposed_wait_ns"] == pytest.approx(row["comm_ns"], rel=0.05)
    for row in rows:
        assert row["steps"] == late["steps"]
        assert row["comm_ns"] == row["exposed_wait_ns"] + row["exposed_transfer_ns"] + row["exposed_unmatched_ns"]
        assert 100e9 < row["bus_bytes_per_s"] < 450e9, "18 links of NVLink 4 carry 450 GB/s each way"


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("void multimem_one_shot_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)", "allreduce"),
        ("two_shot_reduce_scatter(float*)", "reducescatter"),
        (ALL_REDUCE, "allreduce"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float", "reducescatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclDevKernel_SendRecv(ncclDevComm*)", "sendrecv"),
        ("my_comm_kernel<float>(int)", "my_comm_kernel"),
    ],
)
def test_kind_of(kernel: str, kind: str) -> None:
    assert nccl_notes.kind_of(kernel) == kind


@pytest.mark.parametrize(
    ("kind", "size", "expected"),
    [
        ("allreduce", 4, 1_500),
        ("allgather", 4, 3_000),
        ("reducescatter", 4, 3_000),
        ("alltoall", 4, 3_000),
        ("broadcast", 4, 1_000),
        ("sendrecv", None, 1_000),
        ("allreduce", None, None),
        ("my_own", 4, None),
    ],
)
def test_bus_bytes(kind: str, size: int | None, expected: float | None) -> None:
    assert nccl_notes.bus_bytes(kind, size, 1_000) == expected
    assert nccl_notes.bus_bytes(kind, size, None) is None


def test_ranks_are_compared_over_steps_that_are_steady_on_all(tmp_path: Path) -> None:
    # Rank 1 was captured three steps later, and rank 0 had a slow step before that.
    written = []
    for i, (first, slow) in enumerate([(0, 300_000), (3, 0)]):
        report = Report(utc_epoch_ns=EPOCH)
        process = report.process(100)
        thread = steps(process, 100_000, 100_000, first=first)
        report.gpu(pids=[(100, 0)])
        if slow:
            thread.launch(3_003_000, kernel="add", gpu_start=3_400_000, gpu_dur=slow)
        written.append(report.write(tmp_path / f"rank{i}.sqlite"))
    alone = [summarize([path], every_table=False) for path in written]
    own = [s.rows("gpu_ledger")[0]["compute_ns"] for s in alone]
    rows = table(*written)
    assert own[0] > own[1]
    assert [r["steps"] for r in rows] == [alone[1].steps.steady[1] - alone[1].steps.steady[0] + 1] * 2
    assert [r["compute_ns"] for r in rows] == [own[1]] * 2
    for row in rows:
        parts = [row[k] for k in ("compute_ns", "comm_ns", "copy_ns", "memset_ns")]
        assert row["window_ns"] == sum(parts) + row["idle_ns"] == sum(parts) + sum(row["idle_causes"].values())
        exposed = ("exposed_wait_ns", "exposed_transfer_ns", "exposed_unmatched_ns")
        assert sum(row[k] for k in exposed) == row["comm_ns"]
    assert checks(*written)["rank steps"].status == "ok"


def test_as_many_steps_but_others_are_compared_over_those_in_common(tmp_path: Path) -> None:
    files = reports(tmp_path, [100_000, 200_000], starts=[0, 0], clocks=[0, 0])
    early, late = (r for path in files for r in collect.records(pipeline.gather(path, pipeline.ReadingOptions())))
    assert early.tiles is not None and late.tiles is not None
    n = early.steps
    first, last = np.arange(n) < n - 3, np.arange(n) >= 3
    mixed = [replace(early, **early.tiles.figures(first)), replace(late, report=1, **late.tiles.figures(last))]
    rows = rank_table.table(job_compared.compare(mixed), "").rows
    assert rows is not None
    assert [r["steps"] for r in rows] == [n - 6] * 2
    said = {c.check: c for c in rank_checks.checks(mixed, rows)}["rank steps"]
    assert (
        said.detail == f"compared over the {n - 6} steps that are steady on all ranks; alone, ranks have up to {n - 3}"
    )
