"""Pictures of a report by matplotlib, one family per file.

A file here with TABLE, the key of a table, and ``chart(summary, ax)`` draws what the page shows with that table, or None where there is
nothing to draw. The package is walked for such files, so that a new picture of a table is one file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

from nsysx.model import Summary
from nsysx.render.charts.canvas import Chart as Chart
from nsysx.render.charts.ledger_bars import ledger as ledger
from nsysx.render.charts.step_bars import steps as steps
from nsysx.render.charts.timelines import timeline as timeline
from nsysx.render.safe_text import without_homes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class TablePicture(Protocol):
    """What a file that draws a table defines."""

    TABLE: str

    def chart(self, summary: Summary, ax: Axes | None = None) -> Chart | None:
        """Return the picture of the table, drawn on ``ax`` if it is given, None where there is nothing to draw."""


@cache
def of_tables() -> tuple[TablePicture, ...]:
    """Return the files that draw a table. Raises TypeError for one with TABLE and without ``chart``."""
    pictures = []
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if not hasattr(module, "TABLE"):
            continue
        if not callable(getattr(module, "chart", None)):
            raise TypeError(f"{info.name}: TABLE without chart(summary, ax), see {__name__}.TablePicture")
        pictures.append(cast(TablePicture, module))
    return tuple(pictures)


def figures(summary: Summary, *, redact: bool = True) -> Mapping[str, tuple[Chart, ...]]:
    """Return the pictures of each table, by its key; with ``redact`` neither they nor their texts show a home folder."""
    keys = {picture.TABLE for picture in of_tables()} & summary.tables.keys()
    if redact:
        tables = {key: without_homes(t) if key in keys else t for key, t in summary.tables.items()}
        summary = replace(summary, tables=tables, strips=without_homes(summary.strips))
    drawn = [(p.TABLE, p.chart(summary)) for p in of_tables() if p.TABLE in keys]
    return {key: tuple(f for table_key, f in drawn if table_key == key and f is not None) for key in sorted(keys)}
