"""The picture of the lines that the GPU waits for: the table by phase, module, line and framework function."""

from __future__ import annotations

from nsysx import units
from nsysx.model import Row, Summary
from nsysx.render import charts
from nsysx.render.charts import Part, Picture
from nsysx.render.safe_text import clean, file_name

#: The rows of boxes from top to bottom, and the name of a box where the table has none.
_LEVELS = {"phase": "outside phases", "module": "outside modules", "line": "?", "framework": ""}


def _place(row: Row) -> str:
    """Return a line of code without its folders; a row without a line by its own name."""
    if not row["file"]:
        return str(row["function"])
    line = "" if row["line"] is None else f":{row['line']}"
    return f"{file_name(str(row['file'])[:2000], True).rpartition('/')[2]}{line} {row['function']}"


def build(summary: Summary) -> tuple[Picture, str] | None:
    """Return the picture and its text, None where fewer than two rows have idle time."""
    table = summary.tables.get("host_lines")
    rows = [r for r in (table.rows if table else None) or () if r["idle_ns"]]
    if table is None or len(rows) < 2:
        return None
    per_step = table.scope.per_step if table.scope else float
    # A level that no row names is left out.
    used = [name for name in _LEVELS if name == "line" or any(r[name] for r in rows)]
    parts = []
    for row in rows:
        named = {**row, "line": _place(row)}
        names = [clean(str(named[level] or _LEVELS[level]), 200) for level in used]
        parts.append(Part(tuple(n for n in names if n), per_step(row["idle_ns"]), unknown=not row["samples"]))
    whole, sampled = sum(p.ns for p in parts), sum(p.ns for p in parts if not p.unknown)
    most = max(parts, key=lambda p: p.ns)
    step = " per step" if table.scope and table.scope.steps else ""
    text = (
        f"{units.duration(whole)} of GPU idle time in host code{step}, {units.share(sampled, whole)} of it sampled. "
        f"Most is in {most.names[-1]}: {units.duration(most.ns)}."
    )
    return charts.icicle(parts, used), text
