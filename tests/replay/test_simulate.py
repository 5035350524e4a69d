"""A chain that is run in stretches, on columns, yields to the nanosecond what running it call by call yields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysx.replay import simulate
from nsysx.replay.chain import COPY, LAUNCH, PLAIN, RECORD, SYNC, WAIT_EVENT, Chain, Item, Op
from nsysx.replay.columns import Relief, columns

TIMES = st.integers(0, 50)
STREAMS = 3
EVENTS = st.integers(-4, -2)


@st.composite
def items(draw: st.DrawFn, number: int) -> Item:
    kind = draw(st.sampled_from((LAUNCH, LAUNCH, LAUNCH, PLAIN, PLAIN, SYNC, COPY, RECORD, WAIT_EVENT)))
    gap = draw(TIMES)
    item = Item(
        kind,
        number,
        "launch",
        gap,
        draw(st.integers(0, gap)),
        draw(TIMES),
        added_before=draw(TIMES),
        added_inside=draw(TIMES),
    )
    stream = draw(st.integers(0, STREAMS - 1))
    if kind in (RECORD, WAIT_EVENT):
        return item._replace(target=draw(EVENTS), stream=stream)
    if kind == SYNC:
        return item._replace(waits=draw(st.booleans()), target=draw(st.integers(-4, STREAMS - 1)))
    if kind == COPY:
        item = item._replace(waits=draw(st.booleans()), tail=draw(st.integers(-1, 20)))
    if kind in (LAUNCH, COPY):
        offsets = draw(st.lists(st.sampled_from((-1, 0, 0, 5)), max_size=3))
        places = [
            stream,
            *draw(st.lists(st.sampled_from((stream, stream, 0)), min_size=len(offsets), max_size=len(offsets))),
        ]
        item = item._replace(
            ops=tuple(
                Op(100 * number + i, place, draw(TIMES), draw(TIMES), offset, draw(TIMES))
                for i, (place, offset) in enumerate(zip(places, (-1, *offsets), strict=True))
            )
        )
    return item


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    n = draw(st.integers(1, 40))
    return Chain([draw(items(i)) for i in range(n)], STREAMS, limit=draw(st.integers(1, 12)))


@given(chains())
def test_stretches_yield_what_single_calls_yield(chain: Chain) -> None:
    cols = columns(chain)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulate, "_SHORT", 10**9)
        slow = simulate.traced(cols)
        patch.setattr(simulate, "_SHORT", 1)
        fast = simulate.traced(cols)
    assert fast[0] == slow[0]
    assert fast[0] == simulate.run(chain)
    for name in ("called", "left", "op_begin"):
        assert (getattr(fast[1], name) == getattr(slow[1], name)).all(), name


@given(chains(), st.data())
def test_columns_of_a_changed_chain_are_made_from_those_of_the_old_one(chain: Chain, data: st.DataObject) -> None:
    changed = chain.copy()
    for i in data.draw(st.sets(st.integers(0, len(chain.items) - 1), max_size=len(chain.items) // 3)):
        item = chain.items[i]
        changed.items[i] = item._replace(gap=7, ops=tuple(op._replace(duration=3, stream=0) for op in item.ops))
    short = columns(changed, (chain.items, columns(chain)))
    assert simulate.run(short) == simulate.run(columns(changed))


@given(chains(), st.floats(0, 4), st.floats(0.3, 1))
def test_what_is_taken_out_of_columns_is_taken_out_of_the_chain(chain: Chain, scale: float, host: float) -> None:
    relief = Relief(chain)
    cols, bare = relief.columns(scale, host), relief.chain(scale, host)
    assert simulate.run(bare) == simulate.run(cols)
    assert all(0 <= less.cost <= had.cost for less, had in zip(bare.items, chain.items, strict=True))
    assert all(had.loading <= less.gap <= had.gap for less, had in zip(bare.items, chain.items, strict=True))
