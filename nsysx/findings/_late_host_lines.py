"""Lines at which the host of a late rank is while others wait for it: the GPU that is shown waits in a collective, and does not idle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath

import polars as pl

from nsysx import units
from nsysx.analyses import copy_sites
from nsysx.analyses.lines import CodeLineRow
from nsysx.catalogue import StepPart
from nsysx.events.code_lines import CodeLines
from nsysx.events.profile import Profile
from nsysx.findings._case import Case, Fix
from nsysx.findings._costly_jobs import on_all_ranks
from nsysx.findings._finding_bounds import MOST_SHARE
from nsysx.findings._held import idle_ns
from nsysx.findings._picks_then_copies import REMEDY
from nsysx.findings._rank_rows import rank_rows
from nsysx.judging.late_hosts import LateHost, Site, late_host
from nsysx.judging.rank_verdict import late_hosts
from nsysx.model import Finding
from nsysx.replay.held_lines import name_of
from nsysx.replay.idle_lines import by_line
from nsysx.replay.slowed_kernels import slowed_ns
from nsysx.saving import Saving

#: With these remedies what a line copies to the GPU is made there.
_WITHOUT_COPY = frozenset((REMEDY, "made-on-gpu"))


def late_of(case: Case) -> LateHost | None:
    """Return the rank for whose host the shown one waits, None where that is not so."""
    return late_host(case.profile, rank_rows(case))


def idle_of_places(case: Case, code: CodeLines, noted: pl.DataFrame) -> tuple[dict[int, float], dict[int, float]]:
    """Return place -> idle time for it in all steps, and the part that is host code, the longest first; ``noted`` as of `by_line`.

    That of the shown GPU, or of the late rank's where the shown one waits for its host and idles less.
    """
    host = pl.when("host").then("real_ns").otherwise(None)
    sums = noted.group_by("place").agg(pl.col("real_ns").sum(), host.sum().alias("host_ns"), pl.col("host").any())
    every = {line_row: ns for line_row, ns, _, _ in sums.iter_rows()}
    of_host = {line_row: ns for line_row, _, ns, is_host in sums.iter_rows() if is_host}
    late = late_of(case)
    for line_row, site in enumerate(code.places.iter_rows() if late is not None else ()):
        ns, host_ns = _idle_at(late, site)
        if host_ns * case.steps > of_host.get(line_row, 0.0):
            of_host[line_row] = host_ns * case.steps
            every[line_row] = max(every.get(line_row, 0.0), ns * case.steps)
    return every, dict(sorted(of_host.items(), key=lambda each: (-each[1], each[0])))


def most_of(case: Case, causes: Iterable[StepPart]) -> int:
    """Return the most that lines cost of a step (ns): what these parts of it take, and the waiting for a rank that is held there."""
    return min(case.taken_by(causes) + (_waiting(case) if late_of(case) is not None else 0), case.step_ns)


def idles_in_words(case: Case, rows: Sequence[CodeLineRow], cost: int) -> tuple[str, str]:
    """Return which GPU idles for lines and how long, and the same as a time at which it has nothing to do."""
    late, here = late_of(case), case.profile.once(_idle_for_host)
    sites = {(row["file"], row["line"], row["function"]) for row in rows}
    theirs = sum(_idle_at(late, site)[1] for site in sites)
    if late is None or theirs <= case.per_step(sum(here.get(site, 0.0) for site in sites)):
        return f"the GPU idles {units.duration(cost)}", "the GPU has nothing to do"
    who, idle = f"the GPU of rank {late.rank}", units.duration(min(theirs, cost))
    return f"{who} idles {idle}, and others wait for it", f"{who} has nothing to do, and others wait"


def without_on_all_ranks(case: Case, rows: Sequence[CodeLineRow], fix: Fix | None, worth: Saving) -> Saving:
    """Return what lines save in a job whose ranks wait for each other's hosts, where a replay of all of them has more than one rank alone.

    At most no rank waits or idles, and what is copied there is not copied. A bound stays one.
    """
    hosts, here = late_hosts(rank_rows(case)), case.profile.process
    if not hosts or worth.likely_ns is None or (len(hosts) == 1 and hosts[0]["process"] == here and not _waiting(case)):
        return worth
    sites = {(row["file"], row["line"]) for row in rows}
    saved = [on_all_ranks(case, name_of(file, line)) for file, line in sorted(sites) if file and line is not None]
    least = sum(each.likely_ns or 0 for each in saved if each is not None)
    if least <= worth.likely_ns:
        return worth
    copies = 0
    if fix is not None and _WITHOUT_COPY.intersection(way.name for way in fix.ways):
        copied = (r for r in case.typed_rows(copy_sites.ROWS) if (r["file"], r["line"]) in sites)
        copies = sum(case.per_step(r["exposed_ns"] or 0) for r in copied if r["direction"] == "HtoD")
    idle = case.taken_by(part for part in StepPart if part.idle)
    # Kernels run beside the collectives in which a rank waits, and are slowed by them.
    most = min(idle + _waiting(case) + copies + case.per_step(slowed_ns(case.profile)), case.step_ns)
    likely = min(least + copies, most)
    error = max(each.error_ns or 0 for each in saved if each is not None)
    also = " and its copies" if copies else ""
    why = f"all ranks replayed together without the host's time at this line{also}"
    if worth.bound:
        return replace(
            worth, likely_ns=likely, most_ns=max(likely, most), confidence=f"{why}; what of it can go is not known"
        )
    return Saving(likely, why, error_ns=likely - least + error, most_ns=max(most, likely), source="replay")


def other_than_launching(case: Case) -> int:
    """Return how long the GPU idles for host code that no launch explains (ns a step): the late rank's, where others wait for its host."""
    late = late_of(case)
    shown = 0 if case.profile.code() is None else case.per_step(idle_ns(case.profile))
    return shown if late is None else max(shown, round(idle_ns(late.profile) / max(late.profile.scope.steps or 0, 1)))


def shortened(case: Case, finding: Finding, fewer: Finding) -> Finding:
    """Return what is found where ranks wait for each other's hosts: ``fewer`` launches, or that a line holds the late one.

    What that costs is told with the line (NSX123): no more than the transfer is left for this ``finding``.
    """
    late = late_of(case)
    waits, other = _waiting(case), other_than_launching(case)
    if late is None or late.line is None or other < MOST_SHARE * (waits + case.taken_by((StepPart.LAUNCH,))):
        return fewer
    file, line, _ = late.line
    where = f"{PurePath(str(file)).name}:{line}"
    fix = Fix(
        f"Shorten what the host does at {where} (NSX123): the others wait for rank {late.rank}, whose GPU idles there for "
        f"{units.duration(late.idle[late.line][1])} of a step, and neither fewer launches nor faster links shorten that"
    )
    most = max(case.taken_by((StepPart.COMM,)) - waits, 0)
    saving = replace(finding.saving, likely_ns=min(finding.saving.likely_ns or 0, most), most_ns=most)
    return fix.into(replace(finding, where={"file": file, "line": line, "near": f"rank {late.rank}"}, saving=saving))


def _idle_for_host(profile: Profile) -> dict[Site, float]:
    """Return how long the shown GPU idles for host code at each line, in all steps without tracing (ns)."""
    code = profile.code()
    if code is None:
        return {}
    noted = by_line(profile).filter(pl.col("host") & (pl.col("place") >= 0))
    sums = noted.group_by("place").agg(pl.col("real_ns").sum())
    return {code.places.row(line_row): ns for line_row, ns in sums.iter_rows()}


def _idle_at(late: LateHost | None, site: Site) -> tuple[float, float]:
    return (0.0, 0.0) if late is None else late.idle.get(site, (0.0, 0.0))


def _waiting(case: Case) -> int:
    """Return how long the shown GPU does nothing but wait for other ranks (ns a step): that share of its exposed communication."""
    row = next((r for r in rank_rows(case) if (r["process"], r["device"]) == (case.process, case.device)), None)
    if row is None or row["exposed_wait_ns"] is None:
        return 0
    wait, transfer = int(row["exposed_wait_ns"]), int(row["exposed_transfer_ns"] or 0)
    return round(case.taken_by((StepPart.COMM,)) * wait / max(wait + transfer, 1))
