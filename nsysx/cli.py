"""The command line: each command a few lines; rooms do the work, `main` turns errors into one line and an exit code."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from nsysx import __version__
from nsysx.errors import EXIT_BUDGET, EXIT_EMPTY, EXIT_INTERRUPTED, EXIT_RUN_FAILED, EXIT_USAGE, NsysxError

if TYPE_CHECKING:
    from rich.console import Console

    from nsysx.model import Summary
    from nsysx.recording.capture import Result


app = typer.Typer(
    name="nsysx",
    help="Where the step time of a PyTorch program went, from an Nsight Systems capture.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help text starts in half the time
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nsysx {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Where the step time of a PyTorch program went, from an Nsight Systems capture."""
    if context.invoked_subcommand is None:
        _talk(context.get_help())
        raise typer.Exit(EXIT_USAGE)


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="CMD", help="The command to profile, unedited.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="NAME",
            help="Name of the results, or a folder for them. Default: CMD's script, here.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite results of that name.")] = False,
    no_report: Annotated[bool, typer.Option("--no-report", help="Capture and export only; needs no polars.")] = False,
    no_probe: Annotated[
        bool, typer.Option("--no-probe", help="Add no ranges: no steps, phases and modules but CMD's own.")
    ] = False,
    nsys: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The nsys to use. Default: that of PATH, else the newest found.")
    ] = None,
    nsys_arg: Annotated[
        list[str] | None, typer.Option(metavar="ARG", help="Pass ARG on to nsys profile (repeatable).")
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="A:B|auto",
            help="Capture only steps A to B-1, or (auto) a stretch once steps repeat. Default: the whole run.",
        ),
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Record the Python line of each wait and copy.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Record device memory allocations.")] = False,
    graphs: Annotated[
        str, typer.Option(metavar="node|graph", help="Each node of a CUDA graph, or each launch of one as a whole.")
    ] = "node",
    osrt: Annotated[bool, typer.Option("--osrt", help="Record operating system calls too; slows the host.")] = False,
    clocks: Annotated[bool, typer.Option("--clocks", help="Sample GPU clocks, power and temperature.")] = False,
    depth: Annotated[
        int | None, typer.Option(min=0, help="Ranges for modules down to this depth. Default: all of them.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Ranges only for modules whose path matches. Default: all.")
    ] = None,
    marks: Annotated[
        str,
        typer.Option(
            metavar="few|all|off", help="Modules are marked in few steps that the others repeat, in all, in none."
        ),
    ] = "few",
    backward: Annotated[
        str,
        typer.Option(
            metavar="marks|ops|off",
            help="Backward by module (marks), by operator as well (ops), or as one phase (off).",
        ),
    ] = "marks",
    per_rank: Annotated[
        bool, typer.Option("--per-rank", help="Under torchrun and what is built on it: one report per rank.")
    ] = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Run CMD once more without profiler, to say what profiling cost.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all that can be checked, print the commands, run nothing.")
    ] = False,
) -> None:
    """Profile CMD with Nsight Systems, unedited, and report. The exit code is CMD's."""
    from nsysx.recording import capture

    _one_of("--graphs", graphs, ("node", "graph"))
    _one_of("--marks", marks, ("few", "all", "off"))
    _one_of("--backward", backward, ("marks", "ops", "off", "phase"))
    options = capture.Options(
        output=output,
        force=force,
        report=not no_report,
        probe=not no_probe,
        nsys=nsys,
        nsys_args=tuple(nsys_arg or ()),
        steps=steps,
        lines=lines,
        memory=memory,
        graphs=graphs,
        osrt=osrt,
        clocks=clocks,
        depth=depth,
        only=only,
        marks=marks,
        backward=backward,
        per_rank=per_rank,
        calibrate=calibrate,
    )
    if dry_run:
        typer.echo(capture.dry_run(command, options))
        return
    result = capture.run(command, options)
    if result.sqlite and options.report:
        _report_run(result)
    _say_result(result)
    raise typer.Exit(result.exit_code)


def _one_of(option: str, value: str | None, choices: tuple[str | None, ...]) -> None:
    if value not in choices:
        known = ", ".join(c for c in choices if c)
        raise NsysxError(f"{option} {value}: expected {known}", slug="bad-option", exit_code=EXIT_USAGE)


def _report_run(result: Result) -> None:
    """Write the page of a run and note its headline. The capture is safe already: nothing here may hide that."""
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
        result.notes.append(f"no page: {error}")
    except KeyboardInterrupt:
        result.notes.append("the page was interrupted; nsysx report makes it")
    except Exception as error:
        if os.environ.get("NSYSX_DEBUG"):
            raise
        result.notes.append(
            f"no page: {type(error).__name__}: {error}. This is a bug of nsysx (NSYSX_DEBUG=1 shows it)"
        )
    else:
        result.notes.insert(0, summary.verdict.sentence)


def _say_result(result: Result) -> None:
    from nsysx.recording.capture import say

    for note in result.notes:
        say(note)
    for problem in result.problems:
        say(f"error: {problem}")
    if result.written:
        say("wrote " + "  ".join(shlex.quote(str(path)) for path in result.written))
    if result.sqlite:
        sqlite = shlex.quote(str(result.sqlite))
        say(f"next: nsysx report {sqlite}")
        say(f"      nsysx report {sqlite} --markdown -")


def _print_schema(wanted: bool) -> None:
    if wanted:
        from nsysx.render import json_text, summary_schema

        _end_quietly_with_reader()
        typer.echo(json_text.text_of(dict(summary_schema.schema())), nl=False)
        raise typer.Exit


@app.command()
def report(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Exports (.sqlite); several are ranks of one job.")
    ],
    html: Annotated[Path | None, typer.Option(metavar="F", help="Write the page to F.")] = None,
    json: Annotated[str | None, typer.Option(metavar="F|-", help="Write the Summary as JSON.")] = None,
    markdown: Annotated[str | None, typer.Option(metavar="F|-", help="Write Markdown for a ticket.")] = None,
    csv: Annotated[str | None, typer.Option(metavar="DIR", help="Write every table as DIR/TABLE.csv.")] = None,
    steps: Annotated[str | None, typer.Option(metavar="A:B|all", help="Look at these steps only.")] = None,
    step_range: Annotated[str | None, typer.Option(metavar="RE", help="The ranges that are the steps.")] = None,
    time_range: Annotated[
        str | None, typer.Option(metavar="A:B", help="Read only this part, in seconds of the session.")
    ] = None,
    device: Annotated[int | None, typer.Option(help="Look at this GPU only.")] = None,
    rank: Annotated[int | None, typer.Option(help="Look at this rank only.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Reports read at once; one per core by default.")] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="local|ADDRESS", help="Read the reports on a dask cluster.")
    ] = None,
    brief: Annotated[
        str | None, typer.Option(metavar="F|-", help="Write the answer for programs: a few kB of JSON.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Print all tables, not only the answer.")] = False,
    top: Annotated[int, typer.Option(min=1, help="Rows per table.")] = 10,
    section: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Print only this section (repeatable).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite output files.")] = False,
    no_redact: Annotated[bool, typer.Option("--no-redact", help="Keep host, user and paths in the page.")] = False,
    json_schema: Annotated[
        bool,
        typer.Option(
            "--json-schema", callback=_print_schema, is_eager=True, help="Print the JSON Schema of the Summary."
        ),
    ] = False,
) -> None:
    """Say where the step time went: tables here, or a page, JSON, Markdown or CSV."""
    from nsysx import outputs
    from nsysx.progress import Progress

    if (json, markdown, brief).count("-") > 1:
        what = "--json -, --markdown - and --brief - each want stdout for themselves"
        raise NsysxError(what, slug="two-results", exit_code=EXIT_USAGE)
    if csv is not None and not csv.strip():
        raise NsysxError("--csv: no folder is named", slug="output-name", exit_code=EXIT_USAGE)
    targets = [Path(name) for name in (html, json, markdown, brief) if name is not None and str(name) != "-"]
    for path in targets:
        outputs.check_output(path, force=force)
    if csv is not None:
        outputs.check_folder(Path(csv))
    from nsysx.ranks import parallel_reading as jobs_room

    jobs_room.limit_threads()
    from nsysx import pipeline
    from nsysx.reading import inputs

    with Progress() as progress:
        reports = inputs.reports(files)
        outputs.check_apart([*targets, *([Path(csv)] if csv else [])], [*files, *reports])
        summary = pipeline.summarize(
            reports,
            steps=steps,
            step_range=step_range,
            device=device,
            rank=rank,
            time_range=time_range,
            timelines=html is not None,
            workers=jobs,
            cluster=cluster,
            progress=progress,
        )
        progress("writing")
        texts = _texts(summary, html=html, json=json, markdown=markdown, brief=brief, redact=not no_redact)
        written = {Path(name): text for name, text in texts.items() if name != "-"}
        if csv is not None:
            written |= _write_tables(summary, Path(csv), written, force=force)
        else:
            outputs.write_texts(written, force=force)
    if "-" in texts:
        _emit(texts["-"])
    elif full or section:
        _tables(summary, top, section)
    else:
        _answer(summary)
    for path in written:
        _talk(f"nsysx: wrote {_link(path)}")


def _texts(
    summary: Summary, *, html: Path | None, json: str | None, markdown: str | None, brief: str | None, redact: bool
) -> dict[str, str]:
    """Return what was asked for as texts, by the name of the file or "-"."""
    texts: dict[str, str] = {}
    if html is not None:
        from nsysx.render import html_page

        texts[str(html)] = html_page.render(summary, redact=redact)
    if json is not None:
        from nsysx.render import json_text

        texts[json] = json_text.render(summary)
    if markdown is not None:
        from nsysx.render import markdown as markdown_page

        texts[markdown] = markdown_page.render(summary, redact=redact)
    if brief is not None:
        from nsysx.render import answer_text

        texts[brief] = answer_text.of(summary, redact=redact)
    return texts


def _write_tables(summary: Summary, folder: Path, others: dict[Path, str], *, force: bool) -> dict[Path, str]:
    """Write the tables that were recorded, each to its file, together with the ``others``: all or none."""
    from nsysx.outputs import write_texts
    from nsysx.render import csv_text

    tables = {folder / f"{key}.csv": table for key, table in summary.tables.items() if table.rows is not None}
    texts = others | {path: csv_text.render(table) for path, table in tables.items()}
    made = not folder.exists()
    folder.mkdir(exist_ok=True)
    try:
        write_texts(texts, force=force)
    except BaseException:
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    return texts


def _link(path: Path) -> str:
    """Return a written file's name, on a terminal as a link to it."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return str(path)
    return f"\x1b]8;;{path.resolve().as_uri()}\x1b\\{path}\x1b]8;;\x1b\\"


def _emit(text: str) -> None:
    from nsysx.outputs import to_stdout

    _end_quietly_with_reader()
    with to_stdout():
        sys.stdout.write(text if text.endswith("\n") else text + "\n")


def _deliver(target: str, text: str, *, force: bool) -> None:
    """Write a text to a file, or to stdout for "-"."""
    from nsysx.outputs import write_text

    if target == "-":
        _emit(text)
    else:
        write_text(Path(target), text, force=force)


#: Columns of a terminal: fewer hold no table; then as many as terminals usually have.
_NARROWEST, _USUAL_WIDTH = 20, 80


def _answer(summary: Summary) -> None:
    from nsysx.outputs import to_stdout
    from nsysx.render import terminal_answer

    _end_quietly_with_reader()
    with to_stdout():
        terminal_answer.render(summary, _console())


def _console() -> Console:
    """Return the terminal, as wide as terminals usually are where it does not know its size (``COLUMNS=0``)."""
    from rich.console import Console

    console = Console()
    if console.width < _NARROWEST:
        console.width = _USUAL_WIDTH
    return console


def _tables(summary: Summary, top: int, section: list[str] | None) -> None:
    from nsysx.outputs import to_stdout
    from nsysx.render import terminal

    _end_quietly_with_reader()
    with to_stdout():
        terminal.render(summary, _console(), top=top, sections=section)


def _end_quietly_with_reader() -> None:
    """From here on end as cat does when the reader of stdout goes away (``| head``)."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _talk(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201 - stdout is the result, stderr the talk


def _harmless(line: str) -> str:
    """Return a line in which names from a report move no cursor and hide nothing."""
    from nsysx.render.safe_text import clean

    return clean(line, 2000)


class _SeveralFiles(TyperCommand):
    """Lets ``--before A B --after C`` name several files each; for the parser that is one option per file."""

    _OPTIONS = ("--before", "--after", "--noise")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return what is left of ``args``, as click does."""
        split: list[str] = []
        option: str | None = None
        for arg in args:
            if arg.startswith("-") and arg != "-":
                option = arg if arg in self._OPTIONS else None
                split += [] if option else [arg]
            else:
                split += [option, arg] if option else [arg]
        return super().parse_args(ctx, split)


@app.command(cls=_SeveralFiles)
def compare(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="BEFORE AFTER", help="Reports (.sqlite) or Summaries (.json).")
    ] = None,
    before: Annotated[
        list[Path] | None, typer.Option(metavar="FILE...", help="Captures of the side before; ranks count as one.")
    ] = None,
    after: Annotated[list[Path] | None, typer.Option(metavar="FILE...", help="Captures of the side after.")] = None,
    noise: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE...", help="Captures of one unchanged program: how much captures differ here."),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="F", help="Write the page to F.")] = None,
    json: Annotated[str | None, typer.Option(metavar="F|-", help="Write the comparison as JSON.")] = None,
    markdown: Annotated[str | None, typer.Option(metavar="F|-", help="Write Markdown for a ticket.")] = None,
    margin: Annotated[float, typer.Option(min=0, max=100, metavar="PERCENT", help="What counts as the same.")] = 1.0,
    steps: Annotated[str | None, typer.Option(metavar="A:B", help="Look at these steps only.")] = None,
    step_range: Annotated[str | None, typer.Option(metavar="RE", help="The ranges that are the steps.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Reports read at once; one per core by default.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows per table of Markdown.")] = 10,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite output files.")] = False,
    no_redact: Annotated[bool, typer.Option("--no-redact", help="Keep user and paths in the page.")] = False,
) -> None:
    """Say whether AFTER is faster than BEFORE, by how much, how sure that is, and what made the difference."""
    from nsysx.outputs import check_output, write_text
    from nsysx.progress import Progress

    if files and (before or after or len(files) != 2):
        hint = "nsysx compare BEFORE AFTER, or --before A B --after C D"
        raise NsysxError("compare wants two sides", slug="two-sides", hint=hint, exit_code=EXIT_USAGE)
    before, after = (files[:1], files[1:]) if files else (before, after)
    if not before or not after:
        hint = "nsysx compare BEFORE AFTER, or --before A B --after C D"
        raise NsysxError("compare wants two sides", slug="two-sides", hint=hint, exit_code=EXIT_USAGE)
    targets = [Path(name) for name in (html, json, markdown) if name is not None and str(name) != "-"]
    for path in targets:
        check_output(path, force=force)
    if json == markdown == "-":
        raise NsysxError("--json - and --markdown - both want stdout", slug="two-results", exit_code=EXIT_USAGE)
    from nsysx.ranks import parallel_reading

    parallel_reading.limit_threads()
    from nsysx.comparing import comparison, inputs

    named = [("before", before), ("after", after), *([("noise", noise)] if noise else [])]
    with Progress() as progress:
        sides = inputs.sides(named, steps=steps, step_range=step_range, progress=progress, workers=jobs)
        answer = comparison.compare(*sides, margin=margin / 100)
    if html is not None:
        from nsysx.render import compare_page

        write_text(html, compare_page.render(answer, redact=not no_redact), force=force)
    if json is not None:
        from nsysx.render import json_text

        _deliver(json, json_text.text_of(answer.to_json()), force=force)
    if markdown is not None or (html is None and json is None):
        from rich.console import Console

        from nsysx.render import compare_text

        if markdown is not None:
            _deliver(markdown, compare_text.markdown(answer, top=top), force=force)
        else:
            _end_quietly_with_reader()
            compare_text.terminal(answer, Console())
    for path in targets:
        _talk(f"nsysx: wrote {_link(path)}")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A report (.sqlite) or a Summary (.json).")],
    budget: Annotated[Path | None, typer.Option(metavar="F", help="What the steps may cost, as TOML.")] = None,
    baseline: Annotated[Path | None, typer.Option(metavar="F", help="What relative limits are relative to.")] = None,
    init: Annotated[bool, typer.Option("--init", help="Print a budget that this report keeps.")] = False,
    claims: Annotated[Path | None, typer.Option(metavar="F", help="Find the numbers of this text in FILE.")] = None,
    json: Annotated[str | None, typer.Option(metavar="F|-", help="Write the result as JSON.")] = None,
    markdown: Annotated[str | None, typer.Option(metavar="F|-", help="Write Markdown.")] = None,
    junit: Annotated[str | None, typer.Option(metavar="F|-", help="Write JUnit XML.")] = None,
    github: Annotated[bool, typer.Option("--github", help="Print annotations for a GitHub workflow.")] = False,
    steps: Annotated[str | None, typer.Option(metavar="A:B", help="Look at these steps only.")] = None,
    step_range: Annotated[str | None, typer.Option(metavar="RE", help="The ranges that are the steps.")] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite output files.")] = False,
) -> None:
    """Hold a report against a budget: exit code 0 kept, 1 broken, 5 inconclusive, 4 nothing measured."""
    from nsysx.outputs import check_output

    if (budget is not None) + init + (claims is not None) != 1:
        what = "check wants one of --budget, --init and --claims"
        raise NsysxError(what, slug="check-what", hint="Begin with: nsysx check FILE --init", exit_code=EXIT_USAGE)
    if (json, markdown, junit).count("-") + github > 1:
        what = "only one of --json -, --markdown -, --junit - and --github can have stdout"
        raise NsysxError(what, slug="two-results", exit_code=EXIT_USAGE)
    for name in (json, markdown, junit):
        if name is not None and name != "-":
            check_output(Path(name), force=force)
    from nsysx.ranks import parallel_reading

    parallel_reading.limit_threads()
    from nsysx.comparing import budget as room
    from nsysx.comparing import claims as claims_room
    from nsysx.comparing import inputs
    from nsysx.render import check_text, json_text

    capture = inputs.measured(file, steps=steps, step_range=step_range)
    if init:
        typer.echo(room.init(capture), nl=False)
        return
    if claims is not None:
        found = claims_room.check(inputs.read_text(claims), capture.summary)
        typer.echo(check_text.claims(found))
        raise typer.Exit(EXIT_BUDGET if any(c.source is None for c in found) else 0 if found else EXIT_EMPTY)
    assert budget is not None
    base = None if baseline is None else inputs.measured(baseline)
    verdict = room.check(capture, inputs.read_budget(budget), base)
    for target, text in (
        (json, json_text.text_of(verdict.to_json())),
        (markdown, check_text.markdown(verdict)),
        (junit, check_text.junit(verdict)),
    ):
        if target is not None:
            _deliver(target, text, force=force)
    if github:
        sys.stdout.write(check_text.github(verdict))
    elif "-" not in (json, markdown, junit):
        typer.echo(check_text.terminal(verdict))
    raise typer.Exit(verdict.exit_code)


@app.command()
def whatif(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export (.sqlite).")],
    remove_wait: Annotated[
        list[str] | None, typer.Option(metavar="SITE|all", help="These waits go (API, module, file:line).")
    ] = None,
    graph: Annotated[
        list[str] | None, typer.Option(metavar="MODULE|all", help="Launches of this module in a CUDA graph.")
    ] = None,
    kernel: Annotated[list[str] | None, typer.Option(metavar="NAME=2x", help="Kernels that much faster.")] = None,
    remove_module: Annotated[list[str] | None, typer.Option(metavar="MODULE", help="Without its GPU work.")] = None,
    overlap_copies: Annotated[bool, typer.Option("--overlap-copies", help="Host copies pinned and hidden.")] = False,
    free_loader: Annotated[bool, typer.Option("--free-loader", help="Data loading takes no time.")] = False,
    remove_alloc: Annotated[bool, typer.Option("--remove-alloc", help="No allocator calls in the steps.")] = False,
    no_host: Annotated[bool, typer.Option("--no-host", help="No host code between calls.")] = False,
    no_comm: Annotated[bool, typer.Option("--no-comm", help="Communication takes no time.")] = False,
    remove_sync_calls: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="These synchronize calls go (device, stream, event).")
    ] = None,
    fuse_optimizer: Annotated[
        bool, typer.Option("--fuse-optimizer", help="The optimizer's work in one launch.")
    ] = False,
    no_empty_cache: Annotated[
        bool, typer.Option("--no-empty-cache", help="No frees in the steps, nor the mallocs that follow from them.")
    ] = False,
    steps: Annotated[str | None, typer.Option(metavar="A:B", help="Replay these steps.")] = None,
    step_range: Annotated[str | None, typer.Option(metavar="RE", help="The ranges that are the steps.")] = None,
) -> None:
    """Say what the step would take with something changed; without an option, list what could be."""
    from nsysx.ranks import parallel_reading

    parallel_reading.limit_threads()
    from nsysx import pipeline
    from nsysx.replay import whatif as room

    given = pipeline.gather(file, pipeline.Options(steps=steps, step_range=step_range))
    wishes = room.Wishes(
        remove_wait=remove_wait or (),
        graph=graph or (),
        kernel=kernel or (),
        remove_module=remove_module or (),
        overlap_copies=overlap_copies,
        free_loader=free_loader,
        remove_alloc=remove_alloc,
        no_host=no_host,
        no_comm=no_comm,
        remove_sync_calls=remove_sync_calls or (),
        fuse_optimizer=fuse_optimizer,
        keep_cache=no_empty_cache,
    )
    _end_quietly_with_reader()
    typer.echo("\n".join(_harmless(line) for line in room.lines(given, wishes)))


@app.command()
def calibrate(
    nsys: Annotated[Path | None, typer.Option(metavar="PATH", help="The nsys to use.")] = None,
) -> None:
    """Measure once what tracing costs on this machine, so that reports made here know the step without a profiler."""
    from nsysx.recording import calibrate as room
    from nsysx.recording.find_nsys import find_nsys
    from nsysx.recording.talk import say

    found = find_nsys(nsys)
    typer.echo(room.calibrate(found.path, found.version, say))


@app.command()
def doctor(
    nsys: Annotated[Path | None, typer.Option(metavar="PATH", help="The nsys to examine.")] = None,
    install_nsys: Annotated[
        bool,
        typer.Option("--install-nsys", help="First install Nsight Systems for this user, on Debian, without root."),
    ] = False,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Install into DIR. Default: a folder that run looks into.")
    ] = None,
) -> None:
    """Say what works here and what to do about what does not. Exit code 0 when run will work."""
    from nsysx.recording import doctor as examination

    if install_nsys:
        from nsysx.recording import install_nsys as installing
        from nsysx.recording.find_nsys import user_folder

        folder = to or user_folder()
        nsys = installing.install(folder, lambda line: _talk(f"nsysx: {line}"), examination.python())
        if to is not None:
            _talk(f"nsysx: use it with --nsys {shlex.quote(str(nsys))}, or put {shlex.quote(str(nsys.parent))} on PATH")
    elif to is not None:
        raise NsysxError("--to goes with --install-nsys", slug="bad-option", exit_code=EXIT_USAGE)
    raise typer.Exit(examination.main(nsys))


def _rule_manual(name: str) -> str | None:
    """Return the manual of a finding; polars is only loaded for what can be one."""
    if not name.upper().startswith("NSX") and "-" not in name:
        return None
    from nsysx import findings

    return findings.manual(name)


@app.command()
def explain(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Codes of findings, CUDA API functions, words of a report."),
    ] = None,
) -> None:
    """Print the manual of a finding, or what a CUDA call or word means; without a name, list what is known.

    "definitions" are the exact words of a report, "columns" all tables of the JSON; the key of a table gives one.
    """
    from nsysx.render import dictionary, glossary

    _end_quietly_with_reader()
    if not names:
        from nsysx import findings

        rules = [f"{rule.RULE.code}  {rule.RULE.slug}: {rule.RULE.title}" for rule in findings.rules()]
        tables = ["definitions", "columns", *dictionary.keys()]
        typer.echo("\n".join([*rules, *(entry.name for entry in glossary.ENTRIES), *tables]))
        return
    texts = []
    for name in names:
        entry = glossary.lookup(name)
        text = glossary.manual(entry) if entry else _rule_manual(name) or dictionary.lookup(name)
        if text is None:
            near = ", ".join(glossary.nearest(name)) or "none; nsysx explain lists all names"
            raise NsysxError(
                f"{name[:100]!r} is not explained", slug="no-such-name", hint=f"Near: {near}", exit_code=EXIT_USAGE
            )
        texts.append(text)
    typer.echo("\n\n".join(texts))


def program() -> NoReturn:
    """Run the command line as a process of its own: the console entry point.

    It ends without taking the interpreter apart: freeing a million objects one by one takes a tenth of a small report's
    time, and nobody waits for it. What was registered to run at exit has run by then, because this was registered first.
    """
    code: object = EXIT_RUN_FAILED

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()  # one that fails is reported by Python, which then ends in its own way
        os._exit(code if isinstance(code, int) else 0)

    atexit.register(leave)
    signal.signal(signal.SIGINT, _interrupted)
    # A process that ends after one answer has no cycles worth looking for; it would cost a twentieth of the start.
    gc.disable()
    try:
        main()
    except SystemExit as end:
        code = end.code
        raise


#: Whether somebody pressed Ctrl-C: typer makes an exit code of it, which commands may have for other reasons.
_interrupts: list[int] = []


def _interrupted(number: int, frame: FrameType | None) -> None:
    _interrupts.append(number)
    signal.default_int_handler(number, frame)


def main() -> NoReturn:
    """Run the command line and raise SystemExit with its exit code."""
    sys.exit(_guarded())


def _said(error: NsysxError) -> int:
    _talk(f"nsysx: error: {_harmless(str(error))}")
    return error.exit_code


def _guarded() -> int:
    from nsysx.outputs import is_of_stdout, open_streams, stdout_fails, to_stdout

    open_streams()
    try:
        code = app(prog_name="nsysx", standalone_mode=False)
        if _interrupts and code == EXIT_INTERRUPTED:
            _talk("nsysx: interrupted")
            return EXIT_INTERRUPTED
        with to_stdout():
            pass
    except NsysxError as error:
        return _said(error)
    except (KeyboardInterrupt, typer.Abort):
        _talk("nsysx: interrupted")
        return EXIT_INTERRUPTED
    except Exception as error:
        # Newer typer brings its own copy of click, so what a usage error is can only be told by what it offers.
        explain = getattr(error, "format_message", None)
        if explain is not None:
            context = getattr(error, "ctx", None)
            command = context.command_path if context else "nsysx"
            _talk(f"nsysx: error: {str(explain()).rstrip('.')}. Try {command} --help")
            return EXIT_USAGE
        if isinstance(error, OSError) and is_of_stdout(error):
            return _said(stdout_fails(error))
        if os.environ.get("NSYSX_DEBUG"):
            raise
        _talk(
            f"nsysx: error: {type(error).__name__}: {_harmless(str(error))}. Run with NSYSX_DEBUG=1 for the traceback"
        )
        return EXIT_RUN_FAILED
    return code if isinstance(code, int) else 0
