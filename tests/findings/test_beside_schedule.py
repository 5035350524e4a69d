"""What a change saves of a step whose stages wait for each other by the schedule of their pipeline."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import polars as pl
import pytest

from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case
from nsysx.replay.engine import Edit, RemoveHost, RemoveOps

MS = 1_000_000
STAGE, NONE = {"bubble_ns": 5 * MS}, {"bubble_ns": None}


def case(step_ms: float, rows: list[dict[str, Any]], **settings: Any) -> Case:
    """Return a case of a step of 20 ms of work in two ops of 10 ms each."""
    ops = pl.DataFrame({"op": [1, 2], "ns": [10 * MS, 10 * MS]})
    made = SimpleNamespace(
        step_ns=round(step_ms * MS), ops=ops, ranks=SimpleNamespace(rows=rows), taken_by=lambda parts: 20 * MS,
        per_step=round, timed_ops=lambda chosen, *columns: ops.filter(chosen),
        profile=SimpleNamespace(once=lambda make: RecordedSettings({"wrappers": [], **settings})),
    )  # fmt: skip
    made.schedule_idle_share = Case.schedule_idle_share.func(cast(Case, made))  # type: ignore[attr-defined]
    return cast(Case, made)


@pytest.mark.parametrize(
    ("step_ms", "rows", "edit", "saved_ms"),
    [
        (40, [STAGE, STAGE], RemoveHost(frozenset()), 15),  # 20 ms of work and 5 that the schedule leaves idle
        (40, [STAGE, STAGE], RemoveOps(frozenset([1])), 19),  # 12.5 ms stay of half of the work: 27.5 could go
        (40, [STAGE, NONE], RemoveHost(frozenset()), 19),
        (40, [STAGE], RemoveHost(frozenset()), 19),
        (24, [STAGE, STAGE], RemoveHost(frozenset()), 19),  # shorter than without interleaving
    ],
)
def test_no_change_saves_what_the_schedule_leaves_idle(
    step_ms: float, rows: list[dict[str, Any]], edit: Edit, saved_ms: float
) -> None:
    stages = case(step_ms, rows, numbers={"schedule": 4})
    assert Case._beside_schedule(stages, 19 * MS, [edit]) == saved_ms * MS


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({"numbers": {"schedule": 4}}, 1 / 4),
        ({"backwards": 8}, 1 / 8),
        ({"backwards": 1}, 0),
        ({"backwards": 8, "wrappers": [{"kind": "DDP"}]}, 0),  # micro-steps
        ({}, 0),
    ],
)
def test_the_schedule_is_known_by_its_setting_or_the_backwards_of_stages(
    settings: dict[str, Any], share: float
) -> None:
    assert case(40, [STAGE, STAGE], **settings).schedule_idle_share == share
