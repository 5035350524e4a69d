"""What a budget holds of a job: exposed communication, waiting and a straggler."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.comparing import budget
from nsysx.errors import NsysxError
from nsysx.pipeline import summarize
from tests.comparing import programs
from tests.ranks.test_straggler import MS, job


def results(path: Path, wanted: dict[str, dict[str, float]]) -> dict[str, budget.BudgetLine]:
    verdict = budget.check(programs.captured(summarize([path]).to_json(), path.name), wanted)
    return {r.name: r for r in verdict.results}


def test_a_straggler_breaks_the_budget_that_equal_ranks_keep(tmp_path: Path) -> None:
    wanted = {
        "ranks_ms": {"straggler": 0.0, "waiting": 1.0, "exposed_transfer": 1.0},
        "ranks_share": {"waiting": 0.05, "exposed_comm": 0.05},
    }
    equal = results(job(tmp_path / "e.sqlite", [[20 * MS] * 12] * 2), wanted)
    assert {r.status for r in equal.values()} == {"kept"}
    late = results(job(tmp_path / "l.sqlite", [[20 * MS] * 12, [50 * MS] * 12]), wanted)
    assert late["ranks_ms.straggler"].value == pytest.approx(30, rel=0.01)
    assert late["ranks_ms.waiting"].value == pytest.approx(30, rel=0.01)
    assert late["ranks_share.waiting"].value == pytest.approx(0.6, rel=0.01)
    broken = {name for name, r in late.items() if r.status == "broken"}
    assert broken == {"ranks_ms.straggler", "ranks_ms.waiting", "ranks_share.waiting", "ranks_share.exposed_comm"}


def test_one_rank_is_not_measured_and_a_wrong_name_is_refused(tmp_path: Path) -> None:
    alone = results(job(tmp_path / "o.sqlite", [[20 * MS] * 12]), {"ranks_ms": {"waiting": 1.0}})
    assert [r.status for r in alone.values()] == ["not_measured"]
    with pytest.raises(NsysxError, match="unknown"):
        results(job(tmp_path / "n.sqlite", [[20 * MS] * 12] * 2), {"ranks_ms": {"wait": 1.0}})
