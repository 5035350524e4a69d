"""Fourier transforms of lengths that cuFFT has no kernels for: it makes several longer transforms of each instead."""

from __future__ import annotations

import re

import polars as pl

from nsysx import units
from nsysx.analyses import operators
from nsysx.catalogue import StepPart
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._finding_bounds import BLUESTEIN_LEFT_SHARE, LARGEST_FFT_PRIME, REPORTED_SHARE
from nsysx.findings._once import Takes
from nsysx.frames import lookup
from nsysx.inject.nsysx_probe.changes.array_types import next_length
from nsysx.replay.engine import ScaleOps

#: Kernels of Bluestein's algorithm, which cuFFT uses for lengths with a prime factor above 127.
_BLUESTEIN = r"(?i)bluestein|chirp_signal"


def kernels(case: Case) -> pl.DataFrame:
    """Return the kernels of such transforms."""
    return case.kernels.filter(pl.Series(lookup.matching(case.kernels["name"], _BLUESTEIN), dtype=pl.Boolean))


def odd(case: Case, settings: RecordedSettings) -> str:
    """Return what such transforms take, and of which length they are; "" where that is little."""
    return seen(case)


def seen(case: Case) -> str:
    """Return the same by the kernels and operators alone."""
    ns = case.per_step(int(kernels(case)["ns"].sum()))
    if not case.notable(ns, REPORTED_SHARE):
        return ""
    told = f"cuFFT has no kernels for this length of transform and makes longer ones of it (Bluestein): {units.duration(ns)} {case.per}"
    length = next((n for n in _lengths(case) if factors(n)[-1] > LARGEST_FFT_PRIME), None)
    if length is None:
        return told
    return f"{told}. {length} is {' x '.join(map(str, factors(length)))}; pad to {next_length(length)}"


def _lengths(case: Case) -> list[int]:
    """Return the sizes of what transforms of the X-ray read, those of the longest operators first."""
    shapes = [str(r["shapes"] or "") for r in case.typed_rows(operators.ROWS) if "_fft_" in (r["name"] or "")]
    return [int(n) for shape in shapes for n in re.findall(r"\d+", shape) if int(n) > 1]


def factors(number: int) -> list[int]:
    """Return the prime factors of a number above 1, smallest first."""
    primes, divisor = [], 2
    while divisor * divisor <= number:
        if number % divisor:
            divisor += 1
        else:
            primes.append(divisor)
            number //= divisor
    return [*primes, number] if number > 1 else primes


def shorter(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what transforms of a length with small factors save."""
    return case.worth(ScaleOps(taken(case).ops, BLUESTEIN_LEFT_SHARE, less_work=True), cause=(StepPart.WORK,))


def taken(case: Case) -> Takes:
    """Return the kernels of such transforms."""
    return Takes(ops_of(kernels(case)))
