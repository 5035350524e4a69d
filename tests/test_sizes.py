"""Files and functions that a reader can hold: the long ones that are left are listed, and the list can only shrink."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.test_layers import FILES, ids

#: Files and functions that are still too long: path, and path::function. An entry that is no longer needed fails.
LONG_FILES: set[str] = set()
LONG_FUNCTIONS: set[str] = set()
MOST_LINES, MOST_FUNCTION_LINES = 400, 60


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Yield (name, lines) of each function of a file, the decorators and nested functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    long = {ids(p) for p in FILES if len(p.read_text(encoding="utf-8").splitlines()) > MOST_LINES}
    assert long <= LONG_FILES, f"too long: {sorted(long - LONG_FILES)}"
    assert long >= LONG_FILES, f"no longer too long, take them from the list: {sorted(LONG_FILES - long)}"


def test_no_function_is_longer_than_a_screen() -> None:
    long = {f"{ids(p)}::{name}" for p in FILES for name, lines in functions(p) if lines > MOST_FUNCTION_LINES}
    assert long <= LONG_FUNCTIONS, f"too long: {sorted(long - LONG_FUNCTIONS)}"
    assert long >= LONG_FUNCTIONS, f"no longer too long, take them from the list: {sorted(LONG_FUNCTIONS - long)}"
