"""NSX106: single slow samples that hold back the batches of fast workers; workers that are too slow, and passes that begin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Finding
from tests.findings import Program, healthy

LATE = (3, 11, 12)
FOUR: dict[str, Any] = {"workers": 4, "iterators": 1, "batch_size": 16, "prefetch_factor": 2}


def waiting(
    folder: Path, late: tuple[int, ...] = LATE, *, batch_ms: float = 8, late_us: int = 40_000, **loader: object
) -> Finding:
    """20 steps of 4 ms, of which some wait for their batch; a worker makes one in 8 ms, so four give one in 2."""

    def body(program: Program, number: int) -> None:
        with program.range("data DataLoader"):
            program.host(late_us if number in late else 20)
        program.copy(40, pageable=False)
        healthy(program, number)
        program.sync()

    lines = [["/job/data.py", 9, "Pages.__getitem__", 16, round(batch_ms * 0.9e6)]]
    worker = {
        "samples": 16,
        "wall_ns": round(batch_ms * 1e6),
        "cpu_ns": round(batch_ms * 1e6),
        "lines": lines,
        "calls": [],
    }
    settings = {"loaders": [{**FOUR, **loader}], "cpu": {"allowed": 32}}
    record = {"pid": 100, "backend": "nvtx", "ranges": {}, "ranges_pushed": 1, "worker": worker, "settings": settings}
    (folder / "r.run.json").write_text(json.dumps({"probe": [record]}))
    return Program().steps(body, count=20).finding(folder, "NSX106")


def told(finding: Finding) -> bool:
    return "late-samples" in [way.name for way in finding.remedies]


def test_a_slow_sample_holds_back_the_batches_behind_it(tmp_path: Path) -> None:
    finding = waiting(tmp_path)
    assert told(finding) and "prefetch_factor=8, in_order=False" in finding.paste
    assert "3 of 19 steps wait for their batch, up to 40" in finding.fix
    assert "4 workers give one every 2.00 ms" in finding.fix and "of which 8 are made ahead" in finding.fix
    assert finding.saving.error_ns and finding.saving.most_ns == pytest.approx(4 * finding.saving.error_ns, rel=0.01)


def test_a_queue_is_as_long_as_the_longest_wait_needs(tmp_path: Path) -> None:
    assert "prefetch_factor=27" in waiting(tmp_path, late_us=400_000).paste


@pytest.mark.parametrize(
    "how",
    [
        {"batch_ms": 16},  # four give a batch in 4 ms, as long as a step: all of them are too slow
        {"late": tuple(range(0, 20, 2))},  # half of the steps wait
        {"late": (7,)},  # once
        {"iterators": 5},  # each pass over the data begins with a wait
        {"workers": 0},
    ],
)
def test_workers_that_are_too_slow_and_passes_that_begin(how: dict[str, Any], tmp_path: Path) -> None:
    assert not told(waiting(tmp_path, **how))
