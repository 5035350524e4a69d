"""NSX127: a stage of ZeRO that reduces in each micro-step, and reductions that backward waits for; and engines that do neither."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Finding
from tests.findings import Program
from tests.findings.test_nsx127_costly_settings import CLEAN, alone, changed

REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
STAGE, OVERLAP = "ZeRO stage in micro-steps", "ZeRO overlap_comm"
ROOM = {"reserved_peak_bytes": 20 << 30, "total_bytes": 80 << 30}


def engine(**options: Any) -> dict[str, Any]:
    return {
        "kind": "DeepSpeed",
        "count": 1,
        "stage": 2,
        "micro_steps": 4,
        "overlap_comm": True,
        "reduce_bucket_size": 5_000_000,
        "elements": 1 << 30,
        "trained_elements": 1 << 30,
        **options,
    }


def told(
    folder: Path,
    options: dict[str, Any],
    *,
    micro: int = 4,
    each: bool = True,
    beside: bool = False,
    behind: bool = False,
    memory: Any = ROOM,
) -> dict[str, Finding]:
    """Return what is said of micro-steps whose backward has four parts, each with a reduction; ``each``: not the last one's alone."""

    def body(program: Program, number: int) -> None:
        for n in range(micro):
            with program.range("forward"), program.range("net:Net"):
                program.launch(300)
            with program.range("backward"):
                for _ in range(4):
                    program.launch(300)
                    if (each or n == micro - 1) and not behind:
                        program.launch(100, REDUCE, stream=20 if beside else 7)
            for _ in range(4 if behind else 0):
                program.launch(100, REDUCE)
        with program.range("optimizer AdamW"):
            program.launch(50)

    settings = changed(CLEAN, {"wrappers": [options], "backwards": micro, "memory": memory})
    found = [f for f in alone(folder, settings, body) if f.verdict == "found"]
    return {str(f.evidence[0]["setting"]): f for f in found}


def test_stage_2_reduces_in_each_micro_step(tmp_path: Path) -> None:
    finding = told(tmp_path, engine())[STAGE]
    assert "in each of the 4 micro-steps" in finding.detail and "4 collectives in each" in finding.detail
    assert '"stage": 1' in finding.paste and [r.name for r in finding.remedies] == ["zero-stage-1"]
    assert (finding.saving_ns_per_step or 0) > 3 * 4 * 90_000 and finding.saving.bound


@pytest.mark.parametrize(
    ("options", "how"),
    [
        (engine(stage=1), {"each": False}),
        (engine(stage=3), {}),  # its parameters are parted, too
        (engine(micro_steps=1), {"micro": 1}),
        (engine(), {"memory": {"reserved_peak_bytes": 75 << 30, "total_bytes": 80 << 30}}),  # no room
        ({"kind": "DDP", "count": 1}, {}),
    ],
)
def test_other_stages_and_steps_of_one_backward_do_not(
    options: dict[str, Any], how: dict[str, Any], tmp_path: Path
) -> None:
    assert STAGE not in told(tmp_path, options, **how)


@pytest.mark.parametrize(("stage", "behind"), [(1, True), (2, False)])
def test_reductions_in_line_with_backward(stage: int, behind: bool, tmp_path: Path) -> None:
    finding = told(tmp_path, engine(stage=stage, micro_steps=1, overlap_comm=False), micro=1, behind=behind)[OVERLAP]
    assert "each of 4 reductions of a step, of 5,000,000 numbers" in finding.detail
    assert '"overlap_comm": true' in finding.paste
    assert 0.2 * 300_000 < (finding.saving.likely_ns or 0) < 300_000


@pytest.mark.parametrize(
    ("options", "beside"),
    [
        (engine(overlap_comm=True, micro_steps=1), False),
        (engine(overlap_comm=None, micro_steps=1), False),  # not known
        (engine(overlap_comm=False, micro_steps=1, stage=3), False),
        (engine(overlap_comm=False, micro_steps=1), True),  # nothing waits for them
    ],
)
def test_reductions_that_overlap_are_left(options: dict[str, Any], beside: bool, tmp_path: Path) -> None:
    assert OVERLAP not in told(tmp_path, options, micro=1, beside=beside)
