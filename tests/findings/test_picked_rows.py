"""NSX120: an index of numbers, whose backward adds up the rows of one number one after the other; masks are something else."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nsysx.events.picked_rows import PickedRows, indexed_by_number
from nsysx.findings._picked_rows import _cheaper, with_look_ups
from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_product_forms import Called, flow_of_called
from tests.findings.test_smaller_operators import operator
from tests.findings.test_taken_pieces import noted

LINE = 25
SOURCE = {LINE: "return rows[inverse]  # as often as they come"}
ADDS = "void (anonymous namespace)::indexing_backward_kernel<float, 4>(long const*, long const*, float const*, float*, long)"
PICKS = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"
SELECTS = "void at_cuda_detail::cub::DeviceSelectSweepKernel<long>(int)"
SORTS = "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<long>(int)"
#: Of an index: how it picks, what its backward takes to add up (us), and how many numbers of rows are picked.
PICKED = {"by": "numbers", "adds": 1500.0, "numbers": "[133632]"}


def step(program: Lined, number: int, *, by: str, adds: float, numbers: str) -> None:
    """A network (4 ms), an index into 30,000 rows of 128 numbers, and its backward; ``by``: numbers, a mask, or where a mask is set."""
    ids, node = count(1000 * number + 10), 1000 * number + 500
    with program.range("forward"), program.range("net:Net"):
        operator(program, "linear", next(ids), [-1, -1], "[64, 64], [64, 64]", 4000)
        operator(
            program, "unique" if by == "numbers" else "lt", at := next(ids), [-1, -1], f"{numbers}, []", 20, SELECTS
        )
        with program.line(LINE):
            if by == "places":
                operator(program, "nonzero", next(ids), [at], "[30000]", 20, SELECTS)
                operator(program, "squeeze", at := next(ids), [at - 1, -1], "[20000, 1], []")
            begin = program.t
            if by == "mask":
                operator(program, "nonzero", next(ids), [at], "[30000]", 20, SELECTS)
            program.launch(80, PICKS)
            noted(program, "aten::index", made := next(ids), begin, f"[30000, 128], {numbers}", [0, at], node)
        operator(
            program, "sum", next(ids), [made, -1], "[20000, 128], []" if by != "numbers" else "[133632, 128], []", 20
        )
    with program.range("backward"):
        begin = program.t
        program.launch(20, SORTS)
        program.launch(adds, ADDS)
        noted(program, "IndexBackward0", next(ids), begin, "[133632, 128]", [0], node)
        noted(program, "autograd::engine::evaluate_function: IndexBackward0", next(ids), begin)
    program.sync()


def found(folder: Path, source: dict[int, str] | None = None, **kind: Any) -> list[Finding]:
    program = Lined(source or SOURCE).run(lambda program, number: step(program, number, **(PICKED | kind)))
    return program.found(folder, "NSX120")


def test_rows_that_numbers_pick_are_looked_up_with_the_line_that_does(tmp_path: Path) -> None:
    (finding,) = found(tmp_path)
    assert finding.title.startswith("train.py:25: rows that numbers pick take 1.50 ms in backward")
    assert finding.where["line"] == LINE and [way.name for way in finding.remedies] == ["rows-by-embedding"]
    assert finding.paste == "return rows.index_select(0, inverse)  # not rows[inverse]"
    assert "last bits differ between runs" in finding.condition and "4.5 of each on average" in finding.detail
    assert "mask" not in finding.fix
    # Atomic additions take 100 to 200 us, and no sort comes before them.
    assert 0.85 * 1_500_000 < finding.saving_ns_per_step < 0.97 * 1_500_000
    assert not finding.saving.bound and (finding.saving.error_ns or 0) > 20_000


@pytest.mark.parametrize(
    ("picked", "size", "in_order"),
    [
        (PickedRows(0, (30_000, 128), (133_632,), 0), 2, False),
        (PickedRows(0, (30_000, 8), (133_632,), 0), 4, False),
        (PickedRows(0, (6, 512), (80_000,), 0), 4, False),
        (PickedRows(0, (30_000, 128), (133_632,), 0), 4, True),
    ],
    ids=["sums in 16 bits", "narrow rows", "few rows", "deterministic algorithms"],
)
def test_where_atomic_additions_lose_or_wait_an_embedding_is_priced(
    picked: PickedRows, size: int, in_order: bool
) -> None:
    look_up = _cheaper(picked, size, 1e6, in_order=in_order)
    assert look_up.by == "embedding" and look_up.least_ns > 5e6 and look_up.most_ns > 16e6


@pytest.mark.parametrize(("size", "times"), [(2, 2.0), (4, 1.0), (8, 1.0)])
def test_the_price_of_atomic_additions_is_that_of_their_number(size: int, times: float) -> None:
    # A million rows of 256 numbers of float32 were added in 1.82 ms; all are read and written once in 0.464 ms.
    many = PickedRows(0, (100, 1000, 256), (10_000,), 1)
    look_up = _cheaper(many, size, 464_000, in_order=False)
    assert look_up.by == "index_select" and look_up.least_ns < times * 1_820_000 < look_up.most_ns


@pytest.mark.parametrize(
    "kind",
    [
        {"by": "mask", "numbers": "[30000]"},
        {"by": "places", "numbers": "[20000]"},
        {"adds": 150.0},
        {"adds": 30.0},
    ],
    ids=["a mask", "where a mask is set", "hardly any twice", "each once"],
)
def test_masks_and_numbers_without_much_repetition_are_no_look_ups(kind: dict[str, Any], tmp_path: Path) -> None:
    every = found(tmp_path, **kind)
    assert not [f for f in every if "numbers pick" in f.title]
    assert bool(every) == ("by" in kind), "what a mask picks is a mask's still, and what numbers pick is not"


def test_a_line_that_does_not_tell_its_index_gets_the_general_form(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, {LINE: "return self.pick(rows, inverse)"})
    assert finding.paste == "rows = x.index_select(0, index)  # not x[index]"


ROWS = PickedRows(0, (300, 8), (4000,), 0)


@pytest.mark.parametrize(
    ("text", "picked", "new"),
    [
        ("return rows[inverse]", ROWS, "return F.embedding(inverse, rows)"),
        ("y = self.norm(x[batch.index]) + b", ROWS, "y = self.norm(F.embedding(batch.index, x)) + b"),
        ("m = mlp(torch.cat([h[src], h[dst]], -1))", ROWS, "m = mlp(torch.cat([F.embedding(src, h), F.embedding(dst, h)], -1))"),
        ("y = self.layers[n](x)[index]", ROWS, "y = F.embedding(index, self.layers[n](x))"),
        ("y = x[:, index]", PickedRows(0, (4, 300, 8), (4000,), 1), "y = x.index_select(1, index)"),
        ("y = x[index]", PickedRows(0, (300, 4, 8), (4000,), 0), "y = x.index_select(0, index)"),
        ("y = x[index]", PickedRows(0, (300, 4, 8), (40, 100), 0), "y = x.index_select(0, index.flatten()).unflatten(0, index.shape)"),
        ("y = (a + b)[index]", ROWS, "y = F.embedding(index, (a + b))"),
        ("y = x[keep > 0]", ROWS, None),
        ("y = x[1:]", ROWS, None),
        ("y = a[i] + b[index]", ROWS, None),
        ("y = tables[name][index]", ROWS, None),
        ("x[index] = y", ROWS, None),
        ("y = (x[index]", ROWS, None),
    ],
)  # fmt: skip
def test_the_line_is_written_anew(text: str, picked: PickedRows, new: str | None) -> None:
    line = with_look_ups(text, picked, 2 if "src" in text or "a[i]" in text else 1)
    assert line == new if new is None else (line or "").startswith(f"{new}  # not ")


@pytest.mark.parametrize("select", [False, True])
@pytest.mark.parametrize(
    "text",
    ["y = x[index]", "y = wide[index]", "y = wide[many]", "y = batch[:, index]", "y = x[many]", "y = (x + x)[index]"],
)
def test_the_new_line_gives_the_same_with_the_same_gradient(text: str, select: bool) -> None:
    torch.manual_seed(1)
    names: dict[str, Any] = {
        "x": torch.randn(30, 8), "wide": torch.randn(30, 4, 8), "batch": torch.randn(3, 30, 8),
        "index": torch.randint(30, (200,)), "many": torch.randint(30, (20, 10)), "F": F,
    }  # fmt: skip
    rows, numbers = text[4:].split("[")[0].partition(" ")[0].strip("("), "many" if "many" in text else "index"
    size = tuple(names[rows].shape)
    dimension = 1 if ":" in text else 0
    line = with_look_ups(text, PickedRows(0, size, tuple(names[numbers].shape), dimension), select=select)
    assert line is not None
    results = []
    for each in (text, line):
        leaf = names[rows].clone().requires_grad_()
        local = names | {rows: leaf}
        exec(each, {}, local)
        (local["y"] ** 2).sum().backward()
        results.append((local["y"], leaf.grad))
    for before, after in zip(*results, strict=True):
        torch.testing.assert_close(before, after)


@pytest.mark.parametrize(
    ("called", "rows"),
    [
        ([("index", 1, (-1, -1), "[300, 8], [4000]")], (300, 4000, 8)),
        ([("index", 1, (-1, -1, -1), "[4, 300, 8], [], [4000]"), ("sum", 2, (1,), "[4, 4000, 8]")], (1200, 16_000, 8)),
        ([("index", 1, (-1, -1, -1), "[4, 300, 8], [50], [50]"), ("sum", 2, (1,), "[50, 8]")], None),
        ([("nonzero", 3, (-1,), "[40, 40]"), ("unbind", 4, (3,), "[900, 2]"), ("index", 1, (-1, 4), "[40, 8], [900]")], (40, 900, 8)),
    ],
    ids=["rows", "of a batch", "by two", "edges"],
)  # fmt: skip
def test_what_numbers_pick_by_sizes(called: list[Called], rows: tuple[int, int, int] | None) -> None:
    indexed = indexed_by_number(flow_of_called(*called))
    assert [(each.rows, each.picked, each.width) for each in indexed.picks] == ([rows] if rows else [])
    assert indexed.operators
