"""What each thread of a program is for: by its name where PyTorch named it, else by what it does.

A module owns what the thread does that works for it: the main thread, autograd's threads, and threads of the user that run modules. A
loader's pin thread allocates memory while the main thread is in backward, and no module has to do with that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import polars as pl

from nsysx import ids
from nsysx.catalogue import Call
from nsysx.events.event_bounds import HELPS_BACKWARD_SHARE
from nsysx.events.nvtx_ranges import Ranges
from nsysx.frames import lookup
from nsysx.frames.intervals import I64

MAIN, AUTOGRAD, LOADER, PIN, WATCHDOG, COMPILER, USER = ROLES = (
    "main",
    "autograd",
    "loader worker",
    "pin memory",
    "communication watchdog",
    "compile worker",
    "user",
)
#: Names that PyTorch gives to its threads; Linux cuts them at 15 characters.
_NAMED = (
    (AUTOGRAD, re.compile(r"^pt_autograd")),
    (PIN, re.compile(r"^pt_data_pin|pin_memory")),
    (LOADER, re.compile(r"^pt_data|DataLoader")),
    (WATCHDOG, re.compile(r"^pt_(nccl|gloo|ucc|tcpstore|elastic)|watchd|heartb", re.IGNORECASE)),
    (COMPILER, re.compile(r"^pt_(compile|inductor)|SubprocPool|compile_worker", re.IGNORECASE)),
)


def _role_of_name(name: str | None) -> str | None:
    return next((role for role, pattern in _NAMED if name and pattern.search(name)), None)


def roles(
    calls: pl.DataFrame, names: pl.DataFrame, ranges: Ranges, backward: Mapping[int, tuple[I64, I64]]
) -> dict[int, str]:
    """Return thread -> role, of all threads that make CUDA calls.

    ``calls``: thread, start_ns, kind, sorted by thread; ``names``: thread, name; ``backward``: what `backwards` returns. Where several
    threads of a process could be the main one, it is the one whose number is the process's, else the one that opens the ranges of
    phases and steps, else the one with the most calls.
    """
    name_of = dict(zip(names["thread"].to_list(), names["name"].cast(pl.String).to_list(), strict=True))
    thread, start = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    launches = ((calls["kind"] == Call.LAUNCH) | (calls["kind"] == Call.GRAPH_LAUNCH)).to_numpy()
    places = np.flatnonzero(np.diff(thread, prepend=-1))
    counts = dict(zip(thread[places].tolist(), np.diff(np.append(places, len(thread))).tolist(), strict=True))
    first = dict(zip(thread[places].tolist(), places.tolist(), strict=True))
    kind = ranges.ranges["kind"]
    marking = (kind == "phase") | (kind == "step") | (kind == "module")
    driving = set(lookup.present(ranges.ranges["thread"].filter(marking)))
    by_name = {t: _role_of_name(name_of.get(t)) for t in counts}
    has_autograd = {ids.process_of(t) for t, role in by_name.items() if role == AUTOGRAD}
    made = {}
    for process in sorted({ids.process_of(t) for t in counts}):
        of_process = [t for t in counts if ids.process_of(t) == process]
        free = [t for t in of_process if by_name[t] is None]
        # NVTX of another domain names threads that make no calls; a thread that marks steps or phases is the program's.
        main = max(free, key=lambda t: (_is_first(t), t in driving, counts[t], -t), default=None)
        for t in of_process:
            rows = slice(first[t], first[t] + counts[t])
            role = by_name[t] or (MAIN if t == main else None)
            if role is None and t not in driving and process not in has_autograd:
                role = _by_work(start[rows], launches[rows], backward.get(process))
            made[t] = role or USER
    return made


def elsewhere(threads: pl.Series, by_thread: Mapping[int, str]) -> pl.Series:
    """Return what each thread is for; null for the main thread and autograd's, for which a module's name says enough."""
    told = {thread: role for thread, role in by_thread.items() if role not in (MAIN, AUTOGRAD)}
    roles_there: pl.Series = threads.replace_strict(told, default=None, return_dtype=pl.String)
    return roles_there.alias("thread_role")


def _is_first(thread: int) -> bool:
    """Return whether this is the thread with which its process began: on Linux both have one number."""
    return (thread & 0xFFFFFF) == ids.pid_of(ids.process_of(thread))


def backwards(ranges: Ranges) -> dict[int, tuple[I64, I64]]:
    """Return process -> when its backward ranges begin, and how far all up to each reach."""
    every = ranges.ranges
    chosen = (every["kind"] == "phase") & (every["name"] == "backward") & ~every["crossing"]
    rows = every["process", "start_ns", "end_ns"].filter(chosen).sort("start_ns")
    return {
        process: (part["start_ns"].to_numpy(), np.maximum.accumulate(part["end_ns"].to_numpy()))
        for (process,), part in lookup.parted(rows, "process").items()
    }


def _by_work(start: I64, launches: np.ndarray, backward: tuple[I64, I64] | None) -> str | None:
    """Return that a thread is autograd's if nearly all its launches fall into backwards; None for any other."""
    if backward is None or not launches.any():
        return None
    launch_ns = start[launches]
    last = np.searchsorted(backward[0], launch_ns, side="right") - 1
    inside = (last >= 0) & (backward[1][np.maximum(last, 0)] > launch_ns)
    return AUTOGRAD if inside.mean() >= HELPS_BACKWARD_SHARE else None
