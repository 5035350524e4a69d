"""NSX127: layers of the program's own that normalize over all ranks by one operator after the other, and layers that only look like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_smaller_operators import operator
from tests.ranks.test_rank_table import KERNELS

LAYERS, PASSES, MEETS = 12, 8, 31
SOURCE = {20: "y = net(x)", MEETS: "vec = all_reduce(torch.cat([mean, meansqr])) / world"}


def step(program: Lined, cls: str, *, exchanges: bool, samples: int, layers: int) -> None:
    """Layers whose forward passes over the activations (40 us each), and exchanges statistics; a convolution before each."""
    with program.line(20), program.range("forward"), program.range("net:Net"):
        for i in range(layers):
            program.host(5)
            program.launch(300, "convolution")
            with program.range(f"net.{i}:{cls}"):
                if samples:
                    operator(program, "mean", 100 + i, [-1], f"[{samples}, 64, 56, 56], []", 40)
                for _ in range(PASSES):
                    program.host(2)
                    program.launch(40, "elementwise_kernel")
                if exchanges:
                    with program.line(MEETS, f"{cls}.forward"):
                        program.launch(10, KERNELS["ncclAllReduce"])
    with program.line(21), program.range("backward"):
        program.launch(500)


def told(folder: Path, cls: str, *, exchanges: bool = True, samples: int = 8, layers: int = LAYERS) -> list[Finding]:
    program = Lined(SOURCE)
    program.run(lambda p, n: step(p, cls, exchanges=exchanges, samples=samples, layers=layers))
    return [f for f in program.found(folder, "NSX127") if f.evidence[0]["setting"] == "norms by hand"]


@pytest.mark.parametrize("cls", ["DistBatchNorm2d", "NaiveSyncBatchNorm", "CrossReplicaBN", "SyncedNorm"])
@pytest.mark.parametrize(
    ("samples", "words"), [(8, "nn.SyncBatchNorm"), (0, "nn.SyncBatchNorm"), (32, "nn.BatchNorm2d")]
)
def test_layers_are_told_with_what_can_take_their_place(cls: str, samples: int, words: str, tmp_path: Path) -> None:
    (finding,) = told(tmp_path, cls, samples=samples)
    assert finding.where["line"] == MEETS and cls in str(finding.fix)
    assert finding.paste.splitlines()[0] == f"{words}(channels)  # in place of {cls}(channels)"
    # Two passes stay; the exchange goes where a rank's own samples are enough.
    passes = LAYERS * (PASSES + bool(samples) - 2) * 40_000 + LAYERS * 10_000 * (samples >= 16)
    assert finding.saving_ns_per_step == pytest.approx(passes, rel=0.1)


@pytest.mark.parametrize(
    ("cls", "exchanges", "layers"),
    [
        ("DistBatchNorm2d", False, LAYERS),  # alone, or it evaluates
        ("TensorParallelRMSNorm", True, LAYERS),  # needs the sums of its parts
        ("BatchNorm2d", True, LAYERS),  # torch's own, beside what something else sends
        ("SyncBatchNorm", True, LAYERS),  # fused
        ("DistBatchNorm2d", True, 2),
    ],
)
def test_other_layers(cls: str, exchanges: bool, layers: int, tmp_path: Path) -> None:
    assert not told(tmp_path, cls, exchanges=exchanges, layers=layers)
