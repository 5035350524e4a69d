"""The lines of an adapter with its weights converted to the type of what it is given, in the program's own names."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from nsysx.events.code_lines import CodeLines
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.wide_adapters import WideAdapter
from nsysx.findings._case import Case
from nsysx.findings._cut_rows import statement_at
from nsysx.findings._flow_work import in_short, place_of_operator

_CONVERTING_CALLS = ("to", "float", "type_as")
_PRODUCT_CALLS = ("linear", "matmul", "mm")


def converted_weights(case: Case, code: CodeLines, flow: OperatorFlow, adapters: Sequence[WideAdapter]) -> str:
    """Return the lines of all products in their new form; "" where the adapters have several forms, or texts do not tell them.

    Every product and every conversion has to stand in these lines.
    """
    forms = dict[tuple[str, int], str]()
    for row in sorted({row for each in adapters for row in (*each.products, *each.conversions)}):
        where = place_of_operator(code, flow, flow.start_ns[[row]])
        if not where:
            return ""
        file_line = (where["file"], where["line"])
        if file_line not in forms:
            statement = statement_at(case, where)
            line = None if statement is None else converted(statement)
            if line is None:
                return ""
            forms[file_line] = f"{line}  # {in_short(where)}"
    return "\n".join(forms[each] for each in sorted(forms)) if len({file for file, _ in forms}) == 1 else ""


def converted(statement: ast.stmt) -> str | None:
    """Return a statement whose products convert their weights, None for one that holds no product by a function or an operator."""
    changed = _ConvertedWeights()
    new = changed.visit(statement)
    return ast.unparse(new) if changed.count and changed.clear else None


class _ConvertedWeights(ast.NodeTransformer):
    """Converts the second factor of each product to the type of the first, and no longer the first, nor the product."""

    def __init__(self) -> None:
        self.count, self.clear = 0, True

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Change F.linear(x.to(w.dtype), w).to(y.dtype) to F.linear(x, w.to(x.dtype))."""
        if _is_conversion(node) and isinstance(node.func, ast.Attribute) and _is_product(node.func.value):
            changed: ast.AST = self.visit(node.func.value)
            return changed
        product = _is_product(node) and len(node.args) == 2 and not node.keywords
        if product:
            node.args = [_WithoutConversions().visit(each) for each in node.args]
        self.generic_visit(node)
        if product:
            node.args = list(self._factors(*node.args))
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Change x.to(w.dtype) @ w to x @ w.to(x.dtype)."""
        if _is_product(node):
            node.left, node.right = (_WithoutConversions().visit(each) for each in (node.left, node.right))
        self.generic_visit(node)
        if _is_product(node):
            node.left, node.right = self._factors(node.left, node.right)
        return node

    def _factors(self, given: ast.expr, weight: ast.expr) -> tuple[ast.expr, ast.expr]:
        typed = _typed(given)
        self.count += 1
        self.clear &= typed is not None
        whole = f"({ast.unparse(weight)})" if isinstance(weight, ast.BinOp) else ast.unparse(weight)
        kind = "" if typed is None else f".to({ast.unparse(typed)}.dtype)"
        return given, ast.parse(f"{whole}{kind}", mode="eval").body


def _is_product(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return (node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)) in _PRODUCT_CALLS
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)


def _is_conversion(node: ast.expr) -> bool:
    """Return whether a call gives a tensor another type: not one that puts it elsewhere."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.keywords:
        return False
    if node.func.attr == "to":
        (argument, *more) = node.args or [ast.Constant(None)]
        return not more and (
            (isinstance(argument, ast.Attribute) and argument.attr == "dtype")
            or ast.unparse(argument)
            in ("torch.float32", "torch.float", "torch.bfloat16", "torch.float16", "torch.half")
        )
    return node.func.attr in _CONVERTING_CALLS and len(node.args) == (node.func.attr == "type_as")


class _WithoutConversions(ast.NodeTransformer):
    """Leaves conversions out of an expression: of what a dropout is given, too."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Return what a conversion is given, another call as it is."""
        if _is_conversion(node) and isinstance(node.func, ast.Attribute):
            given: ast.AST = self.visit(node.func.value)
            return given
        return self.generic_visit(node)


def _typed(node: ast.expr) -> ast.expr | None:
    """Return of an expression the first tensor, whose type the whole has; None where a number may stand first."""
    while not isinstance(node, ast.Name | ast.Attribute):
        if isinstance(node, ast.BinOp) and _is_product(node):
            node = node.left
        elif isinstance(node, ast.Call) and _is_method(node) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        elif isinstance(node, ast.Call) and node.args:
            node = node.args[0]
        else:
            return None
    return node


def _is_method(node: ast.Call) -> bool:
    """Return whether a call is most likely of a tensor: not of a layer, nor of a function of a module."""
    if not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr in (
        "view",
        "reshape",
        "flatten",
        "transpose",
        "contiguous",
        "mul",
        "div",
        "unsqueeze",
        "squeeze",
    )
