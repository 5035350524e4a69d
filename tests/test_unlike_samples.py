"""Programs that no sample resembles, each against SQL on its report: a threaded server, a solver on two GPUs, training with pauses."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import nsysx
from tests.builder import Report

US = 1_000


class _Stream:
    """A stream of one device on which a host thread queues work."""

    def __init__(self, thread: Any, stream: int, device: int = 0) -> None:
        self.thread, self.stream, self.device, self.free = thread, stream, device, 0

    def _start(self, at: int) -> int:
        return max(at + 6 * US, self.free + US)

    def kernel(self, at: int, name: str, us: int) -> None:
        start = self._start(at)
        self.thread.launch(at, 5 * US, kernel=name, gpu_start=start, gpu_dur=us * US, **self._place())
        self.free = start + us * US

    def copy(self, at: int, kind: str, us: int, size: int, *, wait: bool = False) -> int:
        """Queue a copy, and return when its call ends: if it waits, behind the copy."""
        start = self._start(at)
        self.free = start + us * US
        end = self.free + 4 * US if wait else at + 6 * US
        self.thread.memcpy(
            at, end - at, kind=kind, bytes=size, pageable=wait, gpu_start=start, gpu_dur=us * US, **self._place()
        )
        return end

    def graph(self, at: int, kernels: Iterable[tuple[str, int]], number: int) -> None:
        nodes, begin = [], self._start(at)
        for name, us in kernels:
            nodes.append((name, begin, us * US))
            begin += us * US + 800
        self.thread.graph_launch(at, 12 * US, nodes=nodes, graph=number, **self._place())
        self.free = begin

    def wait(self, at: int) -> int:
        end = max(at, self.free) + 3 * US
        self.thread.sync(at=at, dur=end - at, stream=self.stream, device=self.device)
        return end

    def _place(self) -> dict[str, int]:
        return {"stream": self.stream, "device": self.device}


def server() -> Report:
    """Two threads answer requests of any size, each on its own stream."""
    report, chance = Report(), random.Random(4)
    process = report.process(100)
    for worker in range(2):
        thread = process.thread(100 + worker, f"worker-{worker}")
        stream, now = _Stream(thread, 13 + worker), (1_000 + 333 * worker) * US
        for request in range(40):
            begin = now
            now = stream.copy(now, "HtoD", 12, chance.randint(1, 9) * 10**5)
            for k in range(chance.randint(3, 30)):
                stream.kernel(now, f"ampere_gemm_{k % 5}", chance.randint(3, 60))
                now += chance.randint(6, 14) * US
            now = stream.wait(stream.copy(now, "DtoH", 3, 4_096))
            thread.add_range(f"request {worker}-{request}", begin, now)
            now += chance.randint(10, 900) * US
    return report


def solver() -> Report:
    """One process drives two GPUs by CUDA graphs, which exchange their borders; every tenth state is written out. No range says so."""
    report = Report()
    thread = report.process(200, name="cfd").thread(200, "cfd")
    devices, now = [_Stream(thread, 20 + d, d) for d in range(2)], 500 * US
    for number in range(60):
        for d, device in enumerate(devices):
            device.graph(now, (("flux_x", 70 + 10 * d), ("flux_y", 75), ("update", 30)), d + 1)
            now += 14 * US
        for device in devices:
            device.free = max(other.free for other in devices)
            now = device.copy(now, "PtoP", 25, 2_000_000)
        if number % 10 == 9:
            now = devices[0].copy(now, "DtoH", 4_000, 40_000_000, wait=True)
        for device in devices:
            now = device.wait(now)
        now += 20 * US
    return report


def training() -> Report:
    """Training whose host runs ahead; an evaluation every fifth step, and a checkpoint every tenth."""
    report = Report()
    thread = report.process(300).thread(300, "python")
    stream, now = _Stream(thread, 7), 700 * US
    for number in range(24):
        begin = now
        for name, us in (*((f"gemm_{k}", 60 + 15 * k) for k in range(8)), ("adamw_multi_tensor_apply", 40)):
            stream.kernel(now, name, us)
            now += 7 * US
        thread.add_range(f"step {number}", begin, now)
        if number % 5 == 4:
            begin = now
            for k in range(20):
                stream.kernel(now, f"gemm_{k % 8}", 55)
                now += 7 * US
            now = stream.wait(now)
            thread.add_range("evaluation", begin, now)
        if number % 10 == 9:
            begin = now
            now = stream.copy(now, "DtoH", 3_000, 30_000_000, wait=True)
            thread.add_range("checkpoint", begin, now)
    return report


def busy(spans: Iterable[tuple[int, int]], start: int, end: int) -> int:
    """Return how long any of the spans lasts in [start, end)."""
    total = reach = 0
    for a, b in sorted((max(a, start), min(b, end)) for a, b in spans):
        total += max(b - max(a, reach), 0)
        reach = max(reach, b)
    return total


KERNELS, COPIES, CALLS = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "RUNTIME"))


@pytest.mark.parametrize("made", [server, solver, training])
def test_figures_equal_those_of_sql(made: Callable[[], Report], tmp_path: Path) -> None:
    path = made().write(tmp_path / "r.sqlite")
    report = nsysx.report(path)
    summary, totals = report.summary, report.summary.totals
    with closing(sqlite3.connect(path)) as db:

        def ask(text: str) -> list[Any]:
            return db.execute(text).fetchall()

        for table, count, ns in (
            (KERNELS, "kernels", "kernel_ns"),
            (COPIES, "memcpys", "memcpy_ns"),
            (CALLS, "api_calls", "api_ns"),
        ):
            assert [(totals[count], totals[ns])] == ask(f"select count(*), sum(end - start) from {table}")
        of_kind = ask(f"select sum(bytes) from {COPIES} group by copyKind order by 1")
        work = ask(f"select deviceId, start, end from {KERNELS} union all select deviceId, start, end from {COPIES}")
    copied: dict[str, int] = {}
    for row in summary.rows("copies"):
        copied[row["direction"]] = copied.get(row["direction"], 0) + row["bytes"]
    assert sorted(copied.values()) == [size for (size,) in of_kind]
    profile = report._profile
    shift = profile.attributed.gpu_ops["start_ns"].min() - min(start for _, start, _ in work)
    windows = {row["device"]: row for row in profile.steps.windows.rows(named=True)}
    assert sorted(windows) == sorted({device for device, *_ in work})
    for row in summary.rows("gpu_ledger"):
        start, end = (windows[row["device"]][name] - shift for name in ("start_ns", "end_ns"))
        of_device = [(a, b) for device, a, b in work if device == row["device"]]
        assert row["window_ns"] == end - start
        assert row["window_ns"] - row["idle_ns"] == busy(of_device, start, end)
        assert sum(row["idle_causes"].values()) == row["idle_ns"]


def test_their_steps_are_what_repeats(tmp_path: Path) -> None:
    assert nsysx.report(server().write(tmp_path / "server.sqlite")).summary.steps.source == "capture"
    solved = nsysx.report(solver().write(tmp_path / "solver.sqlite")).summary
    assert (solved.steps.source, solved.steps.count) == ("kernels", 60)
    assert [level["every"] for level in solved.steps.levels] == [None, 10]
    trained = nsysx.report(training().write(tmp_path / "training.sqlite")).summary
    assert trained.steps.count == 24 and trained.steps.coverage is not None
    between = sum(row["ns"] for row in trained.steps.coverage["rest"] if "between" in row["what"])
    evaluations, checkpoints = 4 * 20 * 56 * US, 2 * 3_000 * US
    assert between == pytest.approx(evaluations + checkpoints, rel=0.05)
