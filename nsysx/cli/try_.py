"""``nsysx try``: makes the changes in the running program, unedited, and measures what each gains."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsysx.cli.command_output import emit, harmless, talk, wrote
from nsysx.cli.declared_options import Grouped, with_options
from nsysx.cli.shared_options import schema_option
from nsysx.errors import EXIT_EMPTY, EXIT_USAGE, NsysxError
from nsysx.trying.try_options import TryOptions

#: Shown below the help: what is typed after the command, and what it does.
EXAMPLES = (
    ("-- python train.py", "every change that applies"),
    ("train.sqlite -- python train.py", "what this report advises"),
    ("--change tf32 --change compile -- python train.py", "these two"),
)

if TYPE_CHECKING:
    from nsysx.model import Summary
    from nsysx.trying.result import TryResult

_REPORTS = (".sqlite", ".nsys-rep", ".sqlite.gz", ".sqlite.xz", ".sqlite.zst")


class BeforeCommand(Grouped):
    """Takes options before and after REPORT; everything after ``--`` is CMD's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the remaining ``args``, as click does."""
        if "--" in args:
            first = args.index("--")
            ctx.meta["nsysx.command"] = args[first + 1 :]
            ctx.allow_interspersed_args = True
        return super().parse_args(ctx, args)


HOW = {"cls": BeforeCommand}


def _split(words: list[str], after: list[str] | None) -> tuple[Path | None, list[str]]:
    """Return REPORT, if there is one, and CMD. Raises NsysxError, exit code 2."""
    if after is not None:
        before, command = words[: len(words) - len(after)], after
    else:
        has = bool(words) and words[0].endswith(_REPORTS)
        before, command = words[:has], words[has:]
    if len(before) > 1:
        message = f"{before[1]}: only one report can be named before --"
        raise NsysxError(message, slug="try-report", exit_code=EXIT_USAGE)
    if not command:
        hint = "nsysx try [REPORT] -- python train.py"
        raise NsysxError("try needs a command", slug="try-command", hint=hint, exit_code=EXIT_USAGE)
    return (Path(before[0]) if before else None), command


JsonSchema = Annotated[bool, schema_option("try")]


@with_options
def try_(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[REPORT] -- CMD",
            help="A report of CMD, whose advice is tried, and the command.",
            show_default=False,
        ),
    ] = None,
    *,
    listed: Annotated[bool, typer.Option("--list", help="List the changes; run nothing.")] = False,
    json_schema: JsonSchema = False,
    options: TryOptions,
) -> None:
    """Run CMD unchanged and with changes made in it, in turn, and say what each change gains. CMD's files stay unedited."""
    from nsysx.cli.trial_log import log
    from nsysx.inject.nsysx_probe import changes
    from nsysx.reading.tried import of_json as tried_of
    from nsysx.trying import chosen_changes, trial_sentences

    began = time.monotonic()
    every_change = changes.changes_by_name()
    if listed:
        emit(trial_sentences.listing(list(every_change.values())))
        return
    _ = options.budget_s  # a wrong one is said before anything runs
    report, command = _split(words or [], context.meta.get("nsysx.command"))
    candidates = chosen_changes.named(options.change, every_change)
    report = report or _report_of_command(command)
    outputs = _outputs(options, report)
    summary = None if report is None else _advice(report, timelines=options.html is not None)
    codes = [] if summary is None else chosen_changes.codes(summary.answer)
    if not candidates:
        candidates = _candidates(summary, codes, every_change, options)
    if not candidates:
        raise _nothing_to_try()
    if options.dry_run:
        emit("\n".join(["would try, in turn:", *(",".join(c.name for c in changes) for changes in candidates)]))
        return
    spent_s = time.monotonic() - began
    _ask(options)
    result = _measure(command, candidates, options, codes, spent_s)
    if not result.measured():
        outputs.pop("beside", None)  # what was tried before is worth more
    _tell(result, options, outputs, summary)
    if report is not None:
        log(report, tried_of(result.to_json()))
    if result.interrupted:
        raise KeyboardInterrupt
    if not result.measured():
        raise NsysxError(result.stopped, slug="try-nothing", exit_code=EXIT_EMPTY)


def try_remedies(command: list[str], report: Path, page: Path, summary: Summary) -> None:
    """Try the first remedies of a report that was just recorded of CMD, and write them beside it and into its page.

    What is measured goes to stderr: stdout is CMD's. Raises NsysxError if nothing can be tried, KeyboardInterrupt after an
    interruption, with what is known said and written.
    """
    from nsysx.cli.trial_log import log
    from nsysx.inject.nsysx_probe import changes
    from nsysx.outputs import write_text
    from nsysx.reading import tried
    from nsysx.render import json_text
    from nsysx.trying import chosen_changes

    candidates = chosen_changes.remedies(summary.answer, summary.findings or (), changes.changes_by_name())
    if not candidates:
        raise _nothing_to_try()
    options = TryOptions(yes=True)
    talk("")
    _ask(options)
    result = _measure(command, candidates, options, chosen_changes.codes(summary.answer))
    talk("")
    for line in words_of(result).splitlines():
        talk(line)
    if result.measured():
        beside = tried.file_beside(report)
        write_text(beside, json_text.text_of(result.to_json()), force=True)
        wrote(beside)
        _draw(result, page, summary, force=True)
        log(report, tried.of_json(result.to_json()))
    if result.interrupted:
        raise KeyboardInterrupt


def _nothing_to_try() -> NsysxError:
    return NsysxError("the report advises no change that can be tried", slug="try-nothing", exit_code=EXIT_EMPTY)


def _candidates(
    summary: Summary | None, codes: list[str], every_change: Any, options: TryOptions
) -> list[tuple[Any, ...]]:
    """Return what is tried where nothing was asked for: the report's first remedies, else what tells most about its findings."""
    from nsysx.trying import chosen_changes

    if summary is not None and not options.bounds:
        first = chosen_changes.remedies(summary.answer, summary.findings or (), every_change)
        if first:
            return first
    if codes:
        return chosen_changes.advised(codes, every_change, bounds=options.bounds)
    return chosen_changes.every(every_change, bounds=options.bounds)


def _report_of_command(command: list[str]) -> Path | None:
    """Return the report that ``nsysx run`` made of this command in this folder, and say so; None if there is none."""
    from nsysx.reading import tried

    report = tried.report_of(command, Path())
    if report is not None:
        talk(f"nsysx: {report} was recorded of this command: its advice is tried")
    return report


def _outputs(options: TryOptions, report: Path | None) -> dict[str, Path]:
    """Return the files to write: json, html and beside (the report). Raises NsysxError unless all can be written."""
    from nsysx.outputs import check_apart, check_output
    from nsysx.reading import tried

    if options.html is not None and report is None:
        hint = "Record one with nsysx run, or take --json"
        raise NsysxError("--html shows a report's page: name one", slug="try-html", hint=hint, exit_code=EXIT_USAGE)
    asked = {"json": options.json, "html": options.html}
    files = {key: Path(name) for key, name in asked.items() if name not in (None, "-")}
    for file in files.values():
        check_output(file, force=options.force)
    if report is not None:
        files["beside"] = tried.file_beside(report)
        check_output(files["beside"], force=True)
        check_apart(list(files.values()), [report])
    return files


def _measure(
    command: list[str], candidates: Any, options: TryOptions, codes: list[str], spent_s: float = 0.0
) -> TryResult:
    from nsysx.progress import Progress
    from nsysx.trying.session import Session

    with Progress() as line, _ended_by_signals():
        return Session(command, candidates, options=options, show=line, advised=codes, spent_s=spent_s).measure()


def _tell(result: TryResult, options: TryOptions, files: dict[str, Path], summary: Summary | None) -> None:
    """Write what was measured, and print it unless the JSON goes to stdout. The page takes longest, so it is last: a second Ctrl-C
    costs no verdict.
    """
    from nsysx.outputs import write_text
    from nsysx.render import json_text

    told = json_text.text_of(result.to_json())
    for key in ("beside", "json"):
        if key in files:
            write_text(files[key], told, force=options.force or key == "beside")
            wrote(files[key])
    emit(told if options.json == "-" else words_of(result))
    if "html" in files and summary is not None:
        _draw(result, files["html"], summary, force=options.force)


def words_of(result: TryResult) -> str:
    """Return what was measured as a terminal shows it, the verdict on all changes last."""
    from nsysx.trying import trial_sentences

    best = result.best
    measured = best is not None and (best.pairs or best.outcome != "cannot_tell")
    verdict = trial_sentences.verdict_line(best.outcome, best.change if measured else "") if best else ""
    return "\n".join(harmless(line) for line in (*trial_sentences.text(result).splitlines(), verdict))


def _draw(result: TryResult, file: Path, summary: Summary, *, force: bool) -> None:
    """Write the page of a report, with what was measured."""
    from nsysx.answer import answered
    from nsysx.outputs import write_text
    from nsysx.reading import tried
    from nsysx.render import html_page

    page = html_page.render(answered(replace(summary, tried=tried.of_json(result.to_json()))))
    write_text(file, page, force=force)
    wrote(file)


def _advice(report: Path, *, timelines: bool) -> Summary:
    """Return the Summary of a report. Raises NsysxError if it cannot be read."""
    from nsysx import pipeline
    from nsysx.progress import Progress
    from nsysx.ranks import parallel_reading
    from nsysx.reading import report_files

    parallel_reading.limit_threads()
    with Progress() as progress:
        return pipeline.summarize(report_files.reports([report]), timelines=timelines, progress=progress)


def _ask(options: TryOptions) -> None:
    """Say that CMD's files are written again and, on a terminal, ask. Raises typer.Abort if the answer is no."""
    talk(
        "nsysx: CMD runs several times and overwrites its output files. Each run starts anew and is killed when its steps are"
    )
    talk("nsysx: measured; its stdin is /dev/null.")
    if not options.yes and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm("Go on?", default=True, abort=True, err=True)


class _ended_by_signals:  # noqa: N801 - used as a function
    """Meanwhile SIGTERM and SIGHUP do what Ctrl-C does: the run is ended, and what is known is printed.

    Only the first signal does. Another one, of an impatient user or of a kernel that tells of each thread of a parent that ends, would
    interrupt the ending of the program and leave it.
    """

    def __enter__(self) -> None:
        import signal

        self._interrupted = False
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # What is ignored, as under nohup, stays so.
        heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._interrupt) for number in heeded}

    def _interrupt(self, _number: int, _frame: Any) -> None:
        if not self._interrupted:
            self._interrupted = True
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        import signal

        for number, handler in self._before.items():
            signal.signal(number, handler)
