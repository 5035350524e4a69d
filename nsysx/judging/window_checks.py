"""A run with two capture windows: what lies between them, what they cost the program, and what the recorded steps lack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from nsysx import ids, units
from nsysx.events import bare
from nsysx.events.profile import Profile
from nsysx.judging.judging_bounds import BARE_DRIFT_SHARE, BARE_QUARTERS, LONG_STEP_TIMES
from nsysx.model import Check
from nsysx.reading.sidecar_files import report_name
from nsysx.replay.replay_bounds import BOOTSTRAP_FEWEST_STEPS

#: The check of a run whose steps all stand in the report of its first window, which is missing.
COLD_REPORT = "cold report"
#: The check of a report of ``nsysx run`` without the record of its run beside it.
RUN_RECORD = "run record"
#: What to do where the report of the first window is missing.
_PUT_BESIDE = "put NAME.cold.sqlite, which nsysx run wrote with it, beside this report"


def _reached(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what ended at the limit, as `recording.limiter` notes it."""
    noted = run.get("limit")
    reached = noted.get("reached") if isinstance(noted, dict) else None
    return [entry for entry in reached if isinstance(entry, dict)] if isinstance(reached, list) else []


def stopped_at_limit(run: Mapping[str, Any]) -> bool:
    """Return whether nsys was stopped from outside at the limit: no process of the program had waited for its GPU before."""
    return any(entry.get("window") is False for entry in _reached(run))


def limit(run: Mapping[str, Any]) -> list[Check]:
    """Return what `nsysx run` did not record because ``--limit`` was reached; [] if it was not."""
    ended = _reached(run)
    if not ended:
        return []
    first = ended[0]
    after = f" after {first['after_s']:g} s" if isinstance(first.get("after_s"), (int, float)) else ""
    why = "about as many events as it allows" if first.get("by") == "events" else "its time"
    sentence = f"the limit of the recording was reached{after} ({why}): nothing more was recorded"
    sentence += " until steps repeated" if first.get("window") else ", and the program went on"
    return [Check("limit", "warn", sentence, "--limit 600 records more, --steps all everything")]


def windows(profile: Profile) -> list[Check]:
    """Return what to know about the parts of the capture; [] for a run with one window."""
    return limit(profile.trace.run) + (_steps_elsewhere(profile) or _parts(profile))


def steps_elsewhere(profile: Profile) -> bool:
    """Return whether this is the second of two windows and holds no whole step, while the report of the first one is missing."""
    return profile.trace.cold_missing and profile.steps.source == "capture"


def cold_report(checks: Iterable[Check]) -> Check | None:
    """Return the check that says that the steps stand in a missing report, None without one."""
    return next((c for c in checks if c.check == COLD_REPORT), None)


def _steps_elsewhere(profile: Profile) -> list[Check]:
    """Say that the steps stand in the missing report of the first window; [] if this report has steps, or that one is here."""
    if not steps_elsewhere(profile):
        return []
    sentence = "this report holds no whole step, and NAME.cold.sqlite, which holds the steps, is not beside it"
    made = [p for p in profile.trace.capture.probe if _made_steps(p)]
    counted = [p["steps"]["count"] for p in made]
    opened = [p["capture_steps"][0] for p in made if isinstance(p.get("capture_steps"), list) and p["capture_steps"]]
    if counted and opened:
        sentence += (
            f": its window opened after {min(opened)} of the {units.several(max(counted), 'step')} of the program"
        )
    return [Check(COLD_REPORT, "warn", sentence, _PUT_BESIDE, doubt="everything")]


def run_record(checks: Iterable[Check]) -> Check | None:
    """Return the check that says that the record of the run is missing, None without one."""
    return next((c for c in checks if c.check == RUN_RECORD), None)


def _record_elsewhere(profile: Profile) -> list[Check]:
    """Say that a report with marks of the probe has no record of the run beside it; [] if it has, or has none of these marks.

    A first window is read with the report of the second one, and has no record of its own.
    """
    if profile.trace.run or profile.steps.source != "nsysx" or report_name(profile.trace.path).endswith(".cold"):
        return []
    sentence = (
        "NAME.run.json, which nsysx run wrote with this report, is not beside it: the step without the profiler, the settings of the "
        "program and the text of its lines stand there"
    )
    return [Check(RUN_RECORD, "warn", sentence, "put NAME.run.json beside this report")]


def _parts(profile: Profile) -> list[Check]:
    if profile.trace.cold_missing:  # no figure of the steps depends on it
        sentence = "NAME.cold.sqlite, which holds the cold start, is not beside this report: first calls are not shown"
        return [Check("windows", "warn", sentence, _PUT_BESIDE)]
    record = _record(profile)
    if record is None:
        return _record_elsewhere(profile)
    lengths = np.asarray(bare.lengths(record), np.int64)
    two, pauses = bool(profile.trace.seams) and profile.trace.sampled is None, _pauses(record)
    if not two and len(pauses) > 1:
        if profile.trace.window is not None:
            return []
        sentence = "one of the two windows (cold start, steady steps) is missing: nsys wrote only one report, or one was not exported"
        return [Check("windows", "warn", sentence, "run it again; what nsys said stands in NAME.run.json")]
    if not pauses:
        if limit(profile.trace.run):
            return []
        if missed := record.get("window_missed"):  # what is beside it in a job kept the window open
            return [Check("windows", "warn", str(missed), "")]
        why = "replaced itself by another one (exec), which cannot end the window" if _replaced(profile) else ""
        sentence = f"recorded: everything; the program {why or 'ended before enough of its steps were alike'}"
        return [Check("windows", "ok", sentence)]
    parts = (
        "the cold start and steady steps" if two and len(pauses) > 1 else "the cold start with the steps that follow it"
    )
    sentence = f"recorded: {parts}; the clock of this report skips everything else"
    if len(lengths):
        clock = record["unrecorded_steps"].get("clock")
        which = "after" if not two else "between"
        sentence += f". {units.several(len(lengths), 'step')} {which} them ran without the profiler and were timed by the {clock}'s clock"
        sentence += _drift(lengths) + _by_rank(profile)
        if slower := bare.slower_at_first(record):
            mean = units.duration(round(sum(slower) / len(slower)))
            sentence += f". {units.several(len(slower), 'step')} before them took {mean} in the mean and do not count: nsys still wrote"
    untimed = not two and record.get("unrecorded_steps") is None and not _replaced(profile)
    if untimed:
        sentence += ". No step was timed without the profiler: the program ended too soon after this window"
    if again := bare.after(record, profile.trace.capture):
        mean = units.duration(round(float(np.mean(again))))
        sentence += f". So did the {units.several(len(again), 'step')} after them: {mean} in the mean"
    if stopped := [ns for ns in pauses if ns]:
        sentence += f". Each window's end stopped the program: {' and '.join(map(units.duration, stopped))}"
    if _replaced(profile):
        sentence += ". Then the program replaced itself by another one (exec), of which nothing was recorded"
    sentence += _earlier_kinds(record) + _other_processes(profile)
    if len(lengths) and not bare.detached(record, profile.trace.capture) and profile.attributed.gpu_ops.height:
        sentence += ". This nsys stays in the program's CUDA calls after a window: without it, steps that wait for launches may be up to"
        sentence += " 30 % shorter, and the bounds of the step allow for that. nsys 2024.5 with driver 525, or newer, leaves the calls"
    fix = "let the program run 5 s longer: its step is then measured, not derived" if untimed else ""
    return [
        Check("windows", "warn" if untimed else "ok", sentence, fix),
        *_alone(profile, record),
        *_missed(profile, lengths),
    ]


def _record(profile: Profile) -> Mapping[str, Any] | None:
    """Return what the probe of the shown process wrote, if it opened two windows or the first of two."""
    probes = ids.records_of(profile.trace.capture.probe, profile.steps.process)
    return next((p for p in probes if isinstance(p.get("window_pauses_ns"), list)), None)


def _earlier_kinds(record: Mapping[str, Any]) -> str:
    """Return what steps the program made before it went over to those that are shown, "" if it did not."""
    noted = record.get("earlier_kinds")
    kinds = [kind for kind in noted if isinstance(kind, dict)] if isinstance(noted, list) else []
    made = [(kind.get("steps"), kind.get("ns")) for kind in kinds]
    told = [
        f"{units.several(n, 'step')} in {units.duration(ns)}"
        for n, ns in made
        if isinstance(n, int) and isinstance(ns, int)
    ]
    if not told:
        return ""
    return f". Before, the program made steps of another kind ({', then '.join(told)}): those shown have taken longer since"


def _other_processes(profile: Profile) -> str:
    """Return how many processes made steps beside the one that has the windows, "" if none did."""
    others = [p for p in profile.trace.capture.probe if p.get("windows_of") and _made_steps(p)]
    if not others:
        return ""
    them = units.several(len(others), "other process made", "other processes made")
    return f". {them} steps, too: of those only what fell into the windows is recorded"


def _made_steps(record: Mapping[str, Any]) -> bool:
    steps = record.get("steps")
    count = steps.get("count") if isinstance(steps, dict) else None
    return isinstance(count, int) and count > 0


def _replaced(profile: Profile) -> bool:
    """Return whether the shown process replaced the program that opened the first window by another one."""
    probes = ids.records_of(profile.trace.capture.probe, profile.steps.process)
    return any(p.get("replaced") is True for p in probes)


def _pauses(record: Mapping[str, Any]) -> list[int]:
    """Return how long the end of each window stopped the program (ns)."""
    noted = record["window_pauses_ns"]
    return noted if all(isinstance(ns, int) and ns >= 0 for ns in noted) else []


def _drift(lengths: np.ndarray[Any, np.dtype[np.int64]]) -> str:
    """Return how the bare steps changed from their first quarter to their last one, "" where they did not."""
    part = len(lengths) // 4
    if part < BARE_QUARTERS:
        return ""
    first, last, mean = (float(some.mean()) for some in (lengths[:part], lengths[-part:], lengths))
    if abs(last - first) <= BARE_DRIFT_SHARE * mean:
        return ""
    return f", {units.duration(round(first))} in the mean of their first quarter and {units.duration(round(last))} in that of the last"


def _by_rank(profile: Profile) -> str:
    """Return the mean length of a bare step on each rank, over the last steps that all have, "" for a single process."""
    ranks = {
        str(p["rank"]): lengths for p in profile.trace.capture.probe if p.get("rank") and (lengths := bare.lengths(p))
    }
    if len(ranks) < 2:
        return ""
    common = min(map(len, ranks.values()))
    means = {rank: units.duration(round(sum(lengths[-common:]) / common)) for rank, lengths in ranks.items()}
    return f", the same steps by rank: {', '.join(f'{rank} {mean}' for rank, mean in sorted(means.items()))}"


def _alone(profile: Profile, record: Mapping[str, Any]) -> list[Check]:
    """Return a note on single bare steps of many times the usual length, and what they would add to the mean."""
    capture = profile.trace.capture
    steps, apart = [*bare.lengths(record), *bare.after(record, capture)], bare.left_alone(record, capture)
    if not apart or not steps:
        return []
    usual, whole = float(np.median(steps)), len(steps) + len(apart)
    longer, more = sum(apart) - len(apart) * usual, (sum(steps) + sum(apart)) / whole - float(np.mean(steps))
    took = units.span(units.duration(min(apart)), units.duration(max(apart)))
    sentence = (
        f"{len(apart)} of {whole} steps without the profiler took {took} (usually {units.duration(usual)}), as far as is known at lines "
        f"that each step runs: {units.duration(longer)} in all, told beside the step. Its mean would be {units.duration(more)} longer "
        "with it"
    )
    return [Check("single long steps", "ok", sentence, "")]


def _missed(profile: Profile, lengths: np.ndarray[Any, np.dtype[np.int64]]) -> list[Check]:
    """Return a warning if some bare steps took far longer than the others, and no recorded step does."""
    if len(lengths) < BOOTSTRAP_FEWEST_STEPS:
        return []
    usual = float(np.median(lengths))
    long = lengths[lengths > LONG_STEP_TIMES * usual]
    of_all = profile.steps.cpu
    steps = of_all.filter(of_all["steady"] & (of_all["process"] == profile.steps.process))
    recorded = (steps["end_ns"] - steps["start_ns"]).to_numpy()
    if not len(long) or (len(recorded) and (recorded > LONG_STEP_TIMES * np.median(recorded)).any()):
        return []
    more = units.duration(round(float(long.mean()) - usual))
    sentence = (
        f"{len(long)} of {len(lengths)} steps without the profiler took {more} longer than the others, and no recorded step did: "
        "the step counts that work, and nothing here shows what it is"
    )
    return [Check("missed work", "warn", sentence, "capture such a step: --steps A:B")]
