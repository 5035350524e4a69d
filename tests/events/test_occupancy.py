"""Theoretical occupancy against the cases that NVIDIA publishes, and against what a device can hold at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysx.events.occupancy import LIMITS, resident
from nsysx.reading.trace import DeviceLimits

KIB = 1024
V100 = DeviceLimits(0, (7, 0), 80, 64, 32, 65536, 65536, 96 * KIB)
A100 = DeviceLimits(0, (8, 0), 108, 64, 32, 65536, 65536, 164 * KIB)
RTX3080 = DeviceLimits(0, (8, 6), 68, 48, 16, 65536, 65536, 100 * KIB)
H200 = DeviceLimits(0, (9, 0), 132, 64, 32, 65536, 65536, 228 * KIB)
P100 = DeviceLimits(0, (6, 0), 56, 64, 32, 65536, 65536, 64 * KIB)
K80 = DeviceLimits(0, (3, 7), 13, 64, 16, 131072, 65536, 112 * KIB)


def one(limits: DeviceLimits, threads: int, registers: int, shared: int = 0) -> tuple[int, float, str]:
    found = resident(limits, *(np.array([v], np.int64) for v in (threads, registers, shared)))
    blocks = int(found.blocks[0])
    return blocks, blocks * int(found.warps[0]) / (limits.warps_per_sm or 1), LIMITS[int(found.limit[0])]


@pytest.mark.parametrize(
    ("limits", "threads", "registers", "shared", "blocks", "occupancy"),
    [
        # CUDA C++ Best Practices Guide, "Calculating Occupancy", compute capability 7.0: 37 registers a thread in blocks of
        # 128 threads give 75 % with 12 blocks, in blocks of 320 threads 63 % with 4, because registers come in 256 a warp.
        (V100, 128, 37, 0, 12, 0.75),
        (V100, 320, 37, 0, 4, 0.625),
        # The same chapter: at most 32 registers a thread for 100 %.
        (V100, 256, 32, 0, 8, 1.0),
        (V100, 256, 33, 0, 6, 0.75),
        # CUDA C++ Programming Guide, "Multiprocessor Level": 64 registers and 512 threads, two blocks; one register more, one.
        (V100, 512, 64, 0, 2, 0.5),
        (V100, 512, 65, 0, 1, 0.25),
        # Shared memory on 8.0 (NVIDIA Ampere Tuning Guide): 164 KiB of an SM, 1 KiB of it for the system in each block.
        (A100, 128, 16, 163 * KIB, 1, 4 / 64),
        (A100, 128, 16, 81 * KIB, 2, 8 / 64),
        (A100, 128, 16, 82 * KIB, 1, 4 / 64),
        # 8.6 holds 48 warps and 16 blocks (Tuning Guide): small blocks end at 16.
        (RTX3080, 32, 16, 0, 16, 16 / 48),
        (RTX3080, 1024, 32, 0, 1, 32 / 48),
        # A matrix product of cuBLAS on H200: 384 threads of 168 registers, one block.
        (H200, 384, 168, 213_188, 1, 12 / 64),
        # 6.0 has two register files of 32 Ki registers: 8 warps of 96 registers (3,072 a warp) in blocks of 4 warps.
        (P100, 128, 96, 0, 5, 20 / 64),
        # 3.7 has twice the registers that a block may use.
        (K80, 256, 64, 0, 8, 1.0),
        # More than fits.
        (V100, 1024, 128, 0, 0, 0.0),
    ],
)  # fmt: skip
def test_published_cases(
    limits: DeviceLimits, threads: int, registers: int, shared: int, blocks: int, occupancy: float
) -> None:
    found = one(limits, threads, registers, shared)
    assert found[0] == blocks
    assert found[1] == pytest.approx(occupancy)


def test_what_ends_the_number_of_blocks_is_named() -> None:
    assert one(H200, 128, 16)[2] == "warps"
    assert one(H200, 32, 16)[2] == "blocks"
    assert one(H200, 128, 255)[2] == "registers"
    assert one(H200, 128, 16, 100 * KIB)[2] == "shared memory"


@given(
    st.integers(1, 1024),
    st.integers(0, 255),
    st.integers(0, 227 * KIB),
    st.sampled_from([V100, A100, RTX3080, H200, P100]),
)
def test_no_sm_holds_more_than_it_has(threads: int, registers: int, shared: int, limits: DeviceLimits) -> None:
    blocks, occupancy, _ = one(limits, threads, registers, shared)
    assert 0 <= occupancy <= 1
    assert blocks * -(-threads // 32) * 32 * registers <= (limits.registers_per_sm or 0)
    assert blocks * shared <= (limits.shared_per_sm or 0)
    more = one(limits, threads, min(registers + 1, 255), shared)
    assert more[0] <= blocks


def test_a_device_that_is_not_described_has_no_occupancy() -> None:
    limits = DeviceLimits(0, (9, 0), 132)
    assert limits.missing == "warps_per_sm, blocks_per_sm, registers_per_sm, shared_per_sm"
    with pytest.raises(ValueError, match="warps_per_sm"):
        one(limits, 128, 32)
