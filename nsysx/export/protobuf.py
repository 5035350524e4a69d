"""Protocol buffers by whole columns: packets of one layout differ only in numbers, and each number has a fixed place.

Numbers are varints padded to a fixed width, which the encoding allows: continuation bits followed by zeros.
https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from nsysx.frames.intervals import I64

Bytes = npt.NDArray[np.uint8]

_VARINT, _FIXED64, _LENGTH = 0, 1, 2
_GROUP_BITS = 7


@dataclass(frozen=True, slots=True)
class Slot:
    """A number that differs from packet to packet, ``width`` bytes wide: a varint of 7 bits each, or 8 plain bytes."""

    name: str
    width: int
    kind: Literal["varint", "fixed64"] = "varint"


#: A message: bytes that are the same in all packets, and slots.
Parts = tuple[bytes | Slot, ...]


def varint(value: int) -> bytes:
    """Return a number that is not negative as a varint."""
    out = bytearray()
    while value >= 1 << _GROUP_BITS:
        out.append(value & 0x7F | 0x80)
        value >>= _GROUP_BITS
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> Parts:
    """Return a field with a constant number."""
    return (varint(field << 3 | _VARINT) + varint(value),)


def slot(field: int, name: str, width: int) -> Parts:
    """Return a field with a number of its own in each packet, at most ``7 * width`` bits."""
    return varint(field << 3 | _VARINT), Slot(name, width)


def fixed64(field: int, name: str) -> Parts:
    """Return a field with 8 plain bytes."""
    return varint(field << 3 | _FIXED64), Slot(name, 8, "fixed64")


def text(field: int, value: str) -> Parts:
    """Return a field with a text."""
    return message(field, (value.encode("utf-8", "backslashreplace"),))


def message(field: int, parts: Parts) -> Parts:
    """Return a field with a message inside."""
    return (varint(field << 3 | _LENGTH) + varint(size(parts)), *parts)


def size(parts: Parts) -> int:
    """Return the bytes that a message takes, the same in every packet."""
    return sum(part.width if isinstance(part, Slot) else len(part) for part in parts)


def constant(parts: Parts) -> bytes:
    """Return a message without slots as bytes."""
    return b"".join(part for part in parts if isinstance(part, bytes))


def encode(parts: Parts, columns: Mapping[str, I64], rows: npt.NDArray[np.intp]) -> Bytes:
    """Return the packets of some rows of ``columns``, a line of bytes each. Negative numbers need ten bytes."""
    out = np.empty((len(rows), size(parts)), np.uint8)
    position = 0
    for part in parts:
        if isinstance(part, bytes):
            out[:, position : position + len(part)] = np.frombuffer(part, np.uint8)
            position += len(part)
            continue
        values = np.ascontiguousarray(columns[part.name][rows])
        if part.kind == "fixed64":
            out[:, position : position + 8] = values.astype("<i8").view(np.uint8).reshape(-1, 8)
        else:
            bits = values.view(np.uint64)
            for group_index in range(part.width):
                group = (bits >> np.uint64(_GROUP_BITS * group_index)).astype(np.uint8) & 0x7F
                out[:, position + group_index] = group | 0x80 if group_index + 1 < part.width else group
        position += part.width
    return out


def interleaved(blocks: Sequence[tuple[npt.NDArray[np.intp], Bytes]], count: int) -> bytes:
    """Return lines of several blocks as one stream; each block comes with the places of its lines among ``count``."""
    length = np.zeros(count, np.int64)
    for places, lines in blocks:
        length[places] = lines.shape[1]
    behind = np.cumsum(length)
    out = np.empty(int(behind[-1]) if count else 0, np.uint8)
    for places, lines in blocks:
        wide = lines.shape[1]
        out[(behind[places] - wide)[:, None] + np.arange(wide)] = lines
    return out.tobytes()
