"""Products of what all ranks gathered with what they gathered: each rank makes the whole matrix, and every rank makes the same.

A loss over the pairs of all ranks (contrastive losses) needs, on each rank, the rows of its own samples against all columns: the means of
the ranks' rows are that of all rows. Only the gathers that name their result are seen (``all_gather_into_tensor`` and functional
collectives; one into a list of tensors does not), and only products that in the end are summed by row: what a further product reads is
needed as a whole, and so is what another step reads, or what many sums by row and by column in turn make (optimal transport).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from nsysx.events.event_bounds import MOST_SUMS_OF_GATHERED
from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.operator_flow import ID, MADE, SIZES, OperatorFlow, flow_of, results_in
from nsysx.events.profile import Profile
from nsysx.events.result_readers import ResultReaders

_GATHERS = r"^(c10d::_allgather_base_|_c10d_functional::all_gather_into_tensor)$"
#: What hands on the result of a functional collective, once it is there.
_WAITS = "_c10d_functional::wait_tensor"
_PRODUCTS = re.compile(r"^aten::(\w*mm\w*|matmul|linear|dot|einsum|\w*conv\w*|\w*attention\w*)$")
#: What makes one number of each row.
_SUMS_OF_ROWS = re.compile(
    r"^aten::(cross_entropy_loss|_?log_softmax|_?softmax|logsumexp|nll_loss\w*|log_sigmoid|softplus|binary_cross_entropy\w*|max|amax|topk|argmax)$"
)


@dataclass(frozen=True)
class GatheredProducts:
    """``rows``: the outermost operators (rows of the flow) that work on whole matrices, the products among them ``products``, in order;
    ``size``: of the largest matrix; ``ranks``: so many gather.
    """

    rows: tuple[int, ...]
    products: tuple[int, ...]
    size: Size
    ranks: int


def gathered_products(profile: Profile) -> GatheredProducts | None:
    """Return the products of gathered rows with gathered columns in an X-ray step of the shown process, None without any."""
    flow = flow_of(profile)
    return None if flow is None else products_of(flow, gathers(profile))


def gathers(profile: Profile) -> dict[int, tuple[Size, int]]:
    """Return the gathers over ranks of the shown process: number of the operator that hands on the result -> its size, ranks."""
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
            and len(part) == len(whole)
            and whole[1:] == part[1:]
            and whole[0] % part[0] == 0
            and whole[0] > part[0]
        ):
            results[int(number)] = whole, whole[0] // part[0]
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
    return GatheredProducts(tuple(sorted(rows)), products, largest.size, largest.ranks)


class _Search(ResultReaders):
    def __init__(self, flow: OperatorFlow, gathered: dict[int, tuple[Size, int]]) -> None:
        super().__init__(flow)
        self._gathered = gathered

    def products(self) -> Iterator[GatheredProducts]:
        """Yield each product whose whole result is summed by row."""
        for row, end in self.flow.outermost_spans:
            for inner in range(row, end):
                sizes, made = self.sizes[inner][:2], self.flow.made[inner][:2]
                if self.flow.names[inner] != "aten::mm" or len(sizes) < 2 or len(made) < 2:
                    continue
                size = (sizes[0][0], sizes[1][-1])
                of_rows, of_columns = (
                    self._ranks_behind(number, length) for number, length in zip(made, size, strict=True)
                )
                rows = self._whole(row, size) if of_rows > 1 and of_rows == of_columns else ()
                if rows:
                    yield GatheredProducts(rows, (row,), size, of_rows)

    def _ranks_behind(self, number: int, length: int) -> int:
        """Return how many ranks gathered what a factor with so many rows is made of, without a product between; 0 for none."""
        waiting, seen = [number], set[int]()
        while waiting:
            each = waiting.pop()
            size, ranks = self._gathered.get(each, ((0,), 0))
            if size[0] == length:
                return ranks
            row = self.flow.row_of.get(each)
            if each in seen or row is None or _PRODUCTS.match(self.flow.names[row]):
                continue
            seen.add(each)
            waiting += [made for made in self.flow.made[row] if made >= 0]
        return 0

    def _whole(self, product: int, size: Size) -> tuple[int, ...]:
        """Return the operators from a product on that work on all of its result, () where that is needed as a whole."""
        rows, waiting, sums = {product}, [product], 0
        while waiting:
            row = waiting.pop()
            result = self.results.get(self.flow.number[row])
            if row != product and (result is None or sorted(result) != sorted(size)):
                continue  # what is made of it is smaller
            for reader in self.readers.get(self.flow.number[row], set()) - rows:
                if reader < 0 or _PRODUCTS.match(self.flow.names[reader]):
                    return ()
                sums += bool(_SUMS_OF_ROWS.match(self.flow.names[reader]))
                rows.add(reader)
                waiting.append(reader)
        return tuple(sorted(rows)) if 0 < sums <= MOST_SUMS_OF_GATHERED else ()
