"""The edits of work that goes: its calls with the code before them, its waits and its GPU work, and none where nothing is launched."""

from __future__ import annotations

from pathlib import Path

from nsysx.findings._case import Case, ops_of
from nsysx.findings._gone_backwards import edits_of_gone
from nsysx.findings._once import edits_without
from nsysx.replay.engine import replay_of
from tests.findings import Program
from tests.findings.test_thresholds import judged

GOES = "wgrad"


def test_work_that_goes_takes_its_launching_calls_along(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        for kernel in ("gemm", GOES, "pool"):
            program.launch(100, kernel)
        program.sync()

    profile, tables, _ = judged(Program().steps(body, 12).report.write(tmp_path / "r.sqlite"))
    case = Case(profile, tables, replay_of(profile))
    work = {name: case.ops.filter(case.ops["name"].cast(str) == name) for name in (GOES, "pool", "none of these")}
    edits = edits_of_gone(case, work[GOES])
    assert edits == edits_without(
        case.calls.filter(case.calls["call"].is_in(work[GOES]["call"].implode())), case.ops, leading=True
    )
    assert ops_of(work[GOES]) in [getattr(edit, "ops", None) for edit in edits]
    both = edits_of_gone(case, work[GOES], work["pool"])
    assert ops_of(work[GOES]) | ops_of(work["pool"]) in [getattr(edit, "ops", None) for edit in both]
    assert edits_of_gone(case, work["none of these"]) == []
