"""Switches of torch and variables that only cost time: each is held at the value that costs nothing, whatever the program sets."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from . import Change, Watch

_BLOCKING = "CUDA_LAUNCH_BLOCKING"
_ATTENTION = ("flash", "mem_efficient", "cudnn")


def _held(
    why_not: str, read: Callable[[Any], Any], write: Callable[[Any, Any], object], wanted: Callable[[Any], Any]
) -> Callable[[Any, Watch], None]:
    """Return what holds a switch at ``wanted(its value)`` from each step's begin on; ``why_not`` is told where it is there already."""

    def arm(torch: Any, watch: Watch) -> None:
        watch.why_not = why_not
        before: list[Any] = []

        def hold() -> None:
            value = read(torch)
            if watch.on and value != wanted(value):
                before[:] = [value]
                write(torch, wanted(value))
                watch.took(here=False)

        def turn(on: bool) -> None:
            if before:
                write(torch, wanted(before[0]) if on else before[0])

        watch.each_step.append(hold)
        watch.can_turn(turn)

    return arm


def _unblocked(_torch: Any, watch: Watch) -> None:
    """Take the variable away before CUDA reads it, which is when the program first uses the GPU."""
    watch.why_not = f"{_BLOCKING} is not set when torch is imported"
    if os.environ.get(_BLOCKING, "0") not in ("", "0"):
        os.environ[_BLOCKING] = "0"
        watch.took(here=False)


def _no_anomaly(torch: Any, watch: Watch) -> None:
    watch.why_not = "anomaly detection is not turned on"
    enable, asked = torch.set_anomaly_enabled, [False, True]

    def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> None:
        asked[:] = mode, check_nan
        if mode:
            watch.took()
        enable(mode and not watch.on, check_nan)

    torch.set_anomaly_enabled = set_anomaly_enabled
    watch.can_turn(lambda on: enable(asked[0] and not on, asked[1]))


def _deterministic(torch: Any) -> tuple[bool, bool, bool]:
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warns, torch.backends.cudnn.deterministic


def _set_deterministic(torch: Any, value: tuple[bool, bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])
    torch.backends.cudnn.deterministic = value[2]


def _attention(torch: Any) -> list[bool]:
    return [bool(getattr(torch.backends.cuda, f"{name}_sdp_enabled", bool)()) for name in _ATTENTION]


def _set_attention(torch: Any, value: list[bool]) -> None:
    for name, allowed in zip(_ATTENTION, value):  # noqa: B905 - Python 3.9
        getattr(torch.backends.cuda, f"enable_{name}_sdp", bool)(allowed)


def _backend(name: str) -> tuple[Callable[[Any], Any], Callable[[Any, Any], None]]:
    """Return how to read and to write a switch of ``torch.backends.cudnn``."""
    return (
        lambda torch: getattr(torch.backends.cudnn, name),
        lambda torch, value: setattr(torch.backends.cudnn, name, value),
    )


CHANGES = (
    Change(
        "unset-launch-blocking", f"no {_BLOCKING}", f'os.environ["{_BLOCKING}"] = "0"  # before import torch', _unblocked, needs="cuda",
        advice="Unset CUDA_LAUNCH_BLOCKING: it is for finding the operator that fails, and makes the host wait for each kernel",
        example="unset CUDA_LAUNCH_BLOCKING  # in the shell, or take it out of os.environ",
    ),
    Change(
        "no-anomaly", "anomaly detection off", "torch.autograd.set_detect_anomaly(False)", _no_anomaly,
        advice="Turn anomaly detection off: it is for finding where a NaN comes from",
    ),
    Change(
        "not-deterministic", "algorithms that add in any order",
        "torch.use_deterministic_algorithms(False); torch.backends.cudnn.deterministic = False",
        _held("no deterministic algorithms are asked for", _deterministic, _set_deterministic, lambda value: (False, value[1], False)),
        alters="numerics", needs="cuda", beware="two runs differ by rounding",
        advice="Turn deterministic algorithms off: sums then add in any order, and faster",
        condition="Two runs then differ by rounding: keep it where they must be alike bit for bit.",
    ),
    Change(
        "no-cudnn-benchmark", "no search for the fastest convolution", "torch.backends.cudnn.benchmark = False",
        _held("cudnn.benchmark is off", *_backend("benchmark"), lambda _: False),
        alters="numerics", needs="cuda", beware="another algorithm rounds in another order",
        advice="Turn cudnn.benchmark off, or give few sizes to the network (draw from some, pad to multiples of 32): each is searched once",
    ),
    Change(
        "cudnn-on", "cuDNN", "torch.backends.cudnn.enabled = True", _held("cuDNN is on", *_backend("enabled"), lambda _: True),
        alters="numerics", needs="cuda", beware="another algorithm rounds in another order",
        advice="Turn cuDNN on",
    ),
    Change(
        "sdpa-allowed", "the fast kernels of attention are allowed",
        "torch.backends.cuda.enable_flash_sdp(True); torch.backends.cuda.enable_mem_efficient_sdp(True)",
        _held("they are allowed", _attention, _set_attention, lambda value: [True, True, value[2]]),
        alters="numerics", needs="cuda", beware="another algorithm rounds in another order",
        advice="Allow the fast kernels of scaled_dot_product_attention",
    ),
    Change(
        "one-length-for-attention", "no attention by cuDNN", "torch.backends.cuda.enable_cudnn_sdp(False)",
        _held("cuDNN's attention is not allowed", _attention, _set_attention, lambda value: [*value[:2], False]),
        alters="numerics", needs="cuda", beware="another algorithm rounds in another order",
        advice="Turn cuDNN's attention off: it builds a kernel for each new length, until each has been seen; or keep "
        "one length (a cache of fixed size with a mask)",
    ),
)  # fmt: skip
