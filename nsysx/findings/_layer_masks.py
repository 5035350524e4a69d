"""Masks of blocks (``create_block_mask``) that each layer builds anew: what a function of the mask reads is not seen, the calls are.

torch evaluates such a function for all pairs of positions under ``vmap``, where operators name neither sizes nor what made their arguments.
Calls with the same operators, on the same line, in several modules of one class build the same mask, or one of another window.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.profile import Profile
from nsysx.findings._case import Fix
from nsysx.findings._flow_work import NeedlessOperators, in_short

_BUILDS = re.compile(r"\bcreate_block_mask\(")
_PASTE = (
    "block_mask = create_block_mask(mask_mod, B, None, S, S, device=x.device)  # once, before the layers\n"
    "for block in self.blocks:\n"
    "    x = block(x, block_mask)"
)


def masks_of_layers(profile: Profile, flow: OperatorFlow, code: CodeLines) -> Iterator[NeedlessOperators]:
    """Yield what layers behind the first one run to build their masks."""
    source, line_of = texts(profile), code.places_of(code.at(flow.thread, flow.start_ns))
    inner = np.full(len(flow.names), -1)
    for number, call in enumerate(flow.calls):  # outer ones before inner ones
        inner[call.first : call.last] = number
    for line_row in np.unique(line_of[line_of >= 0]).tolist():
        file, line, _ = code.places.row(line_row)
        if not _BUILDS.search(text_of(source, file, line) or ""):
            continue
        spans = list[list[int]]()
        for number in np.unique(inner[(line_of == line_row) & (inner >= 0)]).tolist():
            rows = np.flatnonzero((line_of == line_row) & (inner == number))
            # Lines of the mask's own function stand in between.
            spans.append(flow.outermost_of(int(rows[0]), int(rows[-1]) + 1))
        first = [flow.names[row] for row in spans[0]] if spans else []
        again = [span for span in spans[1:] if [flow.names[row] for row in span] == first]
        if not again:
            continue
        where = code.where(line_row)
        title = f"{in_short(where)} builds the mask of blocks anew in each of {1 + len(again)} layers"
        why = "Each of these calls runs the same operators, over all pairs of positions, and no layer changes what they are."
        fix = Fix.by_name("result-handed-on").but(paste=_PASTE)
        yield NeedlessOperators([row for span in again for row in span], title, why, fix, where)
