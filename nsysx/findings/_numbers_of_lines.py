"""What the text of a line says of the numbers in it: that all are written out, that one counts steps, or which parts it takes."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

from nsysx.findings._work_bounds import PART_TAKEN_TIMES

#: Names of what counts steps, or runs with them.
_COUNTS = re.compile(
    r"\b(i|it|n_iter|iters?|iteration|(\w+_)?(step|epoch)|progress|anneal\w*|temperature|warm_?up\w*)\b(?!\s*=[^=])"
)
#: Calls that write a number everywhere, and which of their arguments it is, or its name.
_WRITES = {"full": 1, "new_full": 1, "full_like": 1, "fill_": 0}
#: A subscript that says which part it takes: a number, all, or what lies before or behind something, whose size shows where that is.
_TOLD_PART = re.compile(r"""^(-?\d+|None|\.\.\.|(?P<quote>["']).*(?P=quote)|[^:]*:|:[^:]*|-?\d*:-?\d*(:\d+)?)$""")
#: What takes another part in each round, or in each step.
_CHOOSES = re.compile(r"\b(for|while|next|enumerate|\w*(loader|sampler)\w*|select)\b")
#: Operators that take a tensor apart, and lines that name all of its parts.
_DIVIDES = re.compile(r"^(unbind|chunk|split\w*|tensor_split)$")
_DIVIDED = re.compile(r"^\s*[\w.]+(\s*,\s*\*?[\w.]+)+\s*=[^=]|\.(unbind|chunk|split|tensor_split)\(")
_SUBSCRIPTED = re.compile(r"[\w)\]]$")
#: Calls of torch with a number beside tensors, and its place or name among their arguments; those that count up to a number.
_TAKES_NUMBER = {"tril": (1, "diagonal"), "triu": (1, "diagonal"), "masked_fill": (2, "value")}
_COUNTS_UP = "arange"
_LIMITS = ("inf", "min", "max", "tiny", "eps", "pi")


@lru_cache(maxsize=4096)  # few lines, each of many operators
def counts_steps(text: str) -> bool:
    """Return whether a line names what counts steps, so that it may compute something else in each."""
    return _COUNTS.search(re.sub(r"\s#.*$", "", text)) is not None


def numbers_written_out(text: str, function: Sequence[str] = ()) -> bool:
    """Return whether the number that a line writes everywhere stands in it, or is counted up in its ``function``: the same in each step."""
    numbers = _numbers_of(text)
    return bool(numbers) and all(_is_written_out(each) or _is_counted_up(each, function) for each in numbers)


@lru_cache(maxsize=4096)
def numbers_beside_tensors_written_out(text: str) -> bool:
    """Return whether a line writes out the numbers of all its calls that cut a triangle or fill by a mask, and counts from 0 on by one: the
    same in each call then. False where it is a part of a statement.
    """
    try:
        tree = ast.parse(text.strip())
    except SyntaxError:
        return False
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name == _COUNTS_UP and (
            len(call.args) != 1 or any(each.arg in ("start", "step", "end") for each in call.keywords)
        ):
            return False
        if name not in _TAKES_NUMBER:
            continue
        argument, keyword = _TAKES_NUMBER[name]
        of_torch = not isinstance(call.func, ast.Attribute) or getattr(call.func.value, "id", "") == "torch"
        argument -= not of_torch
        numbers = [*call.args[argument : argument + 1], *(each.value for each in call.keywords if each.arg == keyword)]
        if not all(map(_is_written_out, numbers)):
            return False
    return True


@lru_cache(maxsize=4096)
def _numbers_of(text: str) -> tuple[ast.expr, ...]:
    return tuple(_numbers_in(text))


def _numbers_in(text: str) -> Iterator[ast.expr]:
    try:
        tree = ast.parse(text.strip())
    except SyntaxError:  # a part of a statement, such as the head of a loop
        return
    for call in ast.walk(tree):
        if isinstance(call, ast.Assign) and isinstance(call.targets[0], ast.Subscript):  # x[:, 0] = 1
            yield from [call.value] if isinstance(call.value, ast.Constant | ast.Name | ast.UnaryOp) else []
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        argument = _WRITES.get(name)
        if argument is None:
            continue
        named = [each.value for each in call.keywords if each.arg in ("fill_value", "value")]
        yield from named or call.args[argument : argument + 1]


def _is_counted_up(number: ast.expr, function: Sequence[str]) -> bool:
    """Return whether a number is one that lines of a function begin with and add to: ``count = 0`` and ``count += 1``."""
    if not isinstance(number, ast.Name):
        return False
    named = rf"^\s*{number.id}\s*%s=[^=]"
    begins = [text for text in function if re.match(named % "", text)]
    adds = [text for text in function if re.match(named % r"[-+*/|&^@%%]+", text)]
    return bool(begins and adds) and all(re.match(r"^\s*\w+\s*\+?=\s*\d+\s*(#.*)?$", text) for text in (*begins, *adds))


def _is_written_out(number: ast.expr) -> bool:
    """Return whether a number is -1e9, True, float("-inf"), torch.inf or torch.finfo(...).min."""
    if isinstance(number, ast.UnaryOp):
        return _is_written_out(number.operand)
    if isinstance(number, ast.Call):
        return getattr(number.func, "id", "") == "float" and all(isinstance(each, ast.Constant) for each in number.args)
    return isinstance(number, ast.Constant) or (isinstance(number, ast.Attribute) and number.attr in _LIMITS)


def names_of_rounds(text: str) -> list[str]:
    """Return the names to which each round of a loop, that a line begins, gives something else."""
    head = re.match(r"^\s*(async\s+)?for\s+(.+?)\s+in\b", text)
    return re.findall(r"\w+", head[2]) if head else []


def same_parts(text: str, operators: Sequence[str]) -> bool:
    """Return whether the parts that a line takes are the same in each step, if their sizes are: it writes out which ones these are.

    ``operators``: those that the line runs. What tensors choose may have a name; other parts that are in no bracket of the line are taken
    in a function of torch's, such as the rows of a dataset.
    """
    items = _subscripts(text)
    if items is None or _CHOOSES.search(text):
        return False
    count = Counter(name.removeprefix("aten::") for name in operators)
    told = [each for each in items if _TOLD_PART.match(each)]
    taken = count["select"] + count["slice"]
    divided = sum(often for name, often in count.items() if _DIVIDES.match(name))
    by_tensors = count["index"] + count["index_put_"]
    return (
        len(items) - len(told) <= by_tensors
        and taken <= PART_TAKEN_TIMES * sum(each != ":" for each in told)
        and (not divided or _DIVIDED.search(text) is not None)
        and not any(count[name] for name in ("narrow", "as_strided", "roll"))
    )


def _subscripts(text: str) -> list[str] | None:
    """Return what stands between the brackets of subscripts, by dimension; None where a bracket ends in another line."""
    items, open_at = list[str](), list[tuple[str, int, bool]]()
    for position, sign in enumerate(text):
        if sign in "([{":
            subscript = sign == "[" and _SUBSCRIPTED.search(text[:position].rstrip()) is not None
            open_at.append((sign, position + 1, subscript))
        elif sign == "," and open_at and open_at[-1][2]:
            items.append(text[open_at[-1][1] : position].strip())
            open_at[-1] = ("[", position + 1, True)
        elif sign in ")]}" and open_at:
            _, begin, subscript = open_at.pop()
            items += [text[begin:position].strip()] if subscript else []
    return None if any(subscript for *_, subscript in open_at) else items
