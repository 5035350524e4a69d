"""What the record of one run says."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsysx.inject.nsysx_probe.changes import Watch
from nsysx.inject.nsysx_probe.trial import TrialRecorder
from nsysx.trying import trial_run, trial_steps
from nsysx.trying.trial_bounds import BLOCKS_OF_STEPS


def test_the_step_of_a_run_is_the_median_of_the_means_of_equal_blocks() -> None:
    def step(lengths: list[float], warm: int = 3) -> float:
        numbered = {str(number): ns for number, ns in enumerate(lengths)}
        return trial_steps.step_of({"warm": warm, "steps": len(lengths), "steps_ns": numbered})

    cold, blocks = [9e9] * 3, BLOCKS_OF_STEPS
    lengths = [10.0 * i * i + j for i in range(blocks) for j in (0, 4)]  # blocks of two, whose means are 2, 12, 42, ...
    assert step([*cold, *lengths]) == pytest.approx(10 * (blocks // 2) ** 2 + 2)
    assert step([*cold, 7e9, *lengths]) == step([*cold, *lengths]), (
        "what does not fill a block is left out at the front"
    )
    assert step([*cold, 5.0, 1.0, 3.0]) == 3.0, "too few for blocks: the median"
    assert math.isnan(step(cold))


class Device:
    """A device with a queue, and the torch that drives it: the host is at ``host_ns``, the device busy until ``device_ns``.

    An event has the time at which the device reaches it.
    """

    def __init__(self) -> None:
        self.host_ns = self.device_ns = 0.0
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                self.ns = 0.0

            def record(self) -> None:
                self.ns = max(device.host_ns, device.device_ns)

            def elapsed_time(self, later: Any) -> float:
                return float(later.ns - self.ns) / 1e6

        self.autocast = type("autocast", (), {"__enter__": None})
        self.cuda = SimpleNamespace(
            Event=Event, is_initialized=lambda: True, is_current_stream_capturing=lambda: False,
            synchronize=self.synchronize, max_memory_allocated=lambda: 0,
        )  # fmt: skip

    def synchronize(self) -> None:
        self.host_ns = max(self.host_ns, self.device_ns)

    def no_grad(self) -> Any:
        return contextlib.nullcontext()

    def step(self, host_ns: float, device_ns: float) -> None:
        """Let the host take ``host_ns`` to start work of ``device_ns``; the device works while the host goes on."""
        self.device_ns = max(self.device_ns, self.host_ns) + device_ns
        self.host_ns += host_ns


def test_what_one_side_left_in_the_queue_is_not_in_the_others_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replayed graphs: the host needs 0.1 ms for 1 ms of the device's work, so it is blocks ahead; without them it needs 3 ms."""
    device = Device()
    environ = {"NSYSX_TRIAL": "3:10:0:8:20:0:0", "NSYSX_PROBE_DIR": str(tmp_path)}
    made = TrialRecorder(device, environ)
    watch = Watch()
    watch.count = 1
    watch.can_turn()
    made.watches = {"graphs": watch}
    monkeypatch.setattr(made, "_finish", lambda: made.write("measured"))
    for index in range(3 + 10 + 2 * 8 * 20):
        made.border(index)
        device.step(1e5 if watch.on else 3e6, 1e6)
        made.border(None)
    (file,) = tmp_path.glob("trial-*.json")
    pairs = trial_steps.pairs_of(json.loads(file.read_text()))
    assert len(pairs) == 8
    assert all(off == pytest.approx(3e6) and on == pytest.approx(1e6) for off, on in pairs), pairs


def test_one_start_measures_the_unchanged_program_and_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The change is on in the warm-up, off in the measured steps, and on and off in blocks, which begin without it."""
    device = Device()
    made = TrialRecorder(device, {"NSYSX_TRIAL": "3:10:0:8:4:0:0.00001", "NSYSX_PROBE_DIR": str(tmp_path)})
    watch = Watch()
    watch.count = 1
    watch.can_turn()
    made.watches = {"graphs": watch}
    monkeypatch.setattr(made, "_finish", lambda: made.write("measured"))
    on = []
    for index in range(3 + 10 + 2 * 8 * 4):
        made.border(index)
        on.append(watch.on)
        device.step(1e5, 1e6 if watch.on else 3e6)
        made.border(None)
    assert on[:13] == [True] * 3 + [False] * 10 and on[13:29] == ([False] * 4 + [True] * 4 + [True] * 4 + [False] * 4)
    (file,) = tmp_path.glob("trial-*.json")
    record = json.loads(file.read_text())
    assert record["turned_off"] and trial_steps.step_of(record) == pytest.approx(3e6)
    assert trial_steps.pairs_of(record) == [(pytest.approx(3e6), pytest.approx(1e6))] * 8


def test_a_run_ends_at_its_time_with_the_steps_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From five measured steps on, also in its blocks: what a slow start leaves of the budget is used."""
    device = Device()
    environ = {"NSYSX_TRIAL": "3:30:0:8:20:1:0", "NSYSX_PROBE_DIR": str(tmp_path)}
    made = TrialRecorder(device, environ)
    finished = []
    monkeypatch.setattr(made, "_finish", lambda: (made.write("measured"), finished.append(made.index)))
    for index in range(9):
        made.border(index)
        device.step(3e6, 1e6)
        made.border(None)
        if finished:
            break
    (file,) = tmp_path.glob("trial-*.json")
    record = json.loads(file.read_text())
    assert finished == [7] and record["steps"] == 8 and trial_steps.step_of(record) == pytest.approx(3e6)


def test_a_program_that_has_just_started_when_a_signal_comes_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception of the signal's handler may come before Popen has returned, and nobody holds the process then."""
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def interrupted(*words: Any, **options: Any) -> None:
        started.append(start(*words, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trial_run.Runner(["sleep", "60"]).run([], trial_run.RunPlan(1, 1), trial_run.RunTimeouts(1, 1, 1, 1))
    assert started[0].wait(timeout=300) == -signal.SIGKILL


def test_a_program_whose_ending_a_signal_interrupts_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    kill = os.killpg

    def interrupted(group: int, number: int) -> None:
        killed.append(group)
        if len(killed) == 1:
            raise KeyboardInterrupt
        kill(group, number)

    monkeypatch.setattr(os, "killpg", interrupted)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        trial_run.Runner(["sleep", "60"]).run([], trial_run.RunPlan(1, 1), trial_run.RunTimeouts(1, 1, 1, begun))
    assert killed == [killed[0]] * 2
    assert not Path(f"/proc/{killed[0]}").exists()
