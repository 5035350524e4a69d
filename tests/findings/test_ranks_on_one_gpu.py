"""NSX127: a rank that computes on the GPU of another one, and ranks with a GPU each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.builder import Report
from tests.findings import findings_alone
from tests.ranks.test_rank_table import ALL_REDUCE

MS, STEPS = 1_000_000, 12
SOURCE = {"/job/train.py": {"12": 'reward = Reward().to("cuda:0")', "30": "loss.backward()"}}


def job(folder: Path, away_us: int, *, seen_alone: bool = False) -> list[Finding]:
    """Two ranks that compute 4 ms a step each on their GPU, then reduce; rank 1 computes so much more on GPU 0.

    ``seen_alone``: each sees its own GPU alone, and calls it 0.
    """
    report = Report()
    for rank in range(2):
        process = report.process(100 + rank)
        thread, own = process.thread(process.pid, "python3"), 0 if seen_alone else rank
        for i in range(STEPS):
            t = MS + 10 * MS * i
            thread.add_range(f"step {i}", t, t + 10 * MS - 100, domain="nsysx")
            thread.launch(t + 1_000, kernel="gemm", gpu_start=t + 10_000, gpu_dur=4 * MS, device=own)
            if rank and away_us:
                thread.launch(t + 2_000, kernel="reward", gpu_start=t + 5 * MS, gpu_dur=away_us * 1000, device=0)
            thread.launch(t + 3_000, kernel=ALL_REDUCE, gpu_start=t + 8 * MS, gpu_dur=MS, stream=20, device=own)
            thread.sync("cudaDeviceSynchronize_v3020", at=t + 5_000, dur=9 * MS, device=own)
        report.gpu(rank, pids=[(100 + rank, own)])
    (folder / "r.run.json").write_text(json.dumps({"probe": [{"pid": 100, "source": SOURCE}]}))
    said = findings_alone("NSX127", report.write(folder / "r.sqlite"))
    of_settings = [f for f in said if f.verdict == "found"]
    return [f for f in of_settings if f.evidence[0]["setting"] == "ranks on one GPU"]


def test_what_a_rank_computes_on_the_gpu_of_another_is_told(tmp_path: Path) -> None:
    (found,) = job(tmp_path, 2_000)
    assert [r.name for r in found.remedies] == ["own-device"] and "rank 1 computes 2.00 ms" in found.detail
    assert (found.where["file"], found.where["line"]) == ("/job/train.py", 12)
    assert found.saving.bound and found.saving_ns_per_step == pytest.approx(2 * MS, rel=0.05)


@pytest.mark.parametrize("away_us", [0, 20])
def test_a_gpu_for_each_rank_is_right(away_us: int, tmp_path: Path) -> None:
    assert not job(tmp_path, away_us)


def test_ranks_that_each_see_one_gpu_all_call_it_the_first(tmp_path: Path) -> None:
    assert not job(tmp_path, 0, seen_alone=True)
