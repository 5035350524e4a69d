"""The answers on programs that were recorded on an H200 and printed the truth themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from nsysx.model import Summary
from tests.samples import NAMES, SAMPLES, Samples

PRINTED = SAMPLES / "make_samples.json"
PARTS = ("usual_ns", "first_call_ns", "queue_full_ns", "slow_ns")

pytestmark = pytest.mark.skipif(not PRINTED.is_file(), reason="the samples were not recorded yet")


@pytest.fixture(scope="module")
def of(recorded: Samples) -> Callable[[str], Summary]:
    """A function from a sample's name to its Summary."""
    return recorded.summary


def printed(name: str) -> dict[str, Any]:
    """Return what the program printed while it was recorded."""
    found: dict[str, Any] = json.loads(PRINTED.read_text())["programs"][name]["captured"]
    return found


def test_every_event_pair_reads_as_the_program_read_it(of) -> None:
    ways = [way["us"] for way in printed("event_linear")["ways"]]
    truth = [us * 1e3 for turn in zip(*ways, strict=True) for us in turn]
    found = of("event_linear").rows("event_windows")
    assert len(found) == len(truth)
    assert {r["paired_by"] for r in of("event_linear").rows("events")} == {"read"}
    for row, reading in zip(found, truth, strict=True):
        assert abs(row["reading_ns"] - reading) <= max(3_000, 0.03 * reading)


def test_the_same_kernel_is_in_every_window(of) -> None:
    # Three ways of asking, from 36 us to 500 us, and 33 us of kernels in each of them.
    kernels = [r["kernel_ns"] for r in of("event_linear").rows("event_windows")]
    assert max(kernels) < 1.2 * min(kernels)


def test_four_readings_of_the_stopwatch(of) -> None:
    truth = printed("custom_add")["median_us"]
    mine = next(r for r in of("custom_add").rows("stopwatch") if r["custom"])
    assert mine["name"].startswith("custom_add_kernel")
    names = {
        "both": "sync_before_and_after",
        "before": "sync_before",
        "after": "sync_after",
        "none": "no_sync",
    }
    for way, name in names.items():
        assert mine[f"{way}_from"] == "measured"
        assert mine[f"{way}_ns"] == pytest.approx(truth[name] * 1e3, rel=0.2), way


@pytest.mark.parametrize("name", ["varlen", "varlen_memory"])
def test_flushes_are_the_retries_that_torch_counts(of, name) -> None:
    truth = printed(name)["num_alloc_retries"]
    assert truth > 0
    assert len(of(name).rows("alloc_flushes")) == truth


def test_bytes_of_flushes_are_known_where_memory_was_recorded(of) -> None:
    assert all(r["freed_bytes"] is None for r in of("varlen").rows("alloc_flushes"))
    assert all(r["freed_bytes"] > 0 and r["retry_bytes"] > 0 for r in of("varlen_memory").rows("alloc_flushes"))


def test_a_slow_loader_starves_the_device(of) -> None:
    found = [r for r in of("masked_slow_loader").rows("data_loader") if r["steady"]]
    assert {r["verdict"] for r in found} == {"starved"}
    for row in found:
        assert row["gpu_idle_ns"] + row["gpu_hidden_ns"] <= row["wait_ns"] <= row["step_ns"]


def test_pageable_batches_are_exposed(of) -> None:
    found = of("copies").rows("copy_sites")
    top = found[0]
    assert (top["direction"], top["src_kind"], top["obstacle"]) == ("HtoD", "pageable", "pageable")
    assert top["bandwidth_bytes_per_s"] == pytest.approx(top["bytes"] / top["total_ns"] * 1e9)


@pytest.mark.parametrize("name", ["gpt", "tiny_stack", "masked_nonzero", "varlen"])
def test_the_bill_is_what_cold_steps_took_longer(of, name) -> None:
    summary = of(name)
    warmup = [r["cpu_ns"] for r in summary.steps.rows if r["warmup"]]
    assert warmup
    longer = sum(warmup) - len(warmup) * summary.steps.cpu_median_ns
    before = summary.steps.rows[0]["start_ns"]
    bill = sum(r["one_time_ns"] for r in summary.rows("first_calls"))
    # Little is paid once before the first step and after the warm-up.
    assert bill == pytest.approx(longer, rel=0.15), before


@pytest.mark.parametrize("name", NAMES)
def test_sums(of, name) -> None:
    summary = of(name)
    calls = summary.totals["api_by_kind"]
    bill = summary.rows("api_bill")
    assert sum(r["self_ns"] for r in bill) == sum(kind["self_ns"] for kind in calls.values())
    for row in bill:
        parts = ("waiting_ns", "profiler_ns", "one_time_ns", "repeated_ns")
        if row["repeated_ns"] is None:  # without steps it is not known what was paid once
            assert summary.steps.source == "capture"
            assert row["waiting_ns"] + row["profiler_ns"] <= row["self_ns"]
        else:
            assert sum(row[p] for p in parts) == row["self_ns"]
    kernels = summary.rows("kernel_spread")
    assert sum(r["total_ns"] for r in kernels) == summary.totals["kernel_ns"]
    assert sum(r["count"] for r in kernels) == summary.totals["kernels"]
    for row in summary.rows("launches"):
        assert sum(row[p] for p in PARTS) == row["total_ns"]
    for row in summary.rows("copy_sites"):
        assert row["hidden_ns"] + row["exposed_ns"] == row["total_ns"]
