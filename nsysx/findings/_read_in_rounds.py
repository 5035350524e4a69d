"""Loops that read a number back in each round, by what they do with it: what takes the place of all rounds, with nothing read.

Augmentations that draw a number for each sample on the GPU and read it to slice by it, and updates whose size is the ratio of two norms of
each parameter, decided on the host (LAMB, LARS).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from nsysx.findings._case import Fix, way
from nsysx.findings._loop_texts import LoopText, loop_around

_READ = r"(?:\.(?:item|tolist|cpu)\(|\b(?:int|float|bool)\()"
_DRAWN = re.compile(r"\b(?:rand|randn|randint|randperm|normal_|uniform_|random_)\(")
_READS = re.compile(_READ)
_MATCHES = re.compile(r"\blinear_sum_assignment\(|\blapjv\(")
_NORM = re.compile(rf"(?:\bnorm\([^=]*|_norm\([^=]*){_READ}|\b(?:float|min|max)\([^=]*norm\(")
_UPDATES = re.compile(r"\.(?:add|sub|addcdiv|mul|lerp)_\(")
_DIVIDES = re.compile(r"/(?!/)")
_PARAMETERS = re.compile(r"param|\bweights?\b|\bp\b|\bgroup\b")
#: What a line does with a row by numbers of its own.
_ROLLS, _FLIPS = re.compile(r"\broll\("), re.compile(r"\bflip\(")
_FILLS = re.compile(r"(?<![.\w])([A-Za-z_]\w*)\[[^\]=]*:[^\]=]*\]\s*(?:=(?!=)|\.(?:zero_|fill_)\()")


def at_once(source: Mapping[str, object] | None, line: int) -> Fix | None:
    """Return the advice about the loop around a line, by the texts of the lines of its file that ran; None for any other loop.

    Samples that are matched one by one are a loop of this kind, too.
    """
    loop = loop_around(source or {}, line)
    if loop is None:
        return None
    if any(_MATCHES.search(text) for text in loop.body):
        return Fix.by_name("pairs-at-once")
    reads = [text for text in loop.body if _READS.search(text)]
    if any(_DRAWN.search(text) for text in reads):
        return _drawn_for_all(loop)
    whole = "\n".join(loop.body)
    if (
        any(_NORM.search(text) for text in reads)
        and _UPDATES.search(whole)
        and _DIVIDES.search(whole)
        and _PARAMETERS.search(loop.header)
    ):
        return Fix.by_name("ratios-on-gpu")
    return None


def _drawn_for_all(loop: LoopText) -> Fix | None:
    """Return the advice with code for what the loop does with its rows, None where that is something else, as with an environment."""
    whole = "\n".join(loop.body)
    rolls, flips, fills = _ROLLS.search(whole), _FLIPS.search(whole), _FILLS.search(whole)
    taken = re.search(rf"(?<![.\w])([A-Za-z_]\w*)\[\s*{re.escape(loop.number)}\b", whole) if loop.number else None
    taken = taken or fills
    if taken is None or not (rolls or flips or fills):
        return None
    x = taken[1]
    code = [f"first = torch.randint(high, (len({x}), parts, 1), device={x}.device)  # for all rows: none is read back"]
    if rolls:
        code += [
            f"at = torch.arange({x}.shape[-1], device={x}.device)",
            f"{x} = {x}.gather(-1, ((at - first[:, :1]) % {x}.shape[-1]).expand_as({x}))  # each row rolled by its own number",
        ]
    if fills:
        code += [
            f"at = torch.arange({x}.shape[1], device={x}.device)",
            f"{x} = {x}.masked_fill(((at >= first) & (at < first + width)).any(1)[..., None], 0.0)  # {x}: [rows, length, channels]",
        ]
    if flips:
        code += [
            f"{x} = torch.where(torch.rand(len({x}), 1, 1, device={x}.device) < 0.5, {x}.flip(-1), {x})  # half of the rows"
        ]
    return Fix.by_name(way("drawn-for-all", paste="\n".join(code)))


def fix_at(source: Mapping[str, Any], file: str | None, line: int | None) -> Fix | None:
    """Return the same for a place, by the texts of all files."""
    of_file = source.get(file or "")
    return at_once(of_file, line) if isinstance(of_file, Mapping) and line else None
