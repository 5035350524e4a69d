"""NSX127: networks without gradients that every rank runs on the rows of all ranks, in programs that torch runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from nsysx.model import Finding
from tests.findings.lined import all_is_transfer
from tests.findings.recorded_programs import recorded

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # newer names of the same collectives
RANKS, ROWS, WIDTH, OUT = 2, 6, 32, 5
SLOW = (
    "addmm",
    "mm",
    "convolution",
    "_convolution",
    "mkldnn_convolution",
    "_scaled_dot_product_flash_attention_for_cpu",
)


def gathered(x: Tensor) -> Tensor:
    out = x.new_empty(RANKS * len(x), *x.shape[1:])
    dist.all_gather_into_tensor(out, x.contiguous())
    return out


def listed(x: Tensor) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(RANKS)]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)


class Images(nn.Module):
    """Convolutions with the statistics that they have."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU()
        )
        self.head = nn.Linear(16, OUT)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean((2, 3)))


class Tokens(nn.Module):
    """Attention within each row."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv, self.head = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, OUT)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, WIDTH)
        return self.head(F.gelu(x).mean(1))


class Compared(nn.Module):
    """Rows that attend to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x)[None]
        return self.head(F.scaled_dot_product_attention(q, q, q)[0])


class Dense(nn.Module):
    """As many numbers come of it as go in."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Job(nn.Module):
    """What trains on a rank's own rows, beside a teacher."""

    def __init__(self, teacher: nn.Module, out: int) -> None:
        super().__init__()
        self.teacher, self.student = teacher, nn.Linear(WIDTH, out)


@pytest.fixture(autouse=True)
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    all_is_transfer(monkeypatch)
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=RANKS)
    yield
    dist.destroy_process_group()


def told(
    teacher: nn.Module, inputs: Tensor, bank_of: Callable[[nn.Module, Tensor], Tensor], folder: Path
) -> Finding | None:
    job, own = Job(teacher, WIDTH if isinstance(teacher, Dense) else OUT), torch.randn(ROWS, WIDTH)
    optimizer = torch.optim.SGD(job.student.parameters(), lr=0.01)

    def step() -> None:
        x = inputs * 1
        bank = bank_of(job.teacher, x)
        target = (bank[ROWS:] @ bank.T).softmax(-1)
        made = F.normalize(job.student(own), dim=-1)
        loss = -(target * (made @ bank.T).log_softmax(-1)).sum(-1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    found = recorded(step, job, __file__, folder, slow=SLOW).found(folder, "NSX127")
    return next((f for f in found if f.evidence[0]["setting"] == "batch of all ranks"), None)


@torch.no_grad()
def at_once(teacher: nn.Module, x: Tensor) -> Tensor:
    bank = F.normalize(teacher(gathered(x)), dim=-1)
    return bank * 1


@torch.no_grad()
def from_a_list(teacher: nn.Module, x: Tensor) -> Tensor:
    every = listed(x)
    return F.normalize(teacher(every), dim=-1)


@torch.no_grad()
def in_chunks(teacher: nn.Module, x: Tensor) -> Tensor:
    every = gathered(x)
    return torch.cat([teacher(part) for part in every.chunk(4)])


@torch.no_grad()
def of_own_rows(teacher: nn.Module, x: Tensor) -> Tensor:
    return gathered(teacher(x))


@torch.no_grad()
def found_in_part(teacher: nn.Module, x: Tensor) -> Tensor:
    """Each rank has its own part of an index."""
    values = teacher(gathered(x)).topk(OUT, -1).values
    return gathered(values.contiguous())[: RANKS * ROWS]


def trained(teacher: nn.Module, x: Tensor) -> Tensor:
    return F.normalize(teacher(gathered(x)), dim=-1)


IMAGES, TOKENS, ROWS_OF_ONE = torch.randn(ROWS, 3, 16, 16), torch.randint(0, 50, (ROWS, 10)), torch.randn(ROWS, WIDTH)


@pytest.mark.parametrize(
    ("teacher", "inputs", "bank_of"),
    [
        (Images, IMAGES, at_once),
        (Images, IMAGES, from_a_list),
        (Images, IMAGES, in_chunks),
        (Tokens, TOKENS, at_once),
        (Tokens, TOKENS, from_a_list),
    ],
)
def test_a_network_that_each_rank_runs_on_the_rows_of_all_ranks_is_told(
    teacher: type[nn.Module], inputs: Tensor, bank_of: Callable[[nn.Module, Tensor], Tensor], tmp_path: Path
) -> None:
    found = told(teacher().eval(), inputs, bank_of, tmp_path)
    assert found is not None and [way.name for way in found.remedies] == ["own-rows-before-gather"]
    assert f"all {RANKS * ROWS} of them" in found.detail and teacher.__name__ in found.detail
    if bank_of is at_once:
        assert "part = F.normalize(teacher(x), dim=-1)" in found.paste and "bank = part.new_empty(" in found.paste
    assert found.saving.likely_ns


@pytest.mark.parametrize(
    ("teacher", "inputs", "bank_of"),
    [
        (Images().train(), IMAGES, at_once),  # statistics of the rows of all ranks
        (Images().eval(), IMAGES, of_own_rows),
        (Images().eval(), IMAGES, trained),  # its gradients are of all rows
        (Images().eval(), IMAGES, found_in_part),
        (Compared(), ROWS_OF_ONE, at_once),
        (Dense(), ROWS_OF_ONE, at_once),  # what comes of it is as large
    ],
)
def test_what_needs_all_rows_or_sends_no_less_is_silent(
    teacher: nn.Module, inputs: Tensor, bank_of: Callable[[nn.Module, Tensor], Tensor], tmp_path: Path
) -> None:
    assert told(teacher, inputs, bank_of, tmp_path) is None
