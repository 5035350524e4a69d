"""Whether several reports are ranks of one job. Two runs are not two ranks: comparing them as ranks would be nonsense."""

from __future__ import annotations

from collections.abc import Sequence

from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.ranks.collect import Rank

_HINT = "Reports given together are ranks of one job; to compare two runs: nsysx compare BEFORE AFTER"


def _by_report(ranks: Sequence[Rank]) -> list[list[Rank]]:
    by_report: dict[int, list[Rank]] = {}
    for r in ranks:
        by_report.setdefault(r.report, []).append(r)
    return list(by_report.values())


def _span(report: Sequence[Rank]) -> tuple[int, int] | None:
    """Return when a report's session ran (UTC ns), None if it does not say."""
    first = report[0]
    return (
        None if first.utc_epoch_ns is None else (first.utc_epoch_ns + first.span[0], first.utc_epoch_ns + first.span[1])
    )


def _joined(a: Sequence[Rank], b: Sequence[Rank]) -> bool:
    """Return whether NCCL names the same communicator in both: then they are one job, whatever their clocks say."""
    return bool({c for r in a for c in r.members} & {c for r in b for c in r.members})


def _apart(a: Sequence[Rank], b: Sequence[Rank]) -> bool:
    """Return whether two sessions cannot be one job, because one began after the other was over."""
    first, other = _span(a), _span(b)
    if first is None or other is None or _joined(a, b):
        return False
    if None not in (a[0].host, b[0].host) and a[0].host != b[0].host:
        return False  # clocks of two machines may be wrong by anything
    return max(first[0], other[0]) >= min(first[1], other[1])


def _refuse(message: str, slug: str) -> NsysxError:
    return NsysxError(message, slug=slug, hint=_HINT, exit_code=EXIT_USAGE)


def require(ranks: Sequence[Rank], files: Sequence[str] = ()) -> None:
    """Raise NsysxError, exit code 2, unless the reports of these ranks, in these ``files``, can be one job.

    Reports without GPU work hold no rank: if none of several has any, nothing shows that they are one job.
    """
    if len(files) > 1 and not ranks:
        raise _refuse(f"{files[0]} and {files[1]} hold no GPU work: nothing shows that they are one job", "not-one-job")
    reports = _by_report(ranks)
    for i, a in enumerate(reports):
        for b in reports[i + 1 :]:
            names = f"{a[0].file} and {b[0].file}"
            if a[0].content_id and a[0].content_id == b[0].content_id:
                raise _refuse(f"{names} hold the same capture", "same-report")
            if _apart(a, b):
                raise _refuse(f"{names} are not one job: one session ended before the other began", "not-one-job")
            if None not in (a[0].command, b[0].command) and a[0].command != b[0].command:
                raise _refuse(f"{names} are not one job: their commands differ", "not-one-job")
            if len(gpus := sorted({r.gpu for r in (*a, *b)})) > 1 and not _joined(a, b):
                raise _refuse(f"{names} are not one job: {' and '.join(gpus[:2])}", "not-one-job")
            twice = {r.number for r in a if r.number is not None} & {r.number for r in b}
            if twice:
                raise _refuse(f"{names} both hold rank {min(n for n in twice if n is not None)}", "same-rank")
            worlds = [max((m.size or 0 for r in x for m in r.members.values()), default=0) for x in (a, b)]
            if all(worlds) and worlds[0] != worlds[1]:
                raise _refuse(f"{names} are not one job: {worlds[0]} and {worlds[1]} ranks", "not-one-job")
