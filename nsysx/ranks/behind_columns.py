"""What the table of ranks says of the rank furthest behind: by how much, why, and in which kernels, kinds of work and lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nsysx.catalogue import Late
from nsysx.ranks import late_lines, late_work, straggler, uneven
from nsysx.ranks.rank_record import Rank


def of_rank(ranks: Sequence[Rank], late: straggler.Straggler | None, r: int) -> dict[str, object]:
    """Return the columns about the rank furthest behind, null for the others."""
    return {
        **_furthest_behind(late, r),
        **_work(ranks, late, r),
        "late_kernels": _late_kernels(ranks, late, r),
        "late_lines": _late_lines(ranks, late, r),
    }


def _furthest_behind(late: straggler.Straggler | None, r: int) -> dict[str, object]:
    """Return the columns about the rank furthest behind, null for the others."""
    s = late if late is not None and late.place == r else None
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
    }


def _work(ranks: Sequence[Rank], late: straggler.Straggler | None, r: int) -> dict[str, object]:
    """Return in which kinds of work a straggler in GPU work takes longer, and how that lies; null for any other rank."""
    kinds: tuple[late_work.LongerKind, ...] = ()
    if late is not None and late.place == r and late.cause == Late.COMPUTE:
        kinds = late_work.kinds(ranks[r], [ranks[x] for x in late.peers if x != r])
    return {"late_work": late_work.rows_per_step(kinds) or None, "late_spread": late_work.spread(kinds)}


def _late_kernels(ranks: Sequence[Rank], late: straggler.Straggler | None, r: int) -> list[Mapping[str, Any]] | None:
    """Return in which kernels the work of a straggler differs from that of its peers; None for any other rank."""
    if late is None or late.place != r or late.cause != Late.COMPUTE:
        return None
    return uneven.rows(uneven.differences(ranks[r], [ranks[x] for x in late.peers if x != r])) or None


def _late_lines(ranks: Sequence[Rank], late: straggler.Straggler | None, r: int) -> list[Mapping[str, Any]] | None:
    """Return at which lines the host of a straggler is longer than those of its peers; None for any other rank."""
    if late is None or late.place != r or late.cause not in (Late.HOST, Late.CALLS, Late.INPUT, Late.UNKNOWN):
        return None
    return late_lines.rows_per_step(late_lines.longer(ranks[r], [ranks[x] for x in late.peers if x != r])) or None
