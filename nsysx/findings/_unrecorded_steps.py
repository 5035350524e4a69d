"""Steps that are long only while nothing was recorded: a window of a few steps holds none of those that come now and then."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.events import bare, one_time, trend
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.recorded_settings import RecordedSettings, file_and_line, settings_of
from nsysx.findings._case import Case, Fix, Rule, Saving
from nsysx.findings._finding_bounds import FEWEST_UNRECORDED_STEPS, MOST_SHARE, REPORTED_SHARE, SLOW_STEP_SHARE
from nsysx.findings._found import Found
from nsysx.findings._long_step_lines import LongStepLine, line_of_long_steps
from nsysx.findings._made_between import rollout_of
from nsysx.findings._measured_loop import told_of_loop
from nsysx.findings._new_workers import kept, recurring
from nsysx.findings._prompt_passes import prompts_of
from nsysx.findings._same_evaluations import same_evaluation
from nsysx.findings.nsx106_input_starvation import of_loader
from nsysx.frames.intervals import I64
from nsysx.model import Finding
from nsysx.replay import peers
from nsysx.replay.engine import Replay

_LOOK = Fix(
    "Look at what these steps do that the recorded ones do not: logging, validation, checkpoints, data that comes late"
)

_SEEN_BEFORE = Fix(
    "Time the program behind these steps, or run each shape once before the loop: first calls end by themselves"
)

_PROMPT = Fix(
    "Look at the pass over a prompt apart from those over single tokens: attention to the rows that are written alone makes it shorter, too"
)


def found(case: Case, rule: Rule) -> list[Finding]:
    """Return the finding about steps that are long among those that were timed without the profiler, and that the window lacks.

    Workers of a DataLoader fill their queue while a window opens: steps that wait for them are then in none of its few steps. Empty where
    such steps take less than 5 % of the mean step.
    """
    stretches = bare.stretches(case.profile.trace.capture, case.process)
    ns = np.concatenate(stretches)
    if case.profile.steps.in_rounds or len(ns) < FEWEST_UNRECORDED_STEPS or told_of_loop(case):
        return []
    loading = case.replay.more_loading_ns if isinstance(case.replay, Replay) and case.replay.trusted else 0
    cost = (
        round(bare.excess_ns(case.profile.trace.capture, case.process)) - loading
    )  # waits that were timed have a rule
    if not case.notable(cost, REPORTED_SHARE):
        return []
    slow, usual = bare.long_steps(ns), int(np.median(ns))
    rhythm = trend.period_of_parts(stretches, SLOW_STEP_SHARE * usual)
    late = units.span(units.duration(int(ns[slow].min())), units.duration(int(ns[slow].max())))
    which = (
        f"Every {trend.ordinal(rhythm.every)} step takes"
        if rhythm
        else f"{int(slow.sum())} of {len(ns)} steps {'take' if slow.sum() > 1 else 'takes'}"
    )
    title = f"{which} {late} (usually {units.duration(usual)}), and none of them was recorded"
    line = line_of_long_steps(case)
    if line is not None and _fetches(line, settings_of(case.profile)):
        line = None
    restarted = recurring(case, rhythm.every) if rhythm and line is None else None
    unseen = (
        "so what they do is not in the report"
        if line is None
        else f"but the probe saw them: {line.in_words} runs in {units.share(line.share, 1)} of their time"
    )
    detail = (
        f"Without the profiler {len(ns)} steps were timed. Long ones add {units.duration(cost)} to their mean. The recorded steps hold "
        f"none of them, {unseen}."
    )
    workers = _workers(case)
    if line is None and restarted is None and (prompts := prompts_of(case)) is not None:
        tokens = units.several(prompts.rows, "token")
        title = f"{which} {late} (usually {units.duration(usual)}): the pass over a prompt of {tokens}"
        detail = (
            f"Without the profiler {len(ns)} steps were timed. Passes over prompts add {units.duration(cost)} to their mean: one of the "
            f"X-ray steps writes {units.count(prompts.rows)} rows into the cache, and takes the GPU {units.duration(prompts.gpu_ns)}, as "
            "long as the long steps are."
        )
        worth = Saving(None, "a prompt's work is its own")
        return [Found(rule, title, detail, worth=worth, cost_ns=cost, fix=_PROMPT).as_finding(case)]
    if paid := _paid_once(case, ns[slow] - usual):
        detail += (
            f" They are as long as {units.several(paid, 'pause')} in the recorded steps in which code was loaded for the first time, as "
            "for a new shape: that ends when each has been seen."
        )
        worth = Saving(None, "as long as first calls, which end")
        return [Found(rule, title, detail, worth=worth, cost_ns=cost, fix=_SEEN_BEFORE).as_finding(case)]
    if (rollout := rollout_of(case)) is not None:
        taken = min(cost, case.taken_by((StepPart.LONGER,)))
        goes = rollout.goes_ns(taken)
        why = "from step lengths, less the GPU's work and what runs between the calls of the network"
        is_priced = goes > 0 and rollout.waits_for_launches(taken)
        saving = (
            Saving(goes, why, bound=True, source="steps")
            if is_priced
            else Saving(None, "not known: the GPU works for most of it")
        )
        there = {"near": "a rollout between steps", **({} if line is None else line.where)}
        detail += f" {rollout.sentence()}"
        return [
            Found(rule, title, detail, worth=saving, cost_ns=cost, fix=rollout.fix(taken), where=there).as_finding(case)
        ]
    if restarted is None and line is None and (rhythm is not None or not workers):
        worth = Saving(None, "what these steps do was not recorded")
        return [Found(rule, title, detail, worth=worth, cost_ns=cost, fix=_LOOK).as_finding(case)]
    inside = min(cost, case.taken_by((StepPart.LONGER,)))  # a step that is shown as recorded has none of it
    error = max(0, cost - _without_longest(ns, slow, usual))
    why = "from step lengths: long steps would take the usual time"
    if line is not None:
        error = max(error, round(line.share_error * inside))
        saving = Saving(round(line.share * inside), why, error_ns=error, most_ns=inside, source="steps")
        fix, where = line.fix("run-rarely"), line.where
        same = same_evaluation(case)
        if same is not None and (line.evaluates or same.made):
            detail += f" {same.sentence()}"
            saved = same.saved_ns(line.share * inside, inside, works=False)  # none of them was recorded
            saving = replace(
                saving, likely_ns=saved.likely_ns, error_ns=saved.likely_ns - saved.least_ns, most_ns=saved.most_ns
            )
            fix = same.fix()
    elif restarted is not None:
        detail += f" As often the loader starts its {restarted['workers']} workers anew, for the next epoch."
        why += ", if it is the new start of the loader that they wait for"
        saving = Saving(inside, why, error_ns=error, source="steps")
        fix, where = kept(case, restarted), {"phase": "data", **file_and_line(restarted["made"])}
    else:
        detail += (
            f" The {workers} workers of the DataLoader fill their queue before a window, and fall behind after it."
        )
        why += ", if it is the loader that they wait for"
        saving, where = (
            Saving(inside, why, error_ns=error, source="steps"),
            {"module": "DataLoader", "phase": "data"},
        )
        fix = of_loader(case, saving if inside else Saving(None, why))
        fix = fix.but(text=f"Make the loader keep up: {units.uncapitalized(fix.text)}")
    worth = saving if inside else Saving(None, why)
    return [Found(rule, title, detail, worth=worth, cost_ns=cost, fix=fix, where=where).as_finding(case)]


def _paid_once(case: Case, longer: I64) -> int:
    """Return how many pauses for first calls the last part of the capture holds, in any process, that explain steps ``longer`` (ns)."""
    trace, count = case.profile.trace, 0
    since_ns = max(trace.seams, default=0)
    for process in peers.first_of_ranks(case.profile, case.process):
        start, end = one_time.spans(process, case.profile.attributed, case.profile.ranges.pauses)
        length = (end - start)[start >= since_ns]
        count += int((length >= MOST_SHARE * np.median(longer)).sum())
    return count


def _fetches(line: LongStepLine, settings: RecordedSettings | None) -> bool:
    """Return whether the program waits for its loader there."""
    loop = settings.place("loop") if settings is not None else {}
    return line.where == loop or "next(" in line.text or line.text.startswith("for ")


def _without_longest(ns: I64, slow: Flags, usual: int) -> int:
    """Return what long steps add to the mean without the longest of them (ns)."""
    more = np.sort((ns - usual)[slow])[:-1]
    return round(float(more.sum()) / len(ns))


def _workers(case: Case) -> int:
    """Return how many workers the DataLoader in use has, 0 where none is known to have any."""
    settings = settings_of(case.profile)
    counts = [row.get("workers") for row in (settings.rows("loaders") if settings else None) or ()]
    return max((count for count in counts if isinstance(count, int)), default=0)
