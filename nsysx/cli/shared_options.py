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


def schema_option(command: str) -> typer.models.OptionInfo:
    """Return the option that prints the JSON Schema of what a command writes with ``--json``."""

    def printed(wanted: bool) -> None:
        if wanted:
            from nsysx.cli.command_output import emit
            from nsysx.render import json_text, result_schemas

            emit(json_text.text_of(result_schemas.schema_of(command)))
            raise typer.Exit

    info: typer.models.OptionInfo = typer.Option(
        "--json-schema", callback=printed, is_eager=True, help="Print the JSON Schema of --json."
    )
    return info


def files_of(targets: Iterable[str | Path | None]) -> list[Path]:
    """Return the output files among the targets: neither absent nor stdout."""
    return [Path(target) for target in targets if target is not None and str(target) != "-"]
