"""What limits the step: one code and one sentence, from the steady ledger of the busiest device."""

from __future__ import annotations

import itertools

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import one_time_cost
from nsysx.events.ledger import CAUSES
from nsysx.events.profile import Profile
from nsysx.frames.lookup import at, distinct, totals
from nsysx.model import Row, Verdict

#: Below this share of the window, what is not compute is not what limits the step.
_MINOR = 0.15

_SENTENCES = {
    "comm_bound": "Communication that no compute hides takes {share} of the {what}.",
    "copy_bound": "Copies that no kernel hides take {share} of the {what}.",
    "input_bound": "The GPU waits for input data {share} of the {what}.",
    "sync_bound": "The GPU runs dry behind synchronizing calls {share} of the {what}: the CPU waits for the GPU, then the GPU for the CPU.",
    "alloc_bound": "The GPU waits for memory allocation and free calls {share} of the {what}.",
    "warmup": "The GPU waits for kernels and libraries to be loaded {share} of the {what}: this window is warm-up, not steady work.",
    "launch_bound": "The GPU waits for the CPU to launch work {share} of the {what}{why}.",
}

#: What could be removed, in words, for the line that says how the idle time is divided.
_GROUPS = {
    "input_bound": "input data",
    "sync_bound": "synchronizing calls and the CPU work after them",
    "alloc_bound": "allocation and free calls",
    "warmup": "loading of kernels and libraries",
    "launch_bound": "launches and the CPU work before them",
    "gpu_bound": "other GPU work and the gaps between queued kernels",
    "profiler": "the profiler itself",
    "untraced": "work launched outside the trace",
}

_MARK_STEPS = (
    "For a verdict on steady work run a loop under nsysx run, or mark its steps with NVTX and give --step-range"
)

#: Profiling makes every launch slower; a launch-bound program pays it in full.
_CAVEAT = "Profiling slows launches, so an unprofiled step idles less: compare with its wall time before acting on this"


def idle_groups(profile: Profile, process: int, device: int) -> dict[str, int]:
    """Return the steady idle time of a device by who could remove it (ns); sums to the idle time.

    Like the idle causes, but within steps the CPU time after a synchronizing call is counted to that call when the device ran
    dry inside it: had the CPU run ahead instead of waiting, the gap would not be there. Without steps that cannot be said:
    what came after may be another part of the program.
    """
    waiting = {"sync", "copy"} if profile.steps.source != "capture" else set()
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
    pieces = profile.idle()[process, device]
    kinds, kind = distinct(at(profile.attributed.api_calls["kind"], pieces["began_in"].to_numpy()))
    ns = totals(pieces["cause"].to_numpy() * len(kinds) + kind, pieces["ns"].to_numpy(), len(CAUSES) * len(kinds))
    found: dict[str, int] = {}
    for (cause, in_kind), idle_ns in zip(itertools.product(CAUSES, kinds), ns.tolist(), strict=True):
        if idle_ns:
            group = groups.get(cause) or ("sync_bound" if in_kind in waiting else "launch_bound")
            found[group] = found.get(group, 0) + idle_ns
    return found


def judge(profile: Profile, gpu_rows: tuple[Row, ...] | None) -> Verdict:
    """Return the verdict. "unknown" when the capture does not hold what it takes."""
    if not gpu_rows:
        return Verdict("unknown", "Cannot tell: the capture holds no GPU work.", ("record with -t cuda on a CUDA GPU",))
    mine = [r for r in gpu_rows if r["process"] == profile.steps.process] or list(gpu_rows)
    row = max(mine, key=lambda r: (r["busy_ns"], -r["device"]))
    window = row["window_ns"]
    if not window:
        return Verdict("unknown", "Cannot tell: the steady steps hold no GPU work.")
    key = (row["process"], row["device"])
    parts = idle_groups(profile, *key)
    parts["comm_bound"], parts["copy_bound"] = row["comm_ns"], row["copy_ns"]
    within = parts.pop("gpu_bound", 0)
    profiler, untraced = parts.pop("profiler", 0), parts.pop("untraced", 0)
    code, worst = max(parts.items(), key=lambda item: (item[1], item[0]))
    busy = units.share(row["busy_ns"], window)
    steps = profile.steady_count
    over = "the whole capture" if profile.steps.whole else f"{steps} steady step{'s' * (steps != 1)}"
    what = "capture" if profile.steps.whole else "step"
    evidence = [f"GPU {key[1]} busy {busy} of {over} ({units.duration(window)})"]
    if untraced > window * 0.5:
        return Verdict("unknown", "Cannot tell: most GPU work was launched outside the trace.", tuple(evidence))
    lost = sum(parts.values())
    if lost < _MINOR * window:
        sync = _sync_share(profile)
        sentence = f"The GPU is the limit: it is busy {busy} of the {what}"
        if sync is not None and sync > 0.3:
            sentence += f"; the CPU sits in synchronizing calls {units.share(sync, 1)} of the time, which costs the GPU almost nothing"
        return Verdict("gpu_bound", sentence + ".", tuple(evidence))
    if profiler > worst:
        return Verdict("unknown", "Cannot tell: the profiler's own work dominates the idle time.", tuple(evidence))
    idle = {k: v for k, v in {**parts, "gpu_bound": within, "profiler": profiler}.items() if k in _GROUPS}
    divided = sorted(((ns, k) for k, ns in idle.items() if ns > 0.01 * window), reverse=True)[:4]
    idles = lost - parts["comm_bound"] - parts["copy_bound"] > _MINOR * window
    if idles and len(divided) > 1:
        said = ", ".join(f"{_GROUPS[k]} {units.share(ns, window)}" for ns, k in divided)
        evidence.append(f"GPU idle, by what could remove it: {said}")
    if profile.steps.source == "capture" and code not in ("comm_bound", "copy_bound"):
        once, repeated = _one_time(profile)
        if once > max(_MINOR * window, repeated):
            sentence = (
                f"This is start-up, not steady work: what is paid only once takes {units.share(once, window)} of the capture, "
                f"in which the GPU is busy {busy}. No steps were found."
            )
            return Verdict("warmup", sentence, (*evidence, _MARK_STEPS))
        if worst < 0.5 * window:
            sentence = f"Cannot tell: no steps were found, and over the whole capture, start-up included, the GPU is busy {busy}."
            return Verdict("unknown", sentence, (*evidence, _MARK_STEPS))
    why = ""
    if code == "launch_bound":
        host, launch = row["idle_causes"].get("host_code", 0), row["idle_causes"].get("launch_latency", 0)
        why = (
            ", most of it in Python and framework code between launches"
            if host > launch
            else ", most of it in the launches themselves"
        )
        evidence.append(_CAVEAT)
    if idles and (blamed := _blamed(profile, *key)):
        evidence.append(blamed)
    if within > _MINOR * window:
        evidence.append("Only fewer, larger kernels or CUDA graphs remove the gaps between queued kernels")
    return Verdict(code, _SENTENCES[code].format(share=units.share(worst, window), what=what, why=why), tuple(evidence))


def _one_time(profile: Profile) -> tuple[int, int]:
    """Return what the CUDA calls of the shown process cost once, and every time; without waiting (ns)."""
    mine = one_time_cost.split(profile).functions.filter(pl.col("process") == profile.steps.process)
    return int(mine["one_time_ns"].sum()), int(mine["repeated_ns"].sum())


def _blamed(profile: Profile, process: int, device: int) -> str:
    """Name the module before whose work the device idles most, "" when no module stands out."""
    pieces = profile.idle()[process, device]
    modules, module = distinct(at(profile.attributed.gpu_ops["module"], pieces["op"].to_numpy()))
    by_module = totals(module, pieces["ns"].to_numpy(), len(modules))
    most = int(by_module.max(initial=0))
    name = min(
        (m for m, ns in zip(modules, by_module.tolist(), strict=True) if ns == most and m is not None), default=None
    )
    # Names in parentheses stand for what lies outside modules.
    if name is None or name.startswith("(") or most < 0.2 * by_module.sum():
        return ""
    return f"{units.share(most, int(by_module.sum()))} of the GPU idle time lies before work of module '{name}'"


def _sync_share(profile: Profile) -> float | None:
    """Return the part of the driving thread's steady time that it spends in synchronizing calls and blocking copies."""
    mine = pl.col("process") == profile.steps.process
    windows, threads = (
        profile.steps.cpu_windows.filter(mine),
        profile.steps.cpu.filter(mine)["thread"].drop_nulls().unique(),
    )
    if not windows.height or not len(threads):
        return None
    start, end = windows.select("start_ns", "end_ns").row(0)
    waits = profile.steady_calls.select("call", "thread").join(profile.ledgers.waits, on="call")
    waits = waits.filter(pl.col("thread").is_in(threads.to_list()))
    total = int(waits.select((pl.col("backlog_ns") + pl.col("own_op_ns")).sum()).item() or 0)
    return total / (end - start) if end > start else None
