"""Where rules begin to speak: each limit by a program just below it and one at it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nsysx.catalogue import StepPart
from nsysx.findings._case import Case
from nsysx.judging import idle_parts
from nsysx.replay.engine import RemoveHost, replay_of
from tests.findings import Program
from tests.findings.test_contract import judged

Body = Callable[[Program, int], None]


def verdict(program: Program, folder: Path, code: str) -> str:
    return program.findings(folder, code)[0].verdict


def longer(us: float, slow: int = 6) -> Body:
    """Steps of 10 ms on the GPU, of which one takes so much more."""

    def body(program: Program, number: int) -> None:
        program.launch(9_990 + us * (number == slow))
        program.sync()

    return body


@pytest.mark.parametrize(("more_us", "said"), [(1_900, "clear"), (2_200, "found")])
def test_a_step_is_slow_from_a_fifth_longer_than_the_median_on(tmp_path: Path, more_us: int, said: str) -> None:
    assert verdict(Program().steps(longer(more_us), 12), tmp_path, "NSX109") == said


@pytest.mark.parametrize(("steps", "said"), [(4, "cannot_tell"), (5, "found")])
def test_four_steady_steps_can_have_a_slow_one(tmp_path: Path, steps: int, said: str) -> None:
    """The first step is not steady."""
    body = longer(30_000, slow=3)
    assert verdict(Program().steps(body, steps), tmp_path, "NSX109") == said


def reading(usual: int, slow: int) -> Body:
    """Steps that read so many bytes back; every eighth another number, and takes 20 ms longer."""

    def body(program: Program, number: int) -> None:
        program.launch(5_000)
        program.sync()
        late = number % 8 == 7
        program.copy(100, "DtoH", bytes=slow if late else usual)
        program.host(20_000 if late else 50)
        program.launch(100)
        program.sync()

    return body


@pytest.mark.parametrize(
    ("usual", "slow", "told"),
    [
        (4, 1 << 20, True),
        (4, (1 << 20) - 1, False),
        (1 << 20, 10 << 20, True),
        (1 << 20, (10 << 20) - 1, False),
    ],
)
def test_slow_steps_save_from_1_mib_on_and_ten_times_what_the_others_read(
    tmp_path: Path, usual: int, slow: int, told: bool
) -> None:
    program = Program().steps(reading(usual, slow), 34)
    finding = program.findings(tmp_path, "NSX109")[0]
    assert finding.verdict == "found"
    assert ("a checkpoint" in finding.title) == told
    # What borders the copies of a checkpoint is told there, and by no other rule.
    assert (verdict(program, tmp_path, "NSX114") == "found") == (not told)


def stalling(pause_us: float, usual_us: float) -> Body:
    """Steps of 40 launches with ``usual_us`` of host code between them; before four of them the host pauses longer."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            for k in range(40):
                program.host(pause_us if k % 10 == 9 else usual_us)
                program.launch(2)

    return body


@pytest.mark.parametrize(("pause_us", "said"), [(95, "clear"), (120, "found")])
def test_the_host_stalls_from_100_us_on(tmp_path: Path, pause_us: float, said: str) -> None:
    assert verdict(Program().steps(stalling(pause_us, 2)), tmp_path, "NSX114") == said


@pytest.mark.parametrize(("pause_us", "said"), [(280, "clear"), (350, "found")])
def test_the_host_stalls_from_ten_times_its_usual_pause_on(tmp_path: Path, pause_us: float, said: str) -> None:
    """30 us lie between two launches, so that 100 us are nothing of note."""
    assert verdict(Program().steps(stalling(pause_us, 29)), tmp_path, "NSX114") == said


@pytest.mark.parametrize(("kernel_us", "said"), [(9.9, "found"), (10, "clear")])
def test_a_launch_is_tiny_below_10_us(tmp_path: Path, kernel_us: float, said: str) -> None:
    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            for _ in range(40):
                program.launch(kernel_us)
                program.host(30)

    assert verdict(Program().steps(body), tmp_path, "NSX113") == said


@pytest.mark.parametrize(("worth", "sync", "host"), [(4, 4, 11), (10, 10, 5), (12, 10, 5), (0, 0, 15)])
def test_waits_limit_a_step_by_no_more_than_they_are_worth(
    monkeypatch: pytest.MonkeyPatch, worth: int, sync: int, host: int
) -> None:
    """The rest is host code that would be there without the wait; the sum stays."""
    monkeypatch.setattr(idle_parts, "_worth_of_waits", lambda _: worth)
    parts = idle_parts._capped(None, {StepPart.SYNC: 10, StepPart.HOST: 5, StepPart.LAUNCH: 1})  # type: ignore[arg-type]
    assert (parts[StepPart.SYNC], parts[StepPart.HOST], parts[StepPart.LAUNCH]) == (sync, host, 1)
    assert sum(parts.values()) == 16


def test_a_saving_is_capped_by_the_part_that_its_cause_takes(tmp_path: Path) -> None:
    """Host code of 3 ms, of which a step without it could save nothing of the time in which the GPU copies."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            for _ in range(20):
                program.launch(20)
            program.host(3_000)

    profile, tables, _ = judged(Program().steps(body).report.write(tmp_path / "r.sqlite"))
    case = Case(profile, tables, replay_of(profile))
    whole = case.worth(RemoveHost()).likely_ns
    assert whole is not None and whole > 2_500_000
    for cause in ((StepPart.HOST,), (StepPart.LAUNCH,), (StepPart.COPY,)):
        assert case.worth(RemoveHost(), cause=cause).likely_ns == min(whole, case.taken_by(cause))
    assert case.taken_by((StepPart.LAUNCH,)) < whole
    assert case.worth(RemoveHost(), cause=(StepPart.COPY,)).likely_ns == 0


def test_the_usual_step_is_the_one_of_middle_length(tmp_path: Path) -> None:
    """Steady steps of 1 to 9 ms in mixed order: the picture shows that of 5, and beside it the slowest."""
    lengths = [5, 5, 1, 9, 3, 7, 5, 2, 8, 4, 6, 5]

    def body(program: Program, number: int) -> None:
        program.launch(lengths[number] * 1_000)
        program.sync()

    summary = Program().steps(body, len(lengths)).summary(tmp_path, timelines=True)
    shown = {t.title.split(" (")[0].split(":")[0]: t.end_ns - t.start_ns for t in summary.timelines}
    (typical,) = (ns for title, ns in shown.items() if "ypical" in title)
    (slowest,) = (ns for title, ns in shown.items() if "lowest" in title)
    assert typical == pytest.approx(5_000_000, rel=0.03)
    assert slowest == pytest.approx(9_000_000, rel=0.03)
