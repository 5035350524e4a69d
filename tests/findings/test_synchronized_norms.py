"""NSX127: layers that normalize over all ranks of a host-bound job, and those that normalize each rank's own samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.findings import said_of
from tests.findings.lined import Lined
from tests.findings.test_smaller_operators import operator

GATHER = "ncclDevKernel_AllGather_RING_LL"
LAYERS, SMALL, HOST_US = 20, 6, 15


def step(program: Lined, cls: str, *, exchanges: bool, samples: int = 0) -> None:
    """Layers of two kernels on the activations (40 us each), with small ones for the statistics, and 15 us of Python before each launch."""
    with program.line(20), program.range("forward"), program.range("net:Net"):
        for i in range(LAYERS):
            with program.range(f"net.bn{i}:{cls}"):
                if samples:
                    operator(program, "batch_norm_stats", 100 + i, [-1, -1], f"[{samples}, 64, 56, 56], []")
                for kernel_us in (40, *[2] * SMALL, 40):
                    program.host(HOST_US)
                    program.launch(kernel_us)
                if exchanges:
                    program.host(HOST_US)
                    program.launch(10, GATHER)
    with program.line(21), program.range("backward"):
        program.launch(500)


def test_what_synchronized_layers_cost_is_their_collectives_and_their_launches(tmp_path: Path) -> None:
    program = Lined({20: "y = net(x)"}).run(lambda p, n: step(p, "SyncBatchNorm", exchanges=True))
    told = {f.evidence[0]["setting"]: f for f in program.found(tmp_path, "NSX127")}
    finding = told["SyncBatchNorm"]
    assert [r.name for r in finding.remedies] == ["own-statistics"]
    assert (
        f"{LAYERS} layers of SyncBatchNorm" in finding.detail
        and f"launch {LAYERS * (SMALL + 1)} kernels" in finding.detail
    )
    # Of each layer two launches stay, with the host code before them: 7 of 9 go.
    gone = LAYERS * (SMALL + 1) * HOST_US * 1_000
    assert gone * 0.5 < (finding.saving_ns_per_step or 0) <= gone * 1.5


@pytest.mark.parametrize(
    ("cls", "exchanges"), [("BatchNorm2d", False), ("SyncBatchNorm", False), ("BatchNorm2d", True)]
)
def test_layers_that_exchange_nothing_are_none(cls: str, exchanges: bool, tmp_path: Path) -> None:
    """A SyncBatchNorm that evaluates, or is alone, sends nothing."""
    program = Lined({20: "y = net(x)"}).run(lambda p, n: step(p, cls, exchanges=exchanges))
    assert "SyncBatchNorm" not in {f.evidence[0]["setting"] for f in program.found(tmp_path, "NSX127")}


@pytest.mark.parametrize(("samples", "told"), [(2, False), (96, True)])
def test_few_samples_of_a_rank_need_the_statistics_of_all(samples: int, told: bool, tmp_path: Path) -> None:
    program = Lined({20: "y = net(x)"}).run(lambda p, n: step(p, "SyncBatchNorm", exchanges=True, samples=samples))
    advised = {r.name for f in said_of(program.write(tmp_path)) if f.verdict == "found" for r in f.remedies}
    assert ("own-statistics" in advised) == told
