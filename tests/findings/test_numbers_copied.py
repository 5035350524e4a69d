"""Single numbers that a program copies to the GPU one by one, each with a wait, and what is not that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.findings import Program, said_of


@pytest.mark.parametrize(
    ("copies", "size", "told"), [(100, 4, True), (100, 4096, False), (4, 4, False)], ids=["numbers", "arrays", "few"]
)
def test_constants_are_made_once(tmp_path: Path, copies: int, size: int, told: bool) -> None:
    def body(program: Program, number: int) -> None:
        for i in range(100):
            program.host(20)
            if i < copies:
                program.copy(1, "HtoD", bytes=size)
                program.sync("cudaStreamSynchronize_v3020")
            program.launch(4)

    findings = said_of(Program().steps(body).write(tmp_path))
    ways = {f.code: [way.name for way in f.remedies] for f in findings if f.verdict == "found"}
    assert ("constants-once" in ways.get("NSX102", [])) is told
    assert ("constants-once" in ways.get("NSX105", [])) is told
