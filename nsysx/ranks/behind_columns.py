"""What the table of ranks says of the rank furthest behind: by how much, why, and in which kernels, kinds of work and lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nsysx.catalogue import Late, Surplus
from nsysx.ranks import late_at_times, late_lines, late_work, lone_work, straggler, uneven, work_in_turn
from nsysx.ranks.job_compared import JobCompared
from nsysx.ranks.rank_record import Rank

#: What makes a rank late before its GPU works.
_OF_THE_HOST = (Late.HOST, Late.CALLS, Late.INPUT, Late.UNKNOWN)


def of_rank(ranks: Sequence[Rank], late: straggler.Straggler | None, r: int) -> dict[str, object]:
    """Return the columns about the rank furthest behind, null for the others.

    Kinds of work and kernels are those of a rank that is late by its GPU work, lines those of one whose host is; null where none is longer.
    """
    s = late if late is not None and late.place == r else None
    kinds: tuple[late_work.LongerKind, ...] = ()
    spread: Surplus | None = None
    kernels: Sequence[Mapping[str, Any]] = ()
    lines: Sequence[Mapping[str, Any]] = ()
    if s is not None:
        peers = [ranks[x] for x in s.peers if x != r]
        if s.cause == Late.COMPUTE:
            alone = late_work.at_own_lines(ranks[r], peers)
            kinds = alone or late_work.kinds(ranks[r], peers)
            spread = Surplus.LONE if alone else late_work.spread(kinds)
            kernels = uneven.rows(uneven.differences(ranks[r], peers))
        elif s.cause in _OF_THE_HOST:
            lines = late_lines.rows_per_step(late_lines.longer(ranks[r], peers))
    return {
        "straggler": s is not None and s.named,
        "late_ns": s and s.late_ns,
        "late_low_ns": s and s.low_ns,
        "late_high_ns": s and s.high_ns,
        "late_drift_ns": s and s.drift_ns,
        "late_cause": s and s.cause,
        "price_ns": s and s.price_ns,
        "price_share": s and round(s.without, 4),
        "alone_share": s and round(s.alone, 4),
        "even_ns": s and s.even_ns,
        "late_by_work": s is not None and s.by_work,
        "replay_error": s and round(s.error, 6),
        "late_work": late_work.rows_per_step(kinds) or None,
        "late_spread": spread,
        "late_kernels": kernels or None,
        "late_lines": lines or None,
    }


def in_some_steps(compared: JobCompared) -> list[dict[str, object]]:
    """Return the columns about work that ranks have at times: in turn, between steps, or in a few steps; null where it is not so."""
    few = late_at_times.of_each(compared)
    in_turn = work_in_turn.of_each(compared, {r for r, late in few.items() if late.cause == Late.COMPUTE})
    alone = lone_work.of_each(compared.aligned)
    return [
        {
            "turn_wait_ns": in_turn[r].wait_ns if r in in_turn else None,
            "turn_even_ns": in_turn[r].even_ns if r in in_turn else None,
            "lone_work": alone.get(r),
            "late_at_times": few[r]._asdict() if r in few else None,
        }
        for r in range(len(compared.ranks))
    ]
