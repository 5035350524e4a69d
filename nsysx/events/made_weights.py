"""Finds the operators of a step that make weights anew from what no step changes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nsysx.events.operator_flow import OperatorFlow, in_place

#: Operators whose result nobody knows before: drawn, read from the host, or a part that Python's numbers choose.
_NEW = re.compile(
    r"rand|normal_|uniform|bernoulli|dropout|multinomial|exponential|lift_fresh|scalar_tensor|::full|::fill|"
    r"::(select|slice|narrow|index\w*|gather|as_strided|take\w*|split\w*|chunk|unbind|roll|copy_)$"
)
#: Operators that multiply what they are given by weights, and which argument these are. Their results are no weights.
_WEIGHTS = {
    **{
        f"aten::{name}": 1
        for name in ("linear", "matmul", "mm", "bmm", "convolution", "_convolution", "cudnn_convolution")
    },
    **{f"aten::conv{kind}d": 1 for kind in ("1", "2", "3", "_transpose1", "_transpose2", "_transpose3")},
    **{f"aten::{name}": 2 for name in ("addmm", "baddbmm")},
}
_PRODUCT = re.compile(r"::(\w*conv\w*|\w*mm\w*|linear|matmul|einsum|embedding\w*|\w*attention\w*|lstm|gru|rnn\w*)$")


def made_weights(flow: OperatorFlow, copied: Sequence[bool]) -> list[int]:
    """Return the operators that make weights from nothing but tensors without a name, in a program that changes none of these.

    ``copied``: of each operator, whether it copies something from the host.
    """
    row_of = flow.row_of
    same: list[bool] = []  # as in the step before
    for name, makers, from_host in zip(flow.names, flow.made, copied, strict=True):
        of_same = all(
            same[row_of[number]] for number in makers if number >= 0 and row_of.get(number, len(same)) < len(same)
        )
        earlier = all(number < 0 or row_of.get(number, len(same)) < len(same) for number in makers)
        new = from_host or _NEW.search(name) or _PRODUCT.search(name) or in_place(name)
        same.append(bool(makers) and of_same and earlier and not new)
    chosen: set[int] = set()
    waiting = [
        row_of[makers[argument]]
        for name, makers in zip(flow.names, flow.made, strict=True)
        if (argument := _WEIGHTS.get(name)) is not None and len(makers) > argument and makers[argument] in row_of
    ]
    while waiting:
        row = waiting.pop()
        if same[row] and row not in chosen:
            chosen.add(row)
            waiting += [row_of[number] for number in flow.made[row] if number in row_of]
    return sorted(chosen)
