"""What a launch says about a kernel: blocks against SMs, waves, the last wave, occupancy, FP32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.analyses import reason, rows
from tests.builder import Report
from tests.findings import Program


def program(*kernels: dict[str, Any], **gpu: Any) -> Report:
    """Six steps in which each of these kernels runs once for its ``us`` (name, us, and columns of its row)."""
    found = Program()
    if gpu:
        found.report.rows["TARGET_INFO_GPU"][0].update(gpu)

    def body(one: Program, number: int) -> None:
        for kernel in kernels:
            columns = {k: v for k, v in kernel.items() if k not in ("name", "us")}
            one.launch(kernel["us"], kernel["name"])
            one.report.rows["CUPTI_ACTIVITY_KIND_KERNEL"][-1].update(columns)

    return found.steps(body).report


def test_waves_tail_and_occupancy(tmp_path: Path) -> None:
    # 37 registers: 12 blocks of 128 threads on an SM, 75 %. 132 SMs hold 1,584 blocks.
    found = program(
        {"name": "tail", "us": 100, "gridX": 1585, "registersPerThread": 37},
        {"name": "full", "us": 90, "gridX": 3168, "registersPerThread": 37},
        {"name": "once", "us": 80, "gridX": 1000, "registersPerThread": 37},
        {"name": "small", "us": 70, "gridX": 4, "gridY": 2, "blockX": 1024},
        {"name": "none fits", "us": 60, "blockX": 1024, "registersPerThread": 255},
    )
    tail, full, once, small, none = rows(found, tmp_path, "kernel_limits")
    assert (tail["grid"], tail["block"], tail["blocks"], tail["sm_count"]) == ("1585x1x1", "128x1x1", 1585, 132)
    assert tail["waves"] == pytest.approx(1585 / 1584)
    assert tail["tail_share"] == pytest.approx(1 - 1585 / 3168)
    assert (tail["occupancy"], tail["occupancy_limit"], tail["limit"]) == (0.75, "registers", "last wave")
    assert (full["waves"], full["tail_share"], full["limit"]) == (2.0, 0.0, None)
    assert (once["tail_share"], once["limit"]) == (None, None), "a single wave has no other to wait for"
    assert (small["blocks"], small["limit"], small["occupancy"]) == (8, "fewer blocks than SMs", 1.0)
    assert (none["waves"], none["occupancy"], none["occupancy_limit"]) == (None, None, None)


def test_shares_and_totals_are_all_kernel_time(tmp_path: Path) -> None:
    found = program(*({"name": f"k{i}", "us": 10 + i} for i in range(70)))
    table = rows(found, tmp_path, "kernel_limits")
    kernels = rows(found, tmp_path, "kernel_families")
    assert len(table) == 61 and table[-1]["name"] == "(10 other kernels and shapes)"
    assert sum(r["share"] for r in table) == pytest.approx(1.0)
    assert sum(r["total_ns"] for r in table) == sum(r["total_ns"] for r in kernels)
    assert sum(r["count"] for r in table) == sum(r["count"] for r in kernels)


def test_a_kernel_of_many_shapes_is_not_hidden_in_the_rest(tmp_path: Path) -> None:
    many = [{"name": "void ns::many<int>(int)", "us": 10, "gridX": 1 + i} for i in range(90)]
    found = program(*({"name": f"k{i}", "us": 12} for i in range(60)), *many, {"name": "rare", "us": 1})
    table = rows(found, tmp_path, "kernel_limits")
    assert [r["name"] for r in table[60:]] == ["void ns::many<int>(int)", "(1 other kernels and shapes)"]
    [of_many] = [r for r in table if "many" in r["name"]]
    assert (of_many["share"], of_many["grid"]) == (pytest.approx(900 / 1621, rel=1e-3), None)
    assert sum(r["total_ns"] for r in table) == sum(r["total_ns"] for r in rows(found, tmp_path, "kernel_families"))


def test_one_kernel_in_two_shapes_is_two_rows(tmp_path: Path) -> None:
    found = program({"name": "k", "us": 50, "gridX": 264}, {"name": "k", "us": 20, "gridX": 8})
    assert [(r["blocks"], r["limit"]) for r in rows(found, tmp_path, "kernel_limits")] == [
        (264, None),
        (8, "fewer blocks than SMs"),
    ]


def test_products_in_fp32_are_told_where_the_device_has_tensor_cores(tmp_path: Path) -> None:
    sgemm = {"name": "ampere_sgemm_128x64_nn", "us": 100}
    (row,) = rows(program(sgemm), tmp_path, "kernel_limits")
    assert (row["number_format"], row["limit"]) == ("fp32", "FP32 beside tensor cores")
    (row,) = rows(program(sgemm, computeMajor=6, computeMinor=1, name="NVIDIA P40"), tmp_path, "kernel_limits")
    assert (row["number_format"], row["limit"]) == ("fp32", None)


def test_what_the_report_does_not_describe_is_null(tmp_path: Path) -> None:
    found = program({"name": "k", "us": 100, "gridX": 8}, maxRegistersPerSm=None)
    (row,) = rows(found, tmp_path, "kernel_limits")
    assert (row["waves"], row["occupancy"], row["limit"]) == (None, None, "fewer blocks than SMs")
    found.drop("TARGET_INFO_GPU")
    (row,) = rows(found, tmp_path, "kernel_limits")
    assert (row["sm_count"], row["waves"], row["limit"], row["blocks"]) == (None, None, None, 8)
    found.drop("CUPTI_ACTIVITY_KIND_KERNEL", "registersPerThread")
    (row,) = rows(found, tmp_path, "kernel_limits")
    assert (row["blocks"], row["grid"], row["occupancy"]) == (None, None, None)
    assert row["total_ns"] == 100_000 * row["count"] > 0
    found.drop("CUPTI_ACTIVITY_KIND_KERNEL")
    assert "no kernel" in reason(found, tmp_path, "kernel_limits")


@pytest.mark.parametrize("value", [-1, 0, 1 << 60])
def test_limits_that_no_device_has_are_not_believed(value: int, tmp_path: Path) -> None:
    found = program({"name": "k", "us": 100}, maxRegistersPerSm=value, smCount=value)
    (row,) = rows(found, tmp_path, "kernel_limits")
    assert (row["occupancy"], row["sm_count"], row["limit"]) == (None, None, None)
