"""What the probe tells of what networks are given, on CPU torch: ranks with the same data note the same number."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from nsysx_probe import held_memory, network_inputs, tensor_checksum
from torch import nn

from tests.inject.test_probe import Lab, armed
from tests.inject.test_settings_reader import settings

pytestmark = pytest.mark.filterwarnings("ignore")

DATA = torch.randn(64, 8, generator=torch.Generator().manual_seed(3))


class Net(nn.Module):
    """A network that is given a batch, and whatever else."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out


def told(order: torch.Tensor, given: Callable[[torch.Tensor], tuple[Any, ...]] = lambda x: (x,), micro: int = 1) -> Any:
    """Return what is in the record of a window of three steps, in each of which ``micro`` batches of 4 rows are taken by their numbers."""
    lab = Lab(NSYSX_STEPS="2:5")
    try:
        net = Net()
        optimizer, taken = torch.optim.SGD(net.parameters(), lr=0.001), 0
        for _ in range(8):
            optimizer.zero_grad()
            for _ in range(micro):
                batch = order[taken : taken + 4]
                taken += 4
                net(*given(DATA[batch])).sum().backward()
            optimizer.step()
        assert all(error.startswith("cudaProfilerSt") for error in lab.probe.out.errors)
        return settings(lab)["inputs"]
    finally:
        lab.close()


def order(seed: int) -> torch.Tensor:
    return torch.randperm(64, generator=torch.Generator().manual_seed(seed))


def test_two_ranks_that_take_the_same_rows_note_the_same_number() -> None:
    (first,), (second,), (other,) = told(order(0)), told(order(0)), told(order(1))
    assert first["sums"] == second["sums"] and len(first["sums"]) == 1 and first["sums"] != other["sums"]
    assert (first["class"], first["rows"]) == ("Net", 4) and first["place"].rpartition(":")[0] == __file__


def test_micro_steps_are_noted_each() -> None:
    (found,) = told(torch.arange(64), micro=2)
    assert len(set(found["sums"])) == len(found["sums"]) == 2


@pytest.mark.parametrize(
    "given",
    [
        lambda x: (x, object()),  # a graph, a batch of another library: ranks may differ in it
        lambda x: (x, {"more": {1}}),
        lambda x: (torch.zeros_like(x),),  # alike by chance
        lambda x: (x, x.to_sparse()),
    ],
)
def test_what_may_be_alike_by_chance_is_not_told(given: Callable[[torch.Tensor], tuple[Any, ...]]) -> None:
    (found,) = told(order(0), given)
    assert found["sums"] == [None]


def test_what_comes_in_lists_and_mappings_and_plain_numbers_count() -> None:
    def sums(given: Callable[[torch.Tensor], tuple[Any, ...]]) -> Any:
        (found,) = told(order(0), given)
        assert found["sums"][0] is not None
        return found["sums"]

    assert sums(lambda x: (x, {"a": [x[:2], 3]})) != sums(lambda x: (x, {"a": [x[:2], 4]}))


def test_what_the_program_has_written_into_is_not_read() -> None:
    inputs = network_inputs.NetworkInputs(torch)
    x, y = DATA[:4].clone(), DATA[4:8].clone()
    inputs.begin(holds=True)
    inputs.called(Net(), (x,), {})
    inputs.called(nn.ReLU(), (y,), {})
    x.zero_()
    inputs.window_closed()
    assert [row["sums"][0] is None for row in inputs.rows] == [True, False]


def test_nothing_is_held_in_other_steps_or_behind_the_window() -> None:
    inputs = network_inputs.NetworkInputs(torch)
    inputs.begin(holds=False)
    assert not inputs.holds
    inputs.begin(holds=True)
    x = DATA[:4].clone()
    held = weakref.ref(x)
    inputs.called(Net(), (x,), {})
    del x
    gc.collect()
    assert inputs.holds and held() is not None
    inputs.window_closed()
    gc.collect()
    assert held() is None and not inputs.holds


def test_large_inputs_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_memory, "HELD_BYTES", 100)
    assert told(order(0))[0]["sums"] == [None]


def test_a_first_column_that_all_rows_have_in_common_does_not_hide_the_others() -> None:
    tokens = torch.randint(0, 1000, (256, 512), generator=torch.Generator().manual_seed(3))
    tokens[:, 0] = 1
    assert len(set(tensor_checksum.some_numbers(torch, tokens))) > 100
    by_column = tokens.t()[:, :128]  # neither in order nor without gaps
    assert tensor_checksum.checksum(torch, [by_column]) == tensor_checksum.checksum(torch, [by_column.clone()])
    assert tensor_checksum.some_numbers(torch, torch.tensor(3)) == [3]


def test_where_a_network_is_called() -> None:
    inputs = network_inputs.NetworkInputs(torch)
    inputs.begin(holds=True)
    net = Net()
    inputs.called(net, (DATA,), {})
    line = sys._getframe().f_lineno - 1
    inputs.window_closed()
    assert inputs.rows[0]["place"] == f"{__file__}:{line}"


def test_the_program_does_not_notice() -> None:
    with armed() as lab:
        before = torch.random.get_rng_state()
        inputs = lab.probe.settings.inputs
        inputs.begin(holds=True)
        inputs.called(Net.__new__(Net), (DATA,), {})
        inputs.window_closed()
        assert torch.equal(before, torch.random.get_rng_state())
