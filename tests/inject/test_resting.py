"""While the program waits for its capture window and steps have settled, it runs almost bare, and steps are counted all the same."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import nsysx_probe.probe
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.inject.test_probe import NET, Lab, Net

pytestmark = pytest.mark.filterwarnings("ignore")

FAR = "100000:100001"


def one(net: nn.Module, opt: Any) -> None:
    opt.zero_grad()
    net(torch.randn(2, 8)).sum().backward()
    opt.step()


def sgd(net: nn.Module) -> Any:
    return torch.optim.SGD(net.parameters(), lr=0.001)


def installed(lab: Lab) -> set[str]:
    """Return the names of the functions whose code is the probe's now."""
    return {p.function.__name__ for p in lab.probe.patcher.patches if p.function.__code__ is p.new}


def plain() -> int:
    net = Net()
    opt = sgd(net)
    for _ in range(40):
        one(net, opt)
    return 40


def evaluations() -> int:
    net = Net()
    opt = sgd(net)
    for i in range(40):
        one(net, opt)
        if i % 9 == 8:
            net.eval()
            with torch.no_grad():
                net(torch.randn(2, 8))
            net.train()
    return 40


def epochs() -> int:
    net = Net()
    opt = sgd(net)
    loader = DataLoader(TensorDataset(torch.randn(22, 8)), batch_size=2)
    for _ in range(4):
        for (x,) in loader:
            opt.zero_grad()
            net(x).sum().backward()
            opt.step()
        with torch.no_grad():
            for (x,) in loader:
                net(x)
    return 44


def accumulation() -> int:
    net = Net()
    opt = sgd(net)
    for _ in range(30):
        for _ in range(3):
            net(torch.randn(2, 8)).sum().backward()
        opt.step()
        opt.zero_grad()
    return 30


def scaler() -> int:
    net = Net()
    opt = sgd(net)
    scale = torch.amp.GradScaler("cpu")
    for i in range(30):
        opt.zero_grad()
        scale.scale(net(torch.randn(2, 8)).sum() * (float("inf") if i % 7 == 6 else 1.0)).backward()
        scale.step(opt)
        scale.update()
    return 30


def closures() -> int:
    net = Net()
    opt = sgd(net)

    def closure() -> Any:
        opt.zero_grad()
        loss = net(torch.randn(2, 8)).sum()
        loss.backward()
        return loss

    for _ in range(30):
        opt.step(closure)
    return 30


def stages() -> int:
    """Another optimizer takes over, and then one that was made long before."""
    net = Net()
    first = sgd(net)
    for _ in range(20):
        one(net, first)
    second = torch.optim.AdamW(net.parameters(), lr=0.001)
    for _ in range(20):
        one(net, second)
    return 40


def adversaries() -> int:
    generator, critic = Net(), Net()
    first, second = sgd(generator), torch.optim.Adam(critic.parameters(), lr=0.001)
    for _ in range(30):
        one(critic, second)
        one(generator, first)
    return 30


def users() -> int:
    net = Net()
    opt = sgd(net)
    for _ in range(20):
        one(net, opt)
    for _ in range(10):
        nsysx_probe.probe.step()
        one(net, opt)
    return 30


LOOPS = [plain, evaluations, epochs, accumulation, scaler, closures, stages, adversaries, users]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: str(loop.__name__))
def test_steps_are_counted_as_if_everything_was_followed(
    loop: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for window in ("", FAR):
        lab = Lab(NSYSX_STEPS=window)
        monkeypatch.setattr(nsysx_probe.probe, "_probe", lab.probe)
        rests = []
        rest = lab.probe.resting._rest
        monkeypatch.setattr(lab.probe.resting, "_rest", lambda rest=rest, rests=rests: rests.append(rest()))
        try:
            steps = loop()
            lab.probe.exit()
            found.append((lab.probe.steps.count, lab.probe.steps.rule))
            assert lab.probe.out.errors == []
        finally:
            lab.close()
    assert bool(rests) == (loop is not adversaries), "two optimizers are no plain rule"
    assert found[0] == found[1] and found[0][0] == steps


def test_far_from_the_window_only_the_end_of_the_optimizers_step_is_followed() -> None:
    lab = Lab(NSYSX_STEPS="40:42")
    try:
        net = Net()
        opt = sgd(net)
        everything = installed(lab)
        for number in range(44):
            if number == 12:
                assert lab.probe.resting.on
                rare = {"__init__", "__iter__", "compile", "capture_begin", "capture_end", "eval", "step"}
                rare |= {"_run_on_profiler_start", "_start_trace"}  # to give way to a profiler of the program
                rare |= {
                    "_open_zipfile_writer",
                    "__exit__",
                    "get_device_capability",
                }  # what saves, and asks for the card
                rare |= {"use_deterministic_algorithms", "__set__"}  # what sets a mode or a switch of torch.backends
                rare |= {"__next__"}  # the time of a batch
                rare |= {"register_comm_hook"}  # where a hook of DDP's gradients is set
                rare |= {"__setattr__", "double", "set_default_dtype", "set_float32_matmul_precision", "_sdpa_kernel"}
                rare |= {"enable_flash_sdp", "enable_mem_efficient_sdp", "fully_shard", "_update_default_pg"}
                # like these, at the line that sets or makes something
                rare |= {"check_worker_number_rationality", "convert_sync_batchnorm"}
                assert installed(lab) <= rare | {type(opt).step.__name__}
            if number == 39:
                assert installed(lab) >= everything
            one(net, opt)
        assert lab.tape.texts("step") == ["step 40", "step 41"]
        assert lab.tape.modules() == NET * 2
    finally:
        lab.close()


def test_steps_last_the_same_while_resting_and_evaluations_are_not_timed() -> None:
    lab = Lab(NSYSX_STEPS="60:62")
    try:
        net = Net()
        opt = sgd(net)
        for number in range(61):
            time.sleep(0.002)
            one(net, opt)
            time.sleep(0.002)
            if number in (20, 33):
                net.eval()
                net.train()
        periods = {p.number: p.ns for p in lab.probe.borders.clock.periods if p.number < 58}
        assert len(periods) > 40
        assert min(periods.values()) >= 4_000_000
        # A step before which a network was to be evaluated begins behind that; those at which resting begins have no length.
        assert set(range(58)) - set(periods) == {4, 25, 38}
    finally:
        lab.close()


def test_steps_with_an_evaluation_are_not_timed_once_one_is_known() -> None:
    lab = Lab(NSYSX_STEPS="60:62")
    try:
        net = Net()
        opt = sgd(net)
        for number in range(61):
            one(net, opt)
            if number in (20, 33, 46):
                net.eval()
                with torch.no_grad():
                    net(torch.randn(2, 8))
                net.train()
        rows = lab.probe.settings.evaluations.record()
        assert [(row["step"], row["calls"]) for row in rows] == [(20, 1)], (
            "the first one was followed, though all rested"
        )
        periods = {p.number: p.ns for p in lab.probe.borders.clock.periods if p.number < 58}
        assert {34, 47} <= set(range(58)) - set(periods)
    finally:
        lab.close()


def test_an_exception_in_the_optimizer_ends_the_step() -> None:
    lab = Lab(NSYSX_STEPS=FAR)
    try:
        net = Net()
        opt = sgd(net)
        for _ in range(12):
            one(net, opt)
        assert lab.probe.resting.on

        def fails() -> float:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            opt.step(fails)
        one(net, opt)
        assert lab.probe.steps.index == 13 and lab.probe.resting.on
    finally:
        lab.close()


def test_after_the_window_nothing_of_the_probe_runs() -> None:
    callbacks = list(gc.callbacks)
    engine = torch.autograd.Variable._execution_engine
    lab = Lab(NSYSX_STEPS="2:4", NSYSX_PAUSES="1", NSYSX_XRAY="all")
    try:
        net = Net()
        opt = sgd(net)
        for _ in range(4):
            one(net, opt)
        one(net, opt)
        assert not lab.probe.armed and not installed(lab)
        assert all(p.function.__code__ is p.old for p in lab.probe.patcher.patches)
        assert gc.callbacks == callbacks and torch.autograd.Variable._execution_engine is engine
        final = lab.probe.out.counted(), lab.probe.steps.index, len(lab.tape.calls)
        other = torch.optim.AdamW(net.parameters(), lr=0.001)  # of a class that was not seen before
        for _ in range(3):
            one(net, other)
        assert "_nsysx_t" not in type(other).step.__code__.co_varnames
        assert (lab.probe.out.counted(), lab.probe.steps.index, len(lab.tape.calls)) == final
    finally:
        lab.close()


def test_a_step_that_is_noted_adds_no_memory() -> None:
    """The clock once kept 158 to 280 bytes of Python memory for each step."""
    import tracemalloc

    from nsysx_probe.clock import StepClock

    timer = StepClock(torch)
    timer.begin(0)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(1, 6_000):
            timer.begin(number)
        assert tracemalloc.get_traced_memory()[0] - before < 2_000
    finally:
        tracemalloc.stop()
    assert [p.number for p in timer.periods] == list(range(5_999 - 4_096, 5_999)) and min(
        p.ns for p in timer.periods
    ) > 0
