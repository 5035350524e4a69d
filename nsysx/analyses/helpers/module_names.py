"""What a module is called where its path alone says nothing."""

from __future__ import annotations

import re
from collections.abc import Collection

from nsysx import units

_NUMBER = re.compile(r"\d+|\*")


def is_number(module: str) -> bool:
    """Return whether a module's path is only a number, or "*" for several such: then it is called by its class."""
    return _NUMBER.fullmatch(module) is not None


def by_class(module: str, classes: Collection[str | None]) -> str:
    """Return what a module that is only a number is called, from the class of each module that it stands for.

    "4 x MoE", "MoE (0)"; without one class for all "4 modules" or "module 0".
    """
    alike = set(classes)
    name = alike.pop() if len(alike) == 1 else None
    if not name:
        return units.several(len(classes), "module") if len(classes) > 1 else f"module {module}"
    return f"{len(classes)} x {name}" if len(classes) > 1 else f"{name} ({module})"
