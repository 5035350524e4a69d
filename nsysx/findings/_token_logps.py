"""Log-probabilities of one token each, where ``log_softmax`` makes those of all: a compiled function writes nothing that long."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

#: What lines call that is no variable of theirs.
_MODULES = ("torch", "F", "functional", "nn")


def picked_of_logits(lines: Sequence[str]) -> str:
    """Return a compiled function for lines that take a softmax's logarithm and gather one number of each row, and its call; "" for others.

    Between the two there may be nothing but names.
    """
    trees = [tree for line in lines if (tree := _tree(line)) is not None]
    softmax = next(_calls(trees, "log_softmax"), None)
    gather = next(_calls(trees, "gather"), None)
    if softmax is None or gather is None:
        return ""
    logits = next(iter(softmax.args), None)
    if isinstance(softmax.func, ast.Attribute) and ast.unparse(softmax.func.value) not in _MODULES:
        logits = softmax.func.value
    index = gather.args[-1] if gather.args else next((k.value for k in gather.keywords if k.arg == "index"), None)
    if logits is None or index is None:
        return ""
    flat = _of_method(index, "unsqueeze")
    numbers = _of_method(flat, "long")
    squeezed = any(
        _of_method(node, "squeeze") is gather for tree in trees for node in ast.walk(tree) if isinstance(node, ast.expr)
    )
    if flat is index or not squeezed or not isinstance(numbers, (ast.Name, ast.Attribute, ast.Subscript)):
        return ""
    given = list(dict.fromkeys(n.id for n in ast.walk(logits) if isinstance(n, ast.Name) and n.id not in _MODULES))
    picked = "index" if "index" not in given else "picked"
    made = ast.unparse(logits)
    if ".float()" not in made and "float32" not in made:
        made = f"({made}).float()" if not isinstance(logits, (ast.Name, ast.Attribute)) else f"{made}.float()"
    name = next((_target(tree) for tree in trees if any(node is gather for node in ast.walk(tree))), "")
    return (
        f"@torch.compile\ndef logp_of({', '.join([*given, picked])}):\n    z = {made}\n"
        f"    return z.gather(-1, {picked}.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(z, -1)\n"
        f"{name or 'logp'} = logp_of({', '.join([*given, ast.unparse(flat)])})"
    )


def _tree(line: str) -> ast.Module | None:
    try:
        return ast.parse(line.strip())
    except SyntaxError:
        return None


def _calls(trees: Sequence[ast.Module], name: str) -> Iterator[ast.Call]:
    every = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))
    return (node for node in every if getattr(node.func, "attr", getattr(node.func, "id", "")) == name)


def _of_method(node: ast.expr, name: str) -> ast.expr:
    """Return what a method of this name is called on, or the expression itself."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name
    return node.func.value if called and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else node


def _target(tree: ast.Module) -> str:
    (first, *_) = tree.body
    simple = (
        isinstance(first, ast.Assign)
        and len(first.targets) == 1
        and isinstance(first.targets[0], (ast.Name, ast.Attribute))
    )
    return ast.unparse(first.targets[0]) if simple and isinstance(first, ast.Assign) else ""
