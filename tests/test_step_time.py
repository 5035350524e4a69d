"""The step that every time is of: without the profiler where it is known, as recorded where ranks are compared by what was recorded."""

from __future__ import annotations

from typing import Any

import pytest

from nsysx.saving import Saving
from nsysx.step_time import Step, Unprofiled


def real(step_ns: int = 800, **changes: Any) -> Unprofiled:
    given: dict[str, Any] = {
        "step_ns": step_ns, "low_ns": 700, "high_ns": 1_000, "source": "assumed", "measured_steps": 0, "recorded_ns": 1_200,
        "process": 1, "device": 0, "steps": 10, "gpu_busy": 0.5, "gpu_busy_ns": 400, "gpu_idle_ns": 400, "idle_causes": {},
        "overhead": {},
    }  # fmt: skip
    return Unprofiled(**given | changes)


def step(known: Unprofiled | None, verdict_ns: int | None, recorded_ns: int | None, *, waits: bool = False) -> Step:
    return Step.completed(known, verdict_ns, recorded_ns, marked=False, waits_for_rank=waits)


def test_a_modelled_step_is_the_shown_one_with_its_error_as_the_same_share() -> None:
    found = step(real(), 1_000, 1_200)
    assert (found.shown_ns, found.recorded_ns, found.real_ns) == (1_000, 1_200, 1_000)
    assert (found.scale, found.bounds_ns, found.source, found.why) == (1.25, (875, 1_250), "modelled", "")
    assert not found.as_recorded


@pytest.mark.parametrize(("waits", "source", "measured"), [(False, "assumed", 4), (True, "in_process", 4)])
def test_a_measured_step_is_the_shown_one_whether_or_not_a_rank_waits(waits: bool, source: str, measured: int) -> None:
    found = step(real(source=source, measured_steps=measured), 800, 1_200, waits=waits)
    assert (found.shown_ns, found.source, found.why, found.scale) == (800, "measured", "", 1.0)


def test_ranks_are_compared_as_recorded_unless_the_step_was_measured_in_the_program() -> None:
    found = step(real(), 1_000, 1_200, waits=True)
    assert (found.shown_ns, found.real_ns, found.source, found.why) == (
        1_200,
        800,
        "recorded",
        "ranks are compared as recorded",
    )
    assert (found.scale, found.bounds_ns) == (1.0, (700, 1_000))


@pytest.mark.parametrize(
    ("verdict_ns", "waits", "shown_ns"), [(1_000, False, 1_000), (None, False, 1_200), (1_000, True, 1_200)]
)
def test_without_a_replay_the_step_is_as_recorded(verdict_ns: int | None, waits: bool, shown_ns: int) -> None:
    found = step(None, verdict_ns, 1_200, waits=waits)
    assert (found.shown_ns, found.real_ns, found.bounds_ns, found.source) == (shown_ns, None, None, "recorded")
    assert found.why == "the step without the profiler is not known" and found.as_recorded


def test_without_steps_only_the_replayed_step_is_known() -> None:
    found = step(real(), None, None)
    assert (found.shown_ns, found.real_ns, found.scale, found.bounds_ns) == (None, 800, 1.0, (700, 1_000))


@pytest.mark.parametrize(
    ("low_ns", "source", "measured", "said"),
    [
        (300, "assumed", 0, "about 800 ns a step (300 ns to 850 ns; 805 ns as recorded)"),
        (700, "assumed", 0, "800 ns a step (805 ns as recorded)"),
        (300, "in_process", 4, "800 ns a step (805 ns as recorded)"),
    ],
)
def test_a_step_that_may_be_far_shorter_is_told_with_its_bounds(
    low_ns: int, source: str, measured: int, said: str
) -> None:
    known = real(low_ns=low_ns, high_ns=850, source=source, measured_steps=measured)
    assert step(known, 800, 805).words(average=False, estimated=False) == said


@pytest.mark.parametrize(
    ("saving", "shown_ns", "likely_ns", "most_ns"),
    [
        (Saving(300), 1_000, 300, 300),
        (Saving(3_000), 1_000, 1_000, 1_000),
        (Saving(None, most_ns=10), 1_000, None, None),
        (Saving(3_000), None, 3_000, 3_000),
        (Saving(None), None, None, None),
        (Saving(300, bound=True, most_ns=400), 1_000, 300, 400),
        (Saving(300, bound=True, most_ns=4_000), 1_000, 300, 1_000),
        (Saving(300, bound=True, most_ns=4_000), None, 300, 4_000),
        (Saving(300, bound=True), 1_000, 300, 300),
        (Saving(300, most_ns=400), 1_000, 300, 300),
    ],
)
def test_what_a_change_saves_of_the_shown_step(
    saving: Saving, shown_ns: int | None, likely_ns: int | None, most_ns: int | None
) -> None:
    shown = step(None, shown_ns, shown_ns)
    assert (shown.saves_ns(saving), shown.saves_at_most_ns(saving)) == (likely_ns, most_ns)


@pytest.mark.parametrize(
    ("marked", "text", "said"),
    [
        (True, "takes 3.0 ms", "takes 3.0 ms, as recorded"),
        (True, "takes 3 %", "takes 3 %"),
        (False, "takes 3.0 ms", "takes 3.0 ms"),
    ],
)
def test_only_times_of_another_step_are_marked_as_recorded(marked: bool, text: str, said: str) -> None:
    assert Step.completed(None, 1_000, 1_200, marked=marked, waits_for_rank=False).marks(text) == said


@pytest.mark.parametrize(
    ("shown_ns", "recorded_ns", "as_recorded", "text", "marked"),
    [
        (1_000, 1_200, True, "idles 3 us", True),
        (1_200, 1_000, True, "idles 3 us", True),
        (1_000, 1_005, True, "idles 3 us", False),  # a difference that nobody sees
        (1_000, 1_006, True, "idles 3 us", True),
        (1_000, 1_200, False, "idles 3 us", False),
        (1_000, 1_200, True, "idles", False),
        (None, 1_200, True, "idles 3 us", False),
    ],
)
def test_titles_are_marked_where_a_reader_sees_two_steps(
    shown_ns: int | None, recorded_ns: int | None, as_recorded: bool, text: str, marked: bool
) -> None:
    given = Step(shown_ns, recorded_ns, None, None, "recorded", 1.0, "", marked=False)
    assert given.marks_title(text, as_recorded=as_recorded) == f"{text}, as recorded" * marked + text * (not marked)
