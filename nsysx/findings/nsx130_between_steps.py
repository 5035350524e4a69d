"""NSX130 between-steps: what runs between the steps takes a large part of the loop.

What it means
    Figures of a step leave out what runs between steps: evaluation, checkpoints, logging, environments that are stepped, a loader
    that starts anew. The loop as a whole is as long as both. Where what lies between takes more than any change of the step saves,
    it comes first: rarer, on all ranks, in a process or thread of its own, or on the GPU. Where each of n ranks evaluates all samples with
    the same weights, a part for each takes about 1/n of the time, and one reduction puts the sums together.
    With gradients enabled DDP's wrapper sends its buffers in each call of an evaluation; under torch.no_grad() in the first one alone.
    What all of them compute alike for the steps (an index, features, labels of a teacher) is made in parts and gathered. A rollout is no
    evaluation: the steps train on what it makes, so that it can be made faster, not rarer. A network that is called once on what the
    steps train on evaluates nothing, either. Where a loop launches a few short kernels again and again there, as advantages that are
    computed step by step do, what it takes goes with the loop.

In the trace
    Time between the end of a step and the beginning of the next, with launches or without, that belongs to no step.

Bad
    if step % 20 == 0 and rank == 0: validate(model)    # the other ranks wait

Good
    if step % 500 == 0: validate(model, shard(rank))    # rarer, a part of it on each rank

Harmless when
    The recorded stretch holds more of it than usual, such as the first epoch.
"""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.events.bare_apart import steps_until_next
from nsysx.events.between_parts import (
    COPIES_IN,
    COPIES_IN_PAGEABLE,
    COPIES_OUT,
    COPIES_OUT_PAGEABLE,
    BetweenPart,
    BetweenSteps,
    between_steps,
)
from nsysx.events.coverage import BETWEEN, EVALUATION
from nsysx.events.recorded_settings import file_and_line, settings_of
from nsysx.findings import _loop_worth, _new_workers
from nsysx.findings._case import Case, Fix, Rule, Saving
from nsysx.findings._entered_networks import line_between_steps
from nsysx.findings._finding_bounds import (
    BETWEEN_STEPS_SHARE,
    COPIED_BETWEEN_SHARE,
    EACH_ROUND_SHARE,
    MOST_SHARE,
    NAMED_BETWEEN_SHARE,
    POLICY_CALLS,
    REPORTED_SHARE,
    ROUND_BYTES,
    STEPS_TO_ROUNDS,
)
from nsysx.findings._found import Found
from nsysx.findings._long_step_lines import line_of_long_steps
from nsysx.findings._loops_between import PASS, evaluates_between, launch_loop, reads_in_rounds
from nsysx.findings._made_between import rollout_of
from nsysx.findings._measured_loop import measured_loop
from nsysx.findings._passes_over_batches import made_between_steps
from nsysx.findings._same_evaluations import gpu_works, same_evaluation
from nsysx.findings._wrapper_calls import WrapperCalls, wrapper_calls
from nsysx.model import Finding, Row
from nsysx.replay.engine import Withheld
from nsysx.step_time import Unprofiled

RULE = Rule("NSX130", "between-steps", "What runs between the steps", about="loop", whole=True)
REQUIRES = ("steps",)
_EVALUATES = Fix.by_name("evaluated-rarely")
_OTHER = Fix.by_name("beside-the-loop")
_ROUNDS = Fix.by_name("policy-at-once")
_ROLLOUT = Fix.by_name("rollout-graphed")
_UNWRAPPED = Fix.by_name("evaluated-without-gradients")
#: Of a rollout in which the GPU works.
_WORKS = "not known: the GPU works for most of it"


def check(case: Case) -> list[Finding]:
    """Return one finding where what runs between steps takes 10 % of the loop or more; its cost is per step."""
    real = measured_loop(case)
    covered = case.profile.steps.coverage
    if isinstance(real, Withheld) or covered is None:
        return case.cannot_tell(RULE, "how long the loop is without the profiler is not known", "nsysx run -- CMD")
    if real.loop_ns is None or real.loop_ns - real.step_ns < BETWEEN_STEPS_SHARE * real.loop_ns:
        return case.clear(RULE, "next to nothing runs between the steps")
    between = real.loop_ns - real.step_ns
    recorded, calls = between_steps(case.profile), wrapper_calls(case)
    # A window that ends in an evaluation has no step behind it, so nothing lies between two of its steps.
    seen = covered.parts.get(EVALUATION, 0), covered.parts.get(BETWEEN, 0)
    forwards = recorded is not None and any(part.evaluates for part in recorded.parts)
    evaluates = seen[0] > seen[1] or (seen == (0, 0) and forwards)
    line = line_of_long_steps(case)
    launching = launch_loop(case, recorded, line)
    passes = evaluates and not evaluates_between(case, recorded, line, launching)
    evaluates = evaluates and not passes
    restarted = None if evaluates or passes else _new_workers.started_anew(case, fewest=2)
    line = line if restarted is None else None
    named = line is not None and line.evaluates
    acts = _rounds(case, recorded) if evaluates and not named else 0
    made = not acts and (evaluates or named) and made_between_steps(settings_of(case.profile))
    rollout = rollout_of(case) if (evaluates or named) and not made else None
    rounds = acts if rollout is None else 0
    evaluates = (evaluates or named) and not made and rollout is None
    # What all ranks compute alike needs no evaluation: an index, features, labels.
    same = same_evaluation(case) if (evaluates or forwards) and not (rounds or made or rollout) else None
    shared = same is not None and same.made and not named
    evaluates = evaluates and not shared
    plain = not (evaluates or rounds or made or rollout or shared or restarted)
    loop = launching if plain else None
    code = line.called if line is not None and not line.enters else PASS if passes else "other code"
    code = loop.what if loop is not None else code
    what = "evaluation" if evaluates else code if restarted is None else "a new start of the loader"
    what = f"a loop of {rounds} calls of a network" if rounds else "a rollout" if made or rollout else what
    what = "what every rank computes alike" if shared else what
    detail = (
        f"A step takes {units.duration(real.step_ns)}, and {units.duration(real.loop_ns)} with what runs between steps: "
        f"{units.share(between, real.loop_ns)} of the loop is no step."
    )
    iteration, steps_each = _iteration(case, real.loop_ns)
    detail += iteration
    if recorded is not None:
        detail += f" {_in_words(recorded)}"
    if restarted is not None:
        detail += f" The loader starts its {restarted['workers']} workers anew every {restarted['every']:.0f} steps."
    title = f"Between steps {what} takes {units.duration(between)} per step, {units.share(between, real.loop_ns)} of the loop"
    worth = Saving(None, f"up to {_loop_worth.in_words(real, between)}")
    near = (
        "a loop between steps"
        if rounds or loop
        else "a rollout between steps"
        if made or rollout
        else "evaluation between steps"
        if evaluates
        else f"{PASS} between steps"
        if code == PASS
        else "between steps"
        if restarted is None
        else "where an epoch begins"
    )
    # It is no time of the step, so it is no cost of it: what it takes of the loop is told.
    evidence: list[Row] = [
        {"step_ns": real.step_ns, "between_ns": between, **(_loop_worth.of_loop(real, between) or {}), **steps_each}
    ]
    if restarted is not None:
        evidence.append({"set_in_program": "persistent_workers=False"})
    evidence += _evidence(recorded)
    reads_often = line is not None and not evaluates and reads_in_rounds(recorded)
    kept = 0 if reads_often else _copied_out(recorded)
    fix = _EVALUATES if evaluates else _OTHER if restarted is None else _new_workers.kept(case, restarted)
    where: dict[str, object] = {"near": near}
    if line is not None:
        where |= line.where
        fix = line.fix("evaluated-rarely" if evaluates else "beside-the-loop", reads=reads_often)
    # The line that makes the loader takes the option: the loop over it only shows when.
    if restarted is not None and not kept:
        where |= file_and_line(restarted["made"])
    if rounds:
        detail += f" There the network is called {rounds} times, and each time the host reads the result before it makes the next input."
        fix = _ROUNDS
    elif made:
        detail += " It is a rollout: it makes what the steps behind it are given, and is part of the loop."
        fix = _ROLLOUT
    elif rollout is not None:
        reads = " In each of these calls the host reads the result before it makes the next input." if acts else ""
        detail += f" {rollout.sentence()}{reads}{_through_wrapper(calls)}"
        fix = rollout.fix(between)
        least = rollout.goes_ns(between)
        worth = Saving(
            None, f"up to {_loop_worth.in_words(real, least)}" if rollout.waits_for_launches(between) else _WORKS
        )
        evidence[0] = {**evidence[0], **(_loop_worth.of_loop(real, least) or {})}
    elif loop is not None:
        where |= loop.where
        goes = loop.saved_ns(between)
        takes = f"takes {units.duration(goes.most_ns)} per step, {units.share(goes.most_ns, real.loop_ns)} of the loop"
        title = f"Between steps {what} {takes}: {units.count(loop.launches)} launches each time"
        detail += f" {loop.sentence()}"
        worth = Saving(None, _loop_worth.in_words(real, goes.likely_ns, (goes.least_ns, goes.most_ns)))
        fix, of_loop = loop.fix, _loop_worth.of_loop(real, goes.likely_ns) or {}
        evidence[0] = {**evidence[0], **of_loop, "between_ns": goes.most_ns, "looped_launches": loop.launches}
    elif same is not None and (evaluates or shared):
        detail += f" {same.sentence()}"
        share = seen[0] / sum(seen) if seen[0] else 1.0
        sampled = line.share if named and line is not None else share  # of the time in which the line was looked at
        works = gpu_works(case, recorded)
        saved = same.saved_ns(min(share, sampled) * between, max(share, sampled) * between, works=works)
        of_loop = _loop_worth.of_loop(real, saved.likely_ns) or {}
        evidence[0] = {**evidence[0], **of_loop, "evaluating_ranks": same.ranks}
        worth = Saving(None, _loop_worth.in_words(real, saved.likely_ns, (saved.least_ns, saved.most_ns)))
        fix = same.fix()
        where |= (line_between_steps(case) or ({} if line is not None else same.line)) if shared else same.line
    elif kept:
        title += f", much of it copies {units.size(kept)} to the host"
        fix = _reduced_on_gpu(case, kept)
    told = Found(RULE, title, detail, worth=worth, cost_ns=None, fix=fix, where=where, evidence=evidence).as_finding(
        case
    )
    return _beside_wrapper(case, told, calls, real)


def _iteration(case: Case, loop_ns: int) -> tuple[str, Row]:
    """Return how long an iteration of the program's is where something runs behind every so many steps, in words and as evidence."""
    every = steps_until_next(case.profile.steps.between.filter(pl.col("process") == case.process))
    if not every:
        return "", {}
    return f" An iteration of {every} steps and what runs between them takes {units.duration(every * loop_ns)}.", {
        "steps_each": every
    }


def _through_wrapper(calls: WrapperCalls | None) -> str:
    return "" if calls is None else f" {calls.sentence()}"


def _beside_wrapper(case: Case, told: Finding, calls: WrapperCalls | None, real: Unprofiled) -> list[Finding]:
    """Return what is told of the time between steps, and of a wrapper that sends buffers there in each call; the larger part first."""
    between = (real.loop_ns or 0) - real.step_ns
    if calls is None or not calls.in_each or calls.share * between < REPORTED_SHARE * (real.loop_ns or 0):
        return [told]
    sent = _of_wrapper(case, calls, real, round(calls.share * between))
    return [sent, told] if calls.share >= MOST_SHARE else [told, sent]


def _of_wrapper(case: Case, calls: WrapperCalls, real: Unprofiled, least_ns: int) -> Finding:
    """Return the finding about a wrapper that sends buffers in calls that train nothing, which take ``least_ns`` a step at most."""
    title = (
        f"Between steps DDP sends its buffers to all ranks in each of {units.count(round(calls.calls / calls.stretches))} calls that "
        "train nothing"
    )
    worth = Saving(None, f"up to {_loop_worth.in_words(real, least_ns)}")
    evidence: list[Row] = [
        {"step_ns": real.step_ns, "between_ns": least_ns, **(_loop_worth.of_loop(real, least_ns) or {})},
        {
            "calls": calls.calls,
            "broadcasts": calls.messages,
            "on the host_ns": calls.host_ns,
            "on the GPU_ns": calls.gpu_ns,
        },
    ]
    where = {"near": "evaluation between steps", **calls.line}
    return Found(
        RULE, title, calls.sentence(), worth=worth, cost_ns=None, fix=_UNWRAPPED, where=where, evidence=evidence
    ).as_finding(case)


def _rounds(case: Case, recorded: BetweenSteps | None) -> int:
    """Return how often in a row a network is called between steps with little data that the host makes and reads each time, as a policy is
    that acts in an environment; 0 where that is not seen. An evaluation comes more rarely, and copies whole batches.
    """
    if recorded is None:
        return 0
    read = [part for part in recorded.parts if part.what in (COPIES_OUT, COPIES_OUT_PAGEABLE)]
    made = [part for part in recorded.parts if part.what in (COPIES_IN, COPIES_IN_PAGEABLE)]
    copies = min(sum(part.calls for part in read), sum(part.calls for part in made))
    often, stretches = recorded.forwards, recorded.evaluating
    steps = case.profile.steps.cpu.filter(pl.col("process") == case.process).height
    if (
        not often
        or often < POLICY_CALLS * stretches
        or copies < EACH_ROUND_SHARE * often
        or steps > STEPS_TO_ROUNDS * stretches
    ):
        return 0
    little = sum(part.bytes for part in (*read, *made)) <= ROUND_BYTES * often
    return round(often / stretches) if little else 0


def _in_words(recorded: BetweenSteps) -> str:
    """Return what fills the recorded stretches between steps: the longest parts, and what collectives exchange there."""
    parts = [part for part in recorded.parts if part.ns >= NAMED_BETWEEN_SHARE * recorded.ns]
    named = ", ".join(f"{units.share(part.ns, recorded.ns)} {_part_in_words(part)}" for part in parts)
    text = f"Of the {units.duration(recorded.ns)} of that which were recorded, {named}."
    exchanged = sum(each.bytes or 0 for each in recorded.collectives)
    if exchanged:
        count = sum(each.calls for each in recorded.collectives)
        text += f" {count} collectives exchange {units.size(exchanged)} there."
    return text


def _part_in_words(part: BetweenPart) -> str:
    size = f" ({units.size(part.bytes)})" if part.bytes else ""
    return f"{part.what}{size}{' beside the forward of an evaluation' if part.evaluates else ''}"


def _evidence(recorded: BetweenSteps | None) -> list[Row]:
    """Return the parts of the recorded stretches between steps, which sum to them, and the collectives launched there."""
    if recorded is None:
        return []
    parts: list[Row] = [
        {
            "between": part.what,
            "in evaluation": part.evaluates,
            "recorded_ns": part.ns,
            "calls": part.calls,
            "bytes": part.bytes,
        }
        for part in recorded.parts
    ]
    return parts + [
        {"collectives": each.kind, "calls": each.calls, "on the GPU_ns": each.ns, "bytes": each.bytes}
        for each in recorded.collectives
    ]


def _copied_out(recorded: BetweenSteps | None) -> int:
    """Return how many bytes are copied to the host between the steps, 0 where that takes no large part of what runs there."""
    if recorded is None or recorded.share(COPIES_OUT, COPIES_OUT_PAGEABLE) < COPIED_BETWEEN_SHARE:
        return 0
    return sum(part.bytes for part in recorded.parts if part.what in (COPIES_OUT, COPIES_OUT_PAGEABLE))


def _reduced_on_gpu(case: Case, copied: int) -> Fix:
    """Return the advice to keep less of each batch of an evaluation, in the words of the library that runs it."""
    code = case.profile.code()
    files = set() if code is None else set(code.places["file"].drop_nulls().to_list())
    fix = Fix.by_name("reduced-on-gpu")
    text = f"{fix.text} ({units.size(copied)} go to the host)"
    if not any(file.replace("\\", "/").endswith("/transformers/trainer.py") for file in files):
        return fix.but(text=text)
    paste = "Trainer(..., preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1))"
    return fix.but(text=f"{text}: preprocess_logits_for_metrics of the Trainer", paste=paste)
