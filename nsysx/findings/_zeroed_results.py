"""Parts of a network that run for nothing: all that is read of their results is a sum, which a line multiplies by zero.

Wrappers of ranks want a gradient for every parameter in each step, and programs with a head for each task give it to them so:
``loss + 0.0 * out.sum()``. The heads then run on the whole batch, forward and backward, for zeros. Their parameters alone would do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.operator_flow import ModuleCall, OperatorFlow
from nsysx.events.result_readers import ResultReaders
from nsysx.findings._case import Case, Fix
from nsysx.findings._flow_work import NeedlessOperators, in_short, place_of_operator
from nsysx.model import Row

#: A zero as a factor, before a sum or behind one.
_ZERO = r"(?<![\w.])0(?:\.0*)?(?![\w.])"
_BY_ZERO = re.compile(rf"{_ZERO}\s*\*\s*[\w.(].*\.(sum|mean)\(|\.(sum|mean)\([^()]*\)\s*\*\s*{_ZERO}")
_TIMES, _SUMS = re.compile(r"^aten::mul_?$"), re.compile(r"^aten::(sum|mean)$")


def zeroed_results(case: Case, flow: OperatorFlow, code: CodeLines) -> Iterator[NeedlessOperators]:
    """Yield what runs for sums that a line multiplies by zero, by line."""
    readers, source = ResultReaders(flow), texts(case.profile)
    products: dict[tuple[object, object], tuple[Row, list[int]]] = {}
    for row in flow.outermost:
        if _TIMES.match(flow.names[row]) and (summed := _summed(readers, row)) is not None:
            where = place_of_operator(code, flow, flow.start_ns[[row]])
            if where and _BY_ZERO.search(text_of(source, str(where["file"]), int(where["line"])) or ""):
                products.setdefault((where["file"], where["line"]), (where, []))[1].extend((row, summed))
    for where, rows in products.values():
        gone = _leading_to(readers, rows)
        called = [call for call in flow.calls if gone.issuperset(flow.outermost_of(call.first, call.last))]
        if not called:
            continue  # parameters alone, or something small
        outer = list[ModuleCall]()
        for call in sorted(called, key=lambda call: (call.start_ns, -call.end_ns)):
            if not outer or call.start_ns >= outer[-1].end_ns:
                outer.append(call)
        many = units.several(len(outer), "call")
        title = f"{in_short(where)} multiplies by zero what {many} of modules ({outer[0].path.rpartition('.')[2]}, ...) compute"
        why = "All that is read of their results is a sum that this line multiplies by zero, and their gradients are zero."
        yield NeedlessOperators(sorted(gone), title, why, Fix.by_name("zeroed-parameters"), where)


def _summed(readers: ResultReaders, row: int) -> int | None:
    """Return the sum of more than one number that a product multiplies by a number, None for other products."""
    flow = readers.flow
    for number, size in zip(flow.made[row], readers.sizes[row], strict=False):
        before = flow.row_of.get(readers.base_of(number)[0]) if number >= 0 and not size else None
        if before is not None and _SUMS.match(flow.names[before]) and any(readers.sizes[before][:1]):
            return before
    return None


def _leading_to(readers: ResultReaders, rows: list[int]) -> frozenset[int]:
    """Return the outermost operators whose results only these (rows) read, themselves included."""
    flow, gone = readers.flow, set(rows)
    for row, end in reversed(flow.outermost_spans):
        read = set[int]().union(*(readers.readers.get(flow.number[inner], set()) for inner in range(row, end)))
        if read - {row} and read - {row} <= gone and row < max(gone):
            gone.add(row)
    return frozenset(gone)
