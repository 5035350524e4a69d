"""Where lines of code, legends and paragraphs are broken, and what is not said twice in one line."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from nsysx.advice import Also
from nsysx.model import Summary, Table, TableSpec
from nsysx.render import answer_text, code, finding_view, first_screen, grids, terminal
from nsysx.render.grids import CellTexts


def test_a_number_stays_with_its_unit_and_a_sign_with_its_words() -> None:
    text = "34 % of GPU time is elementwise kernels, 28 % GEMM and takes 736 us"
    for width in range(24, 70):
        lines = answer_text.wrapped(text, width, indent=0)
        assert " ".join(lines) == text
        assert not any(line.split()[-1].isdigit() for line in lines), lines
    legend = "   ".join(map(answer_text.joined, ("█ compute 29.92 ms (97 %)", "▄ other 67.3 us (0.2 %)")))
    for width in range(30, 60):
        lines = answer_text.wrapped(legend, width, indent=0)
        assert not any(line.endswith(("█", "▄", "ms", "us")) for line in lines), lines


def test_a_number_stays_with_its_unit_in_the_whole_report_too() -> None:
    text = "9 other lines take 92 % of a worker's time, 8.5 ms of it twice"
    for width in range(40, 70):
        written = io.StringIO()
        terminal._Out(Console(file=written, width=width)).line(text)
        lines = written.getvalue().splitlines()
        assert " ".join(lines) == text
        assert not any(line.endswith(("92", "8.5")) for line in lines), lines


@pytest.mark.parametrize(
    ("row", "lines"),
    [
        (
            'if not hasattr(self, "kept"): self.kept = self.adjacency()',
            ['if not hasattr(self, "kept"):', "    self.kept = self.adjacency()"],
        ),
        (
            "torch._foreach_lerp_(a, [p.to_local() for p in b], 1.0)",
            ["torch._foreach_lerp_(a,", "    [p.to_local() for p in b], 1.0)"],
        ),
        (
            "a = flat.index_copy(slot, flat.repeat_interleave(2, 0))",
            ["a = flat.index_copy(slot,", "    flat.repeat_interleave(2, 0))"],
        ),
    ],
)
def test_code_is_broken_behind_a_colon_and_never_inside_empty_brackets(row: str, lines: list[str]) -> None:
    assert code.lines(row, 40, 5) == lines


def test_a_row_of_a_page_is_whole_and_goes_on_indented() -> None:
    paste = 'with torch.autocast("cuda", torch.bfloat16):\n    x = torch.nn.functional.scaled_dot_product_attention(queries)'
    rows = code.page_rows(paste)
    assert "\n".join("".join(row.pieces) for row in rows) == paste
    assert [row.indent for row in rows] == [4, 8]
    assert "attention(" in rows[1].pieces[-2]


def test_a_comment_that_has_no_room_on_a_page_goes_on_as_a_comment() -> None:
    """Pasted from the screen the end of one would be code."""
    comment = 'not torch.einsum("tec,ecd->td", combine.type_as(flat), self.experts(rows)), whose mask is full of zeros'
    rows = ["".join(row.pieces) for row in code.page_rows(f"out = F.embedding(slot, table)  # {comment}")]
    assert rows[0] == "out = F.embedding(slot, table)"
    assert len(rows) > 1 and all(row.startswith("# ") for row in rows[1:])
    assert " ".join(row.removeprefix("# ") for row in rows[1:]) == comment


@pytest.mark.parametrize(
    "row",
    ["out = self.model(mask=mask, use_cache=False, logits_to_keep=1)", "rows = flat.new_zeros(16).index_copy(0, slot)"],
)
def test_a_long_word_of_code_is_not_broken_before_its_last_letters(row: str) -> None:
    (shown,) = code.page_rows(row)
    assert not any(piece.startswith(("1)", "0,")) for piece in shown.pieces)


@pytest.mark.parametrize(
    ("text", "bound", "said"),
    [
        ("converts again: up to 4.69 ms per step", True, "overlaps with NSX127"),
        ("about 4.69 ms per step of memory traffic", False, "overlaps with NSX127"),
        ("conversions take 4.69 ms", True, "up to 4.69 ms, overlaps with NSX127"),
    ],
)
def test_a_saving_that_the_title_has_is_not_said_again(text: str, bound: bool, said: str) -> None:
    assert answer_text.also_worth(Also("NSX112", 1, text, 4_690_000, bound, ("NSX127",))) == said


def test_rows_stand_by_the_sum_of_the_columns_that_order_them() -> None:
    spec = TableSpec(bar="idle_ns", order=("idle_ns", "gpu_ns"))
    idle, busy = {"idle_ns": 5, "gpu_ns": 0}, {"idle_ns": 0, "gpu_ns": 50}
    assert grids.weight(idle, spec) < grids.weight(busy, spec)
    assert grids.weight(idle, replace(spec, order=())) > grids.weight(busy, replace(spec, order=()))
    assert Table("lines", "Lines", (), (idle, busy), shown=spec).shown.order


def test_evidence_that_the_detail_has_is_no_table(full: Summary) -> None:
    finding = (full.findings or ())[0]
    told = replace(
        finding,
        detail="115 modules are sharded.",
        evidence=({"setting": "small", "seen": "115 modules are sharded", "leads": False},),
    )
    assert finding_view.finding_of(told, full, CellTexts(True), 84).evidence is None
    counted = replace(told, evidence=({"setting": "small", "calls": 3, "leads": False},))
    shown = finding_view.finding_of(counted, full, CellTexts(True), 84).evidence
    assert shown is not None and [head.name for head in shown.heads] == ["setting", "calls"]


def test_what_is_said_of_how_sure_is_said_once(full: Summary) -> None:
    screen = first_screen.build(full)
    for (_, why), (_, more, _) in zip(screen.answer.halves, screen.more_sure, strict=False):
        assert not more.startswith(why)
