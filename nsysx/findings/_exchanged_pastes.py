"""A gather of which each rank reads its own samples, as the exchange that brings these: in the lines that gather and that pick."""

from __future__ import annotations

import ast
import re

from nsysx.findings._pieces_in_text import whole_statement

#: Functions that gather what each rank has into a list, with gradients, and what exchanges parts of it.
_GATHERS, _EXCHANGES = "all_gather", "all_to_all_single"
_JOINS = ("cat", "concat", "concatenate")
_CUTS = ("chunk", "split", "tensor_split")
_RANK = re.compile(r"(?i)(^|[\W_])rank\b")


def exchanged(gathering: str, picking: str, line_of_pick: int) -> list[str]:
    """Return the statements of two lines, which gather the rows of all ranks and pick those of this one, with an exchange of rows.

    Of each rank's rows the first part is for the first rank, and so on; parts of all ranks are put together in another dimension than
    that of the rows. [] where these lines do not say so.
    """
    join, pick = whole_statement(gathering), whole_statement(picking)
    if join is None or pick is None or not _RANK.search(picking):
        return []
    joins = [n for n in ast.walk(join) if isinstance(n, ast.Call) and _called(n) in _JOINS and n.args]
    if len(joins) != 1 or not isinstance(gather := joins[0].args[0], ast.Call) or _called(gather) != _GATHERS:
        return []
    left = _unpicked(pick)
    if len(gather.args) != 1 or not isinstance(gather.func, ast.Attribute) or left is None:
        return []
    sent, room = ast.unparse(gather.args[0]), ast.unparse(gather.func.value)
    group = "".join(f", group={ast.unparse(k.value)}" for k in gather.keywords if k.arg == "group")
    world = f"dist.get_world_size({group.removeprefix(', group=')})"
    joins[0].args[0] = ast.parse(f"received.chunk({world})", mode="eval").body
    return [
        f"received = {room}.{_EXCHANGES}(torch.empty_like({sent}), {sent}{group})  # its rows lie in the order of the ranks",
        ast.unparse(join),
        f"{left}  # line {line_of_pick}, without the pick",
    ]


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _unpicked(statement: ast.stmt) -> str | None:
    """Return a statement with what it picks a range of in place of that range; None for one that picks none, or several."""
    picked = list[ast.AST]()

    class Whole(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            if _called(node) == "narrow" and isinstance(node.func, ast.Attribute):
                picked.append(node)
                return node.func.value
            return node

        def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
            self.generic_visit(node)
            if isinstance(node.slice, ast.Slice):
                picked.append(node)
                return node.value
            parts = node.value
            if isinstance(parts, ast.Call) and _called(parts) in _CUTS and isinstance(parts.func, ast.Attribute):
                picked.append(node)
                return parts.func.value
            return node

    text = ast.unparse(Whole().visit(statement))
    return text if len(picked) == 1 else None
