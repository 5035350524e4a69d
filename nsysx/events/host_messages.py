"""Communication that the host itself makes: calls of MPI, messages of UCX, and operations of gloo.

A call of MPI holds its thread until it returns: a device that runs dry meanwhile waits for communication. A message of UCX is handed
over by a short call and on its way until it is done, whatever its thread does meanwhile. An operation of gloo begins in a range
of PyTorch which ends on a thread of gloo, so that its length is not known.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.frames import lookup
from nsysx.frames.intervals import coverage
from nsysx.reading.load import Trace

MPI, UCX, GLOO = "MPI", "UCX", "gloo"
#: Names of what PyTorch marks as an operation of gloo.
_OF_GLOO = r"^gloo:"
#: Frame of a report -> its library, and whether its rows hold their thread.
_FRAMES = {
    "mpi_message": (MPI, True),
    "mpi_collective": (MPI, True),
    "mpi_completion": (MPI, True),
    "ucx_call": (UCX, True),
    "ucx_transfer": (UCX, False),
}
_TIMES = ("process", "thread", "start_ns", "end_ns")


def recorded(trace: Trace) -> bool:
    """Return whether any of it was recorded."""
    return any(frame in trace.recorded for frame in _FRAMES) or bool(gloo(trace).height)


def calls(trace: Trace) -> pl.DataFrame:
    """Return what MPI and UCX did, in order of time: process, thread, start_ns, end_ns, library, name, bytes (null: unknown), holds.

    ``holds``: the thread does nothing else meanwhile. A call that completes or makes several messages is one row.
    """
    parts = []
    for name, (library, holds) in _FRAMES.items():
        frame = trace.frames[name]
        sent = pl.col("bytes") if "bytes" in frame.columns else pl.lit(None, pl.Int64)
        parts.append(
            frame.select(*_TIMES, pl.col("name").cast(pl.String), bytes=sent).with_columns(
                library=pl.lit(library), holds=pl.lit(holds)
            )
        )
    rows = pl.concat(parts).sort("start_ns", "thread", "end_ns", descending=[False, False, True])
    one_call = ["process", "thread", "start_ns", "name", "library", "holds"]
    held = rows.filter("holds").group_by(one_call, maintain_order=True).agg(pl.col("end_ns", "bytes").max())
    return pl.concat([held[rows.columns], rows.filter(~pl.col("holds"))]).sort("start_ns", maintain_order=True)


def blocking(trace: Trace) -> pl.DataFrame:
    """Return the calls that hold their thread: process, thread, start_ns, end_ns."""
    frames = [trace.frames[name][_TIMES] for name, (_, holds) in _FRAMES.items() if holds]
    rows = pl.concat([frames[0], *(f for f in frames[1:] if f.height)])
    return rows.filter(rows["end_ns"] > rows["start_ns"]) if rows.height else rows


def gloo(trace: Trace) -> pl.DataFrame:
    """Return the operations of gloo that PyTorch marked: process, thread, start_ns, name."""
    marked = trace.nvtx.filter(pl.Series(lookup.matching(trace.nvtx["text"], _OF_GLOO), dtype=pl.Boolean))
    name = pl.col("text").cast(pl.String).str.extract(r"^([^,]+)", 1)
    return marked.select("process", "thread", "start_ns", name=name)


class HostMeeting(NamedTuple):
    """What makes calls of several ranks one communication: the n-th of each rank belong together.

    ``communicator`` is equal on the ranks of one communicator, "" where the report does not tell; ``pair`` are sender and receiver
    as its ranks, empty for a collective.
    """

    name: str
    communicator: str
    pair: tuple[int, ...] = ()


def _communicators(trace: Trace, process: int) -> dict[int, tuple[str, int | None]]:
    """Return handle -> name of a communicator of a process, equal on its ranks, and the rank of the process in it.

    Communicators of one size and first member are told apart by the order in which they were made, which is that of the program on all
    ranks. Those of which MPI notes no size, as a duplicate, have no name.
    """
    ranks = trace.mpi_rank.filter(pl.col("process") == process)["rank"].to_list()
    made = trace.mpi_communicator.sort("time_ns")
    if len(trace.mpi_rank["rank"].unique()) > 1:  # of several processes in one report each notes its own rank
        made = made.filter(pl.col("world_rank").is_in(ranks))
    counts: dict[tuple[int | None, int | None], int] = {}
    named: dict[int, tuple[str, int | None]] = {}
    for row in made.iter_rows(named=True):
        size, first, handle = row["size"], row["first_rank"], row["communicator"]
        nth = counts[size, first] = counts.get((size, first), 0) + 1
        if handle is not None:
            named[handle] = (f"{size} ranks from {first or 0}, {nth}" if size is not None else "", row["rank"])
    return named


def meetings(trace: Trace, process: int) -> tuple[list[HostMeeting], pl.DataFrame]:
    """Return the kinds of communication of a process that several ranks make, and its calls: start_ns, end_ns, bytes, meeting.

    A message that is completed later lies in the call that completes it; ``meeting`` is the place of its kind. In order of time.
    """
    schema = {"start_ns": pl.Int64, "end_ns": pl.Int64, "bytes": pl.Int64, "meeting": pl.Int64}
    if not trace.recorded & {"mpi_message", "mpi_collective"}:
        return [], pl.DataFrame(schema=schema)
    of_process = {n: trace.frames[n].filter(pl.col("process") == process) for n in ("mpi_message", "mpi_collective")}
    done = trace.mpi_completion.filter(pl.col("process") == process).sort("start_ns")
    completed = {request: part for (request,), part in lookup.parted(done, "request").items()}
    named = _communicators(trace, process)
    kinds: dict[HostMeeting, int] = {}
    rows = []
    for frame, part in of_process.items():
        whole = pl.col("end_ns").max().over("thread", "start_ns")
        for row in part.sort("start_ns", "end_ns").with_columns(whole=whole).iter_rows(named=True):
            communicator, member = named.get(row["communicator"], ("", None))
            kind = HostMeeting(str(row["name"]), communicator)
            if frame == "mpi_message":
                peer = row["peer"]
                if member is None or peer is None or peer < 0:
                    continue  # from any rank
                pair = (member, peer) if "send" in kind.name.lower() else (peer, member)
                if row["end_ns"] < row["whole"]:  # of a call that sends and receives, what it sends has no length
                    pair = (member, peer)
                elif kind.name.startswith("MPI_Sendrecv"):
                    pair = (peer, member)
                kind = HostMeeting(f"tag {row['tag']}", communicator, pair)
            begin, finish = _completed(row, completed.get(row["request"]))
            rows.append((begin, finish, row["bytes"], kinds.setdefault(kind, len(kinds))))
    return list(kinds), pl.DataFrame(rows, schema=schema, orient="row").sort("start_ns", maintain_order=True)


def _completed(row: dict[str, int], done: pl.DataFrame | None) -> tuple[int, int]:
    """Return when the call runs in which a communication ends: its own, or the first of those that complete its request behind it."""
    if done is None:
        return row["start_ns"], row["whole"]
    after = int(np.searchsorted(done["start_ns"].to_numpy(), row["end_ns"]))
    if after == done.height:
        return row["start_ns"], row["whole"]
    return done["start_ns"][after], done["end_ns"][after]


def before_calls(trace: Trace, calls_made: pl.DataFrame) -> pl.Series:
    """Return how much of the host code before each API call, which are sorted by thread and start, is communication (ns)."""
    start, end = (calls_made[c].to_numpy() for c in ("start_ns", "end_ns"))
    spans = lookup.parted(blocking(trace), "thread")
    ns = np.zeros(len(start), np.int64)
    for (thread,), part in spans.items():
        rows = np.flatnonzero(calls_made["thread"].to_numpy() == thread)
        if len(rows) < 2:
            continue
        held = coverage([(part["start_ns"].to_numpy(), part["end_ns"].to_numpy())])
        free = np.maximum.accumulate(end[rows])[:-1]
        ns[rows[1:]] = held.within(held.labels > 0, free, np.maximum(free, start[rows[1:]]))
    return pl.Series("ns", ns)
