"""``nsysx export``: a report for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nsysx import outputs
from nsysx.cli.options import Force, StepRange, StepsOrAll, TimeRange
from nsysx.cli.talk import talk
from nsysx.errors import EXIT_USAGE, NsysxError


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export (.sqlite, packed too) or .nsys-rep.")],
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write every frame and table as Parquet, with a data dictionary."),
    ] = None,
    perfetto: Annotated[Path | None, typer.Option(metavar="F", help="Write a trace for ui.perfetto.dev.")] = None,
    to_nsys: Annotated[str | None, typer.Option(metavar="F", hidden=True, help="Say why this cannot be.")] = None,
    steps: StepsOrAll = None,
    step_range: StepRange = None,
    time_range: TimeRange = None,
    force: Force = False,
    no_redact: Annotated[bool, typer.Option("--no-redact", help="Keep home folders in the trace.")] = False,
) -> None:
    """Hand a report to other tools: all frames as Parquet, a trace for Perfetto."""
    from nsysx.progress import Progress

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
        outputs.check_output(perfetto, force=force)
    if to is not None:
        outputs.check_folder(to)
    outputs.check_apart([p for p in (perfetto, to) if p is not None], [file])
    from nsysx.ranks import parallel_reading

    parallel_reading.limit_threads()
    from nsysx import pipeline
    from nsysx.export import to_files

    with Progress() as progress:
        options = pipeline.Options(steps=steps, step_range=step_range, time_range=time_range, progress=progress)
        done = to_files.write(file, options, to=to, perfetto=perfetto, force=force, redact=not no_redact)
    for line in done:
        talk(f"nsysx: {line}")
