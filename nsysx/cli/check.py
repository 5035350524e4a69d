"""``nsysx check``: a report checked against a budget."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from nsysx.cli.declared import TYPED_ONLY, with_options
from nsysx.cli.options import files_of
from nsysx.cli.talk import deliver
from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.option import options_of
from nsysx.selection import Handling, Selection

#: Shown below the help: what is typed after the command, and what it does.
EXAMPLES = (
    ("run.sqlite --init > budget.toml", "a budget that this report keeps"),
    ("run.sqlite --budget budget.toml --junit nsysx.xml", "exit code 1 if broken"),
)


def _check(
    file: Path,
    *,
    budget: Path | None,
    baseline: Path | None,
    init: bool,
    json: str | None,
    markdown: str | None,
    junit: str | None,
    github: bool,
    **given: Any,
) -> None:
    """Check a report against a budget. Exit code: 0 kept, 1 broken, 5 inconclusive, 4 nothing measured."""
    from nsysx.outputs import check_output

    selection, force = options_of(Selection, given), options_of(Handling, given).force
    if (budget is not None) + init != 1:
        message = "check wants either --budget or --init"
        raise NsysxError(message, slug="check-what", hint="Begin with: nsysx check FILE --init", exit_code=EXIT_USAGE)
    if (json, markdown, junit).count("-") + github > 1:
        message = "only one of --json -, --markdown -, --junit - and --github can write to stdout"
        raise NsysxError(message, slug="two-results", exit_code=EXIT_USAGE)
    for path in files_of((json, markdown, junit)):
        check_output(path, force=force)
    from nsysx.ranks import parallel_reading

    parallel_reading.limit_threads()
    from nsysx.comparing import budget as room
    from nsysx.comparing import inputs
    from nsysx.render import check_text, json_text

    capture = inputs.measured(file, selection)
    if init:
        typer.echo(room.init(capture), nl=False)
        return
    assert budget is not None
    base = None if baseline is None else inputs.measured(baseline)
    verdict = room.check(capture, inputs.read_budget(budget), base)
    for target, text in (
        (json, json_text.text_of(verdict.to_json())),
        (markdown, check_text.markdown(verdict)),
        (junit, check_text.junit(verdict)),
    ):
        if target is not None:
            deliver(target, text, force=force)
    if github:
        sys.stdout.write(check_text.github(verdict))
    elif "-" not in (json, markdown, junit):
        typer.echo(check_text.terminal(verdict))
    raise typer.Exit(verdict.exit_code)


def _command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A report (.sqlite) or a Summary (.json).")],
    *,
    budget: Annotated[Path | None, typer.Option(metavar="F", help="The limits, as TOML.")] = None,
    baseline: Annotated[Path | None, typer.Option(metavar="F", help="Summary that relative limits refer to.")] = None,
    init: Annotated[bool, typer.Option("--init", help="Print a budget that this report meets.")] = False,
    json: Annotated[str | None, typer.Option(metavar="F|-", help="Write the result as JSON."), TYPED_ONLY] = None,
    markdown: Annotated[str | None, typer.Option(metavar="F|-", help="Write Markdown."), TYPED_ONLY] = None,
    junit: Annotated[str | None, typer.Option(metavar="F|-", help="Write JUnit XML."), TYPED_ONLY] = None,
    github: Annotated[bool, typer.Option("--github", help="Print annotations for a GitHub workflow.")] = False,
) -> None:
    """Hold what the command line has besides the shared options."""


check = with_options(_check, _command, Selection, Handling)
