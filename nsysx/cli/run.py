"""``nsysx run``: profile a program with Nsight Systems, unedited, and report."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nsysx.cli.dying import EndedBy
from nsysx.cli.options import require_one_of
from nsysx.errors import NsysxError

if TYPE_CHECKING:
    from nsysx.recording.capture import Result

Command = Annotated[list[str], typer.Argument(metavar="CMD", help="The command to profile, as it is.")]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", metavar="NAME", help="Name of the results, or a folder for them. Default: CMD's script, here."
    ),
]
Overwrite = Annotated[bool, typer.Option("--force", "-f", help="Overwrite results of the same name.")]
NoReport = Annotated[bool, typer.Option("--no-report", help="Only capture and export; works without polars.")]
NoProbe = Annotated[
    bool, typer.Option("--no-probe", help="Add no ranges: only the steps, phases and modules that CMD marks itself.")
]
Nsys = Annotated[
    Path | None, typer.Option(metavar="PATH", help="The nsys to use. Default: the one on PATH, else the newest found.")
]
NsysArg = Annotated[list[str] | None, typer.Option(metavar="ARG", help="Pass ARG on to nsys profile (repeatable).")]
CaptureSteps = Annotated[
    str | None,
    typer.Option(
        metavar="A:B|auto|manual",
        help="Capture only steps A to B-1, or (auto) 24 steps once they repeat, or (manual) what the program itself puts in "
        "`with nsysx.capture():`. Default: the whole run.",
    ),
]
Lines = Annotated[bool, typer.Option("--lines", help="Record the Python line of each wait and copy.")]
Memory = Annotated[bool, typer.Option("--memory", help="Record device memory allocations.")]
Graphs = Annotated[
    str, typer.Option(metavar="node|graph", help="Trace each node of a CUDA graph, or only each graph launch.")
]
Osrt = Annotated[bool, typer.Option("--osrt", help="Also record operating system calls; slows the host.")]
Python = Annotated[
    bool,
    typer.Option(
        "--python",
        help="Sample Python's stacks 1,000 times a second: host time by line. Its cost was too small to measure.",
    ),
]
Gil = Annotated[
    bool,
    typer.Option(
        "--gil", help="Record who holds Python's lock, and who waits for it. Its cost was too small to measure."
    ),
]
Ops = Annotated[
    bool,
    typer.Option(
        "--ops",
        help="Record operators with their shapes in the few steps whose modules are marked: FLOP/s and MFU. "
        "Slows those steps on the CPU.",
    ),
]
Clocks = Annotated[
    bool, typer.Option("--clocks", help="Sample GPU clocks, power and temperature; needs nsysx[clocks].")
]
GpuMetrics = Annotated[
    bool,
    typer.Option(
        "--gpu-metrics",
        help="Sample the GPU's counters: SMs, tensor cores, memory bandwidth. If refused, the run goes on without them.",
    ),
]
Depth = Annotated[int | None, typer.Option(min=0, help="Mark modules down to this depth. Default: all.")]
Only = Annotated[str | None, typer.Option(metavar="REGEX", help="Mark only modules whose path matches. Default: all.")]
Marks = Annotated[
    str,
    typer.Option(
        metavar="few|all|off", help="Mark modules in a few steps that others repeat, in all steps, or in none."
    ),
]
Backward = Annotated[
    str,
    typer.Option(
        metavar="marks|ops|off", help="Split backward by module (marks), by operator too (ops), or not at all (off)."
    ),
]
PerRank = Annotated[
    bool, typer.Option("--per-rank", help="Under torchrun and launchers built on it: one report per rank.")
]
Calibrate = Annotated[
    bool, typer.Option("--calibrate", help="Run CMD once more without the profiler, to measure what profiling costs.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check the setup and print the commands; run nothing.")]


def run(
    command: Command,
    output: Output = None,
    force: Overwrite = False,
    no_report: NoReport = False,
    no_probe: NoProbe = False,
    nsys: Nsys = None,
    nsys_arg: NsysArg = None,
    steps: CaptureSteps = None,
    lines: Lines = False,
    memory: Memory = False,
    graphs: Graphs = "node",
    osrt: Osrt = False,
    python: Python = False,
    gil: Gil = False,
    ops: Ops = False,
    clocks: Clocks = False,
    gpu_metrics: GpuMetrics = False,
    depth: Depth = None,
    only: Only = None,
    marks: Marks = "few",
    backward: Backward = "marks",
    per_rank: PerRank = False,
    calibrate: Calibrate = False,
    dry_run: DryRun = False,
) -> None:
    """Profile CMD with Nsight Systems, unedited, and report. The exit code is CMD's."""
    from nsysx.recording import capture

    _check_words(graphs, marks, backward)
    options = capture.Options(
        output=output, force=force, report=not no_report, probe=not no_probe, nsys=nsys, nsys_args=tuple(nsys_arg or ()),
        steps=steps, lines=lines, memory=memory, graphs=graphs, osrt=osrt, python=python, gil=gil, ops=ops, clocks=clocks,
        gpu_metrics=gpu_metrics, depth=depth, only=only, marks=marks, backward=backward, per_rank=per_rank,
        calibrate=calibrate,
    )  # fmt: skip
    if dry_run:
        typer.echo(capture.dry_run(command, options))
        return
    result = capture.run(command, options)
    told = not (result.sqlite and options.report) or _report_run(result)
    _say_result(result, told=told)
    if result.ended_by:
        raise EndedBy(result.ended_by)
    raise typer.Exit(result.exit_code)


def _check_words(graphs: str, marks: str, backward: str) -> None:
    """Raise NsysxError if an option has a word that it does not know."""
    require_one_of("--graphs", graphs, ("node", "graph"))
    require_one_of("--marks", marks, ("few", "all", "off"))
    require_one_of("--backward", backward, ("marks", "ops", "off", "phase"))


def _report_run(result: Result) -> bool:
    """Write the page of a run and note its headline; return whether the report can be read at all.

    The capture is already safe, and no failure here may hide that.
    """
    from nsysx.outputs import write_text
    from nsysx.progress import Progress
    from nsysx.recording import capture

    assert result.sqlite is not None
    try:
        from nsysx.ranks import parallel_reading

        parallel_reading.limit_threads()
        from nsysx import pipeline
        from nsysx.render import html_page

        with Progress() as progress:
            summary = pipeline.summarize([result.sqlite], timelines=True, progress=progress)
            progress("drawing the page")
            write_text(result.outputs.html, html_page.render(summary), force=True)
        result.written.append(result.outputs.html)
        capture.note_html(result.outputs)
    except ModuleNotFoundError as error:
        result.notes.append(f"no report here, {error.name} is not installed: run nsysx report where it is")
    except NsysxError as error:
        known = any(note.casefold() in error.hint.casefold() for note in result.notes)
        result.notes.append(f"no page: {error.message if known else error}")
        return False
    except KeyboardInterrupt:
        result.notes.append("the page was interrupted; nsysx report makes it")
        if not result.exit_code:
            result.ended_by = signal.SIGINT
    except Exception as error:
        if os.environ.get("NSYSX_DEBUG"):
            raise
        result.notes.append(
            f"no page: {type(error).__name__}: {error}. This is a bug of nsysx (NSYSX_DEBUG=1 shows it)"
        )
    else:
        result.notes.insert(0, summary.verdict.sentence)
    return True


def _say_result(result: Result, *, told: bool) -> None:
    """Print the notes, the problems, the files written and, if the report can be read (``told``), the next command."""
    from nsysx.recording.capture import say

    for note in result.notes:
        say(note)
    for problem in result.problems:
        say(f"error: {problem}")
    if result.written:
        say("wrote " + "  ".join(shlex.quote(str(path)) for path in result.written))
    if result.sqlite and told:
        sqlite = shlex.quote(str(result.sqlite))
        say(f"next: nsysx report {sqlite}")
        say(f"      nsysx report {sqlite} --markdown -")
