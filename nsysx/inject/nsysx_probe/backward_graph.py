"""The nodes of the graph that a backward runs over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def nodes_of(roots: Any) -> Iterator[Any]:
    """Return each node that a backward of these tensors (or edges) reaches, once."""
    roots = roots if isinstance(roots, (tuple, list)) else (roots,)
    todo = [getattr(root, "node", None) or getattr(root, "grad_fn", None) for root in roots]
    seen: dict[int, Any] = {}  # by id: held, so that no other node gets it
    while todo:
        node = todo.pop()
        if node is None or id(node) in seen:
            continue
        seen[id(node)] = node
        yield node
        todo.extend(following for following, _ in node.next_functions)


def nodes_near(roots: Any, most: int) -> Iterator[Any]:
    """Return the nodes that lie nearest to what a backward begins with, so many at most, each once."""
    roots = roots if isinstance(roots, (tuple, list)) else (roots,)
    todo = [getattr(root, "node", None) or getattr(root, "grad_fn", None) for root in roots][:most]
    seen: dict[int, Any] = {}  # by id: held, so that no other node gets it
    for node in todo:  # grows as it goes
        if node is None or id(node) in seen:
            continue
        if len(seen) >= most:
            return
        seen[id(node)] = node
        yield node
        todo.extend(following for following, _ in node.next_functions)
