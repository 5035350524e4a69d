"""Options that several commands share."""

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
ShownRank = Annotated[int | None, typer.Option(help="Analyze only this rank.")]
Html = Annotated[Path | None, typer.Option(metavar="F", help="Write the page to F.")]
Markdown = Annotated[str | None, typer.Option(metavar="F|-", help="Write Markdown for a ticket.")]
Steps = Annotated[str | None, typer.Option(metavar="A:B", help="Analyze only these steps.")]
StepsOrAll = Annotated[str | None, typer.Option(metavar="A:B|all", help="Analyze only these steps.")]
TimeRange = Annotated[str | None, typer.Option(metavar="A:B", help="Read only this part of the session, in seconds.")]
StepRange = Annotated[str | None, typer.Option(metavar="RE", help="NVTX ranges that are the steps.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Reports to read at once. Default: one per core.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite output files.")]


def files_of(targets: Iterable[str | Path | None]) -> list[Path]:
    """Return the output files among the targets: neither absent nor stdout."""
    return [Path(target) for target in targets if target is not None and str(target) != "-"]
