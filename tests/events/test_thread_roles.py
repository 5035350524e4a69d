"""What each thread is for, and that a module owns only what works for it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from nsysx.events.attribute import Attributed
from nsysx.pipeline import summarize
from tests.builder import Report
from tests.events.test_attribute import read
from tests.events.test_steps import PERIOD, US, work

OWN = "nsysx"


def training(*, named: bool = True, steps: int = 8) -> Report:
    """A main thread, autograd's, a pin thread that allocates while backward runs, and NCCL's watchdog; ``named`` as PyTorch does."""
    report = Report()
    process = report.process(1)
    names = ("pt_autograd_0", "pt_data_pin", "pt_nccl_watchdg") if named else ("python3",) * 3
    main = process.thread(1, "python3")
    autograd, pin, watchdog = (process.thread(2 + i, name) for i, name in enumerate(names))
    for i in range(steps):
        t = i * PERIOD
        main.add_range(f"step {i}", t, t + 990 * US, domain=OWN)
        main.add_range("fc:Linear", t + 10 * US, t + 300 * US, domain=OWN)
        work(main, t + 20 * US, kernels=4)
        main.add_range("backward", t + 400 * US, t + 900 * US, domain=OWN)
        work(autograd, t + 420 * US, kernels=6)
        pin.call("cudaHostAlloc", t + 500 * US, 100 * US)
        watchdog.call("cudaEventQuery", t + 450 * US, US)
    return report


def role_of(attributed: Attributed) -> dict[int, str]:
    return {thread & 0xFFFFFF: role for thread, role in attributed.roles.items()}


@pytest.mark.parametrize(
    ("named", "others"), [(True, ("pin memory", "communication watchdog")), (False, ("user",) * 2)]
)
def test_roles_by_name_and_by_work(tmp_path: Path, named: bool, others: tuple[str, str]) -> None:
    """Without names autograd's thread is the one that launches while backward runs."""
    found = role_of(read(training(named=named), tmp_path))
    assert found == {1: "main", 2: "autograd", 3: others[0], 4: others[1]}


@pytest.mark.parametrize("named", [True, False])
def test_memory_of_the_pin_thread_is_no_modules(tmp_path: Path, named: bool) -> None:
    attributed = read(training(named=named), tmp_path)
    calls = attributed.api_calls.with_columns(pl.col("phase", "module", "grade").cast(pl.String))
    pinned = calls.filter(pl.col("kind") == "host_alloc")
    assert pinned.select("phase", "module", "grade").unique().rows() == [(None, None, "none")]
    launches = calls.filter((pl.col("kind") == "launch") & (pl.col("thread") & 0xFFFFFF == 2))
    assert launches.select("phase", "module", "grade").unique().rows() == [("backward", "(backward)", "time")]


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("pt_autograd_1", "autograd"),
        ("pt_data_pin", "pin memory"),
        ("pt_data_worker", "loader worker"),
        ("pt_nccl_watchdg", "communication watchdog"),
        ("pt_nccl_heartbt", "communication watchdog"),
        ("pt_tcpstore_uv", "communication watchdog"),
        ("SubprocPool_0", "compile worker"),
        ("my_prefetcher", "user"),
        (None, "user"),
    ],
)
def test_names(tmp_path: Path, name: str | None, role: str) -> None:
    report = training()
    report.process(1).thread(9, name).call("cudaMalloc", 100 * US, US)
    assert role_of(read(report, tmp_path))[9] == role


def test_a_thread_of_the_users_that_also_works_while_backward_runs_is_no_autograd(tmp_path: Path) -> None:
    report = training(named=False)
    side = report.process(1).thread(7, "python3")
    for i in range(8):
        for at in (100, 300, 600, 800):
            side.launch(
                i * PERIOD + at * US, 5 * US, kernel="prefetch", gpu_start=i * PERIOD + (at + 10) * US, gpu_dur=US
            )
    attributed = read(report, tmp_path)
    assert role_of(attributed)[7] == "user"
    side_calls = attributed.api_calls.filter(pl.col("thread") & 0xFFFFFF == 7)
    assert side_calls["phase"].null_count() == side_calls.height


def test_tables_name_the_thread_where_it_is_another(tmp_path: Path) -> None:
    summary = summarize([training().write(tmp_path / "r.sqlite")])
    (row,) = (r for r in summary.rows("allocator") if r["api"] == "cudaHostAlloc")
    assert (row["module"], row["phase"], row["thread_role"]) == (None, None, "pin memory")
    assert "pin thread" in row["advice"]
    roles = {r["thread"] & 0xFFFFFF: r["role"] for r in summary.rows("cpu_ledger")}
    assert roles == {1: "main", 2: "autograd", 3: "pin memory", 4: "communication watchdog"}
    bill = [r for r in summary.rows("first_calls") if r["name"] == "cudaHostAlloc"]
    assert all(r["thread_role"] == "pin memory" for r in bill)
