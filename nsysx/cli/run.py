"""``nsysx run``: profile a program with Nsight Systems, unedited, and report."""

from __future__ import annotations

import os
import shlex
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from nsysx.cli.command_output import talk
from nsysx.cli.declared_options import Grouped, with_options
from nsysx.cli.dying import EndedBy
from nsysx.errors import NsysxError
from nsysx.recording.run_options import RunOptions
from nsysx.redaction import HIDDEN, redacted

#: Shown below the help: what is typed after the command, and what it does.
EXAMPLES = (
    ("python train.py", "writes train.sqlite and its page train.html"),
    ("--steps auto -- python train.py", "24 steps, once they repeat"),
    ("-o job --per-rank -- torchrun --nproc-per-node 8 train.py", "one report per rank"),
)

#: Its own options come before CMD; what follows is CMD's.
HOW = {"cls": Grouped, "context_settings": {"allow_interspersed_args": False}}

if TYPE_CHECKING:
    from nsysx.model import Summary
    from nsysx.recording.capture import RunResult


@with_options
def run(
    command: Annotated[list[str], typer.Argument(metavar="CMD", help="The command to profile, as it is.")],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the setup and print the commands; run nothing.")
    ] = False,
    options: RunOptions,
) -> None:
    """Profile CMD with Nsight Systems, unedited, and report. The exit code is CMD's."""
    from nsysx.recording import capture

    if dry_run:
        typer.echo(capture.dry_run(command, options))
        if redacted(command) != command:
            talk(f"nsysx: {HIDDEN} stands for a secret: put it back where you run these lines")
        return
    result = capture.run(command, options)
    told, summary = _report_run(result) if result.sqlite and options.report else (True, None)
    _say_result(result, told=told, answered=summary is not None)
    if summary is not None:
        _say_answer(summary, result)
        if options.tries:
            _try(command, summary, result)
    if result.ended_by:
        raise EndedBy(result.ended_by)
    raise typer.Exit(result.exit_code)


def _report_run(result: RunResult) -> tuple[bool, Summary | None]:
    """Write the page of a run; return whether the report can be read at all, and its Summary where it was read here.

    The capture is already safe, and no failure here may hide that.
    """
    from nsysx.outputs import write_text
    from nsysx.progress import Progress
    from nsysx.recording import capture

    assert result.sqlite is not None
    summary: Summary | None = None
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
        noted = any(note.casefold() in error.hint.casefold() for note in result.notes)
        result.notes.append(f"no page: {error.message if noted else error}")
        return False, None
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
    return True, summary


def _say_answer(summary: Summary, result: RunResult) -> None:
    """Print the answer on stderr, as ``nsysx report`` prints it on stdout, which is CMD's here."""
    from nsysx.cli.command_output import console
    from nsysx.render import invocation, terminal_answer
    from nsysx.render.safe_text import clean

    assert result.sqlite is not None
    program = invocation.recorded_program(result.sqlite)
    talk("")
    terminal_answer.render(summary, console(stderr=True), clean(shlex.quote(str(result.sqlite)), 1000), program)


def _try(command: list[str], summary: Summary, result: RunResult) -> None:
    """Try the report's first remedies unless CMD failed. The exit code stays CMD's, whatever comes of it, but for Ctrl-C."""
    from nsysx.cli.try_ import try_remedies
    from nsysx.recording.capture import say

    if result.launcher or result.exit_code or result.ended_by:
        say("no remedy is tried: " + ("this is one rank of a job" if result.launcher else "CMD failed"))
        return
    assert result.sqlite is not None
    try:
        try_remedies(command, result.sqlite, result.outputs.html, summary)
    except NsysxError as error:
        say(f"no remedy is tried: {error}")
    except KeyboardInterrupt:
        result.ended_by = signal.SIGINT


def _say_result(result: RunResult, *, told: bool, answered: bool = False) -> None:
    """Print the notes, the problems, the files written and, if the report can be read (``told``), the next command.

    ``answered``: what the report says first is printed below.
    """
    from nsysx.recording.capture import say

    for note in result.notes:
        say(note)
    for problem in result.problems:
        say(f"error: {problem}")
    if result.written:
        say("wrote " + "  ".join(shlex.quote(str(path)) for path in result.written))
    if result.sqlite and told:
        sqlite = shlex.quote(str(result.sqlite))
        say(f"next: nsysx report {sqlite}{' --full' if answered else ''}")
        say(f"      nsysx report {sqlite} --markdown -")
