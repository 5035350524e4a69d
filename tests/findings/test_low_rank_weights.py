"""NSX131: weights that each call puts together of a frozen one and a product of small rank, and weights that are trained whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nsysx.findings._low_rank_weights import named_terms, small_products
from nsysx.model import Finding
from tests.findings.test_added_reductions import Both
from tests.findings.test_smaller_operators import GEMM

MAKES, MULTIPLIES = 31, 33
SOURCE = {MAKES: "w = self.base + self.scale * (self.B @ self.A)", MULTIPLIES: "return F.linear(x, w)"}
ADDS = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >(int)"
W, ROWS = "[4096, 4096]", "[8192, 4096]"


def step(program: Both, number: int, kind: str) -> None:
    """A layer (500 us, its gradients 500 us each) whose weight is put together by a product, a factor and a sum (50 us each)."""
    at = 1000 * number + 10

    def numbered(name: str, which: int, made: list[int], sizes: str, us: float, kernel: str = GEMM) -> None:
        begin = program.t
        program.host(5)
        program.launch(us, kernel)
        if program.noted is not None:
            makers = ", ".join(f"({max(each, 0)},{-1 if each < 0 else 0})" for each in made)
            seq = f"seq = {at + which}, "
            text = f"aten::{name}, {seq}op_id = {at + which}, sizes = [{sizes}], input_op_ids = [{makers}]"
            program.main.add_range(text, begin, program.t)

    def node(name: str, which: int, *us: float) -> None:
        begin = program.t
        for each in us:
            program.launch(each, GEMM if name.startswith("Mm") else ADDS)
        program.node(f"{name}, seq = {at + which}", begin)

    with program.range("forward"), program.range("net:Net"):
        with program.line(MAKES, "LoRALinear.forward"):
            rank = "[4096, 16], [16, 4096]" if kind != "large rank" else f"{W}, {W}"
            numbered("mm", 1, [-1, -1], rank, 50)
            numbered("mul", 2, [at + 1, -1], f"{W}, []", 50, ADDS)
            numbered("add", 3, [-1, at + 2, -1], f"{W}, {W}, []", 50, ADDS)
        with program.line(MULTIPLIES, "LoRALinear.forward"):
            numbered("t", 4, [at + 3], W, 0.1)
            numbered("mm", 5, [-1, at + 4], f"{ROWS}, {W}", 500)
    if kind != "not trained":
        with program.backward():
            node("MmBackward0", 5, 510, 490)
            node("AddBackward0", 3, 1)
            node("MulBackward0", 2, 50)
            node("MmBackward0", 1, 30, 30)
            sizes = W if kind == "trained whole" else "[16, 4096]"
            program.node(f"torch::autograd::AccumulateGrad, op_id = {at + 60}, sizes = [{sizes}]", program.t - 1)
    program.sync()


def found(folder: Path, kind: str = "") -> list[Finding]:
    program = Both()
    program.source = {str(line): text for line, text in SOURCE.items()}
    program.run(lambda program, number: step(program, number, kind))  # type: ignore[arg-type]
    return [f for f in program.found(folder, "NSX131") if "added-behind-products" in [way.name for way in f.remedies]]


def test_the_gradient_of_a_whole_weight_goes(tmp_path: Path) -> None:
    (finding,) = found(tmp_path)
    assert finding.where["line"] == MAKES and "rank 16" in finding.title and "4096 x 4096" in finding.title
    # Three kernels, their gradients, and that of the weight.
    assert finding.cost_ns_per_step == pytest.approx(150_000 + 111_000 + 490_000, rel=0.02)
    # What comes instead moves 3.3 rows of 4,096 numbers there and back, three times: 0.7 GB, 0.14 ms at the least.
    assert 250_000 < (finding.saving.likely_ns or 0) < 610_000
    assert "self.base" in finding.paste and "self.B.t()" in finding.paste and "* self.scale" in finding.paste


@pytest.mark.parametrize("kind", ["large rank", "trained whole", "not trained"])
def test_weights_that_have_to_be_made(kind: str, tmp_path: Path) -> None:
    assert not found(tmp_path, kind)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("w = base + scale * (B @ A)", "F.linear(x, w)"),
        ("w = (B @ A) * scale + base", "F.linear(x, w)"),
        ("w = base + B @ A", "F.linear(x, w)"),
        ("w = base + B.t().t() @ A * scale", "F.linear(x, w)"),
        ("w = L @ R * scale + other", "x @ w"),
    ],
)
def test_the_paste_makes_the_same_with_the_same_gradients(text: str, made: str) -> None:
    torch.manual_seed(1)
    names: dict[str, Any] = {
        "F": F, "torch": torch, "scale": 0.5, "x": torch.randn(3, 5, 12, requires_grad=True),
        "base": torch.randn(8, 12), "A": torch.randn(2, 12, requires_grad=True), "B": torch.randn(8, 2, requires_grad=True),
        "other": torch.randn(12, 8), "L": torch.randn(12, 2, requires_grad=True), "R": torch.randn(2, 8, requires_grad=True),
    }  # fmt: skip
    names |= {
        name: each.detach().double().requires_grad_(each.requires_grad)
        for name, each in names.items()
        if torch.is_tensor(each)
    }
    terms = named_terms(text)
    assert terms is not None
    leaves = [names[n] for n in ("x", *(("L", "R") if "L" in text else ("A", "B")))]
    exec(f"{text}\nwanted = {made}\n{small_products(*terms, turned='linear' in made)}", names)
    torch.testing.assert_close(names["y"], names["wanted"])
    theirs = (torch.autograd.grad(names[n].square().sum(), leaves) for n in ("y", "wanted"))
    for one, other in zip(*theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "text", ["w = self.base + delta", "w = base - B @ A", "w = merged(", "def put_together(self):"]
)
def test_lines_that_name_no_factors(text: str) -> None:
    assert named_terms(text) is None
