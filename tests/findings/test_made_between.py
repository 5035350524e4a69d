"""NSX130: rollouts, and what all ranks compute alike between steps, told apart from evaluations."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsysx.findings import _measured_loop
from nsysx.findings._case import Case
from nsysx.findings._made_between import Rollout, is_unread, rollout_of
from nsysx.pipeline import ReadingOptions, gather_job
from nsysx.replay.engine import Withheld
from tests.builder import Report, Thread
from tests.findings.test_nsx130_between_steps import real_loop

US, MS = 1_000, 1_000_000
DRAWS = "void at::native::distribution_elementwise_grid_stride_kernel<float, 4>"


def round_of(
    thread: Thread, at: int, drawn: bool, drops: bool, read: bool, busy_ns: int = 5 * US, *, gathers: int = 0
) -> int:
    """A network is called, something is drawn from what it returns, and an environment is stepped; return when that is over."""
    thread.add_range("evaluation Policy", at, at + 60 * US, domain="nsysx")
    for launch in range(5):
        kernel = DRAWS if drops and launch == 3 else "ncclDevKernel_AllGather_RING_LL" if launch < gathers else "gemm"
        thread.launch(at + launch * 10 * US, kernel=kernel, gpu_start=at + launch * 10 * US + 8 * US, gpu_dur=busy_ns)
    thread.launch(at + 65 * US, kernel=DRAWS if drawn else "where", gpu_start=at + 75 * US, gpu_dur=5 * US)
    if read:
        thread.memcpy(at + 85 * US, 5 * US, kind="DtoH", bytes=4, gpu_start=at + 86 * US, gpu_dur=US, pageable=True)
    return at + 100 * US


def rolling(
    calls: int = 16,
    every: tuple[int, ...] = (3, 7, 11, 15),
    *,
    drawn: bool = True,
    drops: bool = False,
    read: bool = False,
    by_peer: bool = False,
    gathers: int = 0,
) -> Report:
    """Return a program of 20 steps, behind some of which a network is called many times in a row."""
    report = Report()
    report.gpu(0, pids=[(100, 0), (101, 0)])
    thread, peer = (report.process(pid).thread(pid, "python3") for pid in (100, 101))
    for each in (thread, peer):
        each.process.context()
    at = MS
    for step in range(20):
        for each in (thread, peer) if by_peer else (thread,):
            each.add_range(f"step {step}", at, at + 2 * MS, domain="nsysx")
            each.launch(at + 10 * US, kernel="gemm", gpu_start=at + 20 * US, gpu_dur=MS)
        at += 2 * MS
        if step in every:
            for number in range(calls):
                if by_peer:
                    round_of(peer, at, drawn, drops, read and number == calls - 1)
                at = round_of(thread, at, drawn, drops, read and not by_peer and number == calls - 1, gathers=gathers)
    return report


def case_of(folder: Path, report: Report, **settings: Any) -> Case:
    record = {
        "pid": 100,
        "backend": "nvtx",
        "ranges": {},
        "ranges_pushed": 1,
        "settings": {"evaluations": [], **settings},
    }
    (folder / "r.run.json").write_text(json.dumps({"probe": [record]}))
    profile = gather_job([report.write(folder / "r.sqlite")], ReadingOptions()).profile
    case: Any = SimpleNamespace(profile=profile, process=profile.steps.process)
    return case  # type: ignore[no-any-return]


def test_a_network_that_is_called_in_turn_with_draws_before_every_fourth_step_is_a_rollout(tmp_path: Path) -> None:
    told = rollout_of(case_of(tmp_path, rolling(), wrappers=[{"kind": "DDP", "buffers": 6}]))
    assert told is not None and (told.calls, told.every, told.wrapped, told.drawn) == (16, 4, True, True)
    assert told.forwards == pytest.approx(0.6, abs=0.02) and told.busy_ns == pytest.approx(16 * 30 * US, rel=0.1)
    assert told.sentence() == (
        "It is a rollout, no evaluation: before every 4 steps a network is called 16 times without gradients, numbers are drawn between "
        "its calls, and nothing of it is copied to the host. It is a part of each iteration of the loop."
    )
    between = 16 * 100 * US // 4
    assert told.waits_for_launches(between) and told.goes_ns(between) == pytest.approx(0.6 * between, rel=0.05)
    assert "torch.compile(net.module" in told.fix(between).paste and "waits for launches" in told.fix(between).text


@pytest.mark.parametrize(
    "changed",
    [
        {"drawn": False},  # what is computed for the steps, or summed
        {"drawn": False, "drops": True},  # a network that draws itself, as with dropout
        {"read": True},  # an evaluation that reads its sums at its end
        {"read": True, "by_peer": True},  # on one rank alone
        {"calls": 4},  # a few batches
        {"every": (2, 7, 9, 16)},  # now and then
        {"every": (9,)},
    ],
)
def test_evaluations_are_none(changed: dict[str, Any], tmp_path: Path) -> None:
    assert rollout_of(case_of(tmp_path, rolling(**changed))) is None


def test_samples_of_a_loader_are_an_evaluation(tmp_path: Path) -> None:
    row = {"step": 3, "class": "Policy", "calls": 16, "sums": [], "loader": "train.py:9"}
    assert rollout_of(case_of(tmp_path, rolling(), evaluations=[row])) is None


@pytest.mark.parametrize(("kind", "gathers", "times"), [("fully_shard", 2, 2), ("fully_shard", 0, 0), ("DDP", 2, 0)])
def test_a_rollout_of_a_sharded_policy_gathers_it_once(kind: str, gathers: int, times: int, tmp_path: Path) -> None:
    told = rollout_of(case_of(tmp_path, rolling(gathers=gathers), wrappers=[{"kind": kind, "count": 2}]))
    assert told is not None and told.gathers == times
    assert (told.fix(MS).ways[0].name == "gathered-once") == ("gathers parameters" in told.sentence()) == (times > 0)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"calls": 16, "share": 0.9, "again": 0.0}, True),
        ({"calls": 16, "share": 1.0, "again": 1.0}, False),  # samples of a training set
        ({"calls": 16, "share": 0.1, "again": 0.0}, False),  # other samples
        ({"calls": 2, "share": 1.0, "again": 0.0}, False),
        ({"calls": 16, "share": None, "again": 0.0}, False),
    ],
)
def test_rows_that_the_steps_train_on_tell_a_rollout_that_is_read(
    row: dict[str, Any], told: bool, tmp_path: Path
) -> None:
    rollout = rollout_of(case_of(tmp_path, rolling(drawn=False, read=True), given_rows=[row]))
    assert (rollout is not None) is told
    assert rollout is None or "what its calls are given is what the steps behind it train on" in rollout.sentence()


def test_where_the_gpu_works_less_goes_and_no_launches_are_blamed() -> None:
    told = Rollout(16, 4, 1600 * US, 0.9, drawn=True, wrapped=False)
    assert not told.waits_for_launches(500 * US) and told.goes_ns(500 * US) == 100 * US
    fix = told.fix(500 * US)
    assert "16 bits" in fix.text and "torch.compile(net, " in fix.paste


@pytest.mark.parametrize(("read", "unread"), [(False, True), (True, False)])
def test_what_nobody_reads_is_made_for_the_steps(read: bool, unread: bool, tmp_path: Path) -> None:
    assert is_unread(case_of(tmp_path, rolling(drawn=False, read=read)).profile) is unread


def test_without_a_recorded_stretch_nothing_is_known(tmp_path: Path) -> None:
    case = case_of(tmp_path, rolling(every=()))
    assert rollout_of(case) is None and not is_unread(case.profile)


# ---- the loop without a replay --------------------------------------------------------------------------------------


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return what is known of the loop where no replay is trusted; every fifth of 60 steps is longer by ``more_ns``."""

    def known(more_ns: int = 1600 * US, source: str = "in_process", loop_ns: int | None = None, every: int = 5) -> Any:
        lengths = [2 * MS + more_ns * (i % every == every - 1) for i in range(60)]
        case: Any = case_of(tmp_path, rolling(drawn=False))
        case.device = 0
        mean = sum(lengths) // len(lengths)
        case.replay = SimpleNamespace(trusted=False)
        timed = replace(real_loop(None), step_ns=mean, source=source, loop_ns=loop_ns)
        monkeypatch.setattr(_measured_loop, "Replay", SimpleNamespace)
        monkeypatch.setattr(
            _measured_loop, "unprofiled_of", lambda _: timed if source == "in_process" else Withheld("misses")
        )
        monkeypatch.setattr(_measured_loop.bare, "of_process", lambda *_: lengths)
        return _measured_loop.measured_loop(case), _measured_loop.told_of_loop(case)

    return known


def test_long_steps_that_hold_what_was_recorded_between_steps_are_told_apart(loop: Callable[..., Any]) -> None:
    real, told = loop()
    assert told and (real.step_ns, real.loop_ns) == (2 * MS, 2 * MS + 1600 * US // 5)


@pytest.mark.parametrize(
    "changed",
    [{"more_ns": 300 * US}, {"more_ns": 6 * MS}, {"source": "modelled"}, {"every": 60}],
    ids=["shorter", "longer", "not measured", "once"],
)
def test_other_long_steps_are_not(loop: Callable[..., Any], changed: dict[str, Any]) -> None:
    real, told = loop(**changed)
    assert not told and (isinstance(real, Withheld) or real.loop_ns is None)


def test_a_loop_that_was_timed_needs_no_replay(loop: Callable[..., Any]) -> None:
    real, told = loop(more_ns=0, loop_ns=3 * MS)
    assert told and real.loop_ns == 3 * MS
