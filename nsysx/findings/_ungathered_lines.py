"""A program's own lines without the gathers in them."""

from __future__ import annotations

import ast

from nsysx.findings._pieces_in_text import whole_statement


class Ungathered(ast.NodeTransformer):
    """Takes the gathers out of a line; ``gathered``: what it has gathered, as it stands there. ``instead``: what stands there then."""

    def __init__(self, instead: ast.expr | None = None) -> None:
        self.gathered: ast.expr | None = None
        self._instead = instead

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = ast.unparse(node.func).rpartition(".")
        if node.args and "gather" in (called[0] if called[2] == "apply" else called[2]).lower():
            self.gathered = node.args[0]
            return self._instead or node.args[0]
        return self.generic_visit(node)


def ungathered_line(text: str) -> tuple[str, str] | None:
    """Return what a line that is given a gather assigns to, and its value without the gather; None where it is another kind of line."""
    line = whole_statement(text)
    if line is None:
        return None
    if not isinstance(line, ast.Assign) or len(line.targets) != 1 or not isinstance(line.targets[0], ast.Name):
        return None
    ungathered, whole = Ungathered(), ast.dump(line.value)
    value = ungathered.visit(line.value)
    if ungathered.gathered is None or value is ungathered.gathered or ast.dump(value) == whole:
        return None
    return line.targets[0].id, ast.unparse(value)


def numbered_line(text: str) -> tuple[str, str] | None:
    """Return the name of what a line gathers and brings into another order, and its value with ``rows`` for what came; None for others."""
    line = whole_statement(text)
    if line is None:
        return None
    if not isinstance(line, ast.Assign):
        return None
    ungathered = Ungathered(ast.Name("rows"))
    value = ungathered.visit(line.value)
    if not isinstance(ungathered.gathered, ast.Name) or isinstance(value, ast.Name):
        return None
    return ungathered.gathered.id, ast.unparse(value)
