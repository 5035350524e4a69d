"""``no_sync()`` that a program enters behind the forward, around backward alone: where, and its own lines with a whole micro-step inside.

DDP decides in the forward whether the backward behind it reduces: such a program reduces in each micro-step although it asks not to.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

import polars as pl

from nsysx.advice import Alternative
from nsysx.analyses import lines
from nsysx.events.code_lines import CodeLines
from nsysx.findings._case import Case
from nsysx.findings._loop_texts import depth_of
from nsysx.findings._pieces_in_text import function_of_call, names_in, parsed, with_names_replaced
from nsysx.model import Row

_ENTERS, _BACKWARD = re.compile(r"\.no_sync\(\)"), re.compile(r"\.backward\(")
#: What no part of a micro-step is: heads of blocks.
_HEADS = re.compile(r"\s*(with|if|elif|else|for|while|try)\b")
#: Modules that a name may stand for.
_MODULES = frozenset(("contextlib", "torch", "nullcontext", "self"))


class Entered(NamedTuple):
    """Where ``no_sync()`` is entered, and the lines of one function that call forward and backward of a micro-step."""

    file: str
    line: int
    function: str
    forward: int
    backward: int
    caller: str  # the function of these two


def entered(case: Case) -> Entered | None:
    """Return where the X-ray saw it entered between the forward and the backward, None where it did not."""
    code, source = case.profile.code(), lines.texts(case.profile)
    if code is None:
        return None
    calls = case.calls.filter(case.calls["phase"].cast(pl.String) == "forward")
    noted = Counter(stack for stack in code.call[calls["call"].to_numpy()].tolist() if stack >= 0)
    entering, backward = _stack(code, source, _ENTERS), _stack(code, source, _BACKWARD)
    if not noted or not entering or not backward:
        return None
    file, line, function = code.places.row(entering[-1])
    forward = code.own_chain(noted.most_common(1)[0][0])[::-1]
    apart = next(((a, b) for a, b in zip(forward, backward, strict=False) if a != b), None)
    if apart is None or file is None or line is None or function is None:
        return None
    (of_forward, begin, caller), (of_backward, end, other) = code.places.row(apart[0]), code.places.row(apart[1])
    if (
        (of_forward, caller) != (of_backward, other)
        or of_forward != file
        or begin is None
        or end is None
        or caller is None
    ):
        return None
    behind = begin < line <= end if function == caller else apart[1] in entering
    return Entered(file, line, function, begin, end, caller) if behind and begin < end else None


def _stack(code: CodeLines, source: Mapping[str, Mapping[str, str]], wanted: re.Pattern[str]) -> list[int]:
    """Return the longest stack whose innermost line of the program has a text, outermost first; nothing without one."""
    there = [
        row
        for row in range(code.places.height)
        if wanted.search(lines.text_of(source, *code.places.row(row)[:2]) or "")
    ]
    stacks = [code.own_chain(stack) for stack in range(len(code.place)) if int(code.place[stack]) in there]
    return max(stacks, key=len, default=[])[::-1]


def place(case: Case) -> Row:
    """Return the line that enters it too late; empty where none does."""
    late = entered(case)
    return {} if late is None else {"file": late.file, "line": late.line}


def in_its_words(case: Case, remedy: Alternative) -> Alternative:
    """Return the remedy with the program's own lines, as it was where it enters nothing too late."""
    late = entered(case)
    if late is None:
        return remedy
    source, code = lines.texts(case.profile).get(late.file, {}), case.profile.code()
    ran = set[int]() if code is None else {
        line for file, line, function in code.places.iter_rows() if (file, function) == (late.file, late.caller) and line
    }  # fmt: skip
    text = {number: str(source.get(str(number), "")) for number in sorted(ran | {late.line})}
    there = f"{PurePath(late.file).name}:{late.line}"
    words = f"Enter no_sync() around forward and backward of a micro-step: {there} enters it behind the forward, where DDP has decided"
    return replace(remedy, text=words, paste=pasted(late, text) or remedy.paste)


def pasted(late: Entered, text: Mapping[int, str]) -> str | None:
    """Return the lines from forward to backward inside what is entered, None where that is not known; number -> text with its indent."""
    context = _context(text, late.line)
    if context is None:
        return None
    ours, body = late.function == late.caller, list[str]()
    for number in range(late.forward, late.backward + 1):
        if (number != late.line or not ours) and number in text and not _HEADS.match(text[number]):
            body.append(text[number].strip().partition("  #")[0])
    if not body or any(parsed(each) is None for each in body):
        return None
    unknown = list[str]()
    if not ours:
        put = _keywords(text.get(late.backward, ""))
        elsewhere = {"self"} if late.function.rpartition(".")[0] != late.caller.rpartition(".")[0] else set[str]()
        unknown = sorted(names_in(context) - (_MODULES - elsewhere) - put.keys())
        context = with_names_replaced(context, put)
    remark = f"  # {', '.join(unknown)}: as at line {late.line}" if unknown else ""
    return "\n".join((f"with {ast.unparse(context)}:{remark}", *(f"    {each}" for each in body)))


def _context(text: Mapping[int, str], line: int) -> ast.expr | None:
    """Return what a line enters or keeps to enter, with the condition of the branch that it stands in; None where that is not known."""
    tree = parsed(text.get(line, "").strip())
    statement = tree.body[0] if tree is not None and tree.body else None
    if isinstance(statement, ast.Assign):
        return statement.value
    if not isinstance(statement, ast.With):
        return None
    (context,) = (item.context_expr for item in statement.items if "no_sync" in ast.unparse(item.context_expr))
    if not (isinstance(context, ast.Call) and function_of_call(context) == "no_sync"):
        return context
    depth = depth_of(text[line])
    head = next(
        (each for number in sorted(text, reverse=True) if number < line and depth_of(each := text[number]) < depth), ""
    )
    branch = parsed(head.strip()) if head.strip().startswith("if ") else None
    if branch is None or not isinstance(branch.body[0], ast.If):
        return None
    return ast.IfExp(branch.body[0].test, context, ast.parse("contextlib.nullcontext()", mode="eval").body)


def _keywords(text: str) -> dict[str, ast.expr]:
    """Return what a line hands on by keyword."""
    tree = parsed(text.strip())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree is not None else []
    return {each.arg: each.value for call in calls for each in call.keywords if each.arg is not None}
