"""Losses of each position that a mask is multiplied into, and the layers whose logits they are of, from the operators of an X-ray.

The product is added up, and so is the mask: their quotient is the mean of what counts. What makes one number of each position picks it of
the logits (a label's loss, or probability), or adds up over the words (a divergence, a squared difference), of one layer or of two, as
of a student and its teacher. Positions may be rows and columns, or flattened.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from nsysx.events.narrowed_operators import ELEMENT_LOSS, ELEMENTWISE, SOFTMAX, Size, sizes_of
from nsysx.events.operator_bounds import MOST_HEADS_OF_A_LOSS
from nsysx.events.operator_flow import OperatorFlow, handed_from, is_view
from nsysx.events.operator_names import LAYERS

_TIMES, _SUMS = re.compile(r"^aten::mul_?$"), re.compile(r"^aten::sum$")
#: What makes one number of each position's logits: the loss of a label, or its probability.
_PICKS = re.compile(r"^aten::(gather|cross_entropy_loss|nll_loss(_nd)?)$")
_OVER_WORDS = re.compile(r"^aten::(sum|mean|logsumexp)$")
#: Operators that hand logits on to a loss, row by row.
_HANDS_ON = re.compile(r"^aten::(to|_to_copy|contiguous|clone|log_softmax|float|mul|div|tanh)_?$")
_RETYPES = re.compile(r"^aten::(to|_to_copy|contiguous|clone|float|bool|long)$")
#: What makes views of one size of what is compared number by number.
_BESIDE = re.compile(r"^aten::broadcast_tensors$")
_COMPARES = re.compile(r"^aten::(ne|ge|gt)$")


class MaskedLoss(NamedTuple):
    """A product with a mask (row of the flow), the layers whose logits it is of, what works on these up to it, and what makes the mask."""

    times: int
    layers: frozenset[int]
    between: frozenset[int]
    mask: int


def hands_logits_on(name: str) -> bool:
    """Return whether an operator hands logits on to a loss, row by row."""
    return is_view(name) or _HANDS_ON.match(name) is not None


def behind_types(flow: OperatorFlow, number: int) -> int:
    """Return what made a tensor, behind views and other types of it: the number of the first operator that is seen to hand it on."""
    maker = flow.row_of.get(number, -1)
    while maker >= 0 and (is_view(flow.names[maker]) or _RETYPES.match(flow.names[maker])) and flow.made[maker]:
        number = flow.made[maker][0] if flow.made[maker][0] >= 0 else number
        maker = flow.row_of.get(flow.made[maker][0], -1)
    return number


def compared_of(flow: OperatorFlow, mask: int) -> tuple[int, int]:
    """Return the comparison (row of the flow) that makes a mask, and what it compares (number); -1 for a mask of another kind."""
    row = flow.row_of.get(behind_types(flow, mask), -1)
    return (row, flow.made[row][0]) if row >= 0 and _COMPARES.match(flow.names[row]) and flow.made[row] else (-1, -1)


def masked_losses(flow: OperatorFlow) -> Iterator[MaskedLoss]:
    """Yield the products of a loss of each position with a mask that is added up for itself, too."""
    summed = {flow.made[row][0] for row in flow.outermost if _SUMS.match(flow.names[row]) and flow.made[row]}
    summed_rows, masks = {flow.row_of.get(number, -1) for number in summed}, {behind_types(flow, n) for n in summed}
    for row in flow.outermost:
        sizes, made = sizes_of(flow.size[row]), flow.made[row]
        if row not in summed_rows or not _TIMES.match(flow.names[row]) or len(made) < 2 or sizes[0] != sizes[1]:
            continue
        if not sizes[0] or math.prod(sizes[0]) < 2:  # a number is no mask
            continue
        for losses, mask in (made[:2], made[1::-1]):
            # The product is added up as a whole, and so is the mask: their quotient is the mean of what counts.
            if mask < 0 or behind_types(flow, mask) not in masks or _layers_behind(flow, mask, sizes[0]):
                continue
            layers = _layers_behind(flow, losses, sizes[0])
            if 0 < len(layers) <= MOST_HEADS_OF_A_LOSS:
                on_logits = frozenset[int]().union(*(_on_logits(flow, layer, row) for layer in layers))
                yield MaskedLoss(row, layers, on_logits, behind_types(flow, mask))


def _layers_behind(flow: OperatorFlow, made: int, size: Size) -> frozenset[int]:
    """Return the layers whose outputs, as logits of each position, a result is made of; ``size``: of the positions."""
    rows, seen, layers = [flow.row_of.get(made, -1)], set[int](), set[int]()
    while rows:
        row = rows.pop()
        if row < 0 or row in seen:
            continue
        seen.add(row)
        if _PICKS.match(flow.names[row]):
            layers |= {layer for layer in [_head_of(flow, row)] if layer is not None}
        elif _adds_up_words(flow, row, size):
            layers |= _of_words(flow, row)
        elif flow.names[row] not in LAYERS:
            rows += [flow.row_of.get(each, -1) for each in flow.made[row]]
    return frozenset(layers)


def _adds_up_words(flow: OperatorFlow, row: int, size: Size) -> bool:
    """Return whether an operator makes one number of all words of each position."""
    sizes = sizes_of(flow.size[row])
    whole = sizes[0] if sizes else ()
    return (
        _OVER_WORDS.match(flow.names[row]) is not None and math.prod(whole[:-1]) == math.prod(size) and len(whole) > 1
    )


def _of_words(flow: OperatorFlow, row: int) -> set[int]:
    """Return the layers of which a sum over words is made, word by word; none where something else is made of other numbers of the row."""
    width, layers, seen = sizes_of(flow.size[row])[0][-1], set[int](), set[int]()
    rows, hidden = [flow.row_of.get(flow.made[row][0], -1)], False
    while rows:
        each = rows.pop()
        if each < 0 or each in seen:
            continue
        seen.add(each)
        name, sizes = flow.names[each], sizes_of(flow.size[each])
        if name in LAYERS:
            hidden = hidden or len(sizes) < 2 or not sizes[1] or sizes[1][0] != width or width <= sizes[1][-1]
            layers.add(each)
        elif is_view(name) or any(kind.match(name) for kind in (ELEMENTWISE, SOFTMAX, ELEMENT_LOSS, _BESIDE)):
            rows += [flow.row_of.get(number, -1) for number in flow.made[each]]
        else:
            return set()
    return set() if hidden else layers


def _head_of(flow: OperatorFlow, row: int) -> int | None:
    """Return the layer that makes the logits of a pick, through what hands them on row by row; None for another origin."""
    maker, _ = handed_from(flow, flow.made[row][0], hands_logits_on) if flow.made[row] else (-1, ())
    return maker if maker >= 0 and flow.names[maker] in LAYERS else None


def _on_logits(flow: OperatorFlow, layer: int, end: int) -> frozenset[int]:
    """Return the operators that work on the logits of a layer, word by word, up to a row."""
    words, made = sizes_of(flow.size[layer]), {layer}
    width = words[1][0] if len(words) > 1 and words[1] else 0
    for row in flow.outermost:
        if layer < row < end and any(flow.row_of.get(each, -1) in made for each in flow.made[row]):
            sizes = sizes_of(flow.size[row])
            if sizes and sizes[0] and sizes[0][-1] == width:
                made.add(row)
    return frozenset(made - {layer})
