"""Which kernels scaled_dot_product_attention chose in an X-ray step, and what keeps its calls from FlashAttention.

The operators that an X-ray notes are nested: the one that PyTorch chose lies inside the call. What the sizes of the arguments show
is told: FlashAttention takes no mask and heads of at most 256 numbers, of one size in queries, keys and values (PyTorch,
aten/src/ATen/native/transformers/sdp_utils). Types of numbers stand in no range, so what they refuse is not known.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import NamedTuple

from nsysx.events.event_bounds import FLASH_HEAD_SIZE
from nsysx.events.operator_flow import OperatorFlow

_CALL = "aten::scaled_dot_product_attention"
_CHOSEN = re.compile(r"^aten::_scaled_dot_product_(?:(cudnn|flash|efficient)_attention|attention_(math))")
#: What is no slower than FlashAttention: nothing faster was refused.
_FAST = ("flash", "cudnn")


class AttentionCalls(NamedTuple):
    """Calls of one kind in one X-ray step.

    ``backend``: flash, cudnn, efficient or math, None where no range shows it. ``query``: its sizes as text. ``masked``: whether a mask
    is an argument. ``not_flash``: why FlashAttention was refused, None where that is not known or nothing was refused.
    """

    backend: str | None
    query: str
    masked: bool
    calls: int
    not_flash: str | None

    def facts(self) -> dict[str, object]:
        """Return its fields; ``not_flash`` only where a faster one was refused, so that null means that the reason is not known."""
        return {k: v for k, v in self._asdict().items() if k != "not_flash" or self.backend not in _FAST}


def attention_calls(flow: OperatorFlow) -> list[AttentionCalls]:
    """Return the calls by backend, sizes of the query and mask, in the order in which they come."""
    seen = Counter[tuple[str | None, str]]()
    until = -1
    for first, name in enumerate(flow.names):
        if name != _CALL or int(flow.start_ns[first]) < until:  # autocast's range and the call in it have one name
            continue
        until = int(flow.end_ns[first])
        seen[_chosen(flow, first, until), flow.size[first]] += 1
    return [_described(backend, sizes, calls) for (backend, sizes), calls in seen.items()]


def _chosen(flow: OperatorFlow, first: int, until: int) -> str | None:
    for row in range(first + 1, len(flow.names)):
        if int(flow.start_ns[row]) >= until:
            return None
        if chosen := _CHOSEN.match(flow.names[row]):
            return chosen[1] or chosen[2]
    return None


def _described(backend: str | None, sizes: str, calls: int) -> AttentionCalls:
    try:
        arguments = json.loads(f"[{sizes}]")
    except ValueError:
        arguments = []
    query, key, value, mask = (*arguments, [], [], [], [])[:4]
    refused = None
    if backend not in (None, *_FAST) and query:
        heads = {each[-1] for each in (query, key, value) if each}
        if mask:
            refused = "a mask is an argument"
        elif len(heads) > 1:
            refused = "the heads of queries, keys and values differ in size"
        elif max(heads) > FLASH_HEAD_SIZE:
            refused = f"a head has {max(heads)} numbers, more than {FLASH_HEAD_SIZE}"
    return AttentionCalls(backend, "x".join(map(str, query)), bool(mask), calls, refused)
