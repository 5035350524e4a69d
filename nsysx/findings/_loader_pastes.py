"""The statement that makes a loader, in the program's own words, with other options: what it has beside them must stay."""

from __future__ import annotations

import ast

from nsysx.analyses.lines import text_of, texts
from nsysx.findings._case import Case
from nsysx.findings._pieces_in_text import with_keywords


def with_options(case: Case, made: object, beside: str = "", **options: str) -> str:
    """Return the statement at ``made`` (file:line) with these options of DataLoader; a general one where it was not recorded, which says
    ``beside`` them what the loader has.
    """
    file, _, line = made.rpartition(":") if isinstance(made, str) else ("", "", "")
    statement = text_of(texts(case.profile), file, int(line)) if line.isdigit() else None
    changed = set_in_call(statement or "", "DataLoader", options)
    told_options = [beside] * bool(beside) + [f"{name}={value}" for name, value in options.items()]
    return changed or f"loader = DataLoader(data, {', '.join(told_options)})"


def set_in_call(statement: str, function: str, options: dict[str, str]) -> str:
    """Return a statement with these keywords in its only call of a function, "" where there is no such call that is written out."""
    try:
        tree = ast.parse(statement)
    except SyntaxError:
        return ""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func).split(".")[-1] == function]
    if len(calls) != 1 or any(keyword.arg is None for keyword in calls[0].keywords):  # **options may hold them, too
        return ""
    return with_keywords(statement, calls, options)
