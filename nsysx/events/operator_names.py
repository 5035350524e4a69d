"""What the name of an operator says: of lists of tensors, of a gradient to begin with, of turned dimensions and of linear layers."""

from __future__ import annotations

import re

#: Operators that only turn dimensions.
TURNS = re.compile(r"^aten::(transpose|swapaxes|permute|movedim|numpy_T|[tT]|mT|mH|adjoint)$")
#: Linear layers: which argument is multiplied, and which the weights are, with their sides.
LAYERS = {"aten::linear": (0, 1), "aten::matmul": (0, 1), "aten::mm": (0, 1), "aten::addmm": (1, 2)}
_WRITES_LISTS = re.compile(r"^aten::_(foreach|fused|amp)_\w*_$")


def writes_lists(name: str) -> bool:
    """Return whether an operator writes into lists of tensors, as those of optimizers do. It returns none of them, so they keep the names
    that they had: who reads what it wrote is not known.
    """
    return _WRITES_LISTS.match(name) is not None


def begins_gradients(name: str) -> bool:
    """Return whether an operator makes the gradient with which ``backward`` begins: autograd's thread reads it, under no name."""
    return name == "aten::ones_like"
