"""NSX134: slow products whose sizes are no multiples of 16 bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nsysx.findings.nsx134_odd_sizes import odd_size
from tests.analyses.test_operators import GEMM, Torch, summary
from tests.findings import Program
from tests.findings.lined import Lined
from tests.findings.test_smaller_operators import LINE, operator


@pytest.mark.parametrize(
    ("shapes", "number_format", "size"),
    [
        ("[[16384, 1024], [1024, 50257]]", "bf16", 50257),
        ("[[50257], [16384, 1024], [1024, 50257], [], []]", "fp16", 50257),
        ("[[16384, 1024], [1024, 50304]]", "bf16", None),
        ("[[16384, 1024], [1024, 50264]]", "bf16", None),  # a multiple of 8
        ("[[16384, 1024], [1024, 50257]]", "tf32", None),
        ("[[16384, 1024], [1024, 3]]", "bf16", None),  # no size at all for tensor cores
        ("[[4, 96, 65], [4, 65, 64]]", "bf16", 65),
        (None, "bf16", None),
        ("[[1]]", None, None),
    ],
)
def test_sizes_that_tensor_cores_cannot_load(shapes: str | None, number_format: str | None, size: int | None) -> None:
    assert odd_size(shapes, number_format) == size


def head(width: int, us: int) -> Callable[[Program, int], None]:
    """Return a step of one product to a vocabulary that takes so long (2 x 4096^2 x 50,000 operations: 2.1 ms at 788 TFLOP/s)."""

    def body(program: Program, number: int) -> None:
        assert isinstance(program, Torch)
        with (
            program.range("forward"),
            program.range("net:Net"),
            program.op("aten::mm", f"[[4096, 4096], [4096, {width}]]"),
        ):
            program.launch(us, GEMM)

    return body


def test_a_slow_product_of_an_odd_size_is_found_with_the_next_even_one(tmp_path: Path) -> None:
    found = summary(Torch().steps(head(50257, 8_000)), tmp_path)
    (one,) = (f for f in found.findings or () if f.code == "NSX134")
    assert one.verdict == "found" and one.cost_ns_per_step == 8_000_000
    assert "50304" in (one.fix or "") and "50304" in (one.paste or "")
    # At 75 % of the limit of 2.14 ms.
    assert one.saving.likely_ns == pytest.approx(8_000_000 - 2_140_000 / 0.75, rel=0.05)


@pytest.mark.parametrize(("width", "us"), [(50304, 8_000), (50257, 2_600)])
def test_even_or_fast_products_are_clear(width: int, us: int, tmp_path: Path) -> None:
    found = summary(Torch().steps(head(width, us)), tmp_path)
    assert [f.verdict for f in found.findings or () if f.code == "NSX134"] == ["clear"]


def with_time(program: Lined, number: int) -> None:
    """A time put beside 1,024 numbers of each of 16,384 rows, for a layer that takes 2 ms (at best 44 us)."""
    at, rows = 1000 * number + 10, "[16384, 1024]"
    with program.range("forward"), program.range("net:Net"), program.line(LINE):
        operator(program, "tanh", at, [-1], rows, 40, "tanh")
        operator(program, "expand", at + 1, [-1, -1], "[1], []")
        operator(program, "cat", at + 2, [at, at + 1], f"{rows}, [16384, 1]", 60, "copy")
        with program.range("net.l:Linear"):
            operator(program, "addmm", at + 3, [-1, at + 2, -1], "[1024], [16384, 1025], [1025, 1024]", 2_000, GEMM)
    program.sync()


def test_a_size_that_a_narrow_part_makes_odd_becomes_a_layer_for_each_part(tmp_path: Path) -> None:
    program = Lined({LINE: "y = self.l(torch.cat([x, t.expand(x.shape[0], 1)], 1))"}).run(with_time)
    (finding,) = program.found(tmp_path, "NSX134")
    assert [way.name for way in finding.remedies] == ["layer-of-parts"] and finding.where["line"] == LINE
    assert "1025 = 1024 + 1" in finding.fix
    assert finding.paste == (
        "w0, w1 = (part.contiguous() for part in self.l.weight.split([1024, 1], 1))\n"
        "y = F.linear(x, w0) + F.linear(t, w1, self.l.bias)"
    )
