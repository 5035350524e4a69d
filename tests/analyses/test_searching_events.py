"""Whose events they are: those with which libraries and compilers look for their fastest kernel are none of the program's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.analyses import rows
from tests.analyses.test_events import read
from tests.builder import Report, Thread

US = 1_000
TORCH = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>"
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>"


def makers(report: Report, folder: Path) -> list[str]:
    return [str(row["made_by"]) for row in rows(report, folder, "events") for _ in range(row["windows"])]


def window(
    main: Thread, event: int, at: int, kernel: str = "cudnn_kernel", api: str = "cudaLaunchKernel_v7000"
) -> None:
    main.event_record(event, at=at)
    main.launch(at=at + 10 * US, dur=US, kernel=kernel, gpu_start=at + 12 * US, gpu_dur=20 * US, api=api)
    main.event_record(event + 1, at=at + 15 * US)


def searched(*, creates: str = "cudaEventCreate_v3020", leaves: bool = False) -> Report:
    """A convolution times three kernels with two events of its own; ``leaves``: another module runs before they are destroyed."""
    report = Report()
    main = report.process(100).thread(100)
    main.launch(at=0, dur=US, kernel=TORCH, gpu_start=2 * US, gpu_dur=5 * US)
    main.add_range("conv:Conv2d", 20 * US, 400 * US, domain="nsysx")
    for i in range(2):
        main.call(creates, (30 + i) * US, 500)
    for i in range(3):
        window(main, 2, (50 + 100 * i) * US)
        main.sync("cudaEventSynchronize_v3020", at=(90 + 100 * i) * US, dur=500, event=3)
    ends = 350
    if leaves:
        main.add_range("act:ReLU", 410 * US, 450 * US, domain="nsysx")
        main.launch(at=420 * US, dur=US, kernel=TORCH, gpu_start=422 * US, gpu_dur=5 * US)
        ends = 460
    for i in range(2):
        main.call("cudaEventDestroy_v3020", (ends + i) * US, 500)
    return report


@pytest.mark.parametrize(
    ("report", "maker"),
    [
        (searched(), "torch"),
        (searched(creates="cudaEventCreateWithFlags_v3020"), "program"),  # as a torch.cuda.Event of a hook
        (searched(leaves=True), "program"),  # as an extension's that live for longer
    ],
)
def test_events_that_a_library_makes_and_destroys_within_a_call(report: Report, maker: str, tmp_path: Path) -> None:
    assert makers(report, tmp_path) == [maker] * 3


def test_a_program_of_another_language_times_with_what_it_creates(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100, name="bench").thread(100)
    main.call("cudaEventCreate_v3020", 0, 500)
    main.call("cudaEventCreate_v3020", US, 500)
    window(main, 2, 50 * US, "my_kernel")
    main.sync("cudaEventSynchronize_v3020", at=90 * US, dur=500, event=3)
    main.call("cudaEventDestroy_v3020", 200 * US, 500)
    main.call("cudaEventDestroy_v3020", 201 * US, 500)
    assert makers(report, tmp_path) == ["program"]


@pytest.mark.parametrize(
    ("fills", "api", "count", "maker"),
    [
        (True, "cuLaunchKernelEx", 6, "torch"),
        (False, "cuLaunchKernelEx", 6, "program"),  # a kernel of Triton in the program's own windows
        (True, "cudaLaunchKernel_v7000", 6, "program"),  # the program clears a buffer before it times its library
        (True, "cuLaunchKernelEx", 3, "program"),
    ],
)
def test_windows_before_each_of_which_the_cache_is_cleared(
    fills: bool, api: str, count: int, maker: str, tmp_path: Path
) -> None:
    """As Triton's do_bench: it fills a buffer of 256 MB before each window, and reads all windows at the end."""
    report = Report()
    main = report.process(100).thread(100)
    for i in range(count):
        at = 200 * US * i
        if fills:
            main.launch(at=at, dur=US, kernel=FILL, gpu_start=at + 2 * US, gpu_dur=60 * US)
        main.event_record(2 * i, at=at + 5 * US)
        main.launch(at=at + 10 * US, dur=US, kernel="tuned", gpu_start=at + 65 * US, gpu_dur=20 * US, api=api)
        main.event_record(2 * i + 1, at=at + 15 * US)
    for i in range(count):
        read(main, 2 * i, 2 * i + 1, at=200 * US * count + 10 * US * i)
    assert makers(report, tmp_path) == [maker] * count


@pytest.mark.parametrize(("ns", "maker"), [(400 * US, "torch"), (10 * US, "program")])
def test_windows_while_torch_compiles(ns: int, maker: str, tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    window(main, 2, 100 * US)
    said = {"ago_ns": 0, "ns": ns, "what": "forward"}
    main.mark(f"compile {json.dumps(said)}", at=450 * US, domain="nsysx")
    read(main, 2, 3, at=300 * US)
    assert makers(report, tmp_path) == [maker]
