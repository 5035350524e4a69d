"""Arguments and output files that several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from nsysx.cli.declared import TYPED_ONLY

Reports = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE",
        help="Exports (.sqlite, packed too), .nsys-rep, or a folder; several are ranks of one job.",
    ),
]
Html = Annotated[Path | None, typer.Option(metavar="F", help="Write the page to F."), TYPED_ONLY]
Markdown = Annotated[str | None, typer.Option(metavar="F|-", help="Write Markdown for a ticket."), TYPED_ONLY]


def files_of(targets: Iterable[str | Path | None]) -> list[Path]:
    """Return the output files among the targets: neither absent nor stdout."""
    return [Path(target) for target in targets if target is not None and str(target) != "-"]
