"""``nsysx mcp``: the server for agents, on stdin and stdout."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Annotated

from nsysx.cli.declared_options import with_options
from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.option import Option

#: Shown below the help: what is typed after the command, and what it does.
EXAMPLES = (
    ("", "as a client starts it: reads reports, runs no program"),
    ("--allow try --allow record", "may run programs, too"),
)


@dataclass(frozen=True)
class Allowed:
    """What the server may do beside reading."""

    allow: Annotated[
        tuple[str, ...], Option("Let act run programs: try or record (repeatable).", "NAME", typed_only=True)
    ] = ()


@with_options
def mcp(*, allowed: Allowed) -> None:
    """Answer the questions of an agent over MCP (stdio): load, answer, insight, table, act."""
    from nsysx.serving import tools

    names = [name.strip() for words in allowed.allow for name in words.split(",") if name.strip()]
    if unknown := next((name for name in names if name not in tools.RUNS), ""):
        message = f"--allow {unknown}: is not something that runs programs"
        raise NsysxError(message, slug="mcp-allow", hint="There are: try, record", exit_code=EXIT_USAGE)
    if importlib.util.find_spec("mcp") is None:
        hint = "pip install 'nsysx[mcp]'"
        raise NsysxError("the package mcp is not installed", slug="mcp-missing", hint=hint, exit_code=EXIT_USAGE)
    from nsysx.ranks import parallel_reading
    from nsysx.serving import server

    parallel_reading.limit_threads()
    server.serve(names)
