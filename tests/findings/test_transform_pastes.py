"""Statements with transforms of real numbers in place of whole ones: they run, and give the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nsysx.findings._transform_pastes import halved

LONG = """
spectrum = torch.fft.fft(u, n=n) * torch.fft.fft(k, n=n)
y = torch.fft.ifft(spectrum, n=n).real[..., :length]
"""
OWN_LENGTH = """
y = torch.fft.ifft(torch.fft.fft(u) * torch.fft.fft(k).conj()).real
"""
ALONG_ROWS = """
a = torch.fft.fft(u, dim=-2)
b = 2 * a
y = torch.fft.ifft(b, dim=-2).real
"""
PICTURES = """
y = torch.fft.ifft2(torch.fft.fft2(u, norm="ortho") * torch.fft.fft2(k), norm="ortho")
y = y.real
"""


def run(code: str) -> Tensor:
    """Return what statements make of signals of an odd length."""
    torch.manual_seed(0)
    u, k = torch.rand(3, 6, 15), torch.rand(6, 15)
    names = {"u": u, "k": k, "n": 30, "length": 15, "torch": torch}
    exec(code, names)
    y = names["y"]
    assert isinstance(y, Tensor)
    return y


@pytest.mark.parametrize("code", [LONG, OWN_LENGTH, ALONG_ROWS, PICTURES])
def test_the_same_numbers(code: str) -> None:
    paste = halved(dict(enumerate(code.strip().splitlines(), 40)))
    assert "fft.fft" not in paste and "ifft(" not in paste.replace("irfft(", "")
    if code is ALONG_ROWS:
        paste = paste.replace("y =", "b = 2 * a\ny =")  # what stays is not told
    torch.testing.assert_close(run(paste), run(code))


@pytest.mark.parametrize(
    "code",
    [
        "y = torch.fft.ifft(torch.fft.fft(u) * self.kernel).real",  # of the whole length, or already a half
        "y = torch.fft.ifft(spectrum).real",
        "y = ifft(fft(u)).real",  # names that were imported
        "z = torch.fft.fft(f(u))\ny = torch.fft.ifft(z).real",
        "y = torch.fft.ifft(torch.fft.fft(u,",
    ],
)
def test_other_statements_are_left_to_the_program(code: str) -> None:
    assert halved(dict(enumerate(code.splitlines(), 40))) == ""
