"""Caches of a program's own, as they are written: a test asks for one key, and what it lets run stores the entry under another one.

``if n not in table:`` over ``table[f"{n}_{device}"] = ...`` is true each time. Read are the lines of one function that ran, with their
indents. A name that was given a key before stands for that key. Which of the lines ran each time, the text does not say.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from nsysx.findings._input_bounds import DEEPEST_KEY_NAMES, MOST_LINES_TO_BODY
from nsysx.findings._loop_texts import depth_of
from nsysx.findings._pieces_in_text import names_in, statement_or_head, with_part

#: What takes entries out of a dictionary: a test may then find none although it asks for the right key.
_TAKES_OUT = ("clear", "pop", "popitem")


class UnlikeKeys(NamedTuple):
    """A cache (its name) whose test at line ``guard`` asks for the key ``asked``, and line ``store`` stores under ``stored``.

    ``lines``: those that run where the test finds nothing. ``paste``: a line of the program with the key that it should have, "" where the
    lines do not tell which of the two that is.
    """

    guard: int
    store: int
    cache: str
    asked: str
    stored: str
    lines: tuple[int, ...]
    paste: str


class _WrittenLine(NamedTuple):
    number: int
    text: str  # without the indent
    depth: int
    node: ast.stmt | None


class _AskedCache(NamedTuple):
    """What a line asks a cache for. ``asks``: the line in which the key stands; ``hit``: what it lets run is for an entry that is there."""

    cache: ast.expr
    key: ast.expr
    asks: _WrittenLine
    hit: bool = False


def caches_with_unlike_keys(texts: Mapping[int, str]) -> list[UnlikeKeys]:
    """Return the caches of a function whose tests ask for another key than the entries have; ``texts``: of its lines that ran."""
    lines = [
        _WrittenLine(n, text.strip(), depth_of(text), _parsed(text))
        for n, text in sorted(texts.items())
        if text.strip()
    ]
    caches = (_unlike(lines, number) for number, line in enumerate(lines) if isinstance(line.node, ast.If))
    return [each for each in caches if each is not None]


def empties(text: str, cache: str) -> bool:
    """Return whether a line takes entries out of a cache, or makes another one of its name."""
    node, named = _parsed(text), _parsed(cache)
    return isinstance(named, ast.Expr) and _takes_out(node, named.value)


def _unlike(lines: Sequence[_WrittenLine], at_guard: int) -> UnlikeKeys | None:
    guard, behind = lines[at_guard], lines[at_guard + 1 :]
    assert isinstance(guard.node, ast.If)
    test = _test(guard.node.test, lines[: at_guard + 1])
    if test is None or any(_takes_out(line.node, test.cache) for line in lines):
        return None
    if test.hit:  # it leaves the function where it finds an entry, and runs on where it does not
        block = list(takewhile(lambda line: line.depth >= guard.depth, behind))
        nearest = block[0].depth == guard.depth and block[0].number > guard.number + 1 if block else False
    else:
        block = list(takewhile(lambda line: line.depth > guard.depth, behind))
        # Farther below stands what an ``else`` lets run.
        nearest = block[0].number - guard.number <= MOST_LINES_TO_BODY if block else False
    stores = [(line, key) for line in block for key in _keys_stored(line.node, test.cache)]
    if not nearest or not stores:
        return None
    asked = _whole(test.key, lines, test.asks.number)
    wholes = [_whole(key, lines, line.number) for line, key in stores]
    if any(_alike(whole, asked) for whole in wholes):
        return None
    (store, key), stored = stores[0], wholes[0]
    if test.hit:
        block = [line for line in block if line.number <= store.number]
    outside = [line for line in lines if line not in block]
    reads = [_whole(node, lines, line.number) for line in outside for node in _keys_read(line.node, test.cache)]
    read_back = any(_alike(read, stored) for read in reads)
    names = names_in(asked), names_in(stored)
    if not names[0] & names[1] and (any(names) or not read_back):
        return None  # two things in one dictionary, for all that is known
    paste = ""
    if read_back and not test.hit and not names_in(key) & _assigned(block):
        paste = _with(test.asks.text, test.key, _segment(store.text, key))
    elif not read_back and not names_in(test.key) & _assigned(block):
        paste = _with(store.text, key, _segment(test.asks.text, test.key))
    cache, asked_text, stored_text = (
        ast.unparse(test.cache),
        _segment(test.asks.text, test.key),
        _segment(store.text, key),
    )
    if asked_text == stored_text:  # the name stands for another key where it is stored
        return None
    numbers = tuple(line.number for line in block)
    return UnlikeKeys(guard.number, store.number, cache, asked_text, stored_text, numbers, paste)


def _parsed(text: str) -> ast.stmt | None:
    """Return the statement of a line, of one with a block its head; None where it is no whole one."""
    return statement_or_head(_as_parsed(text.strip()))


def _test(test: ast.expr, lines: Sequence[_WrittenLine]) -> _AskedCache | None:
    """Return what a test, that of the last of these lines, asks a cache for; None where it is no such test."""
    guard, negated = lines[-1], isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    inner = test.operand if isinstance(test, ast.UnaryOp) and negated else test
    if isinstance(inner, ast.Compare) and len(inner.ops) == 1:
        operator, other = inner.ops[0], inner.comparators[0]
        if isinstance(operator, ast.In | ast.NotIn):
            return _AskedCache(_dictionary(other), inner.left, guard, isinstance(operator, ast.In) != negated)
        is_none = isinstance(other, ast.Constant) and other.value is None
        if not is_none or not isinstance(operator, ast.Is | ast.IsNot):
            return None
        return _entry(inner.left, lines, isinstance(operator, ast.IsNot) != negated)
    return _entry(inner, lines, hit=False) if negated else None


def _entry(value: ast.expr, lines: Sequence[_WrittenLine], hit: bool) -> _AskedCache | None:
    """Return what a value that a test compares with None asks a cache for: ``cache.get(key)``, or a name that was given it before."""
    asks = lines[-1]
    if isinstance(value, ast.NamedExpr):
        value = value.value
    elif isinstance(value, ast.Name):
        given = [
            (line, line.node.value)
            for line in lines[:-1]
            if _gives(line.node, value.id) and isinstance(line.node, ast.Assign)
        ]
        if not given:
            return None
        asks, value = given[-1]
    is_get = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "get"
    if not is_get or not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute) or not value.args:
        return None
    return _AskedCache(value.func.value, value.args[0], asks, hit)


def _dictionary(node: ast.expr) -> ast.expr:
    """Return the dictionary of ``cache.keys()``, else what stands there."""
    keys = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys"
    return node.func.value if keys and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else node


def _keys_stored(node: ast.stmt | None, cache: ast.expr) -> Iterator[ast.expr]:
    for target in node.targets if isinstance(node, ast.Assign) else ():
        if isinstance(target, ast.Subscript) and _alike(target.value, cache):
            yield target.slice


def _keys_read(node: ast.stmt | None, cache: ast.expr) -> Iterator[ast.expr]:
    for each in ast.walk(node) if node is not None else ():
        if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Load) and _alike(each.value, cache):
            yield each.slice


def _takes_out(node: ast.stmt | None, cache: ast.expr) -> bool:
    """Return whether a statement takes entries out of a cache, or makes another one of its name."""
    for each in ast.walk(node) if node is not None else ():
        if isinstance(each, ast.Attribute) and each.attr in _TAKES_OUT and _alike(each.value, cache):
            return True
        if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Del) and _alike(each.value, cache):
            return True
        if (
            isinstance(each, ast.Name | ast.Attribute)
            and isinstance(each.ctx, ast.Store | ast.Del)
            and _alike(each, cache)
        ):
            return True
    return False


def _whole(node: ast.expr, lines: Sequence[_WrittenLine], number: int) -> ast.expr:
    """Return a key as it is used in a line, with what the names in it were given before that."""
    for _ in range(DEEPEST_KEY_NAMES):
        if not isinstance(node, ast.Name):
            break
        name = node.id
        given = [
            line.node.value
            for line in lines
            if line.number < number and isinstance(line.node, ast.Assign) and _gives(line.node, name)
        ]
        if not given:
            break
        node = given[-1]
    return node


def _gives(node: ast.stmt | None, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else ()
    return len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id == name


def _assigned(lines: Sequence[_WrittenLine]) -> set[str]:
    nodes = (each for line in lines if line.node is not None for each in ast.walk(line.node))
    return {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def _alike(first: ast.expr, second: ast.expr) -> bool:
    return ast.unparse(first) == ast.unparse(second)


def _segment(text: str, node: ast.expr) -> str:
    """Return how a part of a line is written, in brackets where it would fall apart beside other operators."""
    written = ast.get_source_segment(_as_parsed(text), node) or ast.unparse(node)
    loose = isinstance(node, ast.Tuple | ast.BoolOp | ast.Compare | ast.IfExp | ast.Lambda | ast.NamedExpr)
    return f"({written})" if loose and not written.startswith("(") else written


def _as_parsed(text: str) -> str:
    return text.removeprefix("el") if text.startswith("elif ") else text


def _with(text: str, node: ast.expr, other: str) -> str:
    """Return a line with something else in the place of a part of it."""
    parsed = _as_parsed(text)
    return text.removesuffix(parsed) + with_part(parsed, node, other)
