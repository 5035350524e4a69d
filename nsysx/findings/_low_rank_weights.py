"""Weights that each call puts together of a frozen one and a product of small rank (``events.low_rank_weights``): adapters, LoRA."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import limits_of_work
from nsysx.analyses.lines import text_of, texts
from nsysx.events import kernel_math
from nsysx.events.low_rank_weights import LowRankWeight, low_rank_weights
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.profile import NotRecorded
from nsysx.events.trained_operators import trained_of, trained_sizes
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_with_gradients
from nsysx.findings._found import Found
from nsysx.findings._instead import Instead
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import SMALL_PRODUCTS_AT_MOST_TIMES
from nsysx.model import Finding
from nsysx.roofline.element_types import OF_FORMAT


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return the finding about all weights that are put together so and trained by their small factors alone, where it saves 5 %."""
    flow = flow_of(case.profile)
    if flow is None:
        return []
    trained, sizes = trained_of(case.profile), trained_sizes(case.profile)
    weights = [
        each for each in low_rank_weights(flow) if trained[each.added] and not {each.size, each.size[::-1]} & sizes
    ]
    told = _found(case, rule, flow, weights) if weights else None
    return [] if told is None else [told]


def _gone(case: Case, flow: OperatorFlow, weights: Sequence[LowRankWeight]) -> pl.DataFrame:
    """Return the GPU work that goes: what puts weights together, with its gradients, and the gradients of whole weights: op, ns."""
    work = work_with_gradients(case, flow)
    making = frozenset().union(*(each.making for each in weights))
    gone = [work.filter(pl.col("row").is_in(list(making)))["op", "ns"]]
    products = case.ops.filter(case.ops["family"].cast(pl.String) == "gemm")["op", "start_ns"]
    behind = work.filter(work["backward"]).join(products, on="op", how="inner").sort("start_ns")
    for each in weights:
        theirs = behind.filter(behind["row"] == each.row)
        if theirs.height == case.steps:  # of an input without a gradient
            gone.append(theirs["op", "ns"])
        elif theirs.height == 2 * case.steps:  # that of the input, and that of the weight: the shorter one counts
            pairs = theirs.with_row_index().group_by(pl.col("index") // 2, maintain_order=True)
            gone.append(pairs.agg(pl.col("op").sort_by("ns").first(), pl.col("ns").min())["op", "ns"])
    return pl.concat(gone).unique("op", maintain_order=True)


def _least_ns(case: Case, weights: Sequence[LowRankWeight], gone: pl.DataFrame) -> float | None:
    """Return the least time of the small products that come instead, over all steps; None where it is not known in which format."""
    kernels = case.ops.join(gone, on="op", how="inner").sort("ns", descending=True)
    formats = kernel_math.number_format(kernels["name"], kernels["family"]).drop_nulls()
    rates = case.profile.once(limits_of_work.device_rates)
    width, rate = (OF_FORMAT.get(formats[0]), rates.products.get(formats[0])) if len(formats) else (None, None)
    if width is None or rate is None:
        return None
    least = 0.0
    for each in weights:
        moved = rates.memory_ns(round(width * each.numbers))
        if moved is None:
            return None
        least += 3 * max(each.operations / rate.per_s * 1e9, moved)
    return least * case.steps


def _found(case: Case, rule: Rule, flow: OperatorFlow, weights: Sequence[LowRankWeight]) -> Finding | None:
    gone = _gone(case, flow, weights)
    try:
        limit = _least_ns(case, weights, gone)
    except NotRecorded:
        return None
    cost = case.per_step(int(gone["ns"].sum()))
    if limit is None or not case.notable(cost, REPORTED_SHARE):
        return None
    worth = Instead(gone, limit, min(SMALL_PRODUCTS_AT_MOST_TIMES * limit, int(gone["ns"].sum()))).worth(case)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    first = max(weights, key=lambda each: each.size[0] * each.size[1])
    code = case.profile.code()
    where = {} if code is None else place_of_operator(code, flow, flow.start_ns[[first.added]])
    size = " x ".join(map(str, first.size))
    title = (
        f"{f'{in_short(where)}: ' if where else ''}A product of rank {first.rank} is added to whole weights of {size} before each layer "
        "multiplies by them"
    )
    detail = (
        f"{units.several(len(weights), 'product')} of a step multiply by weights that are put together anew. No gradient of such a weight "
        f"is kept, but backward makes it whole, to multiply it by the small factors: {units.duration(cost)} {case.per} with what puts the "
        f"weights together, {case.share(cost)} of the step. The small products take "
        f"{units.duration(case.per_step(round(limit)))} at the device's limit."
    )
    text = text_of(texts(case.profile), where.get("file"), where.get("line")) if where else None
    return Found(
        rule, title, detail, worth=worth, cost_ns=cost, fix=_fix(text, turned=first.turned), where=where or None,
        takes=Takes(ops_of(gone)),
    ).as_finding(case)  # fmt: skip


def _fix(text: str | None, *, turned: bool) -> Fix:
    fix, names = Fix.by_name("added-behind-products"), named_terms(text or "")
    return (
        fix.but(paste=small_products(*names, turned=turned)) if names else fix.but(paste=small_products(turned=turned))
    )


def named_terms(text: str) -> tuple[str, str, str, str] | None:
    """Return how a line calls the frozen weight, the factors of what it adds, and their scale ("" for none); None for another line."""
    try:
        tree = ast.parse(text.strip().rstrip(":"))
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
            continue
        for base, term in ((node.left, node.right), (node.right, node.left)):
            scales = list[str]()
            while isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult):
                left_is_product = any(isinstance(each, ast.MatMult) for each in ast.walk(term.left))
                scale, term = (term.right, term.left) if left_is_product else (term.left, term.right)
                scales.append(ast.unparse(scale))
            if isinstance(term, ast.BinOp) and isinstance(term.op, ast.MatMult):
                return ast.unparse(base), ast.unparse(term.left), ast.unparse(term.right), " * ".join(scales)
    return None


def small_products(
    base: str = "base", left: str = "B", right: str = "A", scale: str = "scale", *, turned: bool = True
) -> str:
    """Return lines that multiply by a frozen weight and by the factors of what was added to it; ``turned``: as ``F.linear`` does."""
    times = f" * {scale}" if scale else ""
    first, second = (f"F.linear(x, {right})", f"{_within(left)}.t()") if turned else (f"x @ {left}", right)
    whole = f"F.linear(x, {base})" if turned else f"x @ {base}"
    return (
        f"y, low = {whole}, {first}{times}\n"
        f"y = torch.addmm(y.flatten(0, -2), low.flatten(0, -2), {second}).view(y.shape)"
    )


def _within(text: str) -> str:
    return text if text.replace(".", "").replace("_", "").isalnum() else f"({text})"
