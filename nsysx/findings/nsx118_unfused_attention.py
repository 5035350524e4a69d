"""NSX118 unfused-attention: attention as two products with a softmax between them, written out to memory.

What it means
    Attention scores grow with the square of the sequence length. Written as matmul, softmax, matmul they go to memory and back for
    every scale, mask, softmax and dropout. scaled_dot_product_attention keeps them on the chip (FlashAttention, or cuDNN's kernel). The
    saving shown is the time of the kernels between the two products; inside a fused kernel the products themselves may take more or
    less time.

In the trace
    In each layer a product, then scale, mask and softmax kernels, then another product; no flash or fmha kernel.

Bad
    scores = q @ k.transpose(-2, -1) / math.sqrt(d)
    y = torch.softmax(scores.masked_fill(mask, -inf), -1) @ v

Good
    y = F.scaled_dot_product_attention(q, k, v)  # a causal mask: is_causal=True
    # transformers: attn_implementation="sdpa"

Harmless when
    Sequences are short, or something else needs the scores. The softmax of a router or a gate, between layers, is none of attention:
    where an X-ray shows the operators, only one counts whose scores are no layer's and which is a factor of a product itself.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events.attention_backends import AttentionCalls, attention_calls
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import flow_of
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.softmax_uses import softmax_apart_from_attention
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import FEWEST_ATTENTIONS, MOST_ATTENTION_KERNELS
from nsysx.frames import lookup
from nsysx.model import Finding
from nsysx.replay.engine import RemoveOps

RULE = Rule(
    "NSX118",
    "unfused-attention",
    "Attention that is not fused",
    cause=(StepPart.WORK,),
    about=StepLimit.GPU,
    tries=("sdpa-flash", "sdpa-efficient", "sdpa-cudnn", "sdpa-math", "compile", "compile-reduce-overhead"),
)
REQUIRES = ("kernels",)
_FIX, _FIX_OF_MODULE = Fix.by_name("sdpa"), Fix.by_name("no-attention-weights")
_FIX_OF_CALL = Fix.by_name("sdpa-fused")
_MODULE = "MultiheadAttention"
_FIX_ANYWHERE = Fix("Use a fused attention kernel (FlashAttention, or cuDNN's)")
#: Softmax of scores, not of a loss.
_SOFTMAX = r"(?i)softmax"
_OF_LOSS = r"LogSoftMax|log_softmax|nll_loss|cross_?entropy"


def check(case: Case) -> list[Finding]:
    """Return one finding where the kernels between the products of attention take 1 % of the step or more."""
    kernels, places = _kernels_between_products(case)
    if places < FEWEST_ATTENTIONS * case.steps:
        return case.clear(RULE, "no layer runs a softmax between two products")
    taken = case.per_step(int(kernels["ns"].sum()))
    if not case.notable(taken):
        return case.clear(RULE, f"kernels between the products of attention take {case.share(taken)} of the step")
    worth = case.worth_or_time(taken, "the kernels between the products", RemoveOps(ops_of(kernels)), cause=RULE.cause)
    if worth.source == "replay":  # a fused kernel makes the products, too: what lies between them is no bound
        worth = replace(worth, bound=False, most_ns=None)
    detail = (
        f"A softmax runs between two GEMMs {places / case.steps:.0f} times {case.per}, and {kernels.height / case.steps:.0f} "
        f"kernels between them carry the scores through memory: {units.duration(taken)} ({case.share(taken)})."
    )
    fix = _fix(case, kernels)
    title = f"Attention is not fused: scores go through memory for {units.duration(taken)}"
    return [
        Found(RULE, title, detail, worth=worth, cost_ns=taken, fix=fix, takes=Takes(ops_of(kernels))).as_finding(case)
    ]


def _fix(case: Case, kernels: pl.DataFrame) -> Fix:
    """Return how to fuse: torch's own module does where nobody asks for the weights, which most of the kernels may be of."""
    if not case.program.torch:
        return _FIX_ANYWHERE
    if (slow := runs_math_path(case)) is not None:
        return Fix.by_name(
            "sdpa-fused", text=f"{_FIX_OF_CALL.text} (queries of {slow.query}{', with a mask' if slow.masked else ''})"
        )
    tree = case.profile.attributed.modules.select(pl.col("module", "cls").cast(pl.String))
    theirs = tree.filter(tree["cls"] == _MODULE)["module"].drop_nulls()
    module = case.ops.filter(case.ops["op"].is_in(kernels["op"].implode()))["module"].cast(pl.String)
    return _FIX_OF_MODULE if 2 * int(module.is_in(theirs.implode()).sum()) > kernels.height else _FIX


def runs_math_path(case: Case) -> AttentionCalls | None:
    """Return the first calls of scaled_dot_product_attention that no fused kernel takes; None without any, or where no X-ray shows them."""
    flow = flow_of(case.profile)
    calls = [] if flow is None else attention_calls(flow)
    return next((each for each in calls if each.backend == "math"), None)


def _of_something_else(case: Case) -> Flags:
    """Return of each of ``case.ops`` whether it works for a softmax that the operators of an X-ray show not to be attention's."""
    of_calls = operator_of_calls(case.profile)
    flow = None if of_calls is None else flow_of(case.profile)
    if of_calls is None or flow is None:
        return np.zeros(case.ops.height, np.bool_)
    row = np.append(of_calls.within(flow), -1)[case.ops["call"].fill_null(-1).to_numpy()]
    return np.isin(row, list(softmax_apart_from_attention(flow)))


def _kernels_between_products(case: Case) -> tuple[pl.DataFrame, int]:
    """Return the kernels (op, ns) between neighboring products with a softmax in between, and how many such places there are."""
    ops = case.ops.select("op", ns=pl.col("end_ns") - pl.col("start_ns"))  # sorted by start
    softmax = lookup.matching(case.ops["name"], _SOFTMAX) & ~lookup.matching(case.ops["name"], _OF_LOSS)
    if not softmax.any():
        return ops.clear(), 0
    rows = np.flatnonzero((case.ops["op_kind"] == "kernel").fill_null(False).to_numpy())
    stream, device = (case.ops[c].to_numpy()[rows] for c in ("stream", "device"))
    by_stream = np.lexsort((stream, device))
    rows, stream = rows[by_stream], stream[by_stream]
    product = lookup.coded(case.ops["family"], {"gemm": 0})[rows] == 0
    softmax = (softmax & ~_of_something_else(case))[rows]
    row, softmax_rows = np.flatnonzero(product), np.flatnonzero(softmax)
    next_product = np.searchsorted(row, softmax_rows)
    inner = (next_product > 0) & (next_product < len(row))
    if not inner.any():
        return ops.clear(), 0
    next_product = np.unique(next_product[inner])
    first, last = row[next_product - 1] + 1, row[next_product]
    near = (last - first <= MOST_ATTENTION_KERNELS) & (stream[first - 1] == stream[last])
    first, last = first[near], last[near]
    border = np.zeros(len(rows) + 1, np.int64)
    np.add.at(border, first, 1)
    np.add.at(border, last, -1)
    return ops[rows[np.cumsum(border[:-1]) > 0]], len(first)
