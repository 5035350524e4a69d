"""Where ranks whose steps are of different kinds are at a step's end together, and what they lose where they never are."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from nsysx_probe import gathering, job_ranks, meeting

from tests.light_torch import TWO_RANKS, WITHOUT_META

APART = ["optimizer", "forward", "forward"]


def rank(folder: Path, number: int, kinds: list[str]) -> meeting.Meeting:
    return meeting.Meeting(str(folder), job_ranks.JobRanks(number, range(len(kinds)), "1", kinds=kinds))


def attending(ranks: list[meeting.Meeting], step_s: list[float], steps: int = 200) -> list[int | None]:
    """Let each rank make steps, each so long; return with which step of each the first meeting came, None where it never did."""
    came: list[int | None] = [None] * len(ranks)

    def attend(number: int) -> None:
        for index in range(steps):
            time.sleep(step_s[number])
            ranks[number].gathering.step_ended(round(1e9 * step_s[number]))
            if ranks[number].comes_together(index):
                came[number] = index
                assert ranks[number].hold(lambda: None, 0)
                return

    threads = [threading.Thread(target=attend, args=(number,)) for number in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return came


def test_ranks_of_different_kinds_meet_where_each_has_ended_a_step(tmp_path: Path) -> None:
    came = attending([rank(tmp_path, number, APART) for number in range(3)], [0.03, 0.002, 0.005])
    assert all(index is not None for index in came), came
    assert came[1] > came[0]  # type: ignore[operator]


def test_ranks_at_different_rates_are_apart_once_they_did_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faster one waits in vain once: it gets no further before the other one has come."""
    monkeypatch.setattr(gathering, "GATHERING_TOGETHER_S", 0.1)
    ranks = [rank(tmp_path, number, ["optimizer"] * 2) for number in range(2)]
    assert ranks[0].apart == "" and not ranks[0].comes_together(23)
    assert [at.apart for at in ranks] == ["steps that do not end together"] * 2
    assert all(index is not None for index in attending(ranks, [0.004, 0.02]))


def test_ranks_of_one_kind_meet_with_the_step_of_one_number(tmp_path: Path) -> None:
    ranks = [rank(tmp_path, number, ["optimizer"] * 2) for number in range(2)]
    assert attending(ranks, [0.05, 0.2]) == [0, 0] and not ranks[0].apart


def test_a_rank_that_waits_elsewhere_costs_the_others_no_more_than_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "GATHERING_LOST_S", 0.2)
    first, second = (rank(tmp_path, number, APART[:2]) for number in range(2))
    assert not any(first.comes_together(index) for index in range(1_000))  # the other has not enough steps yet
    assert not first.gathering.given_up()
    assert not second.comes_together(0)  # nobody offers to wait now
    began = time.monotonic()
    assert not any(first.comes_together(index) for index in range(1_000, 2_000))
    assert time.monotonic() - began >= 0.2
    assert first.gathering.given_up() and second.gathering.given_up() and not second.comes_together(1)


@pytest.mark.parametrize("seed", range(4))
def test_no_rank_goes_on_for_whom_another_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Offers end just when they are taken: either all are together or none is."""
    for name in ("GATHERING_LEAST_S", "GATHERING_MOST_S", "MEETING_LOOK_S"):
        monkeypatch.setattr(gathering, name, 0.001)
    monkeypatch.setattr(gathering, "GATHERING_LOST_S", 60.0)
    chance = random.Random(seed)
    ranks = [rank(tmp_path, number, APART) for number in range(3)]
    came = attending(ranks, [chance.uniform(0.0005, 0.003) for _ in ranks], steps=100_000)
    assert all(index is not None for index in came), came


JOB = (
    WITHOUT_META
    + """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo"); rank = dist.get_rank(); torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)); data = torch.zeros(32, 8)
optimizer = torch.optim.Adam(net.parameters()) if rank == 0 else None
if "nsysx_probe.gathering" in sys.modules:  # on a busy machine ranks try in vain for longer
    sys.modules["nsysx_probe.gathering"].GATHERING_LOST_S = 100
for _ in range(110):
    for t in range((8, 32)[rank]):
        time.sleep((0.006, 0.0004)[rank])
        if rank == 0:
            optimizer.zero_grad(); net(data).sum().backward(); optimizer.step()
        else:
            with torch.no_grad():
                data[t] = net(data)[t]
    dist.broadcast(data, 1)
    dist.broadcast_object_list([net.state_dict() if rank == 0 else None], 0)
dist.destroy_process_group()
"""
)


def recorded_job(folder: Path, program: str) -> tuple[str, dict[str, Any]]:
    """Record a job of two ranks; return what nsysx said, and what the probe of each rank did."""
    (folder / "job.py").write_text(program)
    path = os.pathsep.join([str(Path(os.environ["NSYSX_TEST_NSYS"]).parent), os.environ["PATH"]])
    words = [sys.executable, "-m", "nsysx", "run", "--no-report", "-o", "r", "--force", "--"]
    command = [*words, sys.executable, "-c", TWO_RANKS, "job.py"]
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stderr, {
        p["rank"]: p for p in json.loads((folder / "r.run.json").read_text())["probe"] if p.get("rank")
    }


def test_a_learner_and_an_actor_have_both_windows_and_do_not_meet_at_the_number_of_a_step(tmp_path: Path) -> None:
    """There an iteration took up to 20 s: each rank waited for the other in another place."""
    _, probes = recorded_job(tmp_path, JOB)
    assert all(len(p["window_pauses_ns"]) == 2 and not p["window_missed"] and not p["errors"] for p in probes.values())
    assert {p["ranks_apart"] for p in probes.values()} == {"steps of different kinds: forward, optimizer"}
    assert all(p["unrecorded_steps"]["count"] > 20 for p in probes.values())
    assert len({p["capture_steps"][0] for p in probes.values()}) == len(probes) == 2


#: A pipeline of two stages that work in turn. On the CPU's own device a receipt blocks the host. With a device that is a thread (the
#: launch of a forward, a send or a receipt returns at once) it blocks that, as NCCL does: the second stage's device has a receipt
#: pending at the end of each forward, and the first one's until the second has had its turn.
TURNS = (
    WITHOUT_META
    + """
import queue, sys, threading, time, torch, torch.distributed as dist
dist.init_process_group("gloo"); rank = dist.get_rank(); torch.set_num_threads(1)
DEVICE = {device}
launched = queue.Queue()
def work():
    while True:
        launched.get()()
        launched.task_done()
threading.Thread(target=work, daemon=True).start()
def launch(act):
    launched.put(act) if DEVICE else act()
if DEVICE and "nsysx_probe.draining" in sys.modules:
    def drain(longest_ns=0, within_s=None):
        draining = sys.modules["nsysx_probe.draining"]
        until = time.monotonic() + (draining.longest_wait_s(longest_ns) if within_s is None else within_s)
        while launched.unfinished_tasks and time.monotonic() < until:
            time.sleep(0.001)
        return not launched.unfinished_tasks
    sys.modules["nsysx_probe.draining"].drain = drain
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
hidden, token = torch.zeros(8), torch.zeros(8)
with torch.no_grad():
    for step in range(600):
        if rank == 1:
            launch(lambda: dist.recv(hidden, 0))
        net(hidden)
        launch(lambda: time.sleep(0.003))
        launch(lambda: dist.send(hidden if rank == 0 else token, 1 - rank))
        if rank == 0:
            launch(lambda: dist.recv(token, 1))
        if step % 100 == 99:
            launched.join()
launched.join()
dist.barrier()
dist.destroy_process_group()
"""
)


@pytest.mark.parametrize("device", [False, True])
def test_stages_that_work_in_turn_have_one_window_and_soon_stop_trying(tmp_path: Path, device: bool) -> None:
    """A window that closed there took a minute of waiting for a receipt that comes with the next step of a rank that stands still."""
    said, probes = recorded_job(tmp_path, TURNS.replace("{device}", str(device)))
    for probe in probes.values():
        assert probe["window_pauses_ns"] == [] and probe["unrecorded_steps"] is None and not probe["errors"]
        assert probe["ranks_apart"] == "steps that do not end together"
        assert "one window" in probe["window_missed"] and "never at a step's end together" in probe["window_missed"]
    assert len(probes) == 2
    assert "never at a step's end together" in " ".join(said.split())
