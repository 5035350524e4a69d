"""An edit of the columns changes what the same edit changes call by call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from random import Random

import numpy as np
import pytest

from nsysx.replay import edits
from nsysx.replay.chain import COPY, LAUNCH, PLAIN, RECORD, SYNC, WAIT_EVENT, Chain, ChainItem
from nsysx.replay.chain_columns import columns
from nsysx.replay.replay_bounds import GRAPH_GAP_NS, GRAPH_NODE_NS, NOT_AWAITED
from tests.findings.lined import Lined
from tests.replay.test_simulate import SEEDS
from tests.replay.test_simulate import chain as any_chain

SOFT = (RECORD, WAIT_EVENT, PLAIN)


def chain(seed: int) -> tuple[Chain, Random]:
    """Return a chain with steps, in which some synchronizes belong to the copy before them."""
    made, random = any_chain(seed)
    items = made.items
    for i in range(1, len(items)):
        if items[i].kind == SYNC and items[i - 1].kind == COPY:
            items[i] = items[i]._replace(site=items[i - 1].call)
        if random.random() < 0.7:
            items[i] = items[i]._replace(loading=0)
    steps = frozenset(random.sample(range(len(items)), len(items) // 8))
    return Chain(items, made.streams, made.limit, steps, closing=1), random


def no_waits(items: list[ChainItem], calls: frozenset[int] | None, borders: frozenset[int]) -> None:
    chosen = {i for i, item in enumerate(items) if calls is None or item.call in calls}
    for i in tuple(chosen):
        if i + 1 < len(items) and items[i + 1].site == items[i].call:
            chosen.add(i + 1)
        if i and items[i].site == items[i - 1].call:
            chosen.add(i - 1)
    launches = [item for item in items if item.kind == LAUNCH]
    cost = int(np.median([item.cost for item in launches])) if launches else 0
    latency = int(np.median([item.ops[0].latency for item in launches])) if launches else 0
    for i in chosen:
        item = items[i]
        if item.kind == COPY and item.tail != NOT_AWAITED and launches:
            first, *others = item.ops
            first = first._replace(latency=min(first.latency, latency))
            item = item._replace(cost=min(item.cost, cost), ops=(first, *others))
        items[i] = item._replace(waits=False)


def no_calls(items: list[ChainItem], calls: frozenset[int] | None, borders: frozenset[int]) -> None:
    before = False
    for i, item in enumerate(items):
        removed = calls is not None and item.call in calls
        if removed:
            items[i] = item._replace(gap=item.loading if before else item.gap, cost=0, waits=False)
        before = removed


def no_host_for(items: list[ChainItem], calls: frozenset[int] | None, borders: frozenset[int]) -> None:
    """Host code that leads to these calls goes, through calls before them that launch nothing, up to the border of a step."""
    assert calls is not None
    leads = False
    for i in range(len(items) - 1, -1, -1):
        removed = items[i].call in calls or (items[i].call == -1 and 1 in calls)  # 1 is what follows the last host code
        nothing = items[i].kind in (PLAIN, RECORD, WAIT_EVENT)
        leads = removed or (leads and nothing and items[i].call >= 0 and i not in borders)
        if leads:
            items[i] = items[i]._replace(gap=items[i].loading)
        leads = leads and i not in borders


def less_host_for(items: list[ChainItem], calls: frozenset[int] | None, borders: frozenset[int]) -> None:
    """Of the host code before these calls three quarters stay; waiting for data does."""
    assert calls is not None
    for i, item in enumerate(items):
        if item.call in calls or (item.call == -1 and 1 in calls):
            items[i] = item._replace(gap=item.loading + round(0.75 * (item.gap - item.loading)))


def graph(items: list[ChainItem], calls: frozenset[int] | None, borders: frozenset[int]) -> None:
    head = -1
    for i, item in enumerate(items):
        chosen = calls is None or item.call in calls
        head = -1 if i in borders else head
        if item.kind in SOFT and head >= 0 and chosen and not item.loading:
            items[i] = item._replace(gap=0, cost=0)
        elif item.kind != LAUNCH or not chosen:
            head = -1
        else:
            ops = tuple(op._replace(pause=min(op.pause, GRAPH_GAP_NS)) for op in item.ops)
            if head >= 0 and not item.loading:
                items[i] = item._replace(gap=0, cost=0, ops=tuple(op._replace(latency=0) for op in ops))
            else:
                head = i
                items[i] = item._replace(cost=edits.GRAPH_PRICE_NS["raw"], ops=ops)
            items[head] = items[head]._replace(cost=items[head].cost + GRAPH_NODE_NS * len(ops))


def fuse(items: list[ChainItem], calls: frozenset[int] | None, borders: frozenset[int]) -> None:
    inside, between = False, []
    for i, item in enumerate(items):
        chosen = calls is not None and item.call in calls
        if i in borders:
            inside, between = False, []
        if item.kind == PLAIN or (item.kind in SOFT and chosen):
            between.append(i)
        elif item.kind == LAUNCH and chosen:
            if inside:
                for k in between:
                    items[k] = items[k]._replace(gap=items[k].loading, cost=0)
                shorter = (op._replace(latency=0, pause=0, duration=max(op.duration - 1000, 0)) for op in item.ops)
                items[i] = item._replace(gap=item.loading, cost=0, ops=tuple(shorter))
            inside, between = True, []
        else:
            inside, between = False, []


def no_ops(items: list[ChainItem], ops: frozenset[int] | None, borders: frozenset[int]) -> None:
    assert ops is not None
    for i, item in enumerate(items):
        made = (op._replace(duration=0, pause=0, latency=0) if op.op in ops else op for op in item.ops)
        items[i] = item._replace(ops=tuple(made))
        if item.ops and all(op.op in ops for op in item.ops):
            items[i] = items[i]._replace(cost=0, waits=False)


def slower(items: list[ChainItem], ops: frozenset[int] | None, borders: frozenset[int]) -> None:
    assert ops is not None
    for i, item in enumerate(items):
        made = (op._replace(duration=round(op.duration * 1.5)) if op.op in ops else op for op in item.ops)
        items[i] = item._replace(ops=tuple(made))


CASES: dict[str, tuple[Callable[[frozenset[int]], edits.Edit], Callable[..., None]]] = {
    "waits": (edits.RemoveWaits, no_waits),
    "every wait": (lambda calls: edits.RemoveWaits(), lambda items, calls, borders: no_waits(items, None, borders)),
    "calls": (lambda calls: edits.RemoveCalls(calls, between=True), no_calls),
    "host code for calls": (lambda calls: edits.RemoveHost(calls, leading=True), no_host_for),
    "some host code": (lambda calls: edits.RemoveHost(calls, share=0.25), less_host_for),
    "graph": (edits.Graph, graph),
    "one graph": (lambda calls: edits.Graph(), lambda items, calls, borders: graph(items, None, borders)),
    "fused": (edits.Fuse, fuse),
    "ops": (edits.RemoveOps, no_ops),
    "slower": (lambda ops: edits.ScaleOps(ops, 1.5), slower),
}


@SEEDS
@pytest.mark.parametrize("case", CASES)
def test_columns_and_calls_are_edited_alike(seed: int, case: str) -> None:
    made, random = chain(seed)
    edit, by_hand = CASES[case]
    numbers = [op.op for i in made.items for op in i.ops] if case in ("ops", "slower") else [i.call for i in made.items]
    some = frozenset(random.sample(numbers, len(numbers) * 2 // 3))
    changed = edits.apply(columns(made), edit(some), edits.Fixed.from_chain(made), None)  # type: ignore[arg-type]
    by_hand(made.items, some, made.borders)
    wanted = columns(made)
    for column in fields(wanted):
        assert np.array_equal(getattr(changed, column.name), getattr(wanted, column.name)), column.name


def test_a_kernel_behind_a_copy_does_not_show_its_latency(tmp_path: Path) -> None:
    """Each step waits at its end and begins with a copy of 2 ms: its first kernel has waited for that, and goes up without it."""

    def body(program: Lined, number: int) -> None:
        with program.line(12):
            program.copy(2_000, pageable=False, bytes=1 << 26)
        with program.line(20), program.range("forward"), program.range("net:Net"):
            for _ in range(100):
                program.launch(100)
        program.sync()

    (copied,) = Lined({12: "x = x.cuda(non_blocking=True)", 20: "y = net(x)"}).run(body).found(tmp_path, "NSX105")
    assert copied.saving_ns_per_step == pytest.approx(2_000_000, rel=0.01)
