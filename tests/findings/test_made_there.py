"""Data that a line makes on the GPU as it is: no advice to make it there."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.findings._case import Case, Fix
from nsysx.findings._made_there import unless_made_there
from nsysx.replay.engine import replay_of
from tests.findings.lined import Lined, forward
from tests.findings.test_thresholds import judged


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("remedy", ["made-on-gpu", "logged-rarely"])
def test_what_is_recorded_decides_whether_data_is_made_on_the_cpu(remedy: str, copies: bool, tmp_path: Path) -> None:
    def body(program: Lined, _: int) -> None:
        forward(program)
        with program.line(30):
            program.host(200)
            if copies:
                program.copy(2, bytes=4096)
            program.launch(3)
        program.sync()

    program = Lined({30: "noise = torch.randn(shape, device=x.device)"}).run(body)
    profile, tables, _ = judged(program.write(tmp_path))
    code = profile.code()
    assert code is not None
    line_row = code.places["line"].to_list().index(30)
    fix = Fix.by_name(remedy)
    kept = unless_made_there(Case(profile, tables, replay_of(profile)), line_row, fix)
    assert kept == (fix if copies or remedy == "logged-rarely" else None)
