"""NSX127: attention that every rank of a network of split layers computes whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

from nsysx.model import Finding
from tests.findings.lined import FILE
from tests.findings.recorded_programs import from_host, recorded
from tests.findings.test_whole_tokens import PLAN, RANKS, WIDTH, Copied, Gathered, Layers, Summed, ranks

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # newer names of the same collectives
__all__ = ["ranks"]
SLOW = ("linear", "allreduce_", "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu")


class Attention(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.heads = form, 3 if form == "heads" else RANKS
        inner = {"split": WIDTH // RANKS, "gathered": WIDTH // RANKS, "heads": 3 * 8}.get(form, WIDTH)
        self.wq, self.wk, self.wv = (nn.Linear(WIDTH, inner, bias=False) for _ in range(3))
        self.wo = nn.Linear(WIDTH if form == "gathered" else inner, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = Copied.apply(x) if self.form in ("split", "gathered") else x
        q, k, v = (w(x).unflatten(-1, (-1, 8)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        if self.form == "gathered":
            y = Gathered.apply(y.flatten(0, 1)).view(*y.shape[:2], -1)
        y = self.wo(y)
        return Summed.apply(y) if self.form == "split" else y  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.mlp = Attention(form), Layers(planned=form == "plan")
        if form == "plan":
            parallelize_module(self.mlp, init_device_mesh("cpu", (RANKS,)), PLAN)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        h = self.norm2(x)
        return x + (self.mlp(h) if self.form == "plan" else Summed.apply(self.mlp(Copied.apply(h))))  # type: ignore[no-any-return]


class Net(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, WIDTH)
        self.layers = nn.ModuleList(Block(form) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return x  # type: ignore[no-any-return]


def told(form: str, folder: Path) -> Finding | None:
    net = Net(form)

    def step() -> None:
        net(from_host(torch.randint(16, (2, 64)))).square().mean().backward()
        net.zero_grad()

    program = recorded(step, net, __file__, folder, slow=SLOW, ranks=RANKS)
    program.probe["of_ranks"] = {FILE: {"9": '"mlp.w2": RowwiseParallel(),'}} if form == "plan" else {}
    found = [each for each in program.found(folder, "NSX127") if each.evidence]
    return next((each for each in found if each.evidence[0]["setting"] == "layers computed whole"), None)


@pytest.mark.parametrize("form", ["by hand", "plan"])
def test_attention_that_every_rank_computes_whole(form: str, tmp_path: Path) -> None:
    found = told(form, tmp_path)
    assert found is not None and "(attn.wq, attn.wk, attn.wv, attn.wo)" in found.detail
    assert f"all {RANKS} heads" in found.detail and "2 outputs of layers" in found.detail
    assert [way.name for way in found.remedies] == ["layers-split-too"]
    if form == "plan":
        assert found.where["line"] == 9
        assert '**{f"attn.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},' in found.paste
        assert '"attn.wo": RowwiseParallel(),' in found.paste
    else:
        assert "w(x)" in Path(__file__).read_text().splitlines()[found.where["line"] - 1]


@pytest.mark.parametrize("form", ["split", "gathered", "heads"])
def test_attention_that_is_split_or_cannot_be_is_silent(form: str, tmp_path: Path) -> None:
    assert told(form, tmp_path) is None
