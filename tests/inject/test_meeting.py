"""Where the ranks of a job stop together: who waits for whom, and for how long."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from nsysx_probe import capture_range, capture_window, clock, draining, meeting, probe_windows

from tests.inject.test_marking import train
from tests.inject.test_probe import Lab, Net
from tests.inject.test_probe_windows import recorded


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

    def drain(longest_ns: int, *, several: bool) -> None:
        seen.append(f"drains {longest_ns} {several} {sorted(p.name for p in tmp_path.iterdir())}")

    monkeypatch.setattr(draining, "drain", drain)
    rank(tmp_path, 0, size=1).hold(True, lambda: seen.append("acts"), 7, drained=True)
    assert seen == ["drains 7 True []", "acts"]  # the others do not see this rank before
    seen.clear()
    rank(tmp_path / "b", 0, size=1).hold(True, lambda: seen.append("acts"), 0)  # a window that opens
    assert seen == ["acts"]


def test_a_process_of_a_job_that_no_torchrun_started_closes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its peers would wait for it in their collectives, with their windows open."""
    switched: list[str] = []
    monkeypatch.setattr(
        capture_range, "_calls", [lambda: switched.append("open") or 1, lambda _: switched.append("close")]
    )
    monkeypatch.setattr(capture_range, "_open", [])
    monkeypatch.setattr(capture_range, "claim", lambda: "")
    monkeypatch.setattr(probe_windows, "is_one_of_several", lambda: True)
    monkeypatch.setattr(probe_windows, "_AS_LONG", 1e9)
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

    assert not capture_window.is_one_of_several()
    for size, several in ((1, False), (2, True)):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda size=size: size)
        assert capture_window.is_one_of_several() is several


@pytest.fixture
def windows_of_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Let the only rank of a job have two windows, and bare steps be known soon; return what nsys would see."""
    for name, value in {"_SETTLING_NS": 0, "_SHORTEST_NS": 0, "_LONGEST_NS": 1 << 60, "_KNOWN": 100.0}.items():
        monkeypatch.setattr(clock, name, value)
    switched: list[str] = []
    calls = [lambda: switched.append("open") or 1, lambda _: switched.append("close")]
    monkeypatch.setattr(capture_range, "_calls", calls)
    monkeypatch.setattr(capture_range, "_open", [])
    monkeypatch.setattr(capture_range, "claim", lambda: "")
    about = {"NSYSX_STEPS": "windows", "TORCHELASTIC_RUN_ID": "1", "LOCAL_RANK": "0", "NSYSX_PROBE_DIR": str(tmp_path)}
    for name, value in about.items():
        monkeypatch.setenv(name, value)
    capture_range.begin()
    return switched


@pytest.mark.parametrize(("limit", "cold_steps"), [(99, 24), (0, 7), (10, 15), (22, 24)])
def test_ranks_close_and_open_by_the_number_of_the_step_and_earlier_at_the_limit(
    windows_of_rank: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: int, cold_steps: int
) -> None:
    """The step in which the limit is reached, which counts from the third step on, is followed by four more."""
    import torch

    ended: list[bool] = []

    def step_ended(first: bool) -> bool:
        ended.append(first)
        return limit < len(ended) <= limit + 3  # only the first window reaches it

    monkeypatch.setattr(capture_range, "step_ended", step_ended)
    lab = Lab(NSYSX_STEPS="windows", NSYSX_MARKS="few", NSYSX_PROBE_DIR=str(tmp_path))
    try:
        assert isinstance(lab.probe.parts.window, probe_windows.WindowsOfRank)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
        for _ in range(130):
            train(net, 1, optimizer)
        cold, steady = recorded(lab)
        assert windows_of_rank == ["open", "close", "open", "close"]
        assert cold == list(range(cold_steps)) and steady == list(
            range(steady[0], steady[0] + capture_window.AUTO_STEPS)
        )
        record: dict[str, Any] = lab.probe.status.record()
        assert not record["errors"] and len(record["window_pauses_ns"]) == 2
        assert record["unrecorded_steps"]["count"] >= 24
    finally:
        lab.close()


def test_a_window_of_a_rank_ends_with_the_optimizer_and_not_with_the_next_forward(
    windows_of_rank: list[str], tmp_path: Path
) -> None:
    """The step is open until the next forward. Between it and the optimizer's step a stage of a pipeline receives its batch."""
    import torch

    lab = Lab(NSYSX_STEPS="windows", NSYSX_MARKS="few", NSYSX_PROBE_DIR=str(tmp_path))
    try:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
        after_step = []
        for _ in range(100):
            train(net, 1, optimizer)
            after_step.append(len(windows_of_rank))
        closed, opened, closed_again = (after_step.index(count) for count in (2, 3, 4))
        cold, steady = recorded(lab)
        assert (cold[-1], steady[0], steady[-1]) == (closed, opened + 1, closed_again)
    finally:
        lab.close()
