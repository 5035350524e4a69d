"""Where the program itself sets a variable of its environment that counts: the line of its main file that does, where one alone does."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from .probe_bounds import MOST_SOURCE_BYTES
from .settings_state import VALUES

#: What the system keeps of the environment with which a process began.
_BEGAN_WITH = "/proc/self/environ"


def places(environ: Mapping[str, str], began_with: str = _BEGAN_WITH) -> dict[str, str]:
    """Return variable -> file:line for those of ``environ`` that the process did not begin with, and that one line of its main file sets.

    Empty where the system does not tell how the process began, or the main file is none. A line that is one of several may not have run.
    """
    try:
        entries = dict(each.split(b"=", 1) for each in Path(began_with).read_bytes().split(b"\0") if b"=" in each)
    except OSError:
        return {}
    began = {os.fsdecode(name): os.fsdecode(value) for name, value in entries.items()}
    changed = sorted(name for name in VALUES & environ.keys() if began.get(name) != environ[name])
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if not changed or not main:
        return {}
    try:
        path = Path(main).absolute()
        text = path.read_text("utf-8", "replace") if path.stat().st_size <= MOST_SOURCE_BYTES else ""
    except OSError:
        return {}
    lines = text.split("\n")
    set_at = {name: [i for i, line in enumerate(lines, 1) if _sets(name, line)] for name in changed}
    return {name: f"{path}:{numbers[0]}" for name, numbers in set_at.items() if len(numbers) == 1}


def _sets(name: str, line: str) -> bool:
    """Return whether a line sets a variable: an entry of os.environ, setdefault, update or putenv."""
    quoted = rf"['\"]{name}['\"]"
    return (
        re.search(
            rf"^[^#]*\b(environ\s*\[\s*{quoted}\s*\]\s*=[^=]|(environ\.setdefault|putenv)\(\s*{quoted}|"
            rf"environ\.update\(.*({quoted}\s*:|\b{name}\s*=))",
            line,
        )
        is not None
    )
