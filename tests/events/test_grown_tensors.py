"""Tensors that cats make longer and longer, and cats that only put together what is new."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from nsysx.events.grown_tensors import GrownTensor, grown_in
from nsysx.events.operator_flow import ModuleCall, OperatorFlow

#: Of an operator its name, number, what made its arguments and their sizes; -1 is older than what was recorded.
Called = tuple[str, int, tuple[int, ...], str]


def flow_of(called: list[Called], modules: list[tuple[str, int, int]] | None = None) -> OperatorFlow:
    """Return operators of which none lies in another; ``modules``: path, and the first and last operator of a call (rows)."""
    names, numbers, made, size = map(list, zip(*called, strict=True))
    starts = 10 * np.arange(len(called), dtype=np.int64)
    calls = tuple(
        ModuleCall(path, "Module", thread=1, start_ns=10 * first, end_ns=10 * last, first=first, last=last)
        for path, first, last in modules or ()
    )
    return OperatorFlow(
        [f"aten::{name}" for name in names],
        numbers,
        made=made,
        size=size,
        calls=calls,
        start_ns=starts,
        end_ns=starts + 5,
    )


def grown(called: list[Called], *, trained: bool = False, before: list[Called] | None = None) -> list[GrownTensor]:
    """Return the tensors that grow in operators without modules."""
    flow = flow_of(called)
    return grown_in(flow, None if before is None else flow_of(before), np.full(len(called), trained))


def cache(rounds: int = 8, *, read: bool = True, prompt: int = 100) -> list[Called]:
    """Return a cache of ``prompt`` rows that each round makes one row longer, and attention reads."""
    called: list[Called] = [("linear", 1, (-1, -1), f"[4, {prompt}, 64], [64, 64]")]
    last = 1
    for n in range(rounds):
        at = 10 * n + 10
        called += [
            ("linear", at, (-1, -1), "[4, 1, 64], [64, 64]"),
            ("cat", at + 1, (last, at, -1), f"[4, {prompt + n}, 64], [4, 1, 64], []"),
        ]
        last = at + 1
        if read:
            called.append(("bmm", at + 2, (at, last), f"[4, 1, 64], [4, {prompt + n + 1}, 64]"))
    return called


def test_rows_that_each_cat_copies_again() -> None:
    (tensor,) = grown(cache())
    # The first one has to be made; the others copy 101 to 107 rows for one.
    assert list(tensor.copied.values()) == [0.0, *(n / (n + 1) for n in range(101, 108))]
    assert (tensor.read, tensor.kept, tensor.bounded) == (True, False, False)
    assert (tensor.size, tensor.dimension) == ((4, 108, 64), 1)


def test_a_result_that_only_the_next_cat_reads_is_not_read() -> None:
    (tensor,) = grown(cache(read=False))
    assert not tensor.read


def test_the_newest_may_come_first() -> None:
    turned: list[Called] = [
        ("cat", number, (made[1], made[0], -1), f"[4, 1, 64], {sizes.split('], ')[0]}], []")
        if name == "cat"
        else (name, number, made, sizes)
        for name, number, made, sizes in cache()
    ]
    (tensor,) = grown(turned)
    assert tensor.in_front and not grown(cache())[0].in_front and tensor.size == (4, 108, 64)


def test_who_asks_for_contiguous_rows_would_copy_a_slice() -> None:
    called = cache()
    assert not grown(called)[0].made_contiguous
    called.insert(6, ("contiguous", 500, (21, -1), "[4, 102, 64], []"))
    called.insert(7, ("sum", 501, (500,), "[4, 102, 64]"))
    assert [row[0] for row in called[4:8]] == ["linear", "cat", "contiguous", "sum"]
    assert grown(called)[0].made_contiguous


def test_few_cats_or_large_parts_are_no_growth() -> None:
    assert not grown(cache(5))
    assert not grown(cache(prompt=1)[:10])
    # Each round adds as much as there is.
    doubled: list[Called] = [("linear", 1, (-1, -1), "[1, 64], [64, 64]")]
    doubled += [("cat", n + 2, (n + 1, n + 1, -1), f"[{2**n}, 64], [{2**n}, 64], []") for n in range(10)]
    assert not grown(doubled)


def test_what_a_gradient_runs_through_is_told_with_who_reads_it() -> None:
    (tensor,) = grown(cache(), trained=True)
    assert tensor.read and tensor.differentiated and tensor.saved
    (tensor,) = grown(cache(read=False), trained=True)
    assert not tensor.read


def history(rounds: int = 8, kind: str = "") -> list[Called]:
    """Return states that are stacked in each round: all so far, or the last four (``window``); or each with the same two (``same``)."""
    called: list[Called] = [("linear", n, (-1, -1), "[4, 64], [64, 64]") for n in (1, 2)]
    states = [1, 2]
    for n in range(rounds):
        at = 10 * n + 10
        called.append(("linear", at, (-1, -1), "[4, 64], [64, 64]"))
        states = [1, 2, at] if kind == "same" else [*states, at][-4 if kind == "window" else 0 :]
        called.append(("stack", at + 1, (*states, -1), f"{', '.join(['[4, 64]'] * len(states))}, []"))
        called.append(("sum", at + 2, (at + 1,), f"[4, {len(states)}, 64]"))
    return called


def test_a_list_that_is_stacked_again_and_again() -> None:
    (tensor,) = grown(history())
    assert list(tensor.copied.values()) == [0.0, *(n / (n + 1) for n in range(3, 10))]
    assert tensor.read and not tensor.bounded
    (tensor,) = grown(history(kind="window"))
    assert tensor.bounded and list(tensor.copied.values())[-1] == 0.75
    assert not grown(history(kind="same"))


def test_a_window_drops_its_oldest_row() -> None:
    called: list[Called] = [("linear", 1, (-1, -1), "[4, 8, 64], [64, 64]")]
    last = 1
    for n in range(8):
        at = 10 * n + 10
        called.append(("slice", at, (last, -1), "[4, 8, 64], []"))
        called.append(("linear", at + 1, (last, -1), "[4, 8, 64], [64, 64]"))
        called.append(("cat", at + 2, (at, at + 1, -1), "[4, 7, 64], [4, 1, 64], []"))
        last = at + 2
    (tensor,) = grown(called)
    assert tensor.bounded and tensor.read and list(tensor.copied.values())[1:] == [7 / 8] * 7


def replayed(step: int, before: int, *, kept: int = 500, new: int = 10) -> list[Called]:
    """Return a buffer of which the oldest rows are dropped, once in a step, and samples are drawn."""
    at = 100 * step
    return [
        ("linear", at, (-1, -1), f"[{new}, 64], [64, 64]"),
        ("cat", at + 1, (before, at, -1), f"[{kept}, 64], [{new}, 64], []"),
        ("slice", at + 2, (at + 1, -1), f"[{kept + new}, 64], []"),
        ("index", at + 3, (at + 2, -1), f"[{kept}, 64], [16]"),
    ]


def test_a_buffer_goes_on_from_the_step_before() -> None:
    (tensor,) = grown(replayed(2, 102), before=replayed(1, -1))
    assert tensor.kept and tensor.read and tensor.bounded and tensor.copied == {1: 500 / 510}
    assert not grown(replayed(2, -1), before=replayed(1, -1)), "another tensor each time"
    # The memory of a segment: half of it is new.
    assert not grown(replayed(2, 102, kept=64, new=64), before=replayed(1, -1, kept=64, new=64))


@pytest.mark.parametrize("shared", [False, True])
def test_layers_that_each_add_features_are_no_loop(shared: bool) -> None:
    flow = flow_of(cache())
    rounds = [row for row, name in enumerate(flow.names) if name == "aten::linear"][1:]
    layers = [(f"layers.{n}", row, row + 1) for n, row in enumerate(rounds)]
    layers += [("act", row, row + 1) for row in rounds] if shared else []
    none = np.zeros(len(flow.names), np.bool_)
    assert not grown_in(flow_of(cache(), layers), None, none)
    assert grown_in(flow_of(cache(), [("layer", row, row + 1) for row in rounds]), None, none)


def skips(n: int) -> list[Called]:
    """What was put together goes through a layer before more is added."""
    return [
        ("cat", n + 9, (n, -1, -1), "[4, 64], [4, 64], []"),
        ("linear", n + 10, (n + 9, -1), "[4, 128], [64, 128]"),
    ]


def halves(n: int) -> list[Called]:
    """The halves of a tensor change places."""
    return [("chunk", n, (-1, -1), "[4, 64], []"), ("cat", n + 1, (n, n, -1), "[4, 32], [4, 32], []")]


def reordered(n: int) -> list[Called]:
    """A copy in another order has to be made."""
    return [
        ("index_select", n + 5, (n, -1), f"[4, {n}, 64], [4]"),
        ("cat", n + 10, (n + 5, -1, -1), f"[4, {n}, 64], [4, 1, 64], []"),
    ]


def of_ranks(n: int) -> list[Called]:
    """Parts of all ranks, once."""
    return [("cat", n, (-1, -1, -1), "[4, 64], [4, 64], []")]


def beside_one(n: int) -> list[Called]:
    """One tensor, beside another one each time."""
    return [("cat", n, (1, -1, -1), "[4, 640], [4, 64], []")]


@pytest.mark.parametrize("each", [skips, halves, reordered, of_ranks, beside_one])
def test_cats_that_copy_nothing_again(each: Callable[[int], list[Called]]) -> None:
    first: list[Called] = [("linear", 1, (-1, -1), "[4, 640], [640, 640]")]
    assert not grown([*first, *(called for n in range(10, 90, 10) for called in each(n))])
