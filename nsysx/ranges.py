"""NVTX rows -> ranges with a meaning: step, phase, module, autograd op, or just a range.

nsysx's own ranges say what they are (``inject.nsysx_ranges``). A stranger's are read by how people commonly name them:
``step 12``, ``forward``, ``blocks.0.attn:Attention``, and the ``aten::mul, seq = 7`` of ``emit_nvtx``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl

from nsysx import schema
from nsysx.inject import nsysx_ranges
from nsysx.load import Trace

#: Libraries annotate themselves; their ranges say nothing about the user's modules.
_LIBRARY_DOMAINS = re.compile(
    r"^(cu(BLAS|DNN|FFT|SPARSE|SOLVER|RAND|DF|ML|Tensor)\w*|NCCL|NVSHMEM|CCCL|NPP|TensorRT|libcu\w+|Python .*)$",
    re.IGNORECASE,
)
# Numbers of more digits count nothing, and do not fit 64 bits.
_STEP = re.compile(r"^(?:train(?:ing)?[ _]?)?(?:step|iter(?:ation)?|ProfilerStep)[\s_#:=\-]*(\d{1,18})$", re.IGNORECASE)
_MODULE = re.compile(r"^([\w.\-]*):([A-Za-z_]\w*)$")
_OP = re.compile(r"^(.*?), (?:seq = (\d{1,18})(?!\d)|op_id = \d+)")
_PHASES = (
    ("data", re.compile(r"^:?(data[ _]?load(ing|er)?|data|next[ _]batch|get[ _]batch|load[ _]batch)\b", re.IGNORECASE)),
    ("evaluation", re.compile(r"^:?(eval(uation)?|valid(ation)?|inference)\b", re.IGNORECASE)),
    ("backward", re.compile(r"^:?(backward|bwd)( pass)?$|^backward[_ .]", re.IGNORECASE)),
    ("forward", re.compile(r"^:?(forward|fwd)( pass)?$|^forward[_ .]", re.IGNORECASE)),
    ("zero_grad", re.compile(r"^:?(optimizer\.)?zero_?grad\b", re.IGNORECASE)),
    ("optimizer", re.compile(r"^:?(optim(izer)?|opt)([ ._]?step)?$|^Optimizer\.step", re.IGNORECASE)),
    ("loss", re.compile(r"^:?(compute[ _])?loss$", re.IGNORECASE)),
    ("clip", re.compile(r"^:?(clip|grad(ient)?[ _]clip)", re.IGNORECASE)),
)
#: Numbers that only count calls would make every path unique.
_COUNTER = re.compile(r"([\s_#:=\-]|^)\d+$")


@dataclass(frozen=True)
class Ranges:
    """``ranges``: one row per range (columns below); ``marks`` the same for marks, whose ``end_ns`` is ``start_ns``.

    Columns: range, process, thread, start_ns, end_ns, kind (step, phase, module, backward_module, op, range), name, cls,
    number (step or sequence number, -1 without), recompute, own (written by nsysx's probe), crossing (ends on another
    thread), open (never closed; it then ends with the capture).
    """

    ranges: pl.DataFrame
    marks: pl.DataFrame


def meaning(text: str, own: bool) -> tuple[str, str, str, int, bool]:
    """Return (kind, name, cls, number, recompute) of a range text."""
    if own or text.startswith(nsysx_ranges.PREFIX):
        label = nsysx_ranges.decode(text)
        return label.kind, label.name, label.cls, label.number, "recompute" in label.flags
    if match := _OP.match(text):
        return "op", match[1], "", int(match[2]) if match[2] else -1, False
    if match := _STEP.match(text):
        return "step", text, "", int(match[1]), False
    for phase, pattern in _PHASES:
        if pattern.search(text):
            return "phase", phase, "", -1, False
    if match := _MODULE.match(text):
        path, cls = match[1], match[2]
        # A root is commonly labelled with its class twice.
        return "module", "" if path == cls else path, cls, -1, False
    return "range", _COUNTER.sub(r"\1#", text.split(",", 1)[0].strip())[:200], "", -1, False


def read(trace: Trace) -> Ranges:
    """Return the ranges and marks of a report with their meaning."""
    rows = trace.nvtx.filter(
        pl.col("event_type").is_in([schema.NVTX_MARK, schema.NVTX_PUSH_POP, schema.NVTX_START_END])
    ).with_columns(pl.col("text").cast(pl.String).fill_null("<unnamed>").alias("label"))
    if trace.domains.height:
        rows = rows.join(trace.domains, on=["process", "domain"], how="left", maintain_order="left")
    else:
        rows = rows.with_columns(pl.lit(None, dtype=pl.Categorical).alias("domain_name"))
    rows = rows.with_columns(pl.col("domain_name").cast(pl.String).fill_null(""))
    libraries = [d for d in rows["domain_name"].unique().to_list() if _LIBRARY_DOMAINS.match(d)]
    rows = rows.filter(~pl.col("domain_name").is_in(libraries))
    own = pl.col("domain_name") == nsysx_ranges.DOMAIN
    rows = rows.with_columns((own | pl.col("label").str.starts_with(nsysx_ranges.PREFIX)).alias("own"))
    texts = rows.select("label", "own").unique()
    meanings = [meaning(text, is_own) for text, is_own in texts.iter_rows()]
    columns = ("kind", "name", "cls", "number", "recompute")
    known = texts.with_columns(
        pl.Series(c, [m[i] for m in meanings], dtype=t)
        for i, (c, t) in enumerate(zip(columns, (pl.String, pl.String, pl.String, pl.Int64, pl.Boolean), strict=True))
    )
    rows = rows.join(known, on=["label", "own"], how="left", maintain_order="left").filter(pl.col("kind") != "info")
    ends = [trace.frames[f]["end_ns"].max() for f in ("runtime", "kernel", "memcpy", "nvtx")]
    last = max((e for e in ends if isinstance(e, int)), default=None)
    is_mark = pl.col("event_type") == schema.NVTX_MARK
    rows = rows.with_columns(
        (pl.col("end_ns").is_null() & ~is_mark).alias("open"),
        pl.when(is_mark)
        .then(pl.col("start_ns"))
        .otherwise(pl.col("end_ns").fill_null(pl.max_horizontal(pl.lit(last, dtype=pl.Int64), pl.col("start_ns"))))
        .alias("end_ns"),
    ).filter(pl.col("end_ns") >= pl.col("start_ns"))
    selected = rows.select(
        "process", "thread", "start_ns", "end_ns", "event_type", "label", *columns, "own", "crossing", "open"
    ).sort("thread", "start_ns", "end_ns", "label", descending=[False, False, True, False])
    split = selected["event_type"] == schema.NVTX_MARK
    return Ranges(
        selected.filter(~split).drop("event_type").with_row_index("range"), selected.filter(split).drop("event_type")
    )
