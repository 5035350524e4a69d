"""Where no replay can price a change, the cause that takes most of the step still leads, with its saving unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nsysx.answer import first_action
from nsysx.pipeline import summarize
from tests.builder import Report
from tests.findings.test_compilable import launch_bound


@pytest.mark.parametrize("replay", [None, {"trusted": False}])
def test_a_cause_of_most_of_the_step_is_advised_without_a_price(
    tmp_path: Path, replay: dict[str, object] | None
) -> None:
    summary = summarize([launch_bound().write(tmp_path / "r.sqlite")])
    unknown = tuple(replace(f, saving=replace(f.saving, likely_ns=None, most_ns=None)) for f in summary.findings or ())
    chosen = first_action.first(replace(summary, replay=replay, findings=unknown))
    assert chosen is not None and chosen.code == "NSX102"
    assert first_action.first(replace(summary, replay={"trusted": False}, findings=())) is None


def test_a_replay_that_finds_nothing_is_believed(tmp_path: Path) -> None:
    summary = summarize([launch_bound().write(tmp_path / "r.sqlite")])
    nothing = tuple(replace(f, saving=replace(f.saving, likely_ns=0, most_ns=0)) for f in summary.findings or ())
    chosen = first_action.first(replace(summary, replay={"trusted": True}, findings=nothing))
    assert chosen is None or chosen.code != "NSX102"


def test_a_program_that_reached_no_kernel_is_not_sent_to_mark_its_steps(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    main.call("cudaFree_v3020", at=1_000, dur=120_000_000)
    main.memset(at=130_000_000, dur=9_000, gpu_start=130_010_000, gpu_dur=1_500)
    assert (
        summarize([report.write(tmp_path / "r.sqlite")])
        .answer.do[0]
        .text.startswith("Let the program reach its kernels")
    )
