"""What is known of why the GPU idles or copies, as words behind the limit of the step: calls, counts, directions, workers."""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.catalogue import Call, DeviceActivity
from nsysx.events import python_pauses
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.frames import lookup
from nsysx.judging.judging_bounds import IDLE_IN_PAUSES_SHARE, MOST_COPIES_SHARE, NEARLY_ALL_COPIES_SHARE
from nsysx.judging.limits import WindowLimits
from nsysx.reading.nccl_notes import kind_of
from nsysx.reading.schema import MEMORY_KINDS
from nsysx.replay.engine import idle_of

#: What communication kernels of a kind do, as people write it.
_COLLECTIVES = {
    "allreduce": "all-reduce", "allgather": "all-gather", "reducescatter": "reduce-scatter", "bcast": "broadcast",
    "sendrecv": "send and receive", "alltoall": "all-to-all",
}  # fmt: skip
#: A copy's kind of memory that is pageable, in the columns ``src_kind`` and ``dst_kind``.
_PAGEABLE = next(code for code, name in MEMORY_KINDS.items() if name == "pageable")


def launches(profile: Profile, limits: WindowLimits, noun: str = "") -> str:
    """Return how many launches the shown process makes, in brackets: "(96 a step)", "" where none was recorded."""
    calls = profile.steady_calls
    count = int((calls["kind"].is_in(Call.LAUNCHES) & (calls["process"] == limits.process)).sum())
    if not count:
        return ""
    number = units.count(count) if limits.whole else units.count(limits.per_step(count))
    return f" ({' '.join(filter(None, (number, noun, '' if limits.whole else 'a step')))})"


def collective(profile: Profile, limits: WindowLimits) -> str:
    """Return which collective takes the time of communication, in brackets, "mostly" where it takes half; "" where none does."""
    ops = lookup.having(profile.steady_ops, process=limits.process, device=limits.device)
    kernels = ops.filter(ops["cls"] == DeviceActivity.COMM.value)
    sums: dict[str, int] = {}
    for name, start, end in kernels.select(pl.col("name").cast(pl.String), "start_ns", "end_ns").iter_rows():
        kind = kind_of(name or "")
        sums[kind] = sums.get(kind, 0) + end - start
    most, whole = max(sums, key=lambda kind: sums[kind], default=""), sum(sums.values())
    if most not in {*_COLLECTIVES, *_COLLECTIVES.values()} or sums[most] < MOST_COPIES_SHARE * whole:
        return ""
    mostly = "" if sums[most] >= NEARLY_ALL_COPIES_SHARE * whole else "mostly "
    return f" ({mostly}{_COLLECTIVES.get(most, most)})"


def loader(profile: Profile) -> str:
    """Return with how many workers the loader that is used most prepares the data, in brackets; "" where that was not recorded."""
    settings = settings_of(profile)
    loaders = (settings.rows("loaders") if settings else None) or ()
    workers = max(loaders, key=lambda row: row.get("iterators") or 0, default={}).get("workers")
    if not isinstance(workers, int):
        return ""
    return f" (DataLoader with {units.several(workers, 'worker')})" if workers else " (DataLoader without workers)"


def pauses(profile: Profile) -> tuple[str, float]:
    """Return in which pauses of Python the device idles most, and their share of all its idle time; "" and 0 below half of it."""
    idle, rows = profile.once(idle_of), profile.ranges.pauses
    whole = int(idle["real_ns"].sum()) if idle.height else 0
    most, share = "", 0.0
    for kind, words in python_pauses.NAMES.items() if whole else ():
        noted = rows.filter((rows["kind"] == kind) & (rows["process"] == profile.steps.process))
        within = python_pauses.time_in(noted, idle["start_ns"].to_numpy(), idle["end_ns"].to_numpy())
        # Of each piece tracing takes a part, as much inside of the pause as outside.
        real_ns = (pl.Series(within) * idle["real_ns"] / (idle["end_ns"] - idle["start_ns"]).clip(1)).sum()
        if float(real_ns) > max(share, IDLE_IN_PAUSES_SHARE) * whole:
            most, share = words, float(real_ns) / whole
    return most, share


def site(profile: Profile) -> str:
    """Name the call after which the device idles most, "" if none is known."""
    sites = profile.wait_sites().filter(pl.col("process") == profile.steps.process)
    if not sites.height:
        return ""
    cost = pl.col("idle_caused_ns").sum().alias("ns")
    key = ["api", "module", "file", "line"]
    worst = sites.group_by(key).agg(cost).sort("ns", *key, descending=[True] + [False] * 4, nulls_last=True)
    api, module, file, line, ns = worst.row(0)
    if not ns:
        return ""
    if file:
        return f" in {api} ({file.rpartition('/')[2]}:{line})"[:120]
    return f" in {api}" + (f" in {module}"[:80] if module and module not in profile.attributed.without_path else "")


def calls(profile: Profile, *kinds: str) -> str:
    """Name the two functions of these kinds that take most time."""
    calls = profile.steady_calls
    shown = calls["kind"].is_in(kinds) & (calls["process"] == profile.steps.process)
    of_kind = calls["name", "start_ns", "end_ns"].filter(shown)
    ns = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns")
    names = (
        of_kind.group_by(pl.col("name").cast(pl.String)).agg(ns).sort("ns", "name", descending=[True, False])["name"]
    )
    return f" ({', '.join(names.head(2).to_list())})" if len(names) else ""


def direction(profile: Profile, limits: WindowLimits) -> str:
    """Say which way the copies go, or most of them by duration, and whether the memory of the host is pageable."""
    ops = profile.steady_ops
    copies = ops.filter((ops["op_kind"] == "memcpy") & (ops["process"] == limits.process))
    ns = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns")
    grouped = copies.group_by(pl.col("name").cast(pl.String)).agg(ns).sort("ns", "name", descending=[True, False])
    most, whole = str(grouped["name"][0]) if grouped.height else "", int(grouped["ns"].sum())
    words = {"HtoD": " from {} to the GPU", "DtoH": " from the GPU to {}", "DtoD": " inside the GPU"}
    if most not in words or grouped["ns"][0] < MOST_COPIES_SHARE * whole:
        return ""
    kind = {"HtoD": "src_kind", "DtoH": "dst_kind"}.get(most)
    host = "the host"
    if kind is not None:
        pageable = copies.filter((pl.col("name").cast(pl.String) == most) & (pl.col(kind) == _PAGEABLE))
        if int(pageable.select(ns)["ns"].item()) >= NEARLY_ALL_COPIES_SHARE * grouped["ns"][0]:
            host = "pageable host memory"
    way = words[most].format(host)
    return way if grouped["ns"][0] >= NEARLY_ALL_COPIES_SHARE * whole else f" (mostly{way})"
