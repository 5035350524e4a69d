"""``nsysx export``: a report for other tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nsysx import outputs
from nsysx.cli.command_output import talk
from nsysx.cli.declared_options import with_options
from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.option import Option
from nsysx.selection import Handling, Selection

#: Shown below the help: what is typed after the command, and what it does.
EXAMPLES = (
    ("run.sqlite --to frames", "Parquet and a data dictionary"),
    ("run.sqlite --perfetto run.pftrace --steps 10:12", "for ui.perfetto.dev"),
)


@dataclass(frozen=True)
class ExportOutputs:
    """What is written."""

    to: Annotated[
        Path | None, Option("Write every frame and table as Parquet, with a data dictionary.", "DIR", typed_only=True)
    ] = None
    perfetto: Annotated[Path | None, Option("Write a trace for ui.perfetto.dev.", "F", typed_only=True)] = None
    speedscope: Annotated[
        Path | None, Option("Write time by code for speedscope.app: GPU, host, GPU idle.", "F", typed_only=True)
    ] = None
    folded: Annotated[
        Path | None, Option("Write the same as folded stacks, for flamegraph.pl.", "F", typed_only=True)
    ] = None


@with_options
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export (.sqlite, packed too) or .nsys-rep.")],
    *,
    wanted: ExportOutputs,
    selection: Selection,
    handling: Handling,
) -> None:
    """Hand a report to other tools: all frames as Parquet, a trace for Perfetto, flame graphs of time by code."""
    from nsysx.progress import Progress

    to, files = wanted.to, [p for p in (wanted.perfetto, wanted.speedscope, wanted.folded) if p is not None]
    if to is None and not files:
        hint = f"nsysx export FILE --perfetto {file.stem}.pftrace"
        raise NsysxError(
            "export needs --to DIR, --perfetto F, --speedscope F or --folded F",
            slug="export-what",
            hint=hint,
            exit_code=EXIT_USAGE,
        )
    for output in files:
        outputs.check_output(output, force=handling.force)
    if to is not None:
        outputs.check_folder(to)
    outputs.check_apart([*files, *([to] if to is not None else [])], [file])
    from nsysx.ranks import parallel_reading

    parallel_reading.limit_threads()
    from nsysx import pipeline
    from nsysx.export import to_files

    with Progress() as progress:
        options = pipeline.ReadingOptions.from_selection(selection, progress=progress)
        done = to_files.write(
            file,
            options,
            to=to,
            perfetto=wanted.perfetto,
            folded=wanted.folded,
            speedscope=wanted.speedscope,
            force=handling.force,
            redact=handling.redact,
        )
    for line in done:
        talk(f"nsysx: {line}")
