"""Products of experts on many more rows than tokens were sent to them: buffers of a capacity that most experts do not fill.

A router picks of E experts the k best for each of T tokens (``topk``, or maxima over the last dimension, each of scores that the ones
before it have left). Products that multiply rows
by weights of several experts at once then have T k rows with something in them; what their sizes hold beyond that is padding, or tokens
of which nothing was asked of that expert.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from nsysx.events.narrowed_operators import Size
from nsysx.events.operator_bounds import MOST_OPERATORS_OF_MASKS, PADDED_EXPERTS_TIMES
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.result_readers import ResultReaders

_ROUTES = re.compile(r"^aten::(topk|max|argmax)$")
#: What puts rows at places that numbers say, and buffers that messages fill.
_PUTS = re.compile(
    r"^aten::(_?index_put\w*|index_copy_?|index_add_?|scatter\w*|index|index_select|gather|(new_)?empty\w*)$"
)
#: What makes scores.
_MULTIPLIES = re.compile(r"^aten::(linear|addmm|mm|bmm|baddbmm|matmul|einsum|\w*attention\w*)_?$")
_PRODUCTS = {"aten::bmm": 0, "aten::baddbmm": 1, "aten::baddbmm_": 1}


class PaddedExperts(NamedTuple):
    """Products of ``experts`` at once, of ``rows`` each (operators are rows of the flow), and what works on these rows between them.

    ``tokens``: the rows that a router sends to all experts of a rank. ``made``: the first operator that makes rows of this size.
    """

    operators: frozenset[int]
    made: int
    experts: int
    rows: int
    tokens: int

    @property
    def times(self) -> float:
        """How many times the tokens the rows are."""
        return self.experts * self.rows / self.tokens


def padded_experts(flow: OperatorFlow) -> PaddedExperts | None:
    """Return the products of experts that have far more rows than tokens, None without any."""
    readers = ResultReaders(flow)
    routers = _routers(flow, readers)
    most: PaddedExperts | None = None
    for row, end in flow.outermost_spans if routers else ():
        for inner in range(row, end):
            first = _PRODUCTS.get(flow.names[inner])
            sizes, made = readers.sizes[inner], flow.made[inner]
            if first is None or min(len(sizes), len(made)) < first + 2 or len(sizes[first]) != 3:
                continue
            experts, rows, _ = sizes[first]
            base, _ = readers.base_of(made[first + 1])
            sent = [tokens for count, tokens in routers if count % experts == 0]
            # What the step made is no weight, and what all experts are given alike was not sent to each.
            if base >= 0 or experts < 2 or not sent or not _sent(flow, readers, made[first]):
                continue
            tokens = max(sent)
            if experts * rows >= PADDED_EXPERTS_TIMES * tokens and (most is None or rows > most.rows):
                operators = _of_rows(flow, readers, (experts, rows))
                most = PaddedExperts(frozenset(operators), min(operators), experts, rows, tokens)
    return most


def _sent(flow: OperatorFlow, readers: ResultReaders, number: int) -> bool:
    """Return whether rows were put where they are one by one, or came from another rank."""
    number, _ = readers.base_of(number)
    row = flow.row_of.get(number)
    return number >= 0 if row is None else _PUTS.match(flow.names[row]) is not None


def _routers(flow: OperatorFlow, readers: ResultReaders) -> list[tuple[int, int]]:
    """Return of each router of how many experts it picks, and for how many tokens in all, as often as it picks for each."""
    routers, earlier = list[tuple[int, int]](), dict[int, tuple[int, int]]()
    for row in flow.outermost:
        size = readers.sizes[row][0] if readers.sizes[row] else ()
        picked = readers.results.get(flow.number[row])
        if _ROUTES.match(flow.names[row]) and len(size) > 1 and size[-1] > 1 and picked is not None:
            tokens = math.prod(size[:-1])
            times = math.prod(picked) // tokens if picked else 0
            if math.prod(picked) == times * tokens > 0 and times < size[-1]:
                # The next best is picked from what is left once the best is masked: both send the same tokens.
                of_first = _picked_before(flow, row, earlier) or (0, 0)
                sent = times * tokens + (of_first[1] if of_first[0] == size[-1] else 0)
                earlier[flow.number[row]] = size[-1], sent
                routers.append(earlier[flow.number[row]])
    return routers


def _picked_before(flow: OperatorFlow, row: int, picks: Mapping[int, tuple[int, int]]) -> tuple[int, int] | None:
    """Return of the last of these picks (by number) what is noted of it, if this row's scores were masked by it; None where they were not.

    What a product makes is scores of other tokens, or of another layer.
    """
    todo, passed = list(flow.made[row]), set[int]()
    while todo:
        number = max(todo)
        todo.remove(number)
        if number in picks:
            return picks[number]
        maker = flow.row_of.get(number)
        if (
            maker is None
            or number in passed
            or len(passed) > MOST_OPERATORS_OF_MASKS
            or _MULTIPLIES.match(flow.names[maker])
        ):
            continue
        passed.add(number)
        todo += flow.made[maker]
    return None


def _of_rows(flow: OperatorFlow, readers: ResultReaders, leading: Size) -> list[int]:
    """Return the outermost operators that are given, or make, so many rows for each expert."""
    rows = math.prod(leading)

    def has(size: Size | None) -> bool:
        return (
            size is not None
            and len(size) > 1
            and ((size[:2] == leading and len(size) == 3) or (size[0] == rows and len(size) == 2))
        )

    return [
        row for row in flow.outermost if any(map(has, readers.sizes[row])) or has(readers.results.get(flow.number[row]))
    ]
