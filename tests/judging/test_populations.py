"""Sentences of the verdict are about the shown process and the threads that drive it, each for itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.layers import LAYER
from nsysx.judging import gpu_work, limit_causes, step_passes, window_checks
from nsysx.scope import Scope

SHOWN, OTHER = 1, 2
#: No range is noted: what is known of passes are the spans of their phases.
NO_RANGES = SimpleNamespace(
    ranges=pl.DataFrame(
        schema=dict.fromkeys(LAYER, pl.Int64) | {"kind": pl.String, "name": pl.String, "own": pl.Boolean}
    )
)

#: GPU work without a message from rank to rank.
NOTHING_SENT = pl.DataFrame(schema={"cls": pl.String, "name": pl.String})


def test_the_call_that_is_named_is_one_of_the_shown_process() -> None:
    """Another process waits longer, and leaves its own GPU idle."""
    site = {"module": None, "file": None, "line": None}
    rows = [
        {"process": OTHER, "api": "cudaDeviceSynchronize", "idle_caused_ns": 900, **site},
        {"process": SHOWN, "api": "cudaStreamSynchronize", "idle_caused_ns": 100, **site},
    ]
    schema = {
        "process": pl.Int64,
        "api": pl.String,
        "idle_caused_ns": pl.Int64,
        "module": pl.String,
        "file": pl.String,
        "line": pl.Int64,
    }
    profile: Any = SimpleNamespace(
        wait_sites=lambda: pl.DataFrame(rows, schema=schema),
        steps=SimpleNamespace(process=SHOWN),
        attributed=SimpleNamespace(without_path=()),
    )
    assert limit_causes.site(profile) == " in cudaStreamSynchronize"


def test_passes_are_counted_on_each_thread() -> None:
    """The main thread's forward cuts no backward of autograd's thread in two: a step is one pass and one update."""
    spans = [
        (1, 0, "forward"), (2, 10, "backward"), (1, 12, "optimizer"), (2, 14, "backward"), (1, 16, "optimizer"), (2, 18, "backward"),
    ]  # fmt: skip
    rows = [{"process": SHOWN, "thread": t, "start_ns": at, "phase": phase} for t, at, phase in spans]
    profile: Any = SimpleNamespace(
        ranges=NO_RANGES,
        attributed=SimpleNamespace(phase_spans=pl.DataFrame(rows)),
        steady_ops=NOTHING_SENT,
        scope=Scope("steady", (SHOWN,), steps=1),
        steps=SimpleNamespace(
            process=SHOWN, cpu_windows=pl.DataFrame({"process": [SHOWN], "start_ns": [0], "end_ns": [100]})
        ),
    )
    assert step_passes.in_words(profile) == ""


def test_passes_of_one_thread_are_told() -> None:
    phases = ("forward", "backward", "forward", "backward", "optimizer")
    rows = [{"process": SHOWN, "thread": 1, "start_ns": 10 * i, "phase": p} for i, p in enumerate(phases)]
    profile: Any = SimpleNamespace(
        ranges=NO_RANGES,
        attributed=SimpleNamespace(phase_spans=pl.DataFrame(rows)),
        steady_ops=NOTHING_SENT,
        scope=Scope("steady", (SHOWN,), steps=1),
        steps=SimpleNamespace(
            process=SHOWN, cpu_windows=pl.DataFrame({"process": [SHOWN], "start_ns": [0], "end_ns": [100]})
        ),
    )
    assert step_passes.in_words(profile).startswith("A step is 2 forward and backward passes")
    # Passes of a pipeline's schedule, some of which run together, are not counted.
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    profile.steady_ops = pl.DataFrame({"cls": [DeviceActivity.COMM.value], "name": [name]})
    assert step_passes.in_words(profile) == ""


def test_the_process_that_has_the_windows_is_none_of_the_others() -> None:
    """Nor is one that made no step."""
    probes = [
        {"pid": 1, "windows_of": None, "steps": {"count": 20}}, {"pid": 2, "windows_of": "1", "steps": {"count": 20}},
        {"pid": 3, "windows_of": "1", "steps": {"count": 0}},
    ]  # fmt: skip
    profile: Any = SimpleNamespace(trace=SimpleNamespace(capture=SimpleNamespace(probe=probes)))
    assert window_checks._other_processes(profile).startswith(". 1 other process made steps, too")


def test_work_of_no_known_kind_has_no_kind() -> None:
    def kind(*work: tuple[str, int]) -> str:
        return gpu_work._kind(pl.DataFrame(work, schema=["family", "ns"], orient="row"))

    assert kind(("gemm", 50), ("norm", 50)) == "GEMM"
    assert kind(("gemm", 49), ("norm", 26), ("other", 25)) == ""
    assert kind(("other", 90), ("gemm", 10)) == ""
