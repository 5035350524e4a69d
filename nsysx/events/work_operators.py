"""Which operator of torch a call and its GPU work belong to, with the shapes that the operator was given.

Operators are ranges that torch itself writes: the X-ray steps of ``nsysx run``, or ``torch.autograd.profiler.emit_nvtx`` of anybody. Their
text is ``aten::addmm, seq = 47, op_id = 107, sizes = [[10], [4, 8], [8, 10], [], []], input_op_ids = [(0,-1), (37,0), ...]``:
autograd's number, a number of their own, the sizes of the arguments ([] for what is not a tensor), and for each argument the
operator that made it and which of its results it is. Sizes and what follows are there with ``record_shapes=True`` only.

Work belongs to the outermost operator with a known number of floating point operations (``events.operator_flops``), so that a
convolution and what cuDNN wraps around it are one; all other work to the innermost operator that was open when it was called. What a
subclass of tensors makes of an operator is an operator of its own: that around it has the sizes of a DTensor, not those of a rank's part.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.events import operator_flops, operator_reads
from nsysx.events.attribute import Attributed, capture_calls
from nsysx.events.event_bounds import DEEPEST_CONVOLUTION, OTHER_SIZES_SHARE
from nsysx.events.layers import Layer, layer_of
from nsysx.events.nvtx_ranges import Flags, Ranges
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.reading.trace import Trace

_SIZES = r"sizes = (\[[\[\]\d, -]*\])"
_ID = r", op_id = (\d{1,18})\b"
_MADE = r"\((\d{1,18}),(\d{1,9})\)"
#: Why an operator of a step has no sizes.
OTHER_SIZES = "its sizes are not those of the step in which they were recorded"
#: A launch of a kernel of Triton, as the probe names it (``inject.nsysx_probe.kernel_launches``): bytes of its tensors, or "products".
_LAUNCH = r"^triton::[^,]+#(\d{1,18}|products),"
#: Why a kernel of Triton has no limit by its bytes.
MULTIPLIES = "a kernel of Triton that multiplies matrices: how many operations is not known"
#: What torch calls the range in which a subclass of tensors does an operator its own way.
_SUBCLASS = "PythonSubclass"
#: A node of autograd: MulBackward0, CompiledFunctionBackward.
_NODE = re.compile(r"^[^:]*Backward\d*$")
#: What torch.compile calls the ranges around its programs.
_COMPILED = re.compile(r"CompiledFunction|Torch-Compiled Region|## Call CompiledFxGraph")


@dataclass(frozen=True)
class WorkOperators:
    """``rows``: one row per operator that work belongs to, columns below. ``call`` and ``op``: the row of each API call and
    GPU op, -1 outside of all.

    Columns: name, shapes (text, null where not recorded), caller (the outermost of torch's own operators around it, null where
    there is none), node (of autograd, around it; null in a forward), read (text: ``shapes`` as the operator reads them, see
    ``operator_reads``), other_sizes (the step has other sizes than the one in which they were recorded: they are null), flops
    (floating point operations of one execution, null where they cannot be told), why_not (then the reason; null for operators that
    multiply nothing), gradient_flops (of one gradient, where it is not known which a backward made), tensor_bytes (what the tensors hold
    that a kernel of Triton was launched with; null for all else), kind (a number: operators that are the same in all of this have one).
    """

    rows: pl.DataFrame
    call: I64
    op: I64


def recorded(ranges: Ranges) -> bool:
    """Say whether the report holds operators at all."""
    return bool((ranges.ranges["kind"] == "op").any())


def find(trace: Trace, ranges: Ranges, attributed: Attributed) -> WorkOperators:
    """Return the operator of every API call and GPU op."""
    layer = layer_of(ranges.ranges.filter((ranges.ranges["kind"] == "op") & ~ranges.ranges["crossing"]))
    owner, outermost, node, compiled = _owners(layer)
    calls = attributed.api_calls
    inner = _innermost_at(layer, calls["thread"].to_numpy(), calls["start_ns"].to_numpy())
    size, execution = len(owner), np.zeros(len(inner), np.int64)
    if ranges.repeats is not None:
        # A step without operators of its own makes the calls of one with them.
        like = ranges.repeats.of
        inherited = np.flatnonzero((inner < 0) & (like >= 0))
        inner[inherited] = inner[like[inherited]]
        execution[inherited] = np.cumsum(np.diff(like[inherited], prepend=0) <= 0) + 1
    call = np.where(owner[inner] >= 0, owner[inner] + size * execution, -1)
    op = np.append(call, -1)[attributed.gpu_ops["call"].fill_null(-1).to_numpy()]
    captured = _captured(trace, layer, attributed)
    op = np.where(captured >= 0, owner[captured], op)
    used = pl.Series(np.concatenate((call, op))).unique().sort().to_numpy()
    used = used[used >= 0]
    call, op = (np.where(key >= 0, np.searchsorted(used, key), -1) for key in (call, op))
    distinct, executed = np.unique(used % size, return_inverse=True)
    described = _described(layer, distinct, outermost, node, compiled)
    kinds = described.unique(maintain_order=True).with_row_index("kind")
    kind = described.join(kinds, on=described.columns, how="left", nulls_equal=True, maintain_order="left")["kind"]
    unlike = _inherits_other_sizes(attributed, ranges, call, used // size)
    kinds = pl.concat([kinds.with_columns(other_sizes=False), _without_sizes(kinds)])
    kinds = kinds.with_columns(kind=pl.int_range(pl.len()))
    return WorkOperators(kinds[kind.to_numpy()[executed] + unlike * (kinds.height // 2)], call, op)


def _innermost_at(layer: Layer, thread: I64, t: I64) -> I64:
    """Return the innermost operator at each (thread, instant), rows grouped by thread."""
    rows = np.full(len(t), -1, np.int64)
    borders = [0, *(np.flatnonzero(thread[1:] != thread[:-1]) + 1).tolist(), len(t)]
    for a, b in itertools.pairwise(borders):
        if b > a:
            rows[a:b] = layer.at(int(thread[a]), t[a:b])
    return rows


def _inherits_other_sizes(attributed: Attributed, ranges: Ranges, call: I64, step: I64) -> Flags:
    """Return which operators inherit sizes that are not theirs. ``call``: the operator of each call, ``step``: that of each operator.

    A call whose GPU work has another kernel, grid or size than that whose operator it inherits has other sizes. So has all of a step
    with many such operators: a grid does not show every size.
    """
    unlike = np.zeros(len(step), np.bool_)
    if ranges.repeats is None or not len(step):
        return unlike
    like = ranges.repeats.of
    columns = [pl.col("name").to_physical(), "grid", "block", "bytes"]
    first = attributed.gpu_ops["call", "name", "grid", "block", "bytes"].drop_nulls("call")
    first = first.unique("call", keep="first", maintain_order=True)
    of_call = np.full(len(like) + 1, -1)
    of_call[first["call"].to_numpy()] = np.arange(first.height)
    compared = np.flatnonzero((like >= 0) & (call >= 0) & (of_call[:-1] >= 0) & (of_call[like] >= 0))
    differs = np.zeros(len(compared), np.bool_)
    for column in first.select(columns).iter_columns():
        values = column.cast(pl.Int64).fill_null(-1).to_numpy()
        differs |= values[of_call[compared]] != values[of_call[like[compared]]]
    unlike[call[compared[differs]]] = True
    held = np.unique(call[compared])
    of_step, differing = (np.bincount(step[rows], minlength=int(step.max()) + 1) for rows in (held, held[unlike[held]]))
    return unlike | (differing > OTHER_SIZES_SHARE * of_step)[step]


def _without_sizes(rows: pl.DataFrame) -> pl.DataFrame:
    """Return operators as they are in a step that has other sizes than the one in which theirs were recorded."""
    counts = pl.col("flops").is_not_null() | pl.col("gradient_flops").is_not_null()
    sizes = ("shapes", "read", "flops", "gradient_flops", "tensor_bytes")
    return rows.with_columns(
        *(pl.lit(None, dtype=rows.schema[c]).alias(c) for c in sizes),
        pl.when(counts).then(pl.lit(OTHER_SIZES)).otherwise("why_not").alias("why_not"),
        other_sizes=True,
    )


def _captured(trace: Trace, layer: Layer, attributed: Attributed) -> I64:
    """Return, for the GPU ops of CUDA graphs, the operator that was open when their node was captured; else -1."""
    ops = attributed.gpu_ops
    op = np.full(ops.height, -1, np.int64)
    if not trace.graph_node.height or not ops["graph_node"].is_not_null().any():
        return op
    origin = capture_calls(trace, attributed.api_calls).sort("thread", "time_ns")
    row = _innermost_at(layer, origin["thread"].to_numpy(), origin["time_ns"].to_numpy())
    origin = origin["process", "graph_node"].with_columns(row=pl.Series(row))
    joined = ops["process", "graph_node"].join(origin, on=["process", "graph_node"], how="left", maintain_order="left")
    return joined["row"].fill_null(-1).to_numpy()


def _owners(layer: Layer) -> tuple[I64, I64, I64, Flags]:
    """Return for each row the operator that its work belongs to, the outermost of torch's and autograd's innermost node around it,
    -1 for none, and whether it lies in a compiled region.
    """
    parents, depth = layer.parents(), layer.depths()
    names, index = lookup.distinct(layer.rows["name"])
    torchs = np.array([(n or "").startswith("aten::") for n in names], np.bool_)[index]
    compiled = np.append(np.array([bool(_COMPILED.match(n or "")) for n in names], np.bool_)[index], False)
    nodes = np.array([bool(_NODE.search(n or "")) for n in names], np.bool_)[index]
    subclass = np.array([n == _SUBCLASS for n in names], np.bool_)[index]
    counts = operator_flops.counted(layer.rows["name"])
    owner = np.arange(len(parents) + 1)
    top = np.append(np.where(torchs, owner[:-1], -1), -1)
    node = np.append(np.where(nodes, owner[:-1], -1), -1)
    inside = np.append(counts, False)
    owner[-1] = -1
    order = np.argsort(depth, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(depth[order])) + 1) if len(order) else ():
        above = parents[rows]
        there = above >= 0
        top[rows] = np.where(there & (top[above] >= 0), top[above], top[rows])
        node[rows] = np.where(there & (node[rows] < 0), node[above], node[rows])
        held = there & inside[above] & ~subclass[rows]
        owner[rows] = np.where(held, owner[above], rows)
        inside[rows] |= held
        compiled[rows] |= there & compiled[above]
    return owner, top, node, compiled


def _described(layer: Layer, used: I64, outermost: I64, node: I64, compiled: Flags) -> pl.DataFrame:
    """Return the rows of ``Operators``."""
    rows = layer.rows[used].select("process", "label", pl.col("name").cast(pl.String))
    text = rows["label"].cast(pl.String)
    top = outermost[used]
    caller = lookup.at(layer.rows["name"].cast(pl.String), np.where(top == used, -1, top))
    described = rows.with_columns(
        caller=caller,
        node=lookup.at(layer.rows["name"].cast(pl.String), node[used]),
        read=operator_reads.read_once(layer.rows, used),
        shapes=text.str.extract(_SIZES, 1),
        id=text.str.extract(_ID, 1).cast(pl.Int64, strict=False),
    )
    described = described.with_columns(_results(layer, described))
    # Kernels of inductor take results too, and are not operators.
    described = described.with_columns(made=described["made"].set(pl.Series(compiled[used]), None))
    kinds = described["name", "shapes", "results", "made"].unique(maintain_order=True)
    counted = [operator_flops.flops_of_operator(*row) for row in kinds.iter_rows()]
    kinds = kinds.with_columns(
        pl.Series("flops", [None if why else n for n, why in counted], dtype=pl.Int64),
        pl.Series("gradient_flops", [n if why else None for n, why in counted], dtype=pl.Int64),
        pl.Series("why_not", [why for _, why in counted], dtype=pl.String),
    )
    keys = ["name", "shapes", "results", "made"]
    described = described.join(kinds, on=keys, how="left", nulls_equal=True, maintain_order="left")
    held = text.str.extract(_LAUNCH, 1)
    return described.select(
        "name", "shapes", "caller", "node", "read", "flops",
        pl.when(pl.Series(held == "products")).then(pl.lit(MULTIPLIES)).otherwise("why_not").alias("why_not"),
        "gradient_flops",
        tensor_bytes=held.cast(pl.Int64, strict=False),
    )  # fmt: skip


def _results(layer: Layer, described: pl.DataFrame) -> list[pl.Series]:
    """Return ``results``, the size of a convolution's result, and ``made``, which results of its backward were used.

    Neither stands in its own text; both show where another operator takes them. Null where nobody does. Two convolutions of
    equal sizes have one result where only one is known.
    """
    forward = operator_flops.convolutions(described["name"])
    backward = operator_flops.convolutions(described["name"], backward=True)
    results = pl.Series("results", [None] * described.height, dtype=pl.String)
    made = pl.Series("made", [None] * described.height, dtype=pl.String)
    if not (forward | backward).any():
        return [results, made]
    names = described.with_row_index("row").filter(pl.Series(forward | backward))
    taken = _results_taken(layer, names["process", "id"].drop_nulls())
    first = taken.filter(pl.col("result") == 0).unique(["process", "id"], keep="first", maintain_order=True)
    sizes = names.join(first, on=["process", "id"], how="left", maintain_order="left")["size"]
    row = names["row"].to_numpy()
    results = results.scatter(row, sizes)
    which = taken.group_by("process", "id").agg(pl.col("result").unique().sort().cast(pl.String).str.join(","))
    made = made.scatter(row, names.join(which, on=["process", "id"], how="left", maintain_order="left")["result"])
    return [_by_sizes(described, forward, backward, results), made]


def _by_sizes(described: pl.DataFrame, forward: Flags, backward: Flags, results: pl.Series) -> pl.Series:
    """Fill in results of convolutions from those with equal input and weight, where these agree."""
    split = described["shapes"].str.extract_all(r"\[[\d, ]*\]")
    key = pl.DataFrame(
        {
            "x": split.list.get(0, null_on_oob=True),
            "w": split.list.get(1, null_on_oob=True),
            "third": split.list.get(2, null_on_oob=True),
            "out": results,
        }
    )
    # A backward is given the gradient of the result first, then input and weight.
    shapes = pl.concat(
        [
            key.filter(pl.Series(forward))["x", "w", "out"],
            key.filter(pl.Series(backward)).select(x="w", w="third", out="x"),
        ]
    ).drop_nulls()
    single = shapes.group_by("x", "w").agg(pl.col("out").n_unique().alias("n"), pl.col("out").first().alias("only"))
    single = single.filter(single["n"] == 1)
    only = key.join(single, on=["x", "w"], how="left", maintain_order="left")["only"]
    return results.to_frame().select(
        pl.when(pl.Series(forward)).then(pl.coalesce("results", only)).otherwise("results").alias("results")
    )["results"]


def _results_taken(layer: Layer, wanted: pl.DataFrame) -> pl.DataFrame:
    """Return process, id, result, size: which result of the wanted operators (process, id) was an argument of another, and its size.

    A result has the number of the outermost operator that handed it on: it counts for those inside that one, too.
    """
    rows = layer.rows
    text = rows["label"].cast(pl.String)
    number = text.str.extract(_ID, 1).cast(pl.Int64, strict=False)
    numbered = pl.DataFrame({"process": rows["process"], "own": number, "above": lookup.at(number, layer.parents())})
    # (process, id): an operator that is wanted, (process, as): the number that its result may have.
    level = wanted.unique().with_columns(pl.col("id").alias("as"))
    chosen = [level]
    for _ in range(DEEPEST_CONVOLUTION):
        level = level.join(numbered, left_on=["process", "as"], right_on=["process", "own"], how="inner")
        level = level.select("process", "id", pl.col("above").alias("as")).drop_nulls()
        chosen.append(level)
    names = pl.concat(chosen).unique(maintain_order=True)
    made = text.str.extract_all(r"\(\d+,-?\d+\)").alias("made")
    given = pl.DataFrame({"row": np.arange(rows.height), "process": rows["process"], "made": made})
    given = given.with_columns(place=pl.int_ranges(pl.col("made").list.len())).explode("made", "place").drop_nulls()
    given = given.filter(given["made"] != "(0,-1)").with_columns(
        pl.col("made").str.extract(_MADE, 1).cast(pl.Int64, strict=False).alias("as"),
        pl.col("made").str.extract(_MADE, 2).cast(pl.Int64, strict=False).alias("result"),
    )
    given = given.join(names, on=["process", "as"], how="inner", maintain_order="left")
    sizes = text.gather(given["row"]).str.extract(_SIZES, 1).str.strip_prefix("[").str.extract_all(r"\[[\d, ]*\]")
    given = given.with_columns(size=sizes.list.get(given["place"], null_on_oob=True))
    return given.filter(pl.col("size") != "[]")["process", "id", "result", "size"]
