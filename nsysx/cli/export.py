"""``nsysx export``: a report for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nsysx import outputs
from nsysx.cli.declared import TYPED_ONLY, with_options
from nsysx.cli.talk import talk
from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.option import options_of
from nsysx.selection import Handling, Selection

#: Shown below the help: what is typed after the command, and what it does.
EXAMPLES = (
    ("run.sqlite --to frames", "Parquet and a data dictionary"),
    ("run.sqlite --perfetto run.pftrace --steps 10:12", "for ui.perfetto.dev"),
)


def _export(file: Path, *, to: Path | None, perfetto: Path | None, to_nsys: str | None, **given: Any) -> None:
    """Hand a report to other tools: all frames as Parquet, a trace for Perfetto."""
    from nsysx.progress import Progress

    how = options_of(Handling, given)
    if to_nsys is not None:
        message = (
            "--to-nsys: no nsys that was tried (up to 2025.3) brings the writer (nsys_writer) that nvtx hands ranges to"
        )
        hint = f"nsysx export FILE --perfetto {file.stem}.pftrace shows them in a timeline"
        raise NsysxError(message, slug="export-to-nsys", hint=hint, exit_code=EXIT_USAGE)
    if to is None and perfetto is None:
        hint = f"nsysx export FILE --perfetto {file.stem}.pftrace"
        raise NsysxError("export wants --to DIR or --perfetto F", slug="export-what", hint=hint, exit_code=EXIT_USAGE)
    if perfetto is not None:
        outputs.check_output(perfetto, force=how.force)
    if to is not None:
        outputs.check_folder(to)
    outputs.check_apart([p for p in (perfetto, to) if p is not None], [file])
    from nsysx.ranks import parallel_reading

    parallel_reading.limit_threads()
    from nsysx import pipeline
    from nsysx.export import to_files

    with Progress() as progress:
        options = pipeline.Options.of(options_of(Selection, given), progress=progress)
        done = to_files.write(file, options, to=to, perfetto=perfetto, force=how.force, redact=how.redact)
    for line in done:
        talk(f"nsysx: {line}")


def _command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export (.sqlite, packed too) or .nsys-rep.")],
    *,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write every frame and table as Parquet, with a data dictionary."),
        TYPED_ONLY,
    ] = None,
    perfetto: Annotated[
        Path | None, typer.Option(metavar="F", help="Write a trace for ui.perfetto.dev."), TYPED_ONLY
    ] = None,
    to_nsys: Annotated[str | None, typer.Option(metavar="F", hidden=True, help="Say why this cannot be.")] = None,
) -> None:
    """Hold what the command line has besides the shared options."""


export = with_options(_export, _command, Selection, Handling)
