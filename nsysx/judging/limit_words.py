"""The limit of a step as a sentence: its name in the field's words, how much of the step it takes, and where."""

from __future__ import annotations

from collections.abc import Iterable

from nsysx import units
from nsysx.catalogue import Call, StepLimit, StepPart
from nsysx.events.profile import Profile
from nsysx.judging import gpu_work, limit_causes, line_of_most
from nsysx.judging.judging_bounds import (
    ALL_IDLE_OF_CAUSE_SHARE,
    LIMITING_SHARE,
    MOSTLY_WORK_SHARE,
    NOTABLE_PART_SHARE,
)
from nsysx.judging.limits import WindowLimits
from nsysx.judging.other_work import other_gpus
from nsysx.judging.program import program_of

#: Parts in which the device is not idle; what limits the step in these ways is such work itself.
GPU_PARTS = (StepPart.WORK, StepPart.COMM, StepPart.COPY, StepPart.MIGRATION)
_WORKING = (StepLimit.COMM, StepLimit.COPY)


def short(ns: float) -> str:
    """Return a time for a sentence: two or three digits, and its unit."""
    return pair(0, ns)[1]


def pair(part: float, whole: float) -> tuple[str, str]:
    """Return a time as a bare number, and the whole with its unit, for "2.2 of 15.4 ms"."""
    for unit, ns in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if whole >= ns or unit == "us":
            digits = 2 if whole < 10 * ns else 0 if whole >= 100 * ns and unit == "us" else 1
            small = 3 if 0 < part < 0.05 * ns else digits
            shown = f"{part / ns:.{small}f}"
            # A few microseconds of several seconds would round to 0: they get a unit of their own.
            return short(part) if part and not float(
                shown
            ) and unit != "us" else shown, f"{whole / ns:.{digits}f} {unit}"
    raise AssertionError


def name_of(code: StepLimit) -> str:
    """Return the name of a limit as the begin of a sentence: "Host-bound"."""
    return f"{code.label[:1].upper()}{code.label[1:]}"


def headline(profile: Profile, limits: WindowLimits, code: StepLimit, *, average: bool = False) -> str:
    """Return the sentence on what limits the step. ``average``: its mean is the length of no single step."""
    start_up = code == StepLimit.WARMUP and profile.steps.source == "capture"
    name = "Start-up, not steady work" if start_up else _mostly_work(limits, code) or name_of(code)
    begin = f"{name}: {'on average ' if average else ''}"
    if code == StepLimit.GPU:
        return _busy(profile, limits, begin)
    if code in _WORKING:
        noun = _noun(profile, limits, code)
        verb = "take" if noun.startswith(StepPart.COPY.label) else "takes"
        line = None
        if code == StepLimit.COMM:
            line = line_of_most.communication(profile, limits.process, limits.device)
        elif noun.startswith(StepPart.COPY.label):
            line = line_of_most.copies(profile, limits.process, limits.device)
        text = f"{begin}{noun} {verb} {_lead(limits, limits.lost[code])}{_at_line(limits, line, limits.lost[code])}"
        return f"{text}{_second_cause(profile, limits, code)}."
    idle = limits.real_ns - sum(limits.parts[p] for p in GPU_PARTS)
    text = f"{begin}the GPU idles {_lead(limits, idle)}"
    line = line_of_host(profile, limits, code)
    paused, share = limit_causes.pauses(profile) if code == StepLimit.LAUNCH else ("", 0.0)
    if paused:
        text += f", {_bare(limits, share * idle)} of it in {paused}"
    if line is not None or paused:
        return f"{text}{_at_line(limits, line, idle)}{_second_cause(profile, limits, code)}."
    of_it = _bare(limits, limits.lost[code])
    if of_it == _bare(limits, idle):
        return f"{text}{_clause(profile, limits, code)}{_second_cause(profile, limits, code)}."
    return f"{text}, {of_it} of it{_clause(profile, limits, code)}{_second_cause(profile, limits, code)}."


def _mostly_work(limits: WindowLimits, code: StepLimit) -> str:
    """Return how a sentence begins where a removable cause limits a step that is the GPU's own work for the most part, else ""."""
    work = limits.parts[StepPart.WORK]
    if limits.whole or code not in limits.lost or work < MOSTLY_WORK_SHARE * limits.real_ns:
        return ""
    return f"Mostly GPU work ({units.share(work, limits.real_ns)}), partly {code.label}"


def unknown(limits: WindowLimits) -> str:
    """Return the sentence for a capture without steps whose time has no single cause."""
    idle = divided(limits, [p for p in StepPart if p not in (*GPU_PARTS, StepPart.ELSEWHERE)])
    moves = divided(limits, [p for p in GPU_PARTS if p.limit])
    parts = "".join(f"; {name}: {words}" for name, words in (("of it", moves), ("idle", idle)) if words)
    return f"Limit unknown without steps: {_gpu_busy(limits)}{parts}."


def untraced(limits: WindowLimits) -> str:
    """Return the sentence for a device that mostly waits for launches of others."""
    lead = _lead(limits, limits.parts[StepPart.UNTRACED])
    return f"Limit unknown: for {lead} the GPU waits for work whose launch is not in the capture."


def profiled(limits: WindowLimits) -> str:
    """Return the sentence for a step in which the device mostly waits for the profiler."""
    profiler = short(limits.per_step(limits.parts[StepPart.PROFILER]))
    part, whole = pair(limits.per_step(limits.parts[StepPart.WORK]), limits.per_step(limits.window_ns))
    return f"Limit unknown: the profiler itself takes {profiler} of {whole}, the GPU works {part}."


def without_kernels(limits: WindowLimits) -> str:
    """Return the sentence for a capture without kernels."""
    work = {p: limits.parts[p] for p in GPU_PARTS}
    moved = short(limits.per_step(sum(work.values())))
    return f"No kernel was recorded. All that the GPU does here is copies and memsets, {moved}."


def divided(limits: WindowLimits, among: Iterable[StepPart]) -> str:
    """Return the parts of a step that are worth a word, longest first, in words."""
    parts = sorted(((limits.parts[p], p) for p in among), reverse=True)
    words = [
        f"{p.label} {short(limits.per_step(ns))}" for ns, p in parts if ns >= NOTABLE_PART_SHARE * limits.real_ns and ns
    ]
    return ", ".join(words)


def _span(limits: WindowLimits) -> str:
    """Return what the real window of a capture without steps is, "" for a step."""
    if not limits.whole:
        return ""
    used = limits.parts[StepPart.ELSEWHERE]
    return " in which the program uses it" if used else " from its first to its last work"


def _lead(limits: WindowLimits, ns: int) -> str:
    """Return "2.2 of 15.4 ms"."""
    part, whole = pair(limits.per_step(ns), limits.per_step(limits.real_ns))
    return f"{part} of {'the ' if limits.whole else ''}{whole}{_span(limits)}"


def _bare(limits: WindowLimits, ns: float) -> str:
    """Return a part of the step with a unit, in the digits of the step where it has its unit."""
    shown, whole = pair(limits.per_step(round(ns)), limits.per_step(limits.real_ns))
    return shown if " " in shown else f"{shown} {whole.split()[1]}"


def _gpu_busy(limits: WindowLimits) -> str:
    """Return "GPU busy 97 % of 4.52 ms"."""
    busy = units.share(sum(limits.parts[p] for p in GPU_PARTS), limits.real_ns)
    return f"GPU busy {busy} of {'the ' if limits.whole else ''}{short(limits.per_step(limits.real_ns))}{_span(limits)}"


def line_of_host(profile: Profile, limits: WindowLimits, code: StepLimit) -> line_of_most.Place | None:
    """Return the line at which the host keeps the device idle most, where the limit is the host, or comes next beside work in transfers."""
    beside = code in _WORKING and _second(limits, code) == StepLimit.LAUNCH
    return line_of_most.idle(profile) if beside or code == StepLimit.LAUNCH else None


def _second(limits: WindowLimits, code: StepLimit) -> StepLimit | None:
    """Return the largest cause beside the limit that could limit the step itself, None where there is none."""
    others = {c: ns for c, ns in limits.lost.items() if c != code and ns >= LIMITING_SHARE * limits.real_ns}
    return max(others, key=lambda c: (others[c], c), default=None)


def _second_cause(profile: Profile, limits: WindowLimits, code: StepLimit) -> str:
    """Return the largest cause beside the limit that could limit the step itself, and what runs between steps; "" where there is none."""
    second, between = _second(limits, code), _between_steps(limits)
    if second is None:
        return between
    ns = _bare(limits, limits.lost[second])
    if (line := line_of_host(profile, limits, code)) is not None and second == StepLimit.LAUNCH:
        idle = limits.real_ns - sum(limits.parts[p] for p in GPU_PARTS)
        return f"; the GPU idles {_bare(limits, idle)}{_at_line(limits, line, idle)}{between}"
    if second in _WORKING:
        return f"; {_noun(profile, limits, second)}: {ns}{between}"
    return f"{'; the GPU idles' if code in _WORKING else ', and'} {ns}{_clause(profile, limits, second)}{between}"


def _between_steps(limits: WindowLimits) -> str:
    """Return what the loop takes besides its steps, "" where that is no limit of it."""
    between, step = limits.between_ns, limits.per_step(limits.real_ns)
    if between < LIMITING_SHARE * (step + between):
        return ""
    return f"; what runs between steps adds {short(between)} a step"


def _noun(profile: Profile, limits: WindowLimits, code: StepLimit) -> str:
    """Return the work that nothing hides, which a verdict code accounts for."""
    if code == StepLimit.COMM:
        on_host = limits.parts[StepPart.HOST_COMM] > limits.parts[StepPart.COMM]
        return (
            StepPart.HOST_COMM.label if on_host else f"{StepPart.COMM.label}{limit_causes.collective(profile, limits)}"
        )
    if limits.parts[StepPart.MIGRATION] >= limits.parts[StepPart.COPY]:
        return StepPart.MIGRATION.label
    return f"{StepPart.COPY.label}{limit_causes.direction(profile, limits)}"


def _clause(profile: Profile, limits: WindowLimits, code: StepLimit) -> str:
    """Return why the device idles in the time that a verdict code accounts for."""
    host, parts = program_of(profile).host, limits.parts
    match code:
        case StepLimit.LAUNCH if parts[StepPart.HOST] >= parts[StepPart.LAUNCH]:
            return f" waiting for kernel launches{limit_causes.launches(profile, limits)}"
        case StepLimit.LAUNCH:
            return f" in kernel launch latency{limit_causes.launches(profile, limits, 'launches')}"
        case StepLimit.INPUT:
            return f" waiting for input data{limit_causes.loader(profile)}"
        case StepLimit.SYNC:
            if 2 * other_gpus(profile).meanwhile_ns > limits.lost[code]:
                return f" while another GPU works and {host} waits{limit_causes.site(profile)} for both"
            return f" after host syncs{limit_causes.site(profile)}"
        case StepLimit.ALLOC:
            return f" while memory is allocated and freed{limit_causes.calls(profile, *Call.ALLOCATOR)}"
        case _:
            return " in loading of kernels and libraries and other first calls"


def _busy(profile: Profile, limits: WindowLimits, begin: str) -> str:
    """Return the sentence about a step that the GPU limits: what it works on, or what slows it down."""
    parts, real = limits.parts, limits.real_ns
    busy, between = f"{begin}{_gpu_busy(limits)}", _between_steps(limits)
    works = f"{busy}{between}"
    if parts[StepPart.LONGER] >= LIMITING_SHARE * real:
        return f"{begin}{_usually_busy(profile, limits)}{between}."
    if parts[StepPart.PAUSE] >= LIMITING_SHARE * real and parts[StepPart.PAUSE] >= parts[StepPart.DEPENDENCY]:
        count, median = gpu_work.kernels(profile, limits.process, limits.device)
        each = f"{units.count(limits.per_step(count))} short kernels" + (
            f" of {units.duration(median)}" if median else ""
        )
        return f"{works}, {StepPart.PAUSE.label} take {_bare(limits, parts[StepPart.PAUSE])}: {each}."
    if parts[StepPart.DEPENDENCY] >= LIMITING_SHARE * real:
        held = _bare(limits, parts[StepPart.DEPENDENCY])
        return f"{works}; for {held} its next kernel is queued but waits for another stream or GPU."
    most = gpu_work.most(profile, limits.process, limits.device)
    if sum(limits.lost.values()) >= LIMITING_SHARE * real:
        # Behind several kinds of idle time one line may stand: whether one does, the first advice says.
        others = divided(limits, [p for p in StepPart if p.limit])
        return f"{works}; the rest: {others}.{f' {most}.' if most else ''}"
    line = line_of_most.gpu_work(profile, limits.process, limits.device)
    at_line = _at_line(limits, line, sum(parts[p] for p in GPU_PARTS))
    return f"{busy}{at_line}{between}.{f' {most}.' if most else ''}"


def _usually_busy(profile: Profile, limits: WindowLimits) -> str:
    """Return "GPU busy 97 % of the usual 34.0 ms; longer steps that were not recorded add 12.2 ms a step"."""
    longer = limits.parts[StepPart.LONGER]
    usual = limits.real_ns - longer
    busy = units.share(sum(limits.parts[p] for p in GPU_PARTS), usual)
    loader = ", in which the loader may be late" if program_of(profile).loader else ""
    added = f"longer steps that were not recorded add {_bare(limits, longer)} a step{loader}"
    return f"GPU busy {busy} of the usual {short(limits.per_step(usual))}; {added}"


def _at_line(limits: WindowLimits, line: line_of_most.Place | None, ns: int) -> str:
    """Return how much of some time is at a line, ", 10.6 ms of it in train.py:31", ", in train.py:31" for all; "" without a line."""
    if line is None:
        return ""
    much = f"{_bare(limits, line.share * ns)} of it " if line.share < ALL_IDLE_OF_CAUSE_SHARE else ""
    return f", {much}in {line.short}"
