"""NSX127: a block that a forward calls again and again as a unit of a sharded model, and units that are called as often as all."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_untrained_gathers import GATHER, SCATTER, settings, unit

SOURCE = {
    12: "for _ in range(12):",
    13: "h = self.refine(h, context)",
    20: "loss = model(x).mean()",
    21: "loss.backward()",
}


def step(program: Lined, number: int, *, calls: int = 12, micro: int = 1, whole: bool = False) -> None:
    """A forward of two encoders and so many calls of one block; ``whole``: the block belongs to the model's own unit."""
    for _ in range(micro):
        with program.line(20), program.range("forward Net"), program.range("net:Net"):
            for n in range(2):
                unit(program, n, root="net", kernel_us=300, gathers=True, gather_us=200)
            for _ in range(calls):
                with program.line(12), program.line(13):
                    unit(program, 2, root="net", kernel_us=300, gathers=not whole, gather_us=600)
        with program.line(21), program.range("backward"):
            for _ in range(2 + (1 if whole else calls)):
                program.launch(200, GATHER, stream=19)
                program.launch(600)
                program.launch(200, SCATTER, stream=20)
    program.sync()


def told(folder: Path, *, kind: str = "fully_shard", **how: object) -> list[Finding]:
    program = Lined(SOURCE, settings(kind=kind)).run(lambda p, n: step(p, n, **how))  # type: ignore[arg-type]
    return [f for f in program.found(folder, "NSX127") if f.evidence[0]["setting"] == "unit called again"]


def test_a_block_that_refines_is_no_unit_of_its_own(tmp_path: Path) -> None:
    (finding,) = told(tmp_path)
    assert [way.name for way in finding.remedies] == ["unit-of-root"]
    assert "net.blocks.2 is a unit of its own and called 12 times in each forward" in finding.detail
    # 11 of 12 gathers of the forward go; of each the block hides half.
    assert 11 * 250_000 < (finding.saving.likely_ns or 0) < 11 * 600_000


@pytest.mark.parametrize(
    "how",
    [{"calls": 1}, {"calls": 2}, {"calls": 1, "micro": 8}, {"whole": True}, {"kind": ""}],
    ids=["once", "twice", "micro-batches", "part of the model's unit", "layers that are split"],
)
def test_units_that_are_called_as_often_as_the_model_are_left(how: dict[str, object], tmp_path: Path) -> None:
    assert not told(tmp_path, **how)  # type: ignore[arg-type]
