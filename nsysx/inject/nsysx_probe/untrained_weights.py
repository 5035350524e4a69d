"""Which parts of a network get gradients although nothing trains them: no optimizer holds them, and their numbers stay as they are.

Parts that are to stay as they were trained before are often only left out of the optimizer: backward computes their gradients all the
same, and wrappers of ranks reduce them. Where gradients are reset, nothing of them shows that they are for nothing: lines of the program,
masters that are copied back or an optimizer that is none of torch's may train such weights, too. So some numbers of some of them are read
when a window has closed and the device has rested, and compared with those behind the window before, many steps ago. A program may end
in its last window: so they are compared just before that opens, too. Or it ends before that: so the device compares them now and then
while bare steps are counted, and nobody waits for it; what it has found is read at the end.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from . import settings_objects, tensor_checksum
from .probe_bounds import MOST_COMPARED_WEIGHTS, MOST_PARTS, WEIGHTS_LOOK_S, WEIGHTS_REST_S
from .qualified_names import WRAPPER_PARTS, held


class _Suspect(NamedTuple):
    """A network with parameters that no optimizer holds: its row, and some of these parameters."""

    row: dict[str, Any]
    some: list[weakref.ref[Any]]


class _Watched(NamedTuple):
    """A suspect whose numbers stay on its device: where they lie in each parameter, what they were, and whether they differ now.

    ``differs`` is on the host; it holds what was found once the device has reached ``event``, which is of its steps alone.
    """

    suspect: _Suspect
    places: list[tuple[Any, ...]]
    numbers: list[Any]
    differs: Any
    event: Any


class UntrainedWeights:
    """``rows``: of each such network ``class``, ``elements`` of these parameters ``of`` all that get gradients, and the ``parts`` of it in
    which they are, as well as those that are ``trained``: paths of modules and parameters. No paths where these are many. None as long as
    numbers were not compared.
    """

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.rows: list[dict[str, Any]] | None = None
        self._given: dict[int, set[int]] = {}  # of each network: parameters that have a gradient
        self._suspects: list[_Suspect] = []
        self._judged = False
        self._numbers: dict[int, list[Any]] = {}
        self._watched: list[_Watched] = []
        self._looked = False

    def begin(self) -> None:
        """A step is watched."""
        self._given.clear()

    def stepping(self, networks: Iterable[Any]) -> None:
        """An optimizer is about to step: of each network, note what has a gradient, once in a step."""
        for network in networks:
            if id(network) in self._given:
                continue
            with self.torch._C.DisableTorchFunction():
                every = settings_objects.parameters_in(network)
                self._given[id(network)] = {id(p) for p in every if p.requires_grad and p.grad is not None}

    def judge(self, networks: Iterable[Any], optimizers: Iterable[Any], read: Iterable[str]) -> None:
        """The step has ended: note which networks have parameters that no optimizer holds, without those that are ``read`` elsewhere."""
        theirs = {id(p) for each in optimizers for group in each.param_groups for p in group["params"]}
        if not theirs:
            return  # they are gone, as at the program's end
        self._suspects, self._judged = [], True
        judged: list[set[int]] = []
        for network in networks:
            given, cls = self._given.get(id(network), set()), settings_objects.class_of(network)
            # Of a network that no optimizer knows anything of, something else trains all.
            if given <= theirs or not given & theirs or cls in read:
                continue
            if given in judged:  # the wrapper and what it wraps are called
                continue
            judged.append(given)
            with self.torch._C.DisableTorchFunction():
                every = {id(p): p for p in settings_objects.parameters_in(network) if id(p) in given}
                lost = [p for p in every.values() if id(p) not in theirs]
                parts, trained = _parts(network, given, theirs)
                few = len(parts) <= MOST_PARTS and len(trained) <= MOST_PARTS
                row = {
                    "class": cls,
                    "elements": sum(int(p.numel()) for p in lost),
                    "of": sum(int(p.numel()) for p in every.values()),
                    "parts": parts if few else [],
                    "trained": trained if few else [],
                }
            apart = -(-len(lost) // MOST_COMPARED_WEIGHTS)
            self._suspects.append(_Suspect(row, [weakref.ref(p) for p in lost[::apart]]))

    def window_opens(self) -> None:
        """Compare numbers with those behind the last window, a while later, if the devices come to rest; nothing is recorded yet."""
        watched = [p for suspect in self._suspects for p in (ref() for ref in suspect.some) if p is not None]
        until = time.monotonic() + WEIGHTS_REST_S
        if watched and self._numbers:
            while not all(map(self._at_rest, watched)) and time.monotonic() < until:
                time.sleep(WEIGHTS_LOOK_S)
            self.window_closed()

    def window_closed(self) -> None:
        """Compare numbers of these parameters with those behind the window before; nothing is recorded, and the devices have rested."""
        rows, numbers, compared = list[dict[str, Any]](), dict[int, list[Any]](), True
        for suspect in self._suspects:
            living = [p for p in (ref() for ref in suspect.some) if p is not None]
            for parameter in living:
                if not self._at_rest(parameter):
                    return
                numbers[id(parameter)] = self._some_numbers(parameter)
            if len(living) < len(suspect.some) or not all(id(p) in self._numbers for p in living):
                compared = False
            elif all(self._numbers[id(p)] == numbers[id(p)] for p in living):
                rows.append(suspect.row)
        self._numbers = numbers
        if compared and self._judged:
            self.rows = rows
        self._watched, self._looked = [], False
        if self.rows is None:
            with self.torch._C.DisableTorchFunction(), self.torch.no_grad():
                self._watched = [self._watch(suspect) for suspect in self._suspects]

    def look(self) -> bool:
        """Have the device compare numbers with those behind the last window, and return whether it was asked to."""
        torch = self.torch
        if not self._watched or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
            return False
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for each in self._watched:
                living = [p for p in (ref() for ref in each.suspect.some) if p is not None]
                if len(living) < len(each.numbers):
                    return self._looked
                rows = zip(living, each.places, each.numbers)  # noqa: B905 - Python 3.9
                now = [(_local(p)[index] if index else _local(p).reshape(1)) != numbers for p, index, numbers in rows]
                each.differs.copy_(torch.cat([part.reshape(-1) for part in now]).any(), non_blocking=True)
                if each.event is not None:
                    each.event.record(torch.cuda.current_stream(now[0].device))
        self._looked = True
        return True

    def ended(self) -> None:
        """The program ends: where numbers were never compared, take what devices have found, and wait for none."""
        if (
            self.rows is None
            and self._looked
            and all(each.event is None or each.event.query() for each in self._watched)
        ):
            self.rows = [each.suspect.row for each in self._watched if not bool(each.differs)]

    def _watch(self, suspect: _Suspect) -> _Watched:
        some = [_local(p) for p in (ref() for ref in suspect.some) if p is not None]
        places = [tensor_checksum.some_places(self.torch, each) for each in some]
        rows = zip(some, places)  # noqa: B905 - Python 3.9
        numbers = [each[index] if index else each.reshape(1).clone() for each, index in rows]
        on_gpu = some[0].is_cuda
        differs = self.torch.ones((), dtype=self.torch.bool, device="cpu", pin_memory=on_gpu)
        return _Watched(suspect, places, numbers, differs, self.torch.cuda.Event() if on_gpu else None)

    def _at_rest(self, parameter: Any) -> bool:
        return not parameter.is_cuda or bool(self.torch.cuda.current_stream(parameter.device).query())

    def _some_numbers(self, parameter: Any) -> list[Any]:
        with self.torch._C.DisableTorchFunction(), self.torch.no_grad():
            return tensor_checksum.some_numbers(self.torch, _local(parameter))


def _local(parameter: Any) -> Any:
    """Return the part of a parameter that this rank has, without its gradient's graph."""
    return (parameter._local_tensor if hasattr(parameter, "_local_tensor") else parameter).detach()


def _parts(network: Any, given: set[int], theirs: set[int]) -> tuple[list[str], list[str]]:
    """Return the largest parts of a network of whose gradients no optimizer reads any, and those of which one reads all."""
    _, parts = _kinds(network, "", given, theirs)
    return [path for path, is_held in parts if not is_held], [path for path, is_held in parts if is_held]


def _kinds(module: Any, path: str, given: set[int], theirs: set[int]) -> tuple[set[bool], list[tuple[str, bool]]]:
    """Return whether optimizers hold the parameters with gradients in here; where they hold some, each part of one kind as well."""
    whole, parts = set[bool](), list[tuple[str, bool]]()
    below: list[tuple[str, tuple[set[bool], list[tuple[str, bool]]]]] = []
    below += [(name, ({id(p) in theirs}, [])) for name, p in _own(module) if id(p) in given]
    below += [(name, _kinds(child, _joined(path, name), given, theirs)) for name, child in _children(module)]
    for name, (kinds, inner) in below:
        whole |= kinds
        parts += [(_joined(path, name), next(iter(kinds)))] if len(kinds) == 1 else inner
    return whole, parts if len(whole) > 1 else []


def _joined(path: str, name: str) -> str:
    """Return the path of what is below another one; wrappers add none."""
    return path if name in WRAPPER_PARTS else f"{path}.{name}" if path else name


def _own(module: Any) -> Iterator[tuple[str, Any]]:
    return ((name, p) for name, p in (held(module).get("_parameters") or {}).items() if p is not None)


def _children(module: Any) -> list[tuple[str, Any]]:
    """Return the modules below one; the only child of a wrapper, ``module``, goes by its own name."""
    below = held(module).get("_modules")
    named = [(name, m) for name, m in below.items() if m is not None] if isinstance(below, dict) else []
    if len(named) == 1 and named[0][0] == "module":
        return [("_orig_mod", named[0][1])]
    return named
