"""Sends the NVTX range that opens and closes a capture window of nsys.

It is sent where the package ``nvtx`` may not be there, or not yet: it imports NumPy, which reads variables that the program may still
set. So this file makes its calls itself, as the headers of NVTX do (nvtxInit.h, nvtxTypes.h of NVTX 3): it loads the profiler's library,
which asks for tables of pointers to functions and sets them. Standard library only.
"""

from __future__ import annotations

if False:  # importing typing takes milliseconds
    from typing import Any

#: Numbers of NVTX 3: the tables of callbacks and of the version; the sizes of the tables of functions by module, as a client has
#: them; the module with domains, and the functions that are used of it.
_CALLBACKS, _VERSIONS = 1, 3
_SIZES = {1: 16, 2: 9, 3: 15, 4: 7, 5: 16, 6: 7}
_CORE2 = 5
_RANGE_START, _RANGE_END, _REGISTER, _CREATE = 2, 3, 10, 12
_VERSION, _REGISTERED = 3, 3

_kept: list[Any] = []  # what the profiler's library holds pointers to


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


def range_of(library: str, text: str, domain_name: str) -> tuple[Any, Any]:
    """Load the profiler's library; return what begins the range, and what ends it. Raises OSError where that is not possible."""
    import ctypes as c

    exported, of_domains = _client()
    initialize = c.CDLL(library).InitializeInjectionNvtx2
    initialize.argtypes, initialize.restype = [c.c_void_p], c.c_int
    if not initialize(c.cast(exported, c.c_void_p)):
        raise OSError("the profiler takes no NVTX ranges")
    start = c.CFUNCTYPE(c.c_uint64, c.c_void_p, c.c_void_p)(of_domains[_RANGE_START] or 0)
    end = c.CFUNCTYPE(None, c.c_void_p, c.c_uint64)(of_domains[_RANGE_END] or 0)
    register = c.CFUNCTYPE(c.c_void_p, c.c_void_p, c.c_char_p)(of_domains[_REGISTER] or 0)
    domain = c.CFUNCTYPE(c.c_void_p, c.c_char_p)(of_domains[_CREATE] or 0)(domain_name.encode())

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

    registered = register(domain, text.encode())
    about = Attributes(version=_VERSION, size=c.sizeof(Attributes), message_type=_REGISTERED, message=registered)
    _kept.append(about)
    return lambda: start(domain, c.addressof(about)), lambda number: end(domain, number)
