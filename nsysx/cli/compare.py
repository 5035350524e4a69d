"""``nsysx compare``: whether one capture is faster than another, and what made the difference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from nsysx.cli.declared import TYPED_ONLY, with_options
from nsysx.cli.options import Html, Markdown, files_of
from nsysx.cli.talk import answering, console, deliver, wrote
from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.option import options_of
from nsysx.selection import Handling, Selection

#: Shown below the help: what is typed after the command, and what it does.
EXAMPLES = (
    ("before.sqlite after.sqlite", "one capture a side"),
    ("--before a1.sqlite a2.sqlite --after b1.sqlite b2.sqlite", "several, in turn: tells more"),
)

if TYPE_CHECKING:
    from nsysx.comparing.comparison import Comparison


class SeveralFiles(TyperCommand):
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


Files = Annotated[
    list[Path] | None, typer.Argument(metavar="BEFORE AFTER", help="Reports (.sqlite) or Summaries (.json).")
]
Before = Annotated[
    list[Path] | None, typer.Option(metavar="FILE...", help="Captures before the change; ranks count as one.")
]
After = Annotated[list[Path] | None, typer.Option(metavar="FILE...", help="Captures after the change.")]
Noise = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE...", help="Captures of one unchanged program, to measure how much captures differ."),
]
Json = Annotated[str | None, typer.Option(metavar="F|-", help="Write the comparison as JSON."), TYPED_ONLY]
Margin = Annotated[float, typer.Option(min=0, max=100, metavar="PERCENT", help="Smallest change that counts.")]


def _compare(
    *,
    files: list[Path] | None,
    before: list[Path] | None,
    after: list[Path] | None,
    noise: list[Path] | None,
    html: Path | None,
    json: str | None,
    markdown: str | None,
    margin: float,
    **given: Any,
) -> None:
    """Say whether AFTER is faster than BEFORE, by how much, how sure that is, and what made the difference."""
    from nsysx.outputs import check_output
    from nsysx.progress import Progress

    selection, handling = options_of(Selection, given), options_of(Handling, given)
    named = _sides(files, before, after, noise)
    if json == markdown == "-":
        raise NsysxError(
            "--json - and --markdown - cannot both write to stdout", slug="two-results", exit_code=EXIT_USAGE
        )
    targets = files_of((html, json, markdown))
    for path in targets:
        check_output(path, force=handling.force)
    from nsysx.ranks import parallel_reading

    parallel_reading.limit_threads()
    from nsysx.comparing import comparison, inputs

    with Progress() as progress:
        sides = inputs.sides(named, selection, progress=progress, workers=handling.jobs)
        answer = comparison.compare(*sides, margin=margin / 100)
    _write(answer, html, json, markdown, handling)
    for path in targets:
        wrote(path)


def _command(
    *,
    files: Files = None,
    before: Before = None,
    after: After = None,
    noise: Noise = None,
    html: Html = None,
    json: Json = None,
    markdown: Markdown = None,
    margin: Margin = 1.0,
) -> None:
    """Hold what the command line has besides the shared options."""


compare = with_options(_compare, _command, Selection, Handling)


def _sides(files: Files, before: Before, after: After, noise: Noise) -> list[tuple[str, list[Path]]]:
    """Return the captures of each side by its name. Raises NsysxError, exit code 2, unless there are two sides."""
    if not files:
        files_before, files_after = before, after
    elif before or after or len(files) != 2:
        files_before = files_after = None
    else:
        files_before, files_after = files[:1], files[1:]
    if not files_before or not files_after:
        hint = "nsysx compare BEFORE AFTER, or --before A B --after C D"
        raise NsysxError("compare wants two sides", slug="two-sides", hint=hint, exit_code=EXIT_USAGE)
    return [("before", files_before), ("after", files_after), *([("noise", noise)] if noise else [])]


def _write(answer: Comparison, html: Html, json: Json, markdown: Markdown, handling: Handling) -> None:
    """Write the comparison to every target asked for, or to the terminal if there is none."""
    if html is not None:
        from nsysx.outputs import write_text
        from nsysx.render import compare_page

        write_text(html, compare_page.render(answer, redact=handling.redact), force=handling.force)
    if json is not None:
        from nsysx.render import json_text

        deliver(json, json_text.text_of(answer.to_json()), force=handling.force)
    from nsysx.render import compare_text

    if markdown is not None:
        deliver(markdown, compare_text.markdown(answer, top=handling.top), force=handling.force)
    elif html is None and json is None:
        with answering():
            compare_text.terminal(answer, console())
