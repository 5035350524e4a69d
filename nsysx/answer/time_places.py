"""Where most of a capture's time is, for advice that no finding gives a place: a line, a module and its kernel, or a CUDA call."""

from __future__ import annotations

import itertools

from nsysx import units
from nsysx.analyses import api_calls, kernels, modules
from nsysx.analyses.helpers.module_names import kernel_called
from nsysx.answer import subject
from nsysx.model import Row, Summary


def of_most(summary: Summary) -> Row:
    """Return the line with most of the GPU's work; where none has much, the module or range, and the kernel; without GPU work the call
    that takes longest.

    Keys: file, line, or module, near. Empty where the capture names nothing, and of a program that measures: most of its time may be
    what prepares a measurement (a flush of the cache, copies).
    """
    if subject.measures(summary):
        return {}
    if summary.verdict.line:
        return summary.verdict.line
    inside = max(summary.typed_rows(modules.ROWS), key=lambda r: r["self_gpu_ns"] or 0, default=None)
    longest = max(summary.typed_rows(kernels.ROWS), key=lambda r: r["total_ns"] or 0, default=None)
    where = {}
    if inside is not None and inside["self_gpu_ns"] and inside["path"]:
        # A range inside ranges of its own name is one place: recursion, or a range that nobody closes.
        where["module"] = " / ".join(name for name, _ in itertools.groupby(str(inside["path"]).split(" / ")))
    if longest is not None:
        return {**where, "near": kernel_called(str(longest["name"]))}
    call = max(summary.typed_rows(api_calls.ROWS), key=lambda r: r["total_ns"] or 0, default=None)
    return where if call is None else {**where, "near": f"{call['name']}, {units.several(call['calls'], 'call')}"}
