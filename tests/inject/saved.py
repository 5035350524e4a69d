"""Small trainings whose record tells what autograd has saved for a backward: of attention's masks and of the targets of losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.inject.test_probe import Lab
from tests.inject.test_settings_reader import settings


def losses_of(net: nn.Module, loss_of_step: Callable[[], Tensor], rate: float, steps: int) -> list[float]:
    """Return the losses of some steps of SGD with this learning rate."""
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=rate), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of_step()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def recorded(train: Callable[[], object], name: str) -> Any:
    """Return what is in the record of a window of three steps of a training under this name."""
    lab = Lab(NSYSX_STEPS="2:5")
    try:
        train()
        assert all(error.startswith("cudaProfilerSt") for error in lab.probe.out.errors)
        return settings(lab)[name]
    finally:
        lab.close()


def assert_unnoticed(train: Callable[[], list[float]]) -> None:
    """A training computes with the probe what it computes without it, and draws the same random numbers."""
    results = []
    for probed in (False, True):
        torch.manual_seed(3)
        lab = Lab(NSYSX_STEPS="2:5") if probed else None
        try:
            losses = train()
        finally:
            if lab is not None:
                lab.close()
        results.append((losses, torch.random.get_rng_state().tolist()))
    assert results[0] == results[1]
