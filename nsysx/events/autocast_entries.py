"""Where a program enters autocast or switches it off, as its probe noted it, and the regions of an X-ray step that are made so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nsysx.events.code_lines import CodeLines
from nsysx.events.line_regions import Region, region_of, region_of_function
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, file_and_line
from nsysx.model import Row


class AutocastEntry(NamedTuple):
    """A place that enters autocast; ``on``: not to switch it off.

    ``line``: of the program's own code that is at work then. ``around``: of the ``with`` that calls it, where ``line`` lies in a context
    manager of the program. ``decorator``: where the function (``file``, ``function``) is decorated. Empty where there is none. ``casts``:
    by ``custom_fwd``, which gives it other inputs, too; ``restores``: by ``custom_bwd``, for which autocast is as it was in forward.
    """

    on: bool
    line: Row
    around: Row
    file: str
    function: str
    decorator: Row
    casts: bool
    restores: bool


def entries_of(settings: RecordedSettings) -> list[AutocastEntry]:
    """Return the places of the step that was watched, none where they were not noted; those of the CPU's autocast are left out."""
    noted = settings.autocast("entries")
    rows = [row for row in noted if isinstance(row, dict)] if isinstance(noted, list) else []
    return [
        AutocastEntry(
            row.get("on") is True,
            file_and_line(row.get("line")),
            file_and_line(row.get("around")),
            str(row.get("file") or ""),
            str(row.get("function") or ""),
            file_and_line(row.get("decorator")),
            row.get("kind") == "decorate_fwd",
            row.get("kind") == "decorate_bwd",
        )
        for row in rows
        if not str(row.get("type")).startswith("cpu:")
    ]


def regions_of_entries(
    profile: Profile, code: CodeLines, flow: OperatorFlow, entries: list[AutocastEntry]
) -> Iterator[tuple[AutocastEntry, Region]]:
    """Yield what runs in the step of the flow within each of some places, where that is seen."""
    rows = {(file, line): row for row, (file, line, _) in enumerate(code.places.iter_rows()) if file is not None}
    for entry in entries:
        if entry.function:
            region = region_of_function(
                profile, code, flow, (entry.file, entry.function), entry.decorator or entry.line
            )
        else:
            where = entry.around or entry.line
            row = rows.get((where.get("file"), where.get("line")))
            region = None if row is None else region_of(profile, code, flow, row)
        if region is not None:
            yield entry, region
