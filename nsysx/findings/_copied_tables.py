"""Tensors that an object of the program keeps on the host and copies to the GPU in each step, though it could keep them there.

A copy has no name in a capture: that the same bytes move again is read from the line, which copies an attribute that no line of the step
assigns or writes, and from copies of the same size in each step.
"""

from __future__ import annotations

import re

import polars as pl

from nsysx.analyses.lines import text_of, texts
from nsysx.findings._case import Case, Fix, way
from nsysx.findings._unpinned_batches import function_of, moves_all
from nsysx.model import Row

#: An attribute of an object, or a constant of a module, that a line moves to a device.
_MOVED = re.compile(r"\b(self(?:\.[a-z_]\w*)+|[A-Z][A-Z_\d]{2,})\.(?:to|cuda)\(")
#: Names of what is another one in each step.
_OF_A_STEP = re.compile(
    r"batch|input|sample|image|frame|audio|text|token|data|target|label|obs|state|action|reward|current|next|buffer|"
    r"(?:^|_)(?:x|y|z|ids?|seq)(?:_|$)",
    re.IGNORECASE,
)
_SAME_BYTES = "Nothing may change it between steps: the recording shows the size of the copies, not what is in them."


def kept_on_gpu(case: Case, row: Row, copies: pl.DataFrame) -> Fix | None:
    """Return the advice to keep on the GPU what the copies of a place (``row``, with ``op``) bring there in each step, None for others."""
    source = texts(case.profile)
    moved = _MOVED.search(text_of(source, row["file"], row["line"]) or "") if row["direction"] == "HtoD" else None
    if moved is None or _OF_A_STEP.search(moved[1].rpartition(".")[2]):
        return None
    if moves_all(function_of(case, copies)):  # all of an object goes, as of a batch that has a method for that
        return None
    sizes = case.ops.filter(case.ops["op"].is_in(copies["op"].implode())).group_by("bytes").len()
    if not sizes.height or (sizes["len"] % case.steps != 0).any() or is_written(source, moved[1]):
        return None
    name = moved[1].rpartition(".")[2].lower()
    paste = f'self.register_buffer("{name}", {name}, persistent=False)  # once, in __init__; model.to(device) moves it'
    text = f"Keep {moved[1]} on the GPU: it is copied there in each step, and no line of a step changes it"
    return Fix.by_name(way("kept-constant", text, paste, _SAME_BYTES))


def is_written(source: object, name: str) -> bool:
    """Return whether a line of the steps assigns a tensor of this name, or writes into it."""
    writes = re.compile(rf"{re.escape(name)}(?:\[[^\]]*\])?\s*(?:[-+*/@|&]?=(?!=)|\.\w+_\()")
    lines = source.values() if isinstance(source, dict) else ()
    return any(writes.search(text) for of_file in lines for text in of_file.values() if isinstance(text, str))
