"""What kernels of Triton are launched with, in X-ray steps; and their launches as the steps of a program that has no others.

Torch records operators. A kernel of Triton is none: its bytes would stay unknown. So where an X-ray step records operators, each
launch is one of them, a range of torch's own recorder with the sizes of its tensors. Its name is ``triton::KERNEL#BYTES``: what its
tensors hold together, each counted once, or ``triton::KERNEL#products`` if it multiplies matrices, which takes time whatever it moves.

A program of pure functions has no networks that make steps. Launches of Triton's kernels are followed as calls of networks are, until
there is a network, a backward or an optimizer. Launches inside of Triton's autotuner are one with its call. In all other programs, and
in all other steps of them, launches have their own code.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from typing import Any

from .interrupts import shielded, with_covered_jumps
from .output import Output
from .patch import AROUND, Patch
from .probe_bounds import MOST_KERNEL_FUNCTIONS, MOST_KERNELS

#: Where launches are: module, class, what ``enter`` gets, and whether launches there make steps.
_LAUNCHERS = (
    ("triton.runtime.jit", "JITFunction", "(self, args, kwargs, warmup)", True),
    ("triton.runtime.autotuner", "Autotuner", "(self, None, kwargs, False)", True),
    ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner", "(self, args, kwargs, benchmark_run)", False),
)
_PRODUCTS = re.compile(r"\bdot(_scaled)?\(|\bwgmma|\bmma_v\d|\btcgen05")
_WORD = re.compile(r"\b[A-Za-z_]\w*")


class KernelLaunches:
    """``recording``: launches are operators now. ``follows``: they make steps."""

    def __init__(self, torch: Any, out: Output) -> None:
        self.torch = torch
        self.out = out
        self.recording = self.follows = False
        self._enter: Callable[[Any], bool] = lambda _kernel: False
        self._leave: Callable[[], object] = lambda: None
        self._patches: dict[str, Patch] = {}
        self._failed: set[str] = set()
        self._multiplies: dict[int, tuple[Any, bool]] = {}

    # ---- on and off -------------------------------------------------------------------------------------------------

    def follow(self, enter: Callable[[Any], bool], leave: Callable[[], object]) -> None:
        """Call ``enter`` with the kernel before a launch, and ``leave`` after it if that was True, from now on."""
        self._enter, self._leave, self.follows = enter, leave, True
        self._install()

    def look(self, _first: object = None) -> None:
        """Triton may have been imported: it asks what the device can do before it compiles its first kernel."""
        if self.follows and _LAUNCHERS[0][0] not in self._patches:
            self._install()

    def unfollow(self) -> None:
        """Let launches make no steps any more."""
        self.follows = False
        self._install()

    def record(self, on: bool) -> None:
        """Make launches operators, or stop that."""
        if on != self.recording:
            self.recording = on
            self._install()

    def _install(self) -> None:
        for module, owner, first, makes_steps in _LAUNCHERS:
            if not (self.recording or (self.follows and makes_steps)):
                if module in self._patches:
                    self._patches[module].off()
                continue
            if module not in self._patches and module not in self._failed:
                self._make(module, owner, first)
            if module in self._patches:
                self._patches[module].on()

    def _make(self, module: str, owner: str, first: str) -> None:
        function = getattr(getattr(sys.modules.get(module), owner, None), "run", None)
        if function is None:
            return
        compiling = self.torch.compiler.is_dynamo_compiling
        names = {"_nsysx_compiling": compiling, "_nsysx_launch": self._begin, "_nsysx_launched": self._end}
        template = AROUND.replace("ENTER", "_nsysx_launch").replace("LEAVE", "_nsysx_launched").replace("FIRST", first)
        try:
            self._patches[module] = Patch(function, template, names)
        except Exception as error:
            self._failed.add(module)
            self.out.wrong("launch", error)

    # ---- a launch ---------------------------------------------------------------------------------------------------

    def _begin(self, launch: tuple[Any, Any, Any, bool]) -> tuple[bool, Any] | None:
        kernel, tensors, by_name, launches_nothing = launch
        entered, range_ = False, None
        try:
            if launches_nothing or by_name.get("warmup"):
                return None
            entered = self.follows and self._enter(kernel)
            if self.recording and tensors is not None:
                range_ = self._range(kernel, (*tensors, *by_name.values()))
        except BaseException as error:
            if entered:
                entered = False
                self._leave()
            self.out.fail("launch", error)
        return entered, range_

    @shielded
    def _end(self, token: tuple[bool, Any] | None) -> None:
        if token is None:
            return
        entered, range_ = token
        try:
            if range_ is not None:
                range_.__exit__(None, None, None)
            if entered:
                self._leave()
        except BaseException as error:
            self.out.fail("launch", error)

    @with_covered_jumps
    def _range(self, kernel: Any, arguments: tuple[Any, ...]) -> Any:
        """Open the range of a launch and return it; None, and no more of them in this step, where tensors cannot be asked."""
        torch, function = self.torch, getattr(kernel, "fn", kernel)
        try:
            with torch._C.DisableTorchFunction():
                tensors = [t for a in arguments if isinstance(t := getattr(a, "base", a), torch.Tensor)]
                what = "products" if self._has_products(kernel) else bytes_held(tensors)
                range_ = torch._C._profiler._RecordFunctionFast(f"triton::{function.__name__}#{what}", tensors)
                range_.__enter__()
        except Exception as error:
            self.out.wrong("launch", error)
            self.record(False)
            return None
        return range_

    def _has_products(self, kernel: Any) -> bool:
        """Return whether a kernel, or a function that it calls, multiplies matrices, as far as its source says."""
        if id(kernel) not in self._multiplies:
            if len(self._multiplies) >= MOST_KERNELS:
                self._multiplies.clear()
            self._multiplies[id(kernel)] = kernel, multiplies(kernel)
        return self._multiplies[id(kernel)][1]


def bytes_held(tensors: list[Any]) -> int:
    """Return the bytes of tensors of a device: each place once, and of an expanded one its source."""
    held: dict[int, int] = {}
    for tensor in tensors:
        if tensor.device.type != "cpu":
            numbers = math.prod(size for size, stride in zip(tensor.shape, tensor.stride()) if stride)  # noqa: B905 - Python 3.9
            address = tensor.data_ptr()
            held[address] = max(held.get(address, 0), numbers * tensor.element_size() if tensor.numel() else 0)
    return sum(held.values())


def multiplies(kernel: Any) -> bool:
    """Return whether the source of a kernel, or of what it calls, multiplies matrices."""
    todo: list[Any] = [kernel]
    seen: set[int] = set()
    while todo and len(seen) < MOST_KERNEL_FUNCTIONS:
        function = todo.pop()
        while not isinstance(getattr(function, "src", None), str) and hasattr(function, "fn"):
            function = function.fn
        source = getattr(function, "src", None)
        if id(function) in seen or not isinstance(source, str):
            continue
        seen.add(id(function))
        if _PRODUCTS.search(source) or getattr(function, "__name__", "").startswith("triton_tem_"):
            return True
        scope = getattr(function, "__globals__", None) or {}
        todo += [scope[word] for word in set(_WORD.findall(source)) if hasattr(scope.get(word), "src")]
    return False
