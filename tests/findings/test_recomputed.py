"""What a compiled backward repeats of the forward, by the operations of both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nsysx.findings._recomputed import repeated_share
from nsysx.pipeline import ReadingOptions, gather
from tests.analyses.test_operators import GEMM, Torch
from tests.findings import Program


def compiled(products: int) -> Callable[[Program, int], None]:
    """Return a step of two compiled products forward and so many in the backward."""

    def body(program: Program, number: int) -> None:
        assert isinstance(program, Torch)

        def product() -> None:
            with program.op("aten::mm", "[[1000, 1000], [1000, 1000]]"):
                program.launch(100, GEMM)

        with program.range("forward"), program.range("net:Net"), program.op("CompiledFunction"):
            product()
            product()
        with program.range("backward"), program.op("CompiledFunctionBackward"):
            for _ in range(products):
                product()

    return body


@pytest.mark.parametrize(("products", "share"), [(4, 0.0), (3, 0.0), (6, 1.0), (5, 0.5)])
def test_what_is_more_than_two_gradients_is_repeated(products: int, share: float, tmp_path: Path) -> None:
    Torch().steps(compiled(products)).report.write(tmp_path / "r.sqlite")
    assert repeated_share(gather(tmp_path / "r.sqlite", ReadingOptions())) == pytest.approx(share)
