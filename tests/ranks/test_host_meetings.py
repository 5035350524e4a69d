"""Ranks that communicate on the host: what each waits for, what moves data, and that it is not the host's own time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Summary
from nsysx.pipeline import ReadingOptions, gather_job, summarize
from nsysx.replay import engine
from tests.builder import Report, Thread

US, MS = 1_000, 1_000_000
EPOCH = 1_795_228_332_660_273_255
STEPS = 12
#: How long an all-reduce takes once all ranks are there.
TRANSFER = 500 * US


def _work(thread: Thread, at: int, ns: int) -> None:
    """Launch four kernels that take so long together, and wait for them."""
    for k in range(4):
        thread.launch(
            at + 2 * US + k * 5 * US, kernel=f"gemm{k}", gpu_start=at + 30 * US + k * ns // 4, gpu_dur=ns // 4
        )
    thread.sync("cudaDeviceSynchronize_v3020", at=at + 40 * US, dur=ns)


def mpi_job(folder: Path, own: list[int], *, handles: int = 77, clocks: int = 0) -> list[Path]:
    """Write a report per rank: each computes for its own time, then all meet in MPI_Allreduce.

    ``handles``: that of MPI_COMM_WORLD on rank 0, one more on the next. ``clocks``: by how much each clock is behind that of the rank
    before.
    """
    paths = []
    for r, ns in enumerate(own):
        report = Report(utc_epoch_ns=EPOCH - r * clocks)
        report.gpu(pids=[(100 + r, 0)])
        thread = report.process(100 + r).thread(100 + r, "python3")
        thread.is_mpi_rank(r, len(own), handle=handles + r)
        t = MS + r  # no two reports are equal
        for i in range(STEPS):
            _work(thread, t, ns)
            came, met = t + ns + 50 * US, t + max(own) + 50 * US
            thread.communicates(
                "MPI_COLLECTIVES_EVENTS",
                "MPI_Allreduce",
                came,
                met + TRANSFER - came,
                commHandle=handles + r,
                size=4096,
            )
            thread.add_range(f"step {i}", t, met + TRANSFER + 10 * US, domain="nsysx")
            t = met + TRANSFER + 20 * US
        paths.append(report.write(folder / f"rank{r}.sqlite"))
    return paths


def parts(summary: Summary, rank: int) -> dict[tuple[str, Any], float]:
    """Return (part, rank that it waits for) -> time per step of a rank, and hold their sum against its window."""
    rows = [row for row in summary.rows("job_ledger") if row["rank"] == rank]
    window = next(row["window_ns"] for row in summary.rows("ranks") if row["rank"] == rank)
    assert sum(row["time_ns"] for row in rows) == window
    sums: dict[tuple[str, Any], float] = {}
    for row in rows:
        key = row["part"], row["waits_for"] if row["part"].startswith("waits") else row["cause"]
        sums[key] = sums.get(key, 0) + row["time_ns"] / row["steps"]
    return sums


@pytest.mark.parametrize("clocks", [0, 3 * MS])
def test_a_rank_waits_for_the_late_one_in_mpi(tmp_path: Path, clocks: int) -> None:
    summary = summarize(mpi_job(tmp_path, [4 * MS, 14 * MS], clocks=clocks), every_table=False)
    waiting, late = parts(summary, 0), parts(summary, 1)
    assert abs(waiting["waits on the host", 1] - 10 * MS) < 50 * US
    for each in (waiting, late):
        assert abs(each["transfers on the host", None] - TRANSFER) < 50 * US
        assert ("idles", "host_comm") not in each
    assert ("waits on the host", 0) not in late
    row = next(r for r in summary.rows("communication_places") if r["rank"] == 0)
    assert (row["collective"], row["members"]) == ("MPI_Allreduce", (0, 1))
    assert summary.verdict.code == "comm_bound"
    assert "communication on the host" in summary.verdict.sentence


def test_equal_ranks_only_transfer(tmp_path: Path) -> None:
    summary = summarize(mpi_job(tmp_path, [4 * MS, 4 * MS]), every_table=False)
    assert not any(part.startswith("waits") for part, _ in parts(summary, 0))
    assert abs(parts(summary, 0)["transfers on the host", None] - TRANSFER) < 50 * US


def test_the_host_is_not_blamed_for_its_own_code(tmp_path: Path) -> None:
    path = mpi_job(tmp_path, [4 * MS, 14 * MS])[0]
    summary = summarize([path], every_table=False)
    causes = summary.rows("gpu_ledger")[0]["idle_causes"]
    assert causes["host_comm"] / STEPS == pytest.approx(10 * MS + TRANSFER, rel=0.1)
    assert causes.get("host_code", 0) < 100 * US * STEPS
    row = next(r for r in summary.rows("host_communication"))
    assert (row["library"], row["name"], row["holds"]) == ("MPI", "MPI_Allreduce", True)
    assert row["idle_ns"] == causes["host_comm"]
    assert row["calls"] >= STEPS - 1 and row["bytes"] == 4096 * row["calls"]


def test_without_communication_a_job_is_as_long_as_its_slowest_rank(tmp_path: Path) -> None:
    paths = mpi_job(tmp_path, [4 * MS, 14 * MS])
    for shown, own in ((paths, 4 * MS), (paths[::-1], 14 * MS)):
        made = engine.replay_of(gather_job(shown[:1], ReadingOptions()).profile)
        assert isinstance(made, engine.Replay)
        assert made.saving(engine.RemoveExposedComm()).step_ns == pytest.approx(own, rel=0.05)


def test_no_call_is_not_recorded_and_says_how(tmp_path: Path) -> None:
    report = Report()
    report.gpu(pids=[(100, 0)])
    _work(report.process(100).thread(100), MS, MS)
    table = summarize([report.write(tmp_path / "r.sqlite")], every_table=False).tables["host_communication"]
    assert table.rows is None and "nsysx run --mpi" in (table.reason or "")


def messages(folder: Path, *, early: bool) -> list[Path]:
    """Write two ranks: rank 1 receives what rank 0 sends 8 ms after rank 1 is there, or 8 ms before."""
    paths = []
    for r in range(2):
        report = Report(utc_epoch_ns=EPOCH)
        report.gpu(pids=[(100 + r, 0)])
        thread = report.process(100 + r).thread(100 + r, "python3")
        thread.is_mpi_rank(r, 2, handle=5 + r)
        t = MS + r
        for i in range(STEPS):
            sends = 2 * MS if early else 10 * MS
            _work(thread, t, (sends if r == 0 else 12 * MS - sends) - 100 * US)
            if r == 0:
                args = {"commHandle": 5, "tag": 3, "remoteRank": 1, "size": 1 << 20}
                thread.communicates("MPI_P2P_EVENTS", "MPI_Send", t + sends, 20 * US, **args)
            else:
                begin = t + 12 * MS - sends
                args = {"commHandle": 6, "tag": 3, "remoteRank": 0, "size": 1 << 20, "requestHandle": 9}
                thread.communicates("MPI_P2P_EVENTS", "MPI_Irecv", begin, US, **args)
                done = max(begin + 40 * US, t + sends + 60 * US)
                thread.communicates(
                    "MPI_START_WAIT_EVENTS", "MPI_Wait", begin + 2 * US, done - begin - 2 * US, requestHandle=9
                )
            thread.add_range(f"step {i}", t, t + 11 * MS, domain="nsysx")
            t += 11 * MS + 10 * US
        paths.append(report.write(folder / f"rank{r}.sqlite"))
    return paths


@pytest.mark.parametrize("early", [False, True])
def test_a_receive_waits_for_its_sender_in_the_call_that_completes_it(tmp_path: Path, *, early: bool) -> None:
    waits = {
        key: ns
        for key, ns in parts(summarize(messages(tmp_path, early=early), every_table=False), 1).items()
        if key[0].startswith("waits")
    }
    assert sum(waits.values()) == pytest.approx(30 * US if early else 8 * MS, rel=0.5 if early else 0.05)
    assert early or ("waits on the host", 0) in waits
