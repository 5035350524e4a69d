"""The commands, one line each, in the order in which the help lists them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nsysx import __version__
from nsysx.cli import calibrate, check, compare, config, doctor, explain, export, report, run, whatif
from nsysx.cli.talk import harmless, talk
from nsysx.errors import EXIT_USAGE

app = typer.Typer(
    name="nsysx",
    help="Where the step time of a PyTorch program went, from an Nsight Systems capture.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help text starts in half the time
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command(context_settings={"allow_interspersed_args": False})(run.run)
app.command()(report.report)
app.command(cls=compare.SeveralFiles)(compare.compare)
app.command()(check.check)
app.command()(whatif.whatif)
app.command()(export.export)
app.command()(calibrate.calibrate)
app.command()(doctor.doctor)
app.command()(explain.explain)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nsysx {__version__}")
        raise typer.Exit


def _kept(context: typer.Context, verbose: bool) -> None:
    """Take over the options that a file in this folder keeps, before the command is parsed."""
    group = context.command
    commands = {
        name: {p.name for p in command.params if p.name and p.param_type_name == "option"}
        for name, command in getattr(group, "commands", {}).items()
    }
    file, kept = config.options(commands, Path())
    context.default_map = kept
    if verbose:
        for option, value in kept.get(context.invoked_subcommand or "", {}).items():
            shown = "" if value is True else f" {value}"
            talk(harmless(f"nsysx: {context.invoked_subcommand} --{option.replace('_', '-')}{shown} from {file}"))


@app.callback()
def _common(
    context: typer.Context,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say which options come from nsysx.toml or pyproject.toml.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Where the step time of a PyTorch program went, from an Nsight Systems capture."""
    _kept(context, verbose)
    if context.invoked_subcommand is None:
        talk(context.get_help())
        raise typer.Exit(EXIT_USAGE)
