"""Where no replay can price a change, the cause that takes most of the step still leads, with its saving unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nsysx.answer import first_action, remarks, unnamed
from nsysx.answer.change_savings import After
from nsysx.catalogue import StepLimit
from nsysx.pipeline import summarize
from tests.builder import Report
from tests.findings.test_compilable import launch_bound
from tests.render import factory

MS = 1_000_000


@pytest.mark.parametrize("replay", [None, {"trusted": False}])
def test_a_cause_of_most_of_the_step_is_advised_without_a_price(
    tmp_path: Path, replay: dict[str, object] | None
) -> None:
    summary = summarize([launch_bound().write(tmp_path / "r.sqlite")], every_table=False)
    unknown = tuple(replace(f, saving=replace(f.saving, likely_ns=None, most_ns=None)) for f in summary.findings or ())
    chosen = first_action.first(replace(summary, replay=replay, findings=unknown))
    assert chosen is not None and chosen.code == "NSX102"
    assert first_action.first(replace(summary, replay={"trusted": False}, findings=())) is None


def test_a_replay_that_finds_nothing_is_believed(tmp_path: Path) -> None:
    summary = summarize([launch_bound().write(tmp_path / "r.sqlite")], every_table=False)
    nothing = tuple(replace(f, saving=replace(f.saving, likely_ns=0, most_ns=0)) for f in summary.findings or ())
    chosen = first_action.first(replace(summary, replay={"trusted": True}, findings=nothing))
    assert chosen is None or chosen.code != "NSX102"


@pytest.mark.parametrize(
    ("code", "beside", "nothing"),
    [(StepLimit.GPU, 4, True), (StepLimit.GPU, 6, False), (StepLimit.LAUNCH, 4, False)],
)
def test_a_gpu_that_computes_nearly_always_bounds_every_change_of_the_host(
    code: StepLimit, beside: int, nothing: bool
) -> None:
    full = factory.summary()
    parts = {"work": (100 - beside) * MS, "pause": (beside - 1) * MS, "copy": MS}
    verdict = replace(full.verdict, code=code, parts=parts)
    summary = replace(full, verdict=verdict, replay={"trusted": False}, findings=())
    told, worth = unnamed.to_record(summary), remarks.worth(summary, None, After())
    assert told.startswith("Nothing on the host: the GPU computes for all but 4.0 of 100.0 ms") is nothing
    assert told.startswith("Saving unknown") is not nothing
    assert worth.startswith("At most 4.0 of 100.0 ms by a change of the host") is nothing
    trusted = replace(summary, replay={"trusted": True})
    assert "on the host" not in unnamed.to_record(trusted), "a replay says more"


def test_a_program_that_reached_no_kernel_is_not_sent_to_mark_its_steps(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    main.call("cudaFree_v3020", at=1_000, dur=120_000_000)
    main.memset(at=130_000_000, dur=9_000, gpu_start=130_010_000, gpu_dur=1_500)
    assert (
        summarize([report.write(tmp_path / "r.sqlite")], every_table=False)
        .answer.do[0]
        .text.startswith("Let the program reach its kernels")
    )
