"""Rows that one line picks from a table on the host and another line of the function copies to the GPU (see ``_picked_tables``)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nsysx import units
from nsysx.analyses import lines
from nsysx.analyses.lines import CodeLineRow
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix, way
from nsysx.findings._handed_tables import is_written
from nsysx.findings._sharded_models import spare_bytes

#: What is said about such a line.
REMEDY = "table-on-gpu"
#: The bytes that a number of a table can take.
_SIZES_OF_NUMBERS = (1, 2, 4, 8)
_NAME, _NUMBERS = r"(?:self\.)?[A-Za-z_][\w.]*", r"(?P<by>[A-Za-z_][\w.]*)(?P<read>\.cpu\(\))?"
#: torch.index_select(x, 0, ids.cpu(), out=rows), rows = x[ids], rows = x.index_select(0, ids)
_PICKS = (
    re.compile(rf"\bindex_select\((?P<table>{_NAME}),\s*(?:dim=)?0,\s*{_NUMBERS},\s*out=(?P<rows>[A-Za-z_]\w*)\)"),
    re.compile(
        rf"^(?P<rows>[A-Za-z_]\w*)\s*=\s*(?:torch\.index_select\((?P<table>{_NAME}),\s*(?:dim=)?0,\s*{_NUMBERS}\))$"
    ),
    re.compile(rf"^(?P<rows>[A-Za-z_]\w*)\s*=\s*(?P<table>{_NAME})(?:\[|\.index_select\(0,\s*){_NUMBERS}[\])]$"),
)
_COPIES = r"(?<![\w.]){}\.(?:pin_memory\(\)\.)?(?:to\(\s*(?P<device>[^,()]+)[^()]*\)|cuda\([^()]*\))"


class Pick(NamedTuple):
    """A pick on the host, of a place: numbers of the table, its rows, and those that are picked."""

    file: str
    line: int
    table: int
    rows: int
    picked: int


def whole_bytes(pick: Pick, bytes_of_number: float) -> int:
    """Return the bytes of a table whose numbers take about so many."""
    return pick.table * min(_SIZES_OF_NUMBERS, key=lambda size: abs(math.log(bytes_of_number / size)))


def picked_in_two_lines(case: Case, file: str, line: int, picks: Sequence[Pick]) -> Fix | None:
    """Return the advice to keep a table on the GPU for the line that picks of it, or that copies what was picked; None for others."""
    rows = [each for each in case.typed_rows(lines.ROWS) if each["file"] == file]
    functions = {each["function"] for each in rows if each["line"] == line}
    source = lines.texts(case.profile)
    for pick in sorted(picks, key=lambda each: -each.table):
        picking = [each for each in rows if each["line"] == pick.line and each["function"] in functions]
        text = (lines.text_of(source, file, pick.line) or "").partition("  #")[0]
        asked = next((made for each in _PICKS if (made := each.search(text))), None)
        if (
            pick.file != file
            or not picking
            or asked is None
            or pick.picked > pick.rows
            or is_written(source, asked["table"])
        ):
            continue
        copying = [each for each in rows if each["function"] in functions and (each["line"] or 0) > pick.line]
        for each in sorted(copying, key=lambda row: row["line"] or 0):
            copied = re.search(_COPIES.format(asked["rows"]), str(each["text"] or ""))
            if copied is not None:
                moved = sum(other.picked * other.table / other.rows for other in picks if other[:2] == pick[:2])
                bytes_of_number = each["copy_bytes"] / case.steps / moved if moved else 0.0
                told = line in (pick.line, each["line"]) and bytes_of_number > 0
                return _fix(case, pick, asked, copied, each, bytes_of_number) if told else None
    return None


def _fix(
    case: Case, pick: Pick, asked: re.Match[str], copied: re.Match[str], copy: CodeLineRow, bytes_of_number: float
) -> Fix | None:
    settings, whole = settings_of(case.profile), whole_bytes(pick, bytes_of_number)
    if settings is None or spare_bytes(settings, whole) is None:
        return None
    table, device = asked["table"], (copied["device"] or "'cuda'").strip()
    given = (
        _handed_over(lines.texts(case.profile).get(pick.file, {}), str(copy["function"])) if "." not in table else []
    )
    kept = "\n".join(f"{each} = {each}.to({device})  # once, where it is made" for each in given or [table])
    by = asked["by"] if asked["read"] else f"{asked['by']}.to({device}, non_blocking=True)"
    text = str(copy["text"] or "").partition("  #")[0].strip().replace(copied[0], f"{table}[{by}]")
    return Fix.by_name(
        way(
            REMEDY,
            f"Keep {' and '.join(given) or table} on the GPU ({units.size(whole)} fit), and pick there: the CPU gathers "
            f"{units.count(pick.picked)} of {units.count(pick.rows)} rows in each step, and they are copied",
            f"{kept}\n{text}  # in place of the lines that pick and copy",
            "The table must stay as it is; each rank keeps one of its own.",
        )
    )


def _handed_over(texts: Mapping[str, str], function: str) -> list[str]:
    """Return what lines hand to a function first, as far as these are attributes: the tables that a helper is given."""
    called = re.compile(rf"\b{re.escape(function.rpartition('.')[2])}\(\s*(self\.[\w.]+)")
    return list(dict.fromkeys(each for text in texts.values() for each in called.findall(text)))
