"""A chain that is run in stretches, on columns, yields to the nanosecond what running it call by call yields."""

from __future__ import annotations

from random import Random

import pytest

from nsysx.replay import simulate
from nsysx.replay.chain import COPY, LAUNCH, PLAIN, RECORD, SYNC, WAIT_EVENT, Chain, ChainItem, Op
from nsysx.replay.chain_columns import WithoutTracing, columns

STREAMS = 3
SEEDS = pytest.mark.parametrize("seed", range(100))


def item(random: Random, number: int) -> ChainItem:
    def time() -> int:
        return random.randrange(50)

    kind = random.choice((LAUNCH, LAUNCH, LAUNCH, PLAIN, PLAIN, SYNC, COPY, RECORD, WAIT_EVENT))
    gap, stream = time(), random.randrange(STREAMS)
    made = ChainItem(
        kind, number, "launch", gap, random.randint(0, gap), time(), added_before=time(), added_inside=time()
    )
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
    monkeypatch.setattr(simulate, "SHORT_STRETCH_ITEMS", 10**9)
    slow = simulate.traced(cols)
    monkeypatch.setattr(simulate, "SHORT_STRETCH_ITEMS", 1)
    fast = simulate.traced(cols)
    assert fast[0] == slow[0] == simulate.run(made)
    for name in ("called", "left", "op_begin"):
        assert (getattr(fast[1], name) == getattr(slow[1], name)).all(), name


@SEEDS
def test_what_is_taken_out_of_columns_stays_a_time(seed: int) -> None:
    made, random = chain(seed)
    relieved = WithoutTracing(made)
    had, less = relieved.recorded, relieved.columns(random.uniform(0, 4), random.uniform(0.3, 1))
    assert ((less.cost >= 0) & (less.cost <= had.cost)).all()
    assert ((had.loading <= less.gap) & (less.gap <= had.gap)).all()


@pytest.mark.parametrize("short", [1, 10**9])
@pytest.mark.parametrize(("stream", "stalls"), [(1, False), (0, True)])
def test_a_launch_finds_the_queue_of_its_own_stream_full(
    stream: int, stalls: bool, short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two ops take long, the second behind the first: on another stream they are in no other launch's way."""
    monkeypatch.setattr(simulate, "SHORT_STRETCH_ITEMS", short)
    long = [ChainItem(LAUNCH, i, "launch", 10, 0, 5, ops=(Op(i, stream, 3, 1, -1, 10_000),)) for i in range(2)]
    work = [ChainItem(LAUNCH, i, "launch", 10, 0, 5, ops=(Op(i, 0, 3, 1, -1, 5),)) for i in range(2, 14)]
    blocked = simulate.run(Chain([*long, *work], 2, limit=4)).blocked
    assert bool(blocked) is stalls


def test_a_round_that_only_repeats_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    work = [ChainItem(LAUNCH, i, "launch", 10, 0, 5, ops=(Op(i, i % 2, 3, 1, -1, 40),)) for i in range(6)]
    waiting = Chain([*work, ChainItem(SYNC, 6, "sync", 5, 0, 2, waits=True)], 2)
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
