"""Products of matrices that another form gives with less work, and those that are as small as they can be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.product_forms import ProductForm, product_forms
from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_smaller_operators import LINE, operator

SOURCE = {LINE: "y = (q @ k.T) @ v"}
#: Of an operator its name, number, what made its arguments and their sizes; -1 is older than the step.
Called = tuple[str, int, tuple[int, ...], str]
LINEAR = [("linear", n, (-1, -1), "[4096, 512], [64, 512]") for n in (1, 2, 3)]
SCORES: Called = ("mm", 5, (1, 4), "[4096, 64], [64, 4096]")
TURNED: Called = ("t", 4, (2,), "[4096, 64]")
MIXED: Called = ("mm", 7, (6, 3), "[4096, 4096], [4096, 64]")


def flow_of_called(*called: Called) -> OperatorFlow:
    """Return the flow of operators of which none lies in another."""
    names, numbers, made, size = zip(*called, strict=True)
    starts = 10 * np.arange(len(called), dtype=np.int64)
    return OperatorFlow(
        [f"aten::{name}" for name in names], numbers, made=made, size=size, calls=(), start_ns=starts, end_ns=starts + 5
    )


def forms(*called: Called) -> list[ProductForm]:
    """Return the forms of operators of which none lies in another."""
    return product_forms(flow_of_called(*called))


def test_a_chain_takes_fewer_operations_in_the_other_order() -> None:
    (form,) = forms(*LINEAR, TURNED, SCORES, ("div", 6, (5, -1), "[4096, 4096], []"), MIXED)
    # 64 x 4096 times 4096 x 64, and 4096 x 64 times 64 x 64.
    assert (form.kind, form.operations) == ("order", 2 * 64 * 64 * (4096 + 4096))
    assert form.rows == {4, 5, 6} and (form.before, form.after) == ("4096 x 4096", "64 x 64")


SUMS: Called = ("sum", 8, (5, -1, -1), "[4096, 4096], [], []")
ABOVE_ZERO: Called = ("add", 9, (8, -1, -1), "[4096, 1], [], []")
NORMALIZED: Called = ("div", 6, (5, 9), "[4096, 4096], [4096, 1]")


def test_rows_may_be_scaled_and_summed_in_between() -> None:
    (form,) = forms(*LINEAR, TURNED, SCORES, SUMS, ABOVE_ZERO, NORMALIZED, MIXED)
    assert (form.operations, form.rows) == (2 * 64 * 64 * (4096 + 4096), {4, 5, 7, 8})
    columns = ("mul", 6, (9, 5), "[4096], [4096, 4096]")
    assert forms(*LINEAR, TURNED, SCORES, ("view", 9, (-1, -1), "[4096, 1], []"), columns, MIXED)
    # A sum over all products of a batch, which another order does not give, and a quotient whose lower half the products are.
    assert not forms(*LINEAR, TURNED, SCORES, SUMS, ("mm", 9, (8, -1), "[4096, 4096], [4096, 8]"), NORMALIZED, MIXED)
    assert not forms(*LINEAR, TURNED, SCORES, ("div", 6, (9, 5), "[4096, 1], [4096, 4096]"), MIXED)


BATCHED = [
    ("linear", 1, (-1, -1), "[8, 4096, 512], [64, 512]"),
    ("transpose", 4, (1, -1, -1), "[8, 4096, 64], [], []"),
    ("bmm", 5, (1, 4), "[8, 4096, 64], [8, 64, 4096]"),
]


def test_a_batch_of_chains_and_its_transpose() -> None:
    (form,) = forms(*BATCHED, ("bmm", 7, (5, 1), "[8, 4096, 4096], [8, 4096, 64]"))
    assert form.operations == 2 * 8 * 64 * 64 * (4096 + 4096)
    turned = ("transpose", 6, (5, -1, -1), "[8, 4096, 4096], [], []")
    (form,) = forms(*BATCHED, turned, ("bmm", 7, (6, 1), "[8, 4096, 4096], [8, 4096, 64]"))
    assert form.rows == {2, 3, 4}


@pytest.mark.parametrize(
    "called",
    [
        [*LINEAR, TURNED, SCORES, ("softmax", 6, (5, -1, -1), "[4096, 4096], [], []"), MIXED],
        [*LINEAR, TURNED, SCORES, ("div", 6, (5, -1), "[4096, 4096], []"), MIXED, ("sum", 8, (5,), "[4096, 4096]")],
        [*LINEAR, TURNED, SCORES, ("mul", 6, (5, -1), "[4096, 4096], [4096, 4096]"), MIXED],  # by a mask
        # The other order already, and wide layers one behind another, whose weights are another network together.
        [*LINEAR, TURNED, ("mm", 5, (4, 3), "[64, 4096], [4096, 64]"), ("mm", 6, (1, 5), "[4096, 64], [64, 64]")],
        [*LINEAR, ("mm", 5, (1, -1), "[4096, 64], [64, 4096]"), ("mm", 6, (5, -1), "[4096, 4096], [4096, 64]")],
        [*LINEAR, ("addmm", 5, (-1, 1, -1), "[64], [4096, 64], [64, 64]"), ("mm", 6, (5, 4), "[4096, 64], [64, 4096]")],
    ],
    ids=["softmax", "read again", "masked", "best order", "weights", "bias"],
)
def test_what_needs_its_order(called: list[Called]) -> None:
    assert not forms(*called)


def test_a_diagonal_matrix_only_scales() -> None:
    scale = [("linear", 1, (-1, -1), "[4096, 512], [512, 512]"), ("diag", 2, (-1, -1), "[512], []")]
    (form,) = forms(*scale, ("mm", 3, (1, 2), "[4096, 512], [512, 512]"))
    assert (form.kind, form.operations, form.numbers) == ("diagonal", 0, 2 * 4096 * 512) and form.rows == {1, 2}
    assert not forms(*scale[:1], ("mm", 3, (1, -1), "[4096, 512], [512, 512]"))


X: Called = ("linear", 1, (-1, -1), "[4096, 512], [1024, 512]")
TIMES: Called = ("mm", 9, (3, 1), "[4096, 4096], [4096, 1024]")


@pytest.mark.parametrize(
    ("kind", "operations", "called"),
    [
        ("picked", 0, [X, ("eye", 2, (-1,), "[]"), ("index", 3, (2, -1), "[4096, 4096], [4096]"), TIMES]),
        ("picked", 0, [X, ("one_hot", 2, (-1, -1), "[4096], []"), ("to", 3, (2, -1), "[4096, 4096], []"), TIMES]),
        ("picked", 0, [X, ("zeros", 2, (-1,), "[]"), ("scatter_", 3, (2, -1, -1, -1), "[4096, 4096], [], [4096, 1], []"), TIMES]),
        ("blocks", 2 * 1024 * 2 * 2048 * 2048, [X, ("block_diag", 3, (-1, -1), "[2048, 2048], [2048, 2048]"), TIMES]),
        ("kron", 2 * 1024 * 4096 * (64 + 64), [X, ("kron", 3, (-1, -1), "[64, 64], [64, 64]"), TIMES]),
    ],
)  # fmt: skip
def test_factors_that_are_mostly_zeros_or_repeat(kind: str, operations: int, called: list[Called]) -> None:
    (form,) = forms(*called)
    assert (form.kind, form.operations) == (kind, operations)


ONES: list[Called] = [X, ("one_hot", 2, (-1, -1), "[4096], []"), ("to", 3, (2, -1), "[4096, 1000], []")]


def test_turned_rows_of_a_unit_matrix_add_up_by_number() -> None:
    (form,) = forms(*ONES, ("numpy_T", 4, (3,), "[4096, 1000]"), ("mm", 9, (4, 1), "[1000, 4096], [4096, 1024]"))
    assert (form.kind, form.numbers) == ("added", 2 * 1000 * 1024 + 3 * 4096 * 1024)
    (form,) = forms(*ONES, ("mm", 9, (1, 3), "[1024, 4096], [4096, 1000]"))
    assert form.kind == "added", "from the right"
    (form,) = forms(*ONES, ("mm", 9, (3, -1), "[4096, 1000], [1000, 64]"))
    assert (form.kind, form.numbers) == ("picked", 2 * 4096 * 64)
    square: list[Called] = [X, ("one_hot", 2, (-1, -1), "[4096], []"), ("to", 3, (2, -1), "[4096, 4096], []")]
    (form,) = forms(*square, ("t", 4, (3,), "[4096, 4096]"), ("mm", 9, (4, 1), "[4096, 4096], [4096, 1024]"))
    assert form.kind == "added", "by how often it is turned"


@pytest.mark.parametrize(
    "called",
    [
        # A few classes: the product reads no more than the rows.
        [X, ("one_hot", 2, (-1, -1), "[4096], []"), ("t", 3, (2,), "[4096, 8]"), ("mm", 9, (3, 1), "[8, 4096], [4096, 1024]")],
        # Weighted, as experts are mixed.
        [*ONES, ("mul", 4, (3, -1), "[4096, 1000], [4096, 1]"), ("mm", 9, (4, -1), "[4096, 1000], [1000, 64]")],
        # Summed in a loss, without a product.
        [*ONES, ("mul", 4, (3, -1), "[4096, 1000], [4096, 1000]"), ("sum", 9, (4, -1), "[4096, 1000], []")],
        # A mask by two tensors, and numbers of which several are the same.
        [X, ("eq", 3, (-1, -1), "[4096, 1], [4096]"), TIMES],
        [X, ("arange", 2, (-1,), "[]"), ("eq", 3, (-1, 2), "[4096, 4096], [4096]"), TIMES],
    ],
    ids=["few classes", "weighted", "in a loss", "a mask", "all pairs"],
)  # fmt: skip
def test_products_that_no_number_replaces(called: list[Called]) -> None:
    assert not [form for form in forms(*called) if form.kind in ("picked", "added")]


def test_numbers_beside_all_classes_are_rows_of_a_unit_matrix() -> None:
    by_number: Called = ("eq", 3, (-1, 2), "[4096, 1], [4096]")
    assert [form.kind for form in forms(X, ("arange", 2, (-1,), "[]"), by_number, TIMES)] == ["picked"]


def test_several_ones_in_a_row_are_no_rows_of_a_unit_matrix() -> None:
    scattered: Called = ("scatter_", 3, (2, -1, -1, -1), "[4096, 4096], [], [4096, 8], []")
    assert not forms(X, ("zeros", 2, (-1,), "[]"), scattered, TIMES)
    assert not forms(X, ("index", 3, (-1, -1), "[4096, 4096], [4096]"), TIMES)


KEYS: list[Called] = [
    ("unsqueeze", 1, (-1, -1), "[16, 4, 2048, 64], []"),
    ("expand", 2, (1, -1, -1), "[16, 4, 1, 2048, 64], [], []"),
    ("reshape", 3, (2, -1), "[16, 4, 8, 2048, 64], []"),
]
ATTENTION: Called = (
    "scaled_dot_product_attention", 5, (-1, 3, -1), "[16, 32, 2048, 64], [16, 32, 2048, 64], [16, 32, 2048, 64]"
)  # fmt: skip


def copied(*behind: Called) -> list[ProductForm]:
    """Return the forms of keys that are repeated for each head of the query by a reshape, in which a copy lies."""
    names, numbers, made, size = zip(*KEYS, ("clone", 4, (2,), "[]"), *behind, strict=True)
    starts = np.array([0, 10, 20, 22, *range(30, 30 + 10 * len(behind), 10)], np.int64)
    ends = starts + np.array([5, 5, 8, 2, *[5] * len(behind)])
    flow = OperatorFlow(
        [f"aten::{name}" for name in names], numbers, made=made, size=size, calls=(), start_ns=starts, end_ns=ends
    )
    return product_forms(flow)


def test_copies_of_what_repeats_are_views_to_what_broadcasts() -> None:
    (form,) = copied(ATTENTION)
    assert form.kind == "repeated" and form.rows == {2} and form.numbers == 16 * 4 * 2048 * 64
    assert not copied(ATTENTION, ("cat", 6, (3,), "[16, 32, 2048, 64]")), "what is put beside others has to be there"
    assert not copied(), "nobody reads it in the step"
    tiled: Called = ("repeat", 1, (-1, -1), "[1, 512], []")
    assert [form.kind for form in forms(tiled, ("add", 2, (-1, 1), "[4096, 512], [4096, 512]"))] == ["repeated"]
    each: Called = ("repeat_interleave", 1, (-1, -1), "[100, 512], [100]")
    assert not forms(each, ("add", 2, (-1, 1), "[4096, 512], [4096, 512]")), "as often as a tensor says"


def transformed(*between: Called, half: str = "") -> list[str]:
    """Return the kinds of forms of a transform (whole unless ``half``), a product with a filter and the transform back."""
    called = [
        (f"fft_{half}fft2", 1, (-1, -1), "[64, 512, 512], []"),
        ("_fft_r2c", 2, (-1, -1), "[64, 512, 512], []"),
        ("mul", 3, (1, -1), "[64, 512, 512], [512, 512]"),
        *between,
        (f"fft_i{half}fft2", 4, (3, -1), "[64, 512, 512], []"),
    ]
    names, numbers, made, size = zip(*called, strict=True)
    starts = np.array([0, 2, *range(10, 10 * len(called) - 10, 10)], np.int64)
    ends = starts + np.array([8, 2, *[5] * (len(called) - 2)])
    flow = OperatorFlow(
        [f"aten::{name}" for name in names], numbers, made=made, size=size, calls=(), start_ns=starts, end_ns=ends
    )
    return [form.kind for form in product_forms(flow)]


def test_of_a_whole_transform_of_real_numbers_a_half_is_enough() -> None:
    assert transformed() == ["transform"]
    assert not transformed(half="r")
    assert not transformed(("angle", 5, (1,), "[64, 512, 512]")), "the whole spectrum is read"


PAIRS: Called = ("mul", 1, (-1, -1), "[4096, 512, 1], [512, 512]")


def test_products_and_distances_of_all_pairs_are_written_out() -> None:
    (form,) = forms(PAIRS, ("sum", 2, (1, -1), "[4096, 512, 512], []"))
    assert (form.kind, form.operations, form.rows) == ("products", 2 * 4096 * 512 * 512, {0, 1})
    apart: Called = ("sub", 1, (-1, -1), "[900, 1, 64], [1, 800, 64]")
    (form,) = forms(apart, ("pow", 2, (1, -1), "[900, 800, 64], []"), ("sum", 3, (2, -1), "[900, 800, 64], []"))
    assert form.kind == "distances" and form.rows == {0, 1, 2}
    (form,) = forms(apart, ("linalg_vector_norm", 2, (1, -1), "[900, 800, 64], []"))
    assert form.kind == "distances"


@pytest.mark.parametrize(
    "called",
    [
        [PAIRS, ("sum", 2, (1, -1), "[4096, 512, 512], []"), ("exp", 3, (1,), "[4096, 512, 512]")],
        [PAIRS, ("relu", 2, (1,), "[4096, 512, 512]"), ("sum", 3, (2, -1), "[4096, 512, 512], []")],
        [("mul", 1, (-1, -1), "[64, 512, 256], [64, 512, 1]"), ("sum", 2, (1, -1), "[64, 512, 256], []")],  # pooling by weights
        [("sub", 1, (-1, -1), "[900, 1, 64], [1, 800, 64]"), ("abs", 2, (1,), "[900, 800, 64]"), ("sum", 3, (2,), "[900, 800, 64]")],
    ],
    ids=["read again", "another function", "weights", "absolute"],
)  # fmt: skip
def test_what_no_product_gives(called: list[Called]) -> None:
    assert not forms(*called)


def mixing(program: Lined, step: int, *, softmax: bool) -> None:
    """Scores of 4096 x 4096 (600 us), and values weighed by them (600 us), behind 100 us of other work."""
    at = 1000 * step + 10
    with program.line(LINE), program.range("forward"), program.range("net:Net"):
        operator(program, "linear", at, [-1, -1], "[64, 4096, 64], [64, 64]", 100)
        operator(program, "transpose", at + 1, [at, -1, -1], "[64, 4096, 64], [], []")
        operator(program, "bmm", at + 2, [at, at + 1], "[64, 4096, 64], [64, 64, 4096]", 600)
        if softmax:
            operator(
                program, "softmax", at + 3, [at + 2, -1], "[64, 4096, 4096], []", 300, "softmax_warp_forward<float>"
            )
        made = at + 3 if softmax else at + 2
        operator(program, "bmm", at + 4, [made, at], "[64, 4096, 4096], [64, 4096, 64]", 600)
    program.sync()


def other_order(folder: Path, *, softmax: bool) -> list[Finding]:
    program = Lined(SOURCE).run(lambda program, step: mixing(program, step, softmax=softmax))
    return [f for f in program.found(folder, "NSX131") if "other-order" in [way.name for way in f.remedies]]


def test_the_other_order_is_advised_with_its_line_and_its_limits(tmp_path: Path) -> None:
    (found,) = other_order(tmp_path, softmax=False)
    assert found.where["line"] == LINE and "4096 x 4096" in found.title and "64 x 64" in found.title
    # What comes instead moves 64 x 4096 x 64 numbers of 16 bits a few times: 50 to 200 us of 1,200.
    assert found.saving_ns_per_step is not None and 950_000 < found.saving_ns_per_step < 1_180_000
    assert found.cost_ns_per_step == pytest.approx(1_200_000, rel=0.02)


def test_with_a_softmax_between_the_order_stays(tmp_path: Path) -> None:
    assert not other_order(tmp_path, softmax=True)


def counting(program: Lined, step: int) -> None:
    """A network (300 us) whose rows a product with turned one-hot rows (1500 us) adds up by their number."""
    at = 1000 * step + 10
    with program.range("forward"), program.range("net:Net"):
        operator(program, "linear", at, [-1, -1], "[65536, 512], [512, 512]", 300)
    with program.line(LINE):
        operator(program, "one_hot", at + 1, [-1, -1], "[65536], []", 20)
        operator(program, "numpy_T", at + 2, [at + 1], "[65536, 4096]")
        operator(program, "mm", at + 3, [at + 2, at], "[4096, 65536], [65536, 512]", 1500)
    operator(program, "mul", at + 4, [at + 3, -1], "[4096, 512], []", 20)
    program.sync()


def test_rows_are_added_up_by_number_in_place_of_a_product(tmp_path: Path) -> None:
    found = Lined({LINE: "sums = ones.T @ x"}).run(counting).found(tmp_path, "NSX131")
    (finding,) = [f for f in found if [way.name for way in f.remedies] == ["added-by-number"]]
    assert finding.where["line"] == LINE and "4096 x 65536" in finding.title and "index_add" in finding.paste
    # At the limit of memory it takes a fortieth of it, at most three tenths.
    assert 0.7 * 1520_000 < finding.saving_ns_per_step < 1520_000
