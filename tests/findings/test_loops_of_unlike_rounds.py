"""A loop whose rounds make other calls in each step: its lines are known all the same, and go together."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from nsysx.analyses import lines
from nsysx.inject.nsysx_probe import changes
from tests.findings import US
from tests.findings.lined import Lined, forward

TEXT = {
    12: "feats = augment(feats, lengths)",
    51: "feats[i, :, lo:lo + w] = 0.0",
    52: "length = int(lengths[i])",
    55: "w = self.rng.randint(0, widest)",
    57: "feats[i, lo:lo + w, :] = 0.0",
    60: "print(loss)",
}


def augmented(program: Lined, number: int) -> None:
    """Rows of a batch whose parts are filled one at a time, some of no width, and a length of each read back; then a network."""
    draw = random.Random(number)
    with program.line(12):
        for _ in range(30):
            for _ in range(2):
                with program.line(51, "Augment.__call__"):
                    program.host(6)
                    if draw.random() < 0.8:
                        program.launch(1, "fill_strided", blocks=draw.choice((1, 2, 3)))
            with program.line(52, "Augment.__call__"):
                program.copy(1, "DtoH", bytes=8)
                program.sync()
            for _ in range(4):
                with program.line(55, "Augment.__call__"):
                    program.host(3)
                with program.line(57, "Augment.__call__"):
                    program.host(6)
                    if draw.random() < 0.8:
                        program.launch(1, "fill_rows", blocks=draw.choice((1, 2, 3, 4)))
    forward(program, 60, 60)


def filled(program: Lined, number: int) -> None:
    """The same in one call."""
    with program.line(57, "Augment.__call__"):
        program.launch(10, "masked_fill")
    forward(program, 60, 60)


def test_the_lines_of_the_loop_are_known_in_steps_that_are_like_none(tmp_path: Path) -> None:
    summary = Lined(TEXT).run(augmented).summary(tmp_path)
    steps = summary.steps.count
    rows = {row["line"]: row for row in summary.tables[lines.KEY].rows}
    assert rows[52]["waits"] >= 28 * steps, "reads of lengths are line 52's, wherever they fall"
    assert rows[57]["launches"] > rows[51]["launches"] > 30 * steps
    unknown = rows.get(None, {"idle_caused_ns": 0})["idle_caused_ns"]
    assert unknown < 0.1 * sum(row["idle_caused_ns"] for row in rows.values())


def test_they_are_one_thing_to_do(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    finding = Lined(TEXT).run(augmented).found(tmp_path, "NSX123")[0]
    assert finding.where["line"] in (51, 57) and [way.name for way in finding.remedies] == ["filled-by-mask"]
    assert "2 lines beside it" in finding.title and "129 launches in a step and waits" in finding.detail
    assert (finding.saving.likely_ns or 0) > 2_000 * US, "neither launches nor reads are left"
    assert not Lined(TEXT).run(filled).found(tmp_path / "b", "NSX123")


def test_what_is_pasted_fills_what_the_loop_fills() -> None:
    paste = changes.remedies()["filled-by-mask"].example
    draw = torch.Generator().manual_seed(3)
    x, first = torch.rand(5, 20, 4, generator=draw), torch.randint(0, 15, (5, 3), generator=draw)
    last = first + torch.randint(0, 6, (5, 3), generator=draw)
    one_by_one = x.clone()
    for row in range(5):
        for part in range(3):
            one_by_one[row, first[row, part] : last[row, part], :] = 0.0
    exec(paste, {"torch": torch, "x": x, "first": first, "last": last})
    assert torch.equal(x, one_by_one)
