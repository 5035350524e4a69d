"""NSX127: the program's own lines with transforms padded to a length that cuFFT has kernels for, and cut off again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fft import irfft, rfft

from nsysx.findings._padded_transforms import padded_in
from tests.findings import Program
from tests.findings.recorded_programs import recorded

LENGTH, KERNEL = 100, 63
ASSIGNED = [
    "size = x.size(-1) + k.size(-1) - 1",
    "spectrum = torch.fft.rfft(x, n=size) * torch.fft.rfft(k, n=size)",
    "y = torch.fft.irfft(spectrum, n=size)",
]
WRITTEN_OUT = [
    "n = x.shape[-1]",
    "f = torch.fft.rfft(k, 2 * n - 1)",
    "spectrum = torch.fft.rfft(x, 2 * n - 1) * f",
    "y = torch.fft.irfft(spectrum, 2 * n - 1)[..., :n]",
]
#: The length came from elsewhere; rows are transformed along another dimension.
GIVEN = ["f = rfft(x.mT, full, dim=0)", "y = irfft(f * rfft(k, full)[:, None], full, dim=0).mT"]


@pytest.mark.parametrize(
    ("texts", "line", "begin"), [(ASSIGNED, 2, 1), (ASSIGNED, 3, 1), (WRITTEN_OUT, 3, 2), (GIVEN, 2, 1)]
)
def test_the_code_makes_the_same_with_another_length(texts: list[str], line: int, begin: int) -> None:
    padded = padded_in(dict(enumerate(texts, 1)), line)
    assert padded is not None and padded.line == begin
    names: dict[str, Any] = {"torch": torch, "rfft": rfft, "irfft": irfft, "full": LENGTH + KERNEL - 1}
    names |= {"x": torch.randn(2, LENGTH), "k": torch.randn(KERNEL)}
    before, after = dict(names), dict(names)
    exec("\n".join(texts), before)
    exec("\n".join([*texts[: begin - 1], padded.paste]), after)
    assert torch.allclose(before["y"], after["y"], atol=1e-4)
    assert "pow(210, 64, n)" in padded.paste


@pytest.mark.parametrize(
    "text", ["y = torch.fft.rfft(x)", "y = torch.fft.fft(x, None)", "y = convolve(x, k)", "for x in y:"]
)
def test_lines_that_name_no_length(text: str) -> None:
    assert padded_in({1: text}, 1) is None


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(3, 131))

    def forward(self, x: Tensor) -> Tensor:
        return convolved(x, self.kernel)[..., : x.size(-1)]


def convolved(x: Tensor, k: Tensor) -> Tensor:
    size = x.size(-1) + k.size(-1) - 1
    spectrum = torch.fft.rfft(x, n=size) * torch.fft.rfft(k, n=size)
    return torch.fft.irfft(spectrum, n=size)


def test_the_line_that_says_the_length_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Program.launch

    def bluestein(program: Program, us: float, kernel: str = "gemm", **kind: Any) -> None:
        launch(program, us, "void multi_bluestein_fft<256, float>" if "_fft_" in kernel else kernel, **kind)

    monkeypatch.setattr(Program, "launch", bluestein)
    net, x = Convolution(), torch.randn(2, 3, 132)
    program = recorded(
        lambda: net(x).square().mean().backward(), net, __file__, tmp_path, slow=("_fft_r2c", "_fft_c2r")
    )
    (finding,) = (f for f in program.found(tmp_path, "NSX127") if f.evidence[0]["setting"] == "FFT length")
    at = convolved.__code__.co_firstlineno + 1
    assert finding.where["line"] == at
    assert finding.paste.splitlines()[0] == "full = x.size(-1) + k.size(-1) - 1"
    assert finding.paste.splitlines()[-1] == "return torch.fft.irfft(spectrum, n=size)[..., :full]"
    assert "262 is 2 x 131" in finding.detail
