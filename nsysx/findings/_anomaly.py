"""What anomaly detection costs: the traceback that each operator keeps, and the read of each gradient."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import Call
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving
from nsysx.findings._finding_bounds import ANOMALY_FLAG_BYTES, ANOMALY_OPERATOR_BEGINS_NS, FEWEST_ANOMALY_CHECKS
from nsysx.frames import lookup


def tracebacks_ns(profile: Profile) -> float | None:
    """Return how long the operators of a step take to keep their tracebacks (ns), None where no operators were recorded.

    An operator that makes a node of the graph keeps it before anything else: that is the time until the first operator or CUDA call
    inside it. It is that of the steps with operators, which tracing makes longer by less than a traceback takes.
    """
    ops = profile.ranges.ranges.filter((pl.col("kind") == "op") & ~pl.col("repeated"))
    ops = ops.filter(ops["process"] == profile.process)["thread", "start_ns", "end_ns", "number", "name"]
    makes = pl.Series(
        "makes", (ops["number"] >= 0).to_numpy() & np.asarray(lookup.matching(ops["name"], "^aten::"), np.bool_)
    )
    steps = profile.steps.cpu.filter(profile.steps.cpu["process"] == profile.process)
    count, begun, last = 0, ops["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    for start, end in zip(steps["start_ns"].to_numpy(), last, strict=True):
        count += bool(((begun >= start) & (begun < end)).any())
    if not count or not makes.any():
        return None
    calls = profile.attributed.api_calls
    total = 0.0
    for (thread,), part in ops.with_columns(makes).group_by("thread"):
        of_thread = calls["start_ns"].filter(calls["thread"] == thread).to_numpy()
        every = np.sort(np.concatenate((part["start_ns"].to_numpy(), of_thread)))
        of_grad = part.filter(part["makes"])
        start, end = of_grad["start_ns"].to_numpy(), of_grad["end_ns"].to_numpy()
        after = np.searchsorted(every, start, side="right")
        inner = np.minimum(np.append(every, np.iinfo(np.int64).max)[after], end)
        total += float(np.clip(inner - start - ANOMALY_OPERATOR_BEGINS_NS, 0, None).sum())
    return total / count


def _flags_read(case: Case) -> pl.DataFrame:
    """Return the copies to the host that are as small as a flag."""
    return case.ops.filter(
        (case.ops["name"] == "DtoH").fill_null(value=False) & (case.ops["bytes"] <= ANOMALY_FLAG_BYTES)
    )


def _checks(case: Case) -> pl.DataFrame:
    """Return the reads of one flag that a comparison and a reduction have made: phase of the read, ns from the launch until it is read.

    The reduction may set memory before.
    """
    copies = _flags_read(case)
    kinds = (*Call.LAUNCHES, Call.MEMSET, Call.COPY, Call.SYNC)
    calls = case.calls.filter(case.calls["kind"].is_in(kinds)).sort("thread", "start_ns")
    read = np.flatnonzero(lookup.among(copies["call"].drop_nulls().sort(), calls["call"]).to_numpy())
    read = read[(read >= 3) & (read + 1 < calls.height)]
    launch, sets = calls["kind"].is_in(Call.LAUNCHES).to_numpy(), (calls["kind"] == Call.MEMSET).to_numpy()
    first = read - 2 - sets[read - 2]
    thread = calls["thread"].to_numpy()
    whole = launch[read - 1] & launch[first] & (thread[first] == thread[read + 1])
    ns = calls["end_ns"].to_numpy()[read + 1] - calls["start_ns"].to_numpy()[first]
    return pl.DataFrame({"phase": calls["phase"].cast(pl.String).gather(read[whole]), "ns": ns[whole]})


def checks_ns(case: Case) -> float:
    """Return how long the host takes to check the gradients of a step (ns): from the launch of the comparison until its answer is read."""
    return case.scope.per_step(float(_checks(case)["ns"].sum()))


def seen(case: Case) -> str:
    """Return how many gradients are checked in each backward, "" for few: nothing but anomaly detection does so after each operator."""
    fewest = FEWEST_ANOMALY_CHECKS * case.steps
    if case.stepless or _flags_read(case).height < fewest:
        return ""
    of_backward = int((_checks(case)["phase"] == "backward").sum())
    if of_backward < fewest:
        return ""
    return (
        f"in each backward {units.count(round(of_backward / case.steps))} gradients are compared and the answer is read by the host, as "
        "anomaly detection does after each operator; each operator of forward keeps a Python traceback besides"
    )


def worth(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what a step saves without anomaly detection: at most the time that the GPU idles.

    Without operators the tracebacks that they keep are not seen: the checks alone are the least.
    """
    kept, idle = case.profile.once(tracebacks_ns), round(case.limits.per_step(case.limits.idle_ns))
    if kept is None:
        checked = min(round(checks_ns(case)), idle)
        return (
            Saving.between(checked, idle, "the reads of gradients, to all idle time: tracebacks are not seen")
            if checked
            else None
        )
    saving = min(round(kept + checks_ns(case)), idle)
    why = "the time of the tracebacks that operators keep, and of the reads of gradients"
    return Saving(saving, why, most_ns=idle, source="time")
