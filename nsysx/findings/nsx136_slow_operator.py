"""NSX136 slow-operator: an operator that one line runs takes much of the step, and far longer than its sizes need.

What it means
    The sizes of an operator say what it must multiply and move. The operator of this line takes many times as long: it
    reads one number at a time, sorts all to use a few, adds to one place from many threads, or runs in a wide number format on few
    of the GPU's units. No rule knows the cause; the line, the operator and how far it is from its limit are facts. What the change is
    worth lies between nothing and that limit.

In the trace
    Kernels of one operator and of its gradient, launched by one line, that reach less than a third of the rate that the device has for
    them, or that do work without a known limit which other operators often replace. Together they take a fifth of the step or more.
    Sparse products that sort the entries of their matrix each time are told as such. So is pooling in large windows that overlap.
    Kernels that a compiler fuses are NSX112's, but for those that join tensors; attention by a fused kernel of 16 bits is in its best
    form.

Bad
    order = scores.argsort(descending=True)            # all of 100,000 are sorted for the first ten

Good
    best = scores.topk(10).indices

Harmless when
    What it computes has no shorter form: an eigenvalue problem, a transform of the length that is needed.
"""

from __future__ import annotations

import re
from pathlib import PurePath

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import limits_of_work, operator_executions
from nsysx.analyses.helpers.module_names import folded, kernel_called
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events.families import COMMUNICATION
from nsysx.events.kernel_libraries import library_of
from nsysx.events.profile import NotRecorded
from nsysx.findings import _separable_pools, _shared_gpu, _sorted_products
from nsysx.findings._case import Case, Fix, Rule
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import SLOW_OPERATOR_SHARE, SLOW_REACHED_SHARE, UNLIMITED_OPERATOR_SHARE
from nsysx.findings.nsx112_fusion import FUSIBLE, JOINS
from nsysx.frames import lookup
from nsysx.model import Finding, Row
from nsysx.replay.engine import RemoveOps, ScaleOps

RULE = Rule(
    "NSX136",
    "slow-operator",
    "Operators of a line far from their limits",
    cause=(StepPart.WORK,),
    about=StepLimit.GPU,
    direct=1,
    striking=True,
)
REQUIRES = ("steps", "kernels", "roofline")
_SIXTEEN_BITS = ("bf16", "fp16", "16 bits")
#: What an operator can often be replaced by, by its name; the first row that fits counts.
_INSTEAD = (
    (r"^(arg|m)?sort|topk|kthvalue|median|quantile", "the few largest (torch.topk), a count of what is larger, or no order at all"),
    (r"upsample|grid_sampl|resize", "fewer channels or places to resample, in channels_last, or once for what stays the same"),
    (r"attention|sdp", "attention by a fused kernel: q, k and v in 16 bits, is_causal=True in place of a mask tensor"),
    (r"conv", "16 bits, channels_last, channels in multiples of 8, and a library's kernel for these sizes"),
    (r"mm$|matmul|linear|einsum", "16 bits or TF32, sizes in multiples of 8, many small products as one (torch.bmm), or a smaller product"),
    (
        r"index_(add|reduce)|scatter|bincount|histc",
        "sums of sorted segments (segment_reduce) or a sparse product: additions to one row wait for each other",
    ),
    (
        r"index_(put|copy)|embedding|^index$",
        "F.embedding in place of x[index], or sums of sorted segments (segment_reduce): additions to one row wait for each other",
    ),
    (r"gather|index_select|take", "rows that lie together, picked once; or what comes before it done on the picked ones alone"),
    (r"^cum|logcumsumexp", "a scan along the last dimension, or a product with a triangular matrix"),
    (r"unique|nonzero|masked", "a mask that is multiplied in (torch.where), which keeps all sizes"),
    (r"dist", "distances by a GEMM: |x|² + |y|² - 2 x·y"),
    (r"pool", "windows that overlap less, along one dimension after the other where they are large, in channels_last"),
    (r"cat|stack|copy|clone|contiguous|pad|roll|flip|repeat", "views, and results that are written where they are needed"),
    (r"rand|normal|multinomial|bernoulli|dropout|exponential", "numbers drawn once for several steps, or fewer of them"),
)  # fmt: skip
_ELSE = "what is needed later alone, once for what stays the same, or another operator"
_WIDE = ("fp32", "tf32", "fp64")
#: Kernels that torch takes for each Conv3d with as many groups as channels, in any format: one thread for each output, the gradient of
#: the weights by one block for each of their numbers (aten/src/ATen/native/cuda/DepthwiseConv3d.cu).
_DEPTHWISE_3D = re.compile(r"conv_depthwise3d")
#: Operators that have no shorter form as a rule, or go over their numbers several times.
_NEEDED = re.compile(r"^Compiled|fft|stft|cholesky|inv|solve|svd|eig|qr|lu_|lstsq|rnn|lstm|gru")
_RATES = {operator_executions.MEMORY: "the memory bandwidth", operator_executions.PRODUCTS: "the peak rate"}


def check(case: Case) -> list[Finding]:
    """Return one finding for the operator of a line from which most could go, where that is a fifth of the step or more."""
    code = case.profile.code()
    if code is None:
        return case.cannot_tell(RULE, "which line launches a kernel was not recorded", "nsysx run -- CMD")
    if unknown := _shared_gpu.no_rates(case):
        return case.cannot_tell(RULE, unknown)
    try:
        done = case.profile.once(limits_of_work.executions)
    except NotRecorded as missing:
        return case.cannot_tell(RULE, missing.reason)
    sorted_anew = _sorted_products.findings_of(case, RULE, done)
    if sorted_anew:
        return sorted_anew
    pooled = _separable_pools.findings_of(case, RULE)
    if pooled:
        return pooled
    family = pl.col("family").cast(pl.String).fill_null("")
    best = (family == "attention") & pl.col("number_format").is_in(_SIXTEEN_BITS).fill_null(value=False)
    done = done.filter(
        library_of(
            done["kernel"].cast(pl.Categorical)
        ).is_not_null(),  # kernels of the program's own are NSX128's and NSX122's
        pl.col("operation").is_not_null(),
        pl.col("place") >= 0,
        ~family.is_in((*FUSIBLE, COMMUNICATION))
        | pl.Series(lookup.matching(done["kernel"].cast(pl.Categorical), JOINS)),
        ~best,
    )
    limited = pl.col("limit_ns").is_not_null()
    ns = pl.col("gpu_ns")
    kinds = done.group_by("place", "operation", maintain_order=True).agg(
        ns.sum(),
        ns.filter(limited).sum().alias("known_ns"),
        pl.col("limit_ns").sum(),
        ns.filter("backward").sum().alias("backward_ns"),
        pl.len().alias("executions"),
        pl.col("module", "kernel", "number_format", "roof", "why_not").sort_by("gpu_ns").last(),
    )
    excess = pl.when(2 * pl.col("known_ns") >= ns).then(pl.col("known_ns") - pl.col("limit_ns")).otherwise(ns)
    kinds = kinds.with_columns(unlimited=2 * pl.col("known_ns") < ns, excess_ns=excess)
    kinds = kinds.sort("excess_ns", "place", "operation", descending=[True, False, False])
    slow = next((row for row in kinds.iter_rows(named=True) if _much(case, row)), None)
    if slow is None:
        return case.clear(RULE, "no operator of a line could be shorter by a fifth of the step")
    return [_found(case, slow, _words(case, slow, narrow=_narrow(done)))]


def _much(case: Case, row: Row) -> bool:
    """Return whether enough of the step could go, and the operator is as far from its limit as no good form of it is."""
    share = UNLIMITED_OPERATOR_SHARE if row["unlimited"] else SLOW_OPERATOR_SHARE
    if not case.notable(case.per_step(row["excess_ns"]), share):
        return False
    if _NEEDED.search(row["operation"]):
        return False
    # Neither how near it is to its limit is known nor another form of it: that it takes long is no reason to change it.
    if row["unlimited"]:
        return _other_form(row["operation"]) is not None
    return _share_of_limit(row) <= SLOW_REACHED_SHARE


def _other_form(operation: str) -> str | None:
    """Return what an operator can often be replaced by, in words; None where nothing is known."""
    return next((words for pattern, words in _INSTEAD if re.search(pattern, operation)), None)


def _share_of_limit(row: Row) -> float:
    """Return the limit of an operator over its time."""
    return float(row["limit_ns"] / max(row["known_ns"], 1))


def _reached(row: Row) -> str:
    """Return "8 % of the memory bandwidth"."""
    return f"{units.share(_share_of_limit(row), 1)} of {_RATES.get(row['roof'], 'its limit')}"


def _found(case: Case, row: Row, words: str) -> Finding:
    """Return the finding about an operator of a line, with what to do about it in words."""
    code = case.profile.code()
    assert code is not None
    file, line, _ = code.places.row(row["place"])
    ops = operator_executions.ops_at(case.profile, row["operation"], row["place"])
    edit = RemoveOps(ops) if row["unlimited"] else ScaleOps(ops, _share_of_limit(row))
    replayed = case.worth(edit, cause=RULE.cause, bound=True)
    left = "were gone" if row["unlimited"] else "ran at its limit"
    taken = case.per_step(row["gpu_ns"])
    most = case.per_step(row["excess_ns"]) if replayed.likely_ns is None else replayed.likely_ns
    there, name = f"{PurePath(str(file)).name}:{line}", row["operation"]
    rate = "" if row["unlimited"] else f", at {_reached(row)}"
    title = f"{name} in {there} takes {units.duration(taken)} {case.per}, {case.share(taken)} of the step{rate}"
    detail = f"{case.often(row['executions'], 'execution', 'executions')} of {name}"
    if row["backward_ns"]:
        detail += f", {units.share(row['backward_ns'], row['gpu_ns'])} of their time in backward"
    detail += f"; the longest kernel is {kernel_called(row['kernel'])}. "
    if row["unlimited"]:
        detail += f"No limit is known of it ({row['why_not']})."
    else:
        detail += f"By its sizes {units.duration(case.per_step(row['limit_ns']))} would do."
    plain = Fix.by_name("less-of-an-operator", text=words)
    fix = Fix.by_name("depthwise-of-planes") if _DEPTHWISE_3D.search(str(row["kernel"])) else plain
    where = {"module": row["module"] and folded(row["module"]), "file": file, "line": line}
    worth = case.bound(most, f"as if it {left}; how much of that can be reached is not known")
    evidence = ({"unlimited": True},) if row["unlimited"] else ()
    return Found(
        RULE,
        title,
        detail,
        worth=worth,
        cost_ns=taken,
        fix=fix,
        where=where,
        evidence=evidence,
        takes=Takes(ops),
    ).as_finding(case)


def _narrow(done: pl.DataFrame) -> bool:
    """Return whether most products of the step have 16 bits."""
    products = done.filter(done["flops"] > 0)
    narrow = products.filter(pl.col("number_format").is_in(_SIXTEEN_BITS))
    return 2 * int(narrow["flops"].sum() or 0) > int(products["flops"].sum() or 0)


def _words(case: Case, row: Row, *, narrow: bool) -> str:
    """Return what to do about an operator of a line, with what is striking about it; ``narrow``: the other products have 16 bits."""
    advice = _other_form(row["operation"]) or _ELSE
    facts = [f"{case.share(case.per_step(row['gpu_ns']))} of the step"]
    if not row["unlimited"]:
        facts.append(f"at {_reached(row)}")
    if narrow and row["number_format"] in _WIDE:
        facts.append(f"in {row['number_format']} where the other products have 16 bits")
    return f"Make {row['operation']} cheaper here ({', '.join(facts)}), with {advice}"
