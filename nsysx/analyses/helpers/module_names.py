"""What a module is called where its path alone says nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import cache

from nsysx import units
from nsysx.analyses.helpers.analysis_bounds import KERNEL_NAME_LETTERS
from nsysx.events.attribute import IN_STEP, outside_in
from nsysx.events.kernel_names import computes

#: Indices in a path: "layers.3", "layers.*.2".
_NUMBERS = re.compile(r"(\d+|\*)(\.(\d+|\*))*")
#: What the column module says of work in no module, and how people say it.
_OUTSIDE = {
    IN_STEP: "code outside modules",
    outside_in("optimizer"): "the optimizer",
    outside_in("backward"): "the backward pass",
    outside_in("forward"): "the forward pass",
    outside_in("clip"): "gradient clipping",
    outside_in("data"): "data loading",
    outside_in("evaluation"): "the evaluation",
}


@cache
def folded(name: str) -> str:
    """Return a name with its numbers folded: blocks.3.mlp and blocks.4.mlp become blocks.*.mlp, token_7 becomes token_*.

    A digit within a word is part of it: Conv1d.
    """
    return re.sub(r"(?<![A-Za-z])\d+|\d+(?![A-Za-z\d])", "*", name)


def spoken(module: str, classes: Callable[[str], Collection[str | None]]) -> str:
    """Return a module as people write it: "4 x MoE" for "*" or "r.*.*", "MoE (0)" for "0", "the optimizer" for "(optimizer)".

    ``classes`` returns the class of each module whose whole path a regular expression matches. Other paths stay; "#1", which
    tells networks of one class apart, goes.
    """
    if module in _OUTSIDE:
        return _OUTSIDE[module]
    classes_of = _of_class(module) and classes(r"\d+".join(map(re.escape, module.split("*"))))
    return by_class(module, classes_of) if classes_of else re.sub(r"#[\d*]+", "", module)


def _of_class(module: str) -> bool:
    """Return whether a path has nothing but numbers, or a number in several places: then it is called by its class."""
    return _NUMBERS.fullmatch(module) is not None or module.count("*") > 1


def by_class(module: str, classes: Collection[str | None]) -> str:
    """Return what modules are called whose path says nothing, from the class of each: "4 x MoE", "MoE (0)".

    Without one class for all "4 modules", "4 modules (r.*.*)" or "module 0".
    """
    alike = set(classes)
    name = alike.pop() if len(alike) == 1 else None
    if not name:
        told = "" if _NUMBERS.fullmatch(module) else f" ({module})"
        return f"{units.several(len(classes), 'module')}{told}" if len(classes) > 1 else f"module {module}"
    return f"{len(classes)} x {name}" if len(classes) > 1 else f"{name} ({module})"


def kernel_called(name: str) -> str:
    """Return what a kernel computes, see `kernel_names.computes`, as part of a sentence: "the kernel softmax_warp_forward".

    A longer name is cut where it says what it computes with, and no more how.
    """
    plain = computes(name).rpartition("::")[2]
    return f"the kernel {plain if len(plain) <= KERNEL_NAME_LETTERS else f'{plain[: KERNEL_NAME_LETTERS - 1]}…'}"
