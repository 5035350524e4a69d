"""Loads the probe's parts so that each of their imports comes from its own place, whatever the program has on its path.

A program may have its own ``json.py`` or ``nvtx.py`` beside its script. The probe must not run them, and what the probe needs must
not become what the program's ``import json`` gets. So the parts have their own ``__import__``: a module of the standard library is
taken from ``sys.modules`` only if it is Python's own, else from a private copy; ``nvtx`` is the package with the compiled library.

Only ``nsysx_probe`` is reserved: a module of the program with this name cannot be imported under the profiler.
"""

from __future__ import annotations

import builtins
import os
import sys

# Every Python has loaded these two; importing importlib.machinery and importlib.util would take most of a millisecond.
from _frozen_importlib import module_from_spec
from _frozen_importlib_external import PathFinder

if False:
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
_HOME = os.path.dirname(os.__file__)  # noqa: PTH120
_STANDARD = [_HOME, os.path.join(_HOME, "lib-dynload")]  # noqa: PTH118
_OTHERS = (os.path.join(_HOME, "site-packages"), os.path.join(_HOME, "dist-packages"))  # noqa: PTH118
_private: dict[str, Any] = {}  # copies that the program does not see, by name


def load(part: str) -> Any:
    """Return a part of the probe, such as "probe"."""
    return _part(f"nsysx_probe.{part}")


def _import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    """Import as ``builtins.__import__`` does, for the probe's parts and for private copies."""
    absolute = name
    if level:
        base = globals["__package__"].rsplit(".", level - 1)[0]
        absolute = f"{base}.{name}" if name else base
    top = absolute.partition(".")[0]
    ordinary = (*sys.builtin_module_names, "torch")
    if top == "nsysx_probe":
        find = _part
    elif top == "nvtx":
        find = _nvtx
    elif top in getattr(sys, "stdlib_module_names", (top,)) and top not in ordinary:
        find = _standard
    else:
        find = _ordinary
    module = find(absolute)
    if not fromlist:
        return module if level else find(top)
    for each in fromlist:
        if hasattr(module, "__path__") and not hasattr(module, each):
            try:
                find(f"{absolute}.{each}")
            except ImportError:
                continue
    return module


def _ordinary(name: str) -> Any:
    builtins.__import__(name)
    return sys.modules[name]


def _execute(spec: Any, into: dict[str, Any]) -> Any:
    """Make the module of a spec and execute it, with the ``__import__`` of this file."""
    module = into[spec.name] = module_from_spec(spec)
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
    try:
        spec.loader.exec_module(module)
    except BaseException:
        into.pop(spec.name, None)
        raise
    return module


def _part(name: str) -> Any:
    if name not in sys.modules:
        spec = PathFinder.find_spec(name, [_HERE])
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        setattr(sys.modules["nsysx_probe"], name.rpartition(".")[2], _execute(spec, sys.modules))
    return sys.modules[name]


def _own(module: Any) -> bool:
    """Return whether a loaded module is the standard library's."""
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    file = getattr(module, "__file__", None) or origin or ""
    return origin in ("built-in", "frozen") or (file.startswith(_HOME + os.sep) and not file.startswith(_OTHERS))


def _standard(name: str) -> Any:
    module = sys.modules.get(name)
    if module is not None and _own(module):
        return module
    if name in _private:
        return _private[name]
    parent = name.rpartition(".")[0]
    spec = PathFinder.find_spec(name, _standard(parent).__path__ if parent else _STANDARD)
    if spec is None or spec.loader is None:  # a Python that keeps its library elsewhere
        return _ordinary(name)
    theirs = {name: sys.modules[name]} if name in sys.modules else {}
    try:
        sys.modules.pop(name, None)
        _private[name] = None
        _private[name] = _execute(spec, sys.modules)  # while it is executed, it may look itself up there
    finally:
        if _private[name] is None:
            del _private[name]
        sys.modules.pop(name, None)
        sys.modules.update(theirs)
    if parent in _private:
        setattr(_private[parent] or sys.modules[parent], name.rpartition(".")[2], _private[name])
    return _private[name]


def _nvtx(name: str) -> Any:
    """Return the nvtx package or a module of it; one in front of it on the path, which is not that package, is not run."""
    if "nvtx" in _private:
        return _private[name] if _private["nvtx"] is not None else _ordinary(name)  # it is being loaded
    if "nvtx" in sys.modules and (sys.modules["nvtx"] is None or hasattr(sys.modules["nvtx"], "get_domain")):
        return _ordinary(name)
    specs = [spec for entry in sys.path if (spec := PathFinder.find_spec("nvtx", [entry])) is not None]
    real = [s for s in specs if any(os.path.isdir(f"{p}/_lib") for p in s.submodule_search_locations or ())]  # noqa: PTH112
    if not real and specs:
        raise ModuleNotFoundError("No module named 'nvtx', only a module of the program with this name", name="nvtx")
    if not specs:  # for another finder than that of the path
        return _ordinary(name)
    theirs = {n: sys.modules.pop(n) for n in list(sys.modules) if n.partition(".")[0] == "nvtx"}
    try:
        _private["nvtx"] = None
        _execute(real[0], sys.modules)
        _private.update({n: m for n, m in sys.modules.items() if n.partition(".")[0] == "nvtx"})
    finally:
        if _private["nvtx"] is None:
            del _private["nvtx"]
        for n in [n for n in sys.modules if n.partition(".")[0] == "nvtx"]:
            del sys.modules[n]
        sys.modules.update(theirs)
    return _private[name]
