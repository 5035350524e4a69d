"""Which networks that nothing trains are given the same tensors in several steps in a row: the passes over one batch.

A tensor is the same where its memory was never given back in between (a weak reference to its storage tells, and holds none of it), it is
the same part of it, and nothing has been written into it since. A copy that each pass makes of a batch is not seen. Of each step the first
calls without gradients are looked at; no number is read and nothing is launched. When a window has closed and the devices have rested,
some weights are compared with those behind the window before: an average of weights that are trained is another network in each step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from . import settings_objects, tensor_checksum
from .changes import place
from .plain_values import PLAIN, flat
from .probe_bounds import (
    MOST_BATCH_TENSORS,
    MOST_COMPARED_WEIGHTS,
    MOST_GIVEN_STEPS,
    MOST_HELD_NETWORKS,
    MOST_INPUT_SUMS,
    MOST_PARTS,
    MOST_ROOT_PARAMETERS,
)
from .program_modes import looked_on
from .qualified_names import held

#: Where a network holds how much of what it drops: in the names of modules, and of numbers that they have.
_DROPS = "drop"
_Call = tuple[str, str, bool]


class GivenAgain:
    """``rows``: of each network that steps call without gradients, from outside of any other, ``class``, ``place`` of the call, and
    ``steps``: pairs of a recorded step's number and that of what it was given first, equal ones for the same. ``trained``: optimizers
    hold weights of it, or some have changed; None where they were read once only. ``drops``: what it makes is drawn. ``learns``: this is
    the first network of the step that is called with gradients: it tells which steps are given the same.
    """

    def __init__(self, torch: Any, optimizers: Callable[[], list[Any]]) -> None:
        self.torch = torch
        self.open = False  # a recorded step
        self._optimizers = optimizers
        self._step = self._left = 0
        self._learner = False  # a network has been called with gradients in this step
        self._rows: dict[_Call, dict[str, Any]] = {}
        self._given: dict[
            _Call, tuple[Any, list[Any]]
        ] = {}  # what it was given last, and references to where that lies
        self._networks: dict[tuple[int, bool], tuple[weakref.ref[Any], _Call]] = {}
        self._numbers: dict[tuple[int, bool], list[Any]] = {}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What is known by now."""
        return list(self._rows.values())

    def begin(self, step: int) -> None:
        """A recorded step begins."""
        self.open, self._step, self._left, self._learner = True, step, MOST_HELD_NETWORKS, False

    def end(self) -> None:
        """It has ended: what is called between steps is none of it."""
        self.open = False

    def called(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A network is called, not from inside another one."""
        torch = self.torch
        if looked_on(torch):
            return
        learns = torch.is_grad_enabled() and _learns(module)
        if learns and self._learner:
            return
        ref, call = self._networks.get((id(module), learns), (None, None))
        if ref is None or ref() is not module:
            call = self._noted(module, learns)
        if call is None or (self._left <= 0 and not learns):
            return
        self._learner |= learns
        self._left -= not learns
        steps = self._rows[call]["steps"]
        if len(steps) >= MOST_GIVEN_STEPS or (steps and steps[-1][0] == self._step):
            return  # it is called again in this step
        given, lies_in = self._identity(list(flat([*args, *kwargs.values()])))
        before, lay_in = self._given.get(call, (None, []))
        same = given is not None and given == before and not any(each.expired() for each in lay_in)
        steps.append([self._step, steps[-1][1] + (not same) if steps else 0])
        self._given[call] = given, lies_in

    def window_closed(self) -> None:
        """Compare some weights with those behind the window before; nothing is recorded, and the devices have rested."""
        self.end()
        living = [each for each in (ref() for ref in self._optimizers()) if each is not None]
        theirs = {id(p) for each in living for group in each.param_groups for p in group["params"]}
        for key, (ref, call) in list(self._networks.items()):
            network, row = ref(), self._rows[call]
            if network is None:
                del self._networks[key]
            elif row["trained"] is not True:
                row["trained"] = self._changed(key, network, theirs)

    def _changed(self, key: tuple[int, bool], network: Any, theirs: set[int]) -> bool | None:
        """Return whether a network is trained, None where its numbers cannot be compared yet."""
        every = list(islice(settings_objects.parameters_in(network), MOST_ROOT_PARAMETERS))
        if any(id(p) in theirs for p in every):
            return True
        chosen = every[:: max(1, len(every) // MOST_HELD_NETWORKS)]
        with self.torch._C.DisableTorchFunction(), self.torch.no_grad():
            # Of a parameter that is divided over the ranks, this one's part.
            some = [getattr(p, "_local_tensor", p) for p in chosen]
            if not all(type(p) in (self.torch.nn.Parameter, self.torch.Tensor) and self._at_rest(p) for p in some):
                return None
            numbers = [tensor_checksum.some_numbers(self.torch, p.detach(), MOST_COMPARED_WEIGHTS) for p in some]
        before, self._numbers[key] = self._numbers.get(key), numbers
        return None if before is None and some else bool(some) and before != numbers

    def _noted(self, module: Any, learns: bool) -> _Call | None:
        """Return class and place of a network that is called for the first time, None where there are too many."""
        if len(self._networks) >= MOST_PARTS:
            return None
        call = settings_objects.class_of(module), place(), learns
        if call not in self._rows and len(self._rows) >= MOST_INPUT_SUMS:
            return None
        new: dict[str, Any] = {
            "class": call[0],
            "place": call[1],
            "steps": [],
            "trained": learns or None,
            "drops": False,
        }
        new["learns"] = learns
        row = self._rows.setdefault(call, new)
        row["drops"] = row["drops"] or any(map(_is_dropping, settings_objects.modules(module)))
        self._networks[id(module), learns] = weakref.ref(module), call
        return call

    def _at_rest(self, parameter: Any) -> bool:
        return not parameter.is_cuda or bool(self.torch.cuda.current_stream(parameter.device).query())

    def _identity(self, values: list[Any]) -> tuple[Any, list[Any]]:
        """Return what tells these values from others, None where that is not known, and references to what they lie in."""
        tensors = [value for value in values if type(value) is self.torch.Tensor]
        plain = [value for value in values if isinstance(value, PLAIN)]
        if not 0 < len(tensors) <= MOST_BATCH_TENSORS or len(tensors) + len(plain) < len(values):
            return None, []
        if not all(map(self._lies_here, tensors)):
            return None, []
        from torch.multiprocessing import reductions

        reference: Any = reductions.StorageWeakRef

        with self.torch._C.DisableTorchFunction():
            lies_in = [reference(tensor.untyped_storage()) for tensor in tensors]
            parts = [
                (ref.cdata, t.storage_offset(), tuple(t.shape), t.stride(), str(t.dtype), t._version)
                for ref, t in zip(lies_in, tensors)  # noqa: B905 - Python 3.9
            ]
        return (parts, plain), lies_in

    def _lies_here(self, tensor: Any) -> bool:
        """Return whether it is known where the numbers of a tensor lie, and how often something was written into them."""
        is_readable = tensor.layout == self.torch.strided and not tensor.is_inference()
        return is_readable and tensor.device.type in ("cpu", "cuda")


def _learns(module: Any) -> bool:
    return any(p.requires_grad for p in islice(settings_objects.parameters_in(module), MOST_ROOT_PARAMETERS))


def _is_dropping(module: Any) -> bool:
    """Return whether a module drops something of what it is given."""
    about = held(module)
    if about.get("training") is False:
        return False
    if _DROPS in type(module).__name__.lower():
        share = about.get("p", 1.0)
        return not isinstance(share, (int, float)) or share > 0
    return any(_DROPS in str(name).lower() and isinstance(value, float) and value > 0 for name, value in about.items())
