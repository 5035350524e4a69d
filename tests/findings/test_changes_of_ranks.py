"""NSX127: checkpoints of all stages of a pipeline, of which one alone waits for the other, and what such a pipeline is told to launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Finding, Summary
from tests.findings.test_hosts_of_stages import MS, Parts, exposed, job, layers
from tests.findings.test_nsx127_costly_settings import CLEAN, changed

CARD = 80_000_000_000


def again(count: int, us: int = 500) -> Parts:
    """Return layers as a backward computes them again."""
    return [(f"layers.{i}", "Block recompute", us) for i in range(count)]


def noted(reserved: int = CARD // 20, checkpoints: int = 24, **more: Any) -> dict[str, Any]:
    memory = {"device": 0, "total_bytes": CARD, "reserved_peak_bytes": reserved, "allocated_peak_bytes": reserved}
    return changed(CLEAN, {"checkpoints": checkpoints, "memory": memory, "wrappers": [], **more})


def told(summary: Summary) -> Finding:
    (finding,) = (f for f in summary.findings or () if f.code == "NSX127")
    return finding


BOTH = [*layers(4), *again(4), *layers(4)]


@pytest.mark.parametrize("host_us", [700, 50])
def test_what_all_stages_compute_again_is_priced_on_all_of_them(tmp_path: Path, host_us: int) -> None:
    """A third of the launches and of the work of either stage goes: 8 micro-batches of 12 parts, of which 4 are computed again."""
    summary = job(tmp_path, (host_us, host_us), BOTH, BOTH, noted())
    finding = told(summary)
    assert finding.verdict == "found"
    assert [way.name for way in finding.remedies] == ["fewer-checkpoints"]
    step_ns = summary.verdict.step_ns if summary.verdict is not None else None
    saving = finding.saving
    assert step_ns and saving.likely_ns and saving.most_ns
    # Either way a third of what sets the pace goes, of host or GPU; at best all of what is left is the GPUs' work.
    assert saving.likely_ns - (saving.error_ns or 0) <= step_ns / 3 * 1.05
    assert step_ns / 3 * 0.7 <= saving.most_ns <= step_ns - 8 * 8 * 0.5 * MS
    assert summary.answer.do[0].code == "NSX127"


def test_a_pipeline_whose_hosts_set_the_pace_is_not_bound_by_communication(tmp_path: Path) -> None:
    places = {"places": {"schedule": "/app/train.py:9"}, "numbers": {"schedule": 8}}
    summary = job(tmp_path, (700, 700), BOTH, BOTH, noted(**places))
    assert summary.verdict is not None and summary.verdict.code == "comm_bound"
    assert summary.verdict.sentence.startswith("Bound by hosts: exposed communication")
    assert "(as recorded): the rest waits for other stages" in summary.verdict.sentence


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (noted(reserved=CARD * 3 // 4), "none of"),  # kept activations would not fit
        (noted(checkpoints=0), "none of"),
    ],
)
def test_checkpoints_that_are_needed_are_not_told(tmp_path: Path, settings: dict[str, Any], why: str) -> None:
    finding = told(job(tmp_path, (700, 700), BOTH, BOTH, settings))
    assert finding.verdict == "clear" and why in finding.detail


@pytest.mark.parametrize("of_torch", [True, False])
def test_a_stage_of_torch_is_named_only_where_there_is_one(tmp_path: Path, of_torch: bool) -> None:
    places = {"places": {"stage": "/app/train.py:8", "schedule": "/app/train.py:9"}} if of_torch else {"places": {}}
    settings = noted(checkpoints=0, **places, numbers={"schedule": 8})
    fix = exposed(job(tmp_path, (700, 700), layers(6), layers(6), settings)).fix
    assert "torch.compile of each stage" in fix and ("PipelineStage" in fix) is of_torch
