"""A rank that is late because another process has its GPU in turn, and ranks that are late by their own work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.builder import Report
from tests.ranks.test_rank_table import ALL_REDUCE
from tests.ranks.test_straggler import MS, US, ranks


def sliced_job(path: Path, longer: Sequence[int], alike: int | None) -> Path:
    """Write a job of 24 steps of 4 kernels, 2 to 9 ms; in rank r two of each step take ``longer[r]`` (ns) longer.

    ``alike``: by how many times that the fourth kernel, which alone is longer then; None: each in turn.
    """
    report = Report()
    lengths = (2 * MS, 3 * MS, 6 * MS, 9 * MS)
    threads = []
    for r in range(len(longer)):
        report.gpu(r, pids=[(100 + r, r)])
        threads.append((p := report.process(100 + r)).thread(p.pid, "python3"))
        p.context(device=r)
    t = MS
    for i in range(24):
        done = t + sum(lengths) + 2 * max(longer) + 100 * US
        for r, thread in enumerate(threads):
            at = t + 20 * US
            for k, length in enumerate(lengths):
                turns = alike or 1 if k == (3 if alike else i % 4) else int(not alike and k == (i + 1) % 4)
                takes = length + turns * longer[r]
                thread.launch(t + 2 * US + k * 5 * US, kernel=f"gemm{k}", gpu_start=at, gpu_dur=takes, device=r)
                at += takes + 2 * US
            thread.launch(t + 40 * US, kernel=ALL_REDUCE, gpu_start=at, gpu_dur=done - at, stream=20, device=r)
            thread.sync("cudaDeviceSynchronize_v3020", at=t + 50 * US, dur=done - t - 40 * US, device=r)
            thread.add_range(f"step {i}", t, done + 20 * US, domain="nsysx")
        t = done + 30 * US
    return report.write(path)


@pytest.mark.parametrize(
    ("longer", "alike", "cause"),
    [
        ((0, 2_500 * US), None, "shared_gpu"),
        ((0, 2_500 * US), 2, "compute"),  # as much longer, in kernels of one kind: its own work
        ((0, 800 * US), None, "clocks"),  # less than any slice
    ],
)
def test_a_rank_beside_another_process_on_its_gpu_has_no_more_work_than_others(
    tmp_path: Path, longer: tuple[int, ...], alike: int | None, cause: str
) -> None:
    rows, finding = ranks(sliced_job(tmp_path / "j.sqlite", longer, alike))
    assert (rows[1]["straggler"], rows[1]["late_cause"]) == (True, cause)
    shared = cause == "shared_gpu"
    assert ("GPU of its own" in finding.fix, "another process" in finding.title) == (shared, shared)
    assert (rows[1]["even_ns"] is None) == (cause != "compute") and rows[1]["price_ns"] == pytest.approx(
        2 * longer[1], rel=0.05
    )


def test_ranks_that_all_share_their_gpus_alike_are_not_late_by_it(tmp_path: Path) -> None:
    rows, _ = ranks(sliced_job(tmp_path / "j.sqlite", (2_500 * US, 2_500 * US), None))
    assert not any(r["straggler"] for r in rows)
