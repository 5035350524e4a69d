"""Arguments and output files that several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

Reports = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE",
        help="Exports (.sqlite, packed too), .nsys-rep, or a folder; several are ranks of one job.",
    ),
]

ReportsOrSummary = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE",
        help="Exports (.sqlite, packed too), .nsys-rep, a folder, or what --json wrote; several are ranks of one job.",
    ),
]


def files_of(targets: Iterable[str | Path | None]) -> list[Path]:
    """Return the output files among the targets: neither absent nor stdout."""
    return [Path(target) for target in targets if target is not None and str(target) != "-"]
