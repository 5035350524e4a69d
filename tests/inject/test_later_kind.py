"""A program that goes over to steps of another kind: passes without gradients before training, one network after another."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from nsysx_probe import later_kind

from tests.inject.test_marking import train
from tests.inject.test_probe import Lab, Net
from tests.inject.test_probe_windows import recorded, switched

__all__ = ["switched"]

pytestmark = pytest.mark.filterwarnings("ignore")

OPENED = ["open", "close"]


@pytest.fixture
def lab(switched: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """Yield a probe whose windows are tape; what each kind of steps takes is counted in fractions of a second."""
    monkeypatch.setattr(later_kind, "LATER_KIND_NS", 0)
    one = Lab(NSYSX_STEPS="windows", NSYSX_MARKS="few")
    try:
        yield one
        assert not one.probe.out.errors
    finally:
        one.close()


def passes(net: Net, count: int) -> None:
    with torch.no_grad():
        for _ in range(count):
            net(torch.ones(2, 8))


def rounds(step: Callable[[], None], until: Callable[[], bool], most_s: float = 200.0) -> bool:
    """Make steps until something is so; return whether it came."""
    end = time.monotonic() + most_s
    while not until() and time.monotonic() < end:
        step()
    return until()


def test_passes_that_spent_both_windows_give_way_to_training_that_takes_longer(lab: Lab, switched: list[str]) -> None:
    net = Net()
    assert rounds(lambda: passes(net, 1), lambda: not lab.probe.armed) and switched == OPENED * 2
    first = lab.probe.status.record()
    assert first["steps"]["rule"] == "forward/forward" and first["windows"] == 2
    opt = torch.optim.SGD(net.parameters(), lr=0.001)
    train(net, 3, opt)
    assert not lab.probe.armed  # a moment of training is not what the run is about
    assert rounds(lambda: train(net, 1, opt), lambda: lab.probe.armed)
    assert lab.probe.status.kept == {**first, "ended": True}  # what is recorded stays told until there is more
    assert rounds(lambda: train(net, 1, opt), lambda: not lab.probe.armed)
    record = lab.probe.status.record()
    assert switched == OPENED * 3 and (record["steps"]["rule"], record["windows"]) == ("optimizer/forward", 3)
    (earlier,) = record["earlier_kinds"]
    assert earlier["rule"] == "forward/forward" and earlier["ns"] > 0 and earlier["steps"] == first["steps"]["count"]
    *_, last = recorded(lab)
    assert last[0] >= record["steps"]["first"] > first["capture_steps"][1]
    assert record["capture_steps"] == [last[0], last[-1] + 1]
    assert record["unrecorded_steps"]["count"] >= 16
    assert lab.tape.texts("phase")[-6:].count("optimizer SGD") >= 1


def test_one_network_after_another(lab: Lab, switched: list[str]) -> None:
    """Of the same class of optimizer; where the first one steps now and then, too, nothing is gone over to."""
    one, two = Net(), Net()
    first, second = (torch.optim.SGD(net.parameters(), lr=0.001) for net in (one, two))
    assert rounds(lambda: train(one, 1, first), lambda: not lab.probe.armed)

    def in_turn() -> None:
        train(two, 1, second)
        train(one, 1, first)

    assert not rounds(in_turn, lambda: lab.probe.armed, most_s=1.0)
    assert rounds(lambda: train(two, 1, second), lambda: lab.probe.armed)
    assert rounds(lambda: train(two, 1, second), lambda: not lab.probe.armed)
    assert switched == OPENED * 3
    assert lab.probe.status.record()["steps"]["rule"] == "optimizer/forward"


@pytest.mark.parametrize("anew", [True, False])
def test_the_same_steps_by_another_optimizer_are_no_other_kind(lab: Lab, switched: list[str], anew: bool) -> None:
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.001)
    assert rounds(lambda: train(net, 1, opt), lambda: not lab.probe.armed)
    if anew:
        opt = torch.optim.Adam(net.parameters())
    assert not rounds(lambda: train(net, 1, opt), lambda: lab.probe.armed, most_s=1.0)
    assert switched == OPENED * 2


def test_a_program_goes_over_so_often_and_then_nothing_is_followed(lab: Lab, switched: list[str]) -> None:
    for number in range(2 + later_kind.MOST_LATER_KINDS):
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=0.001)
        more = len(switched) + (2 if len(switched) else 4)
        rounds(
            lambda net=net, opt=opt: train(net, 1, opt),
            lambda more=more: len(switched) >= more,
            200.0 if number <= later_kind.MOST_LATER_KINDS else 1.0,
        )
    assert switched == OPENED * (2 + later_kind.MOST_LATER_KINDS)


@pytest.mark.parametrize("count", [5, 25])
def test_passes_before_training_spend_no_window(lab: Lab, switched: list[str], count: int) -> None:
    """Training begins in the first window, or between the two: bare steps are those of training alone."""
    net = Net()
    passes(net, count)
    assert len(switched) == (1 if count == 5 else 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.001)
    first = lab.probe.steps.index + 1
    assert rounds(lambda: train(net, 1, opt), lambda: len(switched) == 3)
    record = lab.probe.status.record()
    assert record["steps"]["first"] == first and record["earlier_kinds"] == []
    between = record["unrecorded_steps"]["lengths_ns"]
    assert 16 <= len(between) <= lab.probe.steps.index - first
    if count == 5:
        cold, *_ = recorded(lab)
        assert cold[-1] >= first + 10


PROGRAM = """
import sys, time, torch
torch.set_num_threads(1)
net = torch.nn.Linear(8, 2)
probe = sys.modules["nsysx_probe.probe"]._probe
def until(ends, work):
    while not ends():
        work()
        time.sleep(0.004)
def after(s):
    end = time.perf_counter() + s
    return lambda: time.perf_counter() > end
@torch.no_grad()
def act():
    net(torch.randn(64, 8))
acts_s, learns = float(sys.argv[1]), sys.argv[2]
acted = after(acts_s)
until(lambda: acted() and (learns == "early" or not probe.armed), act)
optimizer = torch.optim.SGD(net.parameters())
def learn():
    optimizer.zero_grad()
    net(torch.randn(64, 8)).square().mean().backward()
    optimizer.step()
if learns == "shortly":
    until(after(acts_s / 3), learn)
else:
    until(lambda: probe.armed, learn)  # as long as it acted, where it learns late
    until(lambda: not probe.armed, learn)
"""


@pytest.mark.parametrize(
    ("acts_s", "learns", "rule"),
    [(6, "long", "optimizer/forward"), (6, "shortly", "forward/forward"), (1, "early", "optimizer/forward")],
    ids=["mostly training, late", "mostly passes", "training begins between the windows"],
)
def test_with_nsys_the_report_is_of_what_took_most_time(tmp_path: Path, acts_s: int, learns: str, rule: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    words = [sys.executable, "-m", "nsysx", "run", "--nsys", os.environ["NSYSX_TEST_NSYS"], "-o", "r", "--no-report"]
    words += ["--", sys.executable, "program.py", str(acts_s), learns]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (probe,) = json.loads((tmp_path / "r.run.json").read_text())["probe"]
    over = learns == "long"
    assert probe["steps"]["rule"] == rule and probe["errors"] == []
    assert probe["windows"] == len(probe["window_pauses_ns"]) == (3 if over else 2)
    assert [kind["rule"] for kind in probe["earlier_kinds"]] == ["forward/forward"] * over
    assert ("left out: 1 of 3 recordings, of steps of another kind" in done.stderr) == over
    query = "SELECT coalesce(e.text, s.value) FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId"
    texts = []
    for name in ("r.cold.sqlite", "r.sqlite"):
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            texts.append([text for (text,) in connection.execute(query)])
    assert texts[0].count("evaluation Linear") >= 10 and "optimizer SGD" not in texts[0]
    steps = texts[1].count("step")
    assert steps == 28 and texts[1].count("optimizer SGD") == steps * rule.startswith("optimizer")
