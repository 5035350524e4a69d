"""What a job takes with one rank, its work or its links changed: replayed together, and never faster than the slowest rank's own work."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx import units
from nsysx.errors import NsysxError
from nsysx.pipeline import ReadingOptions, gather_job, summarize
from nsysx.ranks import job_whatif
from nsysx.replay.changes import JobChanges
from tests.ranks.test_rank_table import reports
from tests.ranks.test_straggler import job

US, MS = 1_000, 1_000_000


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return job(tmp_path_factory.mktemp("job") / "j.sqlite", [[20 * MS] * 12, [20 * MS] * 12, [50 * MS] * 12])


def answered(path: Path, **changes: object) -> list[str]:
    return job_whatif.lines(gather_job([path], ReadingOptions()).ranks, JobChanges(**changes))  # type: ignore[arg-type]


def test_a_job_is_answered_as_on_its_page(uneven: Path) -> None:
    head, late, even = answered(uneven, usual_rank=2, equal_ranks=True)
    assert head.startswith("all 3 ranks replayed together: 50.")
    row = next(r for r in summarize([uneven]).rows("ranks") if r["straggler"])
    assert late.startswith("--usual-rank 2") and "saves 30.00 ms" in late and row["price_ns"] == 30 * MS
    assert even.startswith("--equal-ranks") and f"saves {units.duration(row['even_ns'])} " in even


def test_what_saves_nothing_is_not_listed(uneven: Path) -> None:
    listed = [line.split()[0] for line in answered(uneven)[1:]]
    assert listed == ["--usual-rank"]
    (_, links) = answered(uneven, faster_links=2)
    assert "saves 25.0 us" in links or "saves 25 us" in links  # half of the 50 us that an all-reduce takes


def test_no_job_is_faster_than_its_slowest_rank(uneven: Path) -> None:
    (_, hidden) = answered(uneven, hide_transfer=True)
    assert "step 50." in hidden


def test_what_cannot_be_replayed_or_named_is_said(uneven: Path, tmp_path: Path) -> None:
    with pytest.raises(NsysxError, match="the ranks are 0, 1, 2"):
        answered(uneven, usual_rank=7)
    alone = reports(tmp_path, [300 * US, 300 * US], starts=[0, 0], clocks=[0, 0])[0]
    assert answered(alone) == []
    with pytest.raises(NsysxError, match="one rank"):
        answered(alone, equal_ranks=True)
