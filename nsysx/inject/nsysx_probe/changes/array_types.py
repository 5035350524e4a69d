"""What the program makes of arrays and of lengths: numbers of 32 bits, and transforms of lengths that the GPU has kernels for."""

from __future__ import annotations

import functools
from typing import Any

from . import Change, Watch

_MAKERS = ("from_numpy", "as_tensor", "tensor")
#: Transforms to a spectrum, and back to a real signal, whose own length follows from that of its spectrum.
_TRANSFORMS, _TO_REAL = ("fft", "ifft", "rfft", "irfft"), "irfft"
_FACTORS = (2, 3, 5, 7)


def _float32(torch: Any, watch: Watch) -> None:
    watch.why_not = "no tensor of float64 or complex128 is made from an array, a list or a number"
    narrower = {torch.float64: torch.float32, torch.complex128: torch.complex64}

    def made(original: Any) -> Any:
        @functools.wraps(original)
        def maker(*args: Any, **kwargs: Any) -> Any:
            tensor = original(*args, **kwargs)
            if tensor.dtype not in narrower:
                return tensor
            watch.took()
            return tensor.to(narrower[tensor.dtype])

        return maker

    for name in _MAKERS:
        setattr(torch, name, made(getattr(torch, name)))
    # A model of float64 takes only such numbers: it is made float32, too.
    to = torch.nn.Module.to

    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
        if any(value is torch.float64 for value in (*args, *kwargs.values())):
            watch.took()
        args = tuple(torch.float32 if a is torch.float64 else a for a in args)
        return to(self, *args, **{k: torch.float32 if v is torch.float64 else v for k, v in kwargs.items()})

    torch.nn.Module.to = moved
    torch.nn.Module.double = lambda self: moved(self, torch.float64)


def next_length(length: int) -> int:
    """Return the least length from this one on whose factors are 2, 3, 5 and 7 alone."""
    while True:
        left = length
        for factor in _FACTORS:
            while left % factor == 0 and left:
                left //= factor
        if left <= 1:
            return length
        length += 1


def _lengths(torch: Any, watch: Watch) -> None:
    watch.why_not = "every transform has a length whose factors are 2, 3, 5 and 7"
    watch.can_turn()

    def padded(name: str, original: Any) -> Any:
        @functools.wraps(original)
        def transform(input: Any, n: Any = None, dim: int = -1, *more: Any, **named: Any) -> Any:
            size = int(input.shape[dim])
            length = int(n) if n is not None else 2 * (size - 1) if name == _TO_REAL else size
            longer = next_length(length)
            if not watch.on or longer == length:
                return original(input, n, dim, *more, **named)
            watch.took()
            made = original(input, longer, dim, *more, **named)
            return made.narrow(dim, 0, length) if name == _TO_REAL else made

        return transform

    for name in _TRANSFORMS:
        original = getattr(torch.fft, name)
        setattr(torch.fft, name, padded(name, original))


CHANGES = (
    Change(
        "float32", "float32 for what is made from arrays",
        "x = torch.as_tensor(array, dtype=torch.float32)  # and no model.double()", _float32,
        alters="numerics", beware="7 digits in place of 16",
        advice="Make this float32 where it is made (numpy's default is float64)",
        condition="The result must not need 16 digits.",
    ),
    Change(
        "fft-length", "transforms of the next length whose factors are 2, 3, 5 and 7",
        "n = 1 << (n - 1).bit_length()  # or scipy.fft.next_fast_len\ny = torch.fft.rfft(x, n=n)", _lengths,
        alters="numerics", beware="a padded spectrum has other frequencies: it is right where what is padded is cut off again",
        advice="Pad the transform to a length whose factors are 2, 3, 5 and 7, mostly the next power of 2: cuFFT has kernels for these",
        condition="What is padded must be cut off again, as of a convolution; a spectrum has other frequencies.",
    ),
)  # fmt: skip
