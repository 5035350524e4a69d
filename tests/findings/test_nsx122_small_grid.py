"""NSX122: kernels of too few blocks for the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.findings import Program, empty, healthy


def small(
    us: float = 330, blocks: int = 16, *, stream: int = 7, beside: bool = False, kernel: str = "reduce"
) -> Callable[[Program, int], None]:
    """Return a step of 4 ms of full kernels and one of ``blocks`` blocks; ``beside``: while another one runs."""

    def body(program: Program, number: int) -> None:
        healthy(program, number)
        program.sync()
        with program.range("norm:LayerNorm"):
            if beside:
                program.launch(2 * us, "other", stream=13)
                program.host(20)
            program.launch(us, kernel, stream=stream)
            program.report.rows["CUPTI_ACTIVITY_KIND_KERNEL"][-1]["gridX"] = blocks
        program.sync()

    return body


def test_a_kernel_of_few_blocks_is_found_with_its_bound(tmp_path: Path) -> None:
    finding = Program().steps(small()).finding(tmp_path, "NSX122")
    assert finding.verdict == "found" and finding.saving.bound
    assert finding.cost_ns_per_step == pytest.approx(330_000 * (1 - 16 / 132), rel=0.01)
    assert finding.saving_ns_per_step == pytest.approx(330_000 * (1 - 16 / 132), rel=0.02)
    assert "in norm runs 16 blocks on 132 SMs" in finding.detail
    assert finding.where == {"module": "norm"}
    assert finding.evidence[0]["blocks"] == 16


@pytest.mark.parametrize("blocks", [106, 132, 1000])
def test_a_kernel_of_enough_blocks_is_clear(blocks: int, tmp_path: Path) -> None:
    assert Program().steps(small(blocks=blocks)).finding(tmp_path, "NSX122").verdict == "clear"


def test_short_kernels_take_the_time_of_their_start(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        healthy(program, number)
        for _ in range(60):
            program.launch(9, "reduce")
            program.report.rows["CUPTI_ACTIVITY_KIND_KERNEL"][-1]["gridX"] = 1

    assert Program().steps(body).finding(tmp_path, "NSX122").verdict == "clear"


def test_what_other_kernels_use_meanwhile_is_not_lost(tmp_path: Path) -> None:
    assert Program().steps(small(stream=9, beside=True)).finding(tmp_path, "NSX122").verdict == "clear"


def test_communication_is_meant_to_be_small(tmp_path: Path) -> None:
    program = Program().steps(small())
    for row in program.report.rows["StringIds"]:
        if row["value"] == "reduce":
            row["value"] = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    assert program.finding(tmp_path, "NSX122").verdict == "clear"


def test_a_device_that_is_not_described_cannot_be_told(tmp_path: Path) -> None:
    program = Program().steps(small())
    program.report.drop("TARGET_INFO_GPU")
    assert program.finding(tmp_path, "NSX122").verdict == "cannot_tell"
    assert empty().finding(tmp_path, "NSX122").verdict == "cannot_tell"


@pytest.mark.parametrize(
    ("kernel", "compiled"), [("reduce", True), ("void kernel<potrf_params_<float, 0, 256>>(T1)", False)]
)
def test_calls_of_libraries_get_more_blocks_by_larger_batches_alone(
    tmp_path: Path, kernel: str, compiled: bool
) -> None:
    finding = Program().steps(small(kernel=kernel)).finding(tmp_path, "NSX122")
    assert ("kernel that splits" in finding.fix) is compiled and "a larger batch" in finding.fix
