"""The line of a long bare step is noted while it lasts; of usual steps none is."""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nsysx_probe import capture_range, clock, long_steps
from nsysx_probe.long_steps import LongSteps
from nsysx_probe.sources import Sources

MS = 1_000_000


class Looked:
    """Steps of a clock that a thread looks at far more often than in a program."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("LONG_STEP_LOOK_NS", "LONG_STEP_SAMPLE_NS"):
            monkeypatch.setattr(long_steps, name, MS // 2)
        monkeypatch.setattr(long_steps, "SHORTEST_LONG_STEP_NS", 50 * MS)
        self.clock: Any = SimpleNamespace(begun=(0, time.perf_counter_ns()), last_steps=lambda _most: [])
        self.sources = Sources(SimpleNamespace(__file__="/nowhere/torch/__init__.py"), {})
        self.looks = LongSteps(self.clock, self.sources)
        self.looks.start()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.clock.begun = (self.clock.begun[0] + 1, time.perf_counter_ns())
            time.sleep(0.002)

    def until_noted(self, wait: Callable[[], None]) -> None:
        """Stay in a step until it was sampled."""
        end = time.monotonic() + 30
        while sum(row[3] for row in self.noted("evaluation", "validate")) < 5 and time.monotonic() < end:
            wait()

    def noted(self, *functions: str) -> list[list[Any]]:
        """Return what was noted of functions. A busy machine may make a step of other lines long, too."""
        record = self.looks.record() or {"places": []}
        return [row for row in record["places"] if row[2] in functions]


def evaluation() -> None:
    time.sleep(0.001)


def validate() -> None:
    evaluation()


def test_a_line_that_usual_steps_do_not_run_stands_for_what_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a validation, which runs the model: within the loop, whose line every step runs."""
    looked = Looked(monkeypatch)
    first = looked.until_noted.__code__.co_firstlineno
    loop = first + next(
        i for i, text in enumerate(inspect.getsourcelines(looked.until_noted)[0]) if text.strip() == "wait()"
    )
    for line in (evaluation.__code__.co_firstlineno + 1, loop):
        looked.sources.seen(__file__, line, False)
    looked.steps(40)
    looked.until_noted(validate)
    looked.steps(5)
    looked.looks.stop()
    noted = looked.noted("evaluation", "validate")
    assert [row[:3] for row in noted] == [[__file__, validate.__code__.co_firstlineno + 1, "validate"]]
    assert noted[0][4] is False
    record = looked.looks.record()
    assert record is not None
    assert [__file__, validate.__code__.co_firstlineno + 1, "validate"] in [row[:3] for row in record["entries"]]


@pytest.mark.parametrize(
    ("usual", "place", "entry"),
    [
        ("loop inner", "validate", "evaluate"),
        ("loop", "inner", "evaluate"),
        ("loop evaluate validate inner", "inner", None),
        ("", "inner", None),
    ],
)
def test_a_line_is_entered_from_one_of_usual_steps(usual: str, place: str, entry: str | None) -> None:
    """What usual steps do not run is between their lines: its innermost line, and its outermost, which can be left out."""
    sources = Sources(SimpleNamespace(__file__="/nowhere/torch/__init__.py"), {})
    looks = LongSteps(SimpleNamespace(begun=(0, 0)), sources)  # type: ignore[arg-type]
    text = "".join(
        f"def {name}():\n    {f'return {calls}()' if calls else 'return sys._getframe()'}\n"
        for name, calls in (("inner", ""), ("validate", "inner"), ("evaluate", "validate"), ("loop", "evaluate"))
    )
    names: dict[str, Any] = {"sys": sys}
    exec(compile(text, "/job/train.py", "exec"), names)
    number = {name: 2 * i + 2 for i, name in enumerate(("inner", "validate", "evaluate", "loop"))}
    for name in usual.split():
        sources.seen("/job/train.py", number[name], False)
    frames: list[Any] = []
    names["sys"] = SimpleNamespace(_getframe=lambda: frames.append(sys._getframe(1)) or looks._note(frames[-1]))
    names["loop"]()
    looks._steps = 1
    record = looks.record()
    assert record is not None
    assert record["places"] == [["/job/train.py", number[place], place, 1, place in usual.split()]]
    assert record["entries"] == ([["/job/train.py", number[entry], entry, 1]] if entry else [])


@pytest.mark.parametrize("usual", [False, True])
def test_the_line_of_a_long_step_is_noted(usual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Looked(monkeypatch)
    line = evaluation.__code__.co_firstlineno + 1
    if usual:
        looked.sources.seen(__file__, line, False)
    looked.steps(40)
    assert looked.noted("evaluation") == []
    looked.until_noted(evaluation)
    looked.steps(5)
    looked.looks.stop()
    ((file, number, function, samples, is_usual),) = looked.noted("evaluation")
    assert (file, number, function, is_usual) == (__file__, line, "evaluation", usual)
    record = looked.looks.record()
    assert record is not None and record["steps"] >= 1
    assert samples <= sum(place[3] for place in record["places"]) <= record["samples"]
    assert str(line) in looked.sources.texts()[__file__]


def test_the_probes_own_pauses_are_none_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Looked(monkeypatch)
    looked.steps(40)
    pause = compile("def pause():\n    evaluation()\n", capture_range.__file__, "exec")
    names: dict[str, Any] = {"evaluation": evaluation}
    exec(pause, names)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        names["pause"]()
    looked.steps(5)
    looked.looks.stop()
    assert looked.noted("evaluation") == []


def test_nothing_is_looked_at_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Looked(monkeypatch)
    looked.steps(40)
    looked.looks.stop()
    for _ in range(200):
        evaluation()
    assert looked.noted("evaluation") == []


@pytest.mark.parametrize(("usual", "lines"), [(False, ["2", "3", "4"]), (True, ["3"])])
def test_the_loop_that_a_long_step_is_at_is_kept_with_its_head(usual: bool, lines: list[str], tmp_path: Path) -> None:
    """Lines that run so shortly that no look falls on them belong to it, too; usual lines are in the loop of the steps."""
    file = tmp_path / "job.py"
    file.write_text("def returns(rows):\n    for t in rows:\n        look()\n        out = t\n    return out\n")
    os.utime(file, (0, 0))
    sources = Sources(SimpleNamespace(__file__="/nowhere/torch/__init__.py"), {"NSYSX_SOURCE": str(tmp_path)})
    looks = LongSteps(SimpleNamespace(begun=(0, 0)), sources)  # type: ignore[arg-type]
    if usual:
        sources.seen(str(file), 3, False)
    names: dict[str, Any] = {"look": lambda: looks._note(sys._getframe(1))}
    exec(compile(file.read_text(), str(file), "exec"), names)
    names["returns"]([1])
    looks._steps = 1
    assert looks.record() is not None
    assert list(sources.texts()[str(file)]) == lines


@pytest.mark.parametrize("every", [4, 0])
def test_a_step_that_is_due_to_be_long_is_looked_at_sooner(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Advantages behind the updates of each iteration: 25 ms of steps of 2 ms, in which nothing else is long for 10 s."""
    monkeypatch.setattr(long_steps, "SHORTEST_RETURNING_NS", 5 * MS)
    looked = Looked(monkeypatch)
    monkeypatch.setattr(long_steps, "SHORTEST_LONG_STEP_NS", 10_000 * MS)
    told = clock.StepClock(SimpleNamespace())
    looked.clock.last_steps = told.last_steps
    number, end = 0, time.monotonic() + (30 if every else 1)
    while not looked.noted("evaluation") and time.monotonic() < end:
        number += 1
        told.begin(number)
        looked.clock.begun = told.begun
        time.sleep(0.002)
        if every and number % every == 0:
            for _ in range(20):
                evaluation()
    looked.looks.stop()
    assert bool(looked.noted("evaluation")) is bool(every)


def test_the_lengths_of_the_last_steps_leave_out_those_that_were_not_followed() -> None:
    told = clock.StepClock(SimpleNamespace())
    for number in (0, 1, 2, 4, 5):
        told.begin(number)
    assert [step.number for step in told.last_steps(64)] == [0, 1, 4]
    assert [step.number for step in told.last_steps(2)] == [4]
    assert clock.StepClock(SimpleNamespace()).last_steps(64) == []
