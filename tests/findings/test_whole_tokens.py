"""NSX127: norms, dropout and residuals of all tokens on every rank, between layers that are split over the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from nsysx.inject.nsysx_probe import sources
from nsysx.model import Finding
from tests.findings.lined import FILE
from tests.findings.recorded_programs import from_host, recorded

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # newer names of the same collectives
RANKS, WIDTH = 4, 32
ON_TOKENS = ("mul", "add", "native_layer_norm", "mean", "pow")
PLAN = {name: kind() for name, kind in (("w1", ColwiseParallel), ("w2", RowwiseParallel))}


class Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        dist.all_reduce(g := g.contiguous())
        return g


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        dist.all_reduce(x, group=dist.group.WORLD)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        dist.all_gather_into_tensor(y := x.new_empty(RANKS * len(x), *x.shape[1:]), x.contiguous())
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        dist.reduce_scatter_tensor(y := g.new_empty(len(g) // RANKS, *g.shape[1:]), g.contiguous())
        return y


class Scattered(torch.autograd.Function):
    forward, backward = staticmethod(Gathered.backward), staticmethod(Gathered.forward)  # type: ignore[assignment]


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        xf = x.float()
        return (xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.weight


class Layers(nn.Module):
    def __init__(self, *, planned: bool) -> None:
        super().__init__()
        inner = 4 * WIDTH if planned else 4 * WIDTH // RANKS
        self.w1, self.w2 = nn.Linear(WIDTH, inner, bias=False), nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.gelu(self.w1(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.norm1, self.norm2, self.drop = RMSNorm(), nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.attn, self.mlp = Layers(planned=form == "plan"), Layers(planned=form == "plan")
        if form == "plan":
            for layers in (self.attn, self.mlp):
                parallelize_module(layers, init_device_mesh("cpu", (RANKS,)), PLAN)

    def call(self, layers: Layers, x: Tensor) -> Tensor:
        if self.form == "shared out":
            return Scattered.apply(layers(Gathered.apply(x)))  # type: ignore[no-any-return]
        if self.form == "by hand":
            return Summed.apply(layers(Copied.apply(x)))  # type: ignore[no-any-return]
        return layers(x)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.call(self.attn, self.norm1(x)))
        x = x + self.drop(self.call(self.mlp, self.norm2(x)))
        if self.form == "metric":
            dist.all_reduce(self.mlp.w2(self.mlp.w1(x.detach())).square().mean())
        return x


class Net(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(form) for _ in range(2))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=RANKS)
    yield
    dist.destroy_process_group()


def told(form: str, folder: Path, *, tokens: int = 64, slow: tuple[str, ...] = ON_TOKENS) -> Finding | None:
    net = Net(form)

    def step() -> None:
        x = from_host(torch.randn(2, tokens, WIDTH))
        net(x if form != "shared out" else x.flatten(0, 1)).square().mean().backward()
        net.zero_grad()

    program = recorded(step, net, __file__, folder, slow=("linear", "allreduce_", *slow), ranks=RANKS)
    program.probe["of_ranks"] = {FILE: {"9": '"attn.w2": RowwiseParallel(),'}} if form == "plan" else {}
    found = [each for each in program.found(folder, "NSX127") if each.evidence]
    return next((each for each in found if each.evidence[0]["setting"] == "tokens of all ranks"), None)


@pytest.mark.parametrize("form", ["by hand", "plan"])
def test_what_every_rank_works_on_for_all_tokens(form: str, tmp_path: Path) -> None:
    found = told(form, tmp_path)
    assert found is not None and "added up over 4 ranks" in found.detail and "all 128 tokens" in found.detail
    assert [way.name for way in found.remedies] == ["tokens-shared-out"]
    # Of a dozen and more operators of 60 us, and their gradients of 20 us, three quarters go.
    assert 0.75 * 12 * 80_000 < (found.saving_ns_per_step or 0) < 0.75 * 30 * 80_000
    if form == "plan":
        assert found.where["line"] == 9
        assert '"norm2": SequenceParallel(),' in found.paste
        assert (
            '"attn": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),'
            in found.paste
        )
        assert '"mlp.w2": RowwiseParallel(output_layouts=Shard(1)),' in found.paste
    else:
        assert (
            "dist.all_reduce(x, group=dist.group.WORLD)"
            in Path(__file__).read_text().splitlines()[found.where["line"] - 1]
        )
        assert "group=dist.group.WORLD)" in found.paste and "tp)" not in found.paste


@pytest.mark.parametrize("form", ["shared out", "metric", "alone"])
def test_what_is_shared_out_or_not_split_is_silent(form: str, tmp_path: Path) -> None:
    assert told(form, tmp_path) is None


def test_tokens_that_do_not_divide_by_the_ranks(tmp_path: Path) -> None:
    assert told("by hand", tmp_path, tokens=65) is None


def test_kernels_that_fewer_tokens_make_no_shorter(tmp_path: Path) -> None:
    found = told("by hand", tmp_path, slow=())
    # The gradients' alone, of 20 us each.
    assert found is None or (found.saving_ns_per_step or 0) < 0.75 * 40 * 20_000


def test_lines_of_plans_that_add_up_are_noted() -> None:
    texts = ['"attn.wo": RowwiseParallel(),', "# w2=RowwiseParallel()", "RowwiseParallel(output_layouts=Shard(1))"]
    assert [bool(sources._PLAN.search(text)) for text in texts] == [True, False, False]
