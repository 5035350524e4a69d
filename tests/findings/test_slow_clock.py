"""A GPU that ran far below its clock is what limits a step, and how near its kernels are to their limits is not known then."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Summary
from nsysx.pipeline import summarize
from tests.analyses.test_gpu_metrics import report, true, values

MHZ = 1_000_000


def at_clock(mhz: int, folder: Path) -> Summary:
    """Return the Summary of a program whose GPU works for 3 of 4 ms, at this clock."""

    def sample(at: int) -> list[int]:
        _, _, _, sm, _, tensor, _, read, write, *_ = true(at)
        return values(sm, tensor, read, write, mhz * MHZ)

    return summarize([report(sample).write(folder / "r.sqlite")], every_table=False)


@pytest.mark.parametrize(("mhz", "slow"), [(345, True), (985, True), (1000, False), (1500, False), (1980, False)])
def test_a_clock_below_half_of_the_highest_is_told_first(mhz: int, slow: bool, tmp_path: Path) -> None:
    summary = at_clock(mhz, tmp_path)
    found = [f for f in summary.findings or () if f.code == "NSX127" and f.verdict == "found"]
    assert [f.title for f in found] == [f"The GPU ran at {mhz} of 1980 MHz"] * slow
    unknown = sorted(
        f.code for f in summary.findings or () if f.verdict == "cannot_tell" and "below its clock" in f.detail
    )
    assert unknown == ["NSX128", "NSX136"] * slow, "NSX134 needs sizes"
    if slow:
        # Of 3 ms of work what is above the full clock may go, at least half of it.
        most = 3_000_000 * (1 - mhz / 1980)
        assert found[0].saving.most_ns == pytest.approx(most, rel=0.05)
        assert found[0].saving.likely_ns == pytest.approx(0.75 * most, rel=0.05)
        assert summary.answer is not None and summary.answer.do[0].code == "NSX127"


def test_without_counters_no_clock_is_told(tmp_path: Path) -> None:
    summary = summarize([report(None).write(tmp_path / "r.sqlite")], every_table=False)
    assert not [f for f in summary.findings or () if "below its clock" in f.detail or "MHz" in f.title]
