"""``nsysx whatif`` for a job: all ranks are replayed together, with one of them, their work or their links changed.

The figures are those of the page, from the same replay. In each of them the slowest rank's own work stays: no change of a job makes it
faster than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nsysx import units
from nsysx.errors import EXIT_EMPTY, EXIT_USAGE, NsysxError
from nsysx.ranks import straggler
from nsysx.ranks.job_compared import JobCompared, compare, reason
from nsysx.ranks.own_time import OwnTimes, own_times
from nsysx.ranks.rank_bounds import FASTER_LINKS_TIMES, STRAGGLER_SHARE
from nsysx.ranks.rank_record import Rank, number
from nsysx.replay.changes import JobChanges


def _replayed(compared: JobCompared) -> tuple[tuple[int, ...], OwnTimes] | None:
    """Return the largest group of ranks that do the same work, and their replay; None where they cannot be replayed together."""
    for group in straggler.groups(compared.costs):
        times = own_times(compared.aligned, group)
        if times is not None:
            return group, times
    return None


def _even_ns(compared: JobCompared, group: Sequence[int], times: OwnTimes) -> float:
    """Return what even GPU work saves of a step (ns): that of the page, which leaves out hosts that tracing slows, where it is a bound, and
    shares what they do for more data.
    """
    late = compared.late
    if late is not None and late.even_ns is not None and late.peers == tuple(group):
        return float(late.even_ns)
    return times.even_ns()


def _usual_ns(compared: JobCompared, group: Sequence[int], times: OwnTimes, r: int) -> float:
    """Return what a step saves if a rank (its place in the group) is like its peers (ns): as of `_even_ns` that of the page."""
    late = compared.late
    if late is not None and late.by_work and late.peers == tuple(group) and late.place == group[r]:
        return float(late.price_ns)
    return times.price_ns(r)


@dataclass(frozen=True)
class JobPrices:
    """What changes of a job save of its step (ns), as the options that ask for them, from a replay of all its ``ranks``.

    ``error`` is the share of the recorded steps by which the unchanged replay is off.
    """

    ranks: int
    step_ns: float
    error: float
    savings: tuple[tuple[str, float], ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        changes = [
            {"option": option, "step_ns": round(self.step_ns - saved), "saving_ns": round(saved)}
            for option, saved in self.savings
        ]
        return {"ranks": self.ranks, "step_ns": round(self.step_ns), "error": self.error, "changes": changes}


def prices(ranks: Sequence[Rank], wanted: JobChanges) -> JobPrices | None:
    """Return what the changes save. Without a change, all that save something, None where the job cannot be replayed.

    Raises NsysxError with exit code 4 where a change is asked for and the ranks cannot be replayed together, 2 for an unknown rank.
    """
    asked, compared = wanted != JobChanges(), compare(ranks)
    replayed = None if compared is None else _replayed(compared)
    if compared is None or replayed is None:
        if not asked:
            return None
        why = reason(ranks) if compared is None else "their steps are not the same, or they are too many"
        raise NsysxError(f"the ranks are not replayed together: {why}", slug="whatif-no-job", exit_code=EXIT_EMPTY)
    group, times = replayed
    numbers = [number(compared.ranks, r) for r in group]
    if wanted.usual_rank is not None and wanted.usual_rank not in numbers:
        listed = ", ".join(map(str, numbers))
        what = f"--usual-rank {wanted.usual_rank}: the ranks are {listed}"
        raise NsysxError(what, slug="rank-range", exit_code=EXIT_USAGE)
    usual = numbers if not asked else [n for n in numbers if n == wanted.usual_rank]
    rows = [(f"--usual-rank {n}", _usual_ns(compared, group, times, numbers.index(n))) for n in usual]
    if wanted.equal_ranks or not asked:
        rows.append(("--equal-ranks", _even_ns(compared, group, times)))
    if wanted.faster_links or not asked:
        by = wanted.faster_links or FASTER_LINKS_TIMES
        rows.append((f"--faster-links {by}", times.transferred_ns(1 / by)))
    if wanted.hide_transfer or not asked:
        rows.append(("--hide-transfer", times.hidden_ns()))
    changed = times.changed_ns() if wanted.on_all_ranks or not asked else {}
    if wanted.on_all_ranks and wanted.on_all_ranks not in changed:
        can = ", ".join(changed) or "none"
        what = f"--on-all-ranks {wanted.on_all_ranks}: these steps hold nothing that it changes (they do for: {can})"
        raise NsysxError(what, slug="whatif-no-change", exit_code=EXIT_USAGE)
    rows += [(f"--on-all-ranks {name}", ns) for name, ns in changed.items() if wanted.on_all_ranks in ("", name)]
    step_ns = _step_ns(times)
    notable = [row for row in rows if row[1] >= STRAGGLER_SHARE * step_ns]
    shown = rows if asked else sorted(notable, key=lambda row: -row[1])
    savings = tuple((option, min(saved, step_ns)) for option, saved in shown)
    return JobPrices(len(group), step_ns, times.error, savings)


def lines(ranks: Sequence[Rank], wanted: JobChanges) -> list[str]:
    """Return what the changes save as lines of text, none where nothing does. Raises as ``prices``."""
    prices_of = prices(ranks, wanted)
    if prices_of is None or not prices_of.savings:
        return []
    wide, step_ns = max(len(option) for option, _ in prices_of.savings), prices_of.step_ns
    head = (
        f"all {prices_of.ranks} ranks replayed together: {units.duration(step_ns)} a step, "
        f"{units.share(prices_of.error, 1)} off the recorded steps"
    )
    return [
        head,
        *(
            f"{option:<{wide}}  step {units.duration(step_ns - saved)}, saves {units.duration(saved)} "
            f"({units.share(saved, step_ns)})"
            for option, saved in prices_of.savings
        ),
    ]


def _step_ns(times: OwnTimes) -> float:
    """Return the step that the page shows: as measured without a profiler, else as replayed (ns)."""
    return times.step if times.measured is None else times.measured
