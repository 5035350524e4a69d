"""The line of a program that gives each expert its room, and how it reads with less of it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nsysx.findings._case import Fix
from nsysx.model import Row

#: A line that makes a room of one of its settings, times or divided by something; what compares with it makes none.
_MAKES = re.compile(r"^\s*(?:return\b|[\w.]*capacity\w*\s*=(?!=))(?P<value>.*[*/].*)$")
_SETTING = re.compile(r"(?<![\w./])(?<!/ )(?:\w+\.)*\w*capacity\w*\b(?!\s*\()")
_ROUNDS = re.compile(r"\b(ceil|int|max|min|floor)\(|//")


def with_less_room(fix: Fix, source: Mapping[str, Mapping[str, object]], file: object, share: float) -> tuple[Fix, Row]:
    """Return the advice with the only line of a file that makes room for experts of a setting, and its place; ``share``: of the room what
    is enough. The advice as it is and no place where no line does, or several do.
    """
    makers = [
        (int(number), text.strip(), made["value"])
        for number, text in source.get(str(file), {}).items()
        if isinstance(text, str) and number.isdigit() and (made := _MAKES.match(text)) is not None
        if _SETTING.search(made["value"]) and _ROUNDS.search(made["value"])
    ]
    if len(makers) != 1:
        return fix, {}
    ((line, text, value),) = makers
    setting = _SETTING.search(value)
    assert setting is not None
    name = setting[0].rpartition(".")[2]
    begin = text.rindex(value.strip()) + value.strip().index(setting[0])
    less = f"{text[:begin]}{share:.2g} * {text[begin:]}  # or set {name} to {share:.2g} times what it is"
    return fix.but(paste=less), {"file": str(file), "line": line}
