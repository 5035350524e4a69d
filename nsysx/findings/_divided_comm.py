"""How exposed communication divides into waiting for other ranks and transfer, as the table of all ranks has it, and what that asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from nsysx import units
from nsysx.findings._case import Fix
from nsysx.judging import rank_verdict, rank_waiting
from nsysx.model import Finding, Row, Table

#: The name, in the evidence, of the part of the cost that is communication alone.
EXPOSED = "exposed communication"
#: What to do about slow links.
EARLIER = Fix.by_name("earlier-communication")
#: Stages of a pipeline wait for each other.
MORE_BATCHES = Fix.by_name("more-micro-batches")
#: No rank is always late: they take turns.
UNEVEN = (
    "Give every rank as much work in each step (batches of like length), or use fewer collectives: the ranks arrive at "
    "different times and none is always last"
)
#: Who the ranks wait for is not known of so few steps.
LONGER = "Record more steps of all ranks first"


class DividedComm(NamedTuple):
    """The exposed communication of a step (ns) in the row of the table of ranks that it is matched with: what waits, what transfers."""

    row: Row
    exposed: int
    wait: int
    transfer: int
    which_steps: str


def divided_comm(finding: Finding, table: Table, shown: int | None, recorded_ns: int | None) -> DividedComm | None:
    """Return how what is exposed divides; None where the ranks do not tell. The arguments are those of ``of_ranks``.

    The table is as recorded. Without the profiler a transfer takes as long as with it, so what is shorter then is waiting: tracing slows
    the hosts, each by a different amount. Where ranks wait for each other's GPU work, other steps are shorter in both alike.
    """
    if finding.verdict != "found" or not table.rows or not finding.cost_ns_per_step:
        return None
    # Matched by the exposed time, because ranks on several machines can share process and device numbers.
    exposed = next((int(e["total_ns"]) for e in finding.evidence if e.get("part") == EXPOSED), finding.cost_ns_per_step)
    cost = recorded_ns or exposed
    row = next((r for r in table.rows if round(r["comm_ns"] / max(r["steps"], 1)) == cost), None)
    which_steps = "Of what is exposed,"
    others = row is None and shown is not None
    if others:  # the ranks have fewer steady steps in common than this one has
        row = next((r for r in table.rows if r["rank"] == shown), None)
        which_steps = "By the steps that are steady on all ranks,"
    if row is None or row["exposed_wait_ns"] is None:
        return None
    waited, transferred = (round(row[f"exposed_{part}_ns"] / max(row["steps"], 1)) for part in ("wait", "transfer"))
    if others and exposed > waited + transferred > 0:  # of longer steps only the shares are known
        waited, transferred = (round(exposed * part / (waited + transferred)) for part in (waited, transferred))
    transfer = min(transferred, exposed)
    if rank_verdict.wait_for_work(table.rows):  # GPU work that others wait for is no matter of tracing
        transfer = min(transfer, round(exposed * transferred / max(waited + transferred, 1)))
    return DividedComm(row, exposed, min(waited, exposed - transfer), transfer, which_steps)


def of_ranks(
    finding: Finding, table: Table, shown: int | None = None, *, recorded_ns: int | None = None, stages: bool = True
) -> Finding:
    """Return the finding with what the comparison of all ranks adds: how much is waiting, which no link shortens.

    ``shown`` is the rank that the finding is about, None in a report that holds them all. ``recorded_ns`` is the exposed
    communication of a recorded step, as the table has it, where the finding speaks of another step. ``stages``: what two ranks send each
    other may be that of stages of a pipeline.
    """
    divided = divided_comm(finding, table, shown, recorded_ns)
    if divided is None:
        return finding
    row, exposed_ns, wait, transfer, which_steps = divided
    parts = f"{units.duration(wait)} is waiting for another rank and {units.duration(transfer)} is transfer."
    detail = f"{finding.detail} {which_steps} {parts}"
    if 2 * wait < exposed_ns:
        return EARLIER.into(replace(finding, detail=detail))
    late = next((r for r in table.rows or () if r["straggler"]), None)
    if late is not None:
        fix = (
            f"Make rank {late['rank']} faster (NSX111): it comes last, and no link or bucket size shortens the waiting"
        )
        # What waiting costs is that rank's, with its cause and its line: here no more than the transfer can go.
        saving = finding.saving
        most = None if saving.likely_ns is None else min(saving.likely_ns, transfer)
        finding = replace(finding, saving=replace(saving, likely_ns=most, most_ns=most))
    elif row["bubble_ns"] is not None and stages:
        return MORE_BATCHES.into(replace(finding, detail=detail))
    elif rank_waiting.not_compared(table.rows or ()):
        fix = f"{LONGER}. {rank_waiting.too_few(table.rows or ())}"
    else:
        fix = UNEVEN
    return replace(finding, detail=detail, fix=fix)
