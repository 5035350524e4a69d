"""Calls of one network that need nothing of each other, as one call in the names of their lines."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import numpy as np

from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.operator_flow import ModuleCall
from nsysx.events.profile import Profile
from nsysx.findings._pieces_in_text import parsed, with_names_replaced


def in_one_call(profile: Profile, code: CodeLines, calls: Sequence[ModuleCall]) -> str:
    """Return the line that makes a few calls as one, "" where their lines do not show what each is given."""
    source, sites = texts(profile), list[int]()
    for call in calls:
        chain = code.own_chain(int(code.at(call.thread, np.array([call.start_ns], np.int64))[0]))
        sites += chain[:1]
    written = [text_of(source, *code.places.row(each)[:2]) or "" for each in dict.fromkeys(sites)]
    if len(sites) != len(calls) or not written:
        return ""
    function = code.places.row(sites[0])[2]
    rows = (row for row in code.places.iter_rows() if row[2] == function and row[0] == code.places.row(sites[0])[0])
    return joined_calls(written, len(calls), [text_of(source, *row[:2]) or "" for row in rows])


def joined_calls(written: Sequence[str], count: int, function: Sequence[str]) -> str:
    """Return the line in place of these, which make so many calls; ``function``: all lines of theirs."""
    trees = [parsed(text) for text in written]
    made = [each.body[0] for each in trees if each is not None and each.body]
    assigns = [each for each in made if isinstance(each, ast.Assign) and len(each.targets) == 1]
    if len(assigns) != len(written):
        return ""
    if len(assigns) == count:
        values = [each.value for each in assigns]
        names = [ast.unparse(each.targets[0]) for each in assigns]
    elif len(assigns) == 1 and isinstance(assigns[0].targets[0], ast.Tuple):
        values = _values(assigns[0].value, function)
        names = [ast.unparse(each) for each in assigns[0].targets[0].elts]
    else:
        return ""
    calls = [each for each in values if isinstance(each, ast.Call)]
    if len({count, len(names), len(calls), len(values)}) > 1 or not all(each.isidentifier() for each in names):
        return ""
    call = _joined(calls)
    return f"{', '.join(names)} = {call}.chunk({count})  # all of one size" if call else ""


def _values(value: ast.expr, function: Sequence[str]) -> list[ast.expr]:
    """Return what several names are given by one expression, call by call."""
    if isinstance(value, ast.Tuple | ast.List):
        return value.elts
    if isinstance(value, ast.ListComp | ast.GeneratorExp) and len(value.generators) == 1:
        (each,) = value.generators
        if isinstance(each.target, ast.Name) and isinstance(each.iter, ast.Tuple | ast.List) and not each.ifs:
            return [with_names_replaced(value.elt, {each.target.id: given}) for given in each.iter.elts]
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "map" and len(value.args) == 2:
        called, given = value.args
        partial = _partial(ast.unparse(called), function)
        func, args, keywords = (
            (called, [], []) if partial is None else (partial.args[0], partial.args[1:], partial.keywords)
        )
        rounds = given.elts if isinstance(given, ast.Tuple | ast.List) else []
        return [ast.Call(func, [*args, each], keywords) for each in rounds]
    return []


def _partial(name: str, function: Sequence[str]) -> ast.Call | None:
    """Return the call of ``partial`` that makes what a name stands for, None for none."""
    for text in function:
        tree = parsed(text)
        made = tree.body[0] if tree is not None and tree.body else None
        value = made.value if isinstance(made, ast.Assign) and ast.unparse(made.targets[0]) == name else None
        if isinstance(value, ast.Call) and value.args and ast.unparse(value.func).rpartition(".")[2] == "partial":
            return value
    return None


def _joined(calls: Sequence[ast.Call]) -> str:
    """Return one call for several of the same, given all that each of them is given; "" for those that differ otherwise."""
    first, *_ = calls
    alike = {(ast.unparse(each.func), len(each.args), tuple(word.arg for word in each.keywords)) for each in calls}
    if (
        len(alike) > 1
        or any(isinstance(each, ast.Starred) for each in first.args)
        or None in [w.arg for w in first.keywords]
    ):
        return ""
    given = [_together([each.args[number] for each in calls]) for number in range(len(first.args))]
    for number, word in enumerate(first.keywords):
        given.append(f"{word.arg}={_together([each.keywords[number].value for each in calls])}")
    return f"{ast.unparse(first.func)}({', '.join(given)})"


def _together(values: Sequence[ast.expr]) -> str:
    listed = [ast.unparse(each) for each in values]
    constant = isinstance(values[0], ast.Constant) and len(set(listed)) == 1
    return listed[0] if constant else f"torch.cat(({', '.join(listed)}))"
