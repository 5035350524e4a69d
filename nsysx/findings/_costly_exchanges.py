"""Lines, and calls of MPI, that exchange values between ranks through the CPU."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses import host_communication, lines
from nsysx.catalogue import StepPart
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving, calls_of
from nsysx.findings._finding_bounds import HELD_BY_GROUP_SHARE
from nsysx.model import Row
from nsysx.replay.edits import RemoveCalls, RemoveExposedComm, RemoveHost
from nsysx.replay.idle_lines import by_line

#: Collectives of a process group, and those of mpi4py: lower case pickles, upper case takes buffers.
_OF_MPI = re.compile(
    r"\b(comm|COMM_WORLD|(mpi|world)_comm)\.([Aa]ll(reduce|gatherv?|toall[vw]?)|[Bb]cast|[Rr]educe|[Gg]atherv?|[Ss]catterv?|[Bb]arrier)\s*\("
)
_OF_GROUP = re.compile(
    rf"\bdist(ributed)?\.(all_reduce|reduce|all_gather|gather|broadcast|all_to_all|scatter|i?send|i?recv)\w*\s*\(|{_OF_MPI.pattern}"
)


def _through_host(case: Case) -> list[tuple[lines.CodeLineRow, float]]:
    """Return the lines of collectives that launch nothing on the GPU in any step, each with what the GPU idles for it (ns a step)."""
    code = case.profile.code()
    if code is None:
        return []
    idle = dict(by_line(case.profile).group_by("place").agg(pl.col("real_ns").sum()).iter_rows())
    number_of = {code.places.row(n): n for n in range(code.places.height)}
    exchanges = []
    for row in case.typed_rows(lines.ROWS):
        if row["launches"] or not row["host_self_ns"] or not _OF_GROUP.search(str(row["text"] or "")):
            continue
        exchanges.append((row, case.per_step(idle.get(number_of.get((row["file"], row["line"], row["function"])), 0))))
    return sorted(exchanges, key=lambda each: -each[1])


def through_host(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that lines exchange values through the CPU, as groups of gloo and MPI do, while the GPU has nothing to do."""
    exchanges = _through_host(case)
    if not exchanges:
        return _in_mpi(case)
    held = sum(case.per_step(row["host_self_ns"]) for row, _ in exchanges)
    if held < HELD_BY_GROUP_SHARE * case.step_ns or not case.notable(sum(ns for _, ns in exchanges)):
        return ""
    shown = " and ".join(
        f"line {row['line']} ({str(row['text']).partition('  #')[0].strip()})" for row, _ in exchanges[:2]
    )
    # An MPI that was built for GPU memory sends from there, and the host waits all the same.
    direct = (
        " (unless this MPI takes memory of the GPU)"
        if any(_OF_MPI.search(str(row["text"])) for row, _ in exchanges)
        else ""
    )
    return (
        f"{shown} launch{'es' if len(exchanges) == 1 else ''} no collective on the GPU: the group is one of gloo or MPI. Its values "
        f"go to the CPU and back{direct}, and the host is there for {units.duration(held)} of a step"
    )


def _in_mpi(case: Case) -> str:
    """Return that calls of MPI hold the host while the GPU has nothing to do, where its lines do not say so."""
    idle = case.taken_by((StepPart.HOST_COMM,))
    if not case.notable(idle):
        return ""
    rows = [row for row in case.typed_rows(host_communication.ROWS) if row["idle_ns"]]
    shown = " and ".join(f"{row['name']} ({units.duration(case.per_step(row['idle_ns'] or 0))})" for row in rows[:2])
    return (
        f"the GPU idles for {units.duration(idle)} of a step while the host is in {shown}: ranks meet there, on the CPU. What of it is "
        "waiting for a late rank stays with any other library: compare the reports of all ranks"
    )


def without_host_exchange(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it saves if the host is not held there, and what the GPU idles for it where no replay tells more.

    That ranks wait for each other for it is not in that. Where only its calls were recorded, that is the most that a job without
    communication saves.
    """
    exchanges, code = _through_host(case), case.profile.code()
    if not exchanges:
        return case.worth(RemoveExposedComm(), cause=(StepPart.HOST_COMM,), bound=True)
    if code is None:
        return None
    lines_of = {(row["file"], row["line"], row["function"]) for row, _ in exchanges}
    numbers = [n for n in range(code.places.height) if code.places.row(n) in lines_of]
    # A thread of the group may copy the values: the host is held until the next call of whichever thread goes on.
    calls = case.calls.sort("start_ns")
    here = calls["call"].is_in(code.made_at(calls, numbers)["call"].to_list()).to_numpy()
    held = calls_of(calls.filter(pl.Series(here | np.append(False, here[:-1]), dtype=pl.Boolean)))
    idle = sum(ns for _, ns in exchanges)
    worth = case.worth_or_time(idle, "what the GPU idles while the host is there", RemoveHost(held), RemoveCalls(held))
    if worth.likely_ns is None:
        return worth
    # The other ranks wait for this one there, too, and the replay keeps them as late as they were.
    most = min(round(sum(case.per_step(row["host_self_ns"]) for row, _ in exchanges)), case.step_ns)
    return replace(worth, bound=False, most_ns=max(most, worth.likely_ns))


def place_of_host_exchange(case: Case) -> Row:
    """Return the costliest of these lines, as far as lines are known."""
    exchanges = _through_host(case)
    if not exchanges:
        return {}
    row, _ = exchanges[0]
    return {"file": row["file"], "line": row["line"]}
