"""NSX123: metrics of a package that gather what all ranks have seen in each step, told with the line that calls them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nsysx.findings._gathered_metrics import _pasted
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_values_of_ranks import meets, trains

PACKAGE = "/usr/lib/python3.11/site-packages/{}/utilities/distributed.py:98 gather_all_tensors"
LINE = "self.latest = self.metrics(logits.sigmoid(), target)"


def gathering(package: str) -> Callable[[Lined, int], None]:
    """Return a step with metrics: for each of four tensors the ranks meet, gather sizes, read these and gather what they have."""

    def body(program: Lined, number: int) -> None:
        trains(program, number)
        with program.line(30, "Meters.__call__"):
            program.host(20)
            for _ in range(4):
                begin = program.t
                for _ in range(20):
                    program.host(20)
                    program.launch(3, "sort_kernel")
                meets(program, 4)
                meets(program, 8, "ncclAllGather")
                program.sync()
                meets(program, 1 << 18, "ncclAllGather")
                if program.noted is not None:
                    program.noted.append((PACKAGE.format(package), begin, program.t))

    return body


def told(folder: Path, package: str) -> list[Finding]:
    found = Lined({30: LINE}).run(gathering(package)).found(folder, "NSX123")
    return [f for f in found if [way.name for way in f.remedies] == ["counted-apart"]]


def test_a_metric_is_told_with_the_line_that_calls_it(tmp_path: Path) -> None:
    (finding,) = told(tmp_path, "torchmetrics")
    assert (finding.where["file"], finding.where["line"]) == (FILE, 30) and "dist_sync_on_step" in str(finding.fix)
    assert finding.paste.splitlines() == [
        "if log:  # in a step that shows it",
        f"    {LINE}",
        "else:",
        "    self.metrics.update(logits.sigmoid(), target)",
    ]


def test_what_another_package_gathers_is_no_metric(tmp_path: Path) -> None:
    assert not told(tmp_path, "search")


@pytest.mark.parametrize(
    ("text", "paste"),
    [
        ("acc = metric.compute()", "if log:  # in a step that shows it\n    acc = metric.compute()"),
        ("metric(out, y)  # of all", "if log:  # in a step that shows it\n    metric(out, y)\nelse:\n    metric.update(out, y)"),
        ("self.log('acc', self.acc)", None),
        ("print(float(metric(out, y)) / 2, end=", None),
        ("x = metric(out, y) / 2", None),
    ],
)  # fmt: skip
def test_other_lines(text: str, paste: str | None) -> None:
    assert _pasted(text) == paste
