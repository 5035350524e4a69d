"""Statements with the channels as the last dimension: they run, give the same numbers, and keep channels_last."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nsysx.findings._layout_pastes import turned

SHIFTED = """
x = x.view(n // t, t, c, h, w)
back, forth, stay = x.split([fold, fold, c - 2 * fold], dim=2)
back = F.pad(back, (0, 0, 0, 0, 0, 0, -1, 1))
forth = F.pad(forth, (0, 0, 0, 0, 0, 0, 1, -1))
x = torch.cat([back, forth, stay], dim=2)
y = x.view(n, c, h, w)
"""
ROLLED = """
z = x.reshape(n // t, t, c, h, w)
a, b = torch.chunk(z, 2, -3)
a = torch.roll(a, shifts=(1, 2), dims=(1, -1))
z = torch.cat((a, b.narrow(2, 0, c // 2)), 2)
y = z.reshape((n, c, h, w))
"""
PADDED = """
z = x.view(n // t, t, c, h, w)
z = F.pad(z, (1, 1, 2, 0))
y = z.view(n, c, h + 2, w + 2)
"""
JOINED_IN_TIME = """
z = x.view(n // t, t, c, h, w)
y = torch.cat([z[:, 1:], z[:, :1]], 1).view(n, c, h, w)
"""


def run(code: str, x: Tensor) -> Tensor:
    """Return what statements make of pictures."""
    names = {"x": x, "n": 8, "t": 4, "c": 16, "h": 6, "w": 5, "fold": 3, "torch": torch, "F": F}
    exec(code, names)
    y = names["y"]
    assert isinstance(y, Tensor)
    return y


@pytest.mark.parametrize("code", [SHIFTED, ROLLED, PADDED, JOINED_IN_TIME])
def test_the_same_numbers_in_channels_last(code: str) -> None:
    lines = dict(enumerate(code.strip().splitlines(), 10))
    paste = turned(lines)
    x = torch.rand(8, 16, 6, 5).contiguous(memory_format=torch.channels_last)
    before, after = run(code, x), run(paste, x)
    assert torch.equal(before, after)
    assert after.is_contiguous(memory_format=torch.channels_last) and not before.is_contiguous(
        memory_format=torch.channels_last
    )


@pytest.mark.parametrize(
    "code",
    [
        "z = x.view(n // t, t, c, h, w)\nz = z * scale\ny = z.view(n, c, h, w)",  # it may have the dimensions of z
        "z = x.view(n // t, t, c, h, w)\nz = mix(z)\ny = z.view(n, c, h, w)",
        "z = x.view(n // t, t, c, h, w)\nz = z[..., 1:]\ny = z.view(n, c, h, w)",
        "z = x.view(n // t, t, c, h, w)\nz = torch.cat([z, z], dim)\ny = z.view(n, c, h, w)",
        "z = x.view(n // t, t, c, h, w)\nz = torch.cat(\ny = z.view(n, c, h, w)",
        "z = x.view(n, c, h * w)\ny = z.view(n, c, h, w)",
        "z = x.view(*sizes, c, h, w)\ny = z.view(n, c, h, w)",
    ],
)
def test_other_statements_are_left_to_the_program(code: str) -> None:
    assert turned(dict(enumerate(code.splitlines(), 10))) == ""
