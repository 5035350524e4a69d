"""NSX128: a kernel of the program's own that uses neither the memory nor the tensor cores."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.analyses.helpers import limits_of_work
from tests.analyses import rows
from tests.analyses.test_gpu_metrics import NAMES, report, true, working
from tests.findings.test_nsx124_memory_bound import finding

MS = 1_000_000


def test_a_kernel_far_from_both_limits_is_found_with_what_could_go(tmp_path: Path) -> None:
    far = finding(report(working(99, 2, 5, 5)), tmp_path, "NSX128")
    assert far.verdict == "found"
    assert far.title.startswith("The kernel my_gemm takes 2.00 ms per step at 1") and far.title.endswith(
        "% of the memory bandwidth"
    )
    assert far.cost_ns_per_step == 2 * MS
    assert "the memory is used to 10.0 %, and its SMs issue in 30 % of the cycles" in far.detail
    # At most: 2 ms at a tenth of the bandwidth, of which copies reach nine tenths.
    assert far.saving_ns_per_step == pytest.approx(1.79 * MS, rel=0.03)


def test_kernels_near_a_limit_are_clear_and_unsampled_ones_cannot_be_told(tmp_path: Path) -> None:
    assert finding(report(true), tmp_path, "NSX128").verdict == "clear"
    open_ = finding(report(None), tmp_path, "NSX128")
    assert (open_.verdict, open_.fix) == ("cannot_tell", "nsysx run --gpu-metrics -- CMD")


def test_kernels_of_libraries_are_nobodys_to_rewrite(tmp_path: Path) -> None:
    given = report(working(99, 2, 5, 5))
    names = [row for row in given.rows["StringIds"] if row["value"] in ("my_gemm", "copy_kernel")]
    for row in names:
        row["value"] = f"void at::native::{row['value']}<float>(T1)"
    assert len(names) == 2 and finding(given, tmp_path, "NSX128").verdict == "clear"


def test_the_roofline_has_the_limits_of_the_counters_where_there_are_no_sizes(tmp_path: Path) -> None:
    table = rows(report(working(99, 2, 15, 15)), tmp_path, "roofline")
    step = next(r for r in table if r["by"] == "step")
    assert step["counters_ns"] == step["gpu_ns"] and step["unknown_ns"] == 0
    assert step["gpu_ns"] == step["limit_ns"] + step["could_go_ns"]
    assert step["roof"] == "memory" and 0.3 <= step["limit_share"] < 0.39


def test_far_from_every_roof_there_is_no_limit_and_a_reason(tmp_path: Path) -> None:
    table = rows(report(working(99, 2, 5, 5)), tmp_path, "roofline")
    step, unknown = (next(r for r in table if r["by"] == by) for by in ("step", "not known"))
    assert (step["unknown_ns"], step["could_go_ns"], step["counters_ns"]) == (step["gpu_ns"], None, 0)
    assert unknown["name"] == limits_of_work.FAR_FROM_ROOFS and 0.1 <= unknown["counted_share"] < 0.13


@pytest.mark.parametrize(("issue", "known"), [(85, True), (50, False)])
def test_sms_that_issue_nearly_always_are_at_a_limit(tmp_path: Path, issue: int, known: bool) -> None:
    """What has no sizes and uses neither the memory nor the tensor cores computes on ordinary ones, or waits."""

    def sample(at: int) -> list[int]:
        shares = working(99, 2, 5, 5)(at)
        shares[NAMES.index("SM Issue [Throughput %]")] = issue if shares[3] else 0
        return shares

    table = rows(report(sample), tmp_path, "roofline")
    step = next(r for r in table if r["by"] == "step")
    assert (step["roof"] == "instructions") is known and (step["unknown_ns"] == 0) is known
    if known:
        assert step["limit_share"] == pytest.approx(0.85, abs=0.02)


def test_a_kernel_of_too_few_blocks_is_left_to_the_rule_of_small_grids(tmp_path: Path) -> None:
    given = report(working(99, 2, 5, 5))
    for row in given.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        row |= {"gridX": 12, "gridY": 1, "gridZ": 1}
    clear = finding(given, tmp_path, "NSX128")
    assert clear.verdict == "clear" and "a grid too small" in clear.detail
    assert finding(given, tmp_path, "NSX122").verdict == "found"


@pytest.mark.parametrize(
    ("dram", "held_bytes", "registers", "why"),
    [
        (
            25,
            1_000_000_000,
            32,
            "the memory moves 4.5 GiB for it, because addresses that lie apart fetch what nobody uses",
        ),
        (5, 1_000_000_000, 32, "the memory is used to 10.0 %, and its SMs issue in 30 % of the cycles: it waits"),
        (
            5,
            None,
            255,
            "the memory is used to 10.0 %: an SM holds 12 % of its warps at a time (registers), too few to hide",
        ),
        (5, None, 32, "the memory is used to 10.0 %, and its SMs issue in 30 % of the cycles: it waits"),
    ],
)
def test_it_says_whether_addresses_lie_apart_few_warps_fit_or_each_waits(
    dram: int, held_bytes: int | None, registers: int, why: str, tmp_path: Path
) -> None:
    """What moves more than its tensors hold fetches what it does not use; 255 registers let an SM hold 8 of 64 warps."""
    given = report(working(99, 2, dram, dram))
    for row in given.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        row |= {"blockX": 128, "blockY": 1, "blockZ": 1, "registersPerThread": registers, "gridX": 100_000}
    main = given.process(100).thread(100)
    for step in range(6 if held_bytes else 0):
        at = 4 * MS * step
        main.add_range(f"triton::my_gemm#{held_bytes}, op_id = 1, sizes = []", at + 8_000, at + 18_000)
    far = finding(given, tmp_path, "NSX128")
    assert far.verdict == "found" and "my_gemm" in far.title
    assert why in far.detail
    assert ("its tensors hold 953.7 MiB for each launch" in far.detail) == bool(held_bytes)
