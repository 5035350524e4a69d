"""Whether two sides can be compared at all: one line per difference of the machine, the capture and the steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from nsysx import units
from nsysx.comparing.comparing_bounds import (
    EQUAL_CLOCKS_SHARE,
    FEWEST_EQUAL_KERNELS,
    FEWEST_NAMED_MODULES,
    MOST_VALUE_LETTERS,
    SAME_KERNELS_SHARE,
    SAME_MODULES_SHARE,
    SAME_PER_STEP,
    STEP_COUNTS_TIMES,
)
from nsysx.comparing.side import Captured, Side
from nsysx.events.families import COMMUNICATION, family
from nsysx.gpus import each_once
from nsysx.judging.capture_checks import EVENTS_MISSING
from nsysx.model import Summary

#: Options of nsys that change the cost of tracing, by words in their names.
_OPTIONS = ("TRACE", "RATE", "BACKTRACE", "SAMPL", "GRAPH", "MEMORY", "CTXSW")


@dataclass(frozen=True)
class ComparabilityCheck:
    """One check of both sides against each other. ``before`` and ``after`` are None if a Summary does not say."""

    check: str
    status: Literal["same", "differs", "unknown"]
    detail: str
    before: str | None = None
    after: str | None = None


def _joined_value(side: Side, get: Callable[[Summary], Any]) -> str | None:
    """Return the value that the captures of a side have, joined if they differ, None if none has it."""
    values = []
    for c in side.captures:
        value = get(c.summary)
        if value is not None and value != "" and str(value) not in values:
            values.append(str(value))
    return ", ".join(values) or None


def _gpus(summary: Summary) -> str | None:
    names = [gpu.name for gpu in each_once(summary.capture.gpus)]
    return ", ".join(f"{names.count(n)} x {n}" for n in dict.fromkeys(names)) or None


def _kept_options(summary: Summary) -> list[str]:
    options = summary.capture.options
    return sorted(f"{k}={v}" for k, v in options.items() if any(word in k.upper() for word in _OPTIONS))


def _options(summary: Summary) -> str | None:
    return "; ".join(_kept_options(summary)) or None


def _probe(summary: Summary) -> str:
    probes = summary.capture.probe
    if not probes:
        return "no probe"
    ranges = probes[0].get("ranges") or {}
    return ", ".join(sorted(str(k) for k, n in ranges.items() if n)) or "no ranges"


def _torch(summary: Summary) -> str | None:
    probes = summary.capture.probe
    return next((str(p["torch"]) for p in probes if p.get("torch")), None)


def _steps(summary: Summary) -> str | None:
    return summary.steps.rule


def _unprofiled_source(summary: Summary) -> str:
    return f"known ({summary.step.estimate.source})" if summary.step.estimate else "not known"


#: What is compared word for word: name, how to get it, what a difference means.
_COMPARED: tuple[tuple[str, Callable[[Summary], Any], str], ...] = (
    ("gpu", _gpus, "Different GPUs: the difference may be due to the machine."),
    ("driver", lambda s: s.capture.driver_version, "Different drivers."),
    ("torch", _torch, "Different PyTorch versions: kernels and host cost change with them."),
    ("nsys", lambda s: s.capture.nsys_version, "Different versions of nsys: the cost of tracing may differ."),
    (
        "nsys options",
        _options,
        "Captured with different options: the cost of tracing differs, most in a host-bound step.",
    ),
    ("probe", _probe, "The probe added different ranges: its cost in host time differs."),
    ("steps found by", _steps, "Steps are found by different rules: make sure that both are the same work."),
    ("real step", _unprofiled_source, "The step without the profiler is known differently on the two sides."),
)


def lines(before: Side, after: Side) -> list[ComparabilityCheck]:
    """Return one line per check, differences first."""
    rows = []
    for check, get, meaning in _COMPARED:
        a, b = _joined_value(before, get), _joined_value(after, get)
        if a is None or b is None:
            rows.append(
                ComparabilityCheck(
                    check, "unknown", f"{check}: not in {'both Summaries' if a is b else 'one Summary'}.", a, b
                )
            )
        elif a != b:
            old, other = _changed_options(before, after) if get is _options else (a, b)
            rows.append(ComparabilityCheck(check, "differs", f"{meaning} Before: {old}; after: {other}.", a, b))
        else:
            rows.append(
                ComparabilityCheck(
                    check, "same", f"{check}: {a}" if len(a) < MOST_VALUE_LETTERS else f"{check}: the same", a, b
                )
            )
    rows += [
        _count(before, after),
        *_unnamed_steps(before, after),
        *_work(before, after),
        *_modules(before, after),
        *_clocks(before, after),
        *_partial(before, after),
    ]
    order = {"differs": 0, "unknown": 1, "same": 2}
    return sorted(rows, key=lambda x: order[x.status])


def _changed_options(before: Side, after: Side) -> tuple[str, str]:
    """Return the first few options of each side that the other side does not have."""
    old, other = ({o for c in side.captures for o in _kept_options(c.summary)} for side in (before, after))
    return ", ".join(sorted(old - other)[:4]) or "-", ", ".join(sorted(other - old)[:4]) or "-"


def _count(before: Side, after: Side) -> ComparabilityCheck:
    a, b = (min(c.steps for c in s.captures) for s in (before, after))
    words = f"steps: {a} before, {b} after"
    if max(a, b) > STEP_COUNTS_TIMES * min(a, b):
        return ComparabilityCheck(
            "steps",
            "differs",
            f"{words}: caches, clocks and allocator had less time to settle on one side.",
            str(a),
            str(b),
        )
    return ComparabilityCheck("steps", "same", words, str(a), str(b))


def _unnamed_steps(before: Side, after: Side) -> list[ComparabilityCheck]:
    """Return a warning about steps that no range names: they may be layers, or several steps."""
    guessed = [s.name for s in (before, after) if any(c.summary.steps.source == "kernels" for c in s.captures)]
    if any(c.whole for s in (before, after) for c in s.captures):
        detail = (
            "No steps were found, so the captures are compared as they are, from the first to the last GPU work. The reports do "
            "not say how much of that is startup, or whether both did the same work. Name the steps with --step-range."
        )
        return [ComparabilityCheck("what a step is", "unknown", detail)]
    if not guessed:
        return []
    who = "both sides" if len(guessed) == 2 else guessed[0]
    detail = (
        f"On {who} steps are taken from repeated kernels. The reports do not say whether one is a training step, or the same work "
        "before and after. Profile with nsysx run, or name the steps with --step-range."
    )
    return [ComparabilityCheck("what a step is", "unknown", detail)]


def _per_step(side: Side, part: str) -> dict[str, tuple[float, float]]:
    """Return name -> (count, ns) per step, the mean over the captures that have it."""
    by_name: dict[str, list[tuple[float, float]]] = {}
    for c in side.captures:
        for name, s in c.series(part).items():
            if name is not None and s.mean_count:
                by_name.setdefault(name, []).append((s.mean_count, s.mean_ns))
    return {k: (float(np.mean([x for x, _ in v])), float(np.mean([y for _, y in v]))) for k, v in by_name.items()}


def _work(before: Side, after: Side) -> list[ComparabilityCheck]:
    """Return whether the kernels are the same, and if so, whether nearly all of them run faster or slower."""
    a, b = _per_step(before, "kernel"), _per_step(after, "kernel")
    if not a or not b:
        return [ComparabilityCheck("kernels", "unknown", "kernels: one side runs none in its steady steps.")]
    both = a.keys() & b.keys()
    whole = sum(ns for _, ns in a.values()) + sum(ns for _, ns in b.values())
    shared = sum(a[k][1] + b[k][1] for k in both) / whole if whole else 1.0
    words = f"{len(both)} kernels on both sides take {units.share(shared, 1)} of kernel time"
    if shared < SAME_KERNELS_SHARE:
        rows = [
            ComparabilityCheck("kernels", "differs", f"Only {words}: is it the same program?", str(len(a)), str(len(b)))
        ]
    else:
        rows = [ComparabilityCheck("kernels", "same", f"kernels: {words}", str(len(a)), str(len(b)))]
    # A collective waits for the other ranks: its time says nothing about the clock.
    equal = [k for k in both if abs(a[k][0] - b[k][0]) < SAME_PER_STEP and a[k][1] and family(k) != COMMUNICATION]
    ratios = np.array([b[k][1] / a[k][1] for k in equal])
    weight = np.array([a[k][1] for k in equal])
    if len(equal) < FEWEST_EQUAL_KERNELS or weight.sum() < 0.3 * whole / 2:
        return rows
    # By number and by time: a clock changes all kernels, long and short.
    low, middle, high = np.quantile(ratios, (0.2, 0.5, 0.8))
    order = np.argsort(ratios)
    by_time = float(ratios[order][np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)])
    apart = min(low, by_time) > 1 + EQUAL_CLOCKS_SHARE / 2 or max(high, by_time) < 1 - EQUAL_CLOCKS_SHARE / 2
    if abs(middle - 1) > EQUAL_CLOCKS_SHARE and apart:
        detail = (
            f"Nearly all kernels that run equally often on both sides take {units.share(abs(middle - 1), 1)} "
            f"{'longer' if middle > 1 else 'less'}: other clocks, other shapes (batch, length) or another precision."
        )
        rows.append(ComparabilityCheck("speed of kernels", "differs", detail))
    return rows


def _modules(before: Side, after: Side) -> list[ComparabilityCheck]:
    """Return a warning if hardly a module is on both sides: library kernels alone make no two programs one."""
    a, b = (
        {k: ns for k, (_, ns) in _per_step(s, "module").items() if ns > 0 and not k.startswith("(")}
        for s in (before, after)
    )
    if min(len(a), len(b)) < FEWEST_NAMED_MODULES:
        return []
    shared = sum(a[k] + b[k] for k in a.keys() & b.keys()) / (sum(a.values()) + sum(b.values()))
    if shared >= SAME_MODULES_SHARE:
        return []
    detail = (
        f"Other modules: those on both sides take {units.share(shared, 1)} of the modules' GPU time. "
        "Two programs, or one rewritten, are compared as if they did the same work in a step."
    )
    return [ComparabilityCheck("modules", "differs", detail, str(len(a)), str(len(b)))]


def _clocks(before: Side, after: Side) -> list[ComparabilityCheck]:
    """Return whether the GPUs ran at the same clock, if `nsysx run --clocks` noted it on both sides."""
    sides = [[c.summary.capture.sm_clock_mhz for c in s.captures] for s in (before, after)]
    clocks = [[mhz for mhz in side if mhz] for side in sides]
    if not all(clocks):
        return []
    a, b = (float(np.mean(side)) for side in clocks)
    words = f"median SM clock {a:.0f} MHz before, {b:.0f} after"
    if abs(a - b) > EQUAL_CLOCKS_SHARE * max(a, b):
        detail = f"The GPU ran at another clock: {words}. Everything computed takes longer at the lower one."
        return [ComparabilityCheck("clock", "differs", detail, f"{a:.0f} MHz", f"{b:.0f} MHz")]
    return [ComparabilityCheck("clock", "same", words, f"{a:.0f} MHz", f"{b:.0f} MHz")]


def _partial(before: Side, after: Side) -> list[ComparabilityCheck]:
    """Return one line per capture that is doubtful in itself."""
    every = [c for side in (before, after) for c in side.captures]
    return [ComparabilityCheck("capture", "differs", f"{c.label}: {doubt}") for c in every if (doubt := doubtful(c))]


def doubtful(capture: Captured) -> str | None:
    """Return the warnings of a Summary that mean missing events; None if there are none."""
    missing = [c.detail for c in capture.summary.quality if c.check in EVENTS_MISSING and c.status != "ok"]
    return "; ".join(missing) or None
