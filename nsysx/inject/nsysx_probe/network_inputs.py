"""What networks are called with, as checksums: ranks that compute the same of the same data are told by it, however the data come.

Loaders, samplers and streams are known by what they draw; a loop that takes rows of a tensor itself has none of them. In X-rayed steps of
the cold start and in the last step of a later window the tensors of a few calls are held until the window has closed and the device has
rested, and some of their numbers are read then: in the step nothing is launched for them and nothing waits. In steps whose time counts
nothing is held, so that none of their allocations misses it. A call with an argument that is neither a tensor nor a plain number or text is
not told of: there the ranks may have different data. Neither is one whose tensors the program has written into since.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from . import settings_objects
from .changes import place
from .given_again import GivenAgain
from .held_memory import has_room
from .plain_values import PLAIN, flat
from .probe_bounds import (
    HELD_CALLS,
    MOST_BATCH_TENSORS,
    MOST_HELD_NETWORKS,
    MOST_INPUT_SUMS,
)
from .settings_state import asked
from .tensor_checksum import checksum


class NetworkInputs:
    """``rows``: of each network that is called from outside of any other, ``class``, ``place`` of the call, ``rows`` of the first tensor
    and the ``sums``: a checksum for each call that was looked at, None for one that does not tell; ``shapes`` of the tensors of the first
    call. ``again``: which are given the same in several steps. ``optimizers`` returns weak references to those that live.
    """

    def __init__(self, torch: Any, optimizers: Callable[[], list[Any]] = list) -> None:
        self.torch = torch
        self.again = GivenAgain(torch, optimizers)
        self.holds = False
        self.rows: list[dict[str, Any]] = []
        self._held: list[tuple[dict[str, Any], list[tuple[Any, int]], str]] = []
        self._calls: dict[int, int] = {}

    def begin(self, step: int = 0, *, holds: bool) -> None:
        """A recorded step begins, in which calls are looked at or not; what is held stays so until the window has closed."""
        self.holds = holds
        self.again.begin(step)
        self._calls.clear()

    @property
    def looks(self) -> bool:
        """Whether anything looks at what networks are given now."""
        return self.holds or self.again.open

    @property
    def held(self) -> list[Any]:
        """The tensors that are held, as far as nothing has been written into them since."""
        return [tensor for _, tensors, _ in self._held for tensor, version in tensors if tensor._version == version]

    def called(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A network is called, not from inside another one."""
        if self.again.open:
            self.again.called(module, args, kwargs)
        if not self.holds:
            return
        calls = self._calls.get(id(module), 0)
        few = calls < HELD_CALLS and (calls or len(self._calls) < MOST_HELD_NETWORKS)
        if not few or self.torch._C._len_torch_function_stack() or self.torch._C._len_torch_dispatch_stack():
            return
        trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
        if trees is not None and getattr(getattr(trees, "local", None), "tree_manager_containers", None):
            return  # they record anew when a tensor of theirs lives longer than before
        self._calls[id(module)] = calls + 1
        row = self._row(module)
        given = list(flat([*args, *kwargs.values()]))
        tensors = [value for value in given if type(value) is self.torch.Tensor]
        row["shapes"] = row["shapes"] or [[int(n) for n in tensor.shape] for tensor in tensors[:MOST_BATCH_TENSORS]]
        seen = len(tensors) <= MOST_BATCH_TENSORS and len(row["sums"]) < MOST_INPUT_SUMS
        if not seen or not all(isinstance(v, PLAIN) or self._readable(v) for v in given) or not self._fit(tensors):
            row["sums"].append(None)
            return
        if tensors and tensors[0].dim():
            row["rows"] = int(tensors[0].shape[0])
        numbers = repr([value for value in given if isinstance(value, PLAIN)])
        self._held.append((row, [(tensor, tensor._version) for tensor in tensors], numbers))

    def window_closed(self) -> None:
        """Read what is held: nothing is recorded any more, and the devices have rested."""
        for row, tensors, numbers in self._held:
            row["sums"].append(asked(self._checksum, tensors, numbers))
        self._held.clear()
        self._calls.clear()
        self.holds = False
        self.again.window_closed()

    def _row(self, module: Any) -> dict[str, Any]:
        about = {"class": settings_objects.class_of(module), "place": place()}
        for row in self.rows:
            if about == {name: row[name] for name in about}:
                return row
        self.rows.append({**about, "rows": None, "sums": [], "shapes": []})
        return self.rows[-1]

    def _readable(self, value: Any) -> bool:
        """Return whether this is a tensor whose numbers can be read later, and are this rank's whole input."""
        return (
            type(value) is self.torch.Tensor
            and value.layout == self.torch.strided
            and not value.is_inference()
            and not value.is_complex()
            and not value.is_quantized
        )

    def _fit(self, tensors: list[Any]) -> bool:
        return has_room(self.torch, [*(tensor for _, held, _ in self._held for tensor, _ in held), *tensors])

    def _checksum(self, tensors: list[tuple[Any, int]], numbers: str) -> int | None:
        for tensor, version in tensors:
            if tensor._version != version:
                return None
            if tensor.is_cuda and not self.torch.cuda.current_stream(tensor.device).query():
                return None  # the device has not come to rest in time: no wait for it
        return checksum(self.torch, [tensor for tensor, _ in tensors], zlib.crc32(numbers.encode()))
