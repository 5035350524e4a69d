"""A chain that is run in stretches, on columns, yields to the nanosecond what running it call by call yields."""

from __future__ import annotations

from random import Random

import pytest

from nsysx.replay import edits, simulate
from nsysx.replay.chain import COPY, LAUNCH, PLAIN, RECORD, SYNC, WAIT_EVENT, Chain, Item, Op
from nsysx.replay.columns import WithoutTracing, columns

STREAMS = 3
SEEDS = pytest.mark.parametrize("seed", range(100))


def item(random: Random, number: int) -> Item:
    def time() -> int:
        return random.randrange(50)

    kind = random.choice((LAUNCH, LAUNCH, LAUNCH, PLAIN, PLAIN, SYNC, COPY, RECORD, WAIT_EVENT))
    gap, stream = time(), random.randrange(STREAMS)
    made = Item(kind, number, "launch", gap, random.randint(0, gap), time(), added_before=time(), added_inside=time())
    if kind in (RECORD, WAIT_EVENT):
        return made._replace(target=random.randint(-4, -2), stream=stream)
    if kind == SYNC:
        return made._replace(waits=random.random() < 0.5, target=random.randint(-4, STREAMS - 1))
    if kind == COPY:
        made = made._replace(waits=random.random() < 0.5, tail=random.randint(-1, 20))
    if kind in (LAUNCH, COPY):
        behind = [
            (random.choice((stream, stream, 0)), random.choice((-1, 0, 0, 5))) for _ in range(random.choice((0, 0, 3)))
        ]
        placed = [(stream, -1), *behind]
        ops = (Op(100 * number + i, s, time(), time(), offset, time()) for i, (s, offset) in enumerate(placed))
        made = made._replace(ops=tuple(ops))
    return made


def chain(seed: int) -> tuple[Chain, Random]:
    random = Random(seed)
    items = [item(random, i) for i in range(random.randint(1, 60))]
    return Chain(items, STREAMS, limit=random.choice((1, 3, 12, 100))), random


@SEEDS
def test_stretches_yield_what_single_calls_yield(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = chain(seed)
    cols = columns(made)
    monkeypatch.setattr(simulate, "_SHORT", 10**9)
    slow = simulate.traced(cols)
    monkeypatch.setattr(simulate, "_SHORT", 1)
    fast = simulate.traced(cols)
    assert fast[0] == slow[0] == simulate.run(made)
    for name in ("called", "left", "op_begin"):
        assert (getattr(fast[1], name) == getattr(slow[1], name)).all(), name


@SEEDS
def test_columns_of_a_changed_chain_are_made_from_those_of_the_old_one(seed: int) -> None:
    made, random = chain(seed)
    changed = made.copy()
    for i in random.sample(range(len(made.items)), len(made.items) // 3):
        had = made.items[i]
        changed.items[i] = had._replace(gap=7, ops=tuple(op._replace(duration=3, stream=0) for op in had.ops))
    short = columns(changed, (made.items, columns(made)))
    assert simulate.run(short) == simulate.run(columns(changed))


@SEEDS
@pytest.mark.parametrize("edit", [edits.RemoveWaits(), edits.RemoveHost(), edits.Graph()])
def test_an_edit_leaves_what_it_does_not_change(seed: int, edit: edits.Edit) -> None:
    """Only items that differ are made again and converted: most edits of a step of thousands of calls concern few."""
    made, _ = chain(seed)
    changed = made.copy()
    edits.apply(changed, edit, None)  # type: ignore[arg-type]
    different = [i for i, (a, b) in enumerate(zip(made.items, changed.items, strict=True)) if a is not b]
    match edit:
        case edits.RemoveWaits():
            assert all(made.items[i].waits or made.items[i].kind == COPY for i in different)
            assert not any(i.waits for i in changed.items)
        case edits.RemoveHost():
            assert different == [n for n, i in enumerate(made.items) if i.gap > i.loading]
            assert all(i.gap == i.loading for i in changed.items)
        case edits.Graph():
            launches = [i for i in made.items if i.kind == LAUNCH]
            price = sum(i.cost for i, had in zip(changed.items, made.items, strict=True) if had.kind == LAUNCH)
            nodes = sum(len(i.ops) for i in launches)
            assert (price - edits.GRAPH_NODE_NS * nodes) % edits.GRAPH_PRICE_NS["raw"] == 0
            assert all(made.items[i].kind in (LAUNCH, RECORD, WAIT_EVENT, PLAIN) for i in different)


@SEEDS
def test_what_is_taken_out_of_columns_is_taken_out_of_the_chain(seed: int) -> None:
    made, random = chain(seed)
    relieved, scale, host = WithoutTracing(made), random.uniform(0, 4), random.uniform(0.3, 1)
    bare = relieved.chain(relieved.columns(scale, host))
    assert simulate.run(bare) == simulate.run(relieved.columns(scale, host))
    assert all(0 <= less.cost <= had.cost for less, had in zip(bare.items, made.items, strict=True))
    assert all(had.loading <= less.gap <= had.gap for less, had in zip(bare.items, made.items, strict=True))


def test_a_round_that_only_repeats_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    work = [Item(LAUNCH, i, "launch", 10, 0, 5, ops=(Op(i, i % 2, 3, 1, -1, 40),)) for i in range(6)]
    waiting = Chain([*work, Item(SYNC, 6, "sync", 5, 0, 2, waits=True)], 2)
    running_on = Chain(work, 2, limit=4)  # the queue is not yet full when the first round ends
    rounds = list[simulate.Machine]()
    for made, played in ((waiting, 2), (running_on, 3)):
        rounds.clear()
        play = simulate.Machine.play
        monkeypatch.setattr(simulate.Machine, "play", lambda self, play=play: (rounds.append(self), play(self))[1])
        result = simulate.run(made)
        monkeypatch.setattr(simulate.Machine, "play", play)
        assert len(rounds) == played
        assert result == simulate.traced(columns(made))[0]
