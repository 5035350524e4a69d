"""GPU counters: what share of them each kernel has, on reports built from the recorded schema."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from nsysx.events.gpu_samples import run_before
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
    "PCIe TX Throughput [Throughput %]",
)  # fmt: skip

_KINDS_OF_LINKS = ("Requests Protocol Data", "Requests User Data", "Responses Protocol Data", "Responses User Data")


def values(sm: int, tensor: int, read: int, write: int, hz: int = 1_980_000_000) -> list[int]:
    return [hz, 1_200_000_000, 100, sm, 30, tensor, 50, read, write, 12, 4]


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
            found.sample(at, mean_of(sample, at), gpu=gpu)
    return found


def mean_of(sample: Callable[[int], list[int]], at: int, interval: int = INTERVAL) -> list[int]:
    """Return what a sampler says of the interval that begins at an instant: the means of the counters over it."""
    instants = range(at + interval // 20, at + interval, interval // 10)
    return [round(sum(column) / 10) for column in zip(*(sample(t) for t in instants), strict=True)]


def true(at: int) -> list[int]:
    """What the counters of that program say at an instant."""
    within = (at - 10_000) % (4 * MS)
    if at < 10_000 or within >= 3 * MS:
        return values(0, 0, 0, 0)
    return values(99, 0, 46, 47) if within < MS else values(97, 83, 20, 4, 1_700_000_000)


def working(*shares: int) -> Callable[[int], list[int]]:
    """Return what the counters say where both kernels have the same shares, and idle time none."""
    return lambda at: values(*shares) if true(at)[3] else values(0, 0, 0, 0)


def of(table: list[dict[str, Any]], by: str, name: str | None) -> dict[str, Any]:
    (row,) = (r for r in table if (r["by"], r["name"]) == (by, name))
    return row


def test_kernels_have_their_own_shares_also_of_samples_in_which_others_ran(tmp_path: Path) -> None:
    table = rows(report(true), tmp_path, "gpu_metrics")
    copy, product = of(table, "kernel", "copy_kernel"), of(table, "kernel", "my_gemm")
    assert copy["dram"] == pytest.approx(0.93, abs=0.01) and copy["dram_read"] == pytest.approx(0.46, abs=0.01)
    assert (copy["sm_active"], copy["tensor_active"]) == (pytest.approx(0.99, abs=0.01), pytest.approx(0, abs=0.01))
    assert (product["tensor_active"], product["dram"]) == (pytest.approx(0.83, abs=0.01), pytest.approx(0.24, abs=0.01))
    assert product["sm_issue"] == pytest.approx(0.3, abs=0.01)
    assert (copy["clock_mhz"], product["clock_mhz"]) == (pytest.approx(1980, rel=0.01), pytest.approx(1700, rel=0.01))
    steps = product["total_ns"] // (2 * MS)
    assert (copy["samples"], product["samples"]) == (pytest.approx(20 * steps, abs=1), 40 * steps), (
        "1 ms is 20 intervals"
    )
    family = of(table, "family", "gemm")
    assert {k: family[k] for k in ("samples", "dram", "tensor_active")} == {
        k: product[k] for k in ("samples", "dram", "tensor_active")
    }
    both = of(table, "module", "net")
    assert both["samples"] == pytest.approx(copy["samples"] + product["samples"], abs=1)
    assert both["dram"] == pytest.approx((20 * 0.93 + 40 * 0.24) / 60, abs=0.01)
    assert of(table, "phase", "forward")["samples"] == both["samples"]
    step = next(r for r in table if r["by"] == "step")
    assert step["tensor_active"] == pytest.approx(0.83 / 2, abs=0.02), "half of the step is the product"
    links = [c for c in step if c.startswith(("pcie", "nvlink"))]
    assert [step[c] for c in links] == [pytest.approx(0.12), pytest.approx(0.04), None, None]
    assert all(row[c] is None for row in table for c in links if row["by"] != "step")


def test_requests_and_responses_of_a_link_are_one_direction_of_it(tmp_path: Path) -> None:
    """What is written to a peer are requests, what is read from one are responses; protocol is none of the data."""
    ways = [f"NVLink {way} {kind} [Throughput %]" for way in ("RX", "TX") for kind in _KINDS_OF_LINKS]
    names = (*NAMES, *ways)
    found = report(lambda t: [*true(t), 6, 51, 1, 2, 6, 30, 1, 4], names=names)
    step = next(r for r in rows(found, tmp_path, "gpu_metrics") if r["by"] == "step")
    assert (step["nvlink_rx"], step["nvlink_tx"]) == (pytest.approx(0.53), pytest.approx(0.34))
    samples = load(tmp_path / "r.sqlite").gpu_metrics
    assert samples is not None and samples["nvlink_rx"].null_count() == 0


def test_the_limit_of_a_kernel_is_the_memory_where_the_counters_say_so(tmp_path: Path) -> None:
    product, copy = rows(report(true), tmp_path, "kernel_limits")
    assert (copy["limit"], copy["dram"]) == ("DRAM bandwidth", pytest.approx(0.93, abs=0.01))
    assert (product["limit"], product["tensor_active"]) == (None, pytest.approx(0.83, abs=0.01))


def test_few_samples_are_a_dash(tmp_path: Path) -> None:
    found = report(true)
    for row in found.rows["CUPTI_ACTIVITY_KIND_KERNEL"][::2]:
        row["end"] = row["start"] + 3 * INTERVAL // 2
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
    assert (copy["samples"] > 50, copy["dram"]) == (True, None)


def test_kernels_shorter_than_an_interval_have_their_shares_from_many_repetitions(tmp_path: Path) -> None:
    """Three kernels of 20 to 70 us in random gaps, sampled each 200 us: none ever fills an interval."""
    random, found = np.random.default_rng(1), Report()
    found.gpu(0, pids=[(100, 0)])
    main = found.process(100).thread(100)
    kinds = {"reads": (20_000, 0.8, 0.0), "mixed": (45_000, 0.4, 0.1), "computes": (70_000, 0.02, 0.9)}
    at, ran = 10_000, []
    for step in range(80):
        begin = at
        for place in random.permutation(9):
            name, (ns, dram, tensor) = [*kinds.items()][place % 3]
            main.launch(at=at, kernel=name, gpu_start=at + 2_000, gpu_dur=ns)
            ran.append((at + 2_000, at + 2_000 + ns, dram, tensor))
            at += ns + int(random.integers(3_000, 60_000))
        main.add_range(f"step {step}", begin, at - 1_000, domain="nsysx")
    found.counters(NAMES)
    start, end, dram, tensor = (np.array(column) for column in zip(*ran, strict=True))
    for begin in range(0, at, 200_000):
        part = np.clip(np.minimum(end, begin + 200_000) - np.maximum(start, begin), 0, None) / 200_000
        active, busy, read = (round(100 * float(part @ share)) for share in (np.ones(len(part)), tensor, dram))
        found.sample(begin, values(active, busy, read, 0))
    table = rows(found, tmp_path, "gpu_metrics")
    for name, (_, dram_share, tensor_share) in kinds.items():
        row = of(table, "kernel", name)
        assert row["dram"] == pytest.approx(dram_share, abs=0.02), name
        assert row["tensor_active"] == pytest.approx(tensor_share, abs=0.02), name


def test_a_device_that_others_use_in_idle_time_says_nothing_of_our_kernels(tmp_path: Path) -> None:
    busy = report(lambda at: values(99, 50, 60, 10))
    copy = of(rows(busy, tmp_path, "gpu_metrics"), "kernel", "copy_kernel")
    assert (copy["dram"], copy["tensor_active"]) == (None, None)


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
    assert of(table, "kernel", "copy_kernel")["dram"] == pytest.approx(0.93, abs=0.01)


def test_a_report_without_metrics_says_what_records_them(tmp_path: Path) -> None:
    assert "nsysx run --gpu-metrics" in reason(report(None), tmp_path, "gpu_metrics")
    (tmp_path / "r.run.json").write_text('{"gpu_metrics": {"refused": "ERR_NVGPUCTRPERM"}}')
    assert "recorded: ERR_NVGPUCTRPERM" in reason(report(None), tmp_path, "gpu_metrics")
    found = report(true)
    found.drop("TARGET_INFO_CUDA_DEVICE")
    found.drop("TARGET_INFO_GPU")
    assert "which GPU" in reason(found, tmp_path, "gpu_metrics")


def test_counters_of_another_time_are_no_table_of_dashes(tmp_path: Path) -> None:
    """Samples end before the first step: what records them is said instead."""
    early = report(None)
    early.counters(NAMES, gpu=0)
    early.sample(-2 * INTERVAL, values(50, 0, 40, 40), gpu=0)
    why = reason(early, tmp_path, "gpu_metrics")
    assert "no sample of the counters lies in the steady steps" in why and "--gpu-metrics" in why


def test_a_device_without_a_counter_gets_a_dash_for_it(tmp_path: Path) -> None:
    names = tuple(n.replace("Tensor", "Vector").replace("DRAM Write", "L2 Write") for n in NAMES)
    copy = of(rows(report(true, names=names), tmp_path, "gpu_metrics"), "kernel", "copy_kernel")
    assert (copy["tensor_active"], copy["dram"]) == (None, None), "what reads alone is no whole"
    assert copy["dram_read"] == pytest.approx(0.46, abs=0.01)
    assert "no GPU metric" in reason(report(true, names=("GR Active",) * 10), tmp_path, "gpu_metrics")


def test_older_names_and_clocks_in_mhz(tmp_path: Path) -> None:
    names = tuple(n.replace("SMs Active", "SM Active").replace("Read Bandwidth", "Read Throughput") for n in NAMES)
    found = report(lambda at: [1_980, *true(at)[1:]], names=names)
    copy = of(rows(found, tmp_path, "gpu_metrics"), "kernel", "copy_kernel")
    assert (copy["sm_active"], copy["dram"], copy["clock_mhz"]) == (
        pytest.approx(0.99, abs=0.01),
        pytest.approx(0.93, abs=0.01),
        pytest.approx(1980, rel=0.01),
    )


@pytest.mark.parametrize("value", [-1, 111, 1 << 62])
def test_shares_that_are_none_are_left_out(value: int, tmp_path: Path) -> None:
    found = report(lambda at: values(value, *true(at)[5:6], 46, 47))
    copy = of(rows(found, tmp_path, "gpu_metrics"), "kernel", "copy_kernel")
    assert copy["sm_active"] is None and copy["dram"] == pytest.approx(0.93, abs=0.01)


def test_a_window_reads_its_samples_alone(tmp_path: Path) -> None:
    path = report(true).write(tmp_path / "r.sqlite")
    part = load(path, window=(4 * MS, 8 * MS)).gpu_metrics
    assert part is not None
    assert (part["time_ns"].min(), part["time_ns"].max()) == (4 * MS, 8 * MS)
    whole = load(path).gpu_metrics
    assert whole is not None and whole["time_ns"].min() == -2 * INTERVAL


def test_how_long_intervals_ran_before_an_instant() -> None:
    """Against a slow and obvious way, for random intervals that overlap."""
    random = np.random.default_rng(3)
    start = random.integers(0, 1_000, 40)
    end = start + random.integers(1, 60, 40)
    times = np.arange(-20, 1_100)
    slow = [int(np.clip(np.minimum(end, t) - start, 0, None).sum()) for t in times]
    assert run_before(start, end, times).tolist() == slow


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
    found = summarize([report(true).write(tmp_path / "r.sqlite")], timelines=True, every_table=False)
    (strip,) = found.timelines[0].counters
    assert list(strip.shares) == ["SMs", "tensor cores", "DRAM bandwidth"]
    at, dram, tensor = np.array(strip.at_ns), strip.shares["DRAM bandwidth"], strip.shares["tensor cores"]
    length = found.timelines[0].end_ns - found.timelines[0].start_ns
    assert (np.diff(at) > 0).all() and at[0] >= 0 and at[-1] <= length
    assert len(at) == pytest.approx(length / INTERVAL, abs=1), "each sample once"
    assert max(d for d in dram if d is not None) == pytest.approx(0.93)
    assert {0.0, 0.83} <= {round(t, 2) for t in tensor if t is not None}
    assert "DRAM bandwidth" in html_page.render(found)
    bare = summarize([report(None).write(tmp_path / "r.sqlite")], timelines=True, every_table=False)
    assert bare.timelines and not bare.timelines[0].counters
