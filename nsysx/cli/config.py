"""Options that a folder keeps: ``nsysx.toml``, or ``[tool.nsysx]`` in its ``pyproject.toml``; what is typed counts more."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from nsysx.errors import EXIT_USAGE, NsysxError

#: What no file of a folder may decide: what is overwritten, which program is run, what is read or written where.
_TYPED_ONLY = frozenset(
    {"force", "nsys", "nsys_arg", "html", "json", "markdown", "csv", "brief", "junit", "to", "perfetto", "output"}
)
#: No file of options is as long; what is, is not read.
_MOST_BYTES = 1_000_000


def _read(path: Path) -> dict[str, Any]:
    """Return the options of a file, none where there is no such file or it says nothing of nsysx. Errors: NsysxError."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
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


def options(commands: dict[str, set[str]], folder: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the file that counts in ``folder`` and its options by command, "" and nothing where there is none.

    ``commands`` names the options of each command. Errors: NsysxError, exit code 2, for what is not TOML, no option, or one that
    only counts when it is typed.
    """
    for name in ("nsysx.toml", "pyproject.toml"):
        settings = _read(folder / name)
        if settings:
            return name, {command: _checked(name, command, values, commands) for command, values in settings.items()}
    return "", {}


def _checked(file: str, command: str, values: Any, commands: dict[str, set[str]]) -> dict[str, Any]:
    def wrong(what: str, hint: str) -> NsysxError:
        return NsysxError(f"{file}: {what}", slug="bad-config", hint=hint, exit_code=EXIT_USAGE)

    if command not in commands or not isinstance(values, dict):
        raise wrong(f"[{command}] is not a command", f"There are: {', '.join(sorted(commands))}")
    named = {key.replace("-", "_"): value for key, value in values.items()}
    for key in named:
        if key in _TYPED_ONLY:
            raise wrong(f"[{command}] {key}: counts only when it is typed", "Take it out of the file")
        if key not in commands[command]:
            known = ", ".join(sorted(commands[command] - _TYPED_ONLY)).replace("_", "-")
            raise wrong(f"[{command}] {key}: no such option", f"There are: {known}")
    return named
