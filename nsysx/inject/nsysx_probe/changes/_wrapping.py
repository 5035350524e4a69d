"""Ways to reach into torch that several changes share."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from . import Watch

#: Changes whose wrapper is being run: the class of the program calls that of torch, and each change is made once.
_RUNNING: list[Callable[..., Any]] = []


def with_arguments(owner: Any, change: Callable[[dict[str, Any]], Any]) -> None:
    """Let ``change`` alter the arguments of each object of a class before it is made. They come by name; ``self`` stays out.

    What it returns, unless None, is called with the object once it is made.
    """
    original = owner.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if change in _RUNNING:
            original(self, *args, **kwargs)
            return
        bound = signature.bind(self, *args, **kwargs)
        named = dict(bound.arguments)
        named.pop(next(iter(signature.parameters)))
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                named.update(named.pop(name, {}))
        meet = change(named)
        _RUNNING.append(change)
        try:
            original(self, **named)
        finally:
            _RUNNING.remove(change)
        if meet is not None:
            meet(self)

    owner.__init__ = init


def replace_method(torch: Any, name: str, changed: Callable[[Any], Any]) -> None:
    """Put ``changed(original)`` in the place of a method of tensors.

    Parameters without a shape yet (``LazyLinear``) take only methods that torch has listed, and it lists them as objects.
    """
    original = getattr(torch.Tensor, name)
    method = changed(original)
    without_shape = getattr(sys.modules.get("torch.nn.parameter"), "UninitializedTensorMixin", None)
    listed = getattr(without_shape, "_allowed_methods", [])
    if original in listed:
        listed.append(method)
    setattr(torch.Tensor, name, method)


class Forwards:
    """The forwards of modules that a change has replaced, so that it can be turned off and on."""

    def __init__(self, watch: Watch) -> None:
        self._replaced: list[tuple[Any, Any, Any]] = []  # the module, its forward without the change, and with it
        watch.can_turn(self._turn)

    def replaced(self, module: Any, before: Any) -> None:
        """Note that ``module.forward`` was ``before``, and is another one now."""
        self._replaced.append((module, before, module.forward))

    def _turn(self, on: bool) -> None:
        for module, before, changed in self._replaced:
            module.forward = changed if on else before


class Networks:
    """Calls ``meet`` with each outermost module that has parameters, and its arguments, before its first call.

    After two steps behind the first such call nobody looks. Calls of parts, as of a module that is traced, may count as steps before it.
    """

    def __init__(self, torch: Any, watch: Watch, meet: Callable[[Any, Any, Any], Any]) -> None:
        self.owner, self.meet = torch.nn.Module, meet
        self.original = torch.nn.Module.__call__
        self.met: set[int] = set()
        self.over = False
        self.left = 2  # steps in which to look
        networks = self

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            return networks.call(self, args, kwargs)

        self.replacement = self.owner.__call__ = __call__
        vars(__call__)["networks"] = self
        watch.each_step.append(self.step)

    def call(self, module: Any, args: Any, kwargs: Any) -> Any:
        """Call a module; inside, modules are torch's own again, also for what compiles them."""
        if next(module.parameters(), None) is None:  # a loss
            return self.original(module, *args, **kwargs)
        self.owner.__call__ = self.original
        try:
            if id(module) not in self.met:
                self.met.add(id(module))
                self.meet(module, args, kwargs)
            return self.original(module, *args, **kwargs)
        finally:
            if not self.over:
                self.owner.__call__ = self.replacement

    def step(self) -> None:
        """Note that a step begins."""
        if self.met and self.left:
            self.left -= 1
            if not self.left:
                self.end()

    def end(self) -> None:
        """Give torch its own call back, once all changes that look at networks have ended: each has replaced what it found."""
        self.over = True
        while (last := getattr(self.owner.__call__, "networks", None)) is not None and last.over:
            self.owner.__call__ = last.original


def convolutions(torch: Any, module: Any) -> list[Any]:
    """Return the convolutions in a network."""
    return [part for part in module.modules() if isinstance(part, torch.nn.modules.conv._ConvNd)]
