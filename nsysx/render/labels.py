"""Words for columns, ledger parts, causes and verdicts, and numbers with their units: the same in every output."""

from __future__ import annotations

import math
import re
from typing import Any

from nsysx import units
from nsysx.catalogue import FAMILIES, Cause, StepLimit
from nsysx.model import Column
from nsysx.render.render_bounds import SPREAD_LEAST, SPREAD_TIMES
from nsysx.render.safe_text import clean

VERDICTS = {limit.value: limit.label for limit in StepLimit}

CAUSES = {cause.value: (cause.color, cause.label) for cause in Cause}

#: An identifier such as "queue_full", and phrases in a column's meaning that only readers of the code understand.
_CODE = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+")
_FOR_CODE = re.compile(r"[;,] null likewise|[;,] see [a-z]+_from\b")
_UNIT_SUFFIX = re.compile(r"_(?:ns|bytes|bytes_per_s|per_s)$")
#: Columns that are shares whatever their unit says.
_SHARES = ("share", "error", "spread", "occupancy")
_TEXT_TYPES = ("String", "Utf8", "Categorical", "Enum", "Boolean", "List", "Struct", "Object")


def label(name: str) -> str:
    """Return a name for people, without its unit, which every cell has."""
    text = _UNIT_SUFFIX.sub("", name).replace("_", " ")
    for word, full in (("gpu", "GPU"), ("cpu", "CPU"), ("api", "API"), ("l2", "L2")):
        text = re.sub(rf"\b{word}\b", full, text)
    return clean(text, 40)


def label_of(column: Column) -> str:
    """Return the head of a column: the words that it declares, else its name's."""
    return clean(column.label, 40) or label(column.name)


def worded(value: str, column: Column) -> str:
    """Return the text of a cell: codes become words ("queue full"), names from the program stay as they are."""
    if column.name == "family":
        return FAMILIES.get(value, value)
    return _spaced(value) if column.codes and _CODE.fullmatch(value) else value


def _spaced(identifier: str) -> str:
    """Return an identifier as words: "queue full", "cold L2"."""
    return re.sub(r"\bl2\b", "L2", identifier.replace("_", " "))


def plain(meaning: str, null: str = "a dash") -> str:
    """Return a column's meaning for a reader who sees labels, and ``null`` for null."""
    text = _CODE.sub(lambda m: _spaced(_UNIT_SUFFIX.sub("", m[0])), _FOR_CODE.sub("", meaning))
    return re.sub(r"\bnull\b", lambda _: null, text.replace(", 0 to 1", "")).replace(", ...", " and so on")


def is_numeric(column: Column) -> bool:
    """Return whether a column holds numbers to add, compare and right-align."""
    return not column.dtype.startswith(_TEXT_TYPES)


def number(value: Any, name: str, unit: str) -> str:
    """Return one number of a column with its unit; "-" for None and for what is not a number."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if unit == "ns" or name == "ns" or name.endswith("_ns"):
        return units.duration(value)
    if unit in ("bytes/s", "B/s", "bytes_per_s") or name.endswith("_per_s"):
        return units.bandwidth(value)
    if unit in ("bytes", "B") or name.endswith("_bytes") or name == "bytes":
        return units.size(value)
    if name == "spread" and value >= SPREAD_TIMES:
        return f"{value:,.0f} x"
    if unit in ("share", "fraction", "ratio", "1") or name in _SHARES or name.endswith("_share"):
        return units.share(value, 1)
    if unit in ("%", "percent"):
        return units.share(value, 100)
    if float(value).is_integer():
        text = units.count(value)
    elif 0 < value < SPREAD_LEAST:
        text = f"<{SPREAD_LEAST}"
    else:
        text = f"{value:,.2g}" if abs(value) < 1 else f"{value:,.1f}"
    return f"{text} {clean(unit, 20)}" if unit and unit not in ("count", "calls", "rows") else text
