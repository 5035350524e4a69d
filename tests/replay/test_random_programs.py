"""What the replay says of a change, against the same random program run again with the change made."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import nsysx
from nsysx.replay import chain_columns, tracing_costs
from tests.examples import examples
from tests.replay.machine import CALL, COPY, RETURN, US, Action, Machine

#: A replayed step is this near to that of the changed program: the share of the step, and ns. What a copy from pageable memory costs
#: the CPU once it is pinned is a usual launch, not a known one: there twice as many ns.
_CLOSE, _LEAST_NS = 0.01, 2_000
_RECORDED, _SETTLED, _LONG = 12, 15, 40


def programs(streams: Sequence[int]) -> st.SearchStrategy[list[Action]]:
    """Programs that launch something in every step, and wait at its end: else their streams could drift apart for ever."""
    stream = st.sampled_from(streams)
    name = st.sampled_from(("gemm", "softmax", "add"))
    launch = st.tuples(st.just("launch"), name, st.integers(2, 150), stream)
    event = st.integers(1, 9)
    held = st.tuples(event, stream, stream).map(lambda e: [("record", e[0], e[1]), ("hold", e[0], e[2])])
    awaited = st.tuples(event, stream).map(lambda e: [("record", *e), ("await", e[0])])
    host = st.tuples(st.just("host"), st.integers(1, 60))
    item = st.tuples(st.just("item"), stream)
    # One right behind a copy would be that of the copy.
    sync = st.tuples(st.just("sync"), st.one_of(st.none(), stream)).map(lambda action: [("host", 25), action])
    upload = st.tuples(st.just("upload"), st.integers(10, 200), stream)
    stage = st.tuples(st.just("stage"), st.integers(0, 30), st.integers(20, 200), stream)
    compiled = st.tuples(st.just("compile"), st.integers(100, 20_000))
    alone = st.one_of(launch, launch, launch, host, item, upload, stage, compiled).map(lambda action: [action])
    one = st.one_of(alone, alone, alone, alone, sync)
    free = st.just([("free",)])
    # A thread that launches nothing is host code of those that do.
    turned = st.tuples(launch, st.lists(one, max_size=2)).map(
        lambda p: [("turn",), p[0], *(a for part in p[1] for a in part), ("turn",)]
    )
    parts = st.lists(st.one_of(one, one, one, one, held, awaited, free, turned), min_size=3, max_size=10)
    load = st.one_of(st.just([]), st.integers(20, 600).map(lambda us: [("load", us)]))
    return st.tuples(load, launch, parts).map(
        lambda p: [*p[0], p[1], *(a for part in p[2] for a in part), ("sync", None)]
    )


class Changed(Machine):
    """The machine with waits that are none."""

    def _noupload(self, thread: Any, us: int, stream: int) -> None:
        self.free[stream] = self._start(stream) + us
        self.now += CALL

    def _nosync(self, thread: Any) -> None:
        self.now += RETURN

    def _noitem(self, thread: Any, stream: int) -> None:
        self.free[stream] = self._start(stream) + COPY
        self.now += CALL + RETURN


def without(*kinds: str) -> Callable[[Action], list[Action]]:
    return lambda action: [] if action[0] in kinds else [action]


def without_host(action: Action) -> list[Action]:
    return [] if action[0] == "host" else [("compile", 0)] if action[0] == "compile" else [action]


def faster(action: Action) -> list[Action]:
    return [("launch", "gemm", action[2] / 2, action[3])] if action[:2] == ("launch", "gemm") else [action]


def unwaited(action: Action) -> list[Action]:
    return (
        [("nosync",)]
        if action[0] in {"sync", "await", "free"}
        else pinned(None)(action)
        if action[0] in {"upload", "stage"}
        else [("noitem", action[1])]
        if action[0] == "item"
        else [action]
    )


def pinned(stream: int | None) -> Callable[[Action], list[Action]]:
    """Return what makes of a pageable upload one from pinned memory, on another stream if there is one."""
    return lambda a: [("noupload", a[-2], stream or a[-1])] if a[0] in {"upload", "stage"} else [a]


def changes(program: Sequence[Action]) -> dict[str, tuple[dict[str, Any], Callable[[Action], list[Action]]]]:
    """Return what can be asked of this program, and what that makes of each action."""
    kinds = {action[0] for action in program}
    of_device = [a for a in program if a == ("sync", None)]
    return {
        name: asked[1:]
        for name, asked in {
            "kernels": (any(a[:2] == ("launch", "gemm") for a in program), {"kernel": "gemm=2x"}, faster),
            "waits": (True, {"remove_wait": "all"}, unwaited),
            "loader": ("load" in kinds, {"free_loader": True}, without("load")),
            "host": (kinds & {"host", "compile"}, {"no_host": True}, without_host),
            "allocator": ("free" in kinds, {"remove_alloc": True}, without("free")),
            "pinned": (kinds & {"upload", "stage"}, {"pin_copies": True}, pinned(None)),
            "prefetched": (kinds & {"upload", "stage"}, {"overlap_copies": True}, pinned(99)),
            "events": ("await" in kinds, {"remove_sync_calls": "event"}, without("await")),
            "device": (of_device, {"remove_sync_calls": "device"}, lambda a: [] if a == ("sync", None) else [a]),
        }.items()
        if asked[0]
    }


def step_us(program: Sequence[Action]) -> float:
    return Changed(program).run(_LONG).step_us(_SETTLED)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, int]:
    """What a profiler adds before each call of a class (us), known to the table of costs."""
    tracing = {"launch": 5, "copy": 6, "sync": 2, "event": 4}
    table = {
        name: tracing_costs.Cost(*(tracing.get(name, 0) * US * part for part in (1, 0.5, 1.5)))
        for name in tracing_costs.ASSUMED.of
    }
    monkeypatch.setattr(tracing_costs, "ASSUMED", tracing_costs.TracingCosts("assumed", CALL * US, table))
    monkeypatch.setattr(chain_columns, "KERNEL_GAP_NS", 0)
    return tracing


def compare(program: list[Action], *, one_stream: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(program).run(_RECORDED)
        report = nsysx.report(machine.report.write(Path(folder) / "r.sqlite"))
        now, known = step_us(program) * US, report.unprofiled
        assert known is not None, [check.detail for check in report.quality]
        near = max(_CLOSE * now, _LEAST_NS * (2 if any(a[0] == "stage" for a in program) else 1))
        assert abs(known.step_ns - now) <= near, "the step itself"
        near += machine.hidden_us * US / _RECORDED
        for name, (asked, change) in changes(program).items():
            told = report.whatif(**asked).step_ns
            true = step_us([new for action in program for new in change(action)]) * US
            assert told >= true - near, (name, "promises too much", told, true)
            # No saving is larger than the idle time, although streams may then overlap more than they did.
            if one_stream or true >= known.gpu_busy_ns:
                assert told <= true + near, (name, told, true)


def test_an_event_from_before_the_first_replayed_call_is_waited_for_once() -> None:
    """Each step begins with a kernel for which its stream was told to wait in the step before, while the host runs ahead."""
    program: list[Action] = [
        *(("launch", "add", 5, 7), ("record", 1, 7), ("hold", 1, 13)),
        *(("launch", "gemm", 200, 13), ("record", 2, 13), ("hold", 2, 7)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Machine(program).run(_RECORDED).report.write(Path(folder) / "r.sqlite")
        report = nsysx.report(path, steps="3:10")
    assert report.unprofiled is not None, [check.detail for check in report.quality]
    assert report.unprofiled.step_ns == pytest.approx(step_us(program) * US, abs=_LEAST_NS)


several = settings(max_examples=examples(6), deadline=None, suppress_health_check=list(HealthCheck))


@several
@given(program=programs((7,)))
# The CPU fills a staging buffer before the copy begins: without the wait it does not.
@example(program=[("launch", "gemm", 2, 7), ("item", 7), ("item", 7), ("stage", 6, 20, 7), ("sync", None)])
# What a call copies itself begins late: that is not the latency of a launch.
@example(program=[*(("launch", "gemm", 38, 7), ("host", 60), ("item", 7)), *(("stage", 18, 123, 7), ("sync", None))])
# The stream was free long before the buffer was full: the copy did not wait for the kernel.
@example(program=[*(("launch", "softmax", 19, 7), ("stage", 28, 35, 7)), *(("launch", "gemm", 2, 7), ("sync", None))])
def test_one_stream(program: list[Action]) -> None:
    compare(program, one_stream=True)


@several
@given(program=programs((7, 13)))
# While the copy waits for the kernel nobody sees how long its staging buffer takes.
@example(program=[("launch", "gemm", 2, 7), ("launch", "gemm", 31, 7), ("stage", 16, 20, 7), ("sync", None)])
def test_two_streams(program: list[Action]) -> None:
    compare(program, one_stream=False)


@several
@given(program=programs((7, 13)))
def test_the_step_without_tracing(traced: Mapping[str, int], program: list[Action]) -> None:
    """What tracing adds to each call is taken out where it arose: what then overlaps and what waits is another matter."""
    # A little host code before each call: of a recorded pause some always stays.
    program = [new for action in program for new in (("host", 3), action)]
    with tempfile.TemporaryDirectory() as folder:
        report = nsysx.report(Machine(program, traced).run(_RECORDED).report.write(Path(folder) / "r.sqlite"))
    known, true = report.unprofiled, step_us(program) * US
    assert known is not None, [check.detail for check in report.quality]
    assert known.step_ns == pytest.approx(true, rel=_CLOSE, abs=_LEAST_NS)
    assert known.low_ns - _LEAST_NS <= true <= known.high_ns + _LEAST_NS
    assert known.recorded_ns > true
    assert known.step_ns <= known.recorded_ns
