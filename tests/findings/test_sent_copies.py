"""NSX127: rows that are copied before ranks send them, in programs that torch runs, and messages whose rows differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from nsysx.events import sent_copies
from nsysx.model import Finding
from tests.findings.lined import all_is_transfer
from tests.findings.recorded_programs import recorded

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # newer names of the same collectives
RANKS, HEADS, OWN_HEADS, ROWS, WIDTH, CHOSEN = 2, 8, 2, 16, 8, 6


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(RANKS)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        part = grad.new_empty(grad.shape[0], grad.shape[1] // RANKS, *grad.shape[2:])
        dist.reduce_scatter(part, [each.contiguous() for each in grad.chunk(RANKS, 1)])
        return part


class Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        came = torch.empty_like(x)
        dist.all_to_all_single(came, x.contiguous())
        return came

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        came = torch.empty_like(grad)
        dist.all_to_all_single(came, grad.contiguous())
        return came


def into_one(x: Tensor) -> Tensor:
    whole = x.new_empty(RANKS * x.shape[1], x.shape[0], *x.shape[2:])
    dist.all_gather_into_tensor(whole, x.detach().transpose(0, 1).contiguous())
    return whole.transpose(0, 1)


def spread(x: Tensor) -> Tensor:
    """Heads as libraries repeat them: an expansion and a reshape."""
    b, s, h, d = x.shape
    return x[:, :, :, None].expand(b, s, h, HEADS // OWN_HEADS, d).reshape(b, s, HEADS, d)


class Attention(nn.Module):
    def __init__(
        self, repeat: Callable[[Tensor], Tensor], gather: Callable[[Tensor], Tensor], late: bool = False
    ) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(64, HEADS * WIDTH), nn.Linear(64, 2 * OWN_HEADS * WIDTH)
        self.repeat, self.gather, self.late = repeat, gather, late

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        q = self.q(x).view(b, s, HEADS, WIDTH)
        k, v = self.kv(x).view(b, s, 2 * OWN_HEADS, WIDTH).chunk(2, 2)
        if not self.late:
            k, v = self.repeat(k), self.repeat(v)
        k, v = self.gather(k), self.gather(v)
        if self.late:
            k, v = self.repeat(k), self.repeat(v)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, -1)


class Parallel(nn.Module):
    """Keys and values of parts of a sequence, as DTensors, gathered for the queries of this part."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.q, self.kv, self.late = nn.Linear(64, HEADS * WIDTH), nn.Linear(64, 2 * OWN_HEADS * WIDTH), late

    def forward(self, x: Tensor) -> Tensor:
        mesh = init_device_mesh("cpu", (RANKS,))
        b, s, _ = x.shape
        q = self.q(x).view(b, s, HEADS, WIDTH)
        every = []
        for each in self.kv(x).view(b, s, 2 * OWN_HEADS, WIDTH).chunk(2, 2):
            part = DTensor.from_local(each if self.late else by_head(each), mesh, [Shard(1)], run_check=False)
            whole = part.redistribute(placements=[Replicate()]).to_local()
            every.append(by_head(whole) if self.late else whole)
        q, k, v = (each.transpose(1, 2) for each in (q, *every))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, -1)


def by_head(x: Tensor) -> Tensor:
    return x.repeat_interleave(HEADS // OWN_HEADS, dim=2)


class Turned(torch.autograd.Function):
    """All rows of a part of the heads, for a part of the rows of all heads: [batch, heads, rows, width]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cut: int, joined: int) -> Tensor:
        ctx.dimensions = joined, cut
        parts = [each.contiguous() for each in x.chunk(RANKS, cut)]
        came = [torch.empty_like(each) for each in parts]
        dist.all_to_all(came, parts)
        return torch.cat(came, joined)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return Turned.apply(grads[0], *ctx.dimensions), None, None  # type: ignore[no-untyped-call]


class ByHeads(nn.Module):
    """Attention of all rows, each rank of its heads; keys and values repeated ``late``, or before the exchange."""

    def __init__(self, repeat: Callable[[Tensor, int], Tensor], late: bool = False, own_heads: int = OWN_HEADS) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(64, HEADS * WIDTH), nn.Linear(64, 2 * own_heads * WIDTH)
        self.repeat, self.late, self.own_heads = repeat, late, own_heads

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        q = self.q(x).view(b, s, HEADS, WIDTH).transpose(1, 2)
        k, v = self.kv(x).view(b, s, 2 * self.own_heads, WIDTH).transpose(1, 2).chunk(2, 1)
        if not self.late:
            k, v = (self.repeat(each, HEADS // self.own_heads) for each in (k, v))
        q, k, v = (Turned.apply(each, 1, 2) for each in (q, k, v))  # type: ignore[no-untyped-call]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) if self.late else attended(q, k, v)
        return torch.as_tensor(Turned.apply(y, 2, 1).transpose(1, 2).reshape(b, s, -1))  # type: ignore[no-untyped-call]


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def beside(x: Tensor, times: int) -> Tensor:
    b, h, s, d = x.shape
    return x[:, :, None].expand(b, h, times, s, d).reshape(b, h * times, s, d)


def one_after_the_other(x: Tensor, times: int) -> Tensor:
    return x.repeat(1, times, 1, 1)


class Experts(nn.Module):
    """Tokens go to the ranks of their experts; ``send``: what is sent of tokens and the experts that were chosen."""

    def __init__(self, send: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.router, self.expert, self.send = nn.Linear(WIDTH, 16), nn.Linear(WIDTH, WIDTH), send

    def forward(self, x: Tensor) -> Tensor:
        _, chosen = self.router(x).topk(CHOSEN, -1)
        came = Exchanged.apply(self.send(x, chosen.flatten()))
        return Exchanged.apply(self.expert(came))


def repeated(x: Tensor, chosen: Tensor) -> Tensor:
    order = chosen.argsort(stable=True)
    return x.repeat_interleave(CHOSEN, 0)[order]


def picked(x: Tensor, chosen: Tensor) -> Tensor:
    order = chosen.argsort(stable=True)
    return x[order // CHOSEN]


def once(x: Tensor, chosen: Tensor) -> Tensor:
    return x[chosen[: len(x)] * 0 + torch.arange(len(x))]


def twice(x: Tensor, chosen: Tensor) -> Tensor:
    return torch.cat([x, x])[chosen[: 2 * len(x)].argsort()]  # a copy for each of two ranks


def own(x: Tensor) -> Tensor:
    """Heads of their own, as many."""
    return torch.cat([x, x * 2, x + 1, x.sin()], dim=2)


ATTENTION, TOKENS = torch.randn(2, ROWS, 64), torch.randn(ROWS, WIDTH)
COPIED: dict[str, tuple[Callable[[], nn.Module], Tensor, float]] = {
    "heads repeated, lists": (lambda: Attention(by_head, Gathered.apply), ATTENTION, 0.75),
    "heads repeated, one tensor": (lambda: Attention(by_head, into_one), ATTENTION, 0.75),
    "heads repeated, DTensor": (lambda: Parallel(late=False), ATTENTION, 0.75),
    "heads expanded": (lambda: Attention(spread, Gathered.apply), ATTENTION, 0.75),
    "tokens repeated": (lambda: Experts(repeated), TOKENS, 2 / 3),
    "tokens picked": (lambda: Experts(picked), TOKENS, 2 / 3),
}
OTHERS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "repeated behind": (lambda: Attention(by_head, Gathered.apply, late=True), ATTENTION),
    "repeated behind, DTensor": (lambda: Parallel(late=True), ATTENTION),
    "heads of their own": (lambda: Attention(own, Gathered.apply), ATTENTION),
    "tokens in order": (lambda: Experts(once), TOKENS),
    "a copy for each rank": (lambda: Experts(twice), TOKENS),
}


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sent_copies._SentRows, "_ranks", lambda self, each: RANKS)
    all_is_transfer(monkeypatch)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def told(model: nn.Module, given: Tensor, folder: Path) -> Finding | None:
    def step() -> None:
        model(given * 1).pow(2).mean().backward()

    found = recorded(step, model, __file__, folder).found(folder, "NSX127")
    return next((f for f in found if f.evidence[0]["setting"] == "copies sent"), None)


@pytest.mark.parametrize("kind", COPIED)
def test_each_row_is_sent_once(kind: str, tmp_path: Path) -> None:
    make, given, needless = COPIED[kind]
    found = told(make(), given, tmp_path)
    assert found is not None and found.saving.bound
    name = "row-for-each-rank" if "tokens" in kind else "copied-behind"
    assert [r.name for r in found.remedies] == [name]
    assert f"{100 * needless:.0f} % of the bytes" in found.detail
    if name == "copied-behind":
        assert "k, v = self.repeat(k), self.repeat(v)  # line " in found.paste or "DTensor" in kind


@pytest.mark.parametrize("kind", OTHERS)
def test_rows_that_differ_are_sent_as_they_are(kind: str, tmp_path: Path) -> None:
    make, given = OTHERS[kind]
    assert told(make(), given, tmp_path) is None


@pytest.mark.parametrize(("repeat", "share"), [(beside, 0.375), (one_after_the_other, 0.25)])
def test_heads_are_exchanged_as_they_are(repeat: Callable[[Tensor, int], Tensor], share: float, tmp_path: Path) -> None:
    """Of copies that lie behind each other each rank is sent some of all heads."""
    found = told(ByHeads(repeat), ATTENTION, tmp_path)
    assert found is not None and found.title == "Heads are repeated before they are exchanged"
    assert [r.name for r in found.remedies] == ["copied-behind"] and f"{100 * share:.0f} % of the bytes" in found.detail
    attends, *left = (line.partition("  # line ")[0] for line in found.paste.splitlines())
    assert attends == "return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)"
    assert [line.partition(": ")[2] for line in left] == [
        "k, v = (self.repeat(each, HEADS // self.own_heads) for each in (k, v))"
    ]
    assert found.where["line"] == int(left[0].partition("without line ")[2].partition(":")[0])


def test_a_head_that_all_ranks_need_is_gathered(tmp_path: Path) -> None:
    found = told(ByHeads(beside, own_heads=1), ATTENTION, tmp_path)
    assert found is not None and found.paste.startswith("whole = ")


def test_heads_that_are_repeated_behind_the_exchange_are_left(tmp_path: Path) -> None:
    assert told(ByHeads(beside, late=True), ATTENTION, tmp_path) is None
