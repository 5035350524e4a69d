"""Which steps are marked, what the others cost and carry, and what the probe says about real time and its own cost."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Any

import nsysx_probe.capture_window
import nsysx_probe.marking
import nsysx_probe.qualified_names
import nsysx_probe.step_follower
import pytest
import torch
from nsysx_probe.clock import StepClock
from torch import nn

from tests.counted_calls import calls_of
from tests.inject.test_probe import NET, Lab, Net, armed

pytestmark = pytest.mark.filterwarnings("ignore")


def train(net: nn.Module, steps: int, opt: Any = None) -> Any:
    opt = opt or torch.optim.SGD(net.parameters(), lr=0.001)
    for _ in range(steps):
        opt.zero_grad()
        net(torch.randn(2, 8)).sum().backward()
        opt.step()
    return opt


def by_step(lab: Lab) -> dict[int, collections.Counter[str]]:
    """Return step -> how many ranges and marks of each kind went out in it."""
    found: dict[int, collections.Counter[str]] = {}
    for label in lab.tape.labels("step", "phase", "module", "backward_module"):
        if label.kind == "step":
            found[label.number] = collections.Counter()
        elif found:
            found[max(found)][label.kind] += 1
    return found


def test_few_steps_are_marked_and_all_have_their_phases() -> None:
    with armed(NSYSX_MARKS="few") as lab:
        train(Net(), 20)
        found = by_step(lab)
        assert [i for i, kinds in found.items() if kinds["module"]] == [0, 1, 2, 3]
        assert {kinds["module"] for i, kinds in found.items() if i < 4} == {len(NET)}
        assert all(kinds["backward_module"] == found[1]["backward_module"] > 0 for i, kinds in found.items() if i < 4)
        assert all(kinds["backward_module"] == 0 for i, kinds in found.items() if i > 3)
        assert {kinds["phase"] for i, kinds in found.items() if 0 < i < 19} == {4}
        record = lab.probe.status.record()
        assert record["marked_steps"] == [0, 1, 2, 3] and record["steps"]["unmarked_from"] == 4
        cost = record["marks_cost_ns_per_step"]
        assert cost["marked_steps"] == 2 and cost["unmarked_steps"] == 15
        assert cost["low_ns"] <= cost["median_ns"] <= cost["high_ns"]


@pytest.mark.parametrize(("wanted", "modules"), [("all", 10), ("off", 0)])
def test_all_and_off(wanted: str, modules: int) -> None:
    with armed(NSYSX_MARKS=wanted) as lab:
        train(Net(), 10)
        assert sum(kinds["module"] > 0 for kinds in by_step(lab).values()) == modules
        assert {kinds["phase"] for i, kinds in by_step(lab).items() if 0 < i < 9} == {4}


def test_another_network_is_marked_again() -> None:
    with armed(NSYSX_MARKS="few") as lab:
        net = Net()
        opt = train(net, 24)
        net.blocks.append(nn.Identity())
        train(net, 24, opt)
        again = [i for i, kinds in by_step(lab).items() if kinds["module"] and i >= 24]
        assert len(again) == 3 and again[0] <= 24 + 9, "the calls are counted in every eighth step"
        assert lab.tape.modules().count("blocks.2") == 3


def test_what_lies_outside_of_steps_is_marked() -> None:
    with armed(NSYSX_MARKS="few") as lab:
        net = Net()
        opt = train(net, 12)
        with torch.no_grad():
            net(torch.randn(2, 8))
        train(net, 3, opt)
        assert lab.tape.modules().count("head") == 4 + 1


def test_without_steps_everything_is_marked() -> None:
    with armed(NSYSX_MARKS="few") as lab:
        Net()(torch.randn(2, 8))
        assert lab.tape.modules() == NET


def test_numbers_are_the_same_with_marks_in_few_steps() -> None:
    results = []
    for marks in ("few", "all", None):
        torch.manual_seed(3)
        net = nn.Sequential(Net(), nn.Dropout(0.5))
        if marks is None:
            train(net, 12)
        else:
            with armed(NSYSX_MARKS=marks):
                train(net, 12)
        results.append((torch.cat([p.flatten() for p in net.parameters()]), torch.get_rng_state()))
    for weights, state in results[1:]:
        assert torch.equal(weights, results[0][0]) and torch.equal(state, results[0][1])


def test_a_call_inside_of_a_network_without_marks_costs_one_look() -> None:
    """No code is exchanged from step to step, and nothing of the probe's runs for a module inside."""
    codes = set()

    class Look(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            codes.add(nn.Module.__call__.__code__)
            return x

    net = nn.Sequential(Net(), Look())
    with armed(NSYSX_MARKS="few") as lab:
        opt = train(net, 8)
        codes.clear()
        known = lab.probe.naming.entries
        for number in range(8, 24):
            del known[id(net[1])]  # it would be learned again if it were looked up
            train(net, 1, opt)
            if number % nsysx_probe.probe_bounds.LOOK_EVERY:
                assert id(net[1]) not in known
            known.setdefault(id(net[1]), nsysx_probe.qualified_names.ModuleEntry())
        assert len(codes) == 1 and not lab.probe.calls.inside


def test_networks_outside_of_steps_are_marked_in_few_calls() -> None:
    """A teacher, a rollout: each network has its references, and a new shape of it gets its own."""
    teacher, net = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.001)

    def step() -> None:
        with torch.no_grad():
            teacher(torch.randn(2, 8))
        train(net, 1, opt)

    with armed(NSYSX_MARKS="few") as lab:
        for _ in range(40):
            step()
        marked = [label for label in lab.tape.labels("module") if label.cls == "ReLU"]
        # Behind three steps it is outside of them, from then on a part of each: both have their references.
        assert 3 <= len(marked) <= 8
        assert [p.name for p in lab.tape.labels("phase")].count("evaluation") == 40
        assert 3 <= lab.tape.modules().count("Net.head") <= 6
        before = len(marked)
        teacher.append(nn.Tanh())
        for _ in range(24):
            step()
        again = [label for label in lab.tape.labels("module") if label.cls in ("ReLU", "Tanh")]
        assert 3 * 2 <= len(again) - before <= 5 * 2
        switched = [label for label in lab.tape.labels("info") if "marks" in label.name]
        texts = {"on", "off", "on with the X-ray, where torch has NVTX"}
        assert len({label.name for label in switched}) <= len(texts), "their texts are never freed"


def test_an_exception_in_a_network_without_marks() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError

    with armed(NSYSX_MARKS="few") as lab:
        net = Net()
        opt = train(net, 8)
        net.head = Fails()
        with pytest.raises(ValueError):
            net(torch.randn(2, 8))
        net.head = nn.Linear(8, 4)
        train(net, 3, opt)
        assert max(by_step(lab)) >= 10


def test_steps_that_are_never_alike_are_marked_ever_more_seldom() -> None:
    marking = nsysx_probe.marking.Marking("few")
    for i in range(600):
        marking.step_begins(i)
        marking.step_ended(i, (i, i))
    assert marking.steps[:6] == list(range(6))
    assert len(marking.steps) < 40


def test_a_shape_that_comes_at_regular_distances_is_marked() -> None:
    marking = nsysx_probe.marking.Marking("few")
    for i in range(60):
        marking.step_begins(i)
        marking.step_ended(i, (20 if i % 10 == 9 else 10, 0))
    assert any(i % 10 == 9 for i in marking.steps)


# ---- real time -------------------------------------------------------------------------------------------------------


def test_steps_before_the_window_say_what_a_step_takes() -> None:
    lab = Lab(NSYSX_STEPS="24:34", NSYSX_MARKS="few")
    try:
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=0.001)
        for _ in range(36):
            time.sleep(0.002)
            train(net, 1, opt)
        record = lab.probe.status.record()
        real = record["unrecorded_steps"]
        assert real["count"] == 15 and real["where"] == "before the window"
        assert 2_000_000 < real["low_ns"] <= real["median_ns"] <= real["high_ns"]
        assert record["marked_steps"] == [24, 31, 32, 33] and record["capture_steps"] == [24, 34]
        assert record["window_missed"] is None and record["ended"] is True
    finally:
        lab.close()


def test_a_long_step_that_is_due_in_the_window_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual step at the begin of a window says nothing of what makes every fifth one long."""
    before: list[int] = []

    def due(steps: list[Any], behind: int, on_device: dict[int, int]) -> int:
        before.extend(step.number for step in steps)
        return behind + 3

    monkeypatch.setattr(nsysx_probe.borders, "next_long", due)
    lab = Lab(NSYSX_STEPS="24:44", NSYSX_MARKS="few")
    try:
        net = Net()
        train(net, 46, torch.optim.SGD(net.parameters(), lr=0.001))
        assert lab.probe.status.record()["marked_steps"] == [24, 27, 41, 42, 43]
        assert before and max(before) < 24
    finally:
        lab.close()


def timed(lengths: list[int], *, recorded: bool = False) -> list[Any]:
    step = nsysx_probe.clock.TimedStep
    return [step(number, ns, False, recorded, 0) for number, ns in enumerate(lengths)]


@pytest.mark.parametrize(
    ("lengths", "due"),
    [
        ([4, 30, 4, 30, 120] * 6, 34),
        ([4] * 40, None),
        ([4, 4, 4, 40] * 2, None),  # once is no rhythm
        ([4, 4, 40, 4, 4, 4, 4, 40, 40, 4, 4, 4, 4, 4, 4, 40, 4, 4, 4], None),
        (
            [2, 4, 2, 7, 2, 4, 5, 2, 2, 24, 2, 2, 4, 2, 2, 2, 7, 2, 9, 23] * 3,
            69,
        ),  # the host of a small step is late at times
        ([4, 4, 4, 9] * 9 + [4, 4, 400, 9], 43),  # once far longer
        ([4, 4, 4, 9] * 3 + [4, 4, 4, 4] + [4, 4, 4, 9] * 9, 55),  # one is not as long
    ],
)
def test_long_steps_that_come_back_at_one_distance(lengths: list[int], due: int | None) -> None:
    next_long = nsysx_probe.returning_steps.next_long
    assert next_long(timed(lengths), len(lengths), {}) == due
    assert next_long(timed(lengths, recorded=True), len(lengths), dict(enumerate(lengths))) is None


#: A host that runs ahead of the device: its queue is full in the step before the long one and behind it, at times that differ.
AHEAD = [12, 98, 12, 12, 188, 15, 15, 15, 15, 15]


@pytest.mark.parametrize(
    ("on_device", "due"),
    [
        ([15, 15, 265, 15, 15, 15, 15, 15, 15, 15], 62),
        ([30] * 10, None),  # blocks of several steps: each has their mean
        ([], None),
        ([15] * 10, None),
    ],
)
def test_the_device_tells_which_step_is_long_where_the_host_runs_ahead_of_it(
    on_device: list[int], due: int | None
) -> None:
    device = dict(enumerate(on_device * 6))
    assert nsysx_probe.returning_steps.next_long(timed(AHEAD * 6), 60, device) == due


def test_a_rhythm_that_only_the_host_has_counts_where_the_device_is_not_known() -> None:
    """As on a CPU, or where the device has not reached the last events."""
    lengths = [4, 4, 4, 4, 40] * 6
    next_long = nsysx_probe.returning_steps.next_long
    assert next_long(timed(lengths), 30, {}) == next_long(timed(lengths), 30, {0: 4, 1: 4}) == 34


def test_a_window_is_chosen_once_steps_repeat() -> None:
    lab = Lab(NSYSX_STEPS="auto", NSYSX_MARKS="few")
    try:
        train(Net(), 60)
        assert lab.tape.texts("step") == [f"step {16 + i}" for i in range(nsysx_probe.capture_window.AUTO_STEPS)]
        assert lab.probe.status.record()["unrecorded_steps"]["count"] >= 10
    finally:
        lab.close()


class Device:
    """A device that takes 7 ms for a step which the host launches in no time, and is 40 ms behind by the end."""

    def __init__(self, reached: int) -> None:
        self.made, self.reached = 0, reached
        self.cuda = self

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return False

    def Event(self, *, enable_timing: bool) -> Device:
        assert enable_timing
        event = Device(self.reached)
        event.made, self.made = self.made, self.made + 1
        return event

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return self.made < self.reached

    def elapsed_time(self, later: Device) -> float:
        return 7.0 * (later.made - self.made)


@pytest.mark.parametrize(("reached", "clock"), [(100, "gpu"), (8, "cpu")])
def test_a_device_that_falls_behind_tells_its_own_time(reached: int, clock: str) -> None:
    told = StepClock(Device(reached))
    for index in range(50):
        told.begin(index, recorded=index >= 40, event=index < 40)
    real = told.unrecorded(40)
    assert real is not None and (real["clock"], real["count"]) == (clock, 30)
    assert (real["median_ns"] == real["low_ns"] == real["high_ns"] == 7_000_000) == (clock == "gpu")


@pytest.mark.parametrize("steps", [0, 5])
def test_a_window_that_never_opened_is_said_with_what_would(steps: int) -> None:
    lab = Lab(NSYSX_STEPS="10:20")
    try:
        train(Net(), steps)
        missed = lab.probe.status.record()["window_missed"]
        assert "step 10 never came" in missed and "nsysx.step()" in missed
        assert ("no step" if not steps else "5 steps") in missed
        assert lab.probe.status.record()["unrecorded_steps"] is None
    finally:
        lab.close()


# ---- names -----------------------------------------------------------------------------------------------------------


def test_naming_many_modules_is_linear() -> None:
    def calls(count: int) -> int:
        with armed(NSYSX_MARKS="all"):
            alive = [nn.Linear(1, 1) for _ in range(count)]
            x = torch.zeros(1)
            return calls_of(lambda: [module(x) for module in alive])

    calls(10)
    assert calls(1_600) < 8 * calls(200) * 1.5


# ---- steps of programs that are unlike others ------------------------------------------------------------------------


def count(*events: str, states: Callable[[], int] = lambda: 0) -> int:
    """Feed events to Steps and return how many steps it found."""
    begun: list[int] = []
    steps = nsysx_probe.step_follower.StepFollower(begun.append, lambda: None, states)
    for event in events:
        what, _, key = event.partition(" ")
        if what == "fwd":
            steps.forward()
            steps.forward_end()
        elif what == "bwd":
            steps.backward()
            steps.backward_end()
        elif what == "opt":
            steps.optimizer(key)
            steps.optimizer_end(key)
        elif what == "made":
            steps.made_optimizer(key)
        else:
            {"fetch": steps.fetch, "zero": steps.zero_grad}[what]()
    return len(begun)


def test_an_optimizer_that_calls_the_network_itself() -> None:
    assert count("made a", *["opt a"] * 10) == 10
    assert count("made a", *["fetch", "opt a"] * 10) == 10


def test_two_stages_of_training() -> None:
    stage = ("zero {0}", "fwd", "bwd", "opt {0}")
    events = [e.format(k) for k in "ab" for e in (f"made {k}", *stage * 10)]
    assert count(*events) == 20
    assert count("made a", "made b", *[e.format(k) for k in "ab" for e in stage * 10]) in (19, 20)
    loaded = [e.format(k) for k in "ab" for e in (f"made {k}", *(("fetch", *stage) * 10))]
    assert count(*loaded) == 20


def test_many_configurations_with_an_optimizer_each() -> None:
    events = [e.format(k) for k in "abcd" for e in ("made {0}", *("fwd", "bwd", "opt {0}") * 10)]
    assert count(*events) == 40
    same_name = [e for _ in range(4) for e in ("made a", *("fwd", "bwd", "opt a") * 10)]
    assert count(*same_name) == 40


def test_a_gan_has_one_step_per_round() -> None:
    assert count("made d", "made g", *["fwd", "bwd", "opt d", "fwd", "bwd", "opt g"] * 10) == 10


def test_two_optimizers_of_one_backward() -> None:
    assert count("made a", "made b", *["fwd", "bwd", "opt a", "opt b"] * 10) == 10


def test_a_compiled_optimizer() -> None:
    assert count("made a", *["zero", "fwd", "bwd"] * 20) == 20
    assert count("made a", *["zero", "fwd", "bwd", "fwd", "bwd"] * 20) in (20, 21), "with two micro-steps"
    held = iter([0, *[4] * 100])
    assert count("made a", *["bwd"] * 20, states=lambda: next(held)) == 20, "forward and optimizer are compiled"
    assert count("made a", *["fwd", "bwd"] * 8, "opt a", *["fwd", "bwd"] * 8, "opt a") == 2, "accumulation is none"
