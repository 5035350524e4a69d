"""Names come from somebody else's program: make them visible, short and harmless before anyone sees them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

from nsysx.render.render_bounds import MOST_MARKS

#: Unicode categories that move the cursor, hide text or have no glyph: controls, format (bidi, zero width), surrogates,
#: private use, unassigned, line and paragraph separators.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})

_HOME = re.compile(
    r"(?:/home/|/Users/|/var/home/|/export/home/)[^/\s:'\"\\]+|/root(?=/|\b)"
    # Windows: any case, a name may hold spaces, and a path inside a string may have its backslashes twice.
    r"|[A-Za-z]:\\{1,2}[Uu][Ss][Ee][Rr][Ss]\\{1,2}(?:[^\\:'\"\n]{1,64}(?=\\)|[^\\\s:'\"]+)"
)

_CASTS = re.compile(r"\((?:unsigned |signed )?(?:bool|char|short|int|long|long long)\)(?=\d)")
_NAMESPACES = re.compile(r"\b(?:[A-Za-z_]\w*::)+(?=[A-Za-z_~])")


def _visible(char: str) -> str:
    """Return ``char`` as a readable escape that does nothing."""
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


#: What JSON leaves unescaped and a terminal or an editor obeys: DEL and the controls after it, direction marks, line separators.
_ACTIVE_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def harmless_json(text: str) -> str:
    """Return the same JSON text with its active characters written as escapes."""
    if text.isascii() and "\x7f" not in text:
        return text
    return _ACTIVE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def clean(value: object, limit: int = 200) -> str:
    """Return ``value`` as one line of at most ``limit`` characters in which nothing is invisible or active.

    The text is cut before it is examined, so that a name of a megabyte costs nothing. A cut shows as an ellipsis.
    """
    text = str(value)
    cut = len(text) > limit
    if not cut and text.isascii() and text.isprintable():  # nearly all names are, and need no look at each character
        return text
    out: list[str] = []
    marks = length = 0
    for char in text[:limit]:
        category = unicodedata.category(char)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if marks > MOST_MARKS:
            continue
        out.append(_visible(char) if category in _INVISIBLE else char)
        length += len(out[-1])
        if length > limit:
            cut = True
            break
    while cut and out and length > limit - 1:
        length -= len(out.pop())
    return "".join(out) + ("…" if cut else "")


def shorten(text: str, width: int) -> str:
    """Return ``text`` within ``width`` characters, shortened in the middle because both ends tell most."""
    if len(text) <= width:
        return text
    if width < 3:
        return "…"[:width]
    tail = (width - 1) * 2 // 5
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


@lru_cache(maxsize=2048)  # a few hundred kernels stand in a dozen tables and thousands of boxes
def shorten_kernel(name: str, width: int) -> str:
    """Return a C++ kernel name within ``width``.

    The least telling parts go first: return type, argument list, namespaces, inner template arguments.
    """
    text = name.removeprefix("void ")
    if len(text) <= width:
        return text
    text = _CASTS.sub("", _drop_arguments(text)).replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    if len(text) > width:
        text = _NAMESPACES.sub("", text)
    for depth in (4, 3, 2):
        if len(text) > width:
            text = _collapse(text, depth)
    if len(text) > width and "<" in text and text.index("<") < width - 2:
        return text[: width - 1] + "…"
    return shorten(text, width)


#: A place as a table shows it, "folder/file.py:12 function": its folders, file and line, and function.
_PLACE = re.compile(r"(?P<folders>.*/)?(?P<line>[^/]+:\d+)(?P<function> .*)?", re.DOTALL)


def shorten_path(path: str, width: int) -> str:
    """Return a file's path within ``width``; its end tells most. Of a place in code the folders go first, then the function."""
    match = _PLACE.fullmatch(path) if len(path) > width else None
    if match is not None:
        path = _without_folders(match, width)
    return path if len(path) <= width else f"…{path[len(path) - width + 1 :]}" if width > 1 else "…"[:width]


def _without_folders(match: re.Match[str], width: int) -> str:
    """Return file, line and function of a place in code; without the function where that is wider."""
    function = match["function"] or ""
    return match["line"] + (function if len(match["line"] + function) <= width else "")


def _shorten_places(paths: Sequence[str], width: int) -> list[str]:
    """Return places in code within ``width``: where the folders of one go, those of all do, or its file looks like another one."""
    matches = [_PLACE.fullmatch(path) for path in paths]
    if all(len(path) <= width for path in paths):
        return list(paths)
    return [
        _without_folders(match, width)
        if match is not None and len(match["line"]) <= width
        else shorten_path(path, width)
        for path, match in zip(paths, matches, strict=True)
    ]


def shorten_stack(text: str, width: int) -> str:
    """Return the lines of a stack within ``width``, the innermost ones whole: where time goes is their end."""
    lines = text.split(";")
    kept = lines[-1:]
    while len(kept) < len(lines) and len("; ".join(["…", lines[-1 - len(kept)], *kept])) <= width:
        kept = [lines[-1 - len(kept)], *kept]
    whole = "; ".join(lines)
    return whole if len(whole) <= width else shorten("; ".join(["…", *kept]), width)


def shorten_cell(text: str, column: str, width: int) -> str:
    """Return the text of a cell within ``width``, cut where that hurts this kind of column least."""
    if column == "file":
        return shorten_path(text, width)
    if column == "stack":
        return shorten_stack(text, width)
    if column in ("name", "kernel") and ("::" in text or "<" in text):
        return shorten_kernel(text, width)
    return shorten(text, width)


def shorten_column(names: Sequence[str], column: str, width: int) -> list[str]:
    """Return the cells of a column within ``width``; names that would look alike are cut to show where they differ."""
    out = _shorten_places(names, width) if column == "file" else [shorten_cell(name, column, width) for name in names]
    looks: dict[str, set[str]] = {}
    for name, text in zip(names, out, strict=True):
        looks.setdefault(text, set()).add(name)
    leaves = {name: cut for alike in looks.values() if len(alike) > 1 for name, cut in _leaving(alike).items()}
    out = [
        _tell_apart(name, text, leaves[name], width) if name in leaves else text
        for name, text in zip(names, out, strict=True)
    ]
    numbers: dict[str, dict[str, int]] = {}
    for index, (name, text) in enumerate(zip(names, out, strict=True)):
        seen = numbers.setdefault(text, {})
        number = seen.setdefault(name, len(seen) + 1)
        if number > 1:  # no room for the difference: at least show that there is one
            mark = f" #{number}"
            out[index] = (text[: max(0, width - len(mark))] + mark)[:width]
    return out


def _leaving(names: set[str]) -> dict[str, int]:
    """Return where each name departs from every other one: among sorted names, neighbors are the most alike."""
    ordered = sorted(names)
    shared = [
        next((i for i, (a, b) in enumerate(zip(first, two, strict=False)) if a != b), min(len(first), len(two)))
        for first, two in pairwise(ordered)
    ]
    return {name: max(before, after) for name, before, after in zip(ordered, [0, *shared], [*shared, 0], strict=True)}


def _tell_apart(name: str, text: str, differs: int, width: int) -> str:
    """Return the head of ``text``, then ``name`` from just before ``differs``, where it departs from every other name."""
    head = text[: max(0, (width - 1) // 2)].rstrip("…")
    rest = _NAMESPACES.sub("", name[max(0, differs - 6) :])
    room = width - len(head) - 1
    return f"{head}…{rest if len(rest) <= room else rest[: room - 1] + '…'}"[:width]


def _drop_arguments(text: str) -> str:
    """Return ``text`` without its last balanced pair of parentheses, if it ends with one."""
    if not text.endswith(")"):
        return text
    depth = 0
    for index in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[index], 0)
        if depth == 0:
            return text[:index] or text
    return text


def _collapse(text: str, deepest: int) -> str:
    """Return ``text`` with template arguments nested ``deepest`` or more replaced by an ellipsis."""
    out: list[str] = []
    depth = 0
    for index, char in enumerate(text):
        arrow = char == ">" and index > 0 and text[index - 1] == "-"
        if char == "<":
            depth += 1
            if depth == deepest:
                out.append("<…>")
        if depth < deepest:
            out.append(char)
        if char == ">" and not arrow and depth:
            depth -= 1
    return "".join(out)


def scrub(text: str) -> str:
    """Return ``text`` with home folders, and so the user's name in them, replaced by ``~``."""
    return _HOME.sub("~", text)


_Value = TypeVar("_Value")


def without_homes(value: _Value) -> _Value:
    """Return ``value``, a record of records, rows and texts, with home folders in all its texts replaced by ``~``."""
    given: Any = value
    if isinstance(given, str):
        return scrub(given)  # type: ignore[return-value]
    if isinstance(given, Mapping):
        return {without_homes(k): without_homes(v) for k, v in given.items()}  # type: ignore[return-value]
    if isinstance(given, tuple | list):
        numbers = bool(given) and isinstance(given[0], int | float)
        return given if numbers else type(given)(map(without_homes, given))  # type: ignore[return-value]
    if is_dataclass(given) and not isinstance(given, type):
        changed = {f.name: without_homes(getattr(given, f.name)) for f in fields(given) if f.init}
        return replace(given, **changed)  # type: ignore[return-value]
    return value


def file_name(path: str, redact: bool) -> str:
    """Return ``path`` for people; when redacted only the file and the folder it is in."""
    if not redact:
        return path
    parts = [p for p in re.split(r"[/\\]+", scrub(path)) if p and p != "~"]
    return "/".join(parts[-2:])


#: A line of code with the whole path of its file, "/srv/work/train.py:12", or the file alone, in a column that also holds other names.
_WHOLE_PLACE = re.compile(r"(?:/|[A-Za-z]:[\\/])\S.*(?::\d+|\.py)", re.DOTALL)


def is_whole_place(text: str) -> bool:
    """Return whether ``text`` is a line of code, or a file of code, with its whole path."""
    return _WHOLE_PLACE.fullmatch(text) is not None
