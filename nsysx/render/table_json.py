"""Rows of one table as at most 2.5 kB of JSON: ``nsysx.table/1``. Sums over steps are given per step, and their names say so."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nsysx.analyses.helpers import step_record
from nsysx.answer import bars, subject
from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.model import Column, Row, Summary, Table
from nsysx.render import finding_ids
from nsysx.render.grids import scope_of_value, weight
from nsysx.render.render_bounds import MOST_JSON_BYTES, TABLE_COLUMNS, TABLE_TEXT
from nsysx.render.safe_text import clean, without_homes
from nsysx.render.small_json import Json, size_of, text_of

TABLE_SCHEMA = "nsysx.table/1"

#: What ends the name of a column whose values are sums over steps, divided by them.
PER_STEP = "_per_step"

_FINDINGS = (
    Column("id", "String", "", "names the finding: nsysx report --insight ID"),
    Column("verdict", "String", "", "found, clear or cannot_tell"),
    Column("what", "String", "", "what was found"),
    Column("saving_ns", "Int64", "ns", "what its change saves of a step; null where no claim can be made"),
    Column("cost_ns", "Int64", "ns", "what it costs a step"),
    Column("bound", "Boolean", "", "saving_ns is the most that it can save"),
    Column("module", "String", "", "its module"),
    Column("file", "String", "", "its file"),
    Column("line", "Int64", "", "its line"),
)

_PARTS = (
    Column("what", "String", "", "what the busiest GPU does, or why it idles"),
    Column("ns", "Int64", "ns", "its time in one step, in the whole capture without steps; the rows sum to it"),
    Column("idle", "Boolean", "", "the GPU idles meanwhile"),
)

_CONDITION = re.compile(r"\s*(\w+)\s*(>=|<=|!=|=|~|>|<)(.*)", re.DOTALL)
_TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "~": lambda a, b: str(b).casefold() in str(a).casefold(),
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
}


def names(summary: Summary) -> list[str]:
    """Return the names of all tables."""
    return ["findings", "parts", "steps", *(key for key, table in summary.tables.items() if not table.shown.unseen)]


def rows_json(
    summary: Summary, name: str, *, columns: Sequence[str] = (), top: int = 10, where: Sequence[str] = (),
    redact: bool = True,
) -> str:  # fmt: skip
    """Return the first ``top`` rows of a table as JSON, largest first as the page has them.

    ``columns`` are names, by default the most important ones; ``where`` are conditions such as ``module=loss``, ``name~gemm`` (is
    part of it) or ``total_ns>1e6``, all of which a row meets. Values of columns that end with ``_per_step`` are those of one step;
    a condition takes the same values. ``left_out`` counts rows that did not fit, and ``narrow`` says how to get them. ``rows`` is
    null with a ``reason`` where the report does not hold the table. Raises NsysxError, exit code 2, for names that do not exist.
    """
    table = _table(summary, name)
    head: Json = {"schema": TABLE_SCHEMA, "table": table.key, "over": table.scope.label if table.scope else ""}
    if table.rows is None:
        return text_of({**head, "rows": None, "reason": clean(table.reason, 300)})
    shown = _columns(table, columns)
    tests = [_condition(text, table) for text in where]
    rows = [row for row in _sorted(table) if all(test(row) for test in tests)]
    made = [{_name(c, table): _value(row, c, table) for c in shown} for row in rows[: max(top, 0)]]
    made = without_homes(made) if redact else made
    head |= {"rows_in_all": len(rows)}
    return _fitting(head, made, len(rows), [c.name for c in table.columns if c not in shown])


def _fitting(head: Json, rows: list[Json], count: int, other_columns: Sequence[str]) -> str:
    """Return as many rows as fit, and how to get the others."""
    for most in range(len(rows), -1, -1):
        content = {**head, "rows": rows[:most]}
        if most < count:
            content["left_out"] = count - most
        if most < len(rows):
            content["narrow"] = "name fewer columns, a smaller top, or a condition; report --csv DIR writes every row"
        if other_columns:
            content["other_columns"] = " ".join(other_columns)[:400]
        text = text_of(content)
        if size_of(text) <= MOST_JSON_BYTES:
            return text
    return text_of({**head, "rows": [], "left_out": count, "narrow": "a row is too long: name fewer columns"})


def _table(summary: Summary, name: str) -> Table:
    if name == "findings":
        return Table("findings", "Findings", _FINDINGS, tuple(_findings(summary)), scope=summary.steps.scope)
    if name == "parts":
        if subject.ledger_row(summary) is None or not summary.verdict.step_ns:
            return Table("parts", "Where the step goes", _PARTS, None, "no GPU work is in the report")
        rows = [{"what": p.label, "ns": round(p.ns), "idle": p.idle} for p in bars.step_parts(summary)]
        return Table("parts", "Where the step goes", _PARTS, tuple(rows), scope=summary.verdict.scope)
    if name == "steps":
        return Table("steps", "Steps", step_record.STEPS, tuple(step_record.rows_of(summary.steps)))
    table = summary.tables.get(name)
    if table is not None:
        return table
    raise _unknown("table", name, names(summary))


def _unknown(what: str, name: str, there: Sequence[str]) -> NsysxError:
    near = difflib.get_close_matches(name, there, 1)
    hint = (f"Did you mean {near[0]}? " if near else "") + f"There are: {', '.join(there)}"
    return NsysxError(f"{clean(name, 60)}: no such {what}", slug=f"no-{what}", hint=hint, exit_code=EXIT_USAGE)


def _findings(summary: Summary) -> list[Row]:
    rows = []
    for name, finding in zip(finding_ids.ids_of(summary), summary.findings or (), strict=True):
        saving = finding_ids.saving_of(summary, finding) or {}
        where = finding_ids.place_of(summary, finding.where)
        rows.append({
            "id": name, "verdict": finding.verdict, "what": finding.title, "saving_ns": saving.get("likely_ns"),
            "cost_ns": finding.cost_ns_per_step, "bound": saving.get("bound"), "module": where.get("module"),
            "file": where.get("file"), "line": where.get("line"),
        })  # fmt: skip
    return [row for verdict in ("found", "cannot_tell", "clear") for row in rows if row["verdict"] == verdict]


def _sorted(table: Table) -> list[Row]:
    rows, bar = list(table.rows or ()), table.shown.bar or table.shown.keep
    if table.shown.order:
        rows.sort(key=lambda r: -weight(r, table.shown))
    elif bar and any(c.name == bar for c in table.columns):
        rows.sort(key=lambda r: -(r.get(bar) or 0))
    return rows


def _columns(table: Table, wanted: Sequence[str]) -> list[Column]:
    """Return the columns that are asked for, else the most important ones that hold anything, with the line beside its file."""
    by_name = {c.name: c for c in table.columns}
    if wanted:
        for name in wanted:
            if name.removesuffix(PER_STEP) not in by_name:
                raise _unknown("column", name, list(by_name))
        return [by_name[name.removesuffix(PER_STEP)] for name in dict.fromkeys(wanted)]
    order = [*table.shown.first, *(name for name in by_name if name not in table.shown.first)]
    if "file" in order and "line" in by_name:
        order = [name for name in order if name != "line"]
        order.insert(order.index("file") + 1, "line")
    holds = [name for name in order if any(row.get(name) not in (None, "") for row in table.rows or ())]
    return [by_name[name] for name in holds if name in by_name][: TABLE_COLUMNS if table.key != "findings" else None]


def _divided(column: Column, table: Table) -> bool:
    """Return whether the values of a column are sums over steps, and are shown per step."""
    scope = table.scope
    return column.sums == "row" or (
        column.sums == "scope" and scope is not None and bool(scope.steps) and len(scope.processes) < 2
    )


def _name(column: Column, table: Table) -> str:
    return f"{column.name}{PER_STEP}" if _divided(column, table) else column.name


def _value(row: Row, column: Column, table: Table) -> Any:
    value = row.get(column.name)
    scope = scope_of_value(row, column, table) if _divided(column, table) else None
    if scope is not None and isinstance(value, int | float) and not isinstance(value, bool):
        per_step = scope.per_step(value)
        return round(per_step) if column.unit == "ns" else finding_ids.shown_value(per_step)
    value = finding_ids.shown_value(value)
    return clean(value, TABLE_TEXT) if isinstance(value, str) else value


def _condition(text: str, table: Table) -> Callable[[Row], bool]:
    """Return a test of a row from ``column=value``. Raises NsysxError, exit code 2, for one that is none."""
    parts = _CONDITION.fullmatch(text)
    if parts is None:
        hint = "Write column=value, column~part, column>number or column<number"
        raise NsysxError(f"{clean(text, 80)}: not a condition", slug="where", hint=hint, exit_code=EXIT_USAGE)
    name, sign, wanted = parts[1].removesuffix(PER_STEP), parts[2], parts[3].strip().strip("'\"")
    column = next((c for c in table.columns if c.name == name), None)
    if column is None:
        raise _unknown("column", name, [c.name for c in table.columns])
    number = column.dtype.startswith(("Int", "UInt", "Float"))
    value: Any = wanted
    if column.dtype == "Boolean":
        value = wanted.casefold() in ("true", "yes", "1")
    elif number and sign != "~":
        try:
            value = float(wanted)
        except ValueError:
            hint = f"{name} holds numbers{f' ({column.unit})' if column.unit else ''}"
            raise NsysxError(
                f"{clean(wanted, 60)}: not a number", slug="where", hint=hint, exit_code=EXIT_USAGE
            ) from None
    elif sign not in ("=", "!=", "~"):
        hint = f"{name} holds texts: compare with =, != or ~"
        raise NsysxError(f"{clean(text, 80)}: not a condition", slug="where", hint=hint, exit_code=EXIT_USAGE)

    def test(row: Row) -> bool:
        held = row.get(column.name)
        if held is None:
            return wanted.casefold() in ("", "null") and sign == "="
        held = _value(row, column, table) if number else held
        return _TESTS[sign](held if number or column.dtype == "Boolean" else str(held), value)

    return test
