"""The server: MCP over stdin and stdout, with the official package ``mcp``, which only this file imports."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from nsysx import __version__
from nsysx.errors import NsysxError
from nsysx.render.render_bounds import MOST_JSON_BYTES
from nsysx.render.safe_text import clean
from nsysx.render.small_json import size_of
from nsysx.serving import actions
from nsysx.serving.shelf import Shelf
from nsysx.serving.tools import TOOLS, checked, input_schema

_T = TypeVar("_T")

_INSTRUCTIONS = (
    "load(path), then answer(). Ask insight(id) of one cause before you change code. A wait or a top kernel is no cause: "
    "trust saving. act compare verifies."
)


class ToolAnswers:
    """What the tools answer, one question at a time: figures are made by threads of their own."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self.shelf = Shelf()
        self.allowed = tuple(allowed)
        self._one_at_a_time = anyio.CapacityLimiter(1)

    async def _work(self, work: Callable[[], _T]) -> _T:
        """Return what ``work`` returns; a request that is cancelled does not wait for it."""
        done: _T = await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._one_at_a_time)
        return done

    async def answer(self, name: str, given: dict[str, Any], tell: actions.Tell) -> str:
        """Return the text of an answer. Raises NsysxError, whose one line is what the client gets."""
        asked = checked(name, given)
        if name == "load":
            await tell(0, "reading the report")
            loaded = await self._work(partial(self.shelf.load, Path(asked["path"]).expanduser()))
            return await self._work(loaded.facts)
        if name == "act":
            return await self._act(asked, tell)
        loaded = self.shelf.last
        if name == "answer":
            return await self._work(loaded.answer)
        if name == "insight":
            return await self._work(partial(loaded.insight, asked["id"]))
        columns, where = asked.get("columns", []), asked.get("filter", [])
        return await self._work(partial(loaded.table, asked["name"], columns, asked.get("top", 10), where))

    async def _act(self, asked: dict[str, Any], tell: actions.Tell) -> str:
        what = asked["what"]
        actions.refuse_unless_allowed(what, self.allowed)
        if what == "whatif" and asked.get("changes"):
            return await self._work(partial(self.shelf.last.whatif, asked["changes"]))
        loaded = None if what == "record" and asked.get("command") else self.shelf.last
        if what == "whatif":
            assert loaded is not None
            return await actions.run(what, ["whatif", *map(str, loaded.files)], None, tell)
        return await actions.run(what, actions.words_of(what, loaded, asked), None, tell)


def _fitting(text: str) -> str:
    """Return a text that is not too long, or a sentence on how to ask for less."""
    if size_of(text) <= MOST_JSON_BYTES:
        return text
    return f'{{"left_out": "an answer of {size_of(text)} bytes: ask for fewer rows, fewer columns or one insight"}}\n'


def _result(text: str, *, failed: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=failed)


def made(allowed: Sequence[str]) -> Server[Any]:
    """Return the server, which runs programs only as far as ``allowed`` says."""
    answers = ToolAnswers(allowed)

    async def tools(_context: Any, _params: Any) -> types.ListToolsResult:
        listed = [
            types.Tool(name=name, description=tool.does, input_schema=input_schema(tool))
            for name, tool in TOOLS.items()
        ]
        return types.ListToolsResult(tools=listed)

    async def call(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        async def tell(progress: float, message: str) -> None:
            await context.session.report_progress(progress, None, message)

        try:
            return _result(_fitting(await answers.answer(params.name, params.arguments or {}, tell)))
        except NsysxError as error:
            return _result(clean(str(error), 1500), failed=True)
        except (ValueError, TypeError, OSError, MemoryError) as error:
            return _result(clean(f"{type(error).__name__}: {error}", 600), failed=True)

    return Server("nsysx", version=__version__, instructions=_INSTRUCTIONS, on_list_tools=tools, on_call_tool=call)


async def _serve(allowed: Sequence[str]) -> None:
    server = made(allowed)
    async with stdio_server() as (requests, replies):
        await server.run(requests, replies, server.create_initialization_options())


def serve(allowed: Sequence[str]) -> None:
    """Answer on stdin and stdout until the client ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as an exception it would wait for the thread that waits for stdin
    anyio.run(_serve, allowed)
