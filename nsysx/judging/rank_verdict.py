"""What limits the step when all ranks are known: the wait for another rank, with what holds that rank up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nsysx.catalogue import Late
from nsysx.judging.verdict import LIMITS, pair, short
from nsysx.model import Row, Scope, Table, Verdict

#: Below this share of the step, transferring the data itself is no problem.
_NO_NETWORK = 0.02


def of_ranks(verdict: Verdict, table: Table, shown: int | None = None) -> Verdict:
    """Return the verdict with a sentence that names the late rank, if the shown rank waits for it or is the late one.

    ``shown`` is the rank that the Summary shows, None if one report holds them all.
    """
    rows = table.rows or ()
    late = next((r for r in rows if r["straggler"]), None)
    if late is None or verdict.step_ns is None:
        return verdict
    shown_row = _row_of(rows, verdict, shown)
    waiting = shown_row if shown_row is not late else max((r for r in rows if r is not late), key=_waits, default=None)
    if shown_row is None or waiting is None or _waits(waiting) < LIMITS * waiting["window_ns"]:
        return verdict
    return replace(verdict, sentence=_sentence(late, waiting, shown_row, verdict), late_rank=late["rank"])


def _row_of(rows: Sequence[Row], verdict: Verdict, shown: int | None) -> Row | None:
    if shown is not None:
        return next((r for r in rows if r["rank"] == shown), None)
    processes = verdict.scope.processes if verdict.scope else ()
    return next((r for r in rows if r["process"] in processes), None)


def _waits(row: Row) -> int:
    """Return how long a rank does nothing but wait for others, over all of its steps (ns)."""
    return row["exposed_wait_ns"] or 0


def _sentence(late: Row, waiting: Row, shown_row: Row, verdict: Verdict) -> str:
    scope = Scope("steady", (waiting["process"],), steps=waiting["steps"] or 0)
    part, whole = pair(scope.per_step(_waits(waiting)), scope.per_step(waiting["window_ns"]))
    recorded = " recorded" if verdict.recorded_ns else ""
    cause, behind = late["late_cause"], late["late_ns"] or 0
    extra = (late["late_because"] or {}).get(Late.COMPUTE, behind) if cause == Late.COMPUTE else behind
    why = f", which {Late.named(cause).doing.format(short(extra))}" if extra else ""
    transfer = (waiting["exposed_transfer_ns"] or 0) < _NO_NETWORK * waiting["window_ns"]
    network = " The network is not the problem." if transfer else ""
    who = f"rank {late['rank']}" if shown_row is waiting else f"this rank, {late['rank']}"
    return f"Rank {waiting['rank']} waits {part} of every {whole}{recorded} for {who}{why}.{network}"
