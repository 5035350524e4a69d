"""NSX110: micro-batches of a pipeline that are unlike in work, and stages that wait for something else; by reports of two ranks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nsysx.findings._fix import Fix
from nsysx.model import Finding
from tests.builder import Report
from tests.findings import findings_alone
from tests.findings.test_stages_in_turn import SEND, STEPS, US, Stage

BATCHES = 12


def costs(kind: str, number: int) -> list[float]:
    """Return how long the micro-batches of a step are: three of them three times as long, others so that a step has as much work."""
    drawn = np.random.default_rng(number)
    cost = np.ones(BATCHES)
    if kind == "unlike":
        cost[drawn.permutation(BATCHES)[:3]] = 3.0
    elif kind == "sorted":  # the same ones in each step: their place is known
        cost[:3] = 3.0
    elif kind == "unlike steps":
        cost *= 1 + number % 3
    return [float(each) for each in cost]


def told(folder: Path, kind: str) -> list[Finding]:
    report = Report()
    first, last = Stage(report, 0), Stage(report, 1)

    def exchange() -> None:
        end = max(first.free, last.free) + 10 * US
        first.gpu(SEND, end)
        last.gpu(SEND, end)

    t = 1_000_000
    for number in range(STEPS):
        cost = costs(kind, number)
        for stage in (first, last):
            stage.free, stage.called = t + 100_000, t + 1_000
        first.works(round(1000 * cost[0]))
        exchange()
        for n in range(BATCHES):
            last.works(round(3000 * cost[n]))
            if n:
                first.works(round(2000 * cost[n - 1]))
            if n < BATCHES - 1:
                first.works(round(1000 * cost[n + 1]))
                exchange()
        exchange()
        first.works(round(2000 * cost[-1]))
        begin, t = t, max(first.free, last.free) + 100 * US
        for stage in (first, last):
            stage.thread.add_range(f"step {number}", begin, t - 1_000, domain="nsysx")
    settings = {"places": {"schedule": "/app/train.py:9"}, "numbers": {"schedule": BATCHES}}
    probe = [{"pid": 100 + rank, "backend": "nvtx", "ranges": {}, "settings": settings} for rank in (0, 1)]
    (folder / "r.run.json").write_text(json.dumps({"probe": probe}))
    found = findings_alone("NSX110", report.write(folder / "r.sqlite"))
    return [f for f in found if [way.name for way in f.remedies] == ["even-micro-batches"]]


def test_micro_batches_that_are_unlike_hold_all_stages_up(tmp_path: Path) -> None:
    (finding,) = told(tmp_path, "unlike")
    assert "micro-batches are unlike" in finding.detail and finding.where["line"] == 9
    assert finding.saving.bound and 0 < (finding.saving_ns_per_step or 0) < (finding.cost_ns_per_step or 0)


@pytest.mark.parametrize("kind", ["even", "sorted", "unlike steps"])
def test_micro_batches_that_are_alike_at_their_place_are_not_told_so(kind: str, tmp_path: Path) -> None:
    assert not told(tmp_path, kind)


def test_the_paste_makes_parts_of_as_much_work() -> None:
    documents = [range(n) for n in (16_384, *[1_024] * 16, *[2_048] * 8, 8_192)]
    given: dict[str, object] = {"documents": documents, "micro_batches": 3}
    exec(Fix.by_name("even-micro-batches").paste, given)
    work = [sum(len(d) + len(d) ** 2 / 24_000 for d in part) for part in given["parts"]]  # type: ignore[attr-defined]
    assert max(work) < 1.5 * min(work) and sum(len(part) for part in given["parts"]) == len(documents)  # type: ignore[attr-defined]
