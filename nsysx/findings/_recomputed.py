"""Forward work that is computed again in the backward: what checkpointing repeats, in eager code and inside of compiled functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import operator_work
from nsysx.analyses.lines import texts
from nsysx.catalogue import StepPart
from nsysx.events.profile import NotRecorded, Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._changes_of_ranks import without_on_all
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import FREE_MEMORY_SHARE, LEAST_RECOMPUTED_SHARE
from nsysx.model import Row
from nsysx.replay.engine import Edit, RemoveOps, ScaleOps

_COMPILED = "CompiledFunctionBackward"


_ASKS = re.compile(
    r"\bcheckpoint(_sequential|_wrapper)?\(|gradient_checkpointing_enable\(|\bapply_activation_checkpointing\("
)


def place_of_call(case: Case) -> Row:
    """Return the line that asks for checkpoints, by its text; empty where no noted line does."""
    return next((where for where, _ in asking_lines(texts(case.profile))), {})


def asking_lines(source: Mapping[str, Mapping[str, object]]) -> Iterator[tuple[Row, str]]:
    """Yield the noted lines that ask for checkpoints, with their texts."""
    for file, lines in source.items():
        for number, text in lines.items():
            if isinstance(text, str) and _ASKS.search(text) and number.isdecimal():
                yield {"file": file, "line": int(number)}, text


def needless(case: Case, settings: RecordedSettings) -> str:
    """Return what is recomputed although memory is free, "" for nothing."""
    memory = settings.record.get("memory")
    free = _free_bytes(memory) if isinstance(memory, Mapping) else 0
    if not free:
        return ""
    unused = f"and {units.size(free)} of the card are never used"
    if calls := settings.number("checkpoints"):
        return f"checkpoint() recomputes {units.several(calls, 'part')} of the forward in each backward, {unused}"
    share = case.profile.once(repeated_share)
    if share < LEAST_RECOMPUTED_SHARE:
        return ""
    return f"the compiled backward repeats {units.share(min(share, 1.0), 1)} of the forward's products, as checkpoint() asks, {unused}"


def _free_bytes(memory: Mapping[str, object]) -> int:
    total, peak = memory.get("total_bytes"), memory.get("reserved_peak_bytes")
    if not isinstance(total, int) or not isinstance(peak, int) or not total or not peak:
        return 0
    return total - peak if total - peak >= FREE_MEMORY_SHARE * total else 0


def repeated_share(profile: Profile) -> float:
    """Return which part of the forward's products the backward of compiled functions repeats, 0 where that is not seen."""
    repeated, forward = profile.once(_repeated)
    again = sum(float(flops) * share for flops, share in repeated["flops", "share"].iter_rows())
    return again / forward if forward else 0.0


def _repeated(profile: Profile) -> tuple[pl.DataFrame, int]:
    """Return the products of compiled backwards that may repeat the forward's, and the FLOP of those of the forward.

    Columns: row, flops, share. Such a product has the operator and the sizes of one of the forward. Gradients may have these sizes, too:
    ``share`` is what is left of their number without the gradients.
    """
    try:
        operators = operator_work.numbered_operators(profile).filter(pl.col("flops") > 0)
    except NotRecorded:
        return pl.DataFrame(schema={"row": pl.Int64, "flops": pl.Int64, "share": pl.Float64}), 0
    used = profile.once(operator_work.work).select("row").unique()
    rows = operators.join(used, on="row", how="semi").with_columns(
        pl.col("shapes").str.extract_all(r"\[\d[\d, ]*\]").list.join(" ").alias("sizes")
    )
    compiled = pl.col("node").fill_null("").str.starts_with(_COMPILED)
    forward = rows.filter(pl.col("node").is_null())
    gradients: Counter[str] = Counter()
    for sizes, count in forward.group_by("sizes").len().iter_rows():
        for each in _sizes_of_gradients(sizes):
            gradients[each] += count
    kinds = forward.group_by("name", "sizes").agg(pl.len().alias("forwards"))
    made = rows.filter(compiled & ~pl.col("name").str.contains("backward")).join(
        kinds, on=["name", "sizes"], how="inner"
    )
    counted = made.group_by("name", "sizes").agg(pl.len().alias("made"), pl.col("forwards").first())
    left = [
        min(max(n - (gradients[_matrices(sizes)] if name == "aten::mm" else 0), 0), forwards) / n
        for name, sizes, n, forwards in counted.iter_rows()
    ]
    counted = counted.with_columns(pl.Series("share", left, dtype=pl.Float64))
    made = made.join(counted.filter(counted["share"] > 0)["name", "sizes", "share"], on=["name", "sizes"], how="inner")
    return made["row", "flops", "share"], int(forward["flops"].sum())


def _matrices(sizes: str) -> str:
    """Return the sizes of the two matrices of a product."""
    matrices = [each for each in re.findall(r"\[[^\]]*\]", sizes) if each.count(",") == 1]
    return " ".join(matrices[:2])


def _sizes_of_gradients(sizes: str) -> list[str]:
    """Return the sizes that the products for both gradients of a product of matrices may have; each is written one way or transposed."""
    sides = [(int(a), int(b)) for a, b in re.findall(r"\[(\d+), (\d+)\]", _matrices(sizes))]
    if len(sides) != 2 or sides[0][1] != sides[1][0]:
        return []
    (m, k), (_, n) = sides
    of_input = {f"[{m}, {n}] [{n}, {k}]", f"[{k}, {n}] [{n}, {m}]"}
    of_weight = {f"[{k}, {m}] [{m}, {n}]", f"[{n}, {m}] [{m}, {k}]"}
    return [*of_input, *of_weight]


def without(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it is worth to keep the activations: the repeated work goes, as far as it is seen."""
    again = case.ops.filter(case.ops["recompute"].fill_null(False))
    if again.height:
        # All ranks run one program: one that alone computes nothing again waits for the others.
        return without_on_all(case, "backward-behind-forward") or case.worth(
            RemoveOps(ops_of(again)), cause=(StepPart.WORK,)
        )
    products, share = _removed(case), min(case.profile.once(repeated_share), 1.0)
    if not products:
        return None
    # What lies between the repeated products is repeated with them, or fused into the gradients at no cost.
    between, backward = _between_products(case)
    whole = max(int(backward["ns"].sum()), 1)

    def edits(part: float) -> list[Edit]:
        left = max(0.0, 1 - part * share * between / whole)
        return [*products, ScaleOps(ops_of(backward), left, less_work=True)] if left < 1 else products

    why = "the repeated products go for sure, what lies between them perhaps"
    return case.worth_between(edits(0.0), edits(0.5), edits(1.0), why, cause=(StepPart.WORK,))


def _removed(case: Case) -> list[Edit]:
    """Return the products that compiled backwards repeat, as what is removed."""
    repeated, _ = case.profile.once(_repeated)
    edits: list[Edit] = []
    for (share,), rows in repeated.group_by("share", maintain_order=True):
        ops = ops_of(operator_work.work_of(case.profile, rows))
        edits.append(RemoveOps(ops) if share == 1 else ScaleOps(ops, 1 - float(str(share)), less_work=True))
    return edits


def _between_products(case: Case) -> tuple[int, pl.DataFrame]:
    """Return the time of the forward's compiled kernels that are no products (ns, all steps), and such ops of the backward: op, ns."""
    operators = operator_work.numbered_operators(case.profile)
    work = operator_work.work_of(case.profile, operators, "node").filter(~pl.col("multiplies"))
    kernels = operators.filter(pl.col("name").str.starts_with("triton::")).select("row")
    forward = work.filter(pl.col("node").is_null()).join(kernels, on="row", how="semi")
    compiled = pl.col("node").fill_null("").str.starts_with(_COMPILED)
    return int(forward["ns"].sum()), work.filter(compiled)["op", "ns"]


def taken(case: Case) -> Takes:
    """Return the work that is repeated, with the gradients beside it where the two are not told apart."""
    again = case.ops.filter(case.ops["recompute"].fill_null(False))
    return Takes(ops_of(again if again.height else _compiled_backward(case)))


def _compiled_backward(case: Case) -> pl.DataFrame:
    """Return the GPU ops of the backwards of compiled functions: op."""
    try:
        operators = operator_work.numbered_operators(case.profile)
    except NotRecorded:
        return case.ops.select("op").clear()
    compiled = operators.filter(pl.col("node").fill_null("").str.starts_with(_COMPILED))
    return operator_work.work_of(case.profile, compiled).select("op")
