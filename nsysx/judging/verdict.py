"""What limits the step: one code and one sentence, in real time, with the numbers behind them.

The rule. The window of the busiest device of the shown process is split into parts that sum to it (``limits``). The profiler's
own time is taken out. What is left is the GPU's own work and time that somebody could remove: the code that launches, waits,
the loader, the allocator, copies and communication that nothing hides. The GPU is the limit if less than 15 % can be
removed, or if no single cause takes 15 % and the GPU works at least half of the time. Otherwise the limit is the cause that is
worth most: what its removal saves in the replay, at most the time that it takes. If the replay gives no cause 15 % of the step,
it is the cause that takes longest. Without steps the limit is unknown unless one cause takes half of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import polars as pl

from nsysx import units
from nsysx.analyses.gpu_ledger import GpuRow
from nsysx.catalogue import Call, Limit, Part
from nsysx.events import levels
from nsysx.events.profile import Profile
from nsysx.frames.lookup import at, distinct, totals
from nsysx.judging import gpu_work, growth, nothing_recorded
from nsysx.judging.limits import Limits, limits_of, worth
from nsysx.judging.other_work import other_gpus
from nsysx.judging.program import program_of
from nsysx.model import Verdict
from nsysx.replay.costs import measured
from nsysx.replay.engine import Withheld, unprofiled_of

#: From this share of the step on, a cause that could be removed limits it.
LIMITS = 0.15
#: From this share of the step on, the GPU's own work is the limit if nothing else is.
_HALF = 0.5
#: From this share of the copy time on, the main direction stands for all copies.
_NEARLY_ALL = 0.95
#: If less than this share of the step could be removed, the GPU is never short of work.
_NOTHING = 0.03
#: A part below this share of the step is not worth a word.
_WORD = 0.01

#: Parts in which the device is not idle; under some verdicts only its own work counts as working.
_GPU_PARTS = (Part.WORK, Part.COMM, Part.COPY, Part.MIGRATION)
_ALONE = (Limit.COMM, Limit.COPY)

_MARK_STEPS = (
    "For a verdict on one step, run the loop under nsysx run, or mark its steps with NVTX ranges and give --step-range"
)

#: Profiling slows every launch, and a launch-bound program pays for that in full.
_CAVEAT = "Profiling slows every launch, so without it the GPU idles less: compare with the unprofiled step before acting on this"


#: If the passes per step are this far from a whole number, they are no regular pattern.
_PASS = 0.2


def judge(profile: Profile, gpu_rows: Sequence[GpuRow]) -> Verdict:
    """Return the verdict, "unknown" if the capture does not hold enough for one. The step that the probe timed stands there in any case."""
    verdict, timed = _judge(profile, gpu_rows), measured(profile, ())
    if profile.steps.whole or timed is None or not isinstance(unprofiled_of(profile), Withheld):
        return verdict
    told = f"Without the profiler the probe timed {units.duration(timed.step_ns)} a step."
    return replace(verdict, sentence=f"{verdict.sentence} {told}")


def _judge(profile: Profile, gpu_rows: Sequence[GpuRow]) -> Verdict:
    if not gpu_rows:
        return Verdict(Limit.UNKNOWN.value, *_without_gpu(profile))
    limits = limits_of(profile, gpu_rows)
    if not limits.window_ns or limits.real_ns <= 0:
        return Verdict(Limit.UNKNOWN.value, "The steady steps hold no GPU work.")
    code, sentence, evidence = _judged(profile, limits)
    if code != Limit.UNKNOWN and (course := _course(profile, limits)):
        sentence = f"{course} On average {sentence[:1].lower()}{sentence[1:]}"
    parts = {
        p.value: round(limits.per_step(ns))
        for p, ns in limits.parts.items()
        if ns and p not in (Part.PROFILER, Part.ELSEWHERE)
    }
    recorded = limits.recorded_ns and round(limits.per_step(limits.recorded_ns))
    host = program_of(profile).host
    return Verdict(code.value, sentence, evidence, None, sum(parts.values()), parts, recorded, limits.estimated, host)


def _course(profile: Profile, limits: Limits) -> str:
    """Return how long steps really are where their mean is the length of none of them, "" else."""
    course = profile.steps.trend
    misled = course.kind in ("growing", "falling") or levels.note(profile.steps.levels)
    if limits.whole or not misled:
        return ""
    note = f"{course.note.removesuffix('.')}, as recorded." if limits.unprofiled else course.note
    return note + growth.words(profile) * (course.kind == "growing")


def _judged(profile: Profile, limits: Limits) -> tuple[Limit, str, tuple[str, ...]]:
    """Return the code, the sentence and the evidence."""
    evidence = _evidence(profile, limits)
    if not limits.kernels:
        return Limit.UNKNOWN, _without_kernels(limits), evidence
    if limits.parts[Part.UNTRACED] > _HALF * limits.real_ns:
        sentence = f"For {_lead(limits, limits.parts[Part.UNTRACED])} the GPU waits for work whose launch is not in the capture."
        return Limit.UNKNOWN, sentence, evidence
    if limits.parts[Part.PROFILER] >= _HALF * limits.idle_ns > _HALF * LIMITS * limits.window_ns:
        return Limit.UNKNOWN, _profiled(limits), evidence
    code = _limit(profile, limits)
    if code == Limit.GPU:
        return code, _busy(profile, limits), evidence
    if code == Limit.LAUNCH and not limits.unprofiled:
        evidence = (*evidence, _CAVEAT)
    if blamed := _blamed(profile, limits):
        evidence = (*evidence, blamed)
    if code == Limit.UNKNOWN:
        divided = _divided(limits, [p for p in Part if p not in (Part.WORK, Part.ELSEWHERE)])
        return code, f"{_works(limits, code)} Without steps, what limits it is unknown: {divided}.", evidence
    sentence = f"{_works(limits, code)} {_causes(profile, limits, code)}"
    if code == Limit.WARMUP and profile.steps.source == "capture":
        sentence = f"This is start-up, not steady work. {sentence}"
    return code, sentence, evidence


def _limit(profile: Profile, limits: Limits) -> Limit:
    """Return the verdict code by the rule above."""
    lost, real = limits.lost, limits.real_ns
    if sum(lost.values()) < LIMITS * real:
        return Limit.GPU
    longest = max(lost, key=lambda code: (lost[code], code))
    if lost[longest] < LIMITS * real:
        return Limit.GPU if limits.parts[Part.WORK] + limits.parts[Part.PAUSE] >= _HALF * real else longest
    worths = {code: _value(profile, limits, code) for code, ns in lost.items() if ns >= LIMITS * real}
    best = max(worths, key=lambda code: (worths[code], code))
    if profile.steps.source == "capture" and lost[best] < _HALF * real:
        return Limit.UNKNOWN
    return best if worths[best] >= LIMITS * limits.per_step(real) else longest


def _value(profile: Profile, limits: Limits, code: Limit) -> float:
    """Return what removing a cause saves per step (ns): never more than the time it takes."""
    cost = limits.per_step(limits.lost[code])
    saving = worth(profile, limits, code)
    return cost if saving is None else min(cost, saving)


# --- sentences ------------------------------------------------------------------------------------------------------------


def short(ns: float) -> str:
    """Return a time for a sentence: two or three digits, and its unit."""
    return pair(0, ns)[1]


def pair(part: float, whole: float) -> tuple[str, str]:
    """Return a time as a bare number, and the whole with its unit, for "2.2 of every 15.4 ms"."""
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


def _span(limits: Limits, whole: str) -> str:
    """Return the real window in words."""
    if not limits.whole:
        return f"every {whole}"
    if limits.parts[Part.ELSEWHERE]:
        return f"the {whole} in which the program uses it"
    return f"the {whole} from its first to its last work"


def _lead(limits: Limits, ns: int) -> str:
    """Return "2.2 of every 15.4 ms"."""
    part, whole = pair(limits.per_step(ns), limits.per_step(limits.real_ns))
    return f"{part} of {_span(limits, whole)}"


def _works(limits: Limits, code: Limit) -> str:
    """Return the sentence that says how much the device works."""
    alone = code in _ALONE
    parts = (Part.WORK,) if alone else _GPU_PARTS
    return f"The GPU {'computes' if alone else 'works'} {_lead(limits, sum(limits.parts[p] for p in parts))}."


def _causes(profile: Profile, limits: Limits, code: Limit) -> str:
    """Return the sentence on what the device waits for, or does alone: the limit, and a second cause beside it."""
    parts, lost = limits.parts, limits.lost
    busy = sum(parts[p] for p in _GPU_PARTS)
    if lost[code] >= 0.9 * (limits.real_ns - busy) and code not in _ALONE:  # nearly all of the rest
        return f"The rest{'' if limits.whole else ' of the step'} it {_clause(profile, limits, code)}."
    sentence = f"For {short(limits.per_step(lost[code]))} it {_clause(profile, limits, code)}"
    others = {c: ns for c, ns in lost.items() if c != code and ns >= LIMITS * limits.real_ns}
    if others:
        second = max(others, key=lambda c: (others[c], c))
        sentence += f", and for {short(limits.per_step(lost[second]))} it {_clause(profile, limits, second)}"
    return f"{sentence}."


def _clause(profile: Profile, limits: Limits, code: Limit) -> str:
    """Return what the device does in the time that a verdict code accounts for."""
    host, parts = program_of(profile).host, limits.parts
    match code:
        case Limit.LAUNCH if parts[Part.HOST] >= parts[Part.LAUNCH]:
            return f"waits for {host} to send the next kernel"
        case Limit.LAUNCH:
            return f"waits for launches to arrive{_launches(profile, limits)}"
        case Limit.INPUT:
            return "waits for the next batch of input data"
        case Limit.SYNC:
            if 2 * other_gpus(profile).meanwhile_ns > limits.lost[code]:
                return f"has no work: another GPU works then, and {host} waits{_site(profile)} for both"
            return f"has no work, because {host} waits for it{_site(profile)} before sending more"
        case Limit.ALLOC:
            return f"waits while memory is allocated and freed{_calls(profile, *Call.ALLOCATOR)}"
        case Limit.WARMUP:
            return "waits for one-time work: loading kernels and libraries, first calls"
        case Limit.COMM:
            return "only communicates with other GPUs, with no computation beside it"
        case _ if parts[Part.MIGRATION] >= parts[Part.COPY]:
            return "only moves pages of unified memory, which the other side touched last"
        case _:
            return f"only copies{_direction(profile, limits)}"


def _busy(profile: Profile, limits: Limits) -> str:
    """Return the sentence about a step that the GPU limits: what it works on, or what slows it down."""
    parts, real = limits.parts, limits.real_ns
    works = _works(limits, Limit.GPU)
    if parts[Part.PAUSE] >= LIMITS * real and parts[Part.PAUSE] >= parts[Part.DEPENDENCY]:
        count, median = gpu_work.kernels(profile, limits.process, limits.device)
        each = f"{units.count(limits.per_step(count))} short kernels" + (
            f" of {units.duration(median)}" if median else ""
        )
        paused = short(limits.per_step(parts[Part.PAUSE]))
        return f"{works} Work is always queued, but in {each}, and the pauses between them take {paused}."
    if parts[Part.DEPENDENCY] >= LIMITS * real:
        held = short(limits.per_step(parts[Part.DEPENDENCY]))
        return f"{works} For {held} its next kernel is queued but waits for another stream or GPU."
    lost = sum(limits.lost.values())
    if lost >= LIMITS * real:
        return f"{works} The rest has no single cause: {_divided(limits, [p for p in Part if p.limit])}."
    if lost < _NOTHING * real and not limits.whole:
        works = f"{works[:-1]} and is never short of work."
    most = gpu_work.most(profile, limits.process, limits.device)
    return f"{works} {most}".rstrip()


def _divided(limits: Limits, among: Iterable[Part]) -> str:
    """Return the parts of a step that are worth a word, longest first, in words."""
    parts = sorted(((limits.parts[p], p) for p in among), reverse=True)
    words = [f"{p.label} {short(limits.per_step(ns))}" for ns, p in parts if ns >= _WORD * limits.real_ns and ns]
    return ", ".join(words)


def _profiled(limits: Limits) -> str:
    profiler = short(limits.per_step(limits.parts[Part.PROFILER]))
    part, whole = pair(limits.per_step(limits.parts[Part.WORK]), limits.per_step(limits.window_ns))
    every = "" if limits.whole else "every "
    return f"The profiler itself takes {profiler} of {every}{whole}, while the GPU works {part}."


def _without_gpu(profile: Profile) -> tuple[str, tuple[str, ...]]:
    """Return the sentence for steps without GPU work, and what to do."""
    if elsewhere := profile.attributed.gpu_ops.height:
        outside = units.several(elsewhere, "GPU operation lies", "GPU operations lie")
        sentence = f"The steps hold no GPU work; {outside} outside them, or cannot be tied to a launch in them."
        return sentence, ("--steps all looks at the whole capture",)
    return nothing_recorded.sentence(profile)


def _without_kernels(limits: Limits) -> str:
    work = {p: limits.parts[p] for p in (Part.COPY, Part.MIGRATION, Part.WORK, Part.COMM)}
    moved = short(limits.per_step(sum(work.values())))
    return f"No kernel was recorded. The GPU only copies and sets memory here, for {moved}."


#: How the line of evidence begins that gives the parts of a step, which a picture of them says, too.
EACH_STEP = "Each step: "


def _evidence(profile: Profile, limits: Limits) -> tuple[str, ...]:
    """Return the window, how it divides, and what lies outside it."""
    busy = units.share(sum(limits.parts[p] for p in _GPU_PARTS), limits.window_ns)
    steps = limits.steps
    over = "the whole capture" if limits.whole else f"{steps} steady step{'s' * (steps != 1)}"
    lines = [f"GPU {limits.device} busy {busy} of {over} ({units.duration(limits.window_ns)})"]
    if limits.recorded_ns is not None:
        lines[0] += f", without the profiler; as recorded: {units.duration(limits.recorded_ns)}"
    if divided := _divided(limits, Part):
        lines.append(f"{'By part: ' if limits.whole else EACH_STEP}{divided}")
    course = profile.steps.trend.note
    if course and not _course(profile, limits):
        lines.append(course)
    if passes := _passes(profile):
        lines.append(passes)
    if profile.steps.source == "capture":
        length = profile.trace.capture.duration_ns
        if length and length > limits.window_ns:
            outside = units.duration(length - limits.window_ns)
            lines.append(f"The other {outside} of the capture are before the first or after the last GPU work")
        lines.append(_MARK_STEPS)
    return tuple(lines)


def _passes(profile: Profile) -> str:
    """Say when a step is several passes: accumulated gradients, or several optimizers that take turns; else ""."""
    spans, scope = profile.attributed.phase_spans, profile.scope
    if not scope.steps:
        return ""
    windows = profile.steps.cpu_windows.filter(pl.col("process") == profile.steps.process)
    start, end = (int(x) for x in windows.select("start_ns", "end_ns").row(0))
    in_steps = spans.filter((pl.col("process") == profile.steps.process) & pl.col("start_ns").is_between(start, end))
    # Anything that interrupts a phase on its thread cuts its span, so a pass ends only where another phase begins.
    order = in_steps.sort("thread", "start_ns")["phase"].cast(pl.String)
    begun = order.filter((order != order.shift(1)).fill_null(True))
    count = {phase: scope.per_step(int((begun == phase).sum())) for phase in ("forward", "backward", "optimizer")}
    backward, optimizer = round(count["backward"]), round(count["optimizer"])
    steady = all(abs(count[p] - n) < _PASS for p, n in (("backward", backward), ("optimizer", optimizer)))
    if backward < 2 or not steady or not optimizer:
        return ""
    if optimizer == 1:
        return f"A step is {backward} forward and backward passes before one optimizer step: gradients are accumulated"
    return f"A step has {backward} backward passes and {optimizer} optimizer steps"


def _launches(profile: Profile, limits: Limits) -> str:
    count = int(profile.steady_calls["kind"].is_in(Call.LAUNCHES).sum())
    if not count:
        return ""
    return f", {units.count(count)} of them" if limits.whole else f", {units.count(limits.per_step(count))} a step"


def _site(profile: Profile) -> str:
    """Name the call after which the device idles most, "" if none is known."""
    sites = profile.wait_sites().filter(pl.col("process") == profile.steps.process)
    if not sites.height:
        return ""
    cost = pl.col("idle_caused_ns").sum().alias("ns")
    key = ["api", "module", "file", "line"]
    worst = sites.group_by(key).agg(cost).sort("ns", *key, descending=[True] + [False] * 4, nulls_last=True)
    api, module, file, line, ns = worst.row(0)
    if not ns:
        return ""
    if file:
        return f" in {api} ({file.rpartition('/')[2]}:{line})"[:120]
    return f" in {api}" + (f" in {module}"[:80] if module and module not in profile.attributed.without_path else "")


def _calls(profile: Profile, *kinds: str) -> str:
    """Name the two functions of these kinds that take most time."""
    calls = profile.steady_calls
    shown = calls["kind"].is_in(kinds) & (calls["process"] == profile.steps.process)
    of_kind = calls.select("name", "start_ns", "end_ns").filter(shown)
    ns = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns")
    names = (
        of_kind.group_by(pl.col("name").cast(pl.String)).agg(ns).sort("ns", "name", descending=[True, False])["name"]
    )
    return f" ({', '.join(names.head(2).to_list())})" if len(names) else ""


def _direction(profile: Profile, limits: Limits) -> str:
    """Say which way the copies go, or most of them by duration."""
    words = {"HtoD": " from the host to the GPU", "DtoH": " from the GPU to the host", "DtoD": " inside the GPU"}
    ops = profile.steady_ops
    copies = ops.filter((ops["op_kind"] == "memcpy") & (ops["process"] == limits.process))
    ns = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns")
    grouped = copies.group_by(pl.col("name").cast(pl.String)).agg(ns).sort("ns", "name", descending=[True, False])
    way = words.get(str(grouped["name"][0]), "") if grouped.height else ""
    whole = int(grouped["ns"].sum())
    if not way or grouped["ns"][0] >= _NEARLY_ALL * whole:
        return way
    return f", mostly{way}" if grouped["ns"][0] >= _HALF * whole else ""


def _blamed(profile: Profile, limits: Limits) -> str:
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
        or whole < LIMITS * limits.window_ns
    ):
        return ""
    return f"{units.share(most, whole)} of the GPU's idle time is before work of module '{name}'"
