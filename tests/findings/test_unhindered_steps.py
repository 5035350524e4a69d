"""NSX106: how far a loader that is always ready may shorten a step: to those that ran again and again without any wait."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from nsysx.events import bare
from nsysx.findings import nsx106_input_starvation
from nsysx.saving import Saving

MS = 1_000_000
STEP, LIKELY, ERROR = 260 * MS, 150 * MS, 20 * MS
FED, STARVED = [76 * MS + n * MS // 50 for n in range(6)], [(110 + 30 * n) * MS for n in range(14)]


def most_ns(monkeypatch: pytest.MonkeyPatch, timed: list[int], work_ns: int = 70 * MS, **changes: Any) -> int | None:
    case: Any = SimpleNamespace(
        profile=SimpleNamespace(trace=SimpleNamespace(capture=None)),
        process=1,
        step_ns=STEP,
        taken_by=lambda parts: work_ns,
    )
    monkeypatch.setattr(bare, "of_process", lambda capture, process: timed)
    worth = replace(Saving(LIKELY, "a replay", error_ns=ERROR, source="replay"), **changes)
    then = nsx106_input_starvation._as_without_waits(case, worth)
    assert replace(then, most_ns=worth.most_ns) == worth
    return then.most_ns


@pytest.mark.parametrize("timed", [FED + STARVED, [*STARVED, *FED[:4]]])
def test_steps_that_waited_for_nothing_are_the_shortest(timed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert most_ns(monkeypatch, timed) == pytest.approx(STEP - 76 * MS, rel=0.001)


@pytest.mark.parametrize(
    ("timed", "work_ns", "changes"),
    [
        (STARVED, 70 * MS, {}),  # all of them waited
        (FED[:2] + STARVED, 70 * MS, {}),  # chance
        (FED + STARVED, 100 * MS, {}),  # steps without an optimizer, say
        ([each + 40 * MS for each in FED + STARVED], 70 * MS, {}),  # no shorter than the replay shows
        (FED + STARVED, 70 * MS, {"bound": True}),
        (FED + STARVED, 70 * MS, {"likely_ns": None}),
        ([], 70 * MS, {}),
    ],
)
def test_others_stay_as_the_replay_has_them(
    timed: list[int], work_ns: int, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert most_ns(monkeypatch, timed, work_ns, **changes) is None
