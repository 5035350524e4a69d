"""What has to be done in place of work of lines that a remedy removes: by the sizes of its operators, never faster than the roofline."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import limits_of_work, operator_work
from nsysx.catalogue import StepPart
from nsysx.events.operator_flops import sizes
from nsysx.events.operator_flow import flow_of
from nsysx.events.profile import NotRecorded
from nsysx.findings._case import Case, Saving
from nsysx.model import Row
from nsysx.replay.engine import RemoveOps, ScaleOps
from nsysx.roofline.device_rates import DeviceRates
from nsysx.roofline.element_types import types_of
from nsysx.roofline.roofline_bounds import INSTEAD_AT_MOST_SHARE, ONE_PASS_AT_MOST_TIMES, PRODUCTS_AT_MOST_TIMES

#: Numbers of one size in products of matrices.
FORMAT_OF_SIZE = {8: "fp64", 4: "fp32", 2: "16 bits"}
#: What takes a part of an order, and what takes rows by all of it.
_CUTS = re.compile(r"^aten::(slice|narrow|select|index|topk|split\w*|chunk|unbind)$")
_READS_WHOLE = re.compile(r"^aten::(gather|take_along_dim)$")
_PRODUCTS = r"^aten::(mm|addmm|bmm|matmul|linear)$"


class Instead(NamedTuple):
    """``gone``: the GPU work (op, ns) that the remedy removes; ``least_ns``, ``most_ns``: what comes in its place takes (ns, all steps).

    ``at_limit``: the least is what the device needs for its sizes, and not longer.
    """

    gone: pl.DataFrame
    least_ns: float
    most_ns: float
    at_limit: bool = True

    @property
    def fits(self) -> bool:
        """Whether there is anything that the remedy removes: the text of a line may be that of other work."""
        return not self.gone.is_empty()

    def worth(self, case: Case) -> Saving:
        """Return what the change is worth by the replay: likely is what lies midway between the least and the most, by their ratio."""
        whole = max(int(self.gone["ns"].sum()), 1)
        ops = frozenset(self.gone["op"].to_list())
        most, least = (min(ns / whole, 1.0) for ns in (self.most_ns, self.least_ns))
        low, likely, high = (
            [ScaleOps(ops, share, less_work=True) if share else RemoveOps(ops)]
            for share in (most, math.sqrt(most * least), least)
        )
        shortest, longest = (units.duration(case.per_step(ns)) for ns in (self.least_ns, self.most_ns))
        why = f"what replaces it takes {shortest}{' (its limit)' if self.at_limit else ''} to {longest}"
        return case.worth_between(low, likely, high, why, cause=(StepPart.WORK,))


def instead(case: Case, remedy: str, ops: pl.DataFrame) -> Instead | None:
    """Return what comes in place of these GPU ops of lines (op) with a remedy; None where that, or their operators, is not known."""
    replaced = _BY_REMEDY.get(remedy)
    if replaced is None:
        return None
    try:
        rates = case.profile.once(limits_of_work.device_rates)
        operators = operator_work.numbered_operators(case.profile)
    except NotRecorded:
        return None
    work = operator_work.work_of(case.profile, operators.filter(~operators["other_sizes"]), "node", "shapes")
    kernel = pl.col("name").sort_by("ns").last().alias("kernel")
    rows = work.group_by("row", maintain_order=True).agg(
        pl.col("op", "ns"), kernel, pl.col("node", "shapes").first(), pl.col("op").is_in(ops["op"].implode()).any().alias("of_lines")
    )  # fmt: skip
    rows = rows.join(operators.select("row", operator="name"), on="row", how="left", maintain_order="left")
    if remedy == "largest-for-sort" and _whole_orders(case):
        return Instead(_gone([]), 0, 0)
    return replaced(rows, rates)


def _whole_orders(case: Case) -> bool:
    """Return whether all that the sorts of an X-ray step make is read whole, as for the area under a curve: none of it is cut."""
    flow = flow_of(case.profile)
    if flow is None:
        return False
    sorted_by = {flow.number[row] for row in flow.outermost if flow.names[row] in ("aten::sort", "aten::argsort")}
    ordered, read = set(sorted_by), False
    for row in flow.outermost:
        if ordered.isdisjoint(flow.made[row]):
            continue
        if _CUTS.match(flow.names[row]):
            return False
        if not sorted_by.isdisjoint(flow.made[row]):
            read |= _READS_WHOLE.match(flow.names[row]) is not None
            ordered.add(flow.number[row])
    return read


def _largest(shapes: str | None) -> tuple[int, list[list[int]]]:
    """Return how many numbers the result of a broadcast, or the largest argument, has, and the arguments that are tensors."""
    tensors = [shape for shape in sizes(shapes) or [] if shape]
    rank = max(map(len, tensors), default=0)
    padded = [[1] * (rank - len(shape)) + shape for shape in tensors]
    fits = all(len({n for n in dims if n != 1}) <= 1 for dims in zip(*padded, strict=True))
    broadcast = math.prod(max(dims) for dims in zip(*padded, strict=True)) if padded and fits else 0
    return max([broadcast, *(math.prod(shape) for shape in tensors)]), tensors


def _gone(rows: Sequence[Row]) -> pl.DataFrame:
    """Return the GPU ops of these rows, each once: op, ns."""
    return pl.DataFrame(
        [(op, ns) for row in rows for op, ns in zip(row["op"], row["ns"], strict=True)],
        schema={"op": pl.Int64, "ns": pl.Int64},
        orient="row",
    ).unique("op", maintain_order=True)


def _product(rows: pl.DataFrame, rates: DeviceRates) -> Instead | None:
    """Return the products of matrices that do the same as multiplying (or subtracting) all pairs of rows and summing."""
    of_lines = rows.filter("of_lines").to_dicts()
    sized = [(row, *_largest(row["shapes"])) for row in of_lines]
    # What is written out is larger than all that it is made of.
    pairs = [
        (row, numbers, tensors)
        for row, numbers, tensors in sized
        if row["node"] is None and len(tensors) == 2 and numbers > max(map(math.prod, tensors))
    ]
    if not pairs:
        return Instead(_gone([]), 0, 0) if any(numbers for _, numbers, _ in sized) else None
    written_out = max(numbers for _, numbers, _ in pairs)
    gone = [row for row, numbers, _ in sized if 2 * numbers >= written_out]
    backward = any(row["node"] is not None for row in gone)
    least = 0.0
    for row, numbers, tensors in pairs:
        if 2 * numbers < written_out:
            continue
        size = types_of(row["kernel"]).size
        rate = rates.products.get(FORMAT_OF_SIZE.get(size or 0, ""))
        moved = rates.memory_ns((size or 0) * sum(map(math.prod, tensors)))
        if rate is None or moved is None:
            return None
        least += (3 if backward else 1) * max(2 * numbers / rate.per_s * 1e9, moved)
    return Instead(_gone(gone), least, PRODUCTS_AT_MOST_TIMES * least)


def _rows_by_number(rows: pl.DataFrame, rates: DeviceRates) -> Instead | None:
    """Return the rows that are picked in place of products with rows of zeros and ones; None where these are in no product."""
    of_lines = rows.filter("of_lines").to_dicts()
    made = [(_largest(row["shapes"])[0], row) for row in of_lines if row["node"] is None]
    numbers = max((n for n, _ in made), default=0)
    widths = {
        shape[-1]
        for n, row in made
        if n == numbers
        for shape in sizes(row["shapes"]) or []
        if math.prod(shape) == numbers
    }
    products = rows.filter(pl.col("operator").str.contains(_PRODUCTS)).to_dicts()

    def picks(row: Row, *, turned: bool) -> int:
        """Return how many numbers its result has, 0 where no operand of it is the rows of zeros and ones."""
        shapes = [shape for shape in sizes(row["shapes"]) or [] if len(shape) > 1]
        for shape, other in itertools.pairwise(shapes):
            inner = shape[-2] if turned else shape[-1]
            if math.prod(shape) == numbers and inner in widths:
                return shape[-2] * other[-1] if not turned else shape[-1] * other[-1]
        return 0

    forward = [(row, n) for row in products if row["node"] is None and (n := picks(row, turned=False))]
    if not forward:
        return None
    backward = [(row, n) for row in products if row["node"] is not None and (n := picks(row, turned=True))]
    least = 0.0
    for _, picked in (*forward, *backward):
        moved = rates.memory_ns(2 * 2 * picked)
        if moved is None:
            return None
        least += moved
    gone = _gone([*(row for n, row in made if 2 * n >= numbers), *(row for row, _ in (*forward, *backward))])
    return Instead(gone, least, max(least, INSTEAD_AT_MOST_SHARE * int(gone["ns"].sum())))


def _read_once(rows: pl.DataFrame, rates: DeviceRates) -> Instead | None:
    """Return the reading of what was sorted: the largest of a row cannot be told without."""
    sorts = [row for row in rows.filter("of_lines").to_dicts() if row["operator"] in ("aten::sort", "aten::argsort")]
    least = 0.0
    for row in sorts:
        size, moved = types_of(row["kernel"]).size, None
        if size:
            moved = rates.memory_ns(size * _largest(row["shapes"])[0])
        if moved is None:
            return None
        least += moved
    if not sorts:
        return None
    gone = _gone(sorts)
    return Instead(gone, least, max(least, INSTEAD_AT_MOST_SHARE * int(gone["ns"].sum())))


def _one_pass(operators: str) -> Callable[[pl.DataFrame, DeviceRates], Instead | None]:
    """Return what says how long one kernel that reads and writes a tensor takes, and one for its gradient, for calls of a function that
    is written out in several: it is called as often as one of these ``operators``.
    """

    def replaced(rows: pl.DataFrame, rates: DeviceRates) -> Instead | None:
        of_lines = rows.filter("of_lines").to_dicts()
        forward = [(row, *_largest(row["shapes"])[:1]) for row in of_lines if row["node"] is None]
        named = [row["operator"] for row, _ in forward if re.search(operators, row["operator"])]
        calls = max((named.count(name) for name in set(named)), default=0)
        if not calls:
            return None
        # Each call works on one tensor some times: of each operator what it works on together, as if it ran once in a call.
        each: dict[str, list[int]] = {}
        for row, numbers in forward:
            each.setdefault(row["operator"], []).append(numbers * (types_of(row["kernel"]).size or 0))
        size = max(sum(sizes) / len(sizes) for sizes in each.values())
        passes = 2 + (3 if len(forward) < len(of_lines) else 0)
        moved = rates.memory_ns(round(passes * size))
        if not moved:
            return None
        return Instead(_gone(of_lines), calls * moved, ONE_PASS_AT_MOST_TIMES * calls * moved)

    return replaced


_BY_REMEDY: Mapping[str, Callable[[pl.DataFrame, DeviceRates], Instead | None]] = {
    "sums-by-product": _product,
    "distances-by-product": _product,
    "classes-as-numbers": _rows_by_number,
    "largest-for-sort": _read_once,
    "library-normalization": _one_pass(r"::(r?sqrt|var|std|var_mean|std_mean)$"),
    "library-activation": _one_pass(r"::(tanh|erf|sigmoid|exp)$"),
    "library-softmax": _one_pass(r"::exp$"),
}
