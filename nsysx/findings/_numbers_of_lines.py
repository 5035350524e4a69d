"""What the text of a line says of the numbers in it: that all are written out, or that one counts steps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

#: Names of what counts steps, or runs with them.
_COUNTS = re.compile(
    r"\b(i|it|n_iter|iters?|iteration|(\w+_)?(step|epoch)|progress|anneal\w*|temperature|warm_?up\w*)\b(?!\s*=[^=])"
)
#: Calls that write a number everywhere, and which of their arguments it is, or its name.
_WRITES = {"full": 1, "new_full": 1, "full_like": 1, "fill_": 0}
_LIMITS = ("inf", "min", "max", "tiny", "eps", "pi")


def counts_steps(text: str) -> bool:
    """Return whether a line names what counts steps, so that it may compute something else in each."""
    return _COUNTS.search(text) is not None


def numbers_written_out(text: str) -> bool:
    """Return whether the number that a line writes everywhere stands in it: the same in each step."""
    numbers = list(_numbers_of(text))
    return bool(numbers) and all(_is_written_out(each) for each in numbers)


def _numbers_of(text: str) -> Iterator[ast.expr]:
    try:
        tree = ast.parse(text.strip())
    except SyntaxError:  # a part of a statement, such as the head of a loop
        return
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        argument = _WRITES.get(name)
        if argument is None:
            continue
        named = [each.value for each in call.keywords if each.arg in ("fill_value", "value")]
        yield from named or call.args[argument : argument + 1]


def _is_written_out(number: ast.expr) -> bool:
    """Return whether a number is -1e9, True, float("-inf"), torch.inf or torch.finfo(...).min."""
    if isinstance(number, ast.UnaryOp):
        return _is_written_out(number.operand)
    if isinstance(number, ast.Call):
        return getattr(number.func, "id", "") == "float" and all(isinstance(each, ast.Constant) for each in number.args)
    return isinstance(number, ast.Constant) or (isinstance(number, ast.Attribute) and number.attr in _LIMITS)
