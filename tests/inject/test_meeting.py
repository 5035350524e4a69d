"""Where the ranks of a job stop together: who waits for whom, and for how long."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from nsysx_probe import capture_range, capture_window, draining, job_ranks, meeting, probe_windows

from tests.inject.test_marking import train
from tests.inject.test_probe import Lab, Net
from tests.inject.test_probe_windows import know_bare_steps_soon, recorded


def rank(folder: Path, number: int, size: int = 3) -> meeting.Meeting:
    return meeting.Meeting(str(folder), job_ranks.JobRanks(number, range(size), "1"))


def test_all_wait_for_the_last_one_and_go_on_when_the_first_has_acted(tmp_path: Path) -> None:
    happened: list[str] = []

    def act() -> None:
        happened.append("acts")
        time.sleep(0.05)

    def attend(number: int, at: meeting.Meeting) -> None:
        for turn in range(2):
            time.sleep(0.05 * number)
            happened.append(f"{turn} comes")
            assert at.hold(act, 0)
            happened.append(f"{turn} goes")

    ranks = [threading.Thread(target=attend, args=(i, rank(tmp_path, i))) for i in range(3)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(300)
    assert happened[:4] == ["0 comes"] * 3 + ["acts"]
    for turn in (0, 1):
        acted = [i for i, what in enumerate(happened) if what == "acts"][turn]
        assert all(happened.index(f"{turn} goes") > acted > i for i, w in enumerate(happened) if w == f"{turn} comes")
    assert happened.count("acts") == 2 and happened.count("1 goes") == 3


def test_a_rank_that_never_comes_is_not_waited_for_longer_than_its_steps_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "MEETING_S", 0.05)
    acted: list[float] = []
    began = time.monotonic()
    assert not rank(tmp_path, 0).hold(lambda: acted.append(time.monotonic() - began), round(0.1e9))
    assert len(acted) == 1 and acted[0] >= 0.05 + 2 * 0.1
    assert rank(tmp_path, 1).hold(lambda: acted.append(0), 0)  # it comes too late and is not held
    assert not rank(tmp_path / "gone", 1).hold(lambda: acted.append(0), 0)  # nobody leads
    assert len(acted) == 1


def test_a_signal_that_ends_the_wait_is_the_programs_and_holds_nobody_else(tmp_path: Path) -> None:
    def act() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rank(tmp_path, 0, size=1).hold(act, 0)
    assert rank(tmp_path, 1, size=2).hold(act, 0)


def test_a_window_ends_when_the_device_has_nothing_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def drain(longest_ns: int) -> None:
        seen.append(f"drains {longest_ns} {sorted(p.name for p in tmp_path.iterdir())}")

    monkeypatch.setattr(draining, "drain", drain)
    rank(tmp_path, 0, size=1).hold(lambda: seen.append("acts"), 7, drained=True)
    assert seen == ["drains 7 ['comes-1-0-0']", "acts"]  # the others do not see this rank as here before
    seen.clear()
    rank(tmp_path / "b", 0, size=1).hold(lambda: seen.append("acts"), 0)  # a window that opens
    assert seen == ["acts"]


def test_the_device_of_a_rank_that_has_come_is_waited_for_longer_than_one_that_never_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "MEETING_S", 0.1)
    monkeypatch.setattr(draining, "DRAIN_S", 5.0)
    rests, seen = threading.Event(), list[bool]()
    slow = threading.Thread(target=lambda: rank(tmp_path, 1).hold(lambda: None, 0, drained=True))
    monkeypatch.setattr(draining, "drain", lambda _: threading.current_thread() is slow and rests.wait(300))
    slow.start()
    threading.Timer(0.5, rests.set).start()
    assert not rank(tmp_path, 0).hold(lambda: seen.append(rests.is_set()), 0, drained=True)  # rank 2 is not there
    slow.join()
    assert seen == [True]


def test_a_process_of_a_job_without_a_store_closes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its peers would wait for it in their collectives, with their windows open."""
    switched: list[str] = []
    monkeypatch.setattr(
        capture_range, "_calls", [lambda: switched.append("open") or 1, lambda _: switched.append("close")]
    )
    monkeypatch.setattr(capture_range, "_open", [])
    monkeypatch.setattr(capture_range, "claim", lambda **_: "")
    monkeypatch.setattr(probe_windows, "is_one_of_several", lambda: True)
    monkeypatch.setattr(probe_windows, "FIRST_WINDOW_LONGER", 1e9)
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

    assert not draining.is_one_of_several()
    for size, several in ((1, False), (2, True)):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda size=size: size)
        assert draining.is_one_of_several() is several


class RollOfOne:
    """The roll of a job of one rank, which has come at the second look."""

    def __init__(self, _address: str, _kind: str) -> None:
        self.looks = 0

    def look(self, *, last: bool) -> job_ranks.JobRanks | None:
        assert not last
        self.looks += 1
        return job_ranks.JobRanks(0, [0], "1") if self.looks > 1 else None


@pytest.fixture
def windows_of_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Let the only rank of a job have two windows, and bare steps be known soon; return what nsys would see."""
    know_bare_steps_soon(monkeypatch)
    switched: list[str] = []
    calls = [lambda: switched.append("open") or 1, lambda _: switched.append("close")]
    monkeypatch.setattr(capture_range, "_calls", calls)
    monkeypatch.setattr(capture_range, "_open", [])
    monkeypatch.setattr(capture_range, "claim", lambda **_: "")
    for name, value in {"NSYSX_STEPS": "windows", "NSYSX_PROBE_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(probe_windows, "is_one_of_several", lambda: True)
    monkeypatch.setattr(probe_windows, "RollCall", RollOfOne)
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


class Store:
    """A store as torch.distributed's; ``broken``: the rank that keeps it has ended."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}
        self.broken = False

    def set(self, key: str, value: str) -> None:
        if self.broken:
            raise RuntimeError("connection reset")
        self.held[key] = value

    def check(self, keys: list[str]) -> bool:
        if self.broken:
            raise RuntimeError("connection reset")
        return all(key in self.held for key in keys)

    def get(self, key: str) -> bytes:
        return self.held[key].encode()


def calls_roll(
    monkeypatch: pytest.MonkeyPatch, store: Store, number: int, size: int, address: str
) -> job_ranks.RollCall:
    import torch.distributed

    monkeypatch.setattr(torch.distributed, "get_rank", lambda: number)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: size)
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: store)
    return job_ranks.RollCall(address)


def test_ranks_learn_from_the_store_which_of_them_the_same_run_records(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    rolls = []
    for number, address in enumerate(["a", "a", "b", "b"]):
        assert all(roll.look(last=False) is None and roll.look(last=True) is None for roll in rolls)
        rolls.append(calls_roll(monkeypatch, store, number, 4, address))
    jobs = [roll.look(last=False) for roll in rolls]
    assert [
        (job.rank, job.here, job.leads, job.chooses, job.several_runs, job.link is None) for job in jobs if job
    ] == [
        (0, [0, 1], True, True, True, False),
        (1, [0, 1], False, False, True, True),
        (2, [2, 3], True, False, True, False),
        (3, [2, 3], False, False, True, True),
    ]
    assert len({job.start for job in jobs if job}) == 1


def test_ranks_of_a_node_meet_where_those_of_others_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    rolls = [calls_roll(monkeypatch, store, number, 4, "a") for number in (2, 3)]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for number, roll in enumerate(rolls):
        monkeypatch.setenv("LOCAL_RANK", str(number))
        assert roll.look(last=False) is None
        job = roll.look(last=True)
        assert job and (job.here, job.leads, job.several_runs) == ([2, 3], number == 0, False)


def test_leading_ranks_of_two_runs_wait_for_each_other_and_have_the_same_steps(tmp_path: Path) -> None:
    store = Store()
    ranks = [
        meeting.Meeting(str(tmp_path / folder), job_ranks.JobRanks(number, here, "1", [0, 2], store))
        for number, here, folder in ((0, [0, 1], "a"), (1, [0, 1], "a"), (2, [2], "b"))
    ]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    ranks[0].announce(40)
    assert [at.announced() for at in ranks] == [40, 40, 40]
    happened: list[str] = []

    def attend(number: int, at: meeting.Meeting) -> None:
        time.sleep(0.1 * number)
        assert at.hold(lambda: happened.append(f"{number} acts"), 0)
        happened.append("goes")

    threads = [threading.Thread(target=attend, args=each) for each in enumerate(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert sorted(happened[:2]) == ["0 acts", "2 acts"] and happened[2:] == ["goes"] * 3


def test_a_run_that_never_comes_or_a_store_that_is_gone_holds_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "MEETING_S", 0.05)
    for broken in (False, True):
        store, acted = Store(), []
        at = meeting.Meeting(str(tmp_path), job_ranks.JobRanks(0, [0], f"{broken}", [0, 1], store))
        store.broken = broken
        at.announce(3)
        assert not at.hold(lambda: acted.append(1), 0) and acted == [1]  # noqa: B023
