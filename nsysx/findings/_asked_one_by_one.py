"""The code that asks a network for all inputs of a loop at once, where the loop makes a batch of one of each, as for games and trees."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from nsysx.findings._loop_texts import loop_around

#: p, v = net(leaf.planes[None].to(device))
_ASKS = re.compile(
    r"^(?P<answers>[A-Za-z_]\w*(?:\s*,\s*[A-Za-z_]\w*)*)\s*=\s*(?P<net>[\w.]+)\((?P<input>(?P<root>[A-Za-z_]\w*)[\w.]*(?:\(\))?)"
    r"(?:\[None\]|\.unsqueeze\(0\)|\[None, \.\.\.\])(?P<rest>(?:\.\w+\([^()]*\))*)\)$"
)
_HEADER = re.compile(r"^for\s+(?P<each>[A-Za-z_]\w*)\s+in\s+(?P<all>[\w.]+)\s*:$")


def asked_at_once(source: Mapping[str, Any], file: str | None, line: int | None) -> str:
    """Return the loop around a line with one call of the network for all rounds, "" where its text is not of that form.

    Each round gets its own answers as before, a batch of one on the host, so that its other lines stay.
    """
    of_file = source.get(file or "")
    loop = loop_around(of_file, line) if isinstance(of_file, Mapping) and line else None
    head = _HEADER.match(loop.header.strip()) if loop is not None else None
    if loop is None or head is None:
        return ""
    body = [text.strip() for text in loop.body]
    asking = next((number for number, text in enumerate(body) if _ASKS.match(text)), None)
    asks = _ASKS.match(body[asking]) if asking is not None else None
    if asks is None or asking is None or asking > 1 or len({len(text) - len(text.lstrip()) for text in loop.body}) > 1:
        return ""
    each, every, root = head["each"], head["all"], asks["root"]
    made = re.match(rf"{re.escape(root)}\s*=\s*(?!=)(.*)$", body[0]) if asking == 1 else None
    if (made is None) != (root == each) or (asking == 1 and made is None):
        return ""
    inputs = f"{root}s" if made else every
    answers = [name.strip() for name in asks["answers"].split(",")]
    stacked = f"{asks['net']}(torch.stack([{asks['input']} for {root} in {inputs}]){asks['rest']})"
    rows = "".join(f", {name}.split(1)" for name in answers)
    names = ", ".join(dict.fromkeys([each, root, *answers]))
    code = [f"{inputs} = [{made[1]} for {each} in {every}]"] if made else []
    several = f"(each.cpu() for each in {stacked})" if answers[1:] else f"{stacked}.cpu()"
    code += [f"{', '.join(answers)} = {several}"]
    code += [
        f"for {names} in zip({every}{f', {inputs}' if made else ''}{rows}):",
        *(f"    {text}" for text in body[asking + 1 :]),
    ]
    return "\n".join(code)
