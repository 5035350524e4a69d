"""Work that the ranks deal out unevenly in a few steps alone: what dealing it out evenly saves, and where it lies."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import NamedTuple

from nsysx import units
from nsysx.analyses.lines import texts_of_ranks
from nsysx.events.profile import Profile
from nsysx.findings._case import Case, Fix, Saving
from nsysx.findings._long_step_lines import LongStepLine, line_of_long_steps
from nsysx.findings._rank_rows import rank_rows
from nsysx.findings._work_bounds import ALIKE_PIECES_SHARE
from nsysx.judging import late_kinds
from nsysx.judging.other_work import FASTER_ALONE, others_of_gpu
from nsysx.model import Row

#: A rank takes what is its own by a map of the owners of all.
_RANK = r"(?:\w+\.)*\w*rank\b(?:\(\))?"
_MAP = r"(?P<{}>[A-Za-z_][\w.]*)\[[^\[\]]+\]"
_TAKES_OWN = re.compile(
    rf"{_MAP.format('first')}\s*[!=]=\s*{_RANK}|(?<![\w.]){_RANK}\s*[!=]=\s*{_MAP.format('second')}"
)


class DealtAtTimes(NamedTuple):
    """What is said of work of which a rank has more in its late steps, and its peers less."""

    detail: str
    saving: Saving
    fix: Fix
    where: Row
    evidence: tuple[Row, ...]


def dealt_at_times(case: Case, late: Row, each: str, often: float) -> DealtAtTimes | None:
    """Return what is said of a rank that is late at times by work of which its peers do a part then; None where they do none.

    ``late`` is its row in the table of ranks, ``each`` its late steps in words, ``often`` which share of all steps they are.
    """
    at_times, work = late["late_at_times"], late["late_at_times"]["dealt"]
    if work is None:
        return None
    line = None if work["file"] else line_of_long_steps(case, late["process"])
    where = {name: work[name] for name in ("file", "line")} if work["file"] else {} if line is None else line.where
    here, there = units.duration(work["ns"]), units.duration(work["others_ns"])
    alike = work["others_kernels"] >= (1 - ALIKE_PIECES_SHARE) * work["kernels"]
    shares = f"rank {late['rank']} {here}, its peers {there}, in {'about as many' if alike else 'fewer'} kernels"
    detail = (
        f"All ranks compute something then that other steps do not hold, mostly {late_kinds.of_family(work)}: {shares}."
    )
    even_ns = min(at_times["even_ns"], work["ns"] - work["mean_ns"])
    ranks = rank_rows(case)
    waited = sum((row["exposed_wait_ns"] or 0) / max(row["steps"] or 1, 1) for row in ranks)
    for_it = len(ranks) * even_ns * at_times["late_steps"] / at_times["steps"]
    return DealtAtTimes(
        f"{detail} {_place_in_words(work, line)}".rstrip(),
        _saving(case, round(even_ns * often), round(work["mean_ns"] * often)),
        _fix(line, each.replace("every", "each", 1), shares, _owners_in_words(case.profile)),
        where,
        (
            {"work": late_kinds.of_family(work), "then_ns": work["ns"], "on its peers then_ns": work["others_ns"]},
            {"turn_wait_ns": round(min(for_it, waited)), "waited_ns": round(waited)},
        ),
    )


def _place_in_words(work: Row, line: LongStepLine | None) -> str:
    """Return a sentence on where the work is launched, "" where that is not known."""
    if work["file"]:
        return f"It lies below {late_kinds.of_row(work).rpartition(', ')[2]}."
    if line is None:
        return ""
    return f"No such step was X-rayed: its host is in {line.in_words} in {units.share(line.share, 1)} of the looks at such steps."


def _owners_in_words(profile: Profile) -> str:
    """Return in words where a rank takes what is its own, and by which names of owners; "" where no one line that was noted does so."""
    noted = [
        (file, number, match["first"] or match["second"])
        for file, texts in texts_of_ranks(profile).items()
        for number, text in texts.items()
        if (match := _TAKES_OWN.search(str(text).partition("  #")[0]))
    ]
    if len({owners for _, _, owners in noted}) != 1:
        return ""
    file, number, owners = noted[0]
    return f" (owners in {owners}, read at {PurePath(file).name}:{number})"


def _fix(line: LongStepLine | None, each: str, shares: str, owners: str) -> Fix:
    """Return what to do about it: an evaluation is shared, anything else is dealt out by cost; ``owners``: by which each knows its own."""
    if line is not None and line.evaluates:
        evenly = f"Share evenly what the ranks evaluate in {each}, every n-th item or a random share: {shares}"
        return Fix.by_name("mixed-shares", text=evenly)
    what = f"{line.called} computes on each rank" if line is not None and not line.enters else "each rank computes"
    return Fix.by_name(
        "dealt-by-cost", text=f"Deal out by cost, not by number, what {what} in {each}{owners}: {shares}"
    )


def _saving(case: Case, even_ns: int, share_ns: int) -> Saving:
    """Return what a step saves on average, ``even_ns`` at best; ``share_ns``: an even share of the work of a step, likewise on average.

    Each piece goes whole to one rank: the longest first, each to the rank that has least, none of n ranks has more than 4/3 - 1/(3 n)
    of what it has in the best order (R. L. Graham, Bounds on multiprocessing timing anomalies, 1969), where no piece is longer than that.
    """
    lost = min(round(share_ns * (1 - 1 / len(rank_rows(case))) / 3), even_ns)
    why = "from step lengths: in these steps all ranks take as long, as near as whole pieces can be dealt out"
    if others_of_gpu(case.profile):
        return Saving(even_ns, f"{why}; {FASTER_ALONE}", bound=True, source="steps")
    return Saving(even_ns - lost // 2, why, error_ns=lost - lost // 2, most_ns=even_ns, source="steps")
