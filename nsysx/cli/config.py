"""Options kept in a folder: ``nsysx.toml``, or ``[tool.nsysx]`` in its ``pyproject.toml``; the command line overrides them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from nsysx.cli.cli_bounds import MOST_OPTION_BYTES
from nsysx.errors import EXIT_USAGE, NsysxError

#: Name of a command -> its options, and those of them that no file may set.
OptionsOf = Callable[[str], tuple[set[str], set[str]]]


def _read(path: Path) -> dict[str, Any]:
    """Return the options in a file, none if there is no such file or nothing about nsysx in it. Raises NsysxError."""
    try:
        if not path.is_file() or path.stat().st_size > MOST_OPTION_BYTES:
            return {}
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    whole = path.name == "nsysx.toml"
    if not whole and "tool.nsysx" not in text:  # most folders have one, and few reason to wait for a parser
        return {}
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        settings = tomllib.loads(text)
    except ValueError as error:
        raise NsysxError(f"{path.name}: is not TOML: {error}", slug="bad-config", exit_code=EXIT_USAGE) from None
    chosen: Any = settings if whole else settings.get("tool", {}).get("nsysx", {})
    return chosen if isinstance(chosen, dict) else {}


def options(commands: Collection[str], options_of: OptionsOf, folder: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the file that counts in ``folder`` and its options by command, or "" and nothing.

    ``options_of`` returns the options of a command, and those of them that no file may set. Raises NsysxError, exit code 2, if
    the file is not TOML, or for an option that does not exist or may only be typed.
    """
    for name in ("nsysx.toml", "pyproject.toml"):
        settings = _read(folder / name)
        if settings:
            return name, {
                command: _checked(name, command, values, commands, options_of) for command, values in settings.items()
            }
    return "", {}


def _checked(file: str, command: str, values: Any, commands: Collection[str], options_of: OptionsOf) -> dict[str, Any]:
    def wrong(problem: str, hint: str) -> NsysxError:
        return NsysxError(f"{file}: {problem}", slug="bad-config", hint=hint, exit_code=EXIT_USAGE)

    if command not in commands or not isinstance(values, dict):
        raise wrong(f"[{command}] is not a command", f"There are: {', '.join(sorted(commands))}")
    named = {key.replace("-", "_"): value for key, value in values.items()}
    options, typed_only = options_of(command)
    for key in named:
        if key in typed_only:
            raise wrong(f"[{command}] {key}: only the command line may set this", "Take it out of the file")
        if key not in options:
            names = ", ".join(sorted(options - typed_only)).replace("_", "-")
            raise wrong(f"[{command}] {key}: no such option", f"There are: {names}")
    return named
