"""What a dataset holds, as checksums of some of it: ranks with a dataset each hold something else, or look at the number of the rank.

Only what lies in the memory of the program is read, and of it no more than some numbers: no file, no array that is mapped from one, and
nothing that would call a method of the dataset.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import PurePath
from types import CodeType, FunctionType
from typing import Any

from .changes import is_library
from .probe_bounds import (
    FEWEST_BATCH_VALUES,
    MOST_DATASET_ITEMS,
    MOST_DATASET_VALUES,
    MOST_DATASETS,
    MOST_PART_NUMBERS,
)
from .qualified_names import held
from .settings_state import asked
from .tensor_checksum import some_numbers

_PLAIN = (bool, int, float, str, bytes, type(None), PurePath)
_RANK = re.compile(r"(^|_)rank(_|$)")
#: Devices are of each rank, whatever the data.
_DEVICE = re.compile(r"cuda(:\d+)?$")


def dataset_facts(torch: Any, dataset: Any, collate: Any = None) -> dict[str, Any]:
    """Return checksums of what a dataset and those inside of it hold, by name, and whether a method, or ``collate``, is ``of_rank``.

    ``data``: arrays of more than one number for each sample, and lists of paths and texts; ``columns``: one number or name for each, such
    as labels; ``texts``: paths and the like; ``numbers``: options.
    """
    facts: dict[str, Any] = {
        "data": {},
        "columns": {},
        "texts": {},
        "numbers": {},
        "of_rank": _collates_by_rank(collate),
    }
    for path, each in _datasets(dataset):
        facts["of_rank"] = facts["of_rank"] or _looks_at_rank(type(each))
        for name, value in list((asked(held, each) or {}).items())[:MOST_DATASET_VALUES]:
            kind, number = asked(_fact, torch, value) or ("", 0)
            if kind:
                facts[kind][f"{path}{name}"] = number
    return facts


def _datasets(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Yield a dataset and those that it takes samples of, with where they are held."""
    left: list[tuple[str, Any]] = [("", dataset)]
    for _ in range(MOST_DATASETS):
        if not left:
            return
        path, each = left.pop(0)
        yield path, each
        values = asked(held, each) or {}  # a list may be a dataset
        inner, several = values.get("dataset"), values.get("datasets")
        left += [] if inner is None else [(f"{path}dataset.", inner)]
        if isinstance(several, (list, tuple)):
            left += [(f"{path}datasets.{n}.", dataset) for n, dataset in enumerate(several[:MOST_DATASETS])]


def _fact(torch: Any, value: Any) -> tuple[str, int] | None:
    """Return the kind of a value and a checksum of it, None where it is not looked at."""
    if isinstance(value, PurePath) or (isinstance(value, str) and not _DEVICE.match(value)):
        return "texts", _checksum([str(value)])
    if isinstance(value, (bool, int, float, type(None))):
        return "numbers", _checksum([value])
    items = _items(torch, value)
    if items is None:
        return None
    shape = _shape(value)
    column = len(shape) == 1 and _is_column(value)
    several = len(items) if column else len(set(map(repr, items)))
    kind = "columns" if column else "data"
    return (kind if several >= FEWEST_BATCH_VALUES else "numbers"), _checksum([shape, *items])


def _is_column(values: Any) -> bool:
    """Return whether these are one number for each sample, or names in a folder that may be of each rank, also with a number."""
    first = values[0]
    while type(first) in (list, tuple) and first:
        first = first[0]
    number = isinstance(first, (int, float)) or (hasattr(first, "ndim") and first.ndim == 0)
    return number or (isinstance(first, str) and not first.startswith("/") and " " not in first)


def _checksum(items: list[Any]) -> int:
    return zlib.crc32(repr(items).encode())


def _shape(value: Any) -> list[int]:
    shape = getattr(value, "shape", None)
    return [len(value)] if shape is None else [int(size) for size in shape]


def _items(torch: Any, value: Any, *, inside: bool = False) -> list[Any] | None:
    """Return some numbers or texts of what holds many of them, None of anything else; ``inside``: it is one of many itself."""
    numpy: Any = sys.modules.get("numpy")
    if type(value) is torch.Tensor:
        seen = value.device.type == "cpu" and value.layout == torch.strided and not value.is_quantized
        with torch._C.DisableTorchFunction(), torch.no_grad():
            return some_numbers(torch, value.detach(), MOST_PART_NUMBERS) if seen and value.numel() else None
    if numpy is not None and type(value) is numpy.ndarray:
        return None if value.dtype.kind not in "biufUS" or _mapped(numpy, value) else _of_array(numpy, value)
    if type(value) not in (list, tuple) or not value:
        return None
    apart = -(-len(value) // MOST_DATASET_ITEMS)
    items: list[Any] = []
    for item in value[::apart]:
        if isinstance(item, _PLAIN):
            items.append(str(item) if isinstance(item, PurePath) else item)
        elif inside or (more := _items(torch, item, inside=True)) is None:
            return None
        else:
            items += more[:MOST_DATASET_ITEMS]
    return items


def _of_array(numpy: Any, value: Any) -> list[Any]:
    apart = -(-value.size // MOST_PART_NUMBERS) | 1
    numbers: list[Any] = value.flat[numpy.arange(0, value.size, apart)].tolist() if value.size else []
    return numbers


def _mapped(numpy: Any, value: Any) -> bool:
    """Return whether an array lies in a file: each number could be a read of it."""
    while isinstance(value, numpy.ndarray):
        if isinstance(value, numpy.memmap):
            return True
        value = value.base
    return value is not None  # of another library


def _looks_at_rank(kind: type) -> bool:
    """Return whether a method that makes samples, of the program's own, names the number of the rank."""
    methods = (
        value.__code__
        for each in kind.__mro__
        for name, value in vars(each).items()
        if isinstance(value, FunctionType) and name != "__init__"
    )
    return any(map(_names_rank, methods))


def _collates_by_rank(collate: Any) -> bool:
    """Return whether what puts batches together names the number of the rank: each may take a part of them."""
    function = getattr(collate, "func", collate)  # of functools.partial
    code = getattr(function, "__code__", None)
    return _looks_at_rank(type(function)) if code is None else _names_rank(code)


def _names_rank(code: CodeType) -> bool:
    """Return whether a function of the program's own names the number of the rank, also as a variable of the environment."""
    if is_library(code.co_filename):
        return False
    texts = (each for each in code.co_consts if isinstance(each, str))
    names = (*code.co_names, *code.co_varnames, *code.co_freevars, *texts)
    return any(_RANK.search(name.lower()) for name in names) or any(
        _names_rank(inner) for inner in code.co_consts if isinstance(inner, CodeType)
    )
