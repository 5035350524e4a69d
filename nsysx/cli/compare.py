"""``nsysx compare``: whether one capture is faster than another, and what made the difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsysx.cli.command_output import answering, console, deliver, emit, wrote
from nsysx.cli.declared_options import Command, with_options
from nsysx.cli.shared_options import files_of, schema_option
from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.option import Option
from nsysx.selection import Handling, Selection

#: Shown below the help: what is typed after the command, and what it does.
EXAMPLES = (
    ("before.sqlite after.sqlite", "one capture a side"),
    ("--before a1.sqlite a2.sqlite --after b1.sqlite b2.sqlite", "several, in turn: tells more"),
)

if TYPE_CHECKING:
    from nsysx.comparing.difference_answer import Comparison


class SeveralFiles(Command):
    """Lets ``--before A B --after C`` take several files each; the parser sees one option per file."""

    _OPTIONS = ("--before", "--after", "--noise")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the remaining ``args``, as click does."""
        split: list[str] = []
        option: str | None = None
        for arg in args:
            if arg.startswith("-") and arg != "-":
                option = arg if arg in self._OPTIONS else None
                split += [] if option else [arg]
            else:
                split += [option, arg] if option else [arg]
        return super().parse_args(ctx, split)


HOW = {"cls": SeveralFiles}

Files = Annotated[
    list[Path] | None, typer.Argument(metavar="BEFORE AFTER", help="Reports (.sqlite) or Summaries (.json).")
]


@dataclass(frozen=True)
class CompareArguments:
    """The captures of each side, if they are not arguments, and what is written about them."""

    before: Annotated[Sequence[Path], Option("Captures before the change; ranks count as one.", "FILE...")] = ()
    after: Annotated[Sequence[Path], Option("Captures after the change.", "FILE...")] = ()
    noise: Annotated[
        Sequence[Path], Option("Captures of one unchanged program, to measure how much captures differ.", "FILE...")
    ] = ()
    html: Annotated[Path | None, Option("Write the page to F.", "F", typed_only=True)] = None
    json: Annotated[str | None, Option("Write the comparison as JSON.", "F|-", typed_only=True)] = None
    markdown: Annotated[str | None, Option("Write Markdown for a ticket.", "F|-", typed_only=True)] = None
    change: Annotated[
        Sequence[str],
        Option(
            "What was changed, by the name of its remedy (repeatable): logged beside BEFORE.", "NAME", typed_only=True
        ),
    ] = ()
    margin: Annotated[float, Option("Smallest change that counts.", "PERCENT", least=0, most=100)] = 1.0


JsonSchema = Annotated[bool, schema_option("compare")]


@with_options
def compare(
    files: Files = None,
    *,
    json_schema: JsonSchema = False,
    wanted: CompareArguments,
    selection: Selection,
    handling: Handling,
) -> None:
    """Say whether AFTER is faster than BEFORE, by how much, how sure that is, and what made the difference."""
    from nsysx.outputs import check_output
    from nsysx.progress import Progress

    named = _sides(files, wanted)
    if wanted.json == wanted.markdown == "-":
        raise NsysxError(
            "--json - and --markdown - cannot both write to stdout", slug="two-results", exit_code=EXIT_USAGE
        )
    targets = files_of((wanted.html, wanted.json, wanted.markdown))
    for path in targets:
        check_output(path, force=handling.force)
    from nsysx.ranks import parallel_reading

    parallel_reading.limit_threads()
    from nsysx.comparing import comparison, side_inputs

    with Progress() as progress:
        sides = side_inputs.sides(named, selection, progress=progress, workers=handling.jobs)
        answer = comparison.compare(*sides, margin=wanted.margin / 100)
    _write(answer, wanted, handling)
    for path in targets:
        wrote(path)
    if wanted.change:
        from nsysx.cli.trial_log import log
        from nsysx.trying.compared_as_trial import tried_of

        log(named[0][1][0], [tried_of(answer, ",".join(wanted.change))])


def _sides(files: list[Path] | None, wanted: CompareArguments) -> list[tuple[str, list[Path]]]:
    """Return the captures of each side by its name. Raises NsysxError, exit code 2, unless there are two sides."""
    before, after = list(wanted.before), list(wanted.after)
    if files:
        before, after = ([], []) if before or after or len(files) != 2 else (files[:1], files[1:])
    if not before or not after:
        hint = "nsysx compare BEFORE AFTER, or --before A B --after C D"
        raise NsysxError("compare needs two reports", slug="two-sides", hint=hint, exit_code=EXIT_USAGE)
    return [("before", before), ("after", after), *([("noise", list(wanted.noise))] if wanted.noise else [])]


def _write(answer: Comparison, wanted: CompareArguments, handling: Handling) -> None:
    """Write the comparison to every target asked for, and to the terminal unless it is for programs or for a ticket."""
    if wanted.html is not None:
        from nsysx.outputs import write_text
        from nsysx.render import compare_page

        write_text(wanted.html, compare_page.render(answer, redact=handling.redact), force=handling.force)
    if wanted.json is not None:
        from nsysx.render import json_text

        deliver(wanted.json, json_text.text_of(answer.to_json()), force=handling.force)
    from nsysx.render import compare_text
    from nsysx.trying.trial_sentences import verdict_line

    if wanted.markdown is not None:
        deliver(wanted.markdown, compare_text.markdown(answer, top=handling.top), force=handling.force)
    elif wanted.json is None:
        with answering():
            compare_text.terminal(answer, console())
        emit(verdict_line(answer.verdict, ",".join(wanted.change)))
