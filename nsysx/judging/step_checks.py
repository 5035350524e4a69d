"""Which steps the figures are of, and how well they stand for the others of a long capture."""

from __future__ import annotations

from nsysx import units
from nsysx.events import sampling
from nsysx.events.profile import Profile
from nsysx.judging.judging_bounds import FEW_STEADY_STEPS
from nsysx.model import Check
from nsysx.reading.trace import Sampled


def steps(profile: Profile) -> list[Check]:
    """Return how many steady steps there are and what found them, and which of a long capture were read."""
    table, sampled = profile.steps, profile.trace.sampled
    if table.source == "capture":
        fix = "nsysx run -- CMD, or mark steps with NVTX ranges and --step-range"
        return [Check("steps", "warn", f"{table.rule}: averages are over everything, warm-up included", fix)]
    few = profile.scope.steps < FEW_STEADY_STEPS
    count = table.cpu.filter(table.cpu["process"] == table.process).height
    total = count if sampled is None else len(sampled.lengths_ns)
    detail = f"{profile.scope.steps} steady steps of {total}, from {table.rule}"
    if table.lost:
        detail += f"; those behind the first whose kernels were lost do not count ({table.lost} have lost some)"
    of_parts = [] if sampled is None else [_read(profile, sampled, count)]
    return [Check("steps", "warn" if few else "ok", detail, "profile more steps" if few else ""), *of_parts]


def _read(profile: Profile, sampled: Sampled, count: int) -> Check:
    """Return which steps were read, and by how much their mean is off that of all."""
    first, last = (profile.step_of_capture(index) for index in profile.steps.steady or (0, 0))
    off = abs(float(sampled.lengths_ns[first : last + 1].mean()) / sampled.usual_ns - 1)
    (_, cold), long = sampled.parts[0], len(sampled.long)
    detail = (
        f"of {units.count(len(sampled.lengths_ns))} steps {count} were read: the first {cold}, the last, and "
        f"{last - first + 1} in a row whose mean is within {units.share(off, 1)} of that of all others"
    )
    if long:
        among = "the longest of them were read" if any(begin is None for begin, _ in sampled.long) else "read as well"
        several = "1 that takes" if long == 1 else f"{long} that take"
        detail += f" but {several} more than half as long again ({among})"
    if sampled.totals.work:
        work = abs(sampling.gpu_work_error(profile, sampled))
        detail += (
            f". The GPU time of all steps, which was counted, is what these make expect within {units.share(work, 1)}"
        )
    detail += ". Totals count all of them; tables of the whole capture cover what was read"
    return Check("steps read", "ok", detail, "--every-step reads all of them")
