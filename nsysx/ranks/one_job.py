"""Whether several reports are ranks of one job. Two runs are not two ranks: comparing them as ranks would be nonsense."""

from __future__ import annotations

from collections.abc import Sequence

from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.ranks.rank_bounds import MOST_FOREIGN_REPORTS
from nsysx.ranks.rank_record import Rank

_NOT_ONE = "not-one-job"
_HINT = "Reports given together are ranks of one job; to compare two runs: nsysx compare BEFORE AFTER"


def _span(report: Sequence[Rank]) -> tuple[int, int] | None:
    """Return when a report's session ran (UTC ns), None if it does not say."""
    first = report[0]
    return (
        None if first.utc_epoch_ns is None else (first.utc_epoch_ns + first.span[0], first.utc_epoch_ns + first.span[1])
    )


def _joined(a: Sequence[Rank], b: Sequence[Rank]) -> bool:
    """Return whether NCCL names the same communicator in both: then they are one job, whatever their clocks say."""
    return bool({c for r in a for c in r.members} & {c for r in b for c in r.members})


def _began_after_other(a: Sequence[Rank], b: Sequence[Rank]) -> bool:
    """Return whether two sessions cannot be one job, because one began after the other was over."""
    first, other = _span(a), _span(b)
    if first is None or other is None:
        return False
    if None not in (a[0].host, b[0].host) and a[0].host != b[0].host:
        return False  # clocks of two machines may be wrong by anything
    return max(first[0], other[0]) >= min(first[1], other[1]) and not _joined(a, b)


def _refuse(message: str, slug: str) -> NsysxError:
    return NsysxError(message, slug=slug, hint=_HINT, exit_code=EXIT_USAGE)


def _problem(a: Sequence[Rank], b: Sequence[Rank]) -> tuple[str, str] | None:
    """Return why two reports cannot be two ranks of one job, as the end of a sentence, and the slug of the error."""
    if a[0].content_id and a[0].content_id == b[0].content_id:
        return "hold the same capture", "same-report"
    if _began_after_other(a, b):
        return "one session ended before the other began", _NOT_ONE
    if None not in (a[0].command, b[0].command) and a[0].command != b[0].command:
        return "their commands differ", _NOT_ONE
    if len(gpus := sorted({r.gpu for r in (*a, *b)})) > 1 and not _joined(a, b):
        return " and ".join(gpus[:2]), _NOT_ONE
    twice = {r.number for r in a if r.number is not None} & {r.number for r in b}
    if twice:
        return f"both hold rank {min(n for n in twice if n is not None)}", "same-rank"
    worlds = [max((m.size or 0 for r in x for m in r.members.values()), default=0) for x in (a, b)]
    return (f"{worlds[0]} and {worlds[1]} ranks", _NOT_ONE) if all(worlds) and worlds[0] != worlds[1] else None


def _surely_one(reports: Sequence[Sequence[Rank]]) -> bool:
    """Return whether no two reports can have a `_problem`, without a look at each pair: the usual case, also of many ranks.

    All are in one communicator, so that neither clocks nor GPUs tell them apart.
    """
    if not reports:
        return True
    everywhere = set[str].intersection(*({c for r in x for c in r.members} for x in reports))
    contents = [x[0].content_id for x in reports if x[0].content_id]
    commands = {x[0].command for x in reports} - {None}
    numbers = [n for x in reports for n in {r.number for r in x} - {None}]
    worlds = {max((m.size or 0 for r in x for m in r.members.values()), default=0) for x in reports} - {0}
    alike = len(commands) <= 1 and len(worlds) <= 1
    return bool(everywhere) and alike and all(len(set(x)) == len(x) for x in (contents, numbers))


def require(ranks: Sequence[Rank], files: Sequence[str] = ()) -> None:
    """Raise NsysxError, exit code 2, unless the reports of these ranks can be one job; those that fit to few others are named.

    Reports without GPU work hold no rank: if none of several ``files`` has any, nothing shows that they are one job.
    """
    if len(files) > 1 and not ranks:
        raise _refuse(f"{files[0]} and {files[1]} hold no GPU work: nothing shows that they are one job", _NOT_ONE)
    by_report: dict[int, list[Rank]] = {}
    for rank in ranks:
        by_report.setdefault(rank.report, []).append(rank)
    reports = list(by_report.values())
    if _surely_one(reports):
        return
    problems = {
        (i, j): problem
        for i, a in enumerate(reports)
        for j, b in enumerate(reports[:i])
        if (problem := _problem(b, a)) is not None
    }
    if not problems:
        return
    names = [report[0].file for report in reports]
    foreign = []
    for i in range(len(reports)):
        reasons = [why for pair, (why, slug) in problems.items() if i in pair and slug == _NOT_ONE]
        if 2 * len(reasons) > len(reports) - 1:
            foreign.append((names[i], reasons[0]))
    if foreign and 2 * len(foreign) < len(reports):
        each = "; ".join(f"{name} ({why})" for name, why in foreign[:MOST_FOREIGN_REPORTS])
        more = f" and {len(foreign) - MOST_FOREIGN_REPORTS} more" if len(foreign) > MOST_FOREIGN_REPORTS else ""
        raise _refuse(f"not of one job with the other {len(reports) - len(foreign)} reports: {each}{more}", _NOT_ONE)
    (j, i), (why, slug) = min(problems.items(), key=lambda item: (item[0][1], item[0][0]))
    between = " are not one job: " if slug == _NOT_ONE else " "
    raise _refuse(f"{names[i]} and {names[j]}{between}{why}", slug)
