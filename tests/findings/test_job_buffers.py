"""What buffers that DDP sends cost: by the replay of all ranks, or by what is sent where that replay is far off the recorded steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from nsysx.findings import _costly_jobs
from nsysx.findings._case import Saving
from nsysx.replay import job_changes

MS = 1_000_000


def case_of(error: float | None, *, longest_ns: int) -> Any:
    """Return a case of 10 steps with a broadcast in each: 6 ms of it are transfer, 9 ms more are waits for a rank that is late."""
    kinds = {"broadcast": 60 * MS, "allreduce": 30 * MS}
    rows = [
        {
            "process": process,
            "changed_ns": {"own-buffers": MS // 10},
            "replay_error": error if process == 7 else None,
            "by_collective": [{"kind": kind, "transfer_ns": ns} for kind, ns in kinds.items()],
        }
        for process in (7, 8)
    ]
    return SimpleNamespace(
        ops=pl.DataFrame({"op": range(11), "start_ns": [0] * 11, "end_ns": [longest_ns] * 11}),
        profile=None,
        process=7,
        ranks=SimpleNamespace(rows=rows),
        step_ns=60 * MS,
        per_step=lambda ns: round(ns / 10),
        worth=lambda *_, **__: Saving(None, "no claim"),
        bound=lambda ns, why: Saving(ns, why, bound=True, source="time"),
    )


@pytest.mark.parametrize(
    ("error", "longest_ns", "saved_ns", "bound"),
    [
        (0.11, 15 * MS, 6 * MS, True),  # the waits stay
        (0.11, 2 * MS, 2 * MS, True),  # other broadcasts than those of the forward are no buffers
        (0.01, 15 * MS, MS // 10, False),
        (None, 15 * MS, MS // 10, False),
    ],
)
def test_a_replay_far_off_the_steps_says_nothing_of_buffers_and_what_they_move_is_the_most(
    monkeypatch: pytest.MonkeyPatch, error: float | None, longest_ns: int, saved_ns: int, bound: bool
) -> None:
    monkeypatch.setattr(job_changes, "gone", lambda *_: frozenset(range(10)))
    worth = _costly_jobs.own_buffers(case_of(error, longest_ns=longest_ns), None)
    assert worth is not None
    assert (worth.likely_ns, worth.bound) == (saved_ns, bound)
