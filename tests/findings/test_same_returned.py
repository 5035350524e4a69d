"""NSX123: functions that return the same in each step, and functions that work on the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Finding
from tests.findings.lined import FILE, Lined, forward

#: A table that numpy makes item by item, and a helper of it.
CALLS, MAKES, HELPS, COPIES = 11, 41, 51, 12
SOURCE = {
    CALLS: "    table = distances(sizes)",
    COPIES: "    bias = torch.from_numpy(table).cuda()",
    40: "    for i in range(n):",
    MAKES: "        d[i] = np.abs(i - np.arange(n)) * scale(i)",
    HELPS: "    return np.log(i + 1) / 2",
}
TABLE = {"file": FILE, "function": "distances", "line": 38, "plain": True, "calls": 1, "steps": [1, 8, 9, 10]}
HELPER = {"file": FILE, "function": "scale", "line": 50, "plain": True, "calls": 20, "steps": [1, 8, 9, 10]}


def told(folder: Path, returned: list[dict[str, Any]], *, launches: bool = False) -> list[Finding]:
    """Return what is found where the table takes 4 ms of each step, and the network half of one."""

    def body(program: Lined, number: int) -> None:
        forward(program)
        with program.line(CALLS):
            for _ in range(20):
                with program.line(40, "distances"):
                    program.host(5)
                with program.line(MAKES, "distances"):
                    program.host(95)
                    with program.line(HELPS, "scale"):
                        program.host(100)
            if launches:
                with program.line(42, "distances"):
                    program.launch(20)
        with program.line(COPIES):
            program.copy(20)
        forward(program)
        with program.line(30):
            program.sync()

    program = Lined(SOURCE).run(body)
    program.probe["xray"] = {"steps": program.xrayed, "lines": True, "returned": returned}
    return [f for f in program.found(folder, "NSX123") if f.where.get("line") in (CALLS, 40, MAKES, HELPS)]


def test_what_a_function_makes_alike_is_told_once_with_what_it_calls(tmp_path: Path) -> None:
    (finding,) = told(tmp_path, [HELPER, TABLE])
    assert [way.name for way in finding.remedies] == ["computed-once"]
    assert finding.title == "distances (train.py:38) makes the same in each step"
    assert finding.paste.startswith("distances = functools.cache(distances)")
    assert finding.saving.likely_ns == pytest.approx(4_000_000, rel=0.1)


def test_a_method_is_kept_by_the_line_that_calls_it(tmp_path: Path) -> None:
    (finding,) = told(tmp_path, [{**TABLE, "plain": False}])
    assert finding.paste.startswith("kept = {}") and 'kept["table"] = distances(sizes)' in finding.paste


@pytest.mark.parametrize("twin", ["not looked at", "other values", "few steps", "launches"])
def test_what_works_on_its_batch_stays(twin: str, tmp_path: Path) -> None:
    returned: list[dict[str, Any]] = [] if twin in ("not looked at", "other values") else [TABLE]
    if twin == "few steps":
        returned = [{**TABLE, "steps": [8, 9]}]
    findings = told(tmp_path, returned, launches=twin == "launches")
    assert findings and "computed-once" not in [way.name for f in findings for way in f.remedies]
