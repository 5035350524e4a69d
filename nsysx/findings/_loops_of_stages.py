"""A loop over micro-batches that a program has written out itself, cut in two: all forwards first, then all backwards (GPipe).

By the texts of its lines: messages to another rank, the forward, and a backward in the same round. What the second loop needs of the first
one is kept for each micro-batch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nsysx.findings._pieces_in_text import parsed

_LOOP = re.compile(r"^for\s.+:$")
_MESSAGE = re.compile(r"\b(i?send|i?recv)(_\w+)?\(")
_BACKWARD = re.compile(r"\bbackward\(")
#: What stands in no round: it ends a function, or begins or ends a loop or a block.
_ENDS = re.compile(r"^(return|def|class|for|while|with|if|elif|else|try|except|finally|break|continue|raise)\b")


class _Round(NamedTuple):
    """The lines of a loop before what a backward needs, and from there on."""

    loop: str
    forward: tuple[str, ...]
    backward: tuple[str, ...]


def two_loops(lines: Mapping[str, Any]) -> str:
    """Return such loops among the lines of a file, each as two; "" where none is found. ``lines``: number (text) -> what stands there."""
    numbers = sorted(int(each) for each in lines if str(each).isdigit())
    texts = [str(lines[str(number)]).partition("  #")[0].strip() for number in numbers]
    rounds = (_round(texts, i) for i, text in enumerate(texts) if _LOOP.match(text))
    return "\n".join(line for each in rounds if each for line in _written(each))


def _round(texts: list[str], loop: int) -> _Round | None:
    """Return the loop that begins at a line, None where its rounds have no messages and a backward or are not simple statements."""
    body = list(_statements(texts[loop + 1 :]))
    backward = next((i for i, text in enumerate(body) if _BACKWARD.search(text)), None)
    if backward is None or not any(map(_MESSAGE.search, body)) or not any(map(_MESSAGE.search, body[:backward])):
        return None
    # What the backward is given comes from the next stage: only the second loop asks for it.
    given = {name for name in _read(body[backward]) if any(_received(text, name) for text in body[:backward])}
    begins = min((i for i, text in enumerate(body[:backward]) if _assigned(text) & given), default=backward)
    if given and not any(_received(text, name) for text in body[begins:backward] for name in given):
        return None
    kept = {name for text in body[:begins] for name in _assigned(text)}
    ends = backward + 1
    # The lines do not show where the loop ends: what needs nothing of a micro-batch may stand behind it.
    while ends < len(body) and _read(body[ends]) & (kept | given):
        ends += 1
    return _Round(texts[loop], tuple(body[:begins]), tuple(body[begins:ends])) if begins else None


def _statements(texts: list[str]) -> Iterator[str]:
    for text in texts:
        if _ENDS.match(text) or parsed(text) is None:
            return
        yield text


def _received(text: str, name: str) -> bool:
    message = _MESSAGE.search(text)
    return message is not None and "recv" in message[0] and name in _read(text)


def _names(text: str, context: type[ast.expr_context]) -> set[str]:
    tree = parsed(text)
    nodes = () if tree is None else ast.walk(tree)
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


def _read(text: str) -> set[str]:
    return _names(text, ast.Load)


def _assigned(text: str) -> set[str]:
    return _names(text, ast.Store)


def _written(of_round: _Round) -> list[str]:
    """Return the two loops."""
    needed = {name for text in of_round.backward for name in _read(text)}
    order = [name for text in of_round.forward for name in sorted(_assigned(text))]
    kept = [name for name in dict.fromkeys(order) if name in needed]
    if not kept:
        return []
    target = ", ".join(kept)
    return [
        "in_flight = []",
        of_round.loop,
        *(f"    {text}" for text in of_round.forward),
        f"    in_flight.append({target if len(kept) == 1 else f'({target})'})",
        f"for {target} in in_flight:",
        *(f"    {text}" for text in of_round.backward),
    ]
