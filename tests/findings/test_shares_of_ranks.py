"""NSX111: ranks with unequal work in programs with a loader, and in those that share their data themselves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from nsysx import pipeline
from nsysx.findings._case import Case, Fix
from nsysx.findings._shares_of_ranks import without_sampler
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined

SHARE = 12
TAKES_SHARE = [
    "own = rows[rank * n:(rank + 1) * n]",
    "return image[self.rank * n : (self.rank + 1) * n]",
    "own = files[dist.get_rank()::world]",
    "x = tokens.chunk(world)[rank]",
    "for i in range(rank, len(data), world):",
    "own = x.narrow(0, rank * n, n)",
]
TAKES_NONE = [
    "if rank == 0: print(loss[:5])",
    "device = devices[rank]",
    "rows = frank[:10]",
    "x = data[:n]",
    "loss = ranking(scores[:, 1:])",
]


def advised(folder: Path, text: str, loaders: object, remedy: str = "equal-work") -> Finding:
    def body(program: Lined, number: int) -> None:
        with program.line(SHARE), program.range("forward"), program.range("net:Net"):
            program.launch(500)
        program.sync()

    program = Lined({SHARE: text}, {"loaders": loaders}).run(body)
    program.summary(folder)  # writes the report
    profile = pipeline.gather(folder / "r.sqlite", pipeline.ReadingOptions())
    late = Finding("NSX111", "straggler", verdict="found", title="", detail="", where={"near": "rank 1"}, fix="")
    return without_sampler(cast(Case, SimpleNamespace(profile=profile)), Fix.by_name(remedy).into(late))


@pytest.mark.parametrize("text", TAKES_SHARE)
def test_the_line_that_takes_a_rank_s_share(text: str, tmp_path: Path) -> None:
    told = advised(tmp_path, text, [])
    assert [way.name for way in told.remedies] == ["mixed-shares"] and "DistributedSampler" not in told.paste
    assert told.where == {"near": "rank 1", "file": FILE, "line": SHARE}


@pytest.mark.parametrize("text", TAKES_NONE)
def test_where_no_line_takes_a_share_that_is_said(text: str, tmp_path: Path) -> None:
    told = advised(tmp_path, text, [])
    assert [way.name for way in told.remedies] == ["mixed-shares"] and told.where == {"near": "rank 1"}
    assert "is not among those that the X-ray noted" in told.detail


@pytest.mark.parametrize(
    ("loaders", "remedy"),
    [([{"workers": 4, "sampler": "DistributedSampler"}], "equal-work"), (None, "equal-work"), ([], "equal-attention")],
)
def test_advice_stays_where_a_loader_is_or_may_be(loaders: object, remedy: str, tmp_path: Path) -> None:
    told = advised(tmp_path, TAKES_SHARE[0], loaders, remedy)
    assert [way.name for way in told.remedies] == [remedy] and told.where == {"near": "rank 1"}
