"""Names come from somebody else's program: make them visible, short and harmless before anyone sees them."""

from __future__ import annotations

import re
import unicodedata

#: Unicode categories that move the cursor, hide text or have no glyph: controls, format (bidi, zero width), surrogates,
#: private use, unassigned, line and paragraph separators.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_MAX_MARKS = 4

_HOME = re.compile(
    r"(?:/home/|/Users/|/var/home/|/export/home/)[^/\s:'\"\\]+|/root(?=/|\b)|[A-Za-z]:\\Users\\[^\\\s:'\"]+"
)

_CASTS = re.compile(r"\((?:unsigned |signed )?(?:bool|char|short|int|long|long long)\)(?=\d)")
_NAMESPACES = re.compile(r"\b(?:[A-Za-z_]\w*::)+(?=[A-Za-z_~])")


def _visible(char: str) -> str:
    """Return ``char`` as an escape that can be read and does nothing."""
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clean(value: object, limit: int = 200) -> str:
    """Return ``value`` as one line of at most ``limit`` characters in which nothing is invisible or active.

    The text is cut before it is looked at, so that a name of a megabyte costs nothing. A cut shows as an ellipsis.
    """
    text = str(value)
    cut = len(text) > limit
    out, marks, length = [], 0, 0
    for char in text[:limit]:
        category = unicodedata.category(char)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if marks > _MAX_MARKS:
            continue
        piece = _visible(char) if category in _INVISIBLE else char
        length += len(piece)
        if length > limit - cut:
            cut = True
            break
        out.append(piece)
    return "".join(out) + ("…" if cut else "")


def shorten(text: str, width: int) -> str:
    """Return ``text`` within ``width`` characters: what is left out is in the middle, because both ends tell most."""
    if len(text) <= width:
        return text
    if width < 3:
        return "…"[:width]
    tail = (width - 1) * 2 // 5
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def shorten_kernel(name: str, width: int) -> str:
    """Return a C++ kernel name within ``width``.

    What says least goes first: return type, argument list, namespaces, inner template arguments.
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


def file_name(path: str, redact: bool) -> str:
    """Return ``path`` for people; when redacted only the file and the folder it is in."""
    if not redact:
        return path
    parts = [p for p in re.split(r"[/\\]+", scrub(path)) if p and p != "~"]
    return "/".join(parts[-2:])
