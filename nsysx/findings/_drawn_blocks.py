"""Generators that exchange a block, wait for it and hand it out: the exchange begins only when the loop that draws asks for the next."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nsysx.analyses.lines import texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.profile import Profile
from nsysx.findings._loop_texts import depth_of
from nsysx.findings._pieces_in_text import names_in, parsed
from nsysx.model import Row

_YIELDS = re.compile(r"^\s*yield\s+(\w+)\s*$")
_RECEIVED = "received"


class DrawnBlocks(NamedTuple):
    """The lines of a generator that begin an exchange before they hand out what is there, and where it waits now."""

    paste: str
    where: Row


def drawn_ahead(profile: Profile, code: CodeLines, where: Row) -> DrawnBlocks | None:
    """Return how a generator that calls the function of an exchange, at ``where``, makes it run ahead; None where none draws blocks so."""
    source = texts(profile).get(str(where.get("file")), {})
    by_function = dict[str, dict[int, str]]()
    for file, line, function in code.places.iter_rows():
        text = source.get(str(line)) if isinstance(source, Mapping) else None
        if file == where.get("file") and function and isinstance(text, str):
            by_function.setdefault(function, {})[line] = text.rstrip()
    makers = {name.rpartition(".")[2] for name, lines in by_function.items() if where.get("line") in lines}
    for lines in by_function.values():
        rows = sorted(lines.items())
        for name in makers:
            ahead = begun_ahead([text for _, text in rows], name)
            if ahead is not None:
                paste, waits = ahead
                return DrawnBlocks(paste, {"file": where["file"], "line": rows[waits][0]})
    return None


def begun_ahead(lines: Sequence[str], exchange: str) -> tuple[str, int] | None:
    """Return the lines of a generator in place of its own (``lines``), and which of these waits; ``exchange``: the function that exchanges.

    It hands out a block, and in each round of a loop begins an exchange of it, waits, and hands out what came.
    """
    starts = [n for n, text in enumerate(lines) if re.search(rf"\b{re.escape(exchange)}\(", text)]
    if len(starts) != 1:
        return None
    (start,) = starts
    depth = depth_of(lines[start])
    heads = [n for n in range(start) if lines[n].lstrip().startswith("for ") and depth_of(lines[n]) < depth]
    hands_out = next((n for n in range(start + 1, len(lines)) if _YIELDS.match(lines[n])), -1)
    block = _YIELDS.match(lines[hands_out])
    if not heads or hands_out < 0 or block is None or depth_of(lines[hands_out]) != depth:
        return None
    waits = lines[start + 1 : hands_out]
    waiting = [n for n, text in enumerate(waits) if ".wait()" in text]
    others = [text for text in waits if ".wait()" not in text and not text.lstrip().startswith("for ")]
    first = any((match := _YIELDS.match(text)) and match[1] == block[1] for text in lines[: heads[-1]])
    begun = _begun(lines[start].strip(), block[1])
    if not waiting or others or not first or not begun or len(lines) > hands_out + 1:
        return None
    inside = [text[depth - 4 :] if depth >= 4 else text for text in waits]
    paste = [
        f"{lines[heads[-1]].strip()}  # in place of all lines from the first yield on",
        f"    {begun}",
        f"    yield {block[1]}",
        *inside,
        f"    {block[1]} = {_RECEIVED}",
        f"yield {block[1]}",
    ]
    return "\n".join(paste), start + 1 + waiting[-1]


def _begun(text: str, block: str) -> str:
    """Return a line that gives an exchange of a block another name for what comes, "" where it names none."""
    tree = parsed(text)
    made = tree.body[0] if tree is not None and tree.body else None
    if not isinstance(made, ast.Assign) or not isinstance(made.targets[0], ast.Tuple):
        return ""
    names = [each.id for each in made.targets[0].elts if isinstance(each, ast.Name)]
    given = names_in(made.value)
    if block not in names or block not in given or _RECEIVED in given:
        return ""
    return f"{', '.join(_RECEIVED if name == block else name for name in names)} = {ast.unparse(made.value)}"
