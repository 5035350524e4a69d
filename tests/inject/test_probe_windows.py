"""A run with two capture windows: when they open and close, and what is told of the bare steps between them."""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from nsysx_probe import at_limit, backend, bootstrap, capture_range, clock, output, probe_windows

from tests.inject.test_marking import train
from tests.inject.test_probe import Lab, Net
from tests.inject.test_resting import installed

pytestmark = pytest.mark.filterwarnings("ignore")

INJECT = Path(__file__).parents[2] / "nsysx" / "inject"


def know_bare_steps_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the mean of bare steps be known as soon as there are enough of them, however they scatter."""
    for name, value in {
        "BARE_SETTLING_NS": 0,
        "BARE_SHORTEST_NS": 0,
        "BARE_LONGEST_NS": 1 << 60,
        "BARE_ERROR_SHARE": 100.0,
    }.items():
        monkeypatch.setattr(clock, name, value)


@pytest.fixture
def switched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield what nsys would see: the first window is open, and bare steps are known as soon as there are 32 of them."""
    seen: list[str] = []
    monkeypatch.setattr(capture_range, "_calls", [lambda: seen.append("open") or 1, lambda _: seen.append("close")])
    monkeypatch.setattr(capture_range, "_open", [])
    monkeypatch.setattr(capture_range, "claim", lambda **_: "")
    know_bare_steps_soon(monkeypatch)
    monkeypatch.setattr(probe_windows, "FIRST_WINDOW_LONGER", 1e9)
    capture_range.begin()
    yield seen


def recorded(lab: Lab) -> list[list[int]]:
    """Return the runs of numbers of the steps that were sent."""
    runs: list[list[int]] = []
    for text in lab.tape.texts("step"):
        number = int(text.split()[1])
        if not runs or number != runs[-1][-1] + 1:
            runs.append([])
        runs[-1].append(number)
    return runs


def test_the_cold_start_and_then_steady_steps_with_bare_ones_between(switched: list[str]) -> None:
    lab = Lab(NSYSX_STEPS="windows", NSYSX_MARKS="few")
    try:
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=0.001)
        bare = set[str]()
        for _ in range(120):
            train(net, 1, opt)
            if switched == ["open", "close"]:
                bare |= {"rests"} if lab.probe.resting.on else set()
        cold, steady = recorded(lab)
        assert switched == ["open", "close", "open", "close"]
        assert (
            cold[0] == 0 and 4 + probe_windows.FIRST_WINDOW_ALIKE <= len(cold) <= 8 + probe_windows.FIRST_WINDOW_ALIKE
        )
        assert len(steady) == probe_windows.AUTO_STEPS and steady[0] > cold[-1] + clock.BARE_ENOUGH
        assert bare == {"rests"} and installed(lab) == {
            "__init__",
            "step",
        }  # after the second window only optimizers tell
        record = lab.probe.status.record()
        real = record["unrecorded_steps"]
        assert real["where"] == "between the windows" and real["count"] == len(real["lengths_ns"]) >= clock.BARE_ENOUGH
        assert record["marked_steps"] == [steady[0], *steady[-3:]] and record["steps"]["unmarked_from"] == steady[1]
        assert len(record["window_pauses_ns"]) == 2 and record["ended"] is True
    finally:
        lab.close()


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    """Each sample takes 2 ms."""

    def __len__(self) -> int:
        return 1_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.ones(8)


@pytest.mark.parametrize("rests", [True, False])
def test_the_time_in_next_is_noted_for_each_bare_step(
    switched: list[str], monkeypatch: pytest.MonkeyPatch, rests: bool
) -> None:
    """Also where another loader is read inside the one of the loop, whose time is not added twice, and beside it, by another thread."""
    if not rests:
        monkeypatch.setattr("nsysx_probe.resting.Resting.look", lambda _resting: None)
    lab = Lab(NSYSX_STEPS="windows", NSYSX_MARKS="few")
    try:
        net, inner = Net(), iter(torch.utils.data.DataLoader(Slow(), shuffle=False))
        opt = torch.optim.SGD(net.parameters(), lr=0.001)
        outer = torch.utils.data.DataLoader([0] * 1_000, batch_size=1, collate_fn=lambda _: next(inner))
        beside = threading.Thread(
            target=lambda: list(zip(range(60), torch.utils.data.DataLoader(Slow()), strict=False))
        )
        beside.start()
        for x in outer:
            opt.zero_grad()
            net(x).sum().backward()
            opt.step()
            if len(switched) == 4:
                break
        beside.join()
        real = lab.probe.status.record()["unrecorded_steps"]
        assert len(real["fetch_ns"]) == len(real["lengths_ns"]) >= clock.BARE_ENOUGH
        assert all(2_000_000 <= fetch < ns for fetch, ns in zip(real["fetch_ns"], real["lengths_ns"], strict=True))
        assert real["after_fetch_ns"] == []
    finally:
        lab.close()


@pytest.mark.parametrize("more", [0, 8, 90])
def test_bare_steps_are_timed_once_more_where_nsys_leaves_the_program(
    switched: list[str], monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """The program ends with the second window, eight steps after it, or when these steps are known."""
    directives = f"CuptiSubscribeOnStart=true;{capture_range.DETACHED}"
    lab = Lab(NSYSX_STEPS="windows", NSYSX_MARKS="few", NSYS_CONFIG_DIRECTIVES=directives)
    try:
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=0.001)
        while len(switched) < 4:
            train(net, 1, opt)
        before, rested = lab.probe.status.record(), set()
        for _ in range(more):
            train(net, 1, opt)
            rested |= {lab.probe.resting.on}
        lab.probe.exit()
        record = lab.probe.status.record()
        real, was = record["unrecorded_steps"], before["unrecorded_steps"]
        assert real["detached"] and not was["after_ns"] and real["lengths_ns"] == was["lengths_ns"]
        # One step has no length: the probe begins to rest in it.
        least, most = {0: (0, 0), 8: (4, 8), 90: (clock.BARE_ENOUGH - 1, clock.BARE_ENOUGH + 4)}[more]
        assert least <= len(real["after_ns"]) <= most and real["after_fetch_ns"] == [0] * len(real["after_ns"])
        assert (True in rested) == (more > 0) and installed(lab) == set()
        for name in ("marks_cost_ns_per_step", "marked_steps", "capture_steps", "window_pauses_ns"):
            assert record[name] == before[name], name
        assert len(recorded(lab)) == 2 and len(switched) == 4 and not record["errors"]
    finally:
        lab.close()


def test_the_rest_of_the_run_is_counted_and_nothing_else_is_followed(
    switched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the last bare steps only the step of that optimizer is counted, at its beginning; a second one of its class is not."""
    lab = Lab(NSYSX_STEPS="windows", NSYSX_MARKS="few", NSYS_CONFIG_DIRECTIVES=capture_range.DETACHED)
    try:
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=0.001)
        while lab.probe.armed:
            train(net, 1, opt)
        assert lab.probe.status.record()["rest"] is None
        followed = {p.function for p in lab.probe.patcher.patches if p.function.__code__ is p.new}
        assert followed == {type(opt).step, torch.optim.Optimizer.__init__}
        now = [time.perf_counter_ns()]  # one step has begun since
        monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
        late = torch.optim.SGD(net.parameters(), lr=0.001)
        sent = len(lab.tape.texts("step"))
        for number in range(2_000):
            now[0] += 40_000_000 + 20_000_000 * (number >= 1_000)
            train(net, 1, opt)
            train(net, 1, late)
        lab.probe.exit()
        rest = lab.probe.status.record()["rest"]
        assert rest["steps"] == 2_000 and 0 <= rest["ns"] - 1_000 * (40_000_000 + 60_000_000) < 5_000_000_000
        assert [sum(column) for column in zip(*rest["blocks"], strict=True)] == [rest["steps"], rest["ns"]]
        assert 20 < len(rest["blocks"]) <= 128
        means = [ns / steps for steps, ns in rest["blocks"]]
        assert means[1] == 40_000_000 and means[-1] == 60_000_000
        assert len(lab.tape.texts("step")) == sent and installed(lab) == set() and not lab.probe.out.errors
    finally:
        lab.close()


def test_what_is_counted_so_far_is_written_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks double when they are too many; then the record is written, for a program that is killed. A failure ends the counting."""
    now, written = [0], []
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    lab = Lab(NSYSX_STEPS="windows")
    try:
        opt = torch.optim.SGD(Net().parameters(), lr=0.001)
        counts = lab.probe.parts.odometer
        counts.written = lambda: written.append(now[0])
        lab.probe.disarm()
        counts.start(opt, told=False)
        for _ in range(1_000):
            now[0] += 1_000_000_000
            opt.step()
        assert len(written) == 6 and written[0] == 129 * 10**9
        rest = counts.record()
        assert rest is not None and rest["steps"] == 999 and sum(steps for steps, _ in rest["blocks"]) == 999
        counts.written = lambda: 1 / 0
        for _ in range(2_000):
            now[0] += 1_000_000_000
            opt.step()
        assert "odometer: ZeroDivisionError" in lab.probe.out.errors[0] and installed(lab) == set()
    finally:
        lab.close()


@pytest.mark.parametrize(("steps", "seen", "known"), [(6, ["open"], False), (48, ["open", "close"], True)])
def test_a_program_that_ends_early_keeps_what_it_has(
    switched: list[str], monkeypatch: pytest.MonkeyPatch, steps: int, seen: list[str], known: bool
) -> None:
    monkeypatch.setattr(clock, "BARE_ERROR_SHARE", 0.0)
    lab = Lab(NSYSX_STEPS="windows", NSYSX_MARKS="few")
    try:
        train(Net(), steps)
        lab.probe.exit()
        record = lab.probe.status.record()
        assert switched == seen and (record["unrecorded_steps"] is not None) == known
        assert len(recorded(lab)) == 1
    finally:
        lab.close()


def test_the_first_window_closes_although_steps_are_never_alike(
    switched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_windows, "FIRST_WINDOW_STEPS", 12)
    monkeypatch.setattr(probe_windows, "FIRST_WINDOW_ALIKE", 1000)
    lab = Lab(NSYSX_STEPS="windows", NSYSX_MARKS="few")
    try:
        train(Net(), 30)
        assert recorded(lab)[0] == list(range(13))
    finally:
        lab.close()


@pytest.mark.parametrize(
    ("lengths", "steady"),
    [
        ([10] * 20, True),
        ([1, 1, 1, 1, 1, 1, 1, 80] * 3, True),  # it waits for its GPU in each eighth step
        ([1, 1, 1, 1, 1, 1, 1, 80, 1, 1], False),  # too few to tell
        ([900, *[1] * 9, *[1] * 9, 80], False),  # the start is not over
        ([*[1] * 10, *[1] * 9, 80], False),  # the first of its kind
    ],
)
def test_the_first_window_closes_once_steps_are_as_long_as_before(lengths: list[int], steady: bool) -> None:
    out = output.Output(backend.nowhere("off"), {}, lambda: None)
    window = probe_windows.TwoWindows(out, clock.StepClock(torch))
    window._lengths.extend(lengths)
    assert window._as_long() is steady


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("at", [3, 30, 47, 85])
def test_a_program_that_fails_in_any_phase_keeps_what_was_measured(
    switched: list[str], monkeypatch: pytest.MonkeyPatch, at: int, error: type[BaseException]
) -> None:
    """It fails in the cold start, in the bare steps, in the second window or after it."""
    monkeypatch.setattr(clock, "BARE_ENOUGH", 16)
    lab = Lab(NSYSX_STEPS="windows", NSYSX_MARKS="few")
    try:
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=0.001)
        train(net, at, opt)

        def fails(*_: object) -> None:
            raise error("the program's own")

        handle = net.register_forward_hook(fails)
        with pytest.raises(error, match="the program's own"):
            train(net, 1, opt)
        handle.remove()
        lab.probe.exit()
        record = lab.probe.status.record()
        assert switched == ["open", "close", "open", "close"][: {3: 1, 30: 2, 47: 3, 85: 4}[at]]
        assert (record["unrecorded_steps"] is not None) == (at > 3)
        assert not record["errors"] and len(record["window_pauses_ns"]) == switched.count("close")
    finally:
        lab.close()


def test_ctrl_c_in_the_pause_at_a_windows_end_is_the_programs(
    switched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is where it comes most, since nsys stops the program for seconds; the window has closed all the same, and no other opens."""

    def end(_: object) -> None:
        switched.append("close")
        if len(switched) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(capture_range, "_calls", [lambda: switched.append("open") or 1, end])
    lab = Lab(NSYSX_STEPS="windows", NSYSX_MARKS="few")
    try:
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=0.001)
        with pytest.raises(KeyboardInterrupt):
            train(net, 40, opt)
        train(net, 90, opt)
        lab.probe.exit()
        record = lab.probe.status.record()
        assert switched == ["open", "close"] and len(record["window_pauses_ns"]) == 1 and not record["errors"]
    finally:
        lab.close()


def test_without_a_step_everything_is_recorded(switched: list[str]) -> None:
    lab = Lab(NSYSX_STEPS="windows")
    try:
        lab.probe.status.hello()
        assert switched == ["open"] and lab.probe.out.recording
    finally:
        lab.close()
    assert lab.probe.status.record()["window_missed"] is None


def test_the_mean_is_measured_for_three_seconds_unless_it_is_known_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    lengths = collections.defaultdict(lambda: 10_000_000)
    for jitter, least_s, most_s in ((0, 1.0, 1.2), (9_000_000, 2.9, 3.2)):
        told = clock.StepClock(torch)
        told.start_bare(20)
        begun = 0
        for index in range(20, 2_000):
            lengths[index] += jitter * (index // 40 % 2)  # half of the time a step takes longer
            told.begin(index)
            begun = begun or told._counted_ns
            if told.is_long_enough():
                break
            now[0] += lengths.pop(index)
        assert least_s <= (now[0] - begun) / 1e9 <= most_s
        assert begun - told._bare_ns >= clock.BARE_SETTLING_NS
        real = told.bare(None)
        assert real is not None and set(real["lengths_ns"]) == {10_000_000, 10_000_000 + jitter}


@pytest.mark.parametrize(("stock", "steps"), [(90, 190), (0, 100), (None, 90)])
def test_steps_are_measured_as_long_again_once_a_loaders_queue_is_empty(
    stock: int | None, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 10 ms live on ``stock`` batches made during the pause; then each tenth one waits. None: the loader is always ready."""
    now = [0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    told = clock.StepClock(torch)
    told.start_bare(0)
    index = 0
    while not told.is_long_enough():
        told.begin(index)
        late = stock is not None and index >= 50 + stock and index % 10 == 0
        told.fetch_ns = 1_000_000 + 5_000_000 * late
        now[0] += 10_000_000 + 5_000_000 * late
        index += 1
        assert index < 1_000
    real = told.bare(None)
    assert real is not None and steps <= real["count"] <= steps + (20 if stock is None else 310)
    assert len(real["fetch_ns"]) == real["count"]
    assert sum(ns > 5_000_000 for ns in real["fetch_ns"]) >= (0 if stock is None else 9)


class Event:
    """An event of a device whose clock is the host's: each step takes 20 us, and every hundredth 1 ms longer."""

    now, made = 0, 0

    def __init__(self) -> None:
        self.at, Event.made = Event.now, Event.made + 1

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: Event) -> float:
        return (later.at - self.at) / 1e6


def test_an_event_costs_little_of_a_short_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events begin blocks of steps of 20 us; the mean is theirs, and what follows a step and is none stays out of it."""
    monkeypatch.setattr(time, "perf_counter_ns", lambda: Event.now)
    monkeypatch.setattr(clock, "event_here", lambda _: Event())
    monkeypatch.setattr(Event, "now", 0)
    monkeypatch.setattr(Event, "made", 0)
    told = clock.StepClock(torch)
    told.start_bare(0)
    for index in range(60_000):
        told.begin(index, event=True)
        Event.now += 20_000 + 1_000_000 * (index % 100 == 99)
        if index % 1_000 == 999:  # an evaluation
            told.stop()
            Event.now += 50_000_000
    real = told.bare(None)
    assert real is not None and real["clock"] == "gpu" and real["count"] > 3_000
    assert abs(sum(real["lengths_ns"]) / real["count"] - 30_000) < 1_500
    assert Event.made < 13_000  # 10 steps a block once their length is known


@pytest.mark.parametrize("every", [0, 1, 4])
def test_what_runs_between_bare_steps_counts_in_the_loop(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """A rollout of 6 ms behind each ``every``-th step of 2 ms: steps keep their own length, and the loop holds all of the time."""
    now = [0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    told = clock.StepClock(torch)
    told.start_bare(0)
    begun, steps = 0, 0
    while not told.is_long_enough():
        told.begin(steps)
        begun = begun or (now[0] if told._counted_ns else 0)
        now[0] += 2_000_000
        if every and steps % every == every - 1:
            told.stop()
            now[0] += 6_000_000
        steps += 1
        assert now[0] < 5_000_000_000  # the second window comes although no step has a length of its own
    told.begin(steps)
    real = told.bare(None)
    assert real is not None and set(real["lengths_ns"]) == (set() if every == 1 else {2_000_000})
    assert ("median_ns" in real) == (every != 1)
    assert sum(real["loop_ns"]) == (now[0] - begun if every else 0)


def test_a_step_that_begins_at_another_place_is_no_gap_in_the_loop(switched: list[str]) -> None:
    """Evaluations wake the probe, which then rests again: the loop's steps still sum to the time that has passed."""
    lab = Lab(NSYSX_STEPS="windows", NSYSX_MARKS="few")
    try:
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=0.001)
        rested = []
        for number in range(200):
            train(net, 1, opt)
            rested.append(lab.probe.resting.on)
            if number % 10 == 9:
                net.eval()
                with torch.no_grad():
                    net(torch.randn(2, 8))
                time.sleep(0.005)
                net.train()
            if len(switched) == 3:
                break
        told, first = lab.probe.borders.clock, lab.probe.borders.window.first
        real = lab.probe.status.record()["unrecorded_steps"]
        begun = dict(told._begun)
        assert True in rested and first is not None and len(begun) == len(told._begun)
        assert len(real["loop_ns"]) == first - 1 - told._bare_from
        assert sum(real["loop_ns"]) == begun[first - 1] - begun[told._bare_from]
        assert sum(real["loop_ns"]) >= 2 * 5_000_000  # the evaluations are in it
    finally:
        lab.close()


@pytest.fixture
def limited(switched: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the folder of the files about the limit; the first window is open, and is watched."""
    sign = tmp_path / at_limit.OPEN

    def opened() -> int:
        sign.touch()
        switched.append("open")
        return 1

    def ended(_window: object) -> None:
        sign.unlink()
        (tmp_path / capture_range.STEPPED).unlink(missing_ok=True)
        switched.append("close")

    monkeypatch.setattr(capture_range, "_calls", [opened, ended])
    monkeypatch.setattr(capture_range, "_limited", [str(tmp_path)])
    monkeypatch.setattr(at_limit, "LIMIT_LOOK_S", 0.001)
    capture_range._open.clear()
    switched.clear()
    capture_range.begin()
    return tmp_path


def test_a_window_without_steps_is_closed_beside_the_program_and_the_second_one_still_comes(
    switched: list[str], limited: Path
) -> None:
    lab = Lab(NSYSX_STEPS="windows", NSYSX_MARKS="few")
    try:
        (limited / at_limit.REST).touch()
        for _ in range(5_000):
            if (limited / f"{at_limit.RESTS}{os.getpid()}").exists():
                break
            time.sleep(0.002)
        else:
            raise AssertionError("it does not say that it rests")
        (limited / at_limit.REST).unlink()
        (limited / at_limit.OPEN).unlink()  # who holds the range has closed the window
        train(Net(), 120)
        assert switched == ["open", "open", "close"]
        record = lab.probe.status.record()
        assert record["window_pauses_ns"][0] == 0 < record["window_pauses_ns"][1] and not record["errors"]
        assert record["unrecorded_steps"]["count"] >= clock.BARE_ENOUGH
    finally:
        lab.close()


def test_windows_with_steps_close_with_one_at_the_limit(switched: list[str], limited: Path) -> None:
    lab = Lab(NSYSX_STEPS="windows", NSYSX_MARKS="few")
    try:
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=0.001)
        train(net, 2, opt)
        assert (limited / capture_range.STEPPED).exists()
        (limited / capture_range.LIMIT).touch()
        train(net, 4, opt)
        assert (
            recorded(lab)[0] == list(range(probe_windows.FIRST_WINDOW_LEAST + 1))
            and not (limited / capture_range.STEPPED).exists()
        )
        train(net, 90, opt)
        assert switched == ["open", "close", "open", "close"]
        assert len(recorded(lab)[1]) == probe_windows.SECOND_WINDOW_WHOLE + 1, "one more, for the X-ray"
    finally:
        lab.close()


def test_two_optimizers_in_two_threads(switched: list[str]) -> None:
    lab = Lab(NSYSX_STEPS="windows", NSYSX_MARKS="few")
    try:
        failures: list[BaseException] = []

        def work() -> None:
            try:
                net = Net()
                train(net, 100, torch.optim.SGD(net.parameters(), lr=0.001))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        record = lab.probe.status.record()
        assert not failures and not record["errors"]
        assert switched in (["open", "close"], ["open", "close", "open"], ["open", "close", "open", "close"])
        assert len(record["window_pauses_ns"]) == switched.count("close")
    finally:
        lab.close()


def test_a_fork_between_the_windows_takes_no_part_in_them(switched: list[str], tmp_path: Path) -> None:
    lab = Lab(NSYSX_STEPS="windows", NSYSX_MARKS="few", NSYSX_PROBE_DIR=str(tmp_path))
    try:
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=0.001)
        train(net, 25, opt)
        assert switched == ["open", "close"]
        child = os.fork()
        if not child:
            status = 1
            try:
                lab.probe.forked()
                lab.probe.exit()
                status = int(switched != ["open", "close"])
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        train(net, 100, opt)
        assert switched == ["open", "close", "open", "close"]
        lab.probe.status.finish()
        assert [path.name for path in tmp_path.glob("probe-*.json")] == [f"probe-{os.getpid()}.json"]
    finally:
        lab.close()


@pytest.mark.parametrize(("step_ns", "cold", "bare"), [(40_000_000_000, 4, 5), (20_000, 11, 70_000)])
def test_steps_of_40_s_and_of_20_us_have_both_windows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step_ns: int, cold: int, bare: int
) -> None:
    """With the real times: nothing cuts long steps, and short ones are measured for a second all the same."""
    now, seen = [0], [""][:0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(capture_range, "_calls", [lambda: seen.append("open") or 1, lambda _: seen.append("close")])
    monkeypatch.setattr(capture_range, "_open", [])
    monkeypatch.setattr(capture_range, "claim", lambda **_: "")
    capture_range.begin()
    told = clock.StepClock(torch)
    window = probe_windows.TwoWindows(output.Output(backend.nowhere("off"), {}, lambda: None), told)
    closed, index, recording = [0][:0], 0, True
    while len(closed) < 2:
        assert index < 200_000
        if not recording and window.opens(index):
            window.open(torch)
            window.opened = recording = True
        told.begin(index, recorded=recording)
        now[0] += step_ns
        window.step_ended(1)
        if recording and window.closes(index):
            recording = False
            closed.append(index)
            if window.close(torch):
                told.start_bare(index + 1)
        index += 1
    real = window.unrecorded()
    assert real is not None and set(real["lengths_ns"]) == {step_ns} and seen == ["open", "close"] * 2
    assert closed[0] + 1 <= cold + 1 and window.first is not None and window.first - closed[0] - 1 <= bare + 10_000
    assert closed[1] - window.first + 1 == probe_windows.AUTO_STEPS and real["count"] >= 3


@pytest.mark.parametrize(
    ("answer", "ours", "unrecorded"),
    [
        ("open", True, False),
        ("closed", True, False),
        ("replaced", False, True),
        ("over 7", False, True),
        ("", False, False),
    ],
)
def test_a_process_asks_whether_windows_can_be_had(
    monkeypatch: pytest.MonkeyPatch, answer: str, ours: bool, unrecorded: bool
) -> None:
    """One that has replaced the program of a window that has closed has none, nor has one that comes when both are over."""
    for name in ("_calls", "_open", "_over", "_replaced", "_limited"):
        monkeypatch.setattr(capture_range, name, [])
    monkeypatch.setattr(capture_range, "_ask", lambda _text: answer)
    capture_range.here()
    assert not capture_range.ours()  # nobody has named an address
    monkeypatch.setenv("NSYSX_STEPS", "windows")
    monkeypatch.setenv(capture_range.ADDRESS, "somewhere")
    capture_range.here()
    assert (capture_range.ours(), capture_range.unrecorded()) == (ours, unrecorded)
    assert capture_range.had_by() == ("7" if answer == "over 7" else "")
    assert capture_range._open == ([1] if answer == "open" else [])


def test_a_process_that_does_not_get_the_windows_is_recorded_without(
    switched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_range, "claim", lambda **_: "4711")
    lab = Lab(NSYSX_STEPS="windows", NSYSX_MARKS="few")
    try:
        net = Net()
        train(net, 60, torch.optim.SGD(net.parameters(), lr=0.001))
        assert switched == ["open"] and recorded(lab) == [list(range(60))]
        record = lab.probe.status.record()
        assert record["windows_of"] == "4711" and record["window_pauses_ns"] is None and not record["errors"]
        assert record["unrecorded_steps"] is None and not lab.probe.resting.on
    finally:
        lab.close()


def test_the_file_of_a_program_that_was_replaced_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / f"probe-{os.getpid()}.json"
    for text, name in (
        (None, own.name),
        ('"backend": "off"', own.name),
        ('"backend": "nvtx"', f"{own.stem}-exec.json"),
    ):
        monkeypatch.setattr(bootstrap, "_files", {})
        if text is not None:
            own.write_text(text)
        assert Path(bootstrap.record_file(str(tmp_path))).name == name
