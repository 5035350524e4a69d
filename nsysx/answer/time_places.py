"""Where most of a capture's time is, for advice that no finding gives a place: a line, a module and its kernel, or a CUDA call."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from nsysx import units
from nsysx.analyses import api_calls, kernels, lines, modules
from nsysx.analyses.helpers.module_names import kernel_called
from nsysx.answer import subject
from nsysx.answer.answer_bounds import LINE_OF_WORK_SHARE
from nsysx.events.kernel_names import computes
from nsysx.model import Row, Summary

#: How the first line of a function begins.
_FUNCTIONS = ("def ", "async def ", "@")


class LongestKernel(NamedTuple):
    """All kernels that one function runs: its name, their time in the capture and in a step (ns; None without steps), its share of all."""

    name: str
    total_ns: int
    step_ns: float | None
    share: float


def longest_kernel(summary: Summary) -> LongestKernel | None:
    """Return the function whose kernels take longest, whatever they are instantiated with; None without kernels."""
    rows = summary.typed_rows(kernels.ROWS)
    sums: dict[str, list[float]] = {}
    for row in rows:
        of_function = sums.setdefault(computes(str(row["name"])), [0, 0])
        of_function[0] += row["total_ns"] or 0
        of_function[1] += row.get("step_ns") or 0
    if not sums:
        return None
    name, (total, step) = max(sums.items(), key=lambda item: item[1][0])
    stepped = any(row.get("step_ns") is not None for row in rows)
    return LongestKernel(
        name, round(total), step if stepped else None, total / max(sum(ns for ns, _ in sums.values()), 1)
    )


def _line_of_most(summary: Summary) -> Row | None:
    """Return file and line that launch most of the GPU's work, None where none launches much of it.

    The first line of a function stands for all that a compiler made of it: the module and the kernel say more.
    """
    rows = summary.typed_rows(lines.ROWS)
    most = max((r for r in rows if r["line"] is not None), key=lambda r: r["gpu_self_ns"], default=None)
    whole = sum(r["gpu_self_ns"] for r in rows)
    if most is None or whole <= 0 or most["gpu_self_ns"] < LINE_OF_WORK_SHARE * whole:
        return None
    if (most["text"] or "").startswith(_FUNCTIONS):
        return None
    return {"file": most["file"], "line": most["line"]}


def of_most(summary: Summary) -> Row:
    """Return the line with most of the GPU's work; where none has a quarter, the module or range, and the kernel; without GPU work the call
    that takes longest.

    Keys: file, line, or module, near. Empty where the capture names nothing, and of a program that measures: most of its time may be
    what prepares a measurement (a flush of the cache, copies).
    """
    if subject.measures(summary):
        return {}
    if summary.verdict.line:
        return summary.verdict.line
    if (line := _line_of_most(summary)) is not None:
        return line
    inside = max(summary.typed_rows(modules.ROWS), key=lambda r: r["self_gpu_ns"] or 0, default=None)
    longest = longest_kernel(summary)
    where = {}
    if inside is not None and inside["self_gpu_ns"] and inside["path"]:
        # A range inside ranges of its own name is one place: recursion, or a range that nobody closes.
        where["module"] = " / ".join(name for name, _ in itertools.groupby(str(inside["path"]).split(" / ")))
    if longest is not None:
        return {**where, "near": kernel_called(longest.name)}
    call = max(summary.typed_rows(api_calls.ROWS), key=lambda r: r["total_ns"] or 0, default=None)
    return where if call is None else {**where, "near": f"{call['name']}, {units.several(call['calls'], 'call')}"}
