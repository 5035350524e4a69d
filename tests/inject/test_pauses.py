"""Garbage collections and compilations are noted when they matter, at their time, and nothing of the program changes."""

from __future__ import annotations

import gc
import json
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import nsysx_probe.pauses
import polars as pl
import pytest
import torch
from nsysx_probe import ranges
from torch import nn

from nsysx.events import nvtx_ranges, python_pauses
from nsysx.reading.load import load
from tests.inject.test_probe import Lab, armed
from tests.inject.test_probe_e2e import profile


def said(lab: Lab, kind: str) -> list[dict[str, Any]]:
    return [json.loads(label.name) for label in lab.tape.labels(kind)]


@pytest.fixture(autouse=True)
def without_the_heap_of_all_tests() -> Iterator[None]:
    """A collection looks at what this test made, and not at all that pytest and torch hold."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def listening() -> Iterator[list[Any]]:
    """What a listener keeps of every collection, however short."""
    kept: list[Any] = []
    listen = nsysx_probe.pauses.listener(kept, long_ns=0)
    gc.callbacks.append(listen)
    yield kept
    gc.callbacks.remove(listen)


class Garbage:
    """What a collection finds takes 2 ms of it to end, on a busy machine more."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        time.sleep(0.002)


def test_a_collection_is_kept_with_its_length_and_thread(listening: list[Any]) -> None:
    gc.collect()
    listening.clear()
    for _ in range(50):
        Garbage()
    begin = time.perf_counter_ns()
    gc.collect()
    end = time.perf_counter_ns()
    (full,) = [one for one in listening if one[2] == 2]
    ended, ns, _, collected, thread = full
    assert begin < ended - ns < ended < end
    assert ns >= 50 * 2_000_000
    assert collected >= 50
    assert thread == threading.get_native_id()


def test_short_collections_of_the_young_generations_are_not_kept() -> None:
    kept: list[Any] = []
    listen = nsysx_probe.pauses.listener(kept, long_ns=10**12)
    gc.callbacks.append(listen)
    try:
        gc.collect(0)
        gc.collect(1)
        assert not [one for one in kept if one[2] < 2]
        gc.collect(2)
    finally:
        gc.callbacks.remove(listen)
    assert [one[2] for one in kept] == [2]


def test_no_more_is_kept_than_there_is_room_for() -> None:
    kept: list[Any] = []
    listen = nsysx_probe.pauses.listener(kept)
    for _ in range(3_000):
        listen("start", {})
        listen("stop", {"generation": 2, "collected": 0})
    assert len(kept) == 1_000
    kept.clear()  # as the probe does when it has sent them
    listen("start", {})
    listen("stop", {"generation": 2, "collected": 0})
    assert len(kept) == 1


def test_what_a_callback_is_told_wrongly_hurts_nobody(listening: list[Any]) -> None:
    listen = gc.callbacks[-1]
    listening.clear()
    listen("stop", {})
    listen("start", {})
    listen("stop", {})
    assert listening == []


class Came(Exception):
    pass


def test_a_signal_during_a_collection_reaches_the_program(listening: list[Any]) -> None:
    """An exception in a gc callback is lost: what a handler raises must not be raised in ours."""
    heap = [[[] for _ in range(10)] for _ in range(20_000)]  # a collection takes tens of ms

    def handler(*_: Any) -> None:
        raise Came

    before = signal.signal(signal.SIGALRM, handler)
    everyone = list(gc.callbacks)
    gc.callbacks[:] = everyone[-1:]  # hypothesis listens too, with a function that does lose what comes
    came = during = 0
    try:
        for _ in range(8):
            gc.collect()
            usual_s = listening[-1][1] / 1e9
            try:
                signal.setitimer(signal.ITIMER_REAL, usual_s / 2)
                gc.collect()
                during += 1
                time.sleep(usual_s)
            except Came:
                came += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.callbacks[:] = everyone
    assert len(heap) and came == 8 and during < 8, "no alarm may be lost, and most came while Python collected"


def step(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()


def test_the_probe_sends_them_between_steps() -> None:
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    spans = []
    with armed(NSYSX_PAUSES="1") as lab:
        for number in range(6):
            step(net, optimizer, torch.ones(2, 4))
            if number % 2:
                Garbage()
                begin = time.perf_counter_ns()
                gc.collect()
                spans.append(time.perf_counter_ns() - begin)
    full = [one for one in said(lab, "gc") if one["generation"] == 2]
    assert len(full) == len(spans) == 3
    for one, ns in zip(full, spans, strict=True):
        assert 2_000_000 <= one["ns"] <= ns and one["ago_ns"] > 0
        assert one["thread"] == threading.get_native_id()
    # None is sent inside of a step's work.
    depth = 0
    for _, what, text in lab.tape.calls:
        depth += {"push": 1, "pop": -1}.get(what, 0)
        assert not (text.startswith("gc ") and depth)


def test_the_list_of_callbacks_is_as_it_was() -> None:
    def own(phase: str, info: dict[str, int]) -> None:
        pass

    gc.callbacks.append(own)
    before = gc.callbacks[:]
    try:
        with armed(NSYSX_PAUSES="1") as lab:
            assert len(gc.callbacks) == len(before) + 1
            saved = gc.callbacks[:]
            lab.probe.disarm()
            assert gc.callbacks == before
            gc.callbacks[:] = saved  # a program that puts back what it saw
            gc.collect()
            lab.probe.borders.pauses.send()
            assert said(lab, "gc") == []
            gc.callbacks[:] = before
        assert gc.callbacks == before
        with armed(NSYSX_TIMING="1"):
            assert gc.callbacks == before, "a run that is only timed is not listened to"
    finally:
        gc.callbacks.remove(own)


def test_a_child_made_by_fork_is_not_listened_to() -> None:
    with armed(NSYSX_PAUSES="1") as lab:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            lab.probe.forked()
            os.write(write, str(len(gc.callbacks)).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert int(os.read(read, 10)) == len(gc.callbacks) - 1
        os.close(read)
        os.close(write)


def test_nothing_is_sent_outside_of_the_window() -> None:
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with armed(NSYSX_PAUSES="1", NSYSX_STEPS="2:4") as lab:
        lab.probe.borders.window.profiler = lambda *_: None  # type: ignore[method-assign]
        for _ in range(6):
            step(net, optimizer, torch.ones(2, 4))
            gc.collect()
    assert len([one for one in said(lab, "gc") if one["generation"] == 2]) == 2


def test_recompilations_come_with_their_reason() -> None:
    torch._dynamo.reset()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, scale: int) -> torch.Tensor:
            return self.fc(x) * scale if scale > 1 else self.fc(x)

    net = Net()
    compiled = torch.compile(net, backend="eager", dynamic=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with armed(NSYSX_PAUSES="1") as lab:
        for scale in (1, 1, 2, 2, 3):
            optimizer.zero_grad()
            compiled(torch.ones(2, 4), scale).sum().backward()
            optimizer.step()
    noted = [one for one in said(lab, "compile") if one["function"] == "forward"]
    assert [one["reason"] is None for one in noted] == [True, False, False]
    assert "scale" in noted[1]["reason"] and "\n" not in noted[1]["reason"]
    assert noted[1]["id"].endswith("/1") and noted[2]["id"].endswith("/2")
    assert all(one["file"].endswith("test_pauses.py") and one["line"] > 1 and one["ns"] > 0 for one in noted)
    torch._dynamo.reset()


def test_a_torch_that_says_nothing_of_its_compilations_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        compile_id = "0/0"

    import torch._dynamo.utils as utils

    monkeypatch.setattr(utils, "_compilation_metrics", [Old()])
    with armed(NSYSX_PAUSES="1") as lab:
        lab.probe.borders.pauses.send()
        assert said(lab, "compile") == []


PLANTED = """
import atexit, gc, json, time
import torch

class Node:
    def __init__(self): self.me = self
    def __del__(self): time.sleep(0.01)
Node()  # garbage as Python ends
atexit.register(gc.collect)
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
heap = [[[] for _ in range(10)] for _ in range(10_000)]
took = []
for number in range(31):
    optimizer.zero_grad()
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    if number % 10 == 0:
        Node()
        begin = time.perf_counter_ns()
        gc.collect()
        took.append(time.perf_counter_ns() - begin)
print(json.dumps(took))
"""


@pytest.fixture
def nsys() -> str:
    path = os.environ.get("NSYSX_TEST_NSYS", "")
    assert path and Path(path).exists(), "NSYSX_TEST_NSYS must name a working nsys: this is about a real report"
    return path


def test_planted_collections_in_a_real_report(nsys: str, tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    run = profile(nsys, tmp_path, [sys.executable, "planted.py"])
    assert run.code == 0, run.err
    assert "ignored" not in run.err, "Python says so of an exception in a callback"
    run.check()
    took = json.loads(next(line for line in run.out.splitlines() if line.startswith("[")))
    marks = {}
    with closing(sqlite3.connect(tmp_path / "r.sqlite")) as db, db:
        name = "coalesce(text, (select value from StringIds where id = textId))"
        for start, text in db.execute(f"select start, {name} from NVTX_EVENTS where eventType in (34, 59, 60)"):
            marks[start] = ranges.decode(text or "")
    steps = sorted(start for start, label in marks.items() if label.kind == "step")
    full = [(start, json.loads(label.name)) for start, label in sorted(marks.items()) if label.kind == "gc"]
    full = [(start - one["ago_ns"], one) for start, one in full if one["generation"] == 2]
    mine = full[-len(took) - 1 : -1]  # the last one is that of atexit
    assert len(took) == 4 and len(mine) == 4
    for (_, one), ns in zip(mine, took, strict=True):
        assert 10_000_000 <= one["ns"] <= ns
    # They lie in steps 0, 10, 20 and 30, which last to the beginning of the next one.
    at = [sum(start < end for start in steps) - 1 for end, _ in mine]
    assert at == [0, 10, 20, 30]
    read = nvtx_ranges.read(load(tmp_path / "r.sqlite"))
    noted = read.pauses.filter((pl.col("kind") == "gc") & (pl.col("generation") == 2))
    assert noted["end_ns"].to_list()[-5:-1] == [end for end, _ in mine]
    assert python_pauses.listened(read.notes, int(noted["process"][0]))
