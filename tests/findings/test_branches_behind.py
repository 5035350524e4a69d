"""NSX127: branches of a layer, such as a shared expert, that are called behind the exchanges of routed experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed._functional_collectives import all_to_all_single_autograd

from nsysx.findings import _branches_behind
from nsysx.model import Finding
from nsysx.replay.replay_bounds import HIDDEN_SLOWS_SHARES
from tests.findings.lined import all_is_transfer
from tests.findings.recorded_programs import from_host, recorded
from tests.findings.test_whole_tokens import RANKS, WIDTH, ranks
from tests.torch_networks import Residual

__all__ = ["ranks"]
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # newer names of the same collectives


class Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        dist.all_to_all_single(y := torch.empty_like(x), x.contiguous())
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        dist.all_to_all_single(y := torch.empty_like(g), g.contiguous())
        return y


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.gelu(self.w1(x)))  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.router, self.experts, self.shared = nn.Linear(WIDTH, 8), Expert(), Expert()

    def forward(self, x: Tensor) -> Tensor:
        _, number = self.router(x).topk(2)
        order = number.flatten().argsort()
        rows = x.repeat_interleave(2, 0)[order]
        branch = self.shared(x) if self.form == "ahead" else None
        y = Exchanged.apply(self.experts(Exchanged.apply(rows)))
        out = torch.zeros_like(x).index_add(0, order // 2, y)
        if branch is not None:
            return out + branch
        if self.form == "of what came":
            return out + self.shared(out)  # type: ignore[no-any-return]
        if self.form == "of the norm of both":
            return self.shared(F.layer_norm(x + out, (WIDTH,)))  # type: ignore[no-any-return]
        return out + self.shared(x)  # type: ignore[no-any-return]


class Routed(nn.Module):
    """Experts whose exchanges are functional collectives, which wait where what they bring is read."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.router, self.experts = form, nn.Linear(WIDTH, 8), Expert()

    def transfer(self, rows: Tensor) -> Tensor:
        parts = [len(rows) // RANKS] * RANKS
        return all_to_all_single_autograd(rows, parts, parts, dist.group.WORLD)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        _, number = self.router(x).topk(2)
        order = number.flatten().argsort()
        y = self.transfer(self.experts(self.transfer(x.repeat_interleave(2, 0)[order])))
        return torch.zeros_like(x).index_add(0, order // 2, y)


class WithShared(Routed):
    def __init__(self, form: str) -> None:
        super().__init__(form)
        self.shared = Expert()

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "of what the base makes":
            return x + self.shared(super().forward(x))  # type: ignore[no-any-return]
        return super().forward(x) + self.shared(x)  # type: ignore[no-any-return]


def told(form: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Finding | None:
    of_base = form in ("beside its base", "of what the base makes")
    net = Residual(WithShared(form) if of_base else Layer(form) for _ in range(3))

    def step() -> None:
        net(from_host(torch.randn(64, WIDTH))).square().mean().backward()
        net.zero_grad()

    all_is_transfer(monkeypatch, _branches_behind)
    program = recorded(step, net, __file__, folder, slow=("linear", "alltoall_base_"), ranks=RANKS)
    found = [each for each in program.found(folder, "NSX127") if each.evidence]
    return next((each for each in found if each.evidence[0]["setting"] == "branch behind exchanges"), None)


def test_a_shared_expert_behind_the_exchanges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = told("behind", tmp_path, monkeypatch)
    assert found is not None and found.title.startswith("shared is called behind exchanges")
    assert [way.name for way in found.remedies] == ["branch-beside-exchanges"]
    assert "out + self.shared(x)" in Path(__file__).read_text().splitlines()[found.where["line"] - 1]
    assert "    shared_out = self.shared(x)\n" in found.paste and found.paste.splitlines()[-1].startswith(
        "return out + shared_out"
    )
    # Six exchanges of 60 us, beside which branches of 390 us get slower.
    likely = 1 - HIDDEN_SLOWS_SHARES[1]
    assert found.saving_ns_per_step == pytest.approx(likely * 360_000, rel=0.05)
    assert found.saving.most_ns == pytest.approx(360_000, rel=0.05)


def test_a_shared_expert_in_the_line_that_calls_the_routed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = told("beside its base", tmp_path, monkeypatch)
    assert found is not None and "Beside 6 exchanges" in found.detail
    assert found.paste.splitlines()[2:] == [
        "    shared_out = self.shared(x)",
        "routed = super().forward(x)",
        "torch.cuda.current_stream().wait_stream(side)",
        "return routed + shared_out  # type: ignore[no-any-return]",
    ]


@pytest.mark.parametrize("form", ["ahead", "of what came", "of the norm of both", "of what the base makes"])
def test_branches_that_need_what_comes_or_are_there_before(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(form, tmp_path, monkeypatch) is None


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("s = self.shared(x)", "    s = self.shared(x)", "torch.cuda.current_stream().wait_stream(side)"),
        ("return y + self._mlp(x.view(-1, d))", "    mlp_out = self._mlp(x.view(-1, d))", "return y + mlp_out"),
    ],
)
def test_the_call_in_the_line(text: str, first: str, last: str) -> None:
    name = "shared" if "shared" in text else "_mlp"
    paste = _branches_behind.moved_ahead(text, name).splitlines()
    assert paste[2] == first and paste[-1] == last
    assert not _branches_behind.moved_ahead("return y + branch(x)", name)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("x = x + self.routed(x) + self.shared(x)", ["routed = self.routed(x)", "x = x + routed + shared_out"]),
        (
            "return self.norm(self.shared(x) + self.routed(x))",
            ["routed = self.routed(x)", "return self.norm(shared_out + routed)"],
        ),
        (
            "return self.combine(self.routed(x)) + self.drop(x) + self.shared(x)",
            [],
        ),  # which call exchanges is not known
    ],
)
def test_the_exchanges_in_the_line(text: str, lines: list[str]) -> None:
    paste = _branches_behind.moved_ahead(text, "shared", exchanges=True).splitlines()
    assert [line for line in paste if "routed" in line] == lines
