"""Calls of MPI and messages of UCX, as Open MPI 4.1 and UCX 1.13 under nsys 2023.4 have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.events import host_messages
from nsysx.events.host_messages import HostMeeting
from nsysx.reading.load import Trace, load
from tests.builder import Report

WORLD, HALF, COPY = 94446381797504, 94446711909952, 94446711901104


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """Rank 2 of four: a half of the ranks, a duplicate without a size, a message of any rank, one that sends and receives."""
    report = Report(schema="3.7.2")
    thread = report.process(26).thread(26)
    thread.is_mpi_rank(2, 4, handle=WORLD)
    made = {"rank": 2, "parentHandle": WORLD}
    report.add(
        "MPI_COMMUNICATORS", timestamp=10, commHandle=HALF, localRank=1, size=2, groupRoot=0, groupRootUid=0, **made
    )
    report.add("MPI_COMMUNICATORS", timestamp=20, commHandle=COPY, **made)
    thread.communicates("MPI_COLLECTIVES_EVENTS", "MPI_Allreduce", 100, 50, commHandle=HALF, size=512, recvSize=512)
    thread.communicates("MPI_COLLECTIVES_EVENTS", "MPI_Alltoall", 200, 50, commHandle=COPY, size=256)
    thread.communicates("MPI_P2P_EVENTS", "MPI_Recv", 300, 80, commHandle=HALF, tag=3, remoteRank=0, size=256)
    thread.communicates(
        "MPI_COLLECTIVES_EVENTS", "MPI_Iallreduce", 400, 8, commHandle=WORLD, size=1024, requestHandle=7
    )
    thread.communicates("MPI_START_WAIT_EVENTS", "MPI_Test", 420, 30, requestHandle=7)
    # One call that sends to rank 3 and receives from rank 1: two rows with one begin, the first of no length.
    thread.communicates("MPI_P2P_EVENTS", "MPI_Sendrecv", 500, 0, commHandle=WORLD, tag=0, remoteRank=3, size=256)
    thread.communicates("MPI_P2P_EVENTS", "MPI_Sendrecv", 500, 90, commHandle=WORLD, tag=0, remoteRank=1, size=256)
    thread.communicates("UCP_SUBMIT_EVENTS", "ucp_tag_recv_nbx", 700, 1, tag=9)
    thread.communicates("UCP_PROGRESS_EVENTS", "ucp_tag_recv_nbx", 700, 5000, tag=9)
    return load(report.write(tmp_path / "r.sqlite"))


def test_what_holds_its_thread_is_told_from_what_is_on_its_way(trace: Trace) -> None:
    rows = host_messages.calls(trace)
    told = {(r["name"], r["holds"]): r["end_ns"] - r["start_ns"] for r in rows.iter_rows(named=True)}
    assert told["ucp_tag_recv_nbx", True] == 1 and told["ucp_tag_recv_nbx", False] == 5000
    assert told["MPI_Sendrecv", True] == 90  # one call, not two
    assert rows.height == 8
    assert host_messages.blocking(trace)["end_ns"].max() == 701


def test_what_belongs_together_on_several_ranks(trace: Trace) -> None:
    kinds, made = host_messages.meetings(trace, trace.mpi_rank["process"][0])
    spans = {kinds[r["meeting"]]: (r["start_ns"], r["end_ns"]) for r in made.iter_rows(named=True)}
    assert spans == {
        HostMeeting("MPI_Allreduce", "2 ranks from 0, 1"): (100, 150),
        HostMeeting("MPI_Alltoall", ""): (200, 250),
        HostMeeting("tag 3", "2 ranks from 0, 1", (0, 1)): (300, 380),
        HostMeeting("MPI_Iallreduce", "4 ranks from 0, 1"): (420, 450),  # where it is completed
        HostMeeting("tag 0", "4 ranks from 0, 1", (2, 3)): (500, 590),
        HostMeeting("tag 0", "4 ranks from 0, 1", (1, 2)): (500, 590),
    }


def test_gloo_is_counted_and_has_no_length(tmp_path: Path) -> None:
    report = Report()
    thread = report.process(26).thread(26)
    thread.add_range("gloo:all_reduce, seq = -1, op_id = 7", 100, 9000)
    thread.add_range("c10d::allreduce_", 90, 9100)
    rows = host_messages.gloo(load(report.write(tmp_path / "r.sqlite")))
    assert rows["name"].to_list() == ["gloo:all_reduce"]
