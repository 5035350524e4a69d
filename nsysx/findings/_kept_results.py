"""Lines that make a result once and keep it, in the names of the line that makes it again and again."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: A line that gives what one call makes a name.
NAMED = re.compile(r"^\s*([A-Za-z_]\w*(?:\s*,\s*[A-Za-z_]\w*)*)\s*=\s*([^=\s].*[)\]])\s*(#.*)?$")


def to_keep(made: Sequence[tuple[str, str]]) -> str:
    """Return the lines that make these (names, what they are given) once; each object may make another one."""
    names = ", ".join(dict.fromkeys(name for each, _ in made for name in re.split(r"\s*,\s*", each)))
    (first, value), *others = made
    if any(re.search(r"\bself\b", value) for _, value in made):
        kept, head = "self.kept_" + re.sub(r"\W+", "_", names), ""
        is_new = f'not hasattr(self, "{kept.removeprefix("self.")}")'
    else:
        kept, head = (
            f'kept["{names}"]',
            "kept = {}  # at the top of the file; then in place of "
            + ("these lines:" if others else "this line:")
            + "\n",
        )
        is_new = f'"{names}" not in kept'
    if not others:
        return f"{head}if {is_new}: {kept} = {value}\n{first} = {kept}"
    inside = "".join(f"    {name} = {given}\n" for name, given in made)
    return f"{head}if {is_new}:\n{inside}    {kept} = {names}\n{names} = {kept}"
