"""One table as CSV (RFC 4180, UTF-8): exact numbers under the names of the JSON, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from collections.abc import Mapping
from typing import Any

from nsysx.model import Table
from nsysx.render.render_bounds import LONGEST_CELL
from nsysx.render.safe_text import clean

#: What makes a spreadsheet take a text for a formula; the full-width forms do in Chinese and Japanese locales.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\t", "\r", "\n")


def _text(value: str) -> str:
    """Return the text so that no spreadsheet runs it and no terminal obeys it."""
    # Spreadsheets skip white space of all kinds, and characters without width.
    begin = next((i for i, c in enumerate(value) if not (c.isspace() or unicodedata.category(c) == "Cf")), len(value))
    formula = value.startswith(("\t", "\r", "\n")) or value[begin : begin + 1] in _FORMULA
    return ("'" if formula else "") + clean(value, LONGEST_CELL)


def _cell(value: Any) -> Any:
    """Return one value: numbers as they are, an empty text for null, nested values as JSON."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return value
    if isinstance(value, Mapping | list | tuple):
        return _text(json.dumps(value, default=str, ensure_ascii=False))
    return _text(str(value))


def render(table: Table) -> str:
    """Return ``table`` with its column names in the first line. A table that was not recorded has only that line."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([c.name for c in table.columns])
    writer.writerows([_cell(row.get(c.name)) for c in table.columns] for row in table.rows or ())
    return out.getvalue()
