"""NSX124: kernels at the memory bandwidth, where the GPU's counters were sampled."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from nsysx.pipeline import ReadingOptions, gather
from nsysx.replay import engine, requested_edits
from tests.analyses.test_gpu_metrics import report, true, working
from tests.builder import Report
from tests.findings import only_finding


def finding(given: Report, folder: Path, code: str = "NSX124") -> Finding:
    return only_finding(code, given.write(folder / "r.sqlite"))


def test_a_copy_at_the_bandwidth_is_found_and_promises_nothing(tmp_path: Path) -> None:
    one = finding(report(true), tmp_path)
    assert one.verdict == "found"
    assert one.title == "Kernels take 1.00 ms per step at 93 % of the memory bandwidth: only fewer bytes help"
    assert (one.saving_ns_per_step, one.cost_ns_per_step) == (None, None)
    assert [row["kernel"] for row in one.evidence] == ["copy_kernel"]


def test_kernels_below_are_clear_and_unsampled_ones_cannot_be_told(tmp_path: Path) -> None:
    assert finding(report(working(99, 0, 40, 40)), tmp_path, "NSX124").verdict == "clear"
    assert finding(report(None), tmp_path, "NSX124").verdict == "cannot_tell"
    short = report(true)
    for row in short.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        row["end"] = row["start"] + 20_000
    assert finding(short, tmp_path, "NSX124").verdict == "cannot_tell"


def test_counters_beside_steps_without_a_kernel_cannot_tell(tmp_path: Path) -> None:
    """A table that is missing for a reason of its own, of calls whose ids are no numbers, say, is no error of the rule."""
    given = report(true)
    for kernel in given.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        kernel |= {"correlationId": 0, "start": kernel["start"] + 10**12, "end": kernel["end"] + 10**12}
    assert finding(given, tmp_path).verdict == "cannot_tell"


def test_what_a_faster_kernel_brings_ends_at_the_bandwidth(tmp_path: Path) -> None:
    """Twice as fast: the product may be, the copy at 93 % may not."""
    path = report(true).write(tmp_path / "r.sqlite")
    profile = gather(path, ReadingOptions())

    def saving(text: str) -> tuple[str, int]:
        ((words, edit),) = requested_edits.edits(profile, requested_edits.Changes(kernel=[text]))
        replay = engine.replay_of(profile)
        assert isinstance(replay, engine.Replay)
        return words, replay.saving(edit).saving_ns

    words, product = saving("my_gemm=2x")
    assert (words, product) == ("kernels faster: my_gemm=2x", pytest.approx(1_000_000, rel=0.05))
    words, copy = saving("copy_kernel=2x")
    assert "the memory bandwidth allows 1.08x in" in words
    assert copy == pytest.approx(70_000, rel=0.1)
    assert saving("copy_kernel=1.05x")[0] == "kernels faster: copy_kernel=1.05x"
