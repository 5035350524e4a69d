"""The transforms that a composition (``Compose`` of torchvision, MONAI, albumentations, torch-geometric) applies in a worker, in their
order: how often each was called and how long it took, with the line of the program that names it.

Libraries apply them, so no line of the program says which comes before which: ``self.transform(image)`` is all that runs of it.
"""

from __future__ import annotations

import ast
import os
import sys
import time
from types import FrameType
from typing import Any

from .probe_bounds import MOST_SOURCE_BYTES, WORKER_TRANSFORMS
from .sources import Sources

#: Functions by which a composition, and each transform, is called; a module's own come first.
_APPLIES = frozenset(("__call__", "_wrapped_call_impl", "forward"))
_COMPOSED = "Compose"


class Transforms:
    """Follows the calls of a worker: ``began`` for each frame, ``ended`` where a frame that ``began`` took for a transform returns."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Any]] = {}  # by the identity of a transform: composition, name, calls, time (ns)
        self._composed: dict[int, Any] = {}  # kept alive, so that no identity is given anew
        self._open: tuple[FrameType, int, int] | None = None

    def began(self, frame: FrameType) -> bool:
        """Return whether a transform begins with this frame, whose return is to be told."""
        code = frame.f_code
        if self._open is not None or code.co_name not in _APPLIES or code.co_varnames[:1] != ("self",):
            return False
        applied = frame.f_locals.get("self")
        row = self._rows.get(id(applied))
        if row is not None:
            row[2] += 1
            self._open = frame, id(applied), time.perf_counter_ns()
            return True
        if type(applied).__name__ == _COMPOSED and id(applied) not in self._composed:
            self._add(applied)
        return False

    def ended(self, frame: FrameType) -> None:
        """A frame returns: where it is that of the open transform, its time is known."""
        if self._open is not None and self._open[0] is frame:
            self._rows[self._open[1]][3] += time.perf_counter_ns() - self._open[2]
            self._open = None

    def _add(self, composition: Any) -> None:
        parts = getattr(composition, "transforms", None)
        number = len(self._composed)
        self._composed[id(composition)] = composition
        if isinstance(parts, (list, tuple)) and len(self._rows) + len(parts) <= WORKER_TRANSFORMS:
            for part in parts:
                self._rows.setdefault(id(part), [number, type(part).__name__, 0, 0])

    def rows(self, sources: Sources) -> list[list[Any]]:
        """Return for each transform, in the order of its composition: number of the composition, name of the class, calls, time (ns), file
        and line of the program that names it ("" and 0 where no line or several may be meant).
        """
        composed: dict[int, list[list[Any]]] = {}
        for row in self._rows.values():
            composed.setdefault(row[0], []).append(row)
        lists = _lines_of({number: [row[1] for row in rows] for number, rows in composed.items()}, sources)
        out: list[list[Any]] = []
        for number, rows in composed.items():
            file, lines = lists.get(number, ("", [0] * len(rows)))
            out.extend([*row, file, line] for row, line in zip(rows, lines))  # noqa: B905 - Python 3.9
        return out


def _lines_of(named: dict[int, list[str]], sources: Sources) -> dict[int, tuple[str, list[int]]]:
    """Return file and lines where each composition's transforms are named: the one list of the program that names them in this order."""
    matches: dict[int, list[tuple[str, list[int]]]] = {number: [] for number in named}
    files = {
        getattr(module, "__file__", None) for module in list(sys.modules.values())
    }  # the main module has two names
    for file in files:
        if not isinstance(file, str) or not file.endswith(".py") or sources.kind_of_file(file) != "user":
            continue
        for names, lines in _lists_of_calls(file) if named else ():
            for number, wanted in named.items():
                if names == wanted:
                    matches[number].append((os.path.abspath(file), lines))  # noqa: PTH100
    return {number: lists[0] for number, lists in matches.items() if len(lists) == 1}


def _lists_of_calls(file: str) -> list[tuple[list[str], list[int]]]:
    """Return names and lines of the calls in each list of a file that holds nothing but calls."""
    try:
        if os.path.getsize(file) > MOST_SOURCE_BYTES:  # noqa: PTH202
            return []
        with open(file, "rb") as opened:  # noqa: PTH123
            tree = ast.parse(opened.read())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return []
    lists = (node.elts for node in ast.walk(tree) if isinstance(node, (ast.List, ast.Tuple)) and len(node.elts) > 1)
    return [
        ([_named(each.func) for each in parts], [each.lineno for each in parts])
        for elements in lists
        if len(parts := [each for each in elements if isinstance(each, ast.Call)]) == len(elements)
    ]


def _named(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
