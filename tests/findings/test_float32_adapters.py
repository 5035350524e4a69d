"""NSX116: adapters of float32 beside layers of 16 bits, and those for which nothing is converted, or beside layers of float32."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsysx.findings._adapter_lines import converted
from nsysx.findings._fix import Fix
from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_smaller_operators import GEMM, operator

BASE, ADAPTER, SUM = 11, 12, 13
SOURCE = {
    BASE: "y = self.base(x)",
    ADAPTER: "z = self.B(self.A(x.to(self.A.weight.dtype)))",
    SUM: "return (y + z).to(y.dtype)",
}
SGEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute_kernel__51_cublas"
COPIES = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&), float>(int)"
ADDS = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)"
ROWS = "[8192, 2048]"


def step(program: Lined, number: int, kind: str) -> None:
    """A layer of 1,000 us; conversions of 100 us each, an adapter's products of 150 us each, and a sum of 200 us."""
    at = 1000 * number + 10
    base, small = (SGEMM if kind == "of float32" else GEMM), GEMM if kind == "of 16 bits" else SGEMM
    with program.range("forward"), program.range("net:Net"):
        with program.line(BASE, "Lora.forward"):
            operator(program, "linear", at, [-1, -1], f"{ROWS}, [2048, 2048]", 0)
            operator(program, "mm", at + 1, [-1, -1], f"{ROWS}, [2048, 2048]", 1000, base)
        with program.line(ADAPTER, "Lora.forward"):
            operator(program, "relu" if kind == "not converted" else "to", at + 2, [-1, -1], f"{ROWS}, []", 100, COPIES)
            operator(program, "mm", at + 3, [at + 2, -1], f"{ROWS}, [2048, 16]", 150, small)
            operator(program, "mm", at + 4, [at + 3, -1], "[8192, 16], [16, 2048]", 150, small)
        with program.line(SUM, "Lora.forward"):
            operator(program, "add", at + 5, [at + 1, at + 4, -1], f"{ROWS}, {ROWS}, []", 200, ADDS)
            operator(program, "to", at + 6, [at + 5, -1], f"{ROWS}, []", 100, COPIES)
    program.sync()


FUNCTIONS = {
    BASE: "y = self.base(x)",
    ADAPTER: "h = F.linear(x.to(self.down.dtype), self.down) * self.alpha",
    SUM: "return y + F.linear(h, self.up).to(y.dtype)",
}


def converting_before_the_sum(program: Lined, number: int, columns: int, base: str) -> None:
    """A layer of 600 us beside products of 500 us each by functions; what is converted back (100 us) is added in 16 bits (90 us)."""
    at, made = 1000 * number + 10, f"[8192, {columns}]"
    with program.range("forward"), program.range("net:Net"):
        with program.line(BASE, "Lora.forward"):
            operator(program, "mm", at + 1, [-1, -1], f"{ROWS}, [2048, {columns}]", 600, base)
        with program.line(ADAPTER, "Lora.forward"):
            operator(program, "to", at + 2, [-1, -1], f"{ROWS}, []", 100, COPIES)
            operator(program, "mm", at + 3, [at + 2, -1], f"{ROWS}, [2048, 64]", 500, SGEMM)
            operator(program, "mul", at + 4, [at + 3, -1], "[8192, 64], []", 20, ADDS)
        with program.line(SUM, "Lora.forward"):
            operator(program, "mm", at + 5, [at + 4, -1], f"[8192, 64], [64, {columns}]", 500, SGEMM)
            operator(program, "to", at + 6, [at + 5, -1], f"{made}, []", 100, COPIES)
            operator(program, "add", at + 7, [at + 1, at + 6, -1], f"{made}, {made}, []", 90, ADDS)
    program.sync()


@pytest.mark.parametrize("columns", [2048, 256])  # 256: keys of a few heads
def test_what_is_converted_before_the_sum_is_added_in_16_bits(columns: int, tmp_path: Path) -> None:
    program = Lined(FUNCTIONS).run(lambda program, number: converting_before_the_sum(program, number, columns, GEMM))
    (finding,) = program.found(tmp_path, "NSX116")
    assert finding.cost_ns_per_step == pytest.approx(1_220_000, rel=0.02)  # not the sum itself
    assert finding.paste.splitlines()[:2] == [
        "h = F.linear(x, self.down.to(x.dtype)) * self.alpha  # train.py:12",
        "return y + F.linear(h, self.up.to(h.dtype))  # train.py:13",
    ]


def test_layers_of_float32_beside_such_adapters(tmp_path: Path) -> None:
    program = Lined(FUNCTIONS).run(lambda program, number: converting_before_the_sum(program, number, 2048, SGEMM))
    named = [way.name for finding in program.found(tmp_path, "NSX116") for way in finding.remedies]
    assert "adapters-converted" not in named


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("y = y + (x.float() @ self.a @ self.b).to(y.dtype) * s", "y = y + x @ self.a.to(x.dtype) @ self.b.to(x.dtype) * s"),
        ("z = torch.matmul(drop(x.float()), a.t())", "z = torch.matmul(drop(x), a.t().to(x.dtype))"),
        ("z = self.b(self.a(x.float()))", None),  # layers: their names do not tell what they multiply by
        ("z = F.linear(x.to(device), a, bias)", None),
        ("z = F.linear(s * x.float(), a)", None),  # s may be a number
    ],
)  # fmt: skip
def test_lines_of_products_with_converted_weights(text: str, new: str | None) -> None:
    assert converted(ast.parse(text).body[0]) == new


def found(folder: Path, kind: str = "") -> list[Finding]:
    program = Lined(SOURCE).run(lambda program, number: step(program, number, kind))
    return [f for f in program.found(folder, "NSX116") if "adapters-converted" in [way.name for way in f.remedies]]


def test_activations_are_converted_for_small_weights(tmp_path: Path) -> None:
    (finding,) = found(tmp_path)
    assert finding.where["line"] == ADAPTER and "1 adapter of rank 16" in finding.title
    assert finding.cost_ns_per_step == pytest.approx(700_000, rel=0.02)
    # Both conversions go, half of the products' time, and a quarter of the sum's.
    assert finding.saving.likely_ns == pytest.approx(200_000 + 150_000 + 50_000, rel=0.05)
    assert "A.weight.to(x.dtype)" in finding.paste


@pytest.mark.parametrize("kind", ["of float32", "of 16 bits", "not converted"])
def test_adapters_that_are_as_the_layers_are(kind: str, tmp_path: Path) -> None:
    assert not found(tmp_path, kind)


def test_the_paste_gives_the_same_in_16_bits_and_gradients_in_32() -> None:
    torch.manual_seed(0)
    base, down, up = nn.Linear(64, 64, dtype=torch.bfloat16), nn.Linear(64, 4, bias=False), nn.Linear(4, 64, bias=False)
    x = torch.randn(3, 8, 64, dtype=torch.bfloat16)
    names = {"F": F, "torch": torch, "drop": lambda x: x, "x": x, "A": down, "B": up, "y": base(x), "scale": 2.0}
    exec(Fix.by_name("adapters-converted").paste, names)
    wanted, made = (base(x) + 2.0 * up(down(x.float()))).to(x.dtype), names["y"]
    assert isinstance(made, Tensor) and made.dtype == torch.bfloat16
    torch.testing.assert_close(made, wanted, rtol=0.05, atol=0.05)
    made.float().sum().backward()  # type: ignore[no-untyped-call]
    assert down.weight.grad is not None and down.weight.grad.dtype == torch.float32
