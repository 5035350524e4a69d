"""What comes in place of the work of a line: what goes by the sizes of its operators, and how long what comes takes at the least."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from nsysx.findings import _instead
from nsysx.reading.trace import DeviceLimits
from nsysx.roofline.device_rates import rates_of
from nsysx.roofline.roofline_bounds import ONE_PASS_AT_MOST_TIMES, PRODUCTS_AT_MOST_TIMES

#: An H100: 52 TFLOP/s in FP32, 3.0 TB/s; its cache is left out.
RATES = rates_of("NVIDIA H100 80GB HBM3", DeviceLimits(memory_bandwidth=3_350_000_000_000), {}, None)
FLOAT, HALF = "reduce_kernel<float, int>", "unrolled_elementwise_kernel<c10::BFloat16>"


def rows(*operators: tuple[str, str, str | None, int], kernel: str = FLOAT, lines: bool = True) -> pl.DataFrame:
    """Return rows of (operator, sizes, node of autograd, ns), each with one kernel; those with a node are in the backward."""
    made: list[dict[str, Any]] = [
        {
            "row": n,
            "op": [n],
            "ns": [ns],
            "kernel": kernel,
            "node": node,
            "shapes": shapes,
            "of_lines": lines,
            "operator": name,
        }
        for n, (name, shapes, node, ns) in enumerate(operators)
    ]
    return pl.DataFrame(made, schema_overrides={"node": pl.String})


PAIRS = (
    ("aten::mul", "[[4096, 512, 1], [512, 512]]", None, 2_700_000),
    ("aten::sum", "[[4096, 512, 512], [], [], []]", None, 1_400_000),
    ("aten::tanh", "[[4096, 512]]", None, 5_500),
)


def test_a_product_written_out_goes_for_the_product_and_the_rest_of_its_line_stays() -> None:
    answer = _instead._product(rows(*PAIRS), RATES)
    assert answer is not None
    assert answer.gone["op"].to_list() == [0, 1], "what is done to the result stays"
    assert answer.least_ns == pytest.approx(2 * 4096 * 512 * 512 / 52e12 * 1e9)
    assert answer.most_ns == pytest.approx(PRODUCTS_AT_MOST_TIMES * answer.least_ns)


def test_of_a_product_that_is_trained_the_gradients_come_too() -> None:
    backward = ("aten::mul", "[[4096, 512, 512], [512, 512]]", "MulBackward0", 2_700_000)
    plain, trained = (_instead._product(rows(*each), RATES) for each in (PAIRS, (*PAIRS, backward)))
    assert plain is not None and trained is not None
    assert trained.least_ns == pytest.approx(3 * plain.least_ns) and trained.gone["op"].to_list() == [0, 1, 3]


@pytest.mark.parametrize(
    "shapes", ["[[64, 64], [64, 64]]", "[[64, 64], []]", "[[9, 128, 1], [9, 128, 3]]", "[[3, 64], [2, 64]]"]
)
def test_without_a_result_larger_than_what_it_is_made_of_there_is_no_product(shapes: str) -> None:
    """A remedy by the text of a line does not fit then, whatever else stands in the lines beside it."""
    answer = _instead._product(rows(("aten::mul", shapes, None, 1_000)), RATES)
    assert answer is not None and not answer.fits
    pair = _instead._product(rows(*PAIRS), RATES)
    assert pair is not None and pair.fits


def test_where_sizes_were_not_recorded_nobody_knows_whether_it_is_a_product() -> None:
    assert _instead._product(rows(("aten::mul", "null", None, 1_000)), RATES) is None


ONE_HOT = (
    ("aten::fill_", "[[16384, 20000], []]", None, 800_000),
    ("aten::copy_", "[[16384, 20000], [16384, 20000], []]", None, 1_200_000),
    ("aten::mm", "[[16384, 20000], [20000, 256]]", None, 250_000),
    ("aten::mm", "[[20000, 16384], [16384, 256]]", "MmBackward0", 250_000),
    ("aten::relu", "[[16384, 256]]", None, 9_000),
)


def test_products_with_rows_of_zeros_and_ones_go_for_picked_rows_forward_and_backward() -> None:
    answer = _instead._rows_by_number(rows(*ONE_HOT, kernel=HALF), RATES)
    assert answer is not None and sorted(answer.gone["op"]) == [0, 1, 2, 3]
    moved_ns = 2 * 2 * 16384 * 256 / 3.0e12 * 1e9
    assert answer.least_ns == pytest.approx(2 * moved_ns), "rows read and written, their gradients read and added"


def test_in_a_loss_the_head_is_no_product_with_rows_of_zeros_and_ones() -> None:
    """Its result has their sizes, and so has what its gradients are made of."""
    head = (
        *ONE_HOT[:2],
        ("aten::mm", "[[16384, 256], [256, 20000]]", None, 250_000),
        ("aten::mm", "[[16384, 20000], [20000, 256]]", "MmBackward0", 250_000),
        ("aten::mm", "[[20000, 16384], [16384, 256]]", "MmBackward0", 250_000),
    )
    assert _instead._rows_by_number(rows(*head), RATES) is None


def test_what_was_sorted_is_read_once_at_the_least() -> None:
    answer = _instead._read_once(
        rows(("aten::sort", "[[256, 400000], [], []]", None, 3_900_000), ("aten::neg", "[[256, 10]]", None, 9)), RATES
    )
    assert answer is not None and answer.gone["op"].to_list() == [0]
    assert answer.least_ns == pytest.approx(4 * 256 * 400_000 / 3.0e12 * 1e9)
    assert answer.most_ns == pytest.approx(0.3 * 3_900_000)


#: A layer's normalization of two tensors, and the gradient of one of its operators.
WRITTEN_OUT = (
    ("aten::mean", "[[64, 1024, 1024], [], [], []]", None, 100_000),
    ("aten::sub", "[[64, 1024, 1024], [64, 1024, 1], []]", None, 200_000),
    ("aten::rsqrt", "[[64, 1024, 1]]", None, 3_000),
    ("aten::mul", "[[64, 1024, 1024], [64, 1024, 1]]", None, 200_000),
)


@pytest.mark.parametrize(("gradient", "passes"), [(None, 2), ("MulBackward0", 5)])
def test_what_is_written_out_is_one_kernel_forward_and_one_backward(gradient: str | None, passes: int) -> None:
    """A tensor is read and written for each call; its gradient reads two and writes one."""
    normalized = _instead._BY_REMEDY["library-normalization"]
    more = () if gradient is None else (("aten::mul", "[[64, 1024, 1024], [64, 1024, 1]]", gradient, 300_000),)
    answer = normalized(rows(*WRITTEN_OUT, *WRITTEN_OUT, *more), RATES)
    assert answer is not None and len(answer.gone) == 2 * len(WRITTEN_OUT) + len(more), "all of these lines"
    assert answer.least_ns == pytest.approx(2 * passes * 4 * 64 * 1024 * 1024 / 3.0e12 * 1e9, rel=0.2)
    assert answer.most_ns == pytest.approx(ONE_PASS_AT_MOST_TIMES * answer.least_ns)


def test_lines_that_run_none_of_its_operators_are_no_such_function() -> None:
    normalized = _instead._BY_REMEDY["library-normalization"]
    assert normalized(rows(WRITTEN_OUT[1], WRITTEN_OUT[3]), RATES) is None
