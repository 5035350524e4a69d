"""NSX131: small float32 tensors that make float32 of 16 bits until a product converts it back, and arithmetic whose types are meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nsysx.findings._fix import Fix
from nsysx.findings._promoted_arithmetic import cast_in_text
from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_float32_adapters import SGEMM
from tests.findings.test_smaller_operators import GEMM, operator

NORM, SECOND = 11, 12
SOURCE = {NORM: "return x * self.scale + self.shift", SECOND: "y = self.act(x)"}
_ELEMENTWISE = "void at::native::elementwise_kernel<(int)128, (int)4, void at::native::{}<at::native::{}>(at::TensorIteratorBase &)>(int)"
_OF_FLOAT = "BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>>"
_OF_HALVES = (
    "BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float>>"
)
MIXES = _ELEMENTWISE.format("gpu_kernel_impl", _OF_FLOAT)
WIDE, NARROW = (_ELEMENTWISE.format("gpu_kernel_impl_nocast", kind) for kind in (_OF_FLOAT, _OF_HALVES))
CASTS = (
    "void at::native::vectorized_elementwise_kernel<(int)8, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase &)::"
    "[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)"
)
X, SCALE = "[8, 64, 128, 128]", "[1, 64, 1, 1]"


def product(program: Lined, at: int, made: int, us: float, kernel: str, *, casts: bool) -> None:
    """A convolution under autocast, which converts what it is given (100 us) and its weight (10 us), and is called once more within."""
    begin, size = program.t, f"{X}, [64, 64, 3, 3]"
    if casts:
        operator(program, "to", at + 1, [made], X, 100, CASTS)
        operator(program, "to", at + 2, [-1], "[64, 64, 3, 3]", 10, CASTS)
    operator(program, "conv2d", at + 3, [at + 1 if casts else made, at + 2 if casts else -1], size, us, kernel)
    operator(program, "conv2d", at, [made, -1], size, begin=begin)


def step(program: Lined, number: int, kind: str) -> None:
    """A product of 500 us, a scale of 200, a shift of 150 and an activation of 150 us, and the next product."""
    at = 1000 * number + 10
    kernel, plain = SGEMM if kind == "float32" else GEMM, NARROW if kind == "16 bits" else WIDE
    with program.range("forward"), program.range("net:Net"):
        product(program, at, -1, 500, kernel, casts=False)
        given = at
        with program.line(NORM, "forward"):
            if kind == "on purpose":
                operator(program, "to", at + 9, [at, -1], f"{X}, []", 100, WIDE)
                given = at + 9
            mixed = MIXES if kind not in ("float32", "16 bits", "on purpose") else plain
            operator(program, "mul", at + 10, [given, -1], f"{X}, {SCALE}", 200, mixed)
            operator(program, "add", at + 11, [at + 10, -1, -1], f"{X}, {SCALE}, []", 150, plain)
        with program.line(SECOND, "forward"):
            last = at + 12
            if kind == "wide residual":
                operator(program, "layer_norm", at + 13, [-1], X, 10, WIDE)
                operator(program, "add", last, [at + 11, at + 13], f"{X}, {X}", 150, WIDE)
            else:
                operator(program, "relu", last, [at + 11], X, 150, plain)
            if kind == "on purpose":
                operator(program, "to", at + 14, [last, -1], f"{X}, []", 100, CASTS)
                last = at + 14
        product(program, at + 20, last, 500, kernel, casts=kind in ("", "wide residual"))
    program.sync()


def found(folder: Path, kind: str = "", source: dict[int, str] = SOURCE) -> list[Finding]:
    program = Lined(source).run(lambda program, number: step(program, number, kind))
    return [f for f in program.found(folder, "NSX131") if "small-tensors-cast" in [way.name for way in f.remedies]]


def test_a_scale_of_float32_makes_all_behind_it_float32(tmp_path: Path) -> None:
    (finding,) = found(tmp_path)
    assert finding.where["line"] == NORM and "1 time a step" in finding.title and not finding.saving.bound
    # The conversion of what the product is given goes, that of its weight stays.
    assert finding.cost_ns_per_step == pytest.approx(600_000, rel=0.02)
    assert finding.saving.likely_ns == pytest.approx(100_000 + 0.45 * 500_000, rel=0.05)
    assert finding.saving.most_ns == pytest.approx(100_000 + 0.55 * 500_000, rel=0.1)
    assert finding.paste.startswith("return x * self.scale.to(x.dtype) + self.shift.to(x.dtype)  # train.py:11")


@pytest.mark.parametrize("kind", ["float32", "16 bits", "on purpose", "wide residual"])
def test_arithmetic_whose_types_are_meant(kind: str, tmp_path: Path) -> None:
    """A network of float32, one that casts its scales, a norm in float32 on purpose, a stream that is of float32 anyway."""
    assert not found(tmp_path, kind)


def test_a_line_that_does_not_tell_its_small_tensors_is_told_in_general_words(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "", {**SOURCE, NORM: "return affine(x, self.scale, self.shift)"})
    assert finding.paste == Fix.by_name("small-tensors-cast").paste


@pytest.mark.parametrize(
    ("text", "small", "cast"),
    [
        ("y = x * w", [1], "y = x * w.to(x.dtype)"),
        ("y = w * x", [0], "y = w.to(x.dtype) * x"),
        ("return (x - self.mean) / self.std", [1, 1], "return (x - self.mean.to(x.dtype)) / self.std.to(x.dtype)"),
        (
            "return (x - self.mean) / self.std",
            [1, 1, 1, 1],
            "return (x - self.mean.to(x.dtype)) / self.std.to(x.dtype)",
        ),
        ("return self.inner(x) * self.scale", [1], ""),
        ("return x * self.scale + self.shift", [1], ""),
        ("return x * self.scale +", [1], ""),
    ],
)
def test_the_operands_that_are_small_are_cast(text: str, small: list[int], cast: str) -> None:
    assert cast_in_text(text, small) == cast


def test_the_paste_keeps_16_bits() -> None:
    torch.manual_seed(0)
    x, scale, shift = torch.randn(4, 8, dtype=torch.bfloat16), torch.rand(8), torch.rand(8)
    body = Fix.by_name("small-tensors-cast").paste
    names: dict[str, torch.Tensor] = {}
    exec(f"def norm(x, scale, shift):\n    {body}\n", names)
    made = names["norm"](x, scale, shift)  # type: ignore[operator]
    assert made.dtype == torch.bfloat16 and (x * scale + shift).dtype == torch.float32
    torch.testing.assert_close(made.float(), x * scale + shift, rtol=0.05, atol=0.05)
