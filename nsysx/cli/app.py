"""The commands, one line each, in the order in which the help lists them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from nsysx import __version__
from nsysx.cli import config
from nsysx.cli.cli_bounds import HELP_WIDTH
from nsysx.cli.command_output import be_quiet, harmless, talk
from nsysx.cli.declared_options import Command, Commands, typed_only
from nsysx.errors import EXIT_USAGE

#: Each command with its line in the list of commands, 64 characters at most. Its file has EXAMPLES, and HOW if it is parsed in a
#: way of its own.
COMMANDS = {
    "run": "Profile CMD, unedited, and report.",
    "report": "Say where the step time went.",
    "compare": "Say whether AFTER is faster than BEFORE, and why.",
    "check": "Check a report against a budget, for CI.",
    "whatif": "Say what a change would save.",
    "try": "Make changes in the running CMD and measure their gain.",
    "export": "Hand a report to other tools: Parquet, Perfetto.",
    "ncu": "Print the Nsight Compute command for kernels with time to gain.",
    "calibrate": "Measure once what tracing costs on this machine.",
    "doctor": "Say what works here, and how to fix what does not.",
    "mcp": "Answer the questions of an agent over MCP, on stdin and stdout.",
    "skill": "Write the skill for agents that work with nsysx.",
    "explain": "Explain a finding, a CUDA call or a word.",
}


def _examples_for_help(command: str, examples: Sequence[tuple[str, str]]) -> str:
    """Return the examples of a command for its help, each with a comment beside it or on the next line, behind ``# ``."""
    shown = [(f"  nsysx {command} {words}".rstrip(), f"  # {comment}") for words, comment in examples]
    longest = max((len(line) for line, comment in shown if len(line) + len(comment) <= HELP_WIDTH), default=0)
    lines = ["\b", "Examples:"]  # \b keeps the lines apart
    for line, comment in shown:
        fits = len(line) + len(comment) <= HELP_WIDTH
        lines += [f"{line:<{min(longest, HELP_WIDTH - len(comment))}}{comment}"] if fits else [line, f"    {comment}"]
    return "\n".join(lines)


def _work(name: str) -> tuple[Any, Any]:
    """Return the file of a command and the function in it that does the work."""
    file = "try_" if name == "try" else name
    room = importlib.import_module(f"nsysx.cli.{file}")
    return room, getattr(room, file)


def command_line(words: Sequence[str] = ()) -> typer.Typer:
    """Return the command line. Of all commands, it has only the one that ``words`` begin with, if they do: others are not imported."""
    app = typer.Typer(
        name="nsysx",
        cls=Commands,
        help="Where the step time of a PyTorch program went, from an Nsight Systems capture.",
        invoke_without_command=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help text starts in half the time
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    for name in words[:1] if words and words[0] in COMMANDS else COMMANDS:
        room, work = _work(name)
        how = {"cls": Command, **getattr(room, "HOW", {})}
        app.command(short_help=COMMANDS[name], epilog=_examples_for_help(name, room.EXAMPLES), **how)(work)
    return app


#: Options of all commands, which people type behind the command.
_COMMON = ("-v", "--verbose", "-q", "--quiet")


def common_first(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with the options of all commands before the command; ``help X`` is ``X --help``.

    Only what stands before the first word that is no option moves: the rest is the command's, or CMD's.
    """
    if words and words[0] == "help":
        return [*words[1:2], "--help"]
    if not words or words[0] not in COMMANDS:
        return list(words)
    count = 0
    while count + 1 < len(words) and words[count + 1] in _COMMON:
        count += 1
    behind = [] if words[0] in ("run", "try") else [w for w in words[count + 1 :] if w in _COMMON]
    rest = [w for w in words[count + 1 :] if w not in behind]
    return [*words[1 : count + 1], *behind, words[0], *rest]


#: Options that write to a file or print, and the commands that have them.
_PRINTING, _PRINTING_COMMANDS = ("--json", "--markdown", "--brief"), ("report", "compare", "whatif", "check", "try")


def with_stdout(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with "-", stdout, behind an output that names no file: another option follows, or nothing."""
    if next((word for word in words if not word.startswith("-")), "") not in _PRINTING_COMMANDS:
        return list(words)
    ends = words.index("--") if "--" in words else len(words)
    out: list[str] = []
    for n, word in enumerate(words):
        out.append(word)
        following = words[n + 1] if n + 1 < ends else "--"
        if n < ends and word in _PRINTING and following.startswith("-") and following != "-":
            out.append("-")
    return out


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nsysx {__version__}")
        raise typer.Exit


def _options(name: str) -> tuple[set[str], set[str]]:
    """Return the options of a command, and those of them that no file may set."""
    single = typer.Typer(add_completion=False)
    _, work = _work(name)
    single.command()(work)
    parsed = typer.main.get_command(single).params
    return {p.name for p in parsed if p.name and p.param_type_name == "option"}, typed_only(work)


def _common(
    context: typer.Context,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say which options come from nsysx.toml or pyproject.toml.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print results and errors only, nothing that was done on the way.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Where the step time of a PyTorch program went, from an Nsight Systems capture."""
    if quiet:
        be_quiet()
    # The options kept in a file in this folder apply before the command is parsed.
    file, kept = config.options(COMMANDS, _options, Path())
    context.default_map = kept
    if verbose:
        for option, value in kept.get(context.invoked_subcommand or "", {}).items():
            shown = "" if value is True else f" {value}"
            talk(harmless(f"nsysx: {context.invoked_subcommand} --{option.replace('_', '-')}{shown} from {file}"))
    if context.invoked_subcommand is None:
        talk(context.get_help())
        raise typer.Exit(EXIT_USAGE)
