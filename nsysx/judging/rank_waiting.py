"""Who is waited for in a job: decided once, from the table of its ranks, for every sentence that says so."""

from __future__ import annotations

from collections.abc import Sequence

from nsysx import units
from nsysx.events.sampled_clocks import WorkingClock
from nsysx.judging.judging_bounds import LAST_RANK_SHARE, NOTABLE_PART_SHARE, STRAGGLER_FEWEST_STEPS
from nsysx.judging.schedule import Schedule
from nsysx.model import Row, Scope


def per_step(row: Row, column: str) -> float:
    """Return a sum over the steps of a rank as the part of one (ns); all of it where the rank has no steps."""
    steps = int(row["steps"] or 0)
    return float(Scope("steady" if steps else "capture", (), steps=steps).per_step(row[column] or 0))


def gpu_clock(row: Row) -> str:
    """Return at which clock the GPU of a rank worked, of the highest that it has; both have to be known."""
    return WorkingClock(row["clock_mhz"], row["most_clock_mhz"]).text


def waited_for(rows: Sequence[Row]) -> Row | None:
    """Return the rank that the others wait for: the straggler, or else the one that mostly comes last; None if they take turns."""
    late = next((r for r in rows if r["straggler"]), None)
    if late is not None or any(r["bubble_ns"] is not None for r in rows):
        return late
    last = max(rows, key=lambda r: r["delay_ns"] or 0, default=None)
    delay = sum(r["delay_ns"] or 0 for r in rows)
    if last is None or not delay or last["delay_ns"] < LAST_RANK_SHARE * delay or last["last_share"] < LAST_RANK_SHARE:
        return None
    return last if _waited(rows) else None


def _waited(rows: Sequence[Row]) -> float:
    """Return how long the rank that waits longest does so in a step (ns), 0 if that is not worth a word."""
    longest = max(rows, key=lambda r: per_step(r, "exposed_wait_ns"), default=None)
    if longest is None:
        return 0.0
    ns = per_step(longest, "exposed_wait_ns")
    return ns if ns >= NOTABLE_PART_SHARE * per_step(longest, "window_ns") else 0.0


def _of_schedule(rows: Sequence[Row]) -> str:
    """Return in words what of the bubble the schedule has by itself, "" where the messages do not tell the micro-batches.

    A stage at an end of a pipeline sends and receives each micro-batch once forward and once backward, the others twice.
    """
    fewest = min(per_step(row, "collectives") if row.get("collectives") and row["steps"] else 0.0 for row in rows)
    micro, stages = round(fewest / 2), len(rows)
    if micro < 1 or abs(fewest / 2 - micro) > NOTABLE_PART_SHARE * micro:
        return ""
    share = Schedule(stages, micro).of_step
    batches = units.several(micro, "micro-batch", "micro-batches")
    return f"; {stages} equal stages with {batches} have {units.share(share, 1)} by themselves, without interleaving"


def not_compared(rows: Sequence[Row]) -> bool:
    """Return whether too few steps are steady on all ranks to test whether one is late in each: then it is not known that none is."""
    steps = [int(row["steps"] or 0) for row in rows]
    others = any(row["straggler"] or row["bubble_ns"] is not None for row in rows)  # stages of a pipeline are not alike
    return not others and 0 < min(steps, default=0) < STRAGGLER_FEWEST_STEPS


def too_few(rows: Sequence[Row]) -> str:
    """Return why the ranks were not compared, without a full stop."""
    steps = units.several(min(int(row["steps"] or 0) for row in rows), "step")
    return f"Whether one is late in each step was not tested: {steps} of {STRAGGLER_FEWEST_STEPS} that it takes are steady on all ranks"


def why_not_compared(rows: Sequence[Row], probes: Sequence[Row]) -> str:
    """Return in sentences why the ranks were not compared, and why so few steps were recorded where the probes tell; "" where they were."""
    if len(rows) < 2 or not not_compared(rows) or not _waited(rows):
        return ""
    for record in probes:
        window, ran = record.get("capture_steps"), (record.get("steps") or {}).get("count")
        if isinstance(window, list) and len(window) == 2 and isinstance(ran, int) and window[0] < ran < window[1]:
            begun = f"the program ended at step {ran}, and its window of {window[1] - window[0]} steps began at step {window[0]}"
            return f"{too_few(rows)}: {begun}; record a longer run"
    return f"{too_few(rows)}; record a longer run"


def sentence(rows: Sequence[Row]) -> str:
    """Return who waits for whom, without a full stop."""
    late, waited = waited_for(rows), units.duration(_waited(rows))
    if late is not None and late["straggler"]:
        hidden = " without the profiler, which hides it in the recorded steps" if late.get("late_by_work") else ""
        return f"The others wait for rank {late['rank']}{hidden}"
    if any(r["bubble_ns"] is not None for r in rows):
        worst = max(rows, key=lambda r: (r["bubble_ns"] or 0) / max(1, r["window_ns"]))
        share = units.share(worst["bubble_ns"] or 0, worst["window_ns"])
        bubble = f"its bubble is up to {share} of the step (rank {worst['rank']})"
        return f"The stages of the pipeline wait for each other: {bubble}{_of_schedule(rows)}"
    if not _waited(rows):
        return "No rank waits for another for 1 % of the step"
    if late is None and not_compared(rows):
        return f"The ranks wait for each other up to {waited} a step as recorded. {too_few(rows)}"
    if late is None:
        return f"The ranks wait for each other in turn, up to {waited} a step as recorded: none is always the last"
    last = units.share(late["last_share"], 1)
    if not_compared(rows):
        return (
            f"Rank {late['rank']} comes last in {last} of the collectives, and the others wait up to {waited} a step for it as recorded. "
            f"{too_few(rows)}"
        )
    return (
        f"Rank {late['rank']} comes last in {last} of the collectives, and the others wait up to {waited} a step for it as recorded, "
        "but its own time is longer than theirs by no more than the hosts of two healthy processes differ"
    )
