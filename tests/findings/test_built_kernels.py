"""Kernels that a library builds in each step, within a line that calls a whole network: told with their module."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from nsysx.findings import _built_kernels
from nsysx.findings._case import Saving
from nsysx.model import Finding
from nsysx.pipeline import ReadingOptions, gather
from nsysx.replay import job_changes
from tests.findings.lined import Lined
from tests.findings.test_line_remedies import first

CALL, SOURCE = 12, {12: "hidden = self.model(ids, mask)"}


def encoding(program: Lined, number: int, *, every: int, kernel: str, pause_us: int = 3_000, times: int = 1) -> None:
    """A network of 4 ms that reads whether its mask is full; in ``times`` of ``every`` steps a kernel is built for 3 ms."""
    with program.line(CALL, "embed"):
        program.sync()
        with program.range("forward"), program.range("net:Net"):
            program.launch(100)
            with program.range("net.attention:Attention"):
                if number % every < times:
                    program.host(pause_us)
                    program.call("cuLibraryLoadData", 60)
                    program.memset(2)
                program.launch(200, kernel)
            for _ in range(18):
                program.launch(200)
    with program.line(20):
        program.host(5)


def test_what_builds_is_the_load_and_what_follows_it_until_the_launch(tmp_path: Path) -> None:
    """A memset is a launch of its own. In a step that loads nothing, nothing is built."""
    program = Lined(SOURCE).run(lambda program, number: encoding(program, number, every=2, kernel="gemm"))
    profile = gather(program.report.write(tmp_path / "r.sqlite"), ReadingOptions())
    calls = profile.attributed.api_calls
    here = calls.filter(calls["call"].is_in(list(job_changes.built_calls(profile))))
    assert set(here["name"].cast(pl.String)) == {"cuLibraryLoadData"}
    assert here.height == len(range(0, profile.scope.steps or 0, 2))


def test_all_ranks_save_what_each_waits_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (alone,) = built(tmp_path)
    saved = Saving(5_000_000, "all ranks", source="replay")
    monkeypatch.setattr(
        _built_kernels, "on_all_ranks", lambda case, name: saved if name == "no-kernel-built-in-a-step" else None
    )
    (of_job,) = built(tmp_path)
    assert alone.saving_ns_per_step is not None and alone.saving_ns_per_step < 3_000_000
    assert of_job.saving_ns_per_step == pytest.approx(5_000_000, rel=0.01)


def built(folder: Path, every: int = 1, kernel: str = "cudnn_sdpa_flash_fprop", **how: int) -> list[Finding]:
    program = Lined(SOURCE).run(lambda program, number: encoding(program, number, every=every, kernel=kernel, **how))
    summary = program.summary(folder)
    found = [f for f in summary.findings or () if f.code == "NSX123" and f.verdict == "found" and "builds" in f.title]
    assert not found or first(summary) == ("NSX123", CALL)
    return found


@pytest.mark.parametrize(
    ("kernel", "remedy"),
    [("cudnn_sdpa_flash_fprop", "one-length-for-attention"), ("gemm", "no-kernel-built-in-a-step")],
)
def test_what_a_library_builds_in_each_step_is_told_with_its_module(kernel: str, remedy: str, tmp_path: Path) -> None:
    (finding,) = built(tmp_path, kernel=kernel)
    assert [way.name for way in finding.remedies] == [remedy]
    assert finding.where["module"] == "net.attention" and finding.where["line"] == CALL
    assert finding.saving_ns_per_step == pytest.approx(2_900_000, rel=0.1)


def test_what_each_of_several_ranks_builds_in_fewer_than_half_of_the_steps_is_told(tmp_path: Path) -> None:
    (finding,) = built(tmp_path, every=5, times=2)
    assert re.search(r"builds attention kernels in \d+ of \d+ steps: ", finding.title), finding.title


@pytest.mark.parametrize("how", [{"every": 4}, {"every": 100}, {"pause_us": 100}], ids=str)
def test_what_is_built_in_few_steps_or_while_the_gpu_works_is_none(how: dict[str, int], tmp_path: Path) -> None:
    assert built(tmp_path, **how) == []
