"""NSX127: an embedding and a head that are left to the unit of a whole sharded network, and networks whose first unit is no larger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Finding
from tests.findings.lined import FILE
from tests.findings.test_reduced_twice import Job
from tests.findings.test_untrained_gathers import ordered
from tests.ranks.test_rank_table import noted

BLOCKS, BLOCK_BYTES, ROOT_BYTES = 8, 10_000_000, 100_000_000
SOURCE = {20: "loss = model(x)", 21: "loss.backward()"}
GATHER, SCATTER = "ncclAllGather", "ncclReduceScatter"
KERNELS = {GATHER: "ncclDevKernel_AllGather_RING_LL", SCATTER: "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"}


def sent(program: Job, name: str, size: int, us: float) -> None:
    """A message of so many bytes of this rank's part, on the stream of the gathers or of the reductions."""
    stream = 19 if name == GATHER else 20
    if name == SCATTER:
        ordered(program, 7, stream)
    begin = program.t
    program.launch(us, KERNELS[name], stream=stream)
    noted(program.main, name, begin, program.t, comm=5, size=size)


def step(program: Job, number: int, *, root: int = ROOT_BYTES, head: int = 0, blocks: int = BLOCKS) -> None:
    """A forward that gathers the root first, then each block while the one before computes; a backward that reduces the root last."""
    if not number:
        noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
    us = root / ROOT_BYTES * 2000
    with program.line(20), program.range("forward Net"), program.range("net:Net"):
        sent(program, GATHER, root, us)
        ordered(program, 19, 7)
        with program.range("net.tok:Embedding"):
            program.launch(20)
        for n in range(blocks):
            with program.range(f"net.layers.{n}:Layer"):
                sent(program, GATHER, BLOCK_BYTES, 200)
                program.launch(600)
        if head:
            sent(program, GATHER, head, us)
        with program.range("net.out:Linear"):
            program.launch(300)
    with program.line(21), program.range("backward"):
        for _ in range(blocks):
            program.launch(1200)
            sent(program, SCATTER, 2 * BLOCK_BYTES, 200)
        sent(program, SCATTER, 2 * root, us)
    with program.range("optimizer AdamW"):
        ordered(program, 20, 7)
        program.launch(100)
    program.sync()


def told(folder: Path, *, tied: bool | None = False, kind: str = "fully_shard", **how: Any) -> list[Finding]:
    settings = {
        "wrappers": [{"kind": kind, "count": BLOCKS + 1}] if kind else [],
        "networks": [{"class": "Net", "dtypes": {"float32": 1 << 29}, "tied": tied}],
        "places": {"FSDP": f"{FILE}:9"},
    }
    program = Job(SOURCE, settings).run(lambda p, n: step(p, n, **how))  # type: ignore[arg-type]
    return [f for f in program.found(folder, "NSX127") if f.evidence[0]["setting"] == "large root unit"]


@pytest.mark.parametrize("kind", ["fully_shard", "FSDP"])
def test_embedding_and_head_are_units_of_their_own(kind: str, tmp_path: Path) -> None:
    (finding,) = told(tmp_path, kind=kind)
    assert "190.7 MiB, 10 times as much" in finding.detail
    assert (finding.where["file"], finding.where["line"]) == (FILE, 9)
    named = (
        ("model.net.tok)", "model.net.out,")
        if kind == "fully_shard"
        else ("{Layer, torch.nn.Embedding}", "model.net.out =")
    )
    assert all(each in finding.paste for each in named)
    # Half of 4 ms that nothing hides, if it is hidden: it slows what it runs beside.
    assert 0.2 * 2_000_000 < (finding.saving.likely_ns or 0) < 2_000_000


@pytest.mark.parametrize(
    "how",
    [
        {"root": BLOCK_BYTES},  # a norm and a small head
        {"root": ROOT_BYTES // 2, "head": ROOT_BYTES // 2},  # units of their own
        {"tied": True},
        {"tied": None},  # not known
        {"blocks": 2},  # few units
        {"kind": ""},  # what layers exchange
    ],
)
def test_units_that_are_alike_or_cannot_be_parted(how: dict[str, Any], tmp_path: Path) -> None:
    assert not told(tmp_path, **how)
