"""Work that the ranks deal out unevenly in a few steps alone: what dealing it out evenly saves, and where it lies."""

from __future__ import annotations

from typing import NamedTuple

from nsysx import units
from nsysx.findings._case import Case, Fix, Saving
from nsysx.findings._long_step_lines import LongStepLine, line_of_long_steps
from nsysx.findings._rank_rows import rank_rows
from nsysx.findings._work_bounds import ALIKE_PIECES_SHARE
from nsysx.judging import late_kinds
from nsysx.judging.other_work import FASTER_ALONE, others_of_gpu
from nsysx.model import Row


class DealtAtTimes(NamedTuple):
    """What is said of work of which a rank has more in its late steps, and its peers less."""

    detail: str
    saving: Saving
    fix: Fix
    where: Row
    evidence: Row


def dealt_at_times(case: Case, late: Row, each: str, often: float) -> DealtAtTimes | None:
    """Return what is said of a rank that is late at times by work that all ranks do then; None where its peers do none.

    ``late`` is its row in the table of ranks, ``each`` its late steps in words, ``often`` which share of all steps they are.
    """
    at_times, work = late["late_at_times"], late["late_at_times"]["dealt"]
    if work is None:
        return None
    line = None if work["file"] else line_of_long_steps(case, late["process"])
    where = {name: work[name] for name in ("file", "line")} if work["file"] else {} if line is None else line.where
    kind, here, there = (
        late_kinds.of_family(work),
        units.duration(work["ns"]),
        units.duration(work["others_ns"]),
    )
    alike = work["others_kernels"] >= (1 - ALIKE_PIECES_SHARE) * work["kernels"]
    counted = f", in {'about as many' if alike else 'fewer'} kernels" if work["kernels"] else ""
    detail = (
        f"All ranks compute something in {each} that others do not hold, mostly {kind}: rank {late['rank']} {here} of it, its peers "
        f"{there}{counted}. {_place_in_words(work, line)}"
    )
    return DealtAtTimes(
        detail.rstrip(),
        _saving(case, at_times, often),
        _fix(
            line,
            f"in {each.replace('every', 'each', 1)}",
            f"rank {late['rank']} has {here} of it, its peers {there}{counted}",
        ),
        where,
        {"work": kind, "then_ns": work["ns"], "on its peers then_ns": work["others_ns"]},
    )


def _place_in_words(work: Row, line: LongStepLine | None) -> str:
    """Return a sentence on where the work is launched, "" where that is not known."""
    if work["file"]:
        return f"It lies below {late_kinds.of_row(work).rpartition(', ')[2]}."
    if line is None:
        return ""
    return f"No such step was X-rayed: {units.share(line.share, 1)} of looks at its host in such steps found it in {line.in_words}."


def _fix(line: LongStepLine | None, then: str, who: str) -> Fix:
    """Return what to do about it: an evaluation is shared, anything else is dealt out by cost."""
    if line is not None and line.evaluates:
        return Fix.by_name(
            "mixed-shares",
            text=f"Share evenly what the ranks evaluate {then}, every n-th item or a random share: {who}",
        )
    return Fix.by_name("dealt-by-cost", text=f"Deal out by cost, not by number, what each rank computes {then}: {who}")


def _saving(case: Case, at_times: Row, often: float) -> Saving:
    """Return what a step saves on average if all ranks take as long in the late ones.

    What is dealt out goes whole, each piece to one rank: the longest first, each to the rank that has least, no rank has more than 4/3 of
    an even share (1/3 of it less for n = 1, ...: 4/3 - 1/(3 n), Graham), where no piece is longer than that.
    """
    ranks = len(rank_rows(case))
    even_ns = round(at_times["even_ns"] * often)
    lost = min(round(at_times["dealt"]["mean_ns"] * often * (1 - 1 / ranks) / 3), even_ns)
    why = "from step lengths: in these steps all ranks take as long, as near as whole pieces can be dealt out"
    if others_of_gpu(case.profile):
        return Saving(even_ns, f"{why}; {FASTER_ALONE}", bound=True, source="steps")
    return Saving(even_ns - lost // 2, why, error_ns=lost - lost // 2, most_ns=even_ns, source="steps")
