"""The fastest that a device multiplies in each number format, and moves bytes to and from its memory and its L2 cache.

In this order: measured on a device of that name (the table below), else what the architecture does in a cycle, from NVIDIA's white
papers, and the nominal bandwidth of the report. The report's own fastest work takes the place of either where it is faster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from nsysx.reading.trace import DeviceLimits
from nsysx.roofline.roofline_bounds import CACHE_FACTOR

MEASURED, NOMINAL, SEEN, CALIBRATED = (
    "measured on a device of this name",
    "data sheet",
    "fastest of this report",
    "nsysx calibrate",
)


@dataclass(frozen=True, slots=True)
class DeviceRate:
    """How fast something can be, per second, and where that was taken from."""

    per_s: float
    source: str


@dataclass(frozen=True)
class DeviceRates:
    """``products``: number format -> FLOP/s. ``memory`` and ``cache``: bytes per second, reads and writes together; None where unknown.

    ``nominal_memory``: what the memory cannot be faster than. ``cache_bytes``: how much the L2 cache holds.
    """

    products: Mapping[str, DeviceRate] = field(default_factory=dict)
    memory: DeviceRate | None = None
    cache: DeviceRate | None = None
    cache_bytes: int = 0
    nominal_memory: float | None = None

    def memory_ns(self, moved: int) -> float | None:
        """Return the least time to move so many bytes: what the L2 cache may hold is taken from there."""
        if self.memory is None or self.cache is None:
            return None
        cached = min(moved, self.cache_bytes)
        return (cached / self.cache.per_s + (moved - cached) / self.memory.per_s) * 1e9


#: FLOP/s of products 8192^3 (FP64: 4096^3), and bytes/s of copies of 4 GiB inside the device, read and write counted.
_MEASURED: Mapping[str, tuple[Mapping[str, float], float]] = {
    "NVIDIA H100 80GB HBM3": (
        {"bf16": 808e12, "fp16": 798e12, "tf32": 420e12, "fp32": 52e12, "fp64": 63e12, "fp8": 1470e12},
        3.0e12,
    ),
    "NVIDIA H200": ({"bf16": 788e12, "fp16": 788e12}, 4.3e12),
}
#: FLOP per cycle and SM of tensor cores without sparsity, by compute capability; white papers of V100, T4, A100, GA102, AD102,
#: H100 and B200. FP32 and FP64 on ordinary cores: CUDA Programming Guide, arithmetic throughput.
_PER_CYCLE: Mapping[tuple[int, int], Mapping[str, int]] = {
    (7, 0): {"fp16": 1024, "fp32": 128, "fp64": 64},
    (7, 5): {"fp16": 1024, "int8": 2048, "fp32": 128, "fp64": 4},
    (8, 0): {"fp16": 2048, "bf16": 2048, "tf32": 1024, "int8": 4096, "fp32": 128, "fp64": 128},
    (8, 6): {"fp16": 1024, "bf16": 1024, "tf32": 512, "int8": 2048, "fp32": 256, "fp64": 4},
    (8, 9): {"fp16": 1024, "bf16": 1024, "tf32": 512, "fp8": 2048, "int8": 2048, "fp32": 256, "fp64": 4},
    (9, 0): {"fp16": 4096, "bf16": 4096, "tf32": 2048, "fp8": 8192, "int8": 8192, "fp32": 256, "fp64": 256},
    (10, 0): {"fp16": 8192, "bf16": 8192, "tf32": 4096, "fp8": 16384, "int8": 16384, "fp32": 256, "fp64": 128},
}
#: What the 16 bits of a name may be, see ``helpers.operator_work``.
_HALVES, _EITHER = ("bf16", "fp16"), "16 bits"
#: FP32 in three products of TF32, see ``events.kernel_math``.
_THREEFOLD = "tf32x3"
#: A slice of a device (MIG) has not its rates.
_SLICE = re.compile(r"\bMIG\b")


def rates_of(name: str, limits: DeviceLimits, seen: Mapping[str, DeviceRate], seen_memory: float | None) -> DeviceRates:
    """Return the rates of a device; ``seen``: the fastest products elsewhere, ``seen_memory``: bytes/s of the report's fastest work."""
    if _SLICE.search(name):
        return DeviceRates()
    measured, copied = _MEASURED.get(name, ({}, None))
    per_cycle = _PER_CYCLE.get(limits.compute or (0, 0), {})
    hz = (limits.sm_count or 0) * (limits.clock_hz or 0)
    products = {f: DeviceRate(n * hz, NOMINAL) for f, n in per_cycle.items() if hz}
    products |= {f: DeviceRate(rate, MEASURED) for f, rate in measured.items()}
    if "tf32" in products:
        products[_THREEFOLD] = DeviceRate(products["tf32"].per_s / 3, products["tf32"].source)
    for number_format, rate in seen.items():
        if number_format not in products or rate.per_s > products[number_format].per_s:
            products[number_format] = rate
    halves = [products[f] for f in _HALVES if f in products]
    if halves:
        products[_EITHER] = max(halves, key=lambda r: r.per_s)
    nominal = limits.memory_bandwidth
    memory = DeviceRate(copied, MEASURED) if copied else DeviceRate(nominal, NOMINAL) if nominal else None
    if memory and seen_memory and seen_memory > memory.per_s:
        memory = DeviceRate(seen_memory, SEEN)
    cache = DeviceRate((nominal or memory.per_s) * CACHE_FACTOR, NOMINAL) if memory else None
    return DeviceRates(products, memory, cache, limits.cache_bytes or 0, nominal)
