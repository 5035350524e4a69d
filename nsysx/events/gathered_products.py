"""Products of what all ranks gathered with what they gathered: each rank makes the whole matrix, and every rank makes the same.

A loss over the pairs of all ranks (contrastive losses) needs, on each rank, the rows of its own samples against all columns: the means of
the ranks' rows are that of all rows. Gathers into one tensor name their result (``all_gather_into_tensor`` and functional collectives);
one into a list of tensors copies into each of them, and what puts these together hands on the result. Only products that in the end are
summed by row count: what a further product reads is needed as a whole, and so is what another step reads, or what many sums by row and
by column in turn make (optimal transport). A loss both ways, by row and by column, needs the product of own rows and that of own columns.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.operator_bounds import MOST_SUMS_BY_HAND, MOST_SUMS_OF_GATHERED
from nsysx.events.operator_flow import ID, MADE, SIZES, OperatorFlow, flow_of, results_in
from nsysx.events.profile import Profile
from nsysx.events.result_readers import ResultReaders

_GATHERS = r"^(c10d::_allgather_base_|_c10d_functional::all_gather_into_tensor)$"
_GATHERS_INTO_LIST = "c10d::allgather_"
_PUTS_TOGETHER = re.compile(r"^aten::(cat|concat|concatenate|stack)$")
_RESHAPES = re.compile(r"^aten::(_?(unsafe_)?view|reshape|_reshape_alias|unflatten)$")
_TURNS = re.compile(r"^aten::(t|numpy_T|mT|transpose|swapaxes|permute)$")
#: What hands on the result of a functional collective, once it is there.
_WAITS = "_c10d_functional::wait_tensor"
_PRODUCTS = re.compile(r"^aten::(\w*mm\w*|matmul|linear|dot|einsum|\w*conv\w*|\w*attention\w*)$")
#: A product of two matrices: ``einsum`` makes it as one of many, of which there is one.
_OF_MATRICES = re.compile(r"^aten::b?mm$")
#: What makes one number of each row. Behind an exponential a sum is a part of a softmax that is written out.
_SUMS, _EXPONENTIAL = re.compile(r"^aten::sum$"), re.compile(r"^aten::exp_?$")
_SUMS_OF_ROWS = re.compile(
    r"^aten::(cross_entropy_loss|_?log_softmax|_?softmax|logsumexp|nll_loss\w*|log_sigmoid|softplus|binary_cross_entropy\w*|max|amax|topk|argmax)$"
)


@dataclass(frozen=True)
class GatheredProducts:
    """``rows``: the outermost operators (rows of the flow) that work on whole matrices, the products among them ``products``, in order;
    ``size``: of the largest matrix; ``ranks``: so many gather. ``both_ways``: those of ``rows`` that are summed by row and by column.
    """

    rows: tuple[int, ...]
    products: tuple[int, ...]
    size: Size
    ranks: int
    both_ways: frozenset[int] = frozenset()

    def kept(self, row: int) -> float:
        """Return which share of the work of one of ``rows`` the own rows (and columns) of a rank need."""
        return min((2 if row in self.both_ways else 1) / self.ranks, 1.0)


def gathered_products(profile: Profile) -> GatheredProducts | None:
    """Return the products of gathered rows with gathered columns in an X-ray step of the shown process, None without any."""
    flow = flow_of(profile)
    return None if flow is None else products_of(flow, {**gathers(profile), **put_together(flow, profile)})


def put_together(flow: OperatorFlow, profile: Profile) -> dict[int, tuple[Size, int]]:
    """Return what puts together the tensors of a list that was gathered: as ``gathers``, ranks in front.

    NCCL gathers into one tensor, from which torch copies into each of the list. A rank may put its own tensor in place of the copy of it,
    which no gradient goes through.
    """
    ops = profile.ranges.ranges.filter(
        (pl.col("process") == profile.process)
        & (pl.col("thread") == flow.thread)
        & (pl.col("kind") == "op")
        & (pl.col("name").cast(pl.String) == _GATHERS_INTO_LIST)
    )
    spans = ops.select("start_ns", "end_ns", pl.col("label").cast(pl.String).str.extract(SIZES, 1).alias("sizes"))
    copies: dict[int, tuple[int, int]] = {}  # of a list -> the gather, and how many it copies
    for gather, (start, end, listed) in enumerate(spans.iter_rows()):
        part = next((size for size in sizes_of(listed or "") if size), ())
        first, last = np.searchsorted(flow.start_ns, (start, end)).tolist()
        made = [
            flow.number[row]
            for row in range(first, last)
            if part and flow.names[row] == "aten::copy_" and sizes_of(flow.size[row])[:1] == [part]
        ]
        copies |= {number: (gather, len(made)) for number in made}
    results: dict[int, tuple[Size, int]] = {}
    for row, name in enumerate(flow.names):
        sizes = [size for size in sizes_of(flow.size[row]) if size] if copies and _PUTS_TOGETHER.match(name) else []
        parts = flow.made[row][: len(sizes)]
        lists = Counter(copies[part] for part in set(parts) if part in copies)
        ranks = {each for _, each in lists}
        if len(ranks) == 1 and len(set(sizes)) == 1:
            (each,) = ranks
            if len(parts) == each * len(lists) > 1 and all(count >= each - 1 for count in lists.values()):
                results[flow.number[row]] = (len(parts) * sizes[0][0], *sizes[0][1:]), each
    return results


def gathers(profile: Profile) -> dict[int, tuple[Size, int]]:
    """Return the gathers over ranks of the shown process: number of the operator that hands on the result -> its size, ranks.

    What is gathered flat has one dimension.
    """
    ops = profile.ranges.ranges.filter((pl.col("process") == profile.process) & (pl.col("kind") == "op"))
    name = ops["name"].cast(pl.String)
    ops = ops.filter(name.str.contains(_GATHERS) | (name == _WAITS)).sort("start_ns")
    text = ops["label"].cast(pl.String)
    columns = (
        ops["name"].cast(pl.String),
        text.str.extract(ID, 1),
        text.str.extract(SIZES, 1),
        text.str.extract(MADE, 1),
    )
    results: dict[int, tuple[Size, int]] = {}
    given: dict[int, Size] = {}
    for each, number, listed, made in zip(*columns, strict=True):
        sizes = sizes_of(listed or "")
        if number is None or not sizes or not sizes[0]:
            continue
        before = given.get(next(iter(results_in(made or "")), (-1, -1))[0]) if each == _WAITS else None
        if each == _WAITS and before is None:
            continue
        whole, part = (sizes[0], before) if before is not None else (sizes[0], sizes[1] if len(sizes) > 1 else ())
        if each.startswith("_c10d"):
            given[int(number)] = whole
        if (
            part
            and (len(whole) == 1 or (len(part) == len(whole) and whole[1:] == part[1:]))
            and math.prod(whole) % math.prod(part) == 0
            and math.prod(whole) > math.prod(part)
        ):
            results[int(number)] = whole, math.prod(whole) // math.prod(part)
    return results


def products_of(flow: OperatorFlow, gathered: dict[int, tuple[Size, int]]) -> GatheredProducts | None:
    """Return the products of gathered rows with gathered columns; ``gathered``: see ``gathers``."""
    search = _Search(flow, gathered) if gathered else None
    every = [] if search is None else list(search.products())
    if not every:
        return None
    rows = {row for each in every for row in each.rows}
    largest = max(every, key=lambda each: each.size)
    products = tuple(each.products[0] for each in every)
    both_ways = frozenset[int]().union(*(each.both_ways for each in every))
    return GatheredProducts(tuple(sorted(rows)), products, largest.size, largest.ranks, both_ways)


class _Search(ResultReaders):
    def __init__(self, flow: OperatorFlow, gathered: dict[int, tuple[Size, int]]) -> None:
        super().__init__(flow)
        self._gathered = gathered

    def products(self) -> Iterator[GatheredProducts]:
        """Yield each product whose whole result is summed by row."""
        for row, end in self.flow.outermost_spans:
            for inner in range(row, end):
                sizes, made = self.sizes[inner][:2], self.flow.made[inner][:2]
                if not _OF_MATRICES.match(self.flow.names[inner]) or len(sizes) < 2 or len(made) < 2:
                    continue
                if any(len(each) < 2 or math.prod(each[:-2]) != 1 for each in sizes):
                    continue  # several products
                size = (sizes[0][-2], sizes[1][-1])
                of_rows, of_columns = (
                    self._ranks_behind(number, length) for number, length in zip(made, size, strict=True)
                )
                rows = self._whole(row, size) if of_rows > 1 and of_rows == of_columns else ()
                if rows:
                    yield GatheredProducts(rows, (row,), size, of_rows, self._both_ways(rows))

    def _ranks_behind(self, number: int, length: int) -> int:
        """Return how many ranks gathered what a factor with so many rows is made of, without a product between; 0 for none.

        The rows may be those of several gathers, one behind the other.
        """
        waiting, seen, gathers_behind = (
            list[tuple[int, Size]](((number, ()),)),
            set[int](),
            dict[int, tuple[Size, int]](),
        )
        while waiting:
            each, shape = waiting.pop()
            row = self.flow.row_of.get(each)
            if each in self._gathered:
                size, ranks = self._gathered[each]
                if len(size) == 1 and math.prod(shape) == size[0]:  # gathered flat, and viewed behind that
                    size = (shape[0] * shape[1], *shape[2:]) if len(shape) > 2 and shape[0] == ranks else shape
                gathers_behind[each] = size, ranks
                continue
            if each in seen or row is None or _PRODUCTS.match(self.flow.names[row]):
                continue
            seen.add(each)
            shape = self.results.get(each, ()) if _RESHAPES.match(self.flow.names[row]) else ()
            waiting += [(made, shape) for made in self.flow.made[row] if made >= 0]
        whole = [ranks for size, ranks in gathers_behind.values() if size[0] == length]
        together = {ranks for _, ranks in gathers_behind.values()}
        if not whole and len(together) == 1 and sum(size[0] for size, _ in gathers_behind.values()) == length:
            whole = list(together)
        return whole[0] if whole else 0

    def _both_ways(self, rows: tuple[int, ...]) -> frozenset[int]:
        """Return the operators whose result is summed by row as it is, and as it is turned."""
        ways: dict[int, set[int]] = {}  # of each operator: how often its result is turned before sums, modulo 2
        for row in reversed(rows):
            theirs = {0} if _SUMS_OF_ROWS.match(self.flow.names[row]) else set[int]()
            for reader in self.readers.get(self.flow.number[row], set()):
                turned = bool(_TURNS.match(self.flow.names[reader])) if reader >= 0 else False
                theirs |= {(way + turned) % 2 for way in ways.get(reader, ())}
            ways[row] = theirs
        return frozenset(row for row, theirs in ways.items() if len(theirs) > 1)

    def _whole(self, product: int, size: Size) -> tuple[int, ...]:
        """Return the operators from a product on that work on all of its result, () where that is needed as a whole."""
        rows, waiting, sums, by_hand = {product}, [product], 0, 0
        while waiting:
            row = waiting.pop()
            result = self.results.get(self.flow.number[row])
            if row != product and (result is None or sorted(result) != sorted(size)):
                continue  # what is made of it is smaller
            for reader in self.readers.get(self.flow.number[row], set()) - rows:
                if reader < 0 or _PRODUCTS.match(self.flow.names[reader]):
                    return ()
                sums += bool(_SUMS_OF_ROWS.match(self.flow.names[reader]))
                by_hand += self._of_each_row(reader, size)
                rows.add(reader)
                waiting.append(reader)
        if by_hand <= MOST_SUMS_BY_HAND and any(_EXPONENTIAL.match(self.flow.names[row]) for row in rows):
            sums += by_hand
        return tuple(sorted(rows)) if 0 < sums <= MOST_SUMS_OF_GATHERED else ()

    def _of_each_row(self, row: int, size: Size) -> bool:
        """Return whether an operator sums a matrix of this size, or that turned, to a number of each row."""
        result = self.results.get(self.flow.number[row])
        return bool(_SUMS.match(self.flow.names[row])) and result is not None and math.prod(result) in size
