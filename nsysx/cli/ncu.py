"""``nsysx ncu``: the Nsight Compute command for the kernels that matter, and what it measured."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nsysx.cli.command_output import emit, harmless, talk
from nsysx.cli.declared_options import with_options
from nsysx.errors import EXIT_EMPTY, EXIT_NOT_FOUND, NsysxError
from nsysx.option import Option
from nsysx.selection import Selection

#: Shown below the help: what is typed after the command, and what it does.
EXAMPLES = (
    ("train.sqlite", "the command to paste"),
    ("train.sqlite --run", "run it"),
    ("train.sqlite --import train.ncu-rep", "what it measured"),
)


@dataclass(frozen=True)
class NcuWanted:
    """Which kernels, and what is done with the command."""

    kernels: Annotated[int, Option("So many kernels: those with most time to gain.", "N", least=1, most=50)] = 5
    run: Annotated[bool, Option("Run the command, too; each run starts the program anew.", typed_only=True)] = False


@with_options
def ncu(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export (.sqlite, packed too) or .nsys-rep.")],
    *,
    wanted: NcuWanted,
    measured: Annotated[
        Path | None, typer.Option("--import", metavar="F.ncu-rep", help="Say what Nsight Compute measured.")
    ] = None,
    selection: Selection,
) -> None:
    """Print the Nsight Compute command that profiles one steady step's launches of the kernels that matter."""
    from nsysx.ranks import parallel_reading

    parallel_reading.limit_threads()
    from nsysx import pipeline
    from nsysx.events.profile import NotRecorded
    from nsysx.export import nsight_compute, nsight_compute_report
    from nsysx.reading.mangled_names import mangled_names
    from nsysx.reading.sidecar_files import report_name

    profile = pipeline.gather(file, pipeline.ReadingOptions.from_selection(selection))
    try:
        everything = nsight_compute.chosen(profile, mangled_names(file), 10_000)
    except NotRecorded as answer:
        raise NsysxError(answer.reason, slug="ncu-nothing", hint=answer.fix, exit_code=EXIT_EMPTY) from None
    if measured is not None:
        found_lines = nsight_compute_report.lines(everything, nsight_compute_report.launches(measured))
        emit("\n".join(harmless(line) for line in found_lines))
        return
    told = profile.trace.run.get("command")
    program = [str(word) for word in told] if isinstance(told, list) and told else ["python", "train.py"]
    runs = nsight_compute.in_runs(everything[: wanted.kernels])
    for number, kernels in enumerate(runs, 1):
        output = f"{report_name(file)}{f'-{number}' if len(runs) > 1 else ''}.ncu-rep"
        words = nsight_compute.command(kernels, program, output)
        shown = [*(f"# {line}" for line in nsight_compute.described(kernels)), *nsight_compute.quoted(words), ""]
        emit("\n".join(harmless(line) for line in shown))
        if wanted.run:
            _run(words)


def _run(words: list[str]) -> None:
    try:
        done = subprocess.run(words, check=False)
    except FileNotFoundError:
        hint = "It comes with the CUDA toolkit, or from developer.nvidia.com/nsight-compute"
        raise NsysxError("ncu is not on the PATH", slug="ncu-missing", hint=hint, exit_code=EXIT_NOT_FOUND) from None
    if done.returncode:
        talk(
            f"nsysx: ncu ended with {done.returncode}; where it says ERR_NVGPUCTRPERM, an administrator must allow counters"
        )
        raise typer.Exit(done.returncode)
