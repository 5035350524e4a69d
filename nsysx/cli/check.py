"""``nsysx check``: a report checked against a budget."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nsysx.cli.command_output import deliver
from nsysx.cli.declared_options import with_options
from nsysx.cli.shared_options import files_of, schema_option
from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.option import Option
from nsysx.selection import Handling, Selection

#: Shown below the help: what is typed after the command, and what it does.
EXAMPLES = (
    ("run.sqlite --init > budget.toml", "a budget that this report keeps"),
    ("run.sqlite --budget budget.toml --junit nsysx.xml", "exit code 1 if broken"),
)


@dataclass(frozen=True)
class CheckOutputs:
    """What the report is held against, and what is written about it: the name of a file, "-" for stdout, or None."""

    budget: Annotated[Path | None, Option("The limits, as TOML.", "F")] = None
    baseline: Annotated[Path | None, Option("Summary that relative limits refer to.", "F")] = None
    init: Annotated[bool, Option("Print a budget that this report meets.")] = False
    json: Annotated[str | None, Option("Write the result as JSON.", "F|-", typed_only=True)] = None
    markdown: Annotated[str | None, Option("Write Markdown.", "F|-", typed_only=True)] = None
    junit: Annotated[str | None, Option("Write JUnit XML.", "F|-", typed_only=True)] = None
    github: Annotated[bool, Option("Print annotations for a GitHub workflow.")] = False


def _in_repository(file: str) -> str:
    """Return the path of a recorded file from the current folder: by the longest end that exists here, else as it was recorded."""
    parts = Path(file).parts
    ends = ("/".join(parts[i:]) for i in range(1 if Path(file).is_absolute() else 0, len(parts)))
    return next((end for end in ends if ".." not in end and Path(end).is_file()), file)


JsonSchema = Annotated[bool, schema_option("check")]


@with_options
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A report (.sqlite) or a Summary (.json).")],
    *,
    json_schema: JsonSchema = False,
    wanted: CheckOutputs,
    selection: Selection,
    handling: Handling,
) -> None:
    """Check a report against a budget. Exit code: 0 kept, 1 broken, 5 inconclusive, 4 nothing checked."""
    from nsysx.outputs import check_output

    if (wanted.budget is not None) + wanted.init != 1:
        message = "check needs either --budget or --init"
        raise NsysxError(message, slug="check-what", hint="Begin with: nsysx check FILE --init", exit_code=EXIT_USAGE)
    written = (wanted.json, wanted.markdown, wanted.junit)
    if written.count("-") + wanted.github > 1:
        message = "only one of --json -, --markdown -, --junit - and --github can write to stdout"
        raise NsysxError(message, slug="two-results", exit_code=EXIT_USAGE)
    for path in files_of(written):
        check_output(path, force=handling.force)
    from nsysx.ranks import parallel_reading

    parallel_reading.limit_threads()
    from nsysx.comparing import budget as room
    from nsysx.comparing import side_inputs
    from nsysx.render import check_text, json_text

    capture = side_inputs.measured(file, selection)
    if wanted.budget is None:
        typer.echo(room.init(capture), nl=False)
        return
    base = None if wanted.baseline is None else side_inputs.measured(wanted.baseline)
    verdict = room.check(capture, side_inputs.read_budget(wanted.budget), base)
    texts = json_text.text_of(verdict.to_json()), check_text.markdown(verdict), check_text.junit(verdict)
    for target, text in zip(written, texts, strict=True):
        if target is not None:
            deliver(target, text, force=handling.force)
    if wanted.github:
        sys.stdout.write(check_text.github(verdict, _in_repository))
    elif "-" not in written:
        typer.echo(check_text.terminal(verdict))
    raise typer.Exit(verdict.exit_code)
