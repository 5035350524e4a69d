"""Before against after: one answer, its parts, which sum to it to the nanosecond, and tables of all details."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from nsysx.catalogue import DeviceActivity
from nsysx.comparing import comparability, difference_intervals, differences
from nsysx.comparing.comparing_bounds import (
    GPU_BOUND_WAIT_SHARE,
    GPU_DRIFT_SHARE,
    MODULES_ATTRIBUTED_SHARE,
    MOST_NAMED_PARTS,
    SAME_MEANS_SHARE,
    SAME_WORK_MARGINS,
    STEP_LEVEL,
)
from nsysx.comparing.comparison_sentence import real_words, sentence
from nsysx.comparing.difference_answer import Comparison, DifferencePart, Real
from nsysx.comparing.differences import PartDifference
from nsysx.comparing.side import Side, as_fine, renamed
from nsysx.frames.frame_bounds import PROCESS_DRIFT


class ComparedTable(NamedTuple):
    """A table of a comparison: its key in the JSON, the part of step_parts that it compares, and its title.

    ``drift``: the share by which its times differ between processes of one program. ``leads``: where there is little room, its
    largest changes are shown.
    """

    key: str
    part: str
    drift: float
    title: str
    leads: bool = False


TABLES = (
    ComparedTable("ledger", "ledger", GPU_DRIFT_SHARE, "Where the step goes"),
    ComparedTable("idle", "idle", PROCESS_DRIFT, "GPU idle time by cause"),
    ComparedTable("phases", "phase", PROCESS_DRIFT, "Phases, on the CPU"),
    ComparedTable("modules", "module", GPU_DRIFT_SHARE, "Modules, own GPU time", leads=True),
    ComparedTable("families", "family", GPU_DRIFT_SHARE, "Kernel families"),
    ComparedTable("kernels", "kernel", GPU_DRIFT_SHARE, "Kernels", leads=True),
    ComparedTable("api_calls", "api", PROCESS_DRIFT, "CUDA API calls, own time", leads=True),
    ComparedTable("waits", "wait", PROCESS_DRIFT, "Waits", leads=True),
)


def _attributed(side: Side) -> float:
    """Return the share of compute time that modules account for, the lowest of all captures."""
    shares = []
    for c in side.captures:
        series = c.series("module_compute")
        whole = sum(int(s.ns.sum()) for s in series.values())
        attributed_ns = sum(int(s.ns.sum()) for k, s in series.items() if k is not None and s.cls is not None)
        shares.append(attributed_ns / whole if whole else 0.0)
    return min(shares, default=0.0)


def _compute(
    before: Side, after: Side, noise: Side | None, step: float
) -> tuple[str, list[tuple[str, PartDifference]]]:
    """Return what compute time is split by, and its rows: by module if they account for most of it, else by family."""
    by_module = min(_attributed(before), _attributed(after)) >= MODULES_ATTRIBUTED_SHARE
    split = "module" if by_module else "family"
    rows = differences.table(before, after, noise, f"{split}_compute", step_ns=step, drift=GPU_DRIFT_SHARE)
    return split, [(split, r) for r in rows]


def _parts(
    before: Side, after: Side, noise: Side | None, step: float, total: int
) -> tuple[str, tuple[DifferencePart, ...]]:
    """Return the parts of the difference: compute by module or family, communication, copies, memsets, idle by cause."""
    split, ranked = _compute(before, after, noise, step)
    ledger = differences.table(before, after, noise, "ledger", step_ns=step, drift=GPU_DRIFT_SHARE)
    ranked += [
        ("ledger", r) for r in ledger if r.name in (DeviceActivity.COMM, DeviceActivity.COPY, DeviceActivity.MEMSET)
    ]
    idle = differences.table(before, after, noise, "idle", step_ns=step, drift=PROCESS_DRIFT)
    ranked += [("idle", r) for r in idle]
    ranked = [(kind, r) for kind, r in ranked if r.before_ns or r.after_ns]
    ranked.sort(key=lambda e: -abs(e[1].difference_ns))
    named, smaller = ranked[:MOST_NAMED_PARTS], ranked[MOST_NAMED_PARTS:]
    values = [r.difference_ns for _, r in named] + ([sum(r.difference_ns for _, r in smaller)] if smaller else [])
    if not values:
        return split, ()
    exact = differences.whole(values, total)
    parts = [
        DifferencePart(
            kind,
            r.name,
            difference_ns=ns,
            before_ns=round(r.before_ns),
            after_ns=round(r.after_ns),
            low_ns=_int(r.low_ns),
            high_ns=_int(r.high_ns),
            verdict=r.verdict,
            status=r.status,
        )
        for (kind, r), ns in zip(named, exact, strict=False)
    ]
    if smaller:
        old, new = (round(sum(getattr(r, k) for _, r in smaller)) for k in ("before_ns", "after_ns"))
        words = f"{len(smaller)} smaller parts"
        parts.append(
            DifferencePart(
                "rest",
                words,
                difference_ns=exact[-1],
                before_ns=old,
                after_ns=new,
                low_ns=None,
                high_ns=None,
                verdict="cannot_tell",
                status="both",
            )
        )
    return split, tuple(parts)


def _int(value: float | None) -> int | None:
    return None if value is None else round(value)


def _per_step(side: Side, part: str, name: str) -> float:
    """Return the time per step of one series, the mean of the captures."""
    return sum(s.mean_ns for c in side.captures if (s := c.series(part).get(name)) is not None) / len(side.captures)


def _host_time(side: Side) -> float:
    """Return how long the host works per step, without waits (ns)."""
    waits = sum(s.mean_ns for c in side.captures for s in c.series("wait").values()) / len(side.captures)
    return max(0.0, _per_step(side, "step", "cpu") - waits)


def _drift(before: Side, after: Side, step: float) -> float:
    """Return how far two processes of one program may differ per step (ns) if that was not measured.

    A host that is a third slower shows only when the device waits for it, so drift is at most all such waiting.
    """
    waiting = max(_per_step(before, "work", "rest"), _per_step(after, "work", "rest"))
    host = PROCESS_DRIFT * max(_host_time(before), _host_time(after))
    return min(waiting, host) + GPU_DRIFT_SHARE * step


def _work(before: Side, after: Side, noise: Side | None, margin: float) -> tuple[PartDifference, bool]:
    """Return the difference of GPU work, judged at the level of the step, and whether both sides are GPU-bound."""
    rows = differences.table(before, after, noise, "work", step_ns=0.0, drift=GPU_DRIFT_SHARE)
    row = next(r for r in rows if r.name == "gpu_work")
    doubt = differences.doubts(before, after, noise, "work", ["gpu_work"])[0]
    doubt = difference_intervals.Doubt(doubt.error, doubt.df, row.drift_ns)
    half = doubt.half(STEP_LEVEL) + doubt.drift
    verdict = difference_intervals.judge(row.difference_ns, doubt, margin * row.before_ns)
    bounded = half != float("inf")
    low, high = (row.difference_ns - half, row.difference_ns + half) if bounded else (None, None)
    bound = all(
        _per_step(s, "work", "rest") <= GPU_BOUND_WAIT_SHARE * _per_step(s, "step", "gpu") for s in (before, after)
    )
    return replace(row, verdict=verdict, low_ns=low, high_ns=high), bound


def _unprofiled_steps(before: Side, after: Side, margin: float) -> Real | None:
    """Return the steps without the profiler, None unless every capture of both sides has one."""
    sides = []
    for side in (before, after):
        real = [real for c in side.captures if (real := c.summary.step.estimate)]
        if len(real) < len(side.captures):
            return None
        step, low, high = (
            sum(values) / len(real) for values in zip(*((r.step_ns, r.low_ns, r.high_ns) for r in real), strict=True)
        )
        sides.append((step, step - low, high - step, real[0].source))
    (a, a_low, a_high, a_source), (b, b_low, b_high, b_source) = sides
    difference = b - a
    low = difference - (a_high**2 + b_low**2) ** 0.5
    high = difference + (a_low**2 + b_high**2) ** 0.5
    allowed = margin * a
    if -allowed <= low and high <= allowed:
        verdict = "same"
    else:
        verdict = "faster" if high < 0 else "slower" if low > 0 else "cannot_tell"
    sources = (a_source, b_source)
    return Real(
        round(a),
        round(b),
        difference_ns=round(b) - round(a),
        low_ns=round(low),
        high_ns=round(high),
        verdict=verdict,
        sources=sources,
    )


def _basis(before: Side, after: Side, noise: Side | None) -> str:
    if differences.measured_between(before, after, noise):
        counts = [len(s.captures) for s in (before, after, noise) if s is not None and len(s.captures) > 1]
        return f"the scatter between captures ({' + '.join(map(str, counts))})"
    return "steps only: one capture a side does not show how processes differ"


def _judged(
    before: Side, after: Side, noise: Side | None, old: int, new: int, margin: float
) -> tuple[str, float, float, PartDifference, bool]:
    """Return the verdict, half the interval, the allowed drift, the difference of GPU work, and whether that decided."""
    doubt = differences.doubts(before, after, noise, "step", ["gpu"])[0]
    measured = differences.measured_between(before, after, noise)
    drift = 0.0 if measured else _drift(before, after, max(old, new))
    half = doubt.half(STEP_LEVEL)
    verdict = difference_intervals.judge(
        new - old, difference_intervals.Doubt(doubt.error, doubt.df, drift), margin * old
    )
    work, gpu_bound = _work(before, after, noise, margin)
    by_work = verdict == "cannot_tell" and gpu_bound and half != float("inf")
    if by_work and (work.verdict != "same" or abs(new - old) <= SAME_WORK_MARGINS * margin * old):
        verdict = work.verdict
    return verdict, half, drift, work, by_work and verdict != "cannot_tell"


def compare(before: Side, after: Side, noise: Side | None = None, *, margin: float = SAME_MEANS_SHARE) -> Comparison:
    """Return the comparison of two sides. ``noise``: captures of one program, which show how much captures differ."""
    after, now = renamed(after, before)
    sides = [before, after] if noise is None else [before, after, renamed(noise, before)[0]]
    sides, folded = as_fine(sides)
    before, after = sides[:2]
    noise = sides[2] if noise is not None else None
    gpu = differences.table(before, after, noise, "step", step_ns=1.0, drift=0.0)
    step = next(r for r in gpu if r.name == "gpu")
    old, new = round(step.before_ns), round(step.after_ns)
    verdict, half, drift, work, by_work = _judged(before, after, noise, old, new, margin)
    bounded = half != float("inf")
    real = _unprofiled_steps(before, after, margin)
    notes = [*before.notes, *after.notes]
    if folded:
        which = ", ".join(folded[:3]) + (f" and {len(folded) - 3} more" if len(folded) > 3 else "")
        notes.append(f"Backward of {which} is not known in every capture: it counts toward the module that calls them.")
    if real is not None and {verdict, real.verdict} == {"faster", "slower"}:
        notes.append("With and without the profiler the answers contradict each other: trust neither.")
        verdict = "cannot_tell"
    split, parts = _parts(before, after, noise, step.before_ns, new - old)
    tables = {
        t.key: differences.table(before, after, noise, t.part, step_ns=old, drift=t.drift, now=now) for t in TABLES
    }
    low, high = (round(new - old - half), round(new - old + half)) if bounded else (None, None)
    answer = Comparison(
        verdict=verdict,
        difference_ns=new - old,
        low_ns=low,
        high_ns=high,
        before_ns=old,
        after_ns=new,
        drift_ns=round(drift),
        detectable_ns=round(half + drift) if bounded else None,
        margin=margin,
        basis=_basis(before, after, noise),
        sentence="",
        parts=parts,
        parts_by=split,
        comparability=tuple(comparability.lines(before, after)),
        tables=tables,
        real=real,
        gpu_work=work,
        decided_by="gpu_work" if by_work else "step",
        notes=tuple(notes),
        steps={s.name: [c.step_ns for c in s.captures] for s in (before, after)},
        whole=any(c.whole for s in (before, after) for c in s.captures),
        names=(tuple(c.label for c in before.captures), tuple(c.label for c in after.captures)),
    )
    words = sentence(answer, work if by_work else None, single=not differences.measured_between(before, after, noise))
    if real is not None:
        surer = verdict == "cannot_tell" and real.verdict in ("faster", "slower")
        words += " " + real_words(real.before_ns, real.after_ns, real.low_ns, real.high_ns, real.verdict, surer=surer)
    return replace(answer, sentence=words)
