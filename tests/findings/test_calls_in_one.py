"""NSX132: calls of one network that need nothing of each other, as one call in the names of the program, and lines that do not show it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nsysx.events.operator_flow import flow_of
from nsysx.findings._calls_in_one import in_one_call, joined_calls
from nsysx.pipeline import ReadingOptions, gather_job
from tests.findings.recorded_programs import from_host, recorded

WIDTH = 16


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, given: Tensor, scale: float = 1.0) -> Tensor:
        return torch.tanh(self.lin(x) + given) * scale


class Guided(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.inner = form, Inner()

    def forward(self, x: Tensor, cond: Tensor, uncond: Tensor) -> Tensor:
        if self.form == "partial":
            call = partial(self.inner, x)
            guided, base = map(call, (cond, uncond))
        elif self.form == "lines":
            guided = self.inner(x, cond, scale=2.0)
            base = self.inner(x, uncond, scale=2.0)
        else:
            guided, base = (self.other(x, each) for each in (cond, uncond))
        return base + (guided - base) * 4.5

    def other(self, x: Tensor, given: Tensor) -> Tensor:
        return self.inner(x, given)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("form", "paste"),
    [
        ("partial", "guided, base = self.inner(torch.cat((x, x)), torch.cat((cond, uncond))).chunk(2)"),
        ("lines", "guided, base = self.inner(torch.cat((x, x)), torch.cat((cond, uncond)), scale=2.0).chunk(2)"),
        ("by another function", ""),
    ],
)
def test_two_calls_of_a_network(form: str, paste: str, tmp_path: Path) -> None:
    net, data = Guided(form), torch.randn(3, 8, WIDTH)

    def step() -> None:
        with torch.inference_mode():
            net(*map(from_host, data))

    report = recorded(step, net, __file__, tmp_path).write(tmp_path)
    profile = gather_job([report], ReadingOptions()).profile
    flow, code = flow_of(profile), profile.code()
    assert flow is not None and code is not None
    calls = [call for call in flow.calls if call.cls == "Inner"]
    assert len(calls) == 2
    assert in_one_call(profile, code, calls).partition("  #")[0] == paste


@pytest.mark.parametrize(
    ("lines", "paste"),
    [
        (["a, b = net(x, c), net(x, u)"], "a, b = net(torch.cat((x, x)), torch.cat((c, u))).chunk(2)"),
        (["a, b = [net(x, c, s=1) for c in (cond, uncond)]"], "a, b = net(torch.cat((x, x)), torch.cat((cond, uncond)), s=1).chunk(2)"),
        (["a = net(x, c)", "b = other(x, u)"], ""),
        (["a = net(x, c) * 2", "b = net(x, u)"], ""),
        (["a, b = net(*first), net(*second)"], ""),
        (["out.append(net(x))"], ""),
        (["self.a[0] = net(x)", "self.a[1] = net(y)"], ""),
    ],
)  # fmt: skip
def test_lines_that_call_a_network_twice(lines: list[str], paste: str) -> None:
    join: Callable[..., str] = joined_calls
    assert join(lines, 2, []).partition("  #")[0] == paste
