"""NSX127: branches of a layer, such as a shared expert, that are called behind the exchanges of routed experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist

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


def told(form: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Finding | None:
    net = Residual(Layer(form) for _ in range(3))

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


@pytest.mark.parametrize("form", ["ahead", "of what came", "of the norm of both"])
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
