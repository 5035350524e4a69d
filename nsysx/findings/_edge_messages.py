"""Messages that a network on a graph writes out for each edge: rows picked by the edge's source, scaled, and added up by its target.

A product of the graph's sparse matrix and the nodes makes the same sums and reads each row as it adds it: no tensor has a row for each
edge, forward or backward. That holds where an edge has one number at most and nothing trains it; what a message computes of its row or of
both ends, and weights that come out of a network (attention), have no such form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepPart
from nsysx.events.narrowed_operators import Size
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.result_readers import ResultReaders
from nsysx.events.trained_operators import trained_of
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import EDGE_PRODUCT_LEFT, FEWEST_EDGES_OF_NODE
from nsysx.model import Finding, Row
from nsysx.replay.engine import ScaleOps

_PICKS = re.compile(r"^aten::(index|index_select|embedding)$")
_TIMES = re.compile(r"^aten::mul_?$")
_ADDS = re.compile(r"^aten::(index_add_?|scatter_add_?|index_put_?)$|^torch_scatter::scatter_(sum|add)$")
#: out.index_add_(0, dst, x[src] * w[:, None]), and the call of a message passing of PyG.
_ADDED = re.compile(r"index_add_?\(\s*0\s*,\s*(?P<target>[\w.]+)\s*,")
_PICKED = re.compile(
    r"(?<![\w.])(?P<nodes>[\w.]+)\[(?P<source>[\w.]+)\](?:\s*\*\s*(?P<weight>[\w.]+)(?=\[|\.view|\.unsqueeze|\.reshape))?"
)
_PROPAGATES = re.compile(r"\bself\.propagate\(")
_OF_PYG = (
    "adj_t = torch_sparse.SparseTensor(row=edge_index[1], col=edge_index[0], value=norm, sparse_sizes=(n, n))  # once\n"
    "def message_and_aggregate(self, adj_t, x): return torch_sparse.matmul(adj_t, x, reduce=\"sum\")  # beside message\n"
    "out = self.propagate(adj_t, x=x)  # not edge_index and norm"
)  # fmt: skip
#: The code of the remedy, with room for names.
_OF_NAMES = (
    "size = (len({x}), len({x}))  # once, while the graph stays the same:\n"
    "graph = torch.sparse_coo_tensor(torch.stack([{dst}, {src}]), {w}, size).to_sparse_csr()\n"
    "turned = torch.sparse_coo_tensor(torch.stack([{src}, {dst}]), {w}, size).to_sparse_csr()\n"
    "class EdgeSum(torch.autograd.Function):\n"
    "    @staticmethod\n"
    "    def forward(ctx, graph, turned, nodes):\n"
    "        ctx.turned = turned\n"
    "        return graph @ nodes\n"
    "    @staticmethod\n"
    "    def backward(ctx, sums):\n"
    "        return None, None, ctx.turned @ sums\n"
    "out = EdgeSum.apply(graph, turned, {x})  # in each forward"
)


class _Messages(NamedTuple):
    """Messages of all edges: the outermost operators that go (rows of the flow), the one that adds them up, how many edges and nodes."""

    rows: frozenset[int]
    adds: int
    picks: int
    edges: int
    nodes: int
    width: int
    weighted: bool


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return the finding about such messages, where a product in their place saves 5 % of the step or more."""
    flow = flow_of(case.profile)
    written = [] if flow is None or case.program.compiled else list(_messages(flow, trained_of(case.profile)))
    return [] if flow is None or not written else _found(case, rule, flow, written)


def _messages(flow: OperatorFlow, trained: Flags) -> Iterator[_Messages]:
    readers = ResultReaders(flow)
    for row in flow.outermost:
        picked: Size = readers.results.get(flow.number[row], ())
        if not _PICKS.match(flow.names[row]) or len(picked) != 2 or not all(picked):
            continue
        behind, gone, weighted = readers.only_reader(row), {row}, False
        if behind is not None and _TIMES.match(flow.names[behind[0]]):
            weight = _weight_of(readers, behind[0], picked)
            made = None if weight is None else flow.row_of.get(weight)
            if weight is None or (made is not None and trained[made]):
                continue
            weighted = True
            gone |= {behind[0], *behind[1]}
            behind = readers.only_reader(behind[0])
        if behind is None or not _ADDS.match(flow.names[behind[0]]):
            continue
        adds = behind[0]
        into: Size = next((size for size in readers.sizes[adds] if len(size) == 2), ())
        if picked not in readers.sizes[adds][1:] or into[1:] != picked[1:]:
            continue
        if picked[0] >= FEWEST_EDGES_OF_NODE * into[0]:
            rows = frozenset({*gone, adds, *behind[1]})
            yield _Messages(rows, adds, row, picked[0], into[0], picked[1], weighted)


def _weight_of(readers: ResultReaders, product: int, rows: Size) -> int | None:
    """Return the number of the operator that made the factor of each row of a product, -1 for an older tensor; None where a factor is
    another one, as one for each element.
    """
    flow = readers.flow
    for number, size in zip(flow.made[product][:2], readers.sizes[product][:2], strict=False):
        if size == (rows[0], 1):
            return readers.base_of(number)[0] if number >= 0 else -1
    return None


def _found(case: Case, rule: Rule, flow: OperatorFlow, written: list[_Messages]) -> list[Finding]:
    work = work_of_operators(case, flow)
    theirs = work.filter(pl.col("row").is_in(list(frozenset().union(*(each.rows for each in written)))))
    ops, cost = ops_of(theirs), case.per_step(int(theirs["ns"].sum()))
    worth = case.worth_or_freed(ScaleOps(ops, EDGE_PRODUCT_LEFT, less_work=True), cause=(StepPart.WORK,), bound=True)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return []
    code = case.profile.code()
    largest = max(written, key=lambda each: each.edges * each.width)
    where = {} if code is None else place_of_operator(code, flow, flow.start_ns[[largest.adds]])
    picked_at = {} if code is None else place_of_operator(code, flow, flow.start_ns[[largest.picks]])
    title = (
        f"{f'{in_short(where)}: ' if where else ''}messages of {units.count(largest.edges)} edges are written out and added up for "
        f"{units.count(largest.nodes)} nodes: {units.duration(cost)} {case.per}"
    )
    scaled = ", scaled by the edge's number" if largest.weighted else ""
    detail = (
        f"A row of {largest.width} numbers is copied for each edge{scaled}, and read again to be added to its node "
        f"({units.several(len(written), 'layer')}); backward does the same the other way round. All of that takes "
        f"{case.share(cost)} of the step; a product with the graph's sparse matrix reads each row once and writes "
        f"{math.ceil(largest.edges / largest.nodes)} times fewer."
    )
    return [
        Found(
            rule, title, detail, worth=worth, cost_ns=cost, fix=_fix(case, where, picked_at), where=where or None,
            takes=Takes(ops),
        ).as_finding(case)
    ]  # fmt: skip


def _fix(case: Case, where: Row, picked_at: Row) -> Fix:
    """Return the advice, with the names of the program where its lines say them."""
    fix = Fix.by_name("edges-as-product").but(paste=pasted("dst", "src", "w", "x"))
    added, picked = (
        (text_of(texts(case.profile), each["file"], each["line"]) or "" if each.get("line") else "")
        for each in (where, picked_at)
    )
    if _PROPAGATES.search(added) or _PROPAGATES.search(picked):
        return fix.but(paste=_OF_PYG)
    target, source = _ADDED.search(added), _PICKED.search(picked.partition("=")[2] or picked)
    if target is None or source is None:
        return fix
    return fix.but(paste=pasted(target["target"], source["source"], source["weight"], source["nodes"]))


def pasted(target: str, source: str, weight: str | None, nodes: str) -> str:
    """Return the code for these names; ``weight`` None for edges without one."""
    weights = weight or f"torch.ones(len({source}), device={source}.device)"
    return _OF_NAMES.format(dst=target, src=source, w=weights, x=nodes)
