"""Reports that several test files share: a training loop that uses every table that is read, with a truth known by hand."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path

import polars as pl

from nsysx.events import attribute, correlate, ledger, nvtx_ranges, profile, steps
from nsysx.events.profile import Profile
from nsysx.reading.load import load
from tests.builder import Report

US, MS = 1_000, 1_000_000

#: The length of one step of ``training``, and what runs on its GPU.
PERIOD = 1_000 * US


def gather(report: Report, folder: Path, *, window: str | None = None, step_range: str | None = None) -> Profile:
    """Return what the rooms between load and the analyses make of a report."""
    trace = load(report.write(folder / "r.sqlite"))
    named = nvtx_ranges.read(trace)
    attributed = attribute.attribute(trace, correlate.correlate(trace), named)
    found = steps.find(named, attributed, steps=window, step_range=step_range)
    ledgers = ledger.build(trace, attributed, named)
    return profile.gather(trace, named, attributed, found, ledgers, only_steady=window not in (None, "all"))


def edited(report: Path, folder: Path, *statements: str) -> Path:
    """Return a copy of a report that SQL has changed."""
    path = Path(shutil.copy(report, folder / "edited.sqlite"))
    with contextlib.closing(sqlite3.connect(path)) as base:
        for statement in statements:
            base.execute(statement)
        base.commit()
    return path


def names(frame: pl.DataFrame, *columns: str) -> list[tuple[object, ...]]:
    """Return rows with categorical columns as text."""
    return frame.select(pl.col(c).cast(pl.String) if frame[c].dtype == pl.Categorical else c for c in columns).rows()


def training(count: int = 6, *, own: bool = True, gap: int = 100, schema: str = "3.24.7") -> Report:
    """``count`` steps of 1 ms, GPU work in each (us from its begin): copy 20-40, fwd 60-260, bwd 280-480, allreduce 400-500,
    adam 520-620, memset 620-630. A step has a data range, a module tree, backward on its own thread, an allocation, an
    event pair, a wait on it, and a synchronize until 700.
    """
    report = Report(schema)
    report.gpu(pids=[(100, 0)])
    report.capture("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node")
    process = report.process(100)
    process.context()
    process.stream(7)
    process.stream(13)
    main, autograd = process.thread(100, "python"), process.thread(101, "pt_autograd_0")
    domain = "nsysx" if own else ""
    frames = {
        "Frames": [
            {"File": report.string("/home/me/train.py"), "Line": 12, "Function": report.string("main")},
        ]
    }
    lines = json.dumps({"Python Backtrace on CUDA": frames})
    load_call = main.call("cuLibraryLoadData", 1 * US, 9 * US)
    main.overhead(load_call, 2 * US, 5 * US, kind=6)
    main.profiler_overhead(12 * US, 2 * US)
    process.memory(5 * US, 1 << 20)
    for i in range(count):
        t = 20 * US + i * PERIOD

        def at(us: int, t: int = t) -> int:
            return t + us * US

        main.add_range(f"step {i}", at(0), at(900), domain=domain)
        main.add_range("data DataLoader" if own else "data", at(1), at(8), domain=domain)
        main.memcpy(at(9), 4 * US, kind="HtoD", bytes=1 << 20, pageable=i % 2 == 0, gpu_start=at(20), gpu_dur=20 * US)
        main.add_range("forward", at(15), at(40), domain=domain)
        main.add_range(":Net", at(16), at(39), domain=domain)
        main.add_range("fc:Linear", at(18), at(30), domain=domain)
        main.call("cudaMalloc_v3020", at(19), 1 * US)
        main.launch(at(20), 5 * US, kernel="gemm<float>(int)", gpu_start=at(60), gpu_dur=200 * US)
        process.memory(at(20), 4096, address=0x1000 + i, correlation=None)
        main.add_range("backward", at(45), at(90), domain=domain)
        if own:
            autograd.add_range("bwd fc:Linear", at(50), at(80), domain=domain)
        autograd.launch(at(55), 5 * US, kernel="gemm_bwd<float>(int)", gpu_start=at(280), gpu_dur=200 * US)
        main.event_record(1, at=at(91), stream=7)
        main.wait_event(1, at=at(94), stream=13)
        main.launch(
            at(97),
            3 * US,
            kernel="ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            gpu_start=at(400),
            gpu_dur=100 * US,
            stream=13,
        )
        main.add_range("optimizer AdamW" if own else "optimizer", at(110), at(130), domain=domain)
        main.launch(at(112), 5 * US, kernel="adam", gpu_start=at(520), gpu_dur=100 * US)
        main.memset(at(120), 2 * US, gpu_start=at(620), gpu_dur=10 * US)
        main.mark("python", at(140), domain="Python Backtrace on CUDA", json=lines)
        main.sync(at=at(140), dur=560 * US, backtrace=[("sync", "libc10.so")])
        main.call("cudaFree_v3020", at(710), 3 * US)
        process.memory(at(711), 4096, address=0x1000 + i, free=True)
        main.graph_node(at(720), 500 + i)
        main.osrt("poll", at(730), 5 * US)
    report.diagnostic("Some CUPTI events were dropped", severity=2)
    return report
