"""Keeps the probe's sitecustomize in front of another one where a launcher puts its own first (``opentelemetry-instrument``).

Python imports the first sitecustomize of PYTHONPATH only, and that of a launcher need not run the next: the program that it becomes
or starts would be without the probe. So a process that has not imported torch passes this folder on in front of the first one with
a sitecustomize, if it passes it on at all; ours runs the other one (``bootstrap.next_sitecustomize``). What the process itself reads
in ``os.environ`` stays as it was set. Once torch is there, the functions are Python's own again.

No line here fails by what a caller passes: what is not understood goes on as it is. Standard library only.
"""

from __future__ import annotations

import os
import sys

if False:  # importing typing takes milliseconds, and only readers and type checkers need it
    from collections.abc import Callable
    from typing import Any

#: The folder of our sitecustomize, as it stands in PYTHONPATH.
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
_NAME = "PYTHONPATH"
_own: list[tuple[Any, str, Any]] = []  # a module, and the name and value of its function that is exchanged


def ahead(path: str) -> str:
    """Return a PYTHONPATH with our folder first, if it holds that folder behind one with a sitecustomize."""
    folders = path.split(os.pathsep)
    if _HERE not in folders:
        return path
    before = folders[: folders.index(_HERE)]
    if any(_customizes(folder) for folder in before):
        return os.pathsep.join([_HERE, *(f for f in folders if f != _HERE)])
    return path


def _customizes(folder: str) -> bool:
    exists, start = os.path.exists, f"{folder}/sitecustomize"
    return bool(folder) and "\0" not in folder and (exists(start + ".py") or exists(start + "/__init__.py"))


def _put(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Of ``os.putenv``, which ``os.environ`` calls: what the process inherits from C."""
    if len(arguments) == 2 and arguments[0] == os.fsencode(_NAME) and isinstance(arguments[1], bytes):
        return arguments[0], os.fsencode(ahead(os.fsdecode(arguments[1])))
    return arguments


def _with_environment(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Of a function whose third argument is the environment of the new program."""
    if len(arguments) > 2 and isinstance(arguments[2], (dict, type(os.environ))):
        path = arguments[2].get(_NAME)
        if isinstance(path, str) and ahead(path) != path:
            return (*arguments[:2], {**arguments[2], _NAME: ahead(path)}, *arguments[3:])
    return arguments


def _listed(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Of the function that `subprocess` calls, whose sixth argument is a list of b"NAME=VALUE", or None."""
    start = os.fsencode(_NAME + "=")
    if len(arguments) > 5 and isinstance(arguments[5], list) and all(isinstance(e, bytes) for e in arguments[5]):
        env = [start + _put((start[:-1], e[len(start) :]))[1] if e.startswith(start) else e for e in arguments[5]]
        return (*arguments[:5], env, *arguments[6:])
    return arguments


class _Passes:
    """Stands for a built-in function, and is equal to it (``os.execve in os.supports_fd``)."""

    def __init__(self, module: str, function: Any, change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> None:
        self.__module__, self.__doc__ = module, function.__doc__
        self._function = function
        self._change = change

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._function(*self._change(arguments), **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __eq__(self, other: object) -> bool:
        return bool(self._function == other) or self is other

    def __hash__(self) -> int:
        return hash(self._function)

    def __repr__(self) -> str:
        return repr(self._function)

    def __reduce__(self) -> str:
        return str(self._function.__name__)  # of its module


def start() -> None:
    """Exchange the functions that pass an environment on, if this process has our folder to pass on."""
    if os.name != "posix" or _own or _HERE not in os.environ.get(_NAME, "").split(os.pathsep):
        return
    import _posixsubprocess

    for module, name, change in (
        (os, "putenv", _put),
        (os, "execve", _with_environment),
        (os, "posix_spawn", _with_environment),
        (os, "posix_spawnp", _with_environment),
        (_posixsubprocess, "fork_exec", _listed),
    ):
        function = getattr(module, name, None)
        if function is not None:
            _own.append((module, name, function))
            setattr(module, name, _Passes(module.__name__, function, change))


def stop() -> None:
    """Give Python its functions back."""
    for module, name, function in _own:
        if type(getattr(module, name)) is _Passes:
            setattr(module, name, function)
    subprocess = sys.modules.get("subprocess")
    if type(getattr(subprocess, "_fork_exec", None)) is _Passes:
        subprocess._fork_exec = _own[-1][2]  # type: ignore[union-attr] # it has the attribute
    _own.clear()
