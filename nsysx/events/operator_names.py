"""What the name of an operator says of lists of tensors, and of a gradient to begin with."""

from __future__ import annotations

import re

_WRITES_LISTS = re.compile(r"^aten::_(foreach|fused|amp)_\w*_$")


def writes_lists(name: str) -> bool:
    """Return whether an operator writes into lists of tensors, as those of optimizers do. It returns none of them, so they keep the names
    that they had: who reads what it wrote is not known.
    """
    return _WRITES_LISTS.match(name) is not None


def begins_gradients(name: str) -> bool:
    """Return whether an operator makes the gradient with which ``backward`` begins: autograd's thread reads it, under no name."""
    return name == "aten::ones_like"
