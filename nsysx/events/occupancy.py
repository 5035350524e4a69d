"""How many blocks of a kernel an SM can hold, which limit ends it, and in how many waves a grid runs.

Source of the rules: ``cuda_occupancy.h`` of the CUDA Toolkit, which the CUDA Occupancy Calculator and
``cudaOccupancyMaxActiveBlocksPerMultiprocessor`` use:

- warps: a block takes ceil(threads / 32) of the warps of an SM;
- registers: a warp takes registers x 32, rounded up to 256, of its quarter of the register file (half of it on compute
  capability 6.0), and a warp does not span two quarters;
- shared memory: a block takes what it asks for and, from compute capability 8.0 on, 1 KiB for the system, rounded up to 128
  bytes (256 before 8.0). An SM is taken to give as much of its memory to shared memory as it can: the report does not say
  what would be given to another kernel.

Clusters, registers that warps hand over at run time, and local limits of a launch (``--maxrregcount`` aside, which the
registers show) are not part of it: the occupancy is the theoretical one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsysx.events.event_bounds import (
    OLD_SHARED_UNIT_BYTES,
    REGISTER_UNIT,
    SHARED_UNIT_BYTES,
    SYSTEM_SHARED_BYTES,
    THREADS_PER_WARP,
    UNLIMITED_BLOCKS,
)
from nsysx.frames.intervals import I64
from nsysx.reading.trace import DeviceLimits

#: What ends the number of blocks on an SM, in the order in which a tie is told.
LIMITS = ("warps", "blocks", "registers", "shared memory")


@dataclass(frozen=True)
class Resident:
    """``blocks`` that an SM holds (0 where one does not fit), the ``warps`` of one block, and the row of LIMITS that ends it."""

    blocks: I64
    warps: I64
    limit: I64


def _rounded(values: I64, unit: int) -> I64:
    return -(-values // unit) * unit


def resident(limits: DeviceLimits, threads: I64, registers: I64, shared_bytes: I64) -> Resident:
    """Return how many blocks of each shape an SM holds. Raises ValueError where the report does not name the device's limits.

    ``threads`` per block, ``registers`` per thread, ``shared_bytes`` per block (static and dynamic).
    """
    if limits.missing or limits.compute is None:
        raise ValueError(f"the report does not say of the device: {limits.missing}")
    assert limits.warps_per_sm and limits.blocks_per_sm and limits.registers_per_sm and limits.shared_per_sm
    warps = np.maximum(-(-threads // THREADS_PER_WARP), 1)
    by_warps = limits.warps_per_sm // warps
    parts = 2 if limits.compute == (6, 0) else 4
    per_warp = np.maximum(_rounded(registers * THREADS_PER_WARP, REGISTER_UNIT), REGISTER_UNIT)
    # Where an SM has more registers than one block may use, it has several files of that size.
    file = min(limits.registers_per_block or limits.registers_per_sm, limits.registers_per_sm)
    by_registers = file // parts // per_warp * parts // warps * (limits.registers_per_sm // file)
    by_registers = np.where(registers > 0, by_registers, UNLIMITED_BLOCKS)
    modern = limits.compute >= (8, 0)
    asked = shared_bytes + (SYSTEM_SHARED_BYTES if modern else 0)
    taken = _rounded(asked, SHARED_UNIT_BYTES if modern else OLD_SHARED_UNIT_BYTES)
    by_shared = np.where(taken > 0, limits.shared_per_sm // np.maximum(taken, 1), UNLIMITED_BLOCKS)
    by_blocks = np.full(len(warps), limits.blocks_per_sm, np.int64)
    all_of_them = np.stack([by_warps, by_blocks, by_registers, by_shared])
    return Resident(all_of_them.min(axis=0), warps, all_of_them.argmin(axis=0))
