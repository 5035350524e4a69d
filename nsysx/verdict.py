"""What limits the step: one code and one sentence, from the steady ledger of the busiest device."""

from __future__ import annotations

import polars as pl

from nsysx import columns, units
from nsysx.facts import Facts
from nsysx.ledger import CAUSES
from nsysx.model import Row, Verdict

#: Below this share of the window, what is not compute is not what limits the step.
_MINOR = 0.15

_SENTENCES = {
    "comm_bound": "Communication that no compute hides takes {share} of the step.",
    "copy_bound": "Copies that no kernel hides take {share} of the step.",
    "input_bound": "The GPU waits for input data {share} of the step.",
    "sync_bound": "The GPU runs dry behind synchronizing calls {share} of the step: the CPU waits for the GPU, then the GPU for the CPU.",
    "alloc_bound": "The GPU waits for memory allocation and free calls {share} of the step.",
    "warmup": "The GPU waits for kernels and libraries to be loaded {share} of the time: this window is warm-up, not steady work.",
    "launch_bound": "The GPU waits for the CPU to launch work {share} of the step{why}.",
}

#: Profiling makes every launch slower; a launch-bound program pays it in full.
_CAVEAT = "Profiling slows launches, so an unprofiled step idles less: compare with its wall time before acting on this"


def idle_groups(facts: Facts, process: int, device: int, start: int, end: int) -> dict[str, int]:
    """Return device idle time in [start, end) by who could remove it (ns); sums to the idle time.

    Like the idle causes, but the CPU time after a synchronizing call is counted to that call when the device ran dry inside
    it: had the CPU run ahead instead of waiting, the gap would not be there.
    """
    waiting = {"sync", "copy"}
    mine = facts.ledgers.idle.filter(
        (pl.col("process") == process)
        & (pl.col("device") == device)
        & (pl.col("end_ns") > start)
        & (pl.col("start_ns") < end)
    )
    in_kind = columns.at(facts.attributed.api_calls["kind"], mine["began_in"].fill_null(-1).to_numpy())
    mine = mine.with_columns(in_kind.cast(pl.String).alias("in_kind"))
    groups = {
        "data_loader": "input_bound",
        "alloc": "alloc_bound",
        "load": "warmup",
        "sync": "sync_bound",
        "copy_call": "sync_bound",
        "profiler": "profiler",
        "dependency": "gpu_bound",
        "kernel_gap": "gpu_bound",
        "untraced_launch": "untraced",
        "no_further_work": "untraced",
    }
    found: dict[str, int] = {}
    ns = pl.min_horizontal("end_ns", pl.lit(end)) - pl.max_horizontal("start_ns", pl.lit(start))
    for cause, kind, idle_ns in mine.group_by("cause", "in_kind").agg(ns.sum()).iter_rows():
        name = CAUSES[cause]
        group = groups.get(name) or ("sync_bound" if kind in waiting else "launch_bound")
        found[group] = found.get(group, 0) + idle_ns
    return found


def judge(facts: Facts, gpu_rows: tuple[Row, ...] | None) -> Verdict:
    """Return the verdict. "unknown" when the capture does not hold what it takes."""
    if not gpu_rows:
        return Verdict("unknown", "Cannot tell: the capture holds no GPU work.", ("record with -t cuda on a CUDA GPU",))
    mine = [r for r in gpu_rows if r["process"] == facts.steps.process] or list(gpu_rows)
    row = max(mine, key=lambda r: (r["busy_ns"], -r["device"]))
    window = row["window_ns"]
    if not window:
        return Verdict("unknown", "Cannot tell: the steady steps hold no GPU work.")
    key = (row["process"], row["device"])
    bounds = facts.steps.windows.filter((pl.col("process") == key[0]) & (pl.col("device") == key[1]))
    start, end = bounds.select("start_ns", "end_ns").row(0)
    parts = idle_groups(facts, *key, start, end)
    parts["comm_bound"], parts["copy_bound"] = row["comm_ns"], row["copy_ns"]
    within = parts.pop("gpu_bound", 0)
    profiler, untraced = parts.pop("profiler", 0), parts.pop("untraced", 0)
    code, worst = max(parts.items(), key=lambda item: (item[1], item[0]))
    busy = units.share(row["busy_ns"], window)
    what = "of the whole capture" if facts.steps.whole else f"of {facts.steady_count} steady steps"
    evidence = [
        f"GPU busy {busy} {what} (device {key[1]}, {units.duration(window)})",
        f"compute {units.share(row['compute_ns'], window)}, exposed communication {units.share(row['comm_ns'], window)}, "
        f"exposed copies {units.share(row['copy_ns'], window)}, memset {units.share(row['memset_ns'], window)}, "
        f"idle {units.share(row['idle_ns'], window)}",
    ]
    causes = sorted(row["idle_causes"].items(), key=lambda item: -item[1])[:4]
    if causes:
        evidence.append(
            "idle by cause: " + ", ".join(f"{c.replace('_', ' ')} {units.share(ns, window)}" for c, ns in causes)
        )
    if untraced > window * 0.5:
        return Verdict("unknown", "Cannot tell: most GPU work was launched outside the trace.", tuple(evidence))
    lost = sum(parts.values())
    if lost < _MINOR * window:
        step = facts.steps
        own = step.gpu.filter((pl.col("process") == key[0]) & (pl.col("device") == key[1]))
        sync = _sync_share(facts)
        sentence = f"The GPU is the limit: it is busy {busy} of the step"
        if sync is not None and sync > 0.3 and own.height:
            sentence += (
                f"; the CPU sits in synchronizing calls {sync:.0%} of the time, which costs the GPU almost nothing"
            )
        return Verdict("gpu_bound", sentence + ".", tuple(evidence))
    if profiler > worst:
        return Verdict("unknown", "Cannot tell: the profiler's own work dominates the idle time.", tuple(evidence))
    why = ""
    if code == "launch_bound":
        host, launch = row["idle_causes"].get("host_code", 0), row["idle_causes"].get("launch_latency", 0)
        why = (
            ", most of it in Python and framework code between launches"
            if host > launch
            else ", most of it in the launches themselves"
        )
        evidence.append(_CAVEAT)
    if blamed := _blamed(facts, key, start, end):
        evidence.append(blamed)
    if within > _MINOR * window:
        evidence.append(
            f"gaps between queued kernels {units.share(within, window)}: only fewer, larger kernels or graphs remove them"
        )
    return Verdict(code, _SENTENCES[code].format(share=units.share(worst, window), why=why), tuple(evidence))


def _blamed(facts: Facts, key: tuple[int, int], start: int, end: int) -> str:
    """Name the module before whose work the device idles most, "" when no module stands out."""
    idle = facts.ledgers.idle.filter(
        (pl.col("process") == key[0])
        & (pl.col("device") == key[1])
        & (pl.col("end_ns") > start)
        & (pl.col("start_ns") < end)
    )
    ns = pl.min_horizontal("end_ns", pl.lit(end)) - pl.max_horizontal("start_ns", pl.lit(start))
    by_module = (
        idle.join(facts.attributed.gpu_ops.select("op", pl.col("module").cast(pl.String)), on="op", how="left")
        .group_by("module")
        .agg(ns.sum().alias("ns"))
        .sort("ns", "module", descending=[True, False], nulls_last=True)
    )
    whole = int(by_module["ns"].sum())
    if not whole or by_module["module"][0] is None or by_module["ns"][0] < 0.2 * whole:
        return ""
    return f"{units.share(by_module['ns'][0], whole)} of the idle time lies before work of {by_module['module'][0]}"


def _sync_share(facts: Facts) -> float | None:
    """Return the part of the driving thread's steady time that it spends in synchronizing calls and blocking copies."""
    windows = facts.steps.cpu_windows.filter(pl.col("process") == facts.steps.process)
    threads = facts.steps.cpu.filter(pl.col("process") == facts.steps.process)["thread"].drop_nulls().unique()
    if not windows.height or not len(threads):
        return None
    start, end = windows.select("start_ns", "end_ns").row(0)
    waits = facts.steady_calls.filter(pl.col("thread").is_in(threads.to_list())).join(facts.ledgers.waits, on="call")
    total = int(waits.select((pl.col("backlog_ns") + pl.col("own_op_ns")).sum()).item() or 0)
    return total / (end - start) if end > start else None
