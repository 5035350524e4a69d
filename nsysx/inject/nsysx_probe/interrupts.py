"""Exceptions of the program that strike while the probe's code runs, and functions in which none can strike.

Python runs a signal's handler between two instructions of whatever function runs, and an exception of the handler (a time limit, a
scheduler's SIGTERM, Ctrl-C) then goes through that function. If it is one of the probe's, the exception is still the program's: the
probe closes what it has opened and raises it again. From Python 3.11 on, handlers run only where a function begins, after a call,
and where a loop begins again. So state that belongs together is changed without a call in between, and a function that must not be
left out is ``shielded``: no handler runs where it begins.

From Python 3.13 on, handlers run before a loop begins again, and its compiler leaves out of the ``try`` around the loop every jump
back that a condition makes (``for ...: if ...:``, comprehensions, ``while``): what is raised there passes each ``finally``. Where
that must not be, the code has its jumps ``covered``.
"""

from __future__ import annotations

import dis
import itertools
import signal
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

#: Without a bound: from Python 3.12 on that is looked at by an import of typing that a private copy of it does not answer.
_Function = TypeVar("_Function")

#: The flags of a code that can be given up: a generator's, a coroutine's, of both kinds, and of an asynchronous generator.
SUSPENDED = 0x20 | 0x80 | 0x100 | 0x200

#: The signals of timers.
_TIMERS = signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF

#: The code of Python's own function that lets a program handle a signal.
SETS_HANDLER: CodeType | None = getattr(signal.signal, "__code__", None)

#: The argument of RESUME after ``await``: from this value on it does not check for signals (CPython 3.11 and newer).
_AFTER_AWAIT = 3


def of_program(error: BaseException) -> bool:
    """Return whether an exception that the probe has caught is the program's: that of a signal handler, or sent to its thread.

    Not every exception below the probe is a failure of the probe: Ctrl-C and exits never are. Any other one is a handler's if
    the traceback goes through a function that was called with the interrupted frame, as Python calls handlers, or through the
    code of a handler. An exception that another thread sends (``PyThreadState_SetAsyncExc``) has no frame of its own: it is
    known by a class that neither Python nor torch defines.
    """
    if not isinstance(error, Exception):
        return True
    step, above = error.__traceback__, None
    codes = _handlers()
    while step is not None:
        frame = step.tb_frame
        if above is not None and (frame.f_code in codes or _called_as_handler(frame, above)):
            return True
        above, step = frame, step.tb_next
    if above is None or not above.f_globals.get("__name__", "").startswith("nsysx_probe."):
        return False
    defined = type(error).__module__.partition(".")[0]
    return defined not in {"builtins", "torch", "nvtx", *getattr(sys, "stdlib_module_names", ())}


def handles_timer() -> bool:
    """Return whether the program handles a timer, whose exceptions must reach it, wherever they strike, so in functions of ours, too."""
    return any(callable(signal.getsignal(number)) for number in _TIMERS)


def sets_timer(frame: FrameType) -> bool:
    """Return whether a call of ``SETS_HANDLER`` that begins in this frame is for a timer."""
    return frame.f_locals.get(frame.f_code.co_varnames[0]) in _TIMERS


def _handlers() -> list[CodeType]:
    """Return the codes of all Python functions that handle a signal now."""
    codes = []
    for number in range(1, signal.NSIG):
        try:
            handler: Any = signal.getsignal(number)
        except ValueError:
            continue
        if callable(handler):
            handler = getattr(handler, "func", handler)  # of functools.partial
            code = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
            codes += [code] if code is not None else []
    return codes


def _called_as_handler(frame: FrameType, above: FrameType) -> bool:
    """Return whether the function of ``frame`` was called with the frame ``above`` it, as a handler is."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + 2  # two for *args and **kwargs
    given = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    return any(value is above or (type(value) is tuple and any(v is above for v in value)) for value in given)


def without_signals(code: CodeType) -> CodeType:
    """Return the code, and that of the functions in it, changed so that Python does not check for signals when it enters them."""
    parts = tuple(without_signals(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    changed = bytearray(code.co_code)
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RESUME":
            changed[instruction.offset + 1] = _AFTER_AWAIT
            break
    return code.replace(co_code=bytes(changed), co_consts=parts)


def shielded(function: _Function) -> _Function:
    """Return the function, in which no signal's handler runs before its first call.

    Before Python 3.11, and in other interpreters, it is enough if the function begins with ``try``.
    """
    has_table = sys.implementation.name == "cpython" and sys.version_info >= (3, 11)
    return _recoded(function, without_signals) if has_table else function


def _recoded(function: _Function, change: Callable[[CodeType], CodeType]) -> _Function:
    """Return the function with its code changed."""
    try:
        changed: Any = function
        changed.__code__ = change(changed.__code__)
    except Exception:
        pass  # an unknown bytecode: as every other function
    return function


class _Handled(NamedTuple):
    """An entry of a code's exception table, in its order; places are in units of two bytes."""

    start: int
    length: int
    handler: int
    depth_and_lasti: int


def _read(table: bytes) -> list[_Handled]:
    """Return the entries of an exception table (CPython, InternalDocs/exception_handling.md)."""
    left = iter(table)

    def number(byte: int) -> int:
        value = byte & 63
        while byte & 64:
            byte = next(left)
            value = value << 6 | byte & 63
        return value

    return [_Handled(number(byte), *(number(next(left)) for _ in range(3))) for byte in left]


def _written(entries: list[_Handled]) -> bytes:
    """Return the exception table of these entries."""

    def number(value: int) -> Iterator[int]:
        parts = [value & 63]
        while value := value >> 6:
            parts.append(value & 63 | 64)
        return reversed(parts)

    tables = [[byte for value in entry for byte in number(value)] for entry in sorted(entries)]
    return b"".join(bytes([table[0] | 128, *table[1:]]) for table in tables)


def covered(code: CodeType) -> CodeType:
    """Return the code in which each jump back to a place inside a ``try`` is inside it, too."""
    if sys.version_info < (3, 13):
        return code
    entries = _read(code.co_exceptiontable)

    def covering(offset: int) -> _Handled | None:
        return next((e for e in entries if e.start <= offset // 2 < e.start + e.length), None)

    added = []
    instructions = list(dis.get_instructions(code))
    for jump, following in itertools.pairwise(instructions):
        if jump.opname == "JUMP_BACKWARD" and covering(jump.offset) is None:
            around = covering(jump.argval)
            if around is not None:
                start = jump.offset // 2
                added.append(around._replace(start=start, length=following.offset // 2 - start))
    return code.replace(co_exceptiontable=_written(entries + added)) if added else code


def with_covered_jumps(function: _Function) -> _Function:
    """Return the function, whose ``try`` and ``with`` hold wherever a handler raises."""
    return _recoded(function, covered)
