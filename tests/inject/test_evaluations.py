"""What the probe tells of evaluations, on CPU torch: ranks that evaluate the same samples with the same weights note the same numbers."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from nsysx_probe import evaluations
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.counted_calls import calls_of
from tests.inject.test_network_inputs import Net
from tests.inject.test_probe import Lab, armed
from tests.inject.test_settings_reader import settings

pytestmark = pytest.mark.filterwarnings("ignore")

DATA = torch.randn(256, 8, generator=torch.Generator().manual_seed(3))


def train(net: nn.Module, evaluate: Callable[[], Any], steps: int = 8, every: int = 4) -> None:
    """Train, and evaluate behind every fourth step."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    for step in range(steps):
        optimizer.zero_grad()
        net(DATA[:4]).sum().backward()
        optimizer.step()
        if step % every == every - 1:
            net.eval()
            evaluate()
            net.train()


def told(
    part: slice = slice(None),
    seed: int = 0,
    evaluate: Callable[[nn.Module, torch.Tensor], Any] | None = None,
    **more: Any,
) -> list[dict[str, Any]]:
    """Return what is noted of a job's rank that evaluates its part of the data, by 16 rows at a time."""

    @torch.no_grad()
    def whole(net: nn.Module, data: torch.Tensor) -> None:
        for x in data.split(16):
            net(x)

    lab = Lab()
    try:
        torch.manual_seed(seed)
        net = Net()
        train(net, lambda: (evaluate or whole)(net, DATA[part]), **more)
        assert lab.probe.out.errors == []
        rows: list[dict[str, Any]] = settings(lab)["evaluations"]
        return rows
    finally:
        lab.close()


def test_two_ranks_that_evaluate_the_same_note_the_same_numbers() -> None:
    first, second, other = told(), told(), told(slice(0, None, 2))
    assert first == second and [(row["step"], row["calls"], row["rows"]) for row in first] == [(3, 16, 16), (7, 16, 16)]
    assert None not in first[0]["sums"] and len(set(first[0]["sums"])) == 6, "of calls 1 to 4, 8 and 16"
    assert not set(first[0]["sums"]) & set(other[0]["sums"]) and other[0]["calls"] == 8


def test_ranks_with_weights_of_their_own_are_told_apart() -> None:
    first, second = told(seed=0), told(seed=1)
    assert [row["sums"] for row in first] == [row["sums"] for row in second]
    assert None not in [row["weights"] for row in first] and first[0]["weights"] != second[0]["weights"]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_every_way_to_evaluate_is_seen(mode: Callable[[], Any]) -> None:
    """Tensors that are made in inference mode have no version; what is given is copied and not held."""

    def evaluate(net: nn.Module, data: torch.Tensor) -> None:
        with mode():
            for x in data.split(64):
                net(x.clone())

    (row, _) = told(evaluate=evaluate)
    assert row["calls"] == 4 and None not in row["sums"] and row["place"].startswith(__file__)


@pytest.mark.parametrize(
    "given",
    [
        lambda x: (x, object()),
        lambda x: (torch.zeros_like(x),),
        lambda x: (x, x.to_sparse()),
        lambda x: (x, *[x] * 8),
    ],
)
def test_what_may_be_alike_by_chance_is_not_told(given: Callable[[torch.Tensor], tuple[Any, ...]]) -> None:
    def evaluate(net: nn.Module, data: torch.Tensor) -> None:
        with torch.no_grad():
            net(*given(data))

    assert [row["sums"] for row in told(evaluate=evaluate)] == [[None], [None]]


def test_what_a_program_writes_into_later_does_not_count() -> None:
    """A batch's memory that is filled anew: each call had its own numbers."""
    batch = torch.empty(64, 8)

    def evaluate(net: nn.Module, data: torch.Tensor) -> None:
        with torch.no_grad():
            for x in data.split(64):
                batch.copy_(x)
                net(batch)

    (row, _) = told(evaluate=evaluate)
    assert len(set(row["sums"])) == 4 and None not in row["sums"]


def test_few_evaluations_are_noted_and_nothing_is_held() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def evaluate(net: nn.Module, data: torch.Tensor) -> None:
        x = data.clone()
        held.append(weakref.ref(x))
        with torch.no_grad():
            net(x)

    rows = told(evaluate=evaluate, steps=24)
    gc.collect()
    assert len(rows) == 3 and all(ref() is None for ref in held)


def test_the_loader_of_an_evaluation_is_known_by_its_line() -> None:
    def evaluate(net: nn.Module, data: torch.Tensor) -> None:
        with torch.no_grad():
            for (x,) in DataLoader(TensorDataset(data), batch_size=64):
                net(x)

    line = evaluate.__code__.co_firstlineno + 2
    assert [(row["calls"], row["loader"]) for row in told(evaluate=evaluate)] == [(4, f"{__file__}:{line}")] * 2
    assert told()[0]["loader"] is None


def test_what_is_computed_before_the_first_step_is_no_evaluation() -> None:
    """Features of a frozen encoder, which are made once."""
    with armed() as lab:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
        with torch.no_grad():
            Net().eval()(DATA)
        net(DATA[:4]).sum().backward()
        optimizer.step()
        assert lab.probe.settings.evaluations.rows == []
        with torch.no_grad():
            net.eval()(DATA)
        assert [row["step"] for row in lab.probe.settings.evaluations.rows] == [0]


def test_a_network_that_learns_with_the_others_is_no_evaluation() -> None:
    """A teacher that is called in each step, behind the forward."""
    with armed() as lab:
        net, teacher = Net(), Net().eval()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
        for _ in range(4):
            optimizer.zero_grad()
            out = net(DATA[:4])
            with torch.no_grad():
                wanted = teacher(DATA[:4])
            (out - wanted).sum().backward()
            optimizer.step()
        assert lab.probe.settings.evaluations.rows == []


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(96, 3, 24, 24),
        torch.randint(0, 1000, (32, 513))[:, :-1],
        torch.randn(8, 3, 16, 16).to(memory_format=torch.channels_last),
        torch.randn(5000),
        torch.randn(2, 2, 2, 2, 2, 2),
        torch.tensor(3.0),
        torch.empty(0, 4),
    ],
)
def test_some_numbers_of_each_dimension_are_looked_at(tensor: torch.Tensor) -> None:
    part = tensor[evaluations._cuts(tensor)]
    assert part.dim() == tensor.dim() and part.numel() <= 2 * 256
    assert part.numel() >= min(64, tensor.numel())


def test_the_program_does_not_notice() -> None:
    with armed() as lab:
        before = torch.random.get_rng_state()
        noted = lab.probe.settings.evaluations
        with torch.inference_mode():
            noted.called(Net(), ((DATA,), {}), 0)
        noted.window_closed()
        after = torch.random.get_rng_state()
        torch.random.set_rng_state(before)
        Net()
        assert torch.equal(after, torch.random.get_rng_state()), "nothing but the network drew"


def test_a_call_that_is_noted_costs_little_and_others_next_to_nothing() -> None:
    noted = evaluations.Evaluations(torch, lambda _: None)
    net = Net()
    calls = [calls_of(lambda: noted.called(net, ((DATA,), {}), 0)) for _ in range(2048)]
    assert sum(count > 10 for count in calls) == 8 and max(calls) < 600, "of 2,048 calls eight are looked at"
