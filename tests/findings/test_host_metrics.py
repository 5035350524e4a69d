"""NSX123: metrics that numpy makes in each step of what is copied from the GPU, and what looks like them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.findings._metric_pastes import on_gpu
from nsysx.model import Finding
from tests.findings.lined import Lined, forward

CALLS, UPDATE = 11, "Hits.update"
METRIC = {
    40: "    def update(self, scores, labels):",
    41: "        chosen = scores.argmax(dim=1).cpu().numpy()",
    42: "        labels = labels.cpu().numpy()",
    43: "        known = labels < self.n",
    44: "        cells = self.n * labels[known] + chosen[known]",
    45: "        self.table += np.bincount(cells, minlength=self.n ** 2).reshape(self.n, self.n)",
}
SOURCE = {CALLS: "    hits.update(scores.detach(), labels)", 12: "    labels = labels.cuda()", **METRIC}
NEW = """chosen = scores.argmax(dim=1)
known = labels < self.n
cells = torch.where(known, self.n * labels + chosen, self.n ** 2)
"""


def told(folder: Path, changed: dict[int, str] | None = None, size: int = 8 << 20, every: int = 1) -> list[Finding]:
    """Return what is found among all where numpy takes 3 ms of each step behind two copies."""

    def body(program: Lined, number: int) -> None:
        with program.line(12):
            program.copy(20, bytes=1 << 10)
        forward(program)
        if number % every == 0:
            with program.line(CALLS):
                for copy in (41, 42):
                    with program.line(copy, UPDATE):
                        program.copy(500, "DtoH", bytes=size)
                        program.sync()
                for work in (43, 44, 45):
                    with program.line(work, UPDATE):
                        program.host(1000)
        forward(program)

    program = Lined(SOURCE | (changed or {})).run(body)
    return [f for f in program.found(folder, "NSX123") if " metric on the host" in f.title]


def test_copies_waits_and_numpy_of_a_metric_are_one_finding(tmp_path: Path) -> None:
    (finding,) = told(tmp_path)
    assert [way.name for way in finding.remedies] == ["numpy-on-gpu"]
    assert finding.title == "Hits.update (train.py:41 to 45) makes a metric on the host in each step"
    assert finding.saving.likely_ns is not None and finding.saving.likely_ns > 3_000_000
    assert finding.paste.startswith(NEW)


@pytest.mark.parametrize(
    ("changed", "size", "every"),
    [
        ({}, 1 << 10, 1),  # few numbers are copied
        ({}, 8 << 20, 6),  # few steps do it
        ({12: "    weights = torch.from_numpy(hits.table).cuda()"}, 8 << 20, 1),  # it is sent back
        ({45: "        return np.bincount(cells, minlength=self.n ** 2)"}, 8 << 20, 1),  # somebody takes it
        ({45: "        self.found += decode_words(cells.sum())"}, 8 << 20, 1),  # no arithmetic of arrays
        ({45: "        self.next = np.bincount(cells).argmax()"}, 8 << 20, 1),  # it is no sum over steps
    ],
)
def test_what_is_no_metric_of_each_step_is_not_told_so(
    changed: dict[int, str], size: int, every: int, tmp_path: Path
) -> None:
    assert not told(tmp_path, changed, size, every)


def test_a_paste_has_no_numpy_left() -> None:
    lines = {1: "    p = s.cpu().numpy()", 2: "    self.right += (p == p.round()).mean()"}
    assert on_gpu(lines, (1, 2), {1}).splitlines()[:2] == [
        "p = s",
        "self.right = torch.as_tensor(self.right, device=p.device) + (p == p.round()).double().mean()",
    ]
    for other in ("p = np.sort(p, axis=1)", "p = p.max(1)", "p = p.astype(np.float32)", "p = mine(p)"):
        assert on_gpu({**lines, 2: other, 3: lines[2]}, (1, 2, 3), {1}) == ""
