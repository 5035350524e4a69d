"""Bytes that a link carries, as nccl-tests (doc/PERFORMANCE.md) counts them."""

from __future__ import annotations

import pytest

from nsysx.reading.nccl_notes import bus_bytes


@pytest.mark.parametrize(
    ("kind", "size", "carried"),
    [
        ("allreduce", 2, 800), ("allreduce", 8, 1_400), ("allgather", 8, 5_600), ("reducescatter", 8, 5_600),
        ("alltoall", 4, 2_400), ("broadcast", 8, 800), ("reduce", 8, 800), ("allreduce", None, None), ("zork", 8, None),
    ],
)  # fmt: skip
def test_bytes_of_a_message_of_800(kind: str, size: int | None, carried: float | None) -> None:
    assert bus_bytes(kind, size, 800) == carried
    assert bus_bytes(kind, size, None) is None
