"""The five tools: their schemas, which are all that a client reads before it begins, and the check of what it asks."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nsysx.errors import EXIT_USAGE, NsysxError

Kind = Literal["string", "integer", "strings", "object"]

#: What ``act`` can do; the last two run programs, and are refused unless ``nsysx mcp --allow`` names them.
READS, RUNS = ("whatif", "compare", "check"), ("try", "record")
#: Options of a command that reads that would have it write files, over others, too: a client that may only read does not.
WRITES = ("--html", "--json", "--markdown", "--junit", "--force")


@dataclass(frozen=True)
class Argument:
    """One argument: its type, what it means, and the values that it takes if they are few."""

    kind: Kind
    meaning: str = ""
    words: tuple[str, ...] = ()
    needed: bool = False


@dataclass(frozen=True)
class ToolSpec:
    """One tool: what it answers, and its arguments by name."""

    does: str
    arguments: Mapping[str, Argument] = field(default_factory=dict)


TOOLS: Mapping[str, ToolSpec] = {
    "load": ToolSpec(
        "Read an Nsight Systems report (.sqlite, .nsys-rep, a folder of ranks). It stays loaded; the other tools ask the last one.",
        {"path": Argument("string", needed=True)},
    ),
    "answer": ToolSpec(
        "What limits the step, its first three causes with place, saving and remedy, and what to beware of. Times are ns of one step."
    ),
    "insight": ToolSpec(
        "One finding whole: conditions, evidence, code to paste, what was tried, how to verify.",
        {"id": Argument("string", "id of a cause, or a code such as NSX101", needed=True)},
    ),
    "table": ToolSpec(
        "Rows of a table, largest first: findings, parts, steps, lines, modules, kernels, waits, copies, settings, ... "
        "A wrong name is answered with all names.",
        {
            "name": Argument("string", needed=True),
            "columns": Argument("strings", "default: the important ones"),
            "top": Argument("integer", "default 10"),
            "filter": Argument("strings", "COLUMN=VALUE, COLUMN~PART, COLUMN>N, COLUMN<N; all must hold"),
        },
    ),
    "act": ToolSpec(
        "whatif: replay the steps with changes. try: make changes in the running program and measure. compare: loaded report against "
        "after. check: against a budget. record: profile command. try and record run programs: the user must allow them.",
        {
            "what": Argument("string", words=(*READS, *RUNS), needed=True),
            "changes": Argument("object", 'whatif: {"graph": "all"}, {"remove_wait": "loss.py:47"}; {} lists all'),
            "change": Argument("strings", "try, compare: names of remedies; default: those advised"),
            "command": Argument("strings", "try, record: words; default: the recorded command"),
            "after": Argument("string", "compare: the report after the change"),
            "budget": Argument("string", "check: a TOML file"),
            "output": Argument("string", "record: path of the report without its ending"),
            "options": Argument("strings", "more options of the nsysx command, such as --memory"),
        },
    ),
}

_TYPES: Mapping[Kind, Mapping[str, Any]] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "strings": {"type": "array", "items": {"type": "string"}},
    "object": {"type": "object"},
}


def input_schema(tool: ToolSpec) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments."""
    properties = {}
    for name, argument in tool.arguments.items():
        properties[name] = {**_TYPES[argument.kind]}
        if argument.meaning:
            properties[name]["description"] = argument.meaning
        if argument.words:
            properties[name]["enum"] = list(argument.words)
    needed = [name for name, argument in tool.arguments.items() if argument.needed]
    return {"type": "object", "properties": properties, **({"required": needed} if needed else {})}


def wrong(message: str, hint: str = "") -> NsysxError:
    """Return the error for a question that is asked wrongly."""
    return NsysxError(message, slug="mcp-argument", hint=hint, exit_code=EXIT_USAGE)


def checked(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a tool in their types: "25" is 25, and "a,b" a list. Raises NsysxError with the right name."""
    if name not in TOOLS:
        raise wrong(f"{name[:40]}: no such tool", f"There are: {', '.join(TOOLS)}")
    there = TOOLS[name].arguments
    for key in arguments:
        if key not in there:
            near = difflib.get_close_matches(key, there, 1, 0.5)
            hint = f"Did you mean {near[0]}?" if near else f"{name} takes: {', '.join(there) or 'nothing'}"
            raise wrong(f"{name}: no argument {key[:40]}", hint)
    for key, argument in there.items():
        if argument.needed and arguments.get(key) in (None, "", []):
            raise wrong(f"{name} needs {key}", argument.meaning)
    return {key: _typed(key, there[key], value) for key, value in arguments.items() if value is not None}


def _typed(key: str, argument: Argument, value: Any) -> Any:
    if argument.kind == "strings":
        listed = value if isinstance(value, list | tuple) else [*map(str.strip, str(value).split(","))]
        if key == "command" and isinstance(value, str):
            listed = [value]
        return [str(word) for word in listed if str(word)]
    if argument.kind == "integer":
        try:
            number = float(value) if not isinstance(value, bool) else float("nan")
            if number == int(number) and number >= 0:
                return int(number)
        except (TypeError, ValueError, OverflowError):
            pass
        raise wrong(f"{key}: {str(value)[:40]} is not a number", "Give one such as 25")
    if argument.kind == "object":
        if not isinstance(value, Mapping):
            raise wrong(f"{key}: is not an object", argument.meaning)
        return dict(value)
    if isinstance(value, Mapping | list):
        raise wrong(f"{key}: is not a text", argument.meaning)
    if argument.words and str(value) not in argument.words:
        raise wrong(f"{key}: {str(value)[:40]} is unknown", f"There are: {', '.join(argument.words)}")
    return str(value)
