"""How well the ranks of a job fit together, and what NCCL's own notes say about them."""

from __future__ import annotations

from collections.abc import Sequence

from nsysx.model import Check, Row
from nsysx.ranks.rank_bounds import CLOCKS_AGREE_NS, NAMED_RANKS
from nsysx.ranks.rank_record import Rank, number


def _messages_checks(ranks: Sequence[Rank]) -> list[Check]:
    """Return whether NCCL's own notes are there: communicators and bytes."""
    silent = [(number(ranks, i), r) for i, r in enumerate(ranks) if len(r.start_ns) and r.noted != "all"]
    if not any(len(r.start_ns) for r in ranks):
        return []
    if not silent:
        detail = "communicators and message sizes are noted by NCCL"
        used = {(i, x.communicator) for i, r in enumerate(ranks) for x in r.series if x.communicator}
        if all(c in ranks[i].members and ranks[i].members[c].size is not None for i, c in used):
            return [Check("nccl messages", "ok", detail)]
        fix = "for the bus bandwidth, capture the start or the end: NCCL notes the size of a communicator there"
        return [Check("nccl messages", "ok", f"{detail}, but not how many ranks every communicator has", fix)]
    whose = f"rank {_listed([n for n, _ in silent])}"
    if any(r.noted == "ranges" for _, r in silent):
        fix = "export with --include-json=true, as nsysx run does"
        detail = f"{whose}: the export lacks the payload of NCCL's ranges; collectives are matched by stream"
    else:
        fix = "capture with --trace=cuda,nvtx, as nsysx run does"
        detail = f"{whose}: no NVTX ranges of NCCL; collectives are matched by stream, their bytes are unknown"
    return [Check("nccl messages", "missing", detail, fix)]


def job_size(ranks: Sequence[Rank]) -> int:
    """Return the size of the largest communicator, 0 where NCCL noted none."""
    return max((m.size for r in ranks for m in r.members.values() if m.size is not None), default=0)


def _presence_checks(ranks: Sequence[Rank]) -> list[Check]:
    """Return checks on ranks that are missing and on ranks from several machines."""
    presence = []
    size = max(job_size(ranks), 1 + max((r.number for r in ranks if r.number is not None), default=-1))
    if size > len(ranks):
        missing = sorted(set(range(size)) - {r.number for r in ranks if r.number is not None})
        which = f"; missing: {_listed(missing)}" if len(missing) == size - len(ranks) else ""
        detail = f"{len(ranks)} of {size} ranks are here{which}. Time in which all of them wait for a missing one counts as transfer"
        presence.append(Check("rank count", "warn", detail, "give the reports of all ranks"))
    hosts = len({r.host for r in ranks if r.host is not None})
    if hosts > 1:
        presence.append(
            Check("rank hosts", "ok", f"the ranks ran on {hosts} machines; their clocks are aligned by collectives")
        )
    return presence


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:NAMED_RANKS])) + (
        f" and {len(numbers) - NAMED_RANKS} more" if len(numbers) > NAMED_RANKS else ""
    )


def checks(ranks: Sequence[Rank], rows: Sequence[Row]) -> list[Check]:
    """Return the checks on how well the ranks fit together."""
    if len(ranks) < 2:
        return []
    results = []
    without = [r["rank"] for r in rows if not r["collectives"]]
    if len(without) == len(rows):
        detail = "no collective is matched over ranks: transfer, waiting and the straggler are unknown"
        fix = "" if any(len(r.start_ns) for r in ranks) else "the steady steps hold no NCCL kernel"
        results.append(Check("collectives", "missing", detail, fix))
    elif without:
        results.append(Check("collectives", "warn", f"rank {_listed(without)} shares no collective with another rank"))
    else:
        results.append(Check("collectives", "ok", f"matched over {len(rows)} ranks"))
    results += _messages_checks(ranks) + _presence_checks(ranks)
    held = {len(r.start_ns) for r in ranks}
    if len(held) > 1:
        detail = (
            f"the ranks hold {min(held)} to {max(held)} collectives: captures of different length, or ranks that differ"
        )
        results.append(Check("rank lengths", "warn", detail, "capture the same steps on every rank: --steps A:B"))
    counts, alone = {r["steps"] for r in rows}, {r.steps for r in ranks}  # steps compared, and steps of each rank alone
    if len(counts) > 1:
        results.append(Check("rank steps", "warn", f"the ranks hold {min(counts)} to {max(counts)} steady steps"))
    elif counts != alone:
        detail = (
            f"compared over the {min(counts)} steps that are steady on all ranks; alone, ranks have up to {max(alone)}"
        )
        results.append(Check("rank steps", "ok", detail))
    far = max((abs(r["clock_correction_ns"] or 0) for r in rows), default=0)
    if any(r.utc_epoch_ns is None for r in ranks) and len({r.report for r in ranks}) > 1:
        results.append(
            Check("rank clocks", "warn", "a report does not say when its session began: it is aligned by collectives")
        )
    elif far > CLOCKS_AGREE_NS:
        detail = f"clocks of the ranks differ by up to {far / 1e6:.1f} ms (other hosts, or drift); they are aligned by collectives"
        results.append(Check("rank clocks", "warn", detail))
    return results
