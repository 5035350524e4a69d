"""The line of a step that calls a helper of the program behind its backward, and the step's own lines without that call.

What is wrong may be a line of the helper's, and stay as it is: what goes is a ``with`` around the backward, or a call behind it.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from nsysx.analyses.lines import texts
from nsysx.events.code_lines import CodeLines
from nsysx.findings._case import Case
from nsysx.findings._loop_texts import depth_of
from nsysx.findings._pieces_in_text import only_statement

#: What a helper does besides with what it exchanges: it divides, copies, joins.
_BESIDE = r"(?i)elementwise|copy|CatArray|^DtoD$"


def calling_row(case: Case, code: CodeLines, line_row: int, ops: frozenset[int]) -> int:
    """Return the line (row of places) of the function that runs backward which calls a helper's line; the line itself where there is none.

    ``ops``: those of the line. All that the call runs on the GPU must be those, and what divides or copies for them.
    """
    stacks = set(code.op[list(ops)].tolist()) - {-1}
    chains = {tuple(code.own_chain(stack)) for stack in stacks}
    if len(chains) != 1:
        return line_row
    (chain,) = chains
    backward = case.calls.filter(case.calls["phase"].cast(pl.String) == "backward")
    running = {(row[0], row[2]) for row in _rows_around(code, backward["call"].to_list())}
    functions = [code.places.row(row)[::2] for row in chain]
    outer = next((row for row, function in zip(chain, functions, strict=True) if function in running), line_row)
    theirs = case.ops.filter(pl.Series(code.passing(code.op[case.ops["op"].to_numpy()], frozenset({outer}))))
    others = theirs.filter(~theirs["op"].is_in(list(ops)))
    return outer if others["name"].cast(pl.String).str.contains(_BESIDE).fill_null(value=False).all() else line_row


def _rows_around(code: CodeLines, calls: Sequence[int]) -> list[tuple[str | None, int | None, str | None]]:
    """Return the places of all lines at work in some calls."""
    stacks = [stack for stack in np.unique(code.call[calls]).tolist() if stack >= 0]
    return [code.places.row(row) for row in {row for stack in stacks for row in code.own_chain(stack)}]


def without_call(case: Case, code: CodeLines, line_row: int) -> str:
    """Return the lines of a step without the call at a line: those inside of a ``with``, or the line itself as a remark; "" for others."""
    file, line, function = code.places.row(line_row)
    source: Mapping[str, str] = texts(case.profile).get(file or "", {})
    text = str(source.get(str(line), "")).partition("  #")[0].rstrip()
    if isinstance(only_statement(text), ast.Expr):
        return f"# {text.strip()}  # deleted"
    head = only_statement(f"{text.strip()} pass")
    if not isinstance(head, ast.With) or line is None:
        return ""
    ran = sorted(n for f, n, of_line in code.places.iter_rows() if (f, of_line) == (file, function) and n is not None)
    body = list[str]()
    for number in ran:
        inner = str(source.get(str(number), "")).partition("  #")[0].rstrip()
        if number > line and inner and depth_of(inner) <= depth_of(text):
            break
        if number > line:
            body.append(inner)
    written = textwrap.dedent("\n".join(body))
    entered = [ast.unparse(each) for each in head.items]
    try:
        ast.parse(written)
    except SyntaxError:
        return ""
    if not body or len(entered) != 1:
        return ""
    return f"{written}  # not inside of {entered[0]}"
