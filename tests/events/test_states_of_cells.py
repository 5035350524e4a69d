"""Whether a recurrent cell's state goes from call to call as it was made, so that one call of a layer makes the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nsysx.events.needs_of_calls import depth, signature, state_is_touched
from tests.events.traced import traced

WIDTH, ROWS, TIMES = 16, 4, 9


class Core(nn.Module):
    """A cell over time; ``form``: what lies between two calls of it."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.cell = form, (nn.LSTMCell if form == "lstm" else nn.GRUCell)(WIDTH, WIDTH)
        self.encoder, self.above, self.norm = nn.Linear(WIDTH, WIDTH), nn.GRUCell(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, alive: Tensor) -> Tensor:
        state, upper, y = torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, WIDTH)
        both = (state, state)
        total = torch.zeros(())
        for t in range(TIMES):
            if self.form == "lstm":
                both = self.cell(self.encoder(x[t]), both)
                state = both[0]
            elif self.form == "masked":
                state = self.cell(self.encoder(x[t]), state * alive[t][:, None])
            elif self.form == "normalized":
                state = self.norm(self.cell(self.encoder(x[t]), state))
            elif self.form == "fed back":
                state = self.cell(y, state)
                y = self.head(state)
            elif self.form == "state as input":
                state = self.cell(state, state)
            elif self.form == "in 16 bits":
                with torch.autocast("cpu", torch.bfloat16):
                    state = self.cell(self.encoder(x[t]), state)
            else:
                state = self.cell(self.encoder(x[t]), state)
            if self.form == "stacked":
                upper = self.above(state, upper)
            total = total + (upper if self.form == "stacked" else state).float().square().mean()
        return total


@pytest.mark.parametrize(
    ("form", "touched"),
    [
        ("plain", False),
        ("lstm", False),
        ("stacked", False),
        ("in 16 bits", False),
        ("masked", True),
        ("normalized", True),
        ("fed back", True),
        ("state as input", True),
    ],
)
def test_a_state_that_is_changed_between_calls(form: str, *, touched: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    core, x = Core(form), torch.randn(TIMES, ROWS, WIDTH)
    alive = (torch.rand(TIMES, ROWS) > 0.1).float()
    flow, _, _ = traced(lambda: core(x, alive).backward(), tmp_path, core)
    for path in ("cell", "above") if form == "stacked" else ("cell",):
        calls = [call for call in flow.calls if call.path.endswith(path)]
        assert len(calls) == TIMES
        assert state_is_touched(flow, calls) is touched


def test_weights_that_autocast_casts_in_the_first_call_are_needed_by_no_later_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)), torch.randn(TIMES, ROWS, WIDTH)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            torch.stack([net(x[t]).float().square().mean() for t in range(TIMES)]).sum().backward()

    flow, _, _ = traced(step, tmp_path, net)
    calls = [call for call in flow.calls if call.cls == "Sequential"]
    assert len(calls) == TIMES
    assert len({signature(flow, call) for call in calls}) == depth(flow, calls) == 1
