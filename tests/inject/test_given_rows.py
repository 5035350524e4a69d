"""What the probe tells of the rows that steps are given and networks had been given before them, on CPU torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from nsysx_probe import given_rows
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.inject.test_network_inputs import Net
from tests.inject.test_probe import Lab
from tests.inject.test_settings_reader import settings

pytestmark = pytest.mark.filterwarnings("ignore")

DATA = torch.randn(4096, 8, generator=torch.Generator().manual_seed(3))
Batches = Callable[[Callable[[torch.Tensor], torch.Tensor], int], list[torch.Tensor]]


def rollout(act: Callable[[torch.Tensor], torch.Tensor], _: int) -> list[torch.Tensor]:
    """Sixteen environments are stepped; what is kept is shuffled and cut into four batches."""
    kept, state = torch.empty(16, 16, 8), torch.randn(16, 8)
    for t in range(16):
        kept[t] = state
        state = torch.tanh(state + act(state).repeat(1, 2) + torch.randn(16, 8))
    rows = kept.flatten(0, 1)
    return [rows[index] for index in torch.randperm(256).chunk(4)]


def held_out(act: Callable[[torch.Tensor], torch.Tensor], number: int) -> list[torch.Tensor]:
    """Sixteen batches are evaluated, and the steps take others."""
    for x in DATA[:256].split(16):
        act(x)
    return list(DATA[1024 + 256 * number :][:256].split(64))


def of_training(act: Callable[[torch.Tensor], torch.Tensor], _: int) -> list[torch.Tensor]:
    """All of a small training set is evaluated, and trained on."""
    for x in DATA[:256].split(16):
        act(x)
    return [DATA[index] for index in torch.randperm(256).chunk(4)]


def alike(act: Callable[[torch.Tensor], torch.Tensor], _: int) -> list[torch.Tensor]:
    """What is given is made up."""
    for _ in range(16):
        act(torch.zeros(16, 8))
    return [torch.zeros(64, 8)] * 4


def told(made: Batches) -> list[dict[str, Any]]:
    """Return what a window of twelve steps tells, with a stretch between steps before every fourth of them."""
    lab = Lab(NSYSX_STEPS="4:19")
    try:
        torch.manual_seed(1)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001)

        @torch.no_grad()
        def act(x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = net(x)
            return out

        for number in range(6):
            net.eval()
            batches = made(act, number)
            net.train()
            for x in batches:
                optimizer.zero_grad()
                net(x).sum().backward()
                optimizer.step()
        assert all(error.startswith("cudaProfilerSt") for error in lab.probe.out.errors)
        rows: list[dict[str, Any]] = settings(lab)["given_rows"]
        return rows
    finally:
        lab.close()


def test_what_a_rollout_was_given_is_what_the_steps_train_on() -> None:
    (row,) = told(rollout)
    assert row["calls"] == 16 and row["share"] > 0.5 and row["again"] == 0.0


@pytest.mark.parametrize(("made", "share", "again"), [(held_out, 0.0, 1.0), (of_training, 1.0, 1.0)])
def test_samples_of_an_evaluation_are_others_or_come_again(made: Batches, share: float, again: float) -> None:
    (row,) = told(made)
    assert row["share"] == pytest.approx(share, abs=0.4) and row["again"] == again


def test_what_is_alike_by_chance_tells_nothing() -> None:
    assert told(alike) == []


class _Function(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(func)


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(func)


@pytest.mark.parametrize("mode", [_Function, _Dispatch])
def test_modes_of_the_program_see_nothing(mode: Callable[[], Any]) -> None:
    rows = given_rows.GivenRows(torch)
    x = DATA[:16]
    with mode():
        rows.called(((x,), {}))
    assert not rows._parts


def test_nothing_is_copied_under_torch_func() -> None:
    rows = given_rows.GivenRows(torch)

    def call(x: torch.Tensor) -> torch.Tensor:
        rows.called(((x,), {}))
        return x.sum()

    torch.func.vmap(call)(DATA[:32].reshape(2, 2, 8, 8))
    torch.func.grad(call)(DATA[:16].clone())
    assert not rows._parts


def test_few_calls_of_many_are_copied_and_none_is_held_behind_the_window() -> None:
    rows = given_rows.GivenRows(torch)
    for _ in range(100):
        rows.called(((DATA[:16],), {}))
    assert len(rows._parts) == 8
    rows.window_closed([DATA[:16]])
    assert not rows._parts and rows.rows == []  # nothing ran before that


def test_what_has_no_rows_of_numbers_is_not_looked_at() -> None:
    rows = given_rows.GivenRows(torch)
    for x in (
        torch.ones(3),
        torch.eye(4).to_sparse(),
        torch.ones(4, 4, dtype=torch.complex64),
        nn.Parameter(torch.ones(4, 4)),
    ):
        rows.called(((x,), {}))
    assert not rows._parts
