"""Where a program without a sampler gives each rank its share of the data: the line that cuts it by the rank's number, else the one from
which its batch comes.
"""

from __future__ import annotations

import re
from dataclasses import replace

from nsysx.analyses.lines import text_of, texts
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix
from nsysx.findings._flow_work import in_short, place_of_batch
from nsysx.model import Finding, Row

_RANK = r"(?<!\w)(?:\w+\.)*\w*rank\b(?:\(\))?"
#: What takes a share: a slice, a part of what was cut into parts, a stretch of numbers.
_TAKES_SHARE = re.compile(
    rf"\[[^\[\]]*{_RANK}[^\[\]]*:|\[[^\[\]]*:[^\[\]]*{_RANK}|"
    rf"\b(?:chunk|split|tensor_split|array_split)\([^()]*\)\s*\[[^\[\]]*{_RANK}|"
    rf"\b(?:range|arange|islice|narrow)\([^=]*{_RANK}"
)
_EQUAL = "equal-work"


def without_sampler(case: Case, finding: Finding) -> Finding:
    """Return advice to give every rank equal work in words for a program that shares its data itself; other advice as it is.

    That no loader is there is known by its settings.
    """
    settings = settings_of(case.profile)
    if [way.name for way in finding.remedies] != [_EQUAL] or settings is None or settings.record.get("loaders") != []:
        return finding
    share = _share_line(case)
    line = share or place_of_batch(case.profile)
    not_noted = "" if share else " The line at which a rank takes its share is not among those that the X-ray noted"
    not_noted += f": its batch comes from {in_short(line)}." if not_noted and line else "." if not_noted else ""
    where = {**finding.where, **line} if line and not finding.where.get("file") else finding.where
    told = replace(
        finding,
        where=where,
        detail=f"{finding.detail} The program has no loader, so no sampler shares its data.{not_noted}",
    )
    return Fix.by_name("mixed-shares").into(told)


def _share_line(case: Case) -> Row:
    """Return the first line of the steps that takes a share by the rank; empty where none is seen."""
    code = case.profile.code()
    if code is None:
        return {}
    source = texts(case.profile)
    for file, line, _ in code.places.iter_rows():
        if _TAKES_SHARE.search((text_of(source, file, line) or "").partition("  #")[0]):
            return {"file": file, "line": line}
    return {}
