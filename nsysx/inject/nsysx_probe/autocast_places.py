"""Where a program enters autocast or switches it off, in the step that is watched: by which line, and around which function of its own.

A ``with`` line enters it itself, or through a function of the program that is a context manager; a decorator enters it around each call.
"""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sys
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from .changes import is_library
from .probe_bounds import MOST_DECORATOR_LINES, MOST_OBJECTS

#: How torch calls what enters autocast around a function, by the name that the function has in it.
_DECORATED = {"decorate_autocast": "func", "decorate_fwd": "fwd", "decorate_bwd": "bwd"}
_OF_TORCH = "autocast_mode.py"
_DECORATES = re.compile(r"\bautocast|custom_[fb]wd|\bamp\b")
_DEFINES = re.compile(r"\s*(async\s+)?def\b")


class AutocastEntries:
    """``told``: what the settings tell of autocast."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {"regions": 0, "dtypes": {}, "cache": None, "forward": None, "entries": []}
        self._entered: dict[str, int] = {}  # line -> how often it enters an autocast that is on
        self._rows: dict[tuple[Any, ...], dict[str, Any]] = {}

    def note(self, region: Any, name: str) -> None:
        """A region of a type (``name``) is entered by the caller."""
        on = bool(region._enabled)
        row = entry_of(sys._getframe(1))
        if on:
            told = self.told
            told["regions"] += 1
            told["dtypes"][name] = told["dtypes"].get(name, 0) + 1
            told["cache"] = bool(region._cache_enabled)
            self._entered[row["line"]] = self._entered.get(row["line"], 0) + 1
        row |= {"on": on, "type": name}
        key = tuple(row.values())
        if key in self._rows:
            self._rows[key]["count"] += 1
        elif len(self._rows) < MOST_OBJECTS:
            self._rows[key] = {**row, "count": 1}
            self.told["entries"].append(self._rows[key])

    def most_entered(self) -> str:
        """Return the line that enters an autocast that is on most often, "" where none does."""
        return max(self._entered, key=lambda line: self._entered[line], default="")


def entry_of(frame: FrameType | None) -> dict[str, Any]:
    """Return what enters a region that begins in a frame.

    ``line``: file:line of the program that is at work. ``around``: that of the ``with`` that calls it, where it lies in a context manager
    of the program. ``kind``: how torch calls the decorator, ``file`` and ``function``: what it decorates, ``decorator``: file:line where;
    each None without one.
    """
    kind, decorated = None, None
    while frame is not None and is_library(frame.f_code.co_filename):
        name = frame.f_code.co_name
        if kind is None and name in _DECORATED and frame.f_code.co_filename.endswith(_OF_TORCH):
            kind, decorated = name, _code(frame.f_locals.get(_DECORATED[name]))
        frame = frame.f_back
    line, around = _line(frame), None
    while frame is not None and kind is None and _manages(frame):
        frame = _caller(frame)
        around = _line(frame)
    return {
        "line": line,
        "around": around or None,
        "kind": kind,
        "file": decorated and _path(decorated.co_filename),
        "function": decorated and getattr(decorated, "co_qualname", decorated.co_name),
        "decorator": decorated and _decorator(decorated.co_filename, decorated.co_firstlineno),
    }


def _line(frame: FrameType | None) -> str:
    return "" if frame is None else f"{_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def _path(file: str) -> str:
    return file if file.startswith("<") else os.path.abspath(file)  # noqa: PTH100


def _caller(frame: FrameType) -> FrameType | None:
    """Return the innermost frame of the program that a frame was called from."""
    above = frame.f_back
    while above is not None and is_library(above.f_code.co_filename):
        above = above.f_back
    return above


def _manages(frame: FrameType) -> bool:
    """Return whether a function of the program is at work as a context manager that is being entered."""
    by_library = frame.f_back is not None and frame.f_back.f_code.co_filename.endswith("contextlib.py")
    return frame.f_code.co_name == "__enter__" or (bool(frame.f_code.co_flags & inspect.CO_GENERATOR) and by_library)


def _code(function: Any) -> CodeType | None:
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return code if isinstance(code, CodeType) else None


@lru_cache(maxsize=MOST_OBJECTS)
def _decorator(file: str, first: int) -> str | None:
    """Return file:line of the decorator that names autocast, else of the only one; None where there is none. ``first``: the code's line."""
    if is_library(file):
        return None
    decorators = list[int]()
    for number in range(first, first + MOST_DECORATOR_LINES):
        text = linecache.getline(file, number)
        if _DEFINES.match(text) or not text:
            break
        if text.lstrip().startswith("@"):
            decorators.append(number)
            if _DECORATES.search(text):
                return f"{_path(file)}:{number}"
    return f"{_path(file)}:{decorators[0]}" if len(decorators) == 1 else None
