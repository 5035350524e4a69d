"""What the Summary of each sample divides adds up to the whole, nothing in it lasts less than nothing, and what is missing has a reason."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from nsysx.render import json_text
from tests.samples import NAMES, Samples

Rows = list[dict[str, Any]]
GPU_PARTS = ("compute_ns", "comm_ns", "copy_ns", "memset_ns", "idle_ns")
CPU_PARTS = ("launch_ns", "copy_ns", "sync_wait_ns", "alloc_ns", "load_ns", "other_api_ns", "outside_api_ns")
#: Differences and places in time, which may lie on both sides of nothing: between two clocks, of what marks cost, before the session.
EITHER_SIGN = {"clock_correction_ns", "low_ns", "start_ns"}


@pytest.fixture(params=NAMES)
def data(request: pytest.FixtureRequest, recorded: Samples) -> dict[str, Any]:
    return dict(json.loads(json_text.render(recorded.summary(request.param))))


def total(rows: Rows, *names: str) -> int:
    return sum(row[name] for row in rows for name in names)


def lengths(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield each time in a Summary with its key."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from lengths(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from lengths(inner, name)
    elif name.endswith("_ns") and isinstance(value, int | float):
        yield name, value


def test_parts_sum_to_the_whole(data: dict[str, Any]) -> None:
    for row in (*data["gpu_ledger"], *(data["ranks"] or ())):
        assert total([row], *GPU_PARTS) == row["window_ns"]
        assert sum(row["idle_causes"].values()) == row["idle_ns"]
    for row in data["cpu_ledger"]:
        assert total([row], *CPU_PARTS) == row["window_ns"]
        assert sum(row["outside_by_phase"].values()) == row["outside_api_ns"]
    for row in data["steps"]["rows"]:
        if row["gpu_ns"] is not None:
            assert total([row], *(f"gpu_{part}" for part in GPU_PARTS)) == row["gpu_ns"]
    verdict = data["verdict"]
    if verdict["parts"]:
        assert sum(verdict["parts"].values()) == pytest.approx(verdict["step_ns"], abs=len(verdict["parts"]))


def test_tables_of_the_same_work_hold_the_same_time(data: dict[str, Any]) -> None:
    scope = data["verdict"]["scope"]
    ledger = [r for r in data["gpu_ledger"] if r["process"] in scope["processes"] and r["device"] in scope["devices"]]
    if data["phases"]:
        assert total(data["phases"], "gpu_busy_ns") == total(ledger, "busy_ns")
        assert total(data["phases"], "gpu_idle_ns") == total(ledger, "idle_ns")
    if data["modules"]:
        assert total(data["modules"], "self_gpu_ns") == total(data["kernel_families"], "total_ns")
        assert total(data["modules"], "idle_blamed_ns") == total(ledger, "idle_ns")
    for row in data["api_bill"] or ():
        if row["one_time_ns"] is not None:
            parts = ("waiting_ns", "profiler_ns", "one_time_ns", "repeated_ns")
            assert sum(row[p] or 0 for p in parts) == row["self_ns"], row["name"]
    for key in ("kernels", "kernel_families", "api_bill"):
        assert not data[key] or sum(row["share"] for row in data[key]) == pytest.approx(1)


def test_the_time_of_a_job_is_that_of_its_ranks(data: dict[str, Any]) -> None:
    of_rank = defaultdict[int | None, int](int)
    for row in data["job_ledger"] or ():
        of_rank[row["rank"]] += row["time_ns"]
    for row in data["ranks"] or ():
        assert of_rank[row["rank"]] == row["window_ns"]
        assert sum(wait["ns"] for wait in row["waits_for"] or ()) <= row["exposed_wait_ns"]
        assert row["exposed_wait_ns"] + row["exposed_transfer_ns"] == row["comm_ns"]


def test_nothing_lasts_less_than_nothing(data: dict[str, Any]) -> None:
    assert [(name, ns) for name, ns in lengths(data) if ns < 0 and name not in EITHER_SIGN] == []


def test_what_is_missing_has_a_reason(data: dict[str, Any]) -> None:
    reasons = {check["table"] for check in data["quality"] if check["detail"]}
    if "replay" in {check["check"] for check in data["quality"] if check["status"] != "ok"}:
        reasons |= {"replay", "unprofiled"}
    assert {key for key, value in data.items() if value is None} <= reasons
