"""The places where the host waits for the GPU, and what a step would save without those waits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.analyses.helpers.host_stopwatch import gpu_calls
from nsysx.analyses.helpers.module_names import folded
from nsysx.catalogue import Call
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.judging.judging_bounds import CALLS_UNTIL_SIZED_KERNELS, LISTED_WAIT_SHARE, MOST_WAIT_PLACES, SIZE_COPY_BYTES
from nsysx.replay.engine import RemoveWaits, Replay, replay_of

PLACE = ("api", "asks", "module", "phase", "file", "line")
#: What a wait is for: nothing (the program synchronizes), a value that it reads back, or how many elements a mask selects.
NOTHING, VALUE, SIZE = "nothing", "value", "size"
#: Kernels that count what a mask selects, or write the indices of it.
_SELECTS = r"DeviceSelect|DeviceCompactInit|write_indices"


class Waits(NamedTuple):
    """The calls that wait, and their places, longest wait first: PLACE, calls, in_steps, and sums over the steady steps (ns)."""

    calls: pl.DataFrame
    places: pl.DataFrame


def uploads(profile: Profile) -> pl.DataFrame:
    """Return the synchronize calls that PyTorch makes right after a copy from pageable memory to the device: call, copy."""
    gpu = gpu_calls(profile)
    syncs = profile.steady_calls.filter(profile.steady_calls["kind"] == Call.SYNC)["call"].to_numpy()
    before = gpu.previous(gpu.row[syncs].astype(np.int64))
    pageable = (pl.col("copy_kind") == 1) & (pl.col("src_kind") == 0)
    copies = profile.steady_ops.filter(pageable)["call"].drop_nulls().to_numpy()
    pairs = pl.DataFrame({"call": syncs, "copy": gpu.call[before]})
    # A graph may hold uploads too.
    copied = (profile.attributed.api_calls["kind"].gather(pairs["copy"]) == Call.COPY).to_numpy()
    return pairs.filter((before >= 0) & copied & np.isin(pairs["copy"].to_numpy(), copies))


def _next_is_selection(profile: Profile, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return whether the next launch of the thread after each call gathers what a mask selects, as ``nonzero`` does."""
    calls, ops = profile.attributed.api_calls, profile.attributed.gpu_ops
    kernel = (ops["op_kind"] == "kernel").fill_null(False).to_numpy()
    selecting = ops["call"].filter(kernel & lookup.matching(ops["name"], _SELECTS)).drop_nulls().to_numpy()
    selects = np.zeros(calls.height, np.bool_)
    selects[selecting] = True
    launches = calls["kind"].is_in(Call.LAUNCHES).to_numpy()
    thread = calls["thread"].to_numpy()
    open_, sized = np.ones(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    for ahead in range(1, CALLS_UNTIL_SIZED_KERNELS + 1):  # calls are numbered by thread and time
        next_row = np.minimum(rows + ahead, calls.height - 1)  # behind the last call that one is asked again
        open_ &= thread[next_row] == thread[rows]
        sized |= open_ & launches[next_row] & selects[next_row]
        open_ &= ~launches[next_row]
    return sized


def asked(profile: Profile, calls: pl.DataFrame) -> pl.Series:
    """Return what each of these calls (call, kind) waits for: NOTHING, VALUE or SIZE.

    A synchronize that follows a copy to the host in the same breath waits for that copy, as ``.item()`` does.
    """
    rows = calls["call"].to_numpy()
    # The split has the site by its call; that of ``wait_sites`` is in words.
    site = calls.select("call").join(profile.waits["call", "site"], on="call", how="left", maintain_order="left")
    copy = np.where((calls["kind"] == Call.COPY).to_numpy(), rows, site["site"].to_numpy())
    ops = profile.attributed.gpu_ops
    back = ops.filter((ops["op_kind"] == "memcpy") & (ops["name"] == "DtoH") & ops["call"].is_not_null())
    moved = pl.DataFrame({"call": copy}).join(
        back.group_by("call").agg(pl.col("bytes").sum()), on="call", how="left", maintain_order="left"
    )["bytes"]
    reads = moved.is_not_null().to_numpy()
    counts = reads & (moved.fill_null(0) <= SIZE_COPY_BYTES).to_numpy() & _next_is_selection(profile, rows)
    explicit = ~reads & (calls["kind"] == Call.SYNC).to_numpy()
    return pl.Series("asks", np.select([counts, explicit], [SIZE, NOTHING], VALUE).tolist(), dtype=pl.String)


def _as_one(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls with all ``torch.cuda.synchronize()`` as one place: without one of them the wait moves to the next."""
    whole = pl.col("api").str.contains("DeviceSynchronize|CtxSynchronize") & (pl.col("asks") == NOTHING)
    several = calls.filter(whole)["module", "phase"].n_unique() > 1
    whole_columns = (pl.when(~whole).then(pl.col(c)).alias(c) for c in ("module", "phase"))
    return calls.with_columns(whole_columns) if several else calls


def waits(profile: Profile) -> Waits:
    """Return the calls of the shown process that wait for the GPU in the steady steps, except copies to it.

    The wait of a copy to the device belongs to the copy. Places that differ only by a number are one.
    """
    process = profile.steps.process
    calls = (
        profile.wait_sites()
        .filter(pl.col("process") == process)
        .with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("ns"))
    )
    calls = calls.filter(calls["kind"].is_in(Call.WAITS))
    to_device = profile.steady_ops["call"].filter(profile.steady_ops["name"] == "HtoD").drop_nulls()
    others = np.concatenate([to_device.to_numpy(), profile.once(uploads)["call"].to_numpy()])
    calls = calls.filter(~np.isin(calls["call"].to_numpy(), others))
    calls = _as_one(calls.with_columns(asked(profile, calls)))
    steps = profile.steps.cpu.filter(profile.steps.cpu["process"] == process).sort("start_ns")
    calls = calls.sort("start_ns", "call").join_asof(
        steps.select(pl.col("start_ns").alias("_at"), "index"), left_on="start_ns", right_on="_at"
    )
    calls = calls.with_columns(
        lookup.changed(calls["module"].cast(pl.Categorical), folded).cast(pl.String).alias("module")
    )
    places = calls.group_by(PLACE).agg(
        pl.len().alias("calls"),
        pl.col("index").n_unique().alias("in_steps"),
        pl.col("ns", "backlog_ns", "own_op_ns", "host_ns", "idle_caused_ns").sum(),
    )
    start, end = profile.window
    long = pl.max_horizontal("ns", "idle_caused_ns") >= max(LISTED_WAIT_SHARE * (end - start), 1)
    by = [True] + [False] * len(PLACE)
    return Waits(calls, places.sort("ns", *PLACE, descending=by, nulls_last=True).filter(long).head(MOST_WAIT_PLACES))


def at(calls: pl.DataFrame, where: dict[str, object]) -> frozenset[int]:
    """Return the calls of one of the places."""
    return frozenset(calls.filter(lookup.same_values(where, PLACE))["call"].drop_nulls().to_list())


def dearest_ns(profile: Profile) -> int:
    """Return the most that a replayed step saves when the calls of one place no longer wait (ns)."""
    replay, every_wait = replay_of(profile), profile.once(waits)
    if not isinstance(replay, Replay) or not replay.trusted:
        return 0
    gone = (at(every_wait.calls, where) for where in every_wait.places.to_dicts())
    return max((replay.saving(RemoveWaits(calls)).saving_ns for calls in gone if replay.replayed(calls)), default=0)
