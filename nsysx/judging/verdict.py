"""What limits the step: one code and one sentence, in real time, with the numbers behind them.

The rule. The window of the busiest device of the shown process is split into parts that sum to it (``limits``). The profiler's
own time is taken out. What is left is the GPU's own work and time that somebody could remove: the code that launches, waits,
the loader, the allocator, copies and communication that nothing hides. The GPU is the limit if less than 15 % can be
removed, or if no single cause takes 15 % and the GPU works at least half of the time. Otherwise the limit is the cause that is
worth most: what its removal saves in the replay, at most the time that it takes. If the replay gives no cause 15 % of the step,
it is the cause that takes longest. Without steps the limit is unknown unless one cause, or the GPU's own work, takes half of the time.
"""

from __future__ import annotations

from dataclasses import replace

from nsysx import units
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events import levels
from nsysx.events.profile import Profile
from nsysx.frames.lookup import at, distinct, totals
from nsysx.judging import growth, limit_causes, limit_words, line_of_most, nothing_recorded, step_passes
from nsysx.judging.judging_bounds import GPU_IS_LIMIT_SHARE, LIMITING_SHARE
from nsysx.judging.limit_words import GPU_PARTS, divided
from nsysx.judging.limits import WindowLimits, limits_of, worth
from nsysx.judging.program import program_of
from nsysx.model import Row, Verdict
from nsysx.replay.engine import Withheld, unprofiled_of
from nsysx.replay.tracing_costs import measured

_MARK_STEPS = (
    "For a verdict on one step, run the loop under nsysx run, or mark its steps with NVTX ranges and give --step-range"
)

#: Profiling slows every launch, and a host-bound program pays for that in full.
_CAVEAT = "Profiling slows every launch, so without it the GPU idles less: compare with the unprofiled step before acting on this"


def judge(profile: Profile) -> Verdict:
    """Return the verdict, "unknown" if the capture does not hold enough for one. The step that the probe timed stands there in any case."""
    verdict, timed = _judge(profile), measured(profile, ())
    if profile.steps.whole or timed is None or not isinstance(unprofiled_of(profile), Withheld):
        return verdict
    told = f"Unprofiled step time: {units.duration(timed.step_ns)}."
    return replace(verdict, sentence=f"{verdict.sentence} {told}", timed_ns=timed.step_ns)


def _judge(profile: Profile) -> Verdict:
    if not profile.steps.windows.height:
        return Verdict(StepLimit.UNKNOWN.value, *_without_gpu(profile))
    limits = limits_of(profile)
    if not limits.window_ns or limits.real_ns <= 0:
        return Verdict(StepLimit.UNKNOWN.value, "The steady steps hold no GPU work.")
    code, sentence, evidence = _judged(profile, limits)
    parts = {
        p.value: round(limits.per_step(ns))
        for p, ns in limits.parts.items()
        if ns and p not in (StepPart.PROFILER, StepPart.ELSEWHERE)
    }
    recorded = limits.recorded_ns and round(limits.per_step(limits.recorded_ns))
    host = program_of(profile).host
    line = line_of_most.gpu_work(profile, limits.process, limits.device)
    return Verdict(
        code.value,
        sentence,
        evidence=evidence,
        scope=None,
        step_ns=sum(parts.values()),
        parts=parts,
        recorded_ns=recorded,
        estimated=limits.estimated,
        host=host,
        line=_where(line),
        idle_at=_idle_at(profile, limits, code),
    )


def _idle_at(profile: Profile, limits: WindowLimits, code: StepLimit) -> Row:
    """Return the line, or else the pauses of Python, that the sentence names for the idle time of the host; {} where it names launches."""
    paused = limit_causes.pauses(profile)[0] if code == StepLimit.LAUNCH else ""
    return {"near": paused} if paused else _where(limit_words.line_of_host(profile, limits, code))


def _where(line: line_of_most.Place | None) -> Row:
    return {} if line is None else {"file": line.file, "line": line.line}


def _course(profile: Profile, limits: WindowLimits) -> str:
    """Return how long steps really are where their mean is the length of none of them, "" else."""
    course = profile.steps.trend
    misled = course.kind in ("growing", "falling") or levels.note(profile.steps.levels)
    if limits.whole or not misled:
        return ""
    note = f"{course.note.removesuffix('.')}, as recorded." if limits.unprofiled else course.note
    return note + profile.once(growth.words) if course.kind == "growing" else note


def _judged(profile: Profile, limits: WindowLimits) -> tuple[StepLimit, str, tuple[str, ...]]:
    """Return the code, the sentence and the evidence."""
    evidence = _evidence(profile, limits)
    if not limits.kernels:
        return StepLimit.UNKNOWN, limit_words.without_kernels(limits), evidence
    if limits.parts[StepPart.UNTRACED] > GPU_IS_LIMIT_SHARE * limits.real_ns:
        return StepLimit.UNKNOWN, limit_words.untraced(limits), evidence
    if (
        limits.parts[StepPart.PROFILER]
        >= GPU_IS_LIMIT_SHARE * limits.idle_ns
        > GPU_IS_LIMIT_SHARE * LIMITING_SHARE * limits.window_ns
    ):
        return StepLimit.UNKNOWN, limit_words.profiled(limits), evidence
    code = _limit(profile, limits)
    if code == StepLimit.LAUNCH and not limits.unprofiled:
        evidence = (*evidence, _CAVEAT)
    if code != StepLimit.GPU and (blamed := _blamed(profile, limits)):
        evidence = (*evidence, blamed)
    if code == StepLimit.UNKNOWN:
        return code, limit_words.unknown(limits), evidence
    course = _course(profile, limits)
    sentence = limit_words.headline(profile, limits, code, average=bool(course))
    return code, f"{sentence} {course}".rstrip(), evidence


def _limit(profile: Profile, limits: WindowLimits) -> StepLimit:
    """Return the verdict code by the rule above."""
    lost, real = limits.lost, limits.real_ns
    if sum(lost.values()) < LIMITING_SHARE * real:
        return StepLimit.GPU
    works = limits.parts[StepPart.WORK] + limits.parts[StepPart.PAUSE] >= GPU_IS_LIMIT_SHARE * real
    longest = max(lost, key=lambda code: (lost[code], code))
    if lost[longest] < LIMITING_SHARE * real:
        return StepLimit.GPU if works else longest
    worths = {code: _value(profile, limits, code) for code, ns in lost.items() if ns >= LIMITING_SHARE * real}
    best = max(worths, key=lambda code: (worths[code], code))
    if profile.steps.source == "capture" and lost[best] < GPU_IS_LIMIT_SHARE * real:
        return StepLimit.GPU if works else StepLimit.UNKNOWN
    return best if worths[best] >= LIMITING_SHARE * limits.per_step(real) else longest


def _value(profile: Profile, limits: WindowLimits, code: StepLimit) -> float:
    """Return what removing a cause saves per step (ns): never more than the time it takes."""
    cost = limits.per_step(limits.lost[code])
    saving = worth(profile, limits, code)
    return cost if saving is None else min(cost, saving)


def _without_gpu(profile: Profile) -> tuple[str, tuple[str, ...]]:
    """Return the sentence for steps without GPU work, and what to do."""
    if elsewhere := profile.attributed.gpu_ops.height:
        outside = units.several(elsewhere, "GPU operation lies", "GPU operations lie")
        sentence = f"The steps hold no GPU work; {outside} outside them, or cannot be tied to a launch in them."
        return sentence, ("--steps all looks at the whole capture",)
    return nothing_recorded.sentence(profile)


#: How the line of evidence begins that gives the parts of a step, which a picture of them says, too.
EACH_STEP = "Each step: "


def _evidence(profile: Profile, limits: WindowLimits) -> tuple[str, ...]:
    """Return the window, how it divides, and what lies outside it."""
    busy = units.share(sum(limits.parts[p] for p in GPU_PARTS), limits.window_ns)
    steps = limits.steps
    over = "the whole capture" if limits.whole else f"{steps} steady step{'s' if steps != 1 else ''}"
    lines = [f"GPU {limits.device} busy {busy} of {over} ({units.duration(limits.window_ns)})"]
    if limits.recorded_ns is not None:
        lines[0] += f", without the profiler; as recorded: {units.duration(limits.recorded_ns)}"
    if parted := divided(limits, StepPart):
        lines.append(f"{'By part: ' if limits.whole else EACH_STEP}{parted}")
    course = profile.steps.trend.note
    if course and not _course(profile, limits):
        lines.append(course)
    if passes := step_passes.in_words(profile):
        lines.append(passes)
    if profile.steps.source == "capture":
        length = profile.trace.capture.duration_ns
        if length and length > limits.window_ns:
            outside = units.duration(length - limits.window_ns)
            lines.append(f"The other {outside} of the capture are before the first or after the last GPU work")
        lines.append(_MARK_STEPS)
    return tuple(lines)


def _blamed(profile: Profile, limits: WindowLimits) -> str:
    """Name the module before whose work the device idles most, "" if no module stands out."""
    pieces = profile.idle()[limits.process, limits.device]
    modules, module = distinct(at(profile.attributed.gpu_ops["module"], pieces["op"].to_numpy()))
    by_module = totals(module, pieces["ns"].to_numpy(), len(modules))
    most, whole = int(by_module.max(initial=0)), int(by_module.sum())
    name = min(
        (m for m, ns in zip(modules, by_module.tolist(), strict=True) if ns == most and m is not None), default=None
    )
    if (
        name is None
        or name in profile.attributed.without_path
        or most < 0.2 * whole
        or whole < LIMITING_SHARE * limits.window_ns
    ):
        return ""
    return f"{units.share(most, whole)} of the GPU's idle time is before work of module '{name}'"
