"""NSX123: a loop that picks the rows of one group in each round, and works on them, is one finding that leaves one round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import Lined

SOURCE = {
    12: "rows = torch.where(which == e)[0]",
    13: "out[rows] = F.gelu(x[rows] @ w_in) @ w_out",
    14: "out = torch.zeros_like(x)",
    16: "loss = out.sum().item()",
}
ROUNDS = 24
FILL, GATHER, PRODUCT = "vectorized_elementwise_kernel<FillFunctor>", "vectorized_gather_kernel", "sm90_gemm"
Body = Callable[[Lined, int], None]


def picked(program: Lined) -> None:
    for kernel in ("vectorized_elementwise_kernel<CompareEq>", "DeviceSelectSweepKernel"):
        program.host(10)
        program.launch(3, kernel, blocks=40)
    program.copy(1, "DtoH", bytes=8)


def worked(program: Lined, group: int, *, product: bool, sized: bool, whole_us: float) -> None:
    """Four kernels on the rows of a group, and two on all rows."""
    for kernel in (GATHER, PRODUCT if product else "reduce_kernel", GATHER, PRODUCT if product else "reduce_kernel"):
        program.host(10)
        program.launch(5, kernel, blocks=100 + (group if sized else 0))
    for _ in range(2):
        program.host(10)
        program.launch(whole_us, FILL, blocks=4000)


def looping(
    rounds: int = ROUNDS, *, product: bool = True, sized: bool = True, asked: bool = True, whole_us: float = 30
) -> Body:
    """Return a step with a loop over groups. ``sized``: they differ in size. ``asked``: each round asks for its rows."""

    def body(program: Lined, number: int) -> None:
        with program.range("forward"), program.range("net:Net"), program.line(14, "Net.forward"):
            program.launch(100)
            if not asked:
                with program.line(12, "Net.forward"):
                    for _ in range(rounds):
                        picked(program)
            for group in range(rounds):
                if asked:
                    with program.line(12, "Net.forward"):
                        picked(program)
                with program.line(13, "Net.forward"):
                    worked(program, group, product=product, sized=sized, whole_us=whole_us)
        with program.line(16):
            program.sync()

    return body


def found(folder: Path, body: Body) -> dict[object, Finding]:
    """Return what is found, by its line."""
    folder.mkdir(exist_ok=True)
    return {finding.where["line"]: finding for finding in Lined(SOURCE).run(body).found(folder, "NSX123")}


def length_ns(folder: Path, body: Body) -> int:
    folder.mkdir(exist_ok=True)
    summary = Lined(SOURCE).run(body).summary(folder)
    assert summary.unprofiled is not None
    return summary.unprofiled.step_ns


def test_picking_rows_and_working_on_them_is_one_loop(tmp_path: Path) -> None:
    by_line = found(tmp_path / "loop", looping())
    assert len(by_line) == 1
    finding = next(iter(by_line.values()))
    assert [way.name for way in finding.remedies] == ["groups-at-once"]
    assert finding.fix.startswith("Do all 24 rounds of this loop at once: sort the rows by group")
    assert (
        "1 line beside it" in finding.title and "192 launches" in finding.detail and "waits 24 times" in finding.detail
    )
    # Products, and what is done with the picked rows, stay as they are: at least what one round leaves is gone.
    gone = length_ns(tmp_path / "now", looping()) - length_ns(tmp_path / "once", looping(1))
    assert 0.75 * gone <= (finding.saving.likely_ns or 0) <= gone <= 1.1 * (finding.saving.most_ns or 0)


def test_work_on_whole_tensors_in_each_round_goes_where_sizes_tell_it_apart(tmp_path: Path) -> None:
    """Where all groups are of one size nothing tells their rows from the whole."""
    saved = {}
    for sized in (True, False):
        (finding,) = found(tmp_path / str(sized), looping(sized=sized)).values()
        saved[sized] = finding.saving.likely_ns or 0
    whole_ns = 2 * 30_000 * (ROUNDS - 1)
    assert saved[True] - saved[False] == pytest.approx(whole_ns, rel=0.25)


@pytest.mark.parametrize(
    ("body", "remedies"),
    [
        pytest.param(looping(product=False), {"segments-at-once"}, id="rows are summed"),
        pytest.param(looping(asked=False), {"batched-operation", "fixed-shape"}, id="rows are picked before the loop"),
    ],
)
def test_other_loops_are_told_otherwise(body: Body, remedies: set[str], tmp_path: Path) -> None:
    told = {way.name for finding in found(tmp_path, body).values() for way in finding.remedies}
    assert told and told <= remedies
