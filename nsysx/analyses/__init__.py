"""One file, one question, one table: KEY, TITLE, COLUMNS, SHOWN and ``table(profile)``. Little else knows a table by name.

``table`` returns a frame with COLUMNS at least, or raises NotRecorded with what the capture lacks. Where that is told by less than the
table, a function ``require`` raises it: who only asks whether there is such a table gets the answer without it. The package is walked for
its files, and each is checked against :class:`Analysis` when it is loaded.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Protocol, cast

import polars as pl

from nsysx.events.profile import Profile
from nsysx.model import Column, TableSpec


class Analysis(Protocol):
    """What a file in this room defines. KEY is the file's name and the key in the JSON, COLUMNS the contract of its rows."""

    KEY: str
    TITLE: str
    COLUMNS: tuple[Column, ...]
    SHOWN: TableSpec

    def table(self, profile: Profile) -> pl.DataFrame:
        """Return the rows. Raises NotRecorded if the capture does not hold what they need."""


def problems(key: str, columns: tuple[Column, ...], shown: TableSpec) -> list[str]:
    """Return what is wrong with the declarations of a table: columns declared twice, or shown but not declared."""
    names = [c.name for c in columns]
    wrong = [
        f"{key}: column {n} is declared {names.count(n)} times" for n in dict.fromkeys(names) if names.count(n) > 1
    ]
    wrong += [f"{key}: {c.name} is no number, so no sum" for c in columns if c.sums and not c.dtype.startswith("Int")]
    asked = (*shown.first, *shown.hide, shown.bar, shown.keep, *shown.order, *shown.terms)
    return wrong + [f"{key}: SHOWN names {n}, which is not a column" for n in asked if n and n not in names]


@cache
def load() -> tuple[Analysis, ...]:
    """Return the analyses in the order of their tables. Raises TypeError for a file whose declarations are wrong."""
    tables: list[Analysis] = []
    for info in pkgutil.iter_modules(__path__):
        if info.ispkg:
            continue
        module = importlib.import_module(f"{__name__}.{info.name}")
        wanted = {"KEY": str, "TITLE": str, "COLUMNS": tuple, "SHOWN": TableSpec}
        wrong = [n for n, kind in wanted.items() if not isinstance(getattr(module, n, None), kind)]
        wrong += [] if callable(getattr(module, "table", None)) else ["table"]
        if wrong or info.name != module.KEY:
            raise TypeError(f"{info.name}: not an analysis, see nsysx.analyses.Analysis: {', '.join(wrong) or 'KEY'}")
        if faults := problems(module.KEY, module.COLUMNS, module.SHOWN):
            raise TypeError("; ".join(faults))
        tables.append(cast(Analysis, module))
    return tuple(sorted(tables, key=lambda m: (m.SHOWN.place, m.KEY)))
