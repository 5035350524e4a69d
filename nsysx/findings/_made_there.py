"""Advice that a line's words give, and that the recording contradicts: a line that launches kernels and copies nothing makes its data on
the GPU as it is, as torch.rand(1, device=x.device) does.
"""

from __future__ import annotations

import polars as pl

from nsysx.findings._case import Case, Fix

#: Remedies for data that is made on the CPU.
_FOR_CPU_DATA = ("made-on-gpu", "drawn-on-gpu")


def makes_on_gpu(case: Case, calls: pl.Series) -> bool:
    """Return whether calls of a line launch kernels, and copy nothing from the host."""
    theirs = case.ops.filter(case.ops["call"].is_in(calls.implode()).fill_null(value=False))
    copied = (theirs["op_kind"] == "memcpy") & (theirs["name"] == "HtoD")
    return bool((theirs["op_kind"] == "kernel").any() and not copied.any())


def for_cpu_data(fix: Fix | None) -> bool:
    """Return whether a remedy is for data that is made on the CPU."""
    return fix is not None and any(way.name in _FOR_CPU_DATA for way in fix.ways)


def unless_made_there(case: Case, line_row: int, fix: Fix | None) -> Fix | None:
    """Return the remedy that its words give a line (row of places), None for data on the CPU where the line makes it on the GPU."""
    code = case.profile.code()
    if code is None or line_row < 0 or not for_cpu_data(fix):
        return fix
    return None if makes_on_gpu(case, code.made_at(case.calls, [line_row])["call"]) else fix
