"""Recurrences over time that a helper runs with a function that it is given: ``scan(lambda last, x: x + a * last, xs, start)``.

The rounds are the helper's, and what they compute stands where it is called: of the lines that ran, those of the helper say in which order
it takes the elements and hands on the results, and the line of the call says what is computed of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nsysx.analyses import lines
from nsysx.findings._loop_texts import loop_around
from nsysx.findings._pieces_in_text import function_of_call, names_in, only_statement, with_names_replaced
from nsysx.findings._recurrences import OF_ELEMENTS, SCANNED, parts_of

#: Lines behind the rounds that bring the results into the order of time.
_TURNS = re.compile(r"\.reverse\(\)|\[::-1\]|\.flip\(")


class GivenFunction(NamedTuple):
    """A line that hands a lambda to a helper: its statement, the call in it, and the lambda."""

    statement: ast.stmt
    call: ast.Call
    function: ast.Lambda


class HelperRounds(NamedTuple):
    """The lines of a helper's function that ran: those before the results are handed on, as texts with their indents."""

    header: str
    body: Sequence[str]
    behind: Sequence[str]


def rounds_of_function(
    row: lines.CodeLineRow, rows: Sequence[lines.CodeLineRow], source: Mapping[str, Mapping[str, str]]
) -> str | None:
    """Return code in place of the call that makes a linear recurrence of a lambda by a helper's loop, "" where none is known; None for
    lines that are no part of one: the lambda's, the call's and the helper's are. ``rows``: of all lines that ran; ``source``: their texts.
    """
    calls = [
        (each, given)
        for each in rows
        if (given := given_function(str(each["text"] or ""))) is not None and is_recurrence(given)
    ]
    inside = [each for each in rows if carries_on(str(each["text"] or "")) is not None] if calls else []
    for call, given in calls:
        rounds = [each for each in inside if function_of_call(given.call) in str(each["function"]).split(".")]
        callers = {_line(each) for each, other in calls if function_of_call(other.call) == function_of_call(given.call)}
        if _line(row) == _line(call) or (len(callers) == 1 and _line(row) in map(_line, rounds)):
            for file, line in map(_line, rounds):
                of_file = source.get(file or "", {})
                if (loop := loop_around(of_file, line or 0)) is not None:
                    return scanned_call(given, HelperRounds(loop.header, loop.body, _behind(of_file, line or 0)))
    return None


def _line(row: lines.CodeLineRow) -> tuple[str | None, int | None]:
    return row["file"], row["line"]


def _behind(of_file: Mapping[str, str], line: int) -> list[str]:
    """Return the lines behind a line, as far as its function returns."""
    behind = list[str]()
    for number in sorted(int(each) for each in of_file if each.isdigit() and int(each) > line):
        behind.append(of_file[str(number)])
        if behind[-1].lstrip().startswith("return "):
            break
    return behind


def given_function(text: str) -> GivenFunction | None:
    """Return the call of a line that hands on a lambda of a value and of what a round adds to it, None for another line."""
    statement = only_statement(text)
    if statement is None:
        return None
    for node in ast.walk(statement):
        given = [each for each in node.args if isinstance(each, ast.Lambda)] if isinstance(node, ast.Call) else []
        if isinstance(node, ast.Call) and len(given) == 1 and len(given[0].args.args) > 1:
            return GivenFunction(statement, node, given[0])
    return None


def carries_on(text: str) -> str | None:
    """Return the name that a helper's line gives its value in each round by a function of its last one, None for another line."""
    line = only_statement(text)
    if not isinstance(line, ast.Assign) or len(line.targets) != 1 or not isinstance(line.targets[0], ast.Name):
        return None
    call, name = line.value, line.targets[0].id
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or not call.args:
        return None
    return name if isinstance(call.args[0], ast.Name) and call.args[0].id == name else None


def is_recurrence(given: GivenFunction) -> bool:
    """Return whether the lambda is a factor times the value, plus something."""
    names = [each.arg for each in given.function.args.args]
    parts = parts_of(given.function.body, names[0])
    return parts is not None and parts[0] is not None and bool(names_in(parts[1]) & set(names[1:]))


def scanned_call(given: GivenFunction, rounds: HelperRounds) -> str:
    """Return code in place of a line that runs a linear recurrence by a helper's rounds, "" where it is not known."""
    first, *elements = (each.arg for each in given.function.args.args)
    parts = parts_of(given.function.body, first)
    listed = next((each for each in given.call.args if isinstance(each, (ast.Tuple, ast.List))), None)
    start = [each for each in given.call.args if each not in (given.function, listed)]
    turned = _turned(given.call, rounds)
    if parts is None or parts[0] is None or listed is None or len(listed.elts) != len(elements) or len(start) != 1:
        return ""
    if turned is None or not _plain(given.function.body) or not _plain(start[0], *listed.elts):
        return ""
    put = dict(zip(elements, listed.elts, strict=True))
    factor, rest = (ast.unparse(with_names_replaced(each, put)) for each in parts if each is not None)
    every = names_in(given.statement)
    a, b = ("a", "b") if every.isdisjoint("ab") else ("scale_of_all", "sum_of_all")
    flip = ".flip(0)" if turned else ""
    whole = f"{b}{flip}"
    code = ast.unparse(given.statement).replace(ast.unparse(given.call), whole)
    return "\n".join(
        (
            f"{b} = {_called(rest, flip)}" + ("  # in the order of the rounds" if flip else ""),
            f"{a} = {_called(factor, flip)} + torch.zeros_like({b})  # {first} = {a} * {first} + {b}",
            f"{b} = torch.cat([{b}[:1] + {a}[:1] * {ast.unparse(start[0])}, {b}[1:]])",
            *(row.format(a=a, b=b) for row in SCANNED),
            code,
        )
    )


def _called(code: str, method: str) -> str:
    return f"({code}){method}" if method and not code.isidentifier() else f"{code}{method}"


def _plain(*nodes: ast.expr) -> bool:
    """Return whether expressions do for all elements what they do for each."""
    of_each = (
        ast.Name,
        ast.Attribute,
        ast.Constant,
        ast.BinOp,
        ast.UnaryOp,
        ast.operator,
        ast.unaryop,
        ast.expr_context,
    )
    for node in (inner for each in nodes for inner in ast.walk(each)):
        of_call = isinstance(node, ast.Call) and function_of_call(node) in OF_ELEMENTS
        of_piece = isinstance(node, (ast.Subscript, ast.Slice)) and node not in nodes
        if isinstance(node, ast.MatMult) or not (isinstance(node, of_each) or of_call or of_piece):
            return False
    return True


def _turned(call: ast.Call, rounds: HelperRounds) -> bool | None:
    """Return whether the helper goes from the last element to the first and turns the results back; None: not known."""
    loop = only_statement(rounds.header)
    name = next((each for text in rounds.body if (each := carries_on(text)) is not None), None)
    if (
        not isinstance(loop, ast.For)
        or name is None
        or len(rounds.body) != 2
        or not rounds.body[1].strip().endswith(f".append({name})")
    ):
        return None
    if not any(text.strip().startswith("return ") for text in rounds.behind):
        return None
    if not re.fullmatch(r"return torch\.stack\(\w+(\[::-1\])?(, (dim=)?0)?\)", rounds.behind[-1].strip()):
        return None
    order = _branch(call, loop.iter) if isinstance(loop.iter, ast.IfExp) else loop.iter
    if order is None:
        return None
    turned = isinstance(order, ast.Call) and function_of_call(order) == "reversed"
    back = any(_TURNS.search(text) for text in rounds.behind)
    return turned if turned == back else None


def _branch(call: ast.Call, chosen: ast.IfExp) -> ast.expr | None:
    """Return which of two ranges a call asks for by a keyword, None where it does not."""
    if not isinstance(chosen.test, ast.Name):
        return None
    asked = next((each.value for each in call.keywords if each.arg == chosen.test.id), None)
    if not isinstance(asked, ast.Constant) or not isinstance(asked.value, bool):
        return None
    return chosen.body if asked.value else chosen.orelse
