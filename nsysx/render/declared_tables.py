"""The tables of a Summary that was read from JSON, with the titles and columns that the JSON does not hold."""

from __future__ import annotations

from dataclasses import replace

from nsysx.model import Check, Summary
from nsysx.render import dictionary

_NO_TIMELINES = Check(
    "timelines", "missing", "this was read from a Summary (.json), which holds no timelines", "give the report for them"
)


def of_json(summary: Summary) -> Summary:
    """Return the Summary with each table as this nsysx declares it; one of another version keeps its key as its title.

    Columns that its rows do not have, because an older nsysx wrote them, are left out.
    """
    declared = dictionary.declarations()
    tables = dict(summary.tables)
    for key, table in summary.tables.items():
        if key in declared:
            title, columns, shown = declared[key]
            held = table.rows[0] if table.rows else None
            columns = tuple(c for c in columns if held is None or c.name in held)
            tables[key] = replace(table, title=title, columns=columns, shown=shown)
    return replace(summary, tables=tables)


def without_timelines(summary: Summary) -> Summary:
    """Return the Summary with a line in its quality that says why no timeline is drawn."""
    return replace(summary, quality=(*summary.quality, _NO_TIMELINES))
