"""The kernel with most time in a sentence: what it computes, for which module, and which line launches it."""

from __future__ import annotations

import re

from nsysx import units
from nsysx.analyses import kernels
from nsysx.answer.bars import called
from nsysx.events.kernel_names import computes
from nsysx.model import Summary
from nsysx.render.grids import CellTexts
from nsysx.render.render_bounds import TOP_KERNEL_LEAST
from nsysx.render.safe_text import file_name

#: What kernels compute that name only a functor, and families whose kernels have names that nobody reads.
_FUNCTORS = (
    (r"CUDAFunctor_add|AddFunctor", "an elementwise addition"),
    (r"MulFunctor", "an elementwise multiplication"),
    (r"DivFunctor", "an elementwise division"),
    (r"FillFunctor", "a fill with one value"),
    (r"(direct|bfloat16|float16|float8)_copy_kernel|LoadWithCast", "a copy or conversion of types"),
    (r"FusedAdam|FusedOptimizer|multi_tensor_apply", "an optimizer over lists of tensors"),
)
_FAMILIES = {"gemm": "a GEMM", "attention": "attention", "convolution": "a convolution"}


def sentence(summary: Summary, *, redact: bool) -> str:
    """Return what the kernel with most time is, "" where none stands out."""
    rows = summary.typed_rows(kernels.ROWS)
    top = max(rows, key=lambda r: (r["step_ns"] or 0, r["total_ns"]), default=None)
    whole = sum(r["step_ns"] or 0 for r in rows)
    if top is None or not top["step_ns"] or top["step_ns"] < TOP_KERNEL_LEAST * whole:
        return ""
    texts, name = CellTexts(redact), str(top["name"])
    words = [
        f"{units.share(top['step_ns'], whole)} of the kernel time of a step, {units.duration(round(top['step_ns']))}, is {_work(top)}"
    ]
    if top["operator"]:
        words.append(f"by {texts(top['operator'], 60)}")
    if top["module"]:
        words.append(f"in {texts(called(summary, str(top['module'])), 80)}")
    if top["file"]:
        words.append(f", launched at {texts(file_name(str(top['file']), redact), 80)}:{top['line']}")
    return f"{' '.join(words).replace(' ,', ',')}: {texts(computes(name).rpartition('::')[2], 60)}."


def _work(row: kernels.KernelRow) -> str:
    named = (words for pattern, words in _FUNCTORS if re.search(pattern, row["name"]))
    return next(named, None) or _FAMILIES.get(row["family"], "one kernel")
