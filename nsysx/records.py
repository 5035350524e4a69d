"""Frozen records from plain JSON values: the way back from ``dataclasses.asdict``, by the types of their fields."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

_R = TypeVar("_R")
_Read = Callable[[Any, str], Any]


class UnreadableError(ValueError):
    """A value that is not what a record's field holds; the message says where and what is wrong."""


def record(kind: type[_R], value: Any, where: str) -> _R:
    """Return a frozen record from the object that ``asdict`` made of it. Raises UnreadableError.

    A field that is missing takes its default; keys that are no field are left out: they were added by a later version.
    """
    if not isinstance(value, Mapping):
        raise UnreadableError(f"{where} is {_shortened(value)}, not an object")
    given = {}
    for name, (read, required) in _fields(kind).items():
        if name in value:
            given[name] = read(value[name], f"{where}.{name}")
        elif required:
            raise UnreadableError(f"{where}.{name} is missing")
    return kind(**given)


def rows(value: Any, where: str) -> tuple[Mapping[str, Any], ...]:
    """Return a list of objects as it is. Raises UnreadableError."""
    if not isinstance(value, list | tuple):
        raise UnreadableError(f"{where} is {_shortened(value)}, not a list")
    return tuple(mapping(row, f"{where}[{i}]") for i, row in enumerate(value))


def whole_number(value: object) -> int | None:
    """Return a value that is a whole number, None for anything else; true and false are none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def count_or_zero(value: object) -> int:
    """Return a count, 0 for anything that is no whole number."""
    return whole_number(value) or 0


def _fields(kind: Any) -> Mapping[str, tuple[_Read, bool]]:
    """Return how each field of a record is read, and whether it has to be there."""
    hints = get_type_hints(kind)
    required = {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(kind)}
    return {name: (_reader(hints[name]), needed) for name, needed in required.items()}


def _reader(hint: Any) -> _Read:
    """Return the function that reads a value of a type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        read = _reader(next(t for t in inner if t is not type(None)))
        return lambda value, where: None if value is None else read(value, where)
    if origin is tuple:
        parts = _reader(inner[0])
        length = None if inner[-1] is Ellipsis else len(inner)
        return lambda value, where: _tuple(value, where, parts, length)
    if origin is Literal:
        return lambda value, where: _checked(value, where, lambda v: v in inner, " or ".join(map(str, inner)))
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value, where: record(hint, value, where)
    if hint in _NAMES:
        return lambda value, where: _checked(value, where, lambda v: _is_of_kind(v, hint), _NAMES[hint])
    return mapping


def _tuple(value: Any, where: str, read: _Read, length: int | None) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple) or length not in (None, len(value)):
        raise UnreadableError(f"{where} is {_shortened(value)}, not a list" + (f" of {length}" if length else ""))
    return tuple(read(item, f"{where}[{i}]") for i, item in enumerate(value))


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    """Return an object as it is. Raises UnreadableError."""
    if not isinstance(value, Mapping):
        raise UnreadableError(f"{where} is {_shortened(value)}, not an object")
    return value


_NAMES: Mapping[Any, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _is_of_kind(value: Any, kind: Any) -> bool:
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    return isinstance(value, (int, float) if kind is float else kind)


def _checked(value: Any, where: str, right: Callable[[Any], bool], name: str) -> Any:
    if not right(value):
        raise UnreadableError(f"{where} is {_shortened(value)}, not {name}")
    return value


def _shortened(value: Any) -> str:
    """Return a value in an error, shortened."""
    return "null" if value is None else repr(value)[:40]
