"""What is to be said of a report without GPU work, or without anything: why it is empty, and what to do."""

from __future__ import annotations

from pathlib import Path

from nsysx import units
from nsysx.catalogue import Call
from nsysx.errors import EXIT_EMPTY, NsysxError
from nsysx.events.profile import Profile
from nsysx.judging import tracing_checks
from nsysx.reading.trace import Trace

_PROFILE = "Profile with: nsysx run -- CMD"


def error(path: Path, trace: Trace) -> NsysxError:
    """Return the error for a report without CUDA and ranges: the cause, as far as nsys wrote one down, and what to do."""
    recorded_ns = trace.capture.duration_ns
    message = f"{path.name}: holds no CUDA and no NVTX rows"
    message += f" in {units.duration(recorded_ns)} of recording" if recorded_ns else ""
    off = trace.run.get("probe_off")
    if why := tracing_checks.why_empty(trace):
        message, hint = f"{message}: {why.cause}", f"{why.remedy[:1].upper()}{why.remedy[1:]}"
        hint += f'. nsys says: "{why.words.rstrip(".")}"' if why.words else ""
    elif isinstance(off, dict):
        hint = f"No ranges from the probe: {off.get('reason')}; {off.get('fix')}"
    else:
        hint = _PROFILE
    return NsysxError(message, slug="nothing-recorded", hint=hint, exit_code=EXIT_EMPTY)


#: What gives the GPU work.
_GIVES_WORK = (*Call.LAUNCHES, Call.COPY, Call.MEMSET)
#: What to do about a program that made CUDA calls and gave the GPU nothing to do.
REACH_WORK = "let the program reach its work on the GPU inside the capture: it set CUDA up, and launched, copied and cleared nothing"


def only_set_up(profile: Profile) -> bool:
    """Return whether the capture has CUDA calls, and none that gives the GPU work: nothing was lost then."""
    return bool(profile.calls.height) and not profile.calls["kind"].is_in(_GIVES_WORK).any()


def sentence(profile: Profile) -> tuple[str, tuple[str, ...]]:
    """Return the sentence for a capture without GPU work, with its cause where nsys says one, and what to do."""
    causes = tracing_checks.causes(profile.trace)
    if launches := int(profile.calls["kind"].is_in(Call.LAUNCHES).sum()):
        held = units.several(launches, "kernel launch", "kernel launches")
        why = "".join(f": {each.cause}" for each in causes[:1])
        return f"The capture holds {held}, but no GPU work{why}.", (tracing_checks.remedy(profile.trace),)
    if not causes and not profile.calls.height and (empty := tracing_checks.why_empty(profile.trace)):
        causes = [empty]
    if not causes and only_set_up(profile):
        calls = units.several(profile.calls.height, "CUDA call")
        return f"The program gave the GPU no work: {calls}, no launch, copy or memset.", (REACH_WORK,)
    if not causes:
        return "The capture holds no GPU work.", ("Record with -t cuda on a machine with a CUDA GPU",)
    return f"The capture holds no GPU work: {causes[0].cause}.", (causes[0].remedy,)
