"""Where the ranks of a job stop together: who waits for whom, and for how long."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nsysx_probe import capture_range, meeting, two_windows

from tests.inject.test_marking import train
from tests.inject.test_probe import Lab, Net


def rank(folder: Path, number: int, size: int = 3) -> meeting.Meeting:
    about = {"NSYSX_PROBE_DIR": str(folder), "LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": str(size)}
    return meeting.Meeting(about)


def test_all_wait_for_the_last_one_and_go_on_when_the_first_has_acted(tmp_path: Path) -> None:
    happened: list[str] = []

    def act() -> None:
        happened.append("acts")
        time.sleep(0.05)

    def attend(number: int, at: meeting.Meeting) -> None:
        for turn in range(2):
            time.sleep(0.05 * number)
            happened.append(f"{turn} comes")
            assert at.hold(number == 0, act, 0)
            happened.append(f"{turn} goes")

    ranks = [threading.Thread(target=attend, args=(i, rank(tmp_path, i))) for i in range(3)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(20)
    assert happened[:4] == ["0 comes"] * 3 + ["acts"]
    for turn in (0, 1):
        acted = [i for i, what in enumerate(happened) if what == "acts"][turn]
        assert all(happened.index(f"{turn} goes") > acted > i for i, w in enumerate(happened) if w == f"{turn} comes")
    assert happened.count("acts") == 2 and happened.count("1 goes") == 3


def test_a_rank_that_never_comes_is_not_waited_for_longer_than_its_steps_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "_WAIT_S", 0.05)
    acted: list[float] = []
    began = time.monotonic()
    assert not rank(tmp_path, 0).hold(True, lambda: acted.append(time.monotonic() - began), round(0.1e9))
    assert len(acted) == 1 and acted[0] >= 0.05 + 2 * 0.1
    assert rank(tmp_path, 1).hold(False, lambda: acted.append(0), 0)  # it comes too late and is not held
    assert not rank(tmp_path / "gone", 1).hold(False, lambda: acted.append(0), 0)  # nobody leads
    assert len(acted) == 1


def test_a_signal_that_ends_the_wait_is_the_programs_and_holds_nobody_else(tmp_path: Path) -> None:
    def act() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rank(tmp_path, 0, size=1).hold(True, act, 0)
    assert rank(tmp_path, 1, size=2).hold(False, act, 0)


def test_a_window_ends_when_the_device_has_nothing_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Event:
        def record(self) -> None:
            seen.append("recorded")

        def query(self) -> bool:
            seen.append("asked")
            return seen.count("asked") > 2

    torch = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True, Event=Event))
    rank(tmp_path, 0, size=1).hold(True, lambda: seen.append("acts"), 0, torch)
    assert seen == ["recorded", "asked", "asked", "asked", "acts"]
    monkeypatch.setattr(meeting, "_DRAIN_S", 0.02)  # a queue that waits for another rank is not waited for
    seen.clear()
    torch.cuda.Event = type("Busy", (), {"record": lambda _: None, "query": lambda _: False})
    rank(tmp_path / "b", 0, size=1).hold(True, lambda: seen.append("acts"), 0, torch)
    assert seen == ["acts"]


def test_a_process_of_a_job_that_no_torchrun_started_closes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its peers would wait for it in their collectives, with their windows open."""
    switched: list[str] = []
    monkeypatch.setattr(
        capture_range, "_calls", [lambda: switched.append("open") or 1, lambda _: switched.append("close")]
    )
    monkeypatch.setattr(capture_range, "_open", [])
    monkeypatch.setattr(two_windows, "_is_one_of_several", lambda: True)
    monkeypatch.setattr(two_windows, "_AS_LONG", 1e9)
    capture_range.begin()
    lab = Lab(NSYSX_STEPS="windows", NSYSX_MARKS="few")
    try:
        import torch

        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
        for _ in range(100):
            train(net, 1, optimizer)
        record: dict[str, Any] = lab.probe.status.record()
        assert switched == ["open"] and record["unrecorded_steps"] is None
        assert "one of several processes" in record["window_missed"]
    finally:
        lab.close()


def test_processes_are_several_where_torch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed

    assert not two_windows._is_one_of_several()
    for size, several in ((1, False), (2, True)):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda size=size: size)
        assert two_windows._is_one_of_several() is several
