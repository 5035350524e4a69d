"""Reads from the report what each device can hold at once, for the occupancy of kernels, and nsys's number of the device."""

from __future__ import annotations

import sqlite3

from nsysx import ids
from nsysx.reading import capture_facts
from nsysx.reading.reading_bounds import MOST_MINOR, MOST_OF_A_DEVICE
from nsysx.reading.trace import DeviceLimits

_COLUMNS = (
    "id", "deviceId", "cuDevice", "smCount", "maxWarpsPerSm", "maxBlocksPerSm", "maxRegistersPerSm", "maxRegistersPerBlock",
    "maxShmemPerSm", "clockRate", "memoryBandwidth", "l2CacheSize", "computeMajor", "computeMinor",
)  # fmt: skip


def _limit(value: object) -> int | None:
    return value if isinstance(value, int) and 0 < value < MOST_OF_A_DEVICE else None


def limits_of(
    connection: sqlite3.Connection, tables: dict[str, set[str]], used: list[tuple[int, int]]
) -> dict[tuple[int, int], DeviceLimits]:
    """Return (process, CUDA ordinal) -> limits, for the devices in ``used`` that the report describes."""
    cards = capture_facts.query(connection, tables, "TARGET_INFO_GPU", *_COLUMNS)
    mapping = capture_facts.gpu_numbers(connection, tables)
    limits = {}
    for process, device in used:
        card = capture_facts.card_of(cards, mapping, ids.pid_of(process), device)
        if card is None:
            continue
        sm, warps, blocks, registers, per_block, shared, clock, bandwidth, cache = map(_limit, card[3:12])
        major, minor = card[12:14]
        valid = _limit(major) is not None and isinstance(minor, int) and 0 <= minor < MOST_MINOR
        limits[process, device] = DeviceLimits(
            card[0] if isinstance(card[0], int) else None,
            (major, minor) if valid else None,
            sm_count=sm,
            warps_per_sm=warps,
            blocks_per_sm=blocks,
            registers_per_sm=registers,
            registers_per_block=per_block,
            shared_per_sm=shared,
            clock_hz=clock,
            memory_bandwidth=bandwidth,
            cache_bytes=cache,
        )
    return limits
