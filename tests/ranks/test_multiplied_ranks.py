"""A job of more ranks than were recorded, on several hosts, each with a clock of its own: all events are recorded ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.pipeline import summarize
from nsysx.render import json_text
from tests import multiplied_ranks
from tests.samples import SAMPLES

RANKS, LATE = 6, 4


@pytest.mark.traced
def test_the_late_one_of_recorded_ranks_is_named_and_two_processes_read_the_same_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiplied_ranks, "RANKS_PER_HOST", 4)
    recorded = [SAMPLES / f"ddp_four.rank{r}.sqlite.xz" for r in range(4)]
    paths = multiplied_ranks.write_ranks(recorded[:3], recorded[3], tmp_path, RANKS, LATE)
    one, two = (summarize(paths, workers=workers, every_table=False) for workers in (1, 2))
    assert json_text.render(one) == json_text.render(two)
    rows = one.rows("ranks")
    assert [r["rank"] for r in rows] == list(range(RANKS)) and [r["rank"] for r in rows if r["straggler"]] == [LATE]
    assert len({r["host"] for r in rows}) == 2
    assert all(r["exposed_unmatched_ns"] == 0 for r in rows), "each collective is found on all ranks"
    apart_ns = rows[0]["clock_correction_ns"] - rows[LATE]["clock_correction_ns"]
    assert apart_ns == pytest.approx(multiplied_ranks.HOSTS_APART_NS, abs=100_000), (
        "the second host is put on the clock of the first"
    )
    assert {r["steps"] for r in rows} == {max(r["steps"] for r in rows)}
