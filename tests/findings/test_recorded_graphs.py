"""CUDA graphs that steps record for shapes that are new to them; those that are only launched, or recorded once, are none."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from nsysx.model import Finding, Summary
from tests.findings.lined import Lined

CALL = 15
SOURCE = {
    14: "x = batch['source'].to(device)",
    CALL: "loss = step_fn(x, y)",
    21: "loss.backward()",
    22: "total += loss.item()",
}


def recording(folder: Path, steps: Collection[int], *, host_ms: int = 150) -> Summary:
    """90 ms of kernels; some steps record a graph first, which takes 11 ms and what Python needs for it."""

    def body(program: Lined, number: int) -> None:
        with program.line(14):
            program.copy(50, pageable=False)
        with program.line(CALL), program.range("forward"), program.range("net:Net"):
            program.host(200)
            if number in steps:
                program.sync()
                program.call("cudaStreamBeginCapture_v10000", 20)
                program.host(1000 * host_ms)
                program.call("cudaStreamEndCapture_v10000", 2_000)
                program.call("cudaGraphInstantiateWithFlags_v11040", 9_000)
            for _ in range(30):
                program.launch(1_000)
        with program.line(21), program.range("backward"):
            for _ in range(30):
                program.launch(2_000)
        with program.line(22):
            program.sync()

    return Lined(SOURCE).run(body, 12).summary(folder)


def told(summary: Summary) -> list[Finding]:
    return [f for f in summary.findings or () if [way.name for way in f.remedies] == ["graphs-for-few-shapes"]]


def test_graphs_for_new_shapes_are_recorded_in_a_third_of_the_steps(tmp_path: Path) -> None:
    summary = recording(tmp_path, {1, 4, 7, 9, 12})
    (found,) = told(summary)
    assert summary.answer is not None
    do = summary.answer.do[0]
    assert (do.code, do.where["line"], do.paste) == ("NSX123", CALL, found.paste)
    assert found.title.startswith("3 of 10 steps record CUDA graphs") and "masked" in found.condition
    assert found.saving_ns_per_step == pytest.approx(3 / 10 * 161_500_000, rel=0.02)


def test_all_steps_record_one(tmp_path: Path) -> None:
    (found,) = told(recording(tmp_path, range(20)))
    assert found.saving_ns_per_step == pytest.approx(152_000_000, rel=0.02)


@pytest.mark.parametrize(("steps", "host_ms"), [((), 150), ((4,), 150), ((1, 4, 7), 1)])
def test_none_one_and_short_ones_are_no_fault(steps: Collection[int], host_ms: int, tmp_path: Path) -> None:
    assert not told(recording(tmp_path, steps, host_ms=host_ms))
