"""Penalties on a discriminator's gradient (``events.gradient_penalties``) in each step: every sixteenth is enough where that is known.

It is the regularization of StyleGAN2: the penalty counts as many times more in the steps that have it. The other numbers change with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from nsysx.analyses.lines import text_of, texts
from nsysx.events.backward_passes import backward_passes
from nsysx.events.code_lines import CodeLines
from nsysx.events.gradient_penalties import gradient_penalty
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.profile import Profile
from nsysx.findings._case import Fix, way
from nsysx.findings._flow_work import NeedlessOperators, in_short
from nsysx.findings._work_bounds import PENALTY_EVERY

_WITH_GRAPH = re.compile(r"\bgrad\((?=.*create_graph\s*=\s*True)")


class LazyPenalty(NamedTuple):
    """Operators of a penalty, the share of each that stays, and whether the gradients alone go: the score is a part of the loss, too."""

    needless: NeedlessOperators
    kept: Mapping[int, float]
    shared: bool


def lazy_penalties(profile: Profile, flow: OperatorFlow, code: CodeLines) -> Iterator[LazyPenalty]:
    """Yield such penalties."""
    passes, source = backward_passes(profile, flow, code), texts(profile)
    for asked, behind in pairwise(passes):
        text = text_of(source, asked.where["file"], asked.where["line"]) if asked.where else None
        penalty = gradient_penalty(flow, asked, behind.start_ns) if _WITH_GRAPH.search(text or "") else None
        if penalty is None:
            continue
        # Of a shared score one of the two passes goes.
        stays = 1 / PENALTY_EVERY if penalty.apart else 1 - (1 - 1 / PENALTY_EVERY) / 2
        kept = dict.fromkeys(penalty.scored, stays) | dict.fromkeys(penalty.norms, 1 / PENALTY_EVERY)
        title = f"{in_short(asked.where) or 'The step'} takes a penalty on the gradient of a score in each step"
        why = (
            f"The gradient of {len(penalty.scored)} operators by their input is only squared and summed, and differentiated once more. In "
            f"every {PENALTY_EVERY}th step alone, as StyleGAN2 has it, the rest of that work goes; what the second derivatives take comes "
            "on top."
        )
        needless = NeedlessOperators(sorted(kept), title, why, _fix(centered=penalty.centered), asked.where)
        yield LazyPenalty(needless, kept, not penalty.apart)


def _fix(*, centered: bool) -> Fix:
    """Return the advice, as a proposal where no interval is established."""
    if not centered:
        return Fix.by_name("penalty-at-times")
    text = (
        "Try the penalty in every few steps alone, weighed as many times more: for penalties that hold the norm at one (WGAN-GP) no "
        "interval is established, so compare the losses"
    )
    return Fix.by_name(way("penalty-at-times", text))
