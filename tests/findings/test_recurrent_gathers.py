"""NSX127: a sharded block that each forward calls several times, and gathers of its parameters that are needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_widened_messages import GATHER
from tests.ranks.test_rank_table import noted

CALLS, GATHER_US, COPY_US, BLOCK_US = 6, 400, 60, 300
COPY_OUT = "void at::native::split_with_sizes_copy_out_contiguous_no_cast_kernel<Args>(Args)"
SHARDED = {"kind": "fully_shard", "count": 3, "reshard_after_forward": True, "offload": False}


def gather(program: Lined) -> None:
    """Parameters of a unit, in line with the computation that waits for them."""
    program.host(2)
    begin = program.t
    program.launch(GATHER_US, GATHER)
    noted(program.main, "ncclAllGather", begin, program.t, comm=5, size=100_000_000)
    program.launch(COPY_US, COPY_OUT)


def forward(program: Lined, kind: str) -> None:
    with program.range("forward"), program.range("net:Net"):
        for unit in (
            ("prelude", *["core"] * CALLS, "coda") if kind != "layers" else [f"layers.{n}" for n in range(CALLS)]
        ):
            with program.range(f"net.{unit}:Block"):
                gather(program)
                program.launch(BLOCK_US)


def step(program: Lined, number: int, kind: str) -> None:
    if not number:
        noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
    for _ in range(CALLS if kind == "micro-batches" else 1):
        if kind == "micro-batches":
            with program.range("forward"), program.range("net:Net"), program.range("net.core:Block"):
                gather(program)
                program.launch(BLOCK_US)
        else:
            forward(program, kind)
        with program.range("backward"):
            program.launch(2 * BLOCK_US)
    with program.range("optimizer Adam"):
        program.launch(20)
    program.sync()


def found(folder: Path, kind: str = "", spare: int = 100) -> list[Finding]:
    settings = {
        "step": 1,
        "wrappers": [SHARDED] if kind != "whole" else [{"kind": "DDP"}],
        "backwards": CALLS if kind == "micro-batches" else 1,
        "optimizers": [{"elements": 10**9, "dtypes": {"float32": 1}}],
        "memory": {"total_bytes": 140 << 30, "reserved_peak_bytes": (140 - spare) << 30},
    }
    program = Lined({}, settings).run(lambda program, number: step(program, number, kind))
    return [f for f in program.found(folder, "NSX127") if f.evidence[0]["setting"] == "gathers for each call"]


def test_a_block_of_shared_weights(tmp_path: Path) -> None:
    (finding,) = found(tmp_path)
    assert finding.title == "net.core gathers its parameters again for each of its calls"
    assert (
        "net.core is called 6 times in each forward" in finding.detail
        and "10 gathers and copies per step" in finding.detail
    )
    assert finding.paste.startswith(
        "model.core.set_reshard_after_forward(False); model.core.set_reshard_after_backward(False)"
    )
    assert "model.core.reshard()  # behind each loss.backward()" in finding.paste
    assert finding.saving_ns_per_step == pytest.approx((CALLS - 1) * (GATHER_US + COPY_US) * 1000, rel=0.05)
    assert finding.saving.bound


@pytest.mark.parametrize("kind", ["layers", "micro-batches", "whole"])
def test_gathers_that_each_call_needs(kind: str, tmp_path: Path) -> None:
    assert not found(tmp_path, kind)


def test_a_card_that_is_full(tmp_path: Path) -> None:
    assert not found(tmp_path, spare=2)
