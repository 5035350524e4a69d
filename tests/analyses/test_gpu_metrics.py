"""GPU counters: which sample belongs to which kernel, on reports built from the recorded schema."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from nsysx.events.gpu_samples import _alone_at
from nsysx.pipeline import summarize
from nsysx.reading.load import load
from nsysx.render import html_page
from tests.analyses import reason, rows
from tests.builder import Report

MS = 1_000_000
INTERVAL = 50_000
#: As an H200 names them (nsys 2025.3).
NAMES = (
    "GPC Clock Frequency [MHz]", "SYS Clock Frequency [MHz]", "GR Active [Throughput %]", "SMs Active [Throughput %]",
    "SM Issue [Throughput %]", "Tensor Active [Throughput %]", "Compute Warps in Flight [Throughput %]",
    "DRAM Read Bandwidth [Throughput %]", "DRAM Write Bandwidth [Throughput %]", "PCIe RX Throughput [Throughput %]",
)  # fmt: skip


def values(sm: int, tensor: int, read: int, write: int, hz: int = 1_980_000_000) -> list[int]:
    return [hz, 1_500_000_000, 100, sm, 30, tensor, 50, read, write, 1]


def report(sample: Callable[[int], list[int]] | None, *, gpu: int = 0, names: tuple[str, ...] = NAMES) -> Report:
    """Six steps of 4 ms on GPU ``gpu``: a copy kernel for the first ms, a product for the next 2 ms, nothing for the last."""
    found = Report()
    found.gpu(gpu, pids=[(100, 0)])
    main = found.process(100).thread(100)
    for step in range(6):
        at = 4 * MS * step
        with_module = (at + 1_000, at + 3 * MS)
        main.launch(at=at + 2_000, kernel="copy_kernel", gpu_start=at + 10_000, gpu_dur=MS)
        main.launch(at=at + 9_000, kernel="my_gemm", gpu_start=at + 10_000 + MS, gpu_dur=2 * MS)
        main.sync(at=at + 20_000, dur=3 * MS)
        main.add_range("net:Net", *with_module, domain="nsysx")
        main.add_range("forward", *with_module, domain="nsysx")
        main.add_range(f"step {step}", at, at + 4 * MS - 1, domain="nsysx")
    if sample is not None:
        found.counters(names, gpu=gpu)
        for at in range(-2 * INTERVAL, 24 * MS, INTERVAL):
            found.sample(at, sample(at), gpu=gpu)
    return found


def true(at: int) -> list[int]:
    """What the counters of that program say at an instant."""
    within = (at - 10_000) % (4 * MS)
    if at < 10_000 or within >= 3 * MS:
        return values(0, 0, 0, 0)
    return values(99, 0, 46, 47) if within < MS else values(97, 83, 20, 4, 1_700_000_000)


def of(table: list[dict[str, Any]], by: str, name: str | None) -> dict[str, Any]:
    (row,) = (r for r in table if (r["by"], r["name"]) == (by, name))
    return row


def test_kernels_get_the_samples_that_lie_wholly_in_them(tmp_path: Path) -> None:
    table = rows(report(true), tmp_path, "gpu_metrics")
    copy, product = of(table, "kernel", "copy_kernel"), of(table, "kernel", "my_gemm")
    assert copy["dram"] == pytest.approx(0.93) and copy["dram_read"] == pytest.approx(0.46)
    assert (copy["sm_active"], copy["tensor_active"]) == (pytest.approx(0.99), 0.0)
    assert (product["tensor_active"], product["dram"]) == (pytest.approx(0.83), pytest.approx(0.24))
    assert (copy["clock_mhz"], product["clock_mhz"]) == (pytest.approx(1980), pytest.approx(1700))
    # 1 ms holds 20 samples, of which the first and the last have no interval to spare.
    steps = product["total_ns"] // (2 * MS)
    assert (copy["samples"], product["samples"]) == (18 * steps, 38 * steps)
    family = of(table, "family", "gemm")
    assert {k: family[k] for k in ("samples", "dram", "tensor_active")} == {
        k: product[k] for k in ("samples", "dram", "tensor_active")
    }
    both = of(table, "module", "net")
    assert both["samples"] == copy["samples"] + product["samples"]
    assert both["dram"] == pytest.approx((18 * 0.93 + 38 * 0.24) / 56)
    assert of(table, "phase", "forward")["samples"] == both["samples"]
    step = next(r for r in table if r["by"] == "step")
    assert step["tensor_active"] == pytest.approx(0.83 / 2, abs=0.02), "half of the step is the product"


def test_the_limit_of_a_kernel_is_the_memory_where_the_counters_say_so(tmp_path: Path) -> None:
    product, copy = rows(report(true), tmp_path, "kernel_limits")
    assert (copy["limit"], copy["dram"]) == ("DRAM bandwidth", pytest.approx(0.93))
    assert (product["limit"], product["tensor_active"]) == (None, pytest.approx(0.83))


def test_few_samples_are_a_dash(tmp_path: Path) -> None:
    found = report(true)
    for row in found.rows["CUPTI_ACTIVITY_KIND_KERNEL"][::2]:
        row["end"] = row["start"] + 3 * INTERVAL  # one or two samples in each step
    copy = of(rows(found, tmp_path, "gpu_metrics"), "kernel", "copy_kernel")
    assert 0 < copy["samples"] < 10
    assert [copy[c] for c in ("sm_active", "tensor_active", "dram", "clock_mhz")] == [None] * 4


def test_what_runs_beside_another_kernel_is_not_told(tmp_path: Path) -> None:
    found = report(true)
    # A process of the same GPU, which the counters see, works all the time.
    other = found.process(200)
    found.add("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=0, pid=200)
    other.kernel("other", 0, 24 * MS)
    copy = of(rows(found, tmp_path, "gpu_metrics"), "kernel", "copy_kernel")
    assert (copy["samples"], copy["dram"]) == (0, None)


def test_metrics_of_other_gpus_are_not_ours(tmp_path: Path) -> None:
    found = report(None)
    found.counters(NAMES, gpu=3)
    for at in range(0, 24 * MS, INTERVAL):
        found.sample(at, true(at), gpu=3)
    assert "other GPUs" in reason(found, tmp_path, "gpu_metrics")
    (row, _) = rows(found, tmp_path, "kernel_limits")
    assert (row["samples"], row["dram"]) == (None, None)
    # The CUDA ordinal 0 of a process may be any GPU.
    table = rows(report(true, gpu=5), tmp_path, "gpu_metrics")
    assert of(table, "kernel", "copy_kernel")["dram"] == pytest.approx(0.93)


def test_a_report_without_metrics_says_what_records_them(tmp_path: Path) -> None:
    assert "nsysx run --gpu-metrics" in reason(report(None), tmp_path, "gpu_metrics")
    (tmp_path / "r.run.json").write_text('{"gpu_metrics": {"refused": "ERR_NVGPUCTRPERM"}}')
    assert "nsys refused (ERR_NVGPUCTRPERM)" in reason(report(None), tmp_path, "gpu_metrics")
    found = report(true)
    found.drop("TARGET_INFO_CUDA_DEVICE")
    found.drop("TARGET_INFO_GPU")
    assert "which GPU" in reason(found, tmp_path, "gpu_metrics")


def test_a_device_without_a_counter_gets_a_dash_for_it(tmp_path: Path) -> None:
    names = tuple(n.replace("Tensor", "Vector").replace("DRAM Write", "L2 Write") for n in NAMES)
    copy = of(rows(report(true, names=names), tmp_path, "gpu_metrics"), "kernel", "copy_kernel")
    assert (copy["tensor_active"], copy["dram"]) == (None, None), "what reads alone is no whole"
    assert copy["dram_read"] == pytest.approx(0.46)
    assert "no GPU metric" in reason(report(true, names=("GR Active",) * 10), tmp_path, "gpu_metrics")


def test_older_names_and_clocks_in_mhz(tmp_path: Path) -> None:
    names = tuple(n.replace("SMs Active", "SM Active").replace("Read Bandwidth", "Read Throughput") for n in NAMES)
    found = report(lambda at: [1_980, *true(at)[1:]], names=names)
    copy = of(rows(found, tmp_path, "gpu_metrics"), "kernel", "copy_kernel")
    assert (copy["sm_active"], copy["dram"], copy["clock_mhz"]) == (
        pytest.approx(0.99),
        pytest.approx(0.93),
        pytest.approx(1980),
    )


@pytest.mark.parametrize("value", [-1, 111, 1 << 62])
def test_shares_that_are_none_are_left_out(value: int, tmp_path: Path) -> None:
    found = report(lambda at: values(value, *true(at)[5:6], 46, 47))
    copy = of(rows(found, tmp_path, "gpu_metrics"), "kernel", "copy_kernel")
    assert copy["sm_active"] is None and copy["dram"] == pytest.approx(0.93)


def test_a_window_reads_its_samples_alone(tmp_path: Path) -> None:
    path = report(true).write(tmp_path / "r.sqlite")
    part = load(path, window=(4 * MS, 8 * MS)).gpu_metrics
    assert part is not None
    assert (part["time_ns"].min(), part["time_ns"].max()) == (4 * MS, 8 * MS)
    whole = load(path).gpu_metrics
    assert whole is not None and whole["time_ns"].min() == -2 * INTERVAL


def test_an_instant_belongs_to_the_interval_that_is_alone_around_it() -> None:
    """Against a slow and obvious way, for random intervals."""
    random = np.random.default_rng(3)
    start = np.sort(random.integers(0, 1_000, 40))
    end = start + random.integers(1, 60, 40)
    times = np.arange(-20, 1_100)
    found = _alone_at(start, end, times, 5)
    for t, row in zip(times.tolist(), found.tolist(), strict=True):
        touching = np.flatnonzero((start < t + 5) & (end > t - 5))
        alone = len(touching) == 1 and start[touching[0]] <= t - 5 and end[touching[0]] >= t + 5
        assert row == (touching[0] if alone else -1), t


def test_samples_of_no_possible_time_and_of_times_since_1970(tmp_path: Path) -> None:
    found = report(true)
    before = rows(found, tmp_path, "gpu_metrics")
    for at in (-(1 << 63), (1 << 63) - 1):
        found.sample(at, values(1, 1, 1, 1))
    assert rows(found, tmp_path, "gpu_metrics") == before
    found = report(true)
    epoch = found.rows["TARGET_INFO_SESSION_START_TIME"][0]["utcEpochNs"]
    found.shift(epoch)
    assert rows(found, tmp_path, "gpu_metrics") == before


def test_rows_in_any_order_give_the_same(tmp_path: Path) -> None:
    found = report(true)
    before = pl.DataFrame(rows(found, tmp_path, "gpu_metrics"))
    found.shuffle(1)
    assert pl.DataFrame(rows(found, tmp_path, "gpu_metrics")).equals(before)


def test_a_step_on_the_page_shows_what_was_sampled_in_it(tmp_path: Path) -> None:
    found = summarize([report(true).write(tmp_path / "r.sqlite")], timelines=True)
    (strip,) = found.timelines[0].counters
    assert list(strip.shares) == ["SMs", "tensor cores", "DRAM bandwidth"]
    at, dram, tensor = np.array(strip.at_ns), strip.shares["DRAM bandwidth"], strip.shares["tensor cores"]
    length = found.timelines[0].end_ns - found.timelines[0].start_ns
    assert (np.diff(at) > 0).all() and at[0] >= 0 and at[-1] <= length
    assert len(at) == pytest.approx(length / INTERVAL, abs=1), "each sample once"
    assert max(d for d in dram if d is not None) == pytest.approx(0.93)
    assert {round(t, 2) for t in tensor if t is not None} == {0.0, 0.83}
    assert "DRAM bandwidth" in html_page.render(found)
    bare = summarize([report(None).write(tmp_path / "r.sqlite")], timelines=True)
    assert bare.timelines and not bare.timelines[0].counters
