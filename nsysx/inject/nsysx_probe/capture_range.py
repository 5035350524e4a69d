"""The NVTX range that opens and closes nsys's capture windows where a run has two of them (``NSYSX_STEPS=windows``).

The first window opens when Python starts, before CUDA is loaded, so it holds the cold start. It opens in one process only, the
first that runs the probe: what nsys captures is decided for all processes at once.

So early the package ``nvtx`` must not be imported: it imports NumPy, which reads variables that the program may still set. So this
file makes its calls itself, as the headers of NVTX do (nvtxInit.h, nvtxTypes.h of NVTX 3): it loads the profiler's library,
which asks for tables of pointers to functions and sets them. Standard library only; ctypes is imported only in such a run.
"""

from __future__ import annotations

import os

if False:  # importing typing takes milliseconds
    from typing import Any

#: What nsys waits for: ``--nvtx-capture=TEXT@DOMAIN``. No other range of the domain has this text.
TEXT, DOMAIN = "capture-window", "nsysx"
#: Says that a run has two windows.
MODE = "windows"

#: Numbers of NVTX 3: the table of callbacks; its modules without and with domains, which have the same size, and the functions
#: that are used of the latter. nsys wants both.
_CALLBACKS, _CORE, _CORE2, _SIZE = 1, 1, 5, 16
_RANGE_START, _RANGE_END, _REGISTER, _CREATE = 2, 3, 10, 12
_VERSION, _REGISTERED = 3, 3

_calls: list[Any] = []  # functions without arguments that begin and end the range
_kept: list[Any] = []  # what the profiler's library holds pointers to
_open: list[int] = []  # the id of the open range


def claim() -> bool:
    """Return whether this process is the one that opens windows: the first that asks."""
    folder = os.environ.get("NSYSX_PROBE_DIR")
    if not folder:
        return False
    try:
        os.close(os.open(f"{folder}/windows", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except OSError:
        return False
    return True


def prepare(library: str) -> None:
    """Load the profiler's library, and make the range's domain and text. Raises OSError where that is not possible."""
    import ctypes as c

    pointers = {module: (c.c_void_p * _SIZE)() for module in (_CORE, _CORE2)}  # set by the library
    places = {
        module: (c.c_void_p * _SIZE)(*(c.addressof(slots) + i * c.sizeof(c.c_void_p) for i in range(_SIZE)))
        for module, slots in pointers.items()
    }

    def tables(module: int, out_table: Any, out_size: Any) -> int:
        if module not in places:
            return 0
        if out_table:
            out_table[0] = c.addressof(places[module])
        if out_size:
            out_size[0] = _SIZE
        return 1

    asked = c.CFUNCTYPE(c.c_int, c.c_int, c.POINTER(c.c_void_p), c.POINTER(c.c_uint))(tables)

    class Callbacks(c.Structure):
        _fields_ = (("size", c.c_size_t), ("tables", c.c_void_p))

    callbacks = Callbacks(c.sizeof(Callbacks), c.cast(asked, c.c_void_p))

    def export(table_id: int) -> Any:
        return c.addressof(callbacks) if table_id == _CALLBACKS else None

    exported = c.CFUNCTYPE(c.c_void_p, c.c_uint)(export)
    _kept[:] = [pointers, places, asked, callbacks, exported]
    initialize = c.CDLL(library).InitializeInjectionNvtx2
    initialize.argtypes, initialize.restype = [c.c_void_p], c.c_int
    if not initialize(c.cast(exported, c.c_void_p)):
        raise OSError("the profiler takes no NVTX ranges")
    of_domains = pointers[_CORE2]
    start = c.CFUNCTYPE(c.c_uint64, c.c_void_p, c.c_void_p)(of_domains[_RANGE_START] or 0)
    end = c.CFUNCTYPE(None, c.c_void_p, c.c_uint64)(of_domains[_RANGE_END] or 0)
    register = c.CFUNCTYPE(c.c_void_p, c.c_void_p, c.c_char_p)(of_domains[_REGISTER] or 0)
    domain = c.CFUNCTYPE(c.c_void_p, c.c_char_p)(of_domains[_CREATE] or 0)(DOMAIN.encode())

    class Attributes(c.Structure):
        _fields_ = (
            ("version", c.c_uint16),
            ("size", c.c_uint16),
            ("category", c.c_uint32),
            ("color_type", c.c_int32),
            ("color", c.c_uint32),
            ("payload_type", c.c_int32),
            ("reserved", c.c_int32),
            ("payload", c.c_uint64),
            ("message_type", c.c_int32),
            ("message", c.c_void_p),
        )

    text = register(domain, TEXT.encode())
    about = Attributes(version=_VERSION, size=c.sizeof(Attributes), message_type=_REGISTERED, message=text)
    _kept.append(about)
    _calls[:] = [lambda: start(domain, c.addressof(about)), lambda number: end(domain, number)]


def begin() -> None:
    """Open a window; nsys needs 0.2 s for it."""
    if not _open:
        _open.append(_calls[0]())


def end() -> None:
    """Close the window; nsys needs 3 s for it."""
    if _open:
        _calls[1](_open.pop())


def ours() -> bool:
    """Return whether this process opened the first window."""
    return bool(_calls)


def start() -> None:
    """Open the first window if this run has two, and this process is the one that opens them."""
    library = os.environ.get("NVTX_INJECTION64_PATH", "")
    if os.environ.get("NSYSX_STEPS") == MODE and library and claim():
        try:
            prepare(library)
            begin()
        except Exception:
            _calls.clear()
