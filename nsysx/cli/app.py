"""The commands, one line each, in the order in which the help lists them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from nsysx import __version__
from nsysx.cli import calibrate, check, compare, config, doctor, explain, export, report, run, try_, whatif
from nsysx.cli.declared import Grouped, typed_only
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


#: The options of each command that no file may set.
_TYPED_ONLY: dict[str, set[str]] = {}


#: Columns of an 80-column terminal that are left beside the indentation.
_WIDTH = 76


def _below(command: str, examples: Sequence[tuple[str, str]]) -> str:
    """Return the examples of a command for its help, each with a comment beside it or on the next line, behind ``# ``."""
    shown = [(f"  nsysx {command} {words}".rstrip(), f"  # {comment}") for words, comment in examples]
    longest = max((len(line) for line, comment in shown if len(line) + len(comment) <= _WIDTH), default=0)
    lines = ["\b", "Examples:"]  # \b keeps the lines apart
    for line, comment in shown:
        fits = len(line) + len(comment) <= _WIDTH
        lines += [f"{line:<{min(longest, _WIDTH - len(comment))}}{comment}"] if fits else [line, f"    {comment}"]
    return "\n".join(lines)


def _add(room: ModuleType, command: Callable[..., None], short: str, **more: Any) -> None:
    """Add a command of a file. ``short`` is its line in the list of commands, 64 characters at most."""
    name = command.__name__
    _TYPED_ONLY[name] = typed_only(command)
    app.command(short_help=short, epilog=_below(name, room.EXAMPLES), **more)(command)


_add(
    run, run.run, "Profile CMD, unedited, and report.", cls=Grouped, context_settings={"allow_interspersed_args": False}
)
_add(report, report.report, "Say where the step time went.")
_add(compare, compare.compare, "Say whether AFTER is faster than BEFORE, and why.", cls=compare.SeveralFiles)
_add(check, check.check, "Check a report against a budget, for CI.")
_add(whatif, whatif.whatif, "Say what a change would save.")
_add(try_, try_.try_, "Make changes in the running CMD and measure their gain.", cls=try_.BeforeCommand)
_add(export, export.export, "Hand a report to other tools: Parquet, Perfetto.")
_add(calibrate, calibrate.calibrate, "Measure once what tracing costs on this machine.")
_add(doctor, doctor.doctor, "Say what works here, and how to fix what does not.")
_add(explain, explain.explain, "Explain a finding, a CUDA call or a word.")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nsysx {__version__}")
        raise typer.Exit


def _kept(context: typer.Context, verbose: bool) -> None:
    """Apply the options kept in a file in this folder, before the command is parsed."""
    group = context.command
    commands = {
        name: {p.name for p in command.params if p.name and p.param_type_name == "option"}
        for name, command in getattr(group, "commands", {}).items()
    }
    file, kept = config.options(commands, _TYPED_ONLY, Path())
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
