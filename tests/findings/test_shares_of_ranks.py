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
from tests.findings.test_smaller_operators import operator

SHARE, LOGS, BATCH, CALL = 12, 20, 21, 22
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

    return advised_of(folder, Lined({SHARE: text}, {"loaders": loaders}).run(body), remedy)


def advised_of(folder: Path, program: Lined, remedy: str = "equal-work") -> Finding:
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


@pytest.mark.parametrize(("copies", "line"), [(True, BATCH), (False, CALL)])
def test_the_line_from_which_the_batch_comes(copies: bool, line: int, tmp_path: Path) -> None:
    """The work behind the optimizer, and that of the network, are of other lines; without a copy the network's call is named."""

    def body(program: Lined, number: int) -> None:
        if copies:
            with program.line(LOGS):
                program.launch(300)
            with program.line(BATCH):
                program.launch(10)
        with program.line(CALL), program.range("forward"), program.range("net:Net"):
            operator(program, "linear", 1000 * number + 10, [-1, -1], "[64, 64], [64, 64]", 500)
        with program.line(LOGS), program.range("optimizer SGD"):
            program.launch(100)

    told = advised_of(tmp_path, Lined({CALL: "y = net(x)"}, {"loaders": []}).run(body))
    assert told.where == {"near": "rank 1", "file": FILE, "line": line}
    assert f"its batch comes from train.py:{line}." in told.detail


@pytest.mark.parametrize(
    ("loaders", "remedy"),
    [([{"workers": 4, "sampler": "DistributedSampler"}], "equal-work"), (None, "equal-work"), ([], "equal-attention")],
)
def test_advice_stays_where_a_loader_is_or_may_be(loaders: object, remedy: str, tmp_path: Path) -> None:
    told = advised(tmp_path, TAKES_SHARE[0], loaders, remedy)
    assert [way.name for way in told.remedies] == [remedy] and told.where == {"near": "rank 1"}
