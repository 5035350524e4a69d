"""NSX111: a rank that is late in a few steps alone, for which all others wait then."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nsysx.events import trend
from nsysx.findings import _late_at_times
from nsysx.findings._fix import Fix
from nsysx.pipeline import summarize
from tests.builder import Report
from tests.ranks import rank_rows
from tests.ranks.test_lone_work import late_ones, stragglers
from tests.ranks.test_rank_table import ALL_REDUCE

US, MS = 1_000, 1_000_000
WORK, FILE = 8 * MS, "/job/train.py"
Late = Callable[[int, int], int]


def job(path: Path, late_ms: Late, *, steps: int = 30, timed: Late | None = None, long_steps: Any = None) -> Path:
    """Write two ranks that compute for 8 ms in each step; before that the host of a rank is held for ``late_ms(rank, step)``.

    ``timed``: the same of the 200 steps that were timed without the profiler, like ``late_ms`` if None.
    """
    report = Report()
    threads = report.ranks(2)
    t = MS
    for i in range(steps):
        begins = [t + late_ms(r, i) * MS for r in range(2)]
        done = max(begins) + WORK + 150 * US
        for r, (thread, begin) in enumerate(zip(threads, begins, strict=True)):
            for k in range(4):
                start = begin + 50 * US + k * WORK // 4
                thread.launch(begin + k * 5 * US, kernel=f"gemm{k}", gpu_start=start, gpu_dur=WORK // 4, device=r)
            came = begin + 50 * US + WORK
            thread.launch(begin + 30 * US, kernel=ALL_REDUCE, gpu_start=came, gpu_dur=done - came, stream=20, device=r)
            thread.sync("cudaDeviceSynchronize_v3020", at=begin + 50 * US, dur=done - begin - 10 * US, device=r)
            thread.add_range(f"step {i}", t, done + 50 * US, domain="nsysx")
            thread.add_range("backward", begin, begin + 40 * US, domain="nsysx")
        t = done + 60 * US
    of_timed = timed or late_ms
    lengths = [WORK + 200 * US + max(of_timed(r, i) for r in range(2)) * MS for i in range(200)]
    steps_timed = {"count": 200, "median_ns": sorted(lengths)[100], "low_ns": min(lengths), "high_ns": max(lengths)}
    steps_timed |= {"clock": "gpu", "lengths_ns": lengths, "where": "between the windows", "loop_ns": lengths}
    probes = [{"pid": 100 + r, "unrecorded_steps": steps_timed} for r in range(2)]
    for probe, noted in zip(probes, long_steps or (), strict=False):
        probe["long_steps"] = {"steps": 2, "samples": 90, "places": noted, "entries": []}
    path.with_suffix("").with_suffix(".run.json").write_text(json.dumps({"probe": probes}))
    return report.write(path)


def saves(r: int, i: int) -> int:
    """Rank 0 saves for 300 ms in each tenth step."""
    return 300 if r == 0 and i % 10 == 9 else 0


def test_a_rank_that_saves_in_each_tenth_step_is_named_with_what_that_costs(tmp_path: Path) -> None:
    summary = summarize([job(tmp_path / "j.sqlite", saves)], every_table=False)
    rows = summary.rows("ranks")
    assert [r["straggler"] for r in rows] == [False, False] and rows[1]["late_at_times"] is None
    at_times = rows[0]["late_at_times"]
    assert (at_times["cause"], at_times["ns"]) == ("host", pytest.approx(300 * MS, rel=0.01))
    assert at_times["cost_ns"] * at_times["steps"] == pytest.approx(at_times["ns"] * at_times["late_steps"], rel=0.01)
    (finding,) = stragglers(summary)
    assert finding.title == "Rank 0 is late in every 10th step, by 300.0 ms; its peers wait for it"
    assert finding.saving.bound and finding.saving.likely_ns == pytest.approx(30 * MS, rel=0.02)
    assert summary.answer is not None
    assert summary.answer.do[0].text.startswith("Find what rank 0 alone does in each 10th step")
    slow = next(f for f in summary.findings or () if f.code == "NSX109")
    assert slow.title == "Every 10th step takes 308.2 ms: they wait for rank 0"


def test_a_single_pause_is_none_of_the_steps_in_which_it_saves(tmp_path: Path) -> None:
    """Eight ms more in one step are far less than what it saves for: that would be called shorter than it is."""

    def pauses(r: int, i: int) -> int:
        return 8 if (r, i) == (0, 14) else saves(r, i)

    at_times = rank_rows(job(tmp_path / "j.sqlite", pauses))[0]["late_at_times"]
    assert at_times["late_steps"] > 1 and at_times["ns"] == pytest.approx(300 * MS, rel=0.01)


def test_its_line_is_that_of_its_long_steps(tmp_path: Path) -> None:
    saved, waits = [[FILE, 41, "save", 80, False]], [[FILE, 20, "step", 85, True]]
    (finding,) = stragglers(
        summarize([job(tmp_path / "j.sqlite", saves, long_steps=(saved, waits))], every_table=False)
    )
    assert finding.where == {"near": "rank 0", "file": FILE, "line": 41}
    assert "save" in finding.fix and not finding.unexplained


#: The places of rank 0 in long steps, which computes a metric on its host, and those of rank 1, which waits for it.
SCORES = [[FILE, 81, "auc", 50, False], [FILE, 84, "auc", 28, False], [FILE, 20, "main", 12, False]]
WAITS = [[FILE, 20, "main", 85, False]]


def test_a_line_that_the_others_are_at_too_is_where_they_wait(tmp_path: Path) -> None:
    """Which usual steps do not run by what was seen: more of the looks at the other rank are there than at any line of this one."""
    path = job(tmp_path / "j.sqlite", saves, long_steps=(SCORES, WAITS))
    (finding,) = late_ones(path)
    assert finding.where == {"near": "rank 0", "file": FILE, "line": 81}
    share = (50 + 28) / 90
    assert finding.saving.likely_ns == pytest.approx(share * 30 * MS, rel=0.02) and not finding.saving.bound
    assert finding.saving.most_ns == pytest.approx(30 * MS, rel=0.02) and finding.saving.error_ns
    assert (
        finding.fix
        == "Run auc less often, in less time, or in another thread or process: it makes single steps far longer"
    )


def test_a_curve_of_all_scores_is_computed_on_the_gpu(tmp_path: Path) -> None:
    path = job(tmp_path / "j.sqlite", saves, long_steps=(SCORES, WAITS))
    record = path.with_suffix(".run.json")
    noted = json.loads(record.read_text())
    texts = {
        "81": 'order = np.argsort(-score, kind="mergesort")',
        "84": "tp = np.cumsum(label, dtype=np.float64)[edge]",
    }
    for probe in noted["probe"]:
        probe["source"] = {FILE: texts}
    record.write_text(json.dumps(noted))
    (finding,) = late_ones(path)
    assert finding.fix == (
        "Compute this curve on the GPU, where the scores are: sort and sum there, and copy the one number. "
        "Or run auc less often, or in another thread or process"
    )
    assert "torch.sort" in finding.paste


def test_the_curve_to_paste_is_the_same_where_scores_are_equal() -> None:
    """Against the share of pairs that are in order, equal ones counted half."""
    torch = pytest.importorskip("torch")
    score = torch.randint(0, 40, (300,), generator=torch.Generator().manual_seed(1)).float() / 40
    label = (torch.rand(300, generator=torch.Generator().manual_seed(2)) < score).float()
    names = {"torch": torch, "score": score, "label": label}
    exec(Fix.by_name("curve-on-gpu").paste, names)
    hits, misses = score[label == 1][:, None], score[label == 0][None]
    pairs = (hits > misses).double() + (hits == misses).double() / 2
    assert names["area"].item() == pytest.approx(pairs.mean().item(), rel=1e-9)


def test_a_period_is_that_of_a_stretch_where_steps_between_two_are_missing() -> None:
    """Each 25th step is long, in both stretches of bare steps, between which there are 30 others."""
    lengths = np.array([250 if i % 25 == 24 else 9 for i in range(330)]) * MS
    parts = lengths[:161], lengths[191:]
    assert trend.period(np.concatenate(parts), MS) is None
    rhythm = trend.period_of_parts(parts, MS)
    assert rhythm is not None and rhythm.every == 25
    assert trend.period_of_parts((parts[0][:60], parts[1][:40]), MS) is None


@pytest.mark.parametrize(
    ("late_ms", "timed"),
    [
        (lambda r, i: 30 if i % 8 == 5 * r else 0, None),  # both, in turn
        (lambda r, i: 300 if i % 10 == 9 else 0, None),  # both at once
        (lambda r, i: 300 if r == 0 and i == 19 else 0, lambda r, i: 0),  # once, and never else
        (lambda r, i: 2 if r == 0 and i % 10 == 9 else 0, None),  # by a quarter of a step
    ],
)
def test_pauses_of_all_or_of_once_are_nobodys(late_ms: Late, timed: Late | None, tmp_path: Path) -> None:
    assert not late_ones(job(tmp_path / "j.sqlite", late_ms, timed=timed))


def test_hosts_that_drift_apart_are_late_at_no_times(tmp_path: Path) -> None:
    """First one of them is behind, then the other: so were two of one job in a row of recorded ones."""
    path = job(tmp_path / "j.sqlite", lambda r, i: 9 if (i < 8) == (r == 0) else 0)
    assert not any(row["late_at_times"] for row in rank_rows(path))


def test_ranks_that_wait_for_one_at_times_need_no_fewer_launches(tmp_path: Path) -> None:
    """What one rank does in each eighth step is nothing that a compiler makes shorter on all."""
    path = job(tmp_path / "j.sqlite", lambda r, i: 60 if r == 1 and i % 8 == 3 else 0)
    answer = summarize([path], every_table=False).answer
    assert answer is not None and "rank 1 alone does in each 8th step" in answer.do[0].text
    assert not any("fewer launches" in action.text for action in answer.do)


@pytest.mark.parametrize(
    ("every", "text"), [(3, "Find what rank 0 alone does in each 3rd step"), (1, "Find what slows")]
)
def test_a_straggler_that_is_late_in_each_third_step_is_told_what_to_look_for(
    every: int, text: str, tmp_path: Path
) -> None:
    path = job(tmp_path / "j.sqlite", lambda r, i: 30 if r == 0 and i % every == every - 1 else 0)
    summary = summarize([path], every_table=False)
    assert [r["straggler"] for r in summary.rows("ranks")] == [True, False]
    (finding,) = stragglers(summary)
    assert finding.fix.startswith(text) and not finding.saving.bound


@pytest.mark.parametrize(
    ("late_steps", "recorded", "text"),
    [
        (1, (8, 2), "every 8th step"),  # the other one is no whole step of both ranks
        (3, (8, 2), "every 16th step"),
        (1, (None, 1), "every 16th step"),
        (1, (4, 4), "every 16th step"),  # something else that comes more often
    ],
)
def test_where_a_late_step_is_missing_the_shorter_period_holds(
    late_steps: int, recorded: tuple[int | None, int], text: str
) -> None:
    """Each eighth step is long, but one of them was not timed: each 16th is long without exception."""
    timed = np.array([(140 + i % 16) * MS if i % 8 == 5 and i != 69 else 30 * MS for i in range(72)])
    levels = (SimpleNamespace(every=None, count=14), SimpleNamespace(every=recorded[0], count=recorded[1]))
    case: Any = SimpleNamespace(profile=SimpleNamespace(steps=SimpleNamespace(levels=levels)))
    assert _late_at_times._which(case, {"late_steps": late_steps, "steps": 15, "every": None}, (timed,)) == text
