"""Which softmax of an X-ray step is one of attention: of scores that a product of queries and keys made, and a factor of a product itself.

That of a router, a gate or a loss is not: its scores are a layer's, its largest are picked, its logarithm is taken, or rows are scaled
by it. Dropout, masks and what adds to the scores may lie between.
"""

from __future__ import annotations

import math
import re

from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.result_readers import ResultReaders

_SOFTMAX = re.compile(r"^aten::_?(safe_)?softmax$")
_PRODUCT = re.compile(r"^aten::(b?mm|addmm|baddbmm)_?$")
_OF_MATRICES = re.compile(r"^aten::(mm|addmm)_?$")
#: What leaves scores, or their softmax, as they are, but for a number, a mask or a part.
_KEEPS = re.compile(
    r"^aten::((native_|feature_)?dropout|masked_fill|where|mul|div|add|sub|nan_to_num|tanh|expand|select|slice|narrow|index)_?$"
)


def softmax_apart_from_attention(flow: OperatorFlow) -> frozenset[int]:
    """Return the outermost operators that hold a softmax which is not one of attention."""
    uses = _SoftmaxUses(flow)
    return frozenset(row for row in uses.rows if uses.of_layer(row) or not uses.is_factor(row))


class _SoftmaxUses(ResultReaders):
    def __init__(self, flow: OperatorFlow) -> None:
        super().__init__(flow)
        self._ends = dict(flow.outermost_spans)
        spans = {row: flow.names[row:end] for row, end in self._ends.items()}
        self._products = {row for row, names in spans.items() if any(map(_PRODUCT.match, names))}
        #: Operators that hold a softmax, and no product: those of attention as a whole have both.
        self.rows = [
            row for row, names in spans.items() if any(map(_SOFTMAX.match, names)) and row not in self._products
        ]

    def _numbers(self, row: int) -> int:
        return math.prod(self.results.get(self.flow.number[row], ()))

    def _keeps(self, row: int) -> bool:
        return bool(_KEEPS.match(self.flow.names[row])) or self.hands_on(row)

    def is_factor(self, row: int) -> bool:
        """Return whether a product reads the result, or what keeps most of it does; so may what comes behind the step."""
        waiting, seen = [row], {row}
        while waiting:
            for reader in self.readers.get(self.flow.number[waiting.pop()], ()):
                if reader < 0 or reader in self._products:
                    return True
                # What has more numbers is scaled by it, as experts' rows are.
                if self._keeps(reader) and reader not in seen and self._numbers(reader) <= self._numbers(row):
                    seen.add(reader)
                    waiting.append(reader)
        return False

    def of_layer(self, row: int) -> bool:
        """Return whether the scores are what a layer makes: a product with weights, which no operator of the step made."""
        flow, seen = self.flow, set[int]()
        while row not in seen:
            seen.add(row)
            # Of several arguments the largest: a mask, a bias or a scale may be as large, but comes behind the scores.
            sizes = self.sizes[row]
            aligned = len(sizes) == len(flow.made[row]) > 0
            largest = max(range(len(sizes)), key=lambda i: math.prod(sizes[i]) if sizes[i] else 0) if aligned else 0
            source = flow.row_of.get(flow.made[row][largest]) if flow.made[row] else None
            if source is None:
                return False
            if flow.names[source] == "aten::linear":
                return True
            if source in self._products:  # of matrices: keys of a batch may be older than the step, too
                inner = [i for i in range(source, self._ends[source]) if _OF_MATRICES.match(flow.names[i])]
                factors = [
                    n for i in inner for n in (flow.made[i][1:3] if "add" in flow.names[i] else flow.made[i][:2])
                ]
                return any(self.base_of(number)[0] < 0 for number in factors)
            if not self._keeps(source):
                return False
            row = source
        return False
