"""Rates of devices: measured before nominal, the report's own before both where it is faster, nothing for slices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsysx.reading.trace import DeviceLimits
from nsysx.roofline import recurrent
from nsysx.roofline.device_rates import MEASURED, NOMINAL, SEEN, DeviceRate, rates_of

H100 = DeviceLimits(
    compute=(9, 0), sm_count=132, clock_hz=1_980_000_000, memory_bandwidth=3_352_320_000_000, cache_bytes=52_428_800
)


def test_measured_rates_come_first() -> None:
    rates = rates_of("NVIDIA H100 80GB HBM3", H100, {}, None)
    assert rates.products["bf16"] == DeviceRate(808e12, MEASURED)
    assert rates.products["16 bits"].per_s == 808e12
    assert rates.memory == DeviceRate(3.0e12, MEASURED)
    assert rates.products["tf32x3"].per_s == 140e12
    # INT8 has no measured rate: 132 SMs x 8192 x 1.98 GHz.
    assert (
        rates.products["int8"].per_s == pytest.approx(2141e12, rel=0.001) and rates.products["int8"].source == NOMINAL
    )


def test_a_faster_product_of_the_report_is_the_limit() -> None:
    rates = rates_of(
        "NVIDIA H100 80GB HBM3", H100, {"bf16": DeviceRate(820e12, SEEN), "tf32": DeviceRate(1e12, SEEN)}, 3.1e12
    )
    assert rates.products["bf16"] == DeviceRate(820e12, SEEN)
    assert rates.products["tf32"].source == MEASURED
    assert rates.memory == DeviceRate(3.1e12, SEEN)


def test_bytes_that_the_cache_may_hold_take_less() -> None:
    rates = rates_of("NVIDIA H100 80GB HBM3", H100, {}, None)
    assert rates.cache is not None
    small, large = rates.memory_ns(1 << 20), rates.memory_ns(1 << 32)
    assert small == pytest.approx((1 << 20) / rates.cache.per_s * 1e9)
    assert large == pytest.approx(52_428_800 / rates.cache.per_s * 1e9 + ((1 << 32) - 52_428_800) / 3.0e12 * 1e9)


def test_slices_and_unknown_devices_have_no_rates() -> None:
    assert rates_of("NVIDIA H100 80GB HBM3 MIG 1g.10gb", H100, {}, None).memory is None
    unknown = rates_of("", DeviceLimits(), {}, None)
    assert unknown.memory is None and not unknown.products and unknown.memory_ns(100) is None


def test_recurrent_layers_multiply_each_weight_at_each_place() -> None:
    weights = [[2048, 512], [2048, 512], [2048], [2048]]
    sizes = [[64, 100, 512], *weights, [], [2, 64, 512]]
    forward = recurrent.operations("aten::_cudnn_rnn", sizes)
    assert forward == 2 * 64 * 100 * 2 * 2048 * 512
    assert recurrent.operations("aten::_cudnn_rnn_backward", sizes) == 2 * forward
    assert recurrent.operations("aten::_cudnn_rnn", [[6400, 512], *weights]) is None, "a packed sequence"
    assert recurrent.operations("aten::mm", sizes) is None


def test_a_device_whose_cache_is_unknown_has_none() -> None:
    """Nothing then takes less because of it."""
    known = DeviceLimits(compute=(9, 0), sm_count=132, clock_hz=1_980_000_000, memory_bandwidth=3_350_000_000_000)
    assert rates_of("of nobody", known, {}, None).cache_bytes == 0
    assert rates_of("of nobody", replace(known, cache_bytes=50_000_000), {}, None).cache_bytes == 50_000_000
