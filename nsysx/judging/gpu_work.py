"""What the GPU works on in the steady steps, in one sentence."""

from __future__ import annotations

import re

import polars as pl

from nsysx import units
from nsysx.analyses.helpers.module_names import folded
from nsysx.catalogue import FAMILIES, DeviceActivity
from nsysx.events.kernel_names import computes
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.judging.judging_bounds import (
    FIRST_MODULE_SHARE,
    KIND_OF_WORK_SHARE,
    MOST_OF_MODULE_SHARE,
    SECOND_MODULE_SHARE,
)

#: Families whose names tell a reader nothing.
_UNKNOWN = ("other",)


def _work(profile: Profile, process: int, device: int) -> pl.DataFrame:
    """Return the GPU work of the steady steps: family, module (folded), path (number of its full name), op_kind, cls,
    name, ns.
    """
    ops = _steady_ops_on(profile, process, device, "family", "module", "op_kind", "cls", "name")
    path = ops["module"].to_physical().alias("path")
    return ops.with_columns(lookup.changed(ops["module"], folded).alias("module"), path)


def _steady_ops_on(profile: Profile, process: int, device: int, *columns: str) -> pl.DataFrame:
    """Return these columns and ns of the GPU ops of the steady steps on one device."""
    ops = lookup.having(profile.steady_ops, process=process, device=device)
    return ops.select(*columns, ns=pl.col("end_ns") - pl.col("start_ns"))


def kernels(profile: Profile, process: int, device: int) -> tuple[int, float | None]:
    """Return how many kernels the steady steps run on a device, and their median duration (ns; None without kernels)."""
    work = _steady_ops_on(profile, process, device, "op_kind")
    kernel_ns = work.filter(work["op_kind"] == "kernel")["ns"]
    median = kernel_ns.median()
    return len(kernel_ns), float(median) if isinstance(median, (int, float)) else None


def most(profile: Profile, process: int, device: int) -> str:
    """Return a clause on what most of the work is, by module or else by kind; "" if there is none.

    Communication is neither named nor part of the whole, which says so, as in the bar below: most of it runs beside computation or
    waits for others.
    """
    work = _work(profile, process, device)
    computing = work.filter(work["cls"] != DeviceActivity.COMM.value)
    what, work = "GPU time without communication" if computing.height < work.height else "GPU time", computing
    whole = int(work["ns"].sum())
    if not whole:
        return ""
    sums = _sums(work.drop_nulls("module"), "module")
    # Work outside of modules has none, the root holds all of them, and a name of numbers alone says nothing.
    no_path = {folded(name) for name in profile.attributed.without_path}
    modules = [(m, ns) for m, ns in sums if m not in no_path and re.search("[A-Za-z]", m)]
    if modules and modules[0][1] >= FIRST_MODULE_SHARE * whole:
        shares, names = [], []
        for name, ns in modules[:2]:
            if ns >= SECOND_MODULE_SHARE * whole:
                of_module = work.filter(work["module"] == name)
                count, kind = of_module["path"].n_unique(), _kind(of_module)
                more = [f"{count} modules"] * (count > 1) + [f"mostly {kind}"] * bool(kind)
                names.append(f"{name[:80]}" + (f" ({', '.join(more)})" if more else ""))
                shares.append(units.share(ns, whole))
        return _sentence(what, shares, names)
    kinds = [
        (FAMILIES.get(f, f), t)
        for f, t in _sums(work, "family")
        if f not in _UNKNOWN and t >= KIND_OF_WORK_SHARE * whole
    ][:3]
    # One function may be many kernels, one for each type or lambda; so the bar below counts them, too.
    work = work.with_columns(lookup.changed(work["name"], computes).alias("name"))
    kernels = _sums(work.filter(work["op_kind"] == "kernel"), "name")
    of_known = work.filter(~pl.col("family").cast(pl.String).is_in(_UNKNOWN))["name"].cast(pl.String).unique().to_list()
    unknown_ns = next((ns for name, ns in kernels if name not in of_known), 0)
    if kinds and kinds[0][1] >= unknown_ns:
        return _sentence(what, [units.share(t, whole) for _, t in kinds], [f for f, _ in kinds])
    if not kernels or kernels[0][1] < KIND_OF_WORK_SHARE * whole:
        return ""
    return _sentence(what, [units.share(kernels[0][1], whole)], [f"the kernel {kernels[0][0][:60]}"])


def _sentence(what: str, shares: list[str], work: list[str]) -> str:
    """Return "54 % of GPU time is GEMM, 20 % normalization and 11 % reductions"."""
    wholes = [f" of {what} is", *[""] * len(shares)]
    *others, last = (f"{share}{whole} {name}" for share, whole, name in zip(shares, wholes, work, strict=False))
    return f"{', '.join(others)} and {last}" if others else last


def _kind(work: pl.DataFrame) -> str:
    whole = int(work["ns"].sum())
    family, ns = _sums(work, "family")[0]
    return FAMILIES.get(family, family) if ns >= MOST_OF_MODULE_SHARE * whole and family not in _UNKNOWN else ""


def _sums(work: pl.DataFrame, column: str) -> list[tuple[str, int]]:
    grouped = work.group_by(column).agg(pl.col("ns").sum()).with_columns(pl.col(column).cast(pl.String))
    return list(grouped.sort("ns", column, descending=[True, False]).select(column, "ns").iter_rows())
