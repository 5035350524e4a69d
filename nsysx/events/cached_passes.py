"""Passes over one token, or few, each a step, that go on with a cache of keys and values which is older than they are.

A cache of a fixed size is attended to as a whole, under a mask. Within such a pass nothing tells how many of its rows were written: it
writes a row for each query, wherever that lies. The pass over a prompt, another X-ray step, writes as many rows as the prompt has tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.operator_bounds import FEWEST_CACHED_ROUNDS, MOST_BETWEEN_PRODUCTS, MOST_DECODED_QUERIES
from nsysx.events.operator_flow import OperatorFlow, flow_of, flows_of, is_view
from nsysx.events.profile import Profile
from nsysx.events.unwritten_keys import WRITES, attends, handed_on

_COPIES, _CUTS = "aten::copy_", ("aten::slice", "aten::narrow")
#: What makes scores, and what takes a mask to them.
_PRODUCT, _MASKING = (
    "aten::matmul",
    ("aten::add", "aten::add_", "aten::masked_fill", "aten::masked_fill_", "aten::where"),
)
#: Where a cache has its rows, from the end: behind its heads, or before them.
_OF_ROWS = (-2, -3)


class CachedAttention(NamedTuple):
    """Attention (row of the flow) of ``queries`` to all ``keys`` of a cache, with a ``mask`` of a size; ``write``: what writes into it
    before (row); ``passed``: rows of what hands keys and values on.
    """

    row: int
    queries: int
    keys: int
    mask: tuple[int, ...]
    write: int
    passed: frozenset[int]


class CachedPass(NamedTuple):
    """A step that attends so; ``prompt``: the most rows that another X-ray step writes into a cache of as many keys, 0 for none that is
    known to write more than this one, and when that runs on the host (ns).
    """

    attention: tuple[CachedAttention, ...]
    prompt: int = 0
    prompt_ns: tuple[int, int] = (0, 0)


def cached_pass(profile: Profile) -> CachedPass | None:
    """Return the pass of the X-ray step that is shown, None where it is none."""
    return profile.once(_cached_pass)


def _cached_pass(profile: Profile) -> CachedPass | None:
    flow = flow_of(profile)
    attention = tuple(_attention(flow)) if flow is not None else ()
    if len(attention) < FEWEST_CACHED_ROUNDS:
        return None
    keys, queries = attention[0].keys, max(each.queries for each in attention)
    prompts = [
        (rows, (int(other.start_ns[0]), int(other.end_ns.max())))
        for other in flows_of(profile)
        if (rows := max((_rows_written(other, row, keys) for row in other.outermost), default=0)) > queries
    ]
    return CachedPass(attention, *max(prompts, default=(0, (0, 0))))


def _attention(flow: OperatorFlow) -> Iterator[CachedAttention]:
    """Yield the attention of few queries over more keys, before each of which as many rows are written into a cache of so many."""
    since = list[int]()
    for number, row in enumerate(flow.outermost):
        if (told := attends(flow, row)) is not None:
            queries, keys = told
            writes = [each for each in since if _rows_written(flow, each, keys) == queries]
            since.clear()
            if writes:
                passed = handed_on(flow, flow.made[row][1]) | handed_on(flow, flow.made[row][2])
                mask = sizes_of(flow.size[row])[3]
                yield CachedAttention(row, queries, keys, mask, writes[-1], passed)
        elif (products := _by_products(flow, number)) is not None:
            queries, keys, mask, rows = products
            writes = [each for each in since if _rows_written(flow, each, keys) == queries]
            since.clear()
            if writes:
                passed = handed_on(flow, flow.made[row][1]) | handed_on(flow, flow.made[rows[-1]][1])
                yield CachedAttention(row, queries, keys, mask, writes[-1], passed.union(rows))
        elif flow.names[row] == _COPIES or flow.names[row] in WRITES:
            since.append(row)


def _by_products(flow: OperatorFlow, number: int) -> tuple[int, int, Size, list[int]] | None:
    """Return queries, keys and the mask's size of attention that is written out from an outermost operator on, and its operators behind it
    up to the product with the values; None for other work.
    """
    row = flow.outermost[number]
    if flow.names[row] != _PRODUCT:
        return None
    left, right, *_ = sizes_of(flow.size[row])
    if len(left) != 4 or len(right) != 4 or not left[-2] <= min(MOST_DECODED_QUERIES, right[-1] - 1):
        return None
    queries, keys, rows, masks = left[-2], right[-1], list[int](), list[Size]()
    for behind in flow.outermost[number + 1 : number + 1 + MOST_BETWEEN_PRODUCTS]:
        rows.append(behind)
        sizes = sizes_of(flow.size[behind])
        if flow.names[behind] == _PRODUCT:
            return (queries, keys, masks[0], rows) if masks and sizes[0][-2:] == (queries, keys) else None
        if flow.names[behind] in _MASKING:
            masks += sorted((size for size in sizes if size and size[-1] == keys), key=prod)[:1]
    return None


def _rows_written(flow: OperatorFlow, row: int, keys: int) -> int:
    """Return how many rows an operator writes into a tensor of four dimensions with so many, 0 for none."""
    sizes = sizes_of(flow.size[row])
    if flow.names[row] in WRITES:
        which = WRITES[flow.names[row]]
        return _rows(sizes[0], sizes[which], keys) if len(sizes) > which else 0
    if flow.names[row] != _COPIES or not sizes or not flow.made[row]:
        return 0
    maker = flow.row_of.get(flow.made[row][0])
    while maker is not None and is_view(flow.names[maker]) and flow.made[maker]:
        viewed = sizes_of(flow.size[maker])
        if flow.names[maker] in _CUTS and viewed and (rows := _rows(viewed[0], sizes[0], keys)):
            return rows
        maker = flow.row_of.get(flow.made[maker][0])
    return 0


def _rows(cache: tuple[int, ...], new: tuple[int, ...], keys: int) -> int:
    if len(cache) != 4 or len(new) != 4 or cache[-1] != new[-1]:
        return 0
    return next((new[each] for each in _OF_ROWS if cache[each] == keys and new[each] < keys), 0)
