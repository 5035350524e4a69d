"""``nsysx try``: makes the changes in the running program, unedited, and measures what each gains."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsysx.cli.declared import Grouped, with_options
from nsysx.cli.talk import deliver, emit, harmless, talk, wrote
from nsysx.errors import EXIT_EMPTY, EXIT_USAGE, NsysxError
from nsysx.option import options_of
from nsysx.trying.options import Options

if TYPE_CHECKING:
    from nsysx.trying.result import Result

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
        raise NsysxError("try wants a command", slug="try-command", hint=hint, exit_code=EXIT_USAGE)
    return (Path(before[0]) if before else None), command


def _try(context: typer.Context, words: list[str] | None, *, listed: bool = False, **given: Any) -> None:
    """Run CMD unchanged and with changes made in it, in turn, and say what each change gains. CMD's files stay unedited."""
    from nsysx.inject.nsysx_probe import changes
    from nsysx.outputs import check_output
    from nsysx.trying import choice, wording

    known = changes.known()
    if listed:
        emit(wording.listing(list(known.values())))
        return
    options = options_of(Options, given)
    report, command = _split(words or [], context.meta.get("nsysx.command"))
    candidates = choice.named(options.change, known)
    beside = _beside(report) if report is not None else None
    files = [f for f in (beside, None if options.json in (None, "-") else Path(str(options.json))) if f is not None]
    for file in files:
        check_output(file, force=options.force or file == beside)
    codes = _advice(report) if report is not None else []
    if not candidates:
        candidates = choice.advised(codes, known) if codes else choice.every(known)
    if not candidates:
        raise NsysxError("the report advises no change that can be tried", slug="try-nothing", exit_code=EXIT_EMPTY)
    _ask(options)
    _measure(command, candidates, options, codes, beside)


def _measure(command: list[str], candidates: Any, options: Options, codes: list[str], beside: Path | None) -> None:
    from nsysx.recording.talk import StatusLine
    from nsysx.trying.session import Session

    with StatusLine() as line, _ended_by_signals():
        result = Session(command, candidates, options, line.show, codes).measure()
    _tell(result, options, beside)
    if result.interrupted:
        raise KeyboardInterrupt


def _tell(result: Result, options: Options, beside: Path | None) -> None:
    from nsysx.outputs import write_text
    from nsysx.render import json_text
    from nsysx.trying import wording

    as_json = json_text.text_of(result.to_json())
    if beside is not None:
        write_text(beside, as_json, force=True)
        wrote(beside)
    if options.json is not None:
        deliver(options.json, as_json, force=options.force)
    if options.json != "-":
        emit("\n".join(harmless(line) for line in wording.text(result).splitlines()))


def _beside(report: Path) -> Path:
    stem = report.name
    for ending in sorted(_REPORTS, key=len, reverse=True):
        stem = stem.removesuffix(ending)
    return report.with_name(stem + ".try.json")


def _advice(report: Path) -> list[str]:
    """Return the codes of the findings that the page acts on, and of the others after them."""
    from nsysx import pipeline
    from nsysx.progress import Progress
    from nsysx.ranks import parallel_reading

    parallel_reading.limit_threads()
    with Progress() as progress:
        summary = pipeline.summarize([report], progress=progress)
    codes = [*(action.code for action in summary.answer.do), *(also.code for also in summary.answer.also)]
    return list(dict.fromkeys(code for code in codes if code))


def _ask(options: Options) -> None:
    """Say that CMD's files are written again and, on a terminal, ask. Raises typer.Abort if the answer is no."""
    talk("nsysx: CMD runs several times, each time from its start, and is killed when its steps are measured;")
    talk("nsysx: files that it writes, it writes again. Its stdin is /dev/null.")
    if not options.yes and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm("Go on?", default=True, abort=True, err=True)


class _ended_by_signals:  # noqa: N801 - used as a function
    """Meanwhile SIGTERM and SIGHUP do what Ctrl-C does: the run is ended, and what is known is printed."""

    def __enter__(self) -> None:
        import signal

        def interrupt(_number: int, _frame: Any) -> None:
            raise KeyboardInterrupt

        self._before = {n: signal.signal(n, interrupt) for n in (signal.SIGTERM, signal.SIGHUP)}

    def __exit__(self, *_: object) -> None:
        import signal

        for number, handler in self._before.items():
            signal.signal(number, handler)


def _command(
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
) -> None:
    """Hold what the command line has besides the options of `Options`."""


try_ = with_options(_try, _command, Options)
