"""The loop over parameters that a line stands in, by the texts of the lines around it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from nsysx.findings._work_bounds import MOST_LOOP_LINES

_HEADER = re.compile(r"^for\s+(.+?)\s+in\s+(.+?)\s*:\s*(#.*)?$")
_OF_PARAMETER = re.compile(r"\b(\w+)\.(?:grad|data|detach\(\)|full_tensor\(\)|to_local\(\))")
_CONDITION = re.compile(r"^if\s+(.+?)\s*:\s*(#.*)?$")
#: What gradients are clipped to: it is divided by the norm.
_CLIPS = re.compile(r"([A-Za-z_][\w.]*|\d[\d.]*)\s*/\s*\(?\s*\w+\s*(?:\+\s*1e-\d+|\.clamp)")
#: What the norm of all is called: the root of what the loop adds up.
_ROOT = re.compile(
    r"^(\w+)\s*=\s*(?:\w+\s*\*\*\s*\(?\s*(?:0?\.5|1\s*/\s*2)\b|(?:math|torch|np)\.sqrt\(\w+\)|\w+\.sqrt\(\))"
)
#: Calls and conditions that would not say the same of each parameter again.
_ALTERS = re.compile(r"\b(next|pop)\(|:=|%|\b(grad is|is not None|is None)\b")


class ParameterLoop(NamedTuple):
    """``header``: ``for p in params``, ``name`` of the parameter in it. ``split``: the condition under which a line in it is run, "" where
    always; ``most``: what the norm of gradients is clipped to; ``whole``: what that norm is called behind the loop.
    """

    header: str = "for p in model.parameters()"
    name: str = "p"
    split: str = ""
    most: str = "max_norm"
    whole: str = "total"


def parameters_around(texts: Mapping[str, Any], line: int) -> ParameterLoop:
    """Return the loop in which a line stands; ``texts``: of the file's lines. A common one where its header or parameter is not seen."""
    theirs = {int(number): str(text).strip() for number, text in texts.items() if str(number).isdigit()}
    near = range(line - 1, line - MOST_LOOP_LINES, -1)
    first = next((number for number in near if _HEADER.match(theirs.get(number, ""))), 0)
    behind = [theirs.get(number, "") for number in range(line, line + MOST_LOOP_LINES)]
    most = next((m[1] for text in behind if (m := _CLIPS.search(text))), "max_norm")
    whole = next((m[1] for text in behind if (m := _ROOT.match(text))), "total")
    header = _HEADER.match(theirs.get(first, ""))
    if header is None:
        return ParameterLoop(most=most, whole=whole)
    names = set(re.findall(r"\w+", header[1]))
    inside = " ".join(theirs.get(number, "") for number in range(first + 1, line + 2))
    name = next((each for each in _OF_PARAMETER.findall(inside) if each in names), "")
    if not name:
        return ParameterLoop(most=most, whole=whole)
    condition = _CONDITION.match(theirs.get(line - 1, "")) if line - 1 > first else None
    split = condition[1] if condition and re.search(rf"\b{name}\b", condition[1]) else ""
    return ParameterLoop(f"for {header[1]} in {header[2]}", name, "" if _ALTERS.search(split) else split, most, whole)
