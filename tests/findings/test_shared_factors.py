"""One matrix that several operators factorize, and the gradients of a forward that lies in the step before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from nsysx.events.earlier_nodes import numbers_in_flow
from nsysx.events.operator_flow import OperatorFlow
from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_smaller_operators import operator

FACTOR, SOLVE = "void getrf_pivot<float>(T1)", "void trsm_left_kernel<float>(T1)"
LINE = 7


def factorizing(program: Lined, step: int, *, same: bool, read: bool, others: str) -> None:
    """A matrix (50 us); its inverse (a factorization of 400 us, 300 us more), which a product reads, and another operator of 420 us."""
    at, size = 1000 * step + 10, "[1024, 1024]"
    with program.range("forward"), program.range("net:Net"):
        operator(program, "linear", at, [-1, -1], f"{size}, {size}", 50)
        operator(program, "exp", at + 9, [at], size, 10, "vectorized_elementwise_kernel<float>")
    with program.line(LINE):
        begin = program.t + 1
        program.host(2)
        operator(program, "linalg_lu_factor_ex", at + 2, [at + 9], size, 400, FACTOR)
        program.launch(300, SOLVE)
        outer(program, "linalg_inv", at + 1, at + 9, begin, size)
        operator(program, "matmul", at + 3, [at + 1, -1], f"{size}, [1024, 1]", 10)
        if read:
            operator(program, "sum", at + 4, [at + 1], size, 2)
    with program.line(LINE + 2):
        begin, of = program.t + 1, at + 9 if same else at
        program.host(2)
        if others:
            operator(program, others, at + 6, [of], size, 400, FACTOR)
        program.launch(20, SOLVE)
        outer(program, "logdet", at + 5, of, begin, size)
        operator(program, "add", at + 8, [at + 5, at + 3], "[], []", 2)
    program.sync()


def outer(program: Lined, name: str, number: int, made: int, begin: int, size: str) -> None:
    if program.noted is not None:
        label = f"aten::{name}, op_id = {number}, sizes = [{size}], input_op_ids = [({made},0)]"
        program.main.add_range(label, begin, program.t)


def found(folder: Path, *, same: bool = True, read: bool = False, others: str = "linalg_lu_factor_ex") -> list[Finding]:
    source = {LINE: "z = torch.linalg.inv(k) @ y", LINE + 2: "d = torch.logdet(k)"}
    program = Lined(source).run(lambda program, step: factorizing(program, step, same=same, read=read, others=others))
    names = ("factorized-once", "solved-for-inverse")
    return [f for f in program.found(folder, "NSX131") if any(way.name in names for way in f.remedies)]


def test_one_matrix_is_factorized_once(tmp_path: Path) -> None:
    (finding,) = found(tmp_path)
    assert finding.remedies[0].name == "factorized-once" and finding.where["line"] == LINE
    assert "linalg_inv and logdet" in finding.title and "2 times" in finding.title and "train.py:9" in finding.detail
    # 1,120 us go; half of a factorization to a whole one come in their place.
    assert finding.cost_ns_per_step == pytest.approx(1_120_000, rel=0.02)
    assert finding.saving.likely_ns == pytest.approx(1_120_000 - 400_000 / 2**0.5, rel=0.03)


def test_an_inverse_that_is_needed_leaves_its_own_work(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, read=True)
    assert finding.remedies[0].name == "factorized-once"
    assert finding.saving.likely_ns == pytest.approx(400_000, rel=0.03)


@pytest.mark.parametrize("kind", [{"same": False}, {"others": ""}], ids=str)
def test_one_factorization_for_each_matrix_is_none_too_many(tmp_path: Path, kind: dict[str, bool]) -> None:
    (finding,) = found(tmp_path, **kind)  # type: ignore[arg-type]
    assert finding.remedies[0].name == "solved-for-inverse"


def flow(first: int) -> OperatorFlow:
    names = ["aten::exp", "aten::linalg_inv", "aten::matmul", "aten::mv", "aten::add"]
    starts = np.array([0, 10, 20, 22, 30], np.int64)
    return OperatorFlow(
        names, [1, 2, 3, 4, 5], made=[(-1,), (1,), (2, -1), (2, -1), (3,)], size=[""] * 5, calls=(), start_ns=starts,
        end_ns=starts + np.array([5, 5, 8, 2, 5]), sequence=[first, first + 1, first + 2, first + 2, first + 3],
    )  # fmt: skip


def nodes(*names: str, first: int = 100) -> pl.DataFrame:
    return pl.DataFrame({"name": names, "number": [first + i for i in range(len(names))]})


BACKWARD = ("ExpBackward0", "LinalgInvExBackward0", "MvBackward0", "AddBackward0")


def test_nodes_of_the_step_before_are_like_those_of_the_flow() -> None:
    assert numbers_in_flow(nodes(*BACKWARD), flow(104)) == {100: 104, 101: 105, 102: 106, 103: 107}
    with_gaps = nodes(*BACKWARD).filter(pl.col("number") != 102)
    assert numbers_in_flow(with_gaps, flow(104)) == {100: 104, 101: 105, 103: 107}, "not each node is run"
    assert numbers_in_flow(nodes(*BACKWARD), flow(100)) == {}, "they are the flow's own"
    assert numbers_in_flow(nodes(*BACKWARD), flow(500)) == {}, "many steps lie between"
    assert numbers_in_flow(nodes("MulBackward0", "DivBackward0", "SumBackward1", "AddBackward0"), flow(104)) == {}
