"""The wait for the devices before a window closes: what it covers, and when it ends without them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nsysx_probe import at_limit, at_work, capture_range, capture_window, draining

import nsysx
from tests.inject.test_marking import train
from tests.inject.test_probe import Lab, Net
from tests.inject.test_probe_windows import know_bare_steps_soon

pytestmark = pytest.mark.filterwarnings("ignore")


class Driver:
    """A driver with two devices in use and one that is not; ``busy`` tells by device whether it has work that was launched so far."""

    def __init__(self, busy: Callable[[int], bool]) -> None:
        self.busy = busy
        self.called: list[tuple[Any, ...]] = []
        self.captures = 0
        self.modes: set[int] = set()
        self.held: list[int] = []
        self.cuCtxRecordEvent: Any = self._record

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        assert mode._obj.value == 2  # relaxed: what this thread calls disturbs no capture
        self.modes.add(threading.get_ident())
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = 3
        return 0

    def cuDevicePrimaryCtxGetState(self, device: int, _flags: Any, active: Any) -> int:
        active._obj.value = device != 1
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> int:
        context._obj.value = 100 + device
        self.held.append(device)
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: int) -> int:
        self.held.remove(device)
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        self.called.append(("current", context.value - 100))
        return 0

    def cuStreamIsCapturing(self, stream: Any, _status: Any) -> int:
        assert stream.value == 1
        return self.captures

    def cuEventCreate(self, event: Any, flags: int) -> int:
        event._obj.value = 200 + self.called[-1][1]
        return 0 * flags

    def _record(self, context: Any, event: Any) -> int:
        assert event.value - 200 == context.value - 100 and threading.get_ident() in self.modes
        self.called.append(("recorded", context.value - 100))
        return 0

    def cuEventQuery(self, event: Any) -> int:
        return 600 if self.busy(event.value - 200) else 0

    def cuEventDestroy_v2(self, event: Any) -> int:
        self.called.append(("gone", event.value - 200))
        return 0

    def cuCtxSynchronize(self) -> int:
        device = self.called[-1][1]
        self.called.append(("synchronizes", device))
        while self.busy(device):
            time.sleep(0.001)
        return 0


@pytest.fixture
def drive(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[int], bool]], Driver]]:
    """Yield what puts a driver in place of the one that this machine does not have."""
    monkeypatch.setattr(draining, "waits", [])

    def use(busy: Callable[[int], bool]) -> Driver:
        driver = Driver(busy)
        monkeypatch.setattr(draining, "driver", lambda _loader=None: driver)
        return driver

    yield use
    draining.captured.clear()


def held_at_rest(several: bool = False) -> bool | None:
    """Return whether the devices are at rest where the program is held for it."""
    held = draining.Held(several=several)
    with held:
        pass
    assert sys.getswitchinterval() < 1
    return held.rested


def until(seconds: float) -> Callable[[int], bool]:
    """Return a device that has work for so long."""
    end = time.monotonic() + seconds
    return lambda _device: time.monotonic() < end


def test_every_device_in_use_has_done_what_was_launched(drive: Any) -> None:
    ends = {0: time.monotonic() + 0.05, 2: time.monotonic() + 0.15}
    driver = drive(lambda device: time.monotonic() < ends[device])
    assert draining.drain() is True and time.monotonic() >= ends[2]
    assert [c for c in driver.called if c[0] == "recorded"] == [("recorded", 0), ("recorded", 2)]
    assert {c for c in driver.called if c[0] == "gone"} == {("gone", 0), ("gone", 2)} and not driver.held
    (wait,) = draining.waits
    assert wait["rested"] and not wait["beside"] and wait["ns"] > 0


def test_a_wait_ends_without_a_device_that_never_rests(drive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "DRAIN_S", 0.1)
    for old in (False, True):
        driver = drive(lambda device: device == 2)
        if old:  # a driver without the call: a synchronize, which is left alone
            driver.cuCtxRecordEvent = None
        begin = time.monotonic()
        assert draining.drain() is False and time.monotonic() - begin >= 0.1
        assert not draining.waits[-1]["rested"]
        driver.busy = lambda _device: False


def test_an_old_driver_is_synchronized_where_nobody_has_to_wait_for_it(drive: Any) -> None:
    busy = until(0.1)
    driver = drive(busy)
    driver.cuCtxRecordEvent = None
    assert draining.drain() is True and draining.waits[-1]["ns"] > 0 and not busy(0)
    assert sorted(c for c in driver.called if c[0] == "synchronizes") == [("synchronizes", 0), ("synchronizes", 2)]


def test_a_stream_that_is_captured_is_left_alone(drive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = drive(lambda _device: False)
    draining.captured.add(7)
    assert draining.drain() is None and not draining.waits
    monkeypatch.setattr(draining, "DRAIN_LONGEST_S", 0.05)
    assert held_at_rest() is False and not draining.waits.pop()["rested"]
    monkeypatch.undo()
    monkeypatch.setattr(draining, "waits", [])
    monkeypatch.setattr(draining, "driver", lambda _loader=None: driver)
    threading.Timer(0.05, draining.captured.clear).start()  # the capture ends
    assert held_at_rest() is True and draining.waits.pop()["ns"] > 0 and not draining.captured
    driver.called.clear()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert draining.drain() is None
    assert not driver.called and not draining.waits
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    driver.captures = 906  # a blocking stream of somebody else is captured: the driver says so
    assert draining.drain() is False
    driver.captures, driver.cuCtxRecordEvent = 0, lambda *_: 900
    assert draining.drain() is False and not [c for c in driver.called if c[0] in ("recorded", "synchronizes")]


def test_the_probe_knows_which_graphs_are_captured() -> None:
    lab = Lab()
    try:
        graph = object()
        lab.probe._begin_capture(graph)
        assert draining.captured == {id(graph)}
        lab.probe._end_capture(graph)
        assert not draining.captured
    finally:
        lab.close()


def test_without_a_driver_or_a_device_there_is_nothing_to_wait_for(drive: Any) -> None:
    assert draining.driver() is None or torch.cuda.is_available()
    driver = drive(lambda _device: True)
    driver.cuDeviceGetCount = lambda _count: 3  # the program has not begun to use it
    assert draining.drain() is None and held_at_rest() is None and not draining.waits
    assert draining.drain() is None


@pytest.mark.parametrize(("longest_s", "wait_s"), [(0, 10), (0.014, 10 + 1024 * 0.014), (9, 60)])
def test_the_time_grows_with_the_steps(longest_s: float, wait_s: float) -> None:
    assert draining.longest_wait_s(round(longest_s * 1e9)) == pytest.approx(wait_s)


def test_a_signal_ends_the_wait_and_is_the_programs(drive: Any) -> None:
    drive(lambda _device: True)
    main = threading.main_thread().ident
    assert main is not None
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.1, lambda: signal.pthread_kill(main, 2)).start()
        draining.drain()


@pytest.fixture
def launching(drive: Any) -> Iterator[list[float]]:
    """Yield when the device will have done all: it needs 50 ms for each launch, and the program keeps half a second of them queued."""
    done_at, stop, recorded = [time.monotonic()], threading.Event(), dict[int, float]()

    def program() -> None:
        while not stop.is_set():
            if done_at[0] < time.monotonic() + 0.5:
                done_at[0] = max(done_at[0], time.monotonic()) + 0.05
            time.sleep(0.0001)

    thread = threading.Thread(target=program)
    thread.start()
    while done_at[0] - time.monotonic() < 0.3:  # the queue is long
        time.sleep(0.01)
    driver = drive(lambda device: time.monotonic() < recorded[device])
    record = driver.cuCtxRecordEvent

    def note(context: Any, event: Any) -> int:
        recorded[context.value - 100] = done_at[0]
        return int(record(context, event))

    driver.cuCtxRecordEvent = note
    yield done_at
    stop.set()
    thread.join()


def test_a_program_that_is_held_launches_nothing_from_when_its_devices_rest(
    launching: list[float], tmp_path: Path
) -> None:
    """It never rests by itself. It is held as long as somebody else has locked a file, and then goes on."""
    locks = [sys.executable, "-c", LOCKS, str(tmp_path / "lock")]
    with subprocess.Popen(locks, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdin is not None
        other.stdout.readline()
        held = draining.Held()
        with held:
            assert held.rested and launching[0] <= time.monotonic()
            before, began = launching[0], time.monotonic()
            ctypes.PyDLL(None).write(other.stdin.fileno(), b"\n", 1)  # it unlocks half a second later
            held.until_unlocked(str(tmp_path / "lock"))
            assert time.monotonic() - began > 0.3 and launching[0] == before
        while launching[0] == before:
            time.sleep(0.01)
        assert draining.waits[-1]["beside"]


LOCKS = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(1, flush=True); input(); time.sleep(0.5)"


def test_the_range_of_two_windows_ends_when_the_device_has_come_to_rest(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(capture_range, "_calls", [lambda: seen.append("open") or 1, lambda _: seen.append("close")])
    monkeypatch.setattr(capture_range, "_open", [])
    monkeypatch.setattr(capture_range, "claim", lambda **_: "")
    know_bare_steps_soon(monkeypatch)
    capture_range.begin()
    driver = drive(lambda _device: False)
    driver.cuCtxRecordEvent = lambda *_: seen.append("waits") or 0
    lab = Lab(NSYSX_STEPS="windows", NSYSX_MARKS="few")
    try:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
        while seen.count("close") < 2:
            train(net, 1, optimizer)
        assert seen == ["open", "waits", "waits", "close"] * 2  # two devices
        record: dict[str, Any] = lab.probe.status.record()
        assert [w["rested"] for w in record["device_waits"]] == [True, True]
        assert all(
            w["ns"] <= pause for w, pause in zip(record["device_waits"], record["window_pauses_ns"], strict=True)
        )
    finally:
        lab.close()


@pytest.mark.parametrize("steps", ["3:6", "auto"])
def test_a_window_of_steps_ends_when_the_device_has_come_to_rest(
    drive: Any, monkeypatch: pytest.MonkeyPatch, steps: str
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(capture_window.CaptureWindow, "profiler", lambda _self, _torch, call: seen.append(call))
    driver = drive(lambda _device: False)
    driver.cuCtxRecordEvent = lambda *_: seen.append("waits") or 0
    lab = Lab(NSYSX_STEPS=steps)
    try:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
        for _ in range(90):
            train(net, 1, optimizer)
        assert seen == ["cudaProfilerStart", "waits", "waits", "cudaProfilerStop"]
        assert lab.probe.status.record()["device_waits"][0]["rested"]
    finally:
        lab.close()


def test_the_programs_own_window_ends_when_the_device_has_come_to_rest(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    cudart = SimpleNamespace(
        cudaProfilerStart=lambda: seen.append("start"), cudaProfilerStop=lambda: seen.append("stop")
    )
    cuda = SimpleNamespace(
        is_available=lambda: True,
        cudart=lambda: cudart,
        synchronize=lambda: seen.append("sync"),
        is_initialized=lambda: False,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    driver = drive(lambda _device: False)
    driver.cuCtxRecordEvent = lambda *_: seen.append("waits") or 0
    with nsysx.capture():
        seen.append("work")
    assert seen == ["sync", "start", "work", "waits", "waits", "stop"]


@pytest.mark.parametrize(("busy_s", "several", "sign"), [(0.1, False, at_limit.RESTS), (999, True, at_limit.BUSY)])
def test_a_process_comes_to_rest_when_nsysx_run_asks_for_it(
    drive: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, busy_s: float, several: bool, sign: str
) -> None:
    monkeypatch.setattr(at_limit, "LIMIT_LOOK_S", 0.01)
    monkeypatch.setattr(draining, "DRAIN_OF_RANK_S", 0.2)
    monkeypatch.setattr(draining, "is_one_of_several", lambda: several)
    drive(until(busy_s))
    monkeypatch.setenv("NSYSX_PROBE_DIR", str(tmp_path))
    monkeypatch.setenv("NSYSX_LIMIT", "1")
    (tmp_path / at_limit.OPEN).touch()
    at_limit.watch_whole()
    deadline = time.monotonic() + 300

    def becomes(kind: str) -> bool:
        path = tmp_path / f"{kind}{os.getpid()}"
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        return path.exists()

    assert becomes(at_limit.WATCHES)
    (tmp_path / at_limit.REST).touch()  # nobody has locked it: the program is not held
    assert becomes(sign) and draining.waits[-1]["rested"] == (not several)


def test_a_process_watches_as_long_as_something_is_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(at_limit, "LIMIT_LOOK_S", 0.001)
    (tmp_path / at_limit.REST).touch()
    at_limit._watch(str(tmp_path), lambda: False)
    assert (tmp_path / f"{at_limit.WATCHES}{os.getpid()}").exists()
    at_limit._watch(str(tmp_path / "gone"), lambda: True)


@pytest.mark.parametrize("traced", [True, False])
def test_a_window_is_open_once_calls_of_the_driver_take_longer(
    drive: Any, monkeypatch: pytest.MonkeyPatch, *, traced: bool
) -> None:
    """The clock is the test's own: on a busy machine a call of 0.2 us takes twice as long without any tracing."""
    monkeypatch.setattr(at_work, "AT_WORK_LONGEST_S", 20 if traced else 0.3)
    monkeypatch.setattr(at_work, "waits", [])
    driver = drive(lambda _device: False)
    now_ns = 0

    def passes(ns: int) -> None:
        nonlocal now_ns
        now_ns += ns

    clock = SimpleNamespace(
        perf_counter_ns=lambda: now_ns, monotonic=lambda: now_ns / 1e9, sleep=lambda s: passes(round(s * 1e9))
    )
    monkeypatch.setattr(at_work, "time", clock)

    def current(context: Any) -> int:
        context._obj.value = 100
        passes(700 if traced and now_ns > 100_000_000 else 200)
        return 0

    driver.cuCtxGetCurrent = current
    tracing = at_work.CallTracing()
    tracing.wait()
    (wait,) = at_work.waits
    assert wait["seen"] is traced and wait["bare_ns"] == 200 and wait["traced_ns"] == (700 if traced else 200)
    assert 0.1e9 < wait["ns"] < 15e9 if traced else wait["ns"] >= 0.3e9


def test_where_no_device_is_in_use_nobody_waits_for_its_calls(drive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_work, "waits", [])
    driver = drive(lambda _device: False)
    for call in (lambda _: 3, lambda _: 0, None):  # not begun, begun without a context, unknown
        driver.cuCtxGetCurrent = call
        at_work.CallTracing().wait()
    assert not at_work.waits


def test_an_exception_of_the_programs_handler_ends_the_wait_and_is_the_programs(drive: Any) -> None:
    class Late(Exception):
        pass

    def handler(*_: object) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, handler)
    try:
        drive(lambda _device: False).cuCtxGetCurrent = lambda _: signal.raise_signal(signal.SIGALRM)
        with pytest.raises(Late):
            at_work.CallTracing()
    finally:
        signal.signal(signal.SIGALRM, before)
