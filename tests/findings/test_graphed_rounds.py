"""NSX123: loops over time whose rounds need one another, and loops over layers, which are the network."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from nsysx.events.operator_flow import ModuleCall, OperatorFlow
from nsysx.events.rounds_in_sequence import needed_later
from nsysx.findings import _graphed_rounds as room
from nsysx.saving import Saving

ROUNDS = 8
#: Line 10 is in the loop: it calls 20 (the cell) and 21 (a head, of which only what is put together behind the loop is read).
PLACES = pl.DataFrame(
    {"file": ["a.py"] * 3, "line": [10, 20, 21], "function": ["Cell.unroll", "Cell.step", "Cell.step"]}
)


def unrolled(*, needs: bool = True, layers: bool = False) -> OperatorFlow:
    """Return rounds of a cell and a head. ``needs``: a round is given the state; ``layers``: each round calls a module of its own."""
    made: list[tuple[int, ...]] = [()]
    calls, state = [], 0
    for number in range(ROUNDS):
        first = len(made)
        made += [(state if needs else 0,), (first,), (first + 1,)]
        state = first + 1
        path = f"layers.{number}" if layers else "cell"
        calls.append(ModuleCall(path, "Linear", 0, 30 * first, 30 * first + 5, first, first + 1))
    start = np.arange(len(made)) * 30
    names = ["aten::randn", *["aten::linear", "aten::tanh", "aten::softmax"] * ROUNDS]
    return OperatorFlow(
        names, range(len(made)), made, ["[8]"] * len(made), tuple(calls), start_ns=start, end_ns=start + 5
    )


class Lines:
    """Stacks 0 (line 10), 1 (10, 20) and 2 (10, 21), of operators and of launches."""

    places = PLACES

    def chain(self, stack: int) -> list[int]:
        return [[0], [0, 1], [0, 2]][stack] if stack >= 0 else []

    def at(self, _: int, times: Any) -> Any:
        row = times // 30
        return np.where(row == 0, -1, np.where((row - 1) % 3 == 2, 2, 1))

    def passing(self, stacks: Any, places: frozenset[int]) -> Any:
        return np.array([not places.isdisjoint(self.chain(int(stack))) for stack in stacks], np.bool_)


def loops(
    monkeypatch: pytest.MonkeyPatch,
    flow: OperatorFlow,
    *,
    phases: tuple[str | None, ...] = (None, "backward"),
    text: str = "state = self.step(state, x)",
    rounds: int = ROUNDS,
) -> bool:
    monkeypatch.setattr(room.line_runs, "begins", lambda *_: np.arange(ROUNDS) * 90 + 25)
    launches = pl.DataFrame({"phase": [*phases] * 200}, schema={"phase": pl.String})
    row = {"file": "a.py", "line": 10, "function": "Cell.unroll", "text": text}
    case: Any = SimpleNamespace(steps=1, typed_rows=lambda _: [row], profile=None)
    runs: Any = SimpleNamespace(rounds=np.array([rounds, 1, 1]), encloses=np.zeros(3, np.bool_))
    code: Any = Lines()
    return room._loops(case, code, runs, flow, 0, launches)


def test_rounds_of_one_cell_that_need_one_another_are_a_loop_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loops(monkeypatch, unrolled())


def test_loops_that_look_alike_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not loops(monkeypatch, unrolled(layers=True)), "the layers of a network"
    assert not loops(monkeypatch, unrolled(needs=False)), "one operation can do all rounds"
    assert not loops(monkeypatch, unrolled(), phases=(None,)), "a rollout without gradients"
    assert not loops(monkeypatch, unrolled(), text="loss.backward()"), "micro-batches"
    assert not loops(monkeypatch, unrolled(), rounds=2)


def test_what_no_later_round_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room.line_runs, "begins", lambda *_: np.arange(ROUNDS) * 90 + 25)
    flow, code = unrolled(), Lines()
    case: Any = SimpleNamespace(profile=None)
    rows, needed = needed_later(
        flow, code.passing(code.at(0, flow.start_ns), frozenset({0})), np.arange(ROUNDS) * 90 + 25
    )
    assert len(rows) == 3 * (ROUNDS - 1) and needed.tolist() == [True, True, False] * (ROUNDS - 1)
    assert room._not_needed(case, code, flow, 0) == {2}  # type: ignore[arg-type]


def test_the_function_with_the_loop_is_compiled_by_its_own_name() -> None:
    (told,) = room._fix_of("Cell.unroll", 64, " (line 21)", 5000.0).ways
    assert (
        told.paste.startswith('Cell.unroll = torch.compile(Cell.unroll, mode="reduce-overhead")') and "64" in told.paste
    )
    assert "the loop in Cell.unroll" in told.text and "no later round needs (line 21)" in told.text
    (nameless,) = room._fix_of("<module>", 64, "", 300.0).ways
    assert "first step takes minutes" in told.condition and "minutes" not in nameless.condition
    assert "<module> =" not in nameless.paste and "no later round" not in nameless.text


def test_at_most_all_that_the_gpu_idles_goes_with_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "held", lambda _: frozenset())
    ops = pl.DataFrame({"start_ns": [0, 50, 60], "end_ns": [20, 70, 80]})  # the GPU works for 50 ns

    def worth(most_ns: int | None) -> int | None:
        given = Saving(40, most_ns=most_ns)
        case: Any = SimpleNamespace(
            profile=None, ops=ops, step_ns=200, per_step=lambda ns: ns / 2, worth_between=lambda *_, **__: given
        )
        rule: Any = SimpleNamespace(cause=())
        return room._worth(case, rule, frozenset({1}), frozenset()).most_ns

    assert worth(90) == 200 - 25
    assert worth(190) == 190
    assert worth(None) is None
