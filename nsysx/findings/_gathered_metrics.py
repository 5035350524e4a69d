"""Metrics of torchmetrics that gather their states of all ranks in a step: ``dist_sync_on_step=True``, or ``compute()`` in each."""

from __future__ import annotations

import ast

from nsysx.events.code_lines import CodeLines
from nsysx.events.profile import Profile
from nsysx.findings._case import Fix, way
from nsysx.findings._finding_bounds import MOST_SHARE
from nsysx.findings._pieces_in_text import only_statement
from nsysx.frames.intervals import I64

NAME = "counted-apart"
_PACKAGE = "/torchmetrics/"
_TEXT = (
    "Let the metric gather in steps that show it alone: elsewhere update() adds the batch to the rank's own state, without "
    "dist_sync_on_step=True, which gathers predictions and targets of all ranks for each batch"
)
_CONDITION = "What a step shows is then of its own rank's batch; compute() at the end is of all, as before."


def metric_of_line(profile: Profile, code: CodeLines, stacks: I64, text: str) -> Fix | None:
    """Return the advice for a line whose collectives (their stacks) a metric makes, None where it makes few of them."""
    files = code.places["file"].to_list()
    passing = [stack for stack in stacks.tolist() if any(_PACKAGE in str(files[row]) for row in code.chain(stack))]
    if len(passing) < MOST_SHARE * len(stacks) or not passing:
        return None
    return Fix.by_name(way(NAME, _TEXT, _pasted(text) or way(NAME).paste, _CONDITION))


def _pasted(text: str) -> str | None:
    """Return the line for steps that show the metric, and for all others; None for a line that calls none by itself."""
    statement = only_statement(text.partition("  #")[0])
    call = statement.value if isinstance(statement, (ast.Assign, ast.Expr, ast.Return)) else None
    if statement is None or not isinstance(call, ast.Call) or not isinstance(call.func, (ast.Name, ast.Attribute)):
        return None
    shown = f"if log:  # in a step that shows it\n    {ast.unparse(statement)}"
    if isinstance(call.func, ast.Attribute) and call.func.attr == "compute":
        return shown
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("forward", "update", "log", "log_dict"):
        return None
    func = ast.unparse(call.func)
    call.func = ast.parse(f"{func}.update", mode="eval").body
    return f"{shown}\nelse:\n    {ast.unparse(call)}"
