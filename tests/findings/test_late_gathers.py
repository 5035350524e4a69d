"""NSX110: units of a sharded model whose gathers are launched late, because the host waits in each block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.findings import nsx110_exposed_comm
from nsysx.findings._divided_comm import EARLIER
from nsysx.model import Summary
from tests.findings.lined import Lined
from tests.findings.test_untrained_gathers import GATHER, SCATTER, settings, unit

SOURCE = {
    15: "x, halt = block(x, active)",
    16: "active = (halt < 0.99).nonzero().squeeze(-1)",
    20: "loss = model(x).mean()",
    21: "loss.backward()",
}
BLOCKS = 8


def step(program: Lined, number: int, *, waits: bool = True, late_backward: bool = False) -> None:
    """Blocks whose gathers (400 us) are launched where the host comes to them; ``waits``: for the end of each block."""
    with program.line(20), program.range("forward Net"), program.range("net:Net"):
        for n in range(BLOCKS):
            with program.line(15, "Net.forward"):
                unit(program, n, root="net", kernel_us=800, gathers=not late_backward, gather_us=400)
            with program.line(16, "Net.forward"):
                program.launch(10, "nonzero")
                if waits:
                    program.copy(2, "DtoH", bytes=8)
                    program.sync()
    with program.line(21), program.range("backward"):
        for _ in range(BLOCKS):
            program.launch(400, GATHER, stream=7 if late_backward else 19)
            program.launch(1600)
            program.launch(300, SCATTER, stream=20)
    with program.range("optimizer"):
        program.launch(100, "adam")
    program.sync()


def told(folder: Path, ahead: bool = False, **how: Any) -> Summary:
    noted = {**settings(), "given_again": [], "backwards": 1}
    noted["wrappers"][0] |= {"reshard_after_forward": True, "forward_prefetch": ahead}
    return Lined(SOURCE, noted).run(lambda p, n: step(p, n, **how)).summary(folder)


@pytest.fixture(autouse=True)
def all_ranks_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one rank alone be told what two whose collectives are transfer are told."""
    monkeypatch.setattr(nsx110_exposed_comm, "_ALONE", EARLIER.text)


def test_gathers_behind_a_wait_are_launched_before_it(tmp_path: Path) -> None:
    summary = told(tmp_path)
    do = summary.answer.do[0]
    assert do.text.startswith("Launch the gather of the next unit before the forward of this one")
    finding = next(f for f in summary.findings or () if f.code == "NSX110")
    assert (
        "set_modules_to_forward_prefetch([following])" in finding.paste
        and "begin as soon as they are launched" in finding.detail
    )


@pytest.mark.parametrize("how", [{"waits": False}, {"ahead": True}, {"late_backward": True}], ids=str)
def test_gathers_that_are_not_late_in_forward(how: dict[str, Any], tmp_path: Path) -> None:
    finding = next(f for f in told(tmp_path, **how).findings or () if f.code == "NSX110")
    assert [r.name for r in finding.remedies] != ["forward-prefetch"]
