"""What the probe tells of networks without gradients that several steps in a row give the same, on CPU torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.inject.test_probe import armed
from tests.inject.test_settings_reader import settings

pytestmark = pytest.mark.filterwarnings("ignore")

PASSES = 3


class Net(nn.Module):
    """A network of two layers, with something that drops between them."""

    def __init__(self, drops: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(drops), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def nothing(policy: nn.Module, reference: nn.Module) -> None:
    """Leave both as they are."""


def averaged(policy: nn.Module, reference: nn.Module) -> None:
    """Move the reference towards the policy, behind autograd's back."""
    for mine, theirs in zip(reference.parameters(), policy.parameters(), strict=True):
        mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)


def told(
    given: Callable[[torch.Tensor, int], torch.Tensor] = lambda batch, _: batch[:, :8],
    *,
    update: Callable[[nn.Module, nn.Module], None] = nothing,
    drops: float = 0.0,
    held: bool = False,
    batches: int = 3,
    placed: Callable[[nn.Module], object] = lambda network: None,
) -> list[dict[str, Any]]:
    """Return the rows of the record behind two windows: steps are passes over a batch, a reference is called in each without gradients."""
    torch.manual_seed(5)
    with armed() as lab:
        policy, reference = Net(), Net(drops)
        placed(reference)
        trained = [*policy.parameters(), *(Net() if not held else reference).parameters()]
        optimizer = torch.optim.SGD(trained, lr=0.1)
        for _ in range(2):
            for _ in range(batches):
                batch = torch.randn(4, 9)
                for n in range(PASSES):
                    out = policy(batch[:, :8].clone())
                    with torch.no_grad():
                        anchor = reference(given(batch, n))
                    optimizer.zero_grad()
                    (out - anchor).square().mean().backward()
                    optimizer.step()
                    update(policy, reference)
            lab.probe.settings.window_closed()
        rows: list[dict[str, Any]] = settings(lab)["given_again"]
        learner, *others = rows
        assert learner["learns"] and learner["trained"] and not any(row["learns"] for row in others)
        return others


def lengths(row: dict[str, Any]) -> list[int]:
    """Return in how many steps in a row it was given the same."""
    numbers = [number for _, number in row["steps"]]
    return [numbers.count(each) for each in dict.fromkeys(numbers)]


def test_passes_over_one_batch_give_a_frozen_network_the_same() -> None:
    (row,) = told()
    assert not row["learns"]
    assert (row["class"], row["trained"], row["drops"]) == ("Net", False, False)
    assert row["place"].rpartition(":")[0] == __file__
    assert lengths(row)[:-1] == [PASSES] * (len(lengths(row)) - 1) and len(lengths(row)) > 2
    steps = [step for step, _ in row["steps"]]
    assert len(steps) == len(set(steps)) and sorted(steps) == steps


@pytest.mark.parametrize(
    "given",
    [
        lambda batch, n: batch[:, n % 2 : 8 + n % 2],  # another part of it
        lambda batch, n: batch[:, :8] + n,  # made anew
        lambda batch, n: batch.mul_(1.01)[:, :8],  # written into
        lambda batch, n: torch.randn(4, 8),  # in memory that was given back
    ],
)
def test_what_is_another_in_each_pass_is_told_so(given: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
    (row,) = told(given)
    assert set(lengths(row)) == {1}


@pytest.mark.parametrize("how", ["averaged", "held by the optimizer"])
def test_networks_that_are_trained_somehow_are_told_so(how: str) -> None:
    (row,) = told(update=averaged if how == "averaged" else nothing, held=how != "averaged")
    assert row["trained"] is True


@pytest.mark.parametrize(("update", "trained"), [(nothing, False), (averaged, True)])
def test_of_a_network_that_is_divided_over_the_ranks_the_own_part_tells(
    update: Callable[[nn.Module, nn.Module], None], trained: bool, tmp_path: Path
) -> None:
    def of_parts(policy: nn.Module, reference: nn.Module) -> None:
        for parameter in reference.parameters() if update is averaged else ():
            parameter.to_local().data.mul_(0.9)  # type: ignore[attr-defined,unused-ignore]

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        (row,) = told(
            update=of_parts, placed=lambda n: [fully_shard(m, mesh=mesh) for m in (n.layers[0], n.layers[2], n)]
        )
    finally:
        dist.destroy_process_group()
    assert row["trained"] is trained


def test_what_is_drawn_in_the_network_is_told() -> None:
    assert told(drops=0.1)[0]["drops"]


def test_what_is_called_between_steps_is_none_of_it() -> None:
    with armed() as lab:
        policy, scored = Net(), Net().eval()
        optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            policy(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            with torch.no_grad():
                scored(torch.ones(4, 8))
        lab.probe.settings.window_closed()
        (row,) = settings(lab)["given_again"]
        assert row["learns"] and set(lengths(row)) == {1}
