"""NSX127: rows of all ranks that are gathered side by side, of which a rank picks its own samples: an exchange in the program's lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed.nn.functional as dist_fn
from torch import Tensor, nn
from torch import distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from nsysx.findings._exchanged_pastes import exchanged
from nsysx.model import Finding
from tests.findings.lined import all_is_transfer
from tests.findings.recorded_programs import recorded

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # newer names of the same collectives
RANKS, RANK, SAMPLES, TABLES, WIDTH = 2, 1, 16, 4, 8


class Tables(nn.Module):
    """Each rank has the rows of all samples of some tables; the network reads all tables of its own samples."""

    def __init__(self, join: Callable[[Tensor], Tensor], pick: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(TABLES * WIDTH, WIDTH))
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.join, self.pick = join, pick

    def forward(self, x: Tensor) -> Tensor:
        rows = (x @ self.weight.T).view(RANKS * SAMPLES, TABLES, WIDTH)
        return torch.as_tensor(self.dense(self.pick(self.join(rows), RANK)).sum())


def beside(rows: Tensor) -> Tensor:
    return torch.cat(dist_fn.all_gather(rows), dim=1)


def behind(rows: Tensor) -> Tensor:
    return torch.cat(dist_fn.all_gather(rows), dim=0)


def narrowed(rows: Tensor, rank: int) -> Tensor:
    return rows.narrow(0, rank * SAMPLES, SAMPLES)


def sliced(rows: Tensor, rank: int) -> Tensor:
    return rows[rank * SAMPLES : (rank + 1) * SAMPLES]


def first(rows: Tensor, rank: int) -> Tensor:
    return rows[:SAMPLES]


def whole(rows: Tensor, rank: int) -> Tensor:
    return rows * 2


@pytest.fixture(autouse=True)
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    all_is_transfer(monkeypatch)
    dist.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=RANKS)
    yield
    dist.destroy_process_group()


def told(join: Callable[[Tensor], Tensor], pick: Callable[[Tensor, int], Tensor], folder: Path) -> Finding | None:
    model, x = Tables(join, pick), torch.randn(RANKS * SAMPLES, WIDTH)
    found = recorded(lambda: model(x * 1).backward(), model, __file__, folder, slow=("allgather_",)).found(
        folder, "NSX127"
    )
    return next((f for f in found if f.evidence[0]["setting"] == "rows of all ranks"), None)


@pytest.mark.parametrize(("pick", "left"), [(narrowed, "return rows"), (sliced, "return rows")])
def test_samples_of_a_rank_are_exchanged(pick: Callable[[Tensor, int], Tensor], left: str, tmp_path: Path) -> None:
    finding = told(beside, pick, tmp_path)
    assert finding is not None and finding.saving.bound and "50 % is read" in finding.detail
    assert [line.partition("  # ")[0] for line in finding.paste.splitlines()] == [
        "received = dist_fn.all_to_all_single(torch.empty_like(rows), rows)",
        "return torch.cat(received.chunk(dist.get_world_size()), dim=1)",
        left,
    ]


def test_a_part_that_is_no_rank_s_own_has_no_such_lines(tmp_path: Path) -> None:
    finding = told(beside, first, tmp_path)
    assert finding is not None and "received" not in finding.paste


@pytest.mark.parametrize(("join", "pick"), [(beside, whole), (behind, whole)])
def test_rows_that_are_all_read_are_gathered(
    join: Callable[[Tensor], Tensor], pick: Callable[[Tensor, int], Tensor], tmp_path: Path
) -> None:
    assert told(join, pick, tmp_path) is None


@pytest.mark.parametrize(
    ("gathering", "picking"),
    [
        ("x = torch.cat(parts, dim=1)", "y = x[rank * n : (rank + 1) * n]"),  # gathered elsewhere
        ("x = torch.cat(dist_fn.all_gather(a), 1)", "y = f(x[rank * n : m], z[rank * n : m])"),  # two of them
        ("x = torch.cat(dist_fn.all_gather(a), 1)", "y = x.chunk(4)"),
        ("x = (", "y = x[rank]"),
    ],
)
def test_lines_that_do_not_say_it(gathering: str, picking: str) -> None:
    assert exchanged(gathering, picking, 7) == []


def test_a_group_is_kept() -> None:
    lines = exchanged("x = torch.cat(fn.all_gather(a, group=g), 1)", "y = x.chunk(n)[self.rank]", 7)
    assert lines == [
        "received = fn.all_to_all_single(torch.empty_like(a), a, group=g)  # its rows lie in the order of the ranks",
        "x = torch.cat(received.chunk(dist.get_world_size(g)), 1)",
        "y = x  # line 7, without the pick",
    ]
