"""The NVTX range that opens and closes nsys's capture windows where a run has two of them (``NSYSX_STEPS=windows``).

The first window opens when Python starts, before CUDA is loaded, so it holds the cold start. It opens in one process only, the
first that runs the probe: what nsys captures is decided for all processes at once.

So early the package ``nvtx`` must not be imported: it imports NumPy, which reads variables that the program may still set. So this
file makes its calls itself, as the headers of NVTX do (nvtxInit.h, nvtxTypes.h of NVTX 3): it loads the profiler's library,
which asks for tables of pointers to functions and sets them. Standard library only; ctypes is imported only in such a run.
"""

from __future__ import annotations

import _thread
import os
import time

if False:  # importing typing takes milliseconds
    from typing import Any

#: What nsys waits for: ``--nvtx-capture=TEXT@DOMAIN``. No other range of the domain has this text.
TEXT, DOMAIN = "capture-window", "nsysx"
#: The setting of nsys with which nothing of it stays in the program's calls after a window.
DETACHED = "CuptiFinalizeOnStop=true"
#: Says that a run has two windows.
MODE = "windows"
#: Files beside the probe's own. The probe makes them: the last window of steps has closed; a window is open; a step has ended in it.
CLOSED, OPEN, STEPPED = "windows-closed", "window-open", "window-has-steps"
#: ``nsysx run`` makes these: the open window has reached the limit and is to close with a step, or at once.
LIMIT, CUT = "window-limit", "window-cut"
#: How often a thread looks for the last of them while a window is open (s): a program without steps calls nothing of the probe's.
_LOOK_S = 0.25

#: Numbers of NVTX 3: the tables of callbacks and of the version; the sizes of the tables of functions by module, as a client has
#: them; the module with domains, and the functions that are used of it.
_CALLBACKS, _VERSIONS = 1, 3
_SIZES = {1: 16, 2: 9, 3: 15, 4: 7, 5: 16, 6: 7}
_CORE2 = 5
_RANGE_START, _RANGE_END, _REGISTER, _CREATE = 2, 3, 10, 12
_VERSION, _REGISTERED = 3, 3

# Functions that begin and end the range, the last one while no other thread of Python runs.
_calls: list[Any] = []
_claimed: list[str] = []  # the file that says that this process opens the windows; empty in others
# Whether the window was closed by the program that this one has replaced; empty if there was none.
_replaced: list[bool] = []
_kept: list[Any] = []  # what the profiler's library holds pointers to
_open: list[Any] = []  # the id of the open range
_limited: list[str] = []  # where the files about the limit are; empty without a limit
_ending = _thread.allocate_lock()


def _write(path: str, text: bytes, how: int) -> None:
    """Write to a file and close it at once: a program may close every file that it does not know."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY | how)
    try:
        os.write(file, text)
    finally:
        os.close(file)


def claim() -> bool:
    """Return whether this process is the one that opens windows: the first that asks.

    A program that has replaced itself by another one (exec) has the process id of the first, but not its range, which nothing else
    can end: the other one opens no window.
    """
    folder = os.environ.get("NSYSX_PROBE_DIR")
    if not folder:
        return False
    path, pid = f"{folder}/windows", str(os.getpid()).encode()
    try:
        _write(path, pid, os.O_EXCL)
        _claimed.append(path)
        return True
    except FileExistsError:
        with open(path, "rb") as file:  # noqa: PTH123
            owner, _, closed = file.read().partition(b" ")
        _replaced[:] = [bool(closed)] if owner == pid else []
    except OSError:
        pass
    return False


def replaced() -> bool:
    """Return whether this program has replaced the one that opened the first window."""
    return bool(_replaced)


def unrecorded() -> bool:
    """Return whether nothing of this program is recorded: the one that it has replaced had closed its window."""
    return _replaced == [True]


def _client() -> tuple[Any, Any]:
    """Return what a client of NVTX shows to the profiler's library: the function that it asks, and the pointers that it sets."""
    import ctypes as c

    pointers = {module: (c.c_void_p * size)() for module, size in _SIZES.items()}  # set by the library
    places = {
        module: (c.c_void_p * len(slots))(*(c.addressof(slots) + i * c.sizeof(c.c_void_p) for i in range(len(slots))))
        for module, slots in pointers.items()
    }

    def tables(module: int, out_table: Any, out_size: Any) -> int:
        if module not in places:
            return 0
        if out_table:
            out_table[0] = c.addressof(places[module])
        if out_size:
            out_size[0] = _SIZES[module]
        return 1

    asked = c.CFUNCTYPE(c.c_int, c.c_int, c.POINTER(c.c_void_p), c.POINTER(c.c_uint))(tables)

    class Callbacks(c.Structure):
        _fields_ = (("size", c.c_size_t), ("tables", c.c_void_p))

    callbacks = Callbacks(c.sizeof(Callbacks), c.cast(asked, c.c_void_p))

    class Versions(c.Structure):
        _fields_ = (("size", c.c_size_t), ("version", c.c_uint32), ("reserved", c.c_uint32), ("told", c.c_void_p))

    told = c.CFUNCTYPE(None, c.c_uint32)(lambda _version: None)
    versions = Versions(c.sizeof(Versions), _VERSION, 0, c.cast(told, c.c_void_p))

    def export(table_id: int) -> Any:
        exported_tables = {_CALLBACKS: callbacks, _VERSIONS: versions}
        return c.addressof(exported_tables[table_id]) if table_id in exported_tables else None

    exported = c.CFUNCTYPE(c.c_void_p, c.c_uint)(export)
    _kept[:] = [pointers, places, asked, callbacks, told, versions, exported]
    return exported, pointers[_CORE2]


def prepare(library: str) -> None:
    """Load the profiler's library, and make the range's domain and text. Raises OSError where that is not possible."""
    import ctypes as c

    exported, of_domains = _client()
    initialize = c.CDLL(library).InitializeInjectionNvtx2
    initialize.argtypes, initialize.restype = [c.c_void_p], c.c_int
    if not initialize(c.cast(exported, c.c_void_p)):
        raise OSError("the profiler takes no NVTX ranges")
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
    # The same with the interpreter's lock kept: no other thread launches anything meanwhile.
    held = c.PYFUNCTYPE(None, c.c_void_p, c.c_uint64)(of_domains[_RANGE_END] or 0)
    about = Attributes(version=_VERSION, size=c.sizeof(Attributes), message_type=_REGISTERED, message=text)
    _kept.append(about)
    _calls[:] = [
        lambda: start(domain, c.addressof(about)),
        lambda number: end(domain, number),
        lambda number: held(domain, number),
    ]


def begin() -> None:
    """Open a window; nsys needs 0.2 s for it."""
    if not _open:
        _open.append(_calls[0]())
        if _limited:
            _sign(OPEN, made=True)
            _thread.start_new_thread(_watch, (_open[0],))


def end(*, alone: bool = False) -> bool:
    """Close the window and return whether one was open; nsys needs 3 s for it, also if another thread closes it.

    ``alone``: no other thread of Python runs meanwhile.
    """
    with _ending:
        if not _open:
            return False
        try:
            if _claimed:
                _write(_claimed[0], b" closed", os.O_APPEND)
        except OSError:  # a full disk
            pass
        try:
            _calls[-1 if alone else 1](_open.pop())
        finally:
            if _limited:
                _sign(STEPPED, made=False)
                _sign(OPEN, made=False)
        return True


def _sign(name: str, *, made: bool) -> None:
    """Make or remove one of the files; a folder that takes none is no failure of the program."""
    try:
        if made:
            os.close(os.open(f"{_limited[0]}/{name}", os.O_CREAT | os.O_WRONLY))
        else:
            os.unlink(f"{_limited[0]}/{name}")  # noqa: PTH108 - importing pathlib takes milliseconds
    except OSError:
        pass


def _watch(window: Any) -> None:
    """Close the window, in a thread of its own, if ``nsysx run`` asks for it."""
    try:
        while _open == [window]:
            time.sleep(_LOOK_S)
            if os.path.exists(f"{_limited[0]}/{CUT}"):  # noqa: PTH110
                from . import draining

                end(alone=bool(draining.drain_beside()))
                return
    except Exception:  # the interpreter is going
        pass


def step_ended(first: bool) -> bool:
    """Note the ``first`` step that has ended in the open window, and return whether the window has reached the limit."""
    if not _limited:
        return False
    if first:
        _sign(STEPPED, made=True)
    return os.path.exists(f"{_limited[0]}/{LIMIT}")  # noqa: PTH110


def closed() -> bool:
    """Return whether the window was closed at the limit, while the program was in the middle of something."""
    return bool(_limited) and not _open


def ours() -> bool:
    """Return whether this process opened the first window."""
    return bool(_calls)


def of_rank() -> bool:
    """Return whether this process is a rank of a job with two windows."""
    return bool(os.environ.get("NSYSX_JOB") and os.environ.get("LOCAL_RANK")) and os.environ.get("NSYSX_STEPS") == MODE


def _may_open() -> bool:
    """Return whether this process may open windows: any in a program of one process, of a job the first rank of the node."""
    return not os.environ.get("NSYSX_JOB") or os.environ.get("LOCAL_RANK") == "0"


def start() -> None:
    """Open the first window if this run has two, and this process is the one that opens them."""
    library = os.environ.get("NVTX_INJECTION64_PATH", "")
    if os.environ.get("NSYSX_STEPS") == MODE and library and _may_open() and claim():
        if os.environ.get("NSYSX_LIMIT"):
            _limited.append(os.environ["NSYSX_PROBE_DIR"])
        try:
            prepare(library)
            begin()
        except Exception:
            _calls.clear()


def fall_back(backend: Any) -> None:
    """Open the first window through the probe's own calls, now that there are some, if the library refused those of this file."""
    if _claimed and not _calls and backend.name.startswith("nvtx"):
        text = backend.prepare(TEXT)
        _calls[:] = [lambda: backend.start(text), backend.end]
        begin()
