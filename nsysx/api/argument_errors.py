"""Errors of the library in the words of a call: ``rank=7``, not ``--rank 7``."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Container
from typing import ParamSpec, TypeVar

from nsysx.errors import NsysxError

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: An option, alone or with the value that stands before a colon at the start of a message.
_WITH_VALUE = re.compile(r"^--([a-z][a-z-]*) ((?!\(\w).*?): ", re.DOTALL)
_OPTION = re.compile(r"--([a-z][a-z-]*)")
#: A command for a shell, which keeps its options.
_COMMAND = re.compile(r"\bnsysx? [a-z]+ ")


def python_words(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the function with errors that name its arguments as a caller in Python writes them."""
    arguments = inspect.signature(function).parameters

    @functools.wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except NsysxError as error:
            error.message = worded(error.message, arguments)
            error.hint = worded(error.hint, arguments)
            error.args = (error.message,)
            raise

    return called


def worded(text: str, arguments: Container[str]) -> str:
    """Return a text with each option that is one of these arguments named as that; a text with a command stays as it is."""
    if _COMMAND.search(text):
        return text

    def name(match: re.Match[str]) -> str:
        argument = match[1].replace("-", "_")
        if argument not in arguments:
            return match[0]
        if match.re is _OPTION:
            return argument
        return f"{argument}={match[2] if match[2].isdigit() else repr(match[2])}: "

    return _OPTION.sub(name, _WITH_VALUE.sub(name, text))
