"""Calls that are made in long steps alone, of which no X-ray step has any: the line that the probe saw in such steps, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings import said_of
from tests.findings.lined import FILE, Lined, forward

PUBLISH = 40
NOTED = {
    "steps": 2,
    "samples": 20,
    "every_ns": 10_000_000,
    "places": [[FILE, PUBLISH, "publish", 18, False]],
    "entries": [],
}


def told(folder: Path, text: str, *, noted: bool = True, each: bool = False) -> list[Finding]:
    """Return what is found of a program that copies weights to the host, and back, in each fourth step; ``each``: in every plain one."""

    def body(program: Lined, number: int) -> None:
        forward(program)
        program.sync()
        if (each or number % 4 == 0) and program.noted is None:
            for _ in range(20):
                program.copy(100, "DtoH", bytes=1 << 18)
                program.copy(100, "HtoD", bytes=1 << 18)
            program.host(5_000)

    program = Lined({20: "y = net(x)", PUBLISH: text})
    if noted:
        program.probe["long_steps"] = NOTED
    found = (
        f
        for f in said_of(program.run(body, 16).write(folder))
        if f.verdict == "found" and f.code in ("NSX101", "NSX105")
    )
    return [f for f in found if "cudaStreamSynchronize" not in f.title]  # each step waits at its end


@pytest.mark.parametrize(
    ("text", "sent"), [("dist.broadcast_object_list(box, src=0)", True), ("publish(net.state_dict())", False)]
)
def test_calls_of_long_steps_have_the_line_that_was_seen_there(tmp_path: Path, text: str, sent: bool) -> None:
    found = told(tmp_path, text)
    assert found
    for finding in found:
        assert (finding.where["file"], finding.where["line"]) == (FILE, PUBLISH)
        assert ("tensors-sent" in [way.name for way in finding.remedies]) == sent


@pytest.mark.parametrize("kind", [{"noted": False}, {"each": True}], ids=str)
def test_calls_of_unknown_lines_have_none_of_a_line_that_does_other_work(tmp_path: Path, kind: dict[str, bool]) -> None:
    found = told(tmp_path, "dist.broadcast_object_list(box, src=0)", **kind)
    assert found and all(not finding.where.get("file") for finding in found)
