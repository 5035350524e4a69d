"""NSX105 and NSX123: rows that a step picks from a table on the host, and rows that come from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings import said_of
from tests.findings.lined import Lined, forward

PICK, OTHER = 15, 16
ROWS, WIDTH, PICKED = 2_000_000, 128, 100_000
TEXT = "out = net(x[n_id].to(dev), adjs)"
CARD = {"memory": {"total_bytes": 140 << 30, "reserved_peak_bytes": 20 << 30}}


def picking(program: Lined, number: int, *, on_gpu: bool = False, rows: int = ROWS, each: int = 4) -> None:
    """10 ms of a gather on the CPU, a copy of what it made (6 ms) from pageable memory, then a network."""
    with program.line(OTHER):
        program.host(5)
    with program.line(PICK):
        begin = program.t
        program.host(10_000)
        if on_gpu:
            program.launch(20, "index_kernel")
        if program.noted is not None:
            label = (
                f"aten::index, op_id = {100 + number}, sizes = [[{rows}, {WIDTH}], [{PICKED}]], "
                f"input_op_ids = [(0,-1), ({90 + number},0)]"
            )
            program.main.add_range(label, begin, program.t)
        program.copy(6_000, "HtoD", bytes=each * PICKED * WIDTH - (number % 2))  # batches are unlike
    forward(program)
    program.sync()


def findings(folder: Path, text: str, other: str = "calls += 1", card: object = None, **kind: object) -> list[Finding]:
    settings = card if isinstance(card, dict) else CARD
    program = Lined({PICK: text, OTHER: other}, settings).run(lambda program, number: picking(program, number, **kind))  # type: ignore[arg-type]
    return [f for f in said_of(program.write(folder)) if f.verdict == "found"]


def told(every: list[Finding]) -> dict[str, Finding]:
    return {f.code: f for f in every if f.remedies and f.remedies[0].name == "table-on-gpu"}


@pytest.mark.parametrize(
    ("text", "paste"),
    [
        (
            TEXT,
            "x_on_gpu = x.to(dev)  # once, before the loop: 976.6 MiB\n"
            "x_on_gpu[n_id.to(dev, non_blocking=True)]  # in place of x[n_id].to(dev)",
        ),
        ("h = g.ndata['feat'][nodes].cuda()", "feat_on_gpu = g.ndata['feat'].to('cuda')  # once"),
        ("rows = self.feats.index_select(0, ids).to(dev)", "self.feats_on_gpu[ids.to(dev, non_blocking=True)]"),
    ],
)
def test_a_table_of_which_rows_are_picked(text: str, paste: str, tmp_path: Path) -> None:
    every = findings(tmp_path, text)
    found = told(every)["NSX105"]
    assert paste in found.paste and "Keep" in found.fix
    # The copy goes, and the gather before it.
    assert (found.saving_ns_per_step or 0) == pytest.approx(16_000_000, rel=0.1)
    for each in every:
        if each.code in ("NSX105", "NSX123") and each.where and each.where.get("line") == PICK and each.remedies:
            assert each.remedies[0].name == "table-on-gpu", each.title


@pytest.mark.parametrize(
    ("text", "other", "card", "kind"),
    [
        (TEXT, "x[seen] = state", None, {}),
        (TEXT, "x = load(number)", None, {}),
        (TEXT, "pass", {}, {}),
        (TEXT, "pass", {"memory": {"total_bytes": 141 << 30, "reserved_peak_bytes": 140 << 30}}, {}),
        (TEXT, "pass", None, {"on_gpu": True}),
        (TEXT, "pass", None, {"rows": PICKED // 2}),
        ("out = net(batch.x.to(dev), adjs)", "pass", None, {}),
    ],
)
def test_what_cannot_stay_on_the_gpu(
    text: str, other: str, card: object, kind: dict[str, object], tmp_path: Path
) -> None:
    assert not told(findings(tmp_path, text, other, card, **kind))


@pytest.mark.parametrize(("each", "size"), [(2, "488.3 MiB"), (4, "976.6 MiB"), (8, "1.9 GiB")])
def test_the_size_of_the_table_is_that_of_its_numbers(each: int, size: str, tmp_path: Path) -> None:
    said = told(findings(tmp_path, TEXT, each=each))
    assert {"NSX105", "NSX123"} == set(said)
    assert all(size in finding.fix for finding in said.values())


COPY, CALL = 17, 12


def in_two_lines(program: Lined, number: int, *, on_gpu: bool = False) -> None:
    """The same in a helper, into pinned memory, by numbers that are read back first."""
    with program.line(CALL, "Data.__getitem__"):
        program.host(2)
        with program.line(PICK, "Data._take"):
            program.copy(400, "DtoH", bytes=8 * PICKED)
            begin = program.t
            program.host(10_000)
            if on_gpu:
                program.launch(20, "index_kernel")
            if program.noted is not None:
                sizes = f"[{ROWS}, {WIDTH}], [], [{PICKED}], [{PICKED}, {WIDTH}]"
                label = f"aten::index_select, op_id = {100 + number}, sizes = [{sizes}], input_op_ids = [(0,-1), (0,-1), ({90 + number},0)]"
                program.main.add_range(label, begin, program.t)
        with program.line(COPY, "Data._take"):
            program.copy(3_000, "HtoD", bytes=2 * PICKED * WIDTH, pageable=False)
    forward(program)
    program.sync()


HELPER = {
    CALL: "return self._take(self.features, ids)",
    PICK: "torch.index_select(column, 0, ids.cpu(), out=out)",
    COPY: "return out.to(self.device, non_blocking=True)",
}


@pytest.mark.parametrize(
    ("source", "paste"),
    [
        (HELPER, ["self.features = self.features.to(self.device)", "return column[ids]"]),
        (
            {**HELPER, PICK: "rows = self.table[ids]", COPY: "x = net(rows.cuda())"},
            ["self.table = self.table.to('cuda')", "x = net(self.table[ids.to('cuda', non_blocking=True)])"],
        ),
    ],
)
def test_a_pick_that_another_line_copies(source: dict[int, str], paste: list[str], tmp_path: Path) -> None:
    said = said_of(Lined(source, CARD).run(in_two_lines).write(tmp_path))
    here = [
        f
        for f in said
        if f.verdict == "found" and f.where.get("line") in (PICK, COPY) and f.code in ("NSX105", "NSX123")
    ]
    assert {f.code for f in here} == {"NSX105", "NSX123"}
    for each in here:
        assert [way.name for way in each.remedies] == ["table-on-gpu"] and "488.3 MiB" in each.fix, each.title
        assert [line.partition("  #")[0] for line in each.paste.splitlines()] == paste


@pytest.mark.parametrize(
    ("source", "on_gpu"),
    [
        (HELPER, True),
        ({**HELPER, COPY: "return other.to(self.device)"}, False),
        ({**HELPER, 14: "column[seen] = x"}, False),
    ],
)
def test_other_picks_in_two_lines(source: dict[int, str], on_gpu: bool, tmp_path: Path) -> None:
    program = Lined(source, CARD).run(lambda program, number: in_two_lines(program, number, on_gpu=on_gpu))
    assert not told([f for f in said_of(program.write(tmp_path)) if f.verdict == "found"])
