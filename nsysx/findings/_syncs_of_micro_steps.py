"""Where a program says which micro-steps reduce gradients, or which is the last, with what keeps their parameters gathered."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import NamedTuple

from nsysx.advice import Alternative
from nsysx.analyses.lines import texts
from nsysx.findings._case import Case
from nsysx.findings._pieces_in_text import only_statement
from nsysx.model import Row

#: Methods of a sharded model that are told so.
_SAY_SO = ("set_requires_gradient_sync", "set_is_last_backward")
_INSTALLED = re.compile(r"/(site|dist)-packages/")


class _Syncs(NamedTuple):
    """A line that says by ``method`` whether a micro-step of ``network`` reduces gradients, as ``when`` does."""

    file: str
    line: int
    network: str
    method: str
    when: str

    @property
    def always(self) -> bool:
        return self.when == "True"


def _lines(case: Case) -> list[_Syncs]:
    """Return the lines of the program's first file that says it, in order."""
    for file, of_file in texts(case.profile).items():
        noted = sorted((int(line), text) for line, text in of_file.items() if isinstance(text, str))
        every = [syncs for line, text in noted if (syncs := _line_that_syncs(file, line, text)) is not None]
        if every and not _INSTALLED.search(file):
            return every
    return []


def _line_that_syncs(file: str, line: int, text: str) -> _Syncs | None:
    statement = only_statement(text.partition("  #")[0])
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr not in _SAY_SO:
        return None
    given = [*call.args, *(each.value for each in call.keywords)]
    if len(given) != 1:  # recurse=False: it is said of the root's own parameters alone
        return None
    return _Syncs(file, line, ast.unparse(call.func.value), call.func.attr, ast.unparse(given[0]))


def place(case: Case) -> Row:
    """Return the line that leaves reductions out; empty where none is known."""
    return next(({"file": each.file, "line": each.line} for each in _lines(case) if not each.always), {})


def worded(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy, that with what the program says of its micro-steps, where its lines are known."""
    pasted = list[str]()
    for each in _lines(case) if place(case) else []:
        pasted.append(f"{each.network}.{each.method}({each.when})  # line {each.line}")
        if not each.always:
            pasted.append(f"{each.network}.set_reshard_after_forward(False)")
        pasted.append(f"{each.network}.set_reshard_after_backward({each.when})")
    return title, replace(remedy, paste="\n".join(pasted)) if pasted else remedy
