"""Lines of a training step that compute from the network's results what no gradient needs: metrics, statistics, what is logged.

Which operator needs which is known of one X-ray step (`operator_flow`). An operator is trained where the backward has a node of its
number; a line is aside where none of its operators is trained or needed by one that is, and one needs what a trained one made. What
reads a value to choose the next input (a policy in a game) runs without gradients, and needs nothing that is trained.
"""

from __future__ import annotations

from nsysx.events.operator_flow import flow_of
from nsysx.events.profile import Profile
from nsysx.events.trained_operators import trained_of


def places_aside(profile: Profile) -> frozenset[int]:
    """Return the lines (places of `CodeLines`) whose results no gradient needs; none where operators or lines were not recorded."""
    return profile.once(_places)[0]


def places_needed(profile: Profile) -> frozenset[int]:
    """Return the lines (places of `CodeLines`) with an operator that is trained, or needed by one that is."""
    return profile.once(_places)[1]


def _places(profile: Profile) -> tuple[frozenset[int], frozenset[int]]:
    code, flow = profile.code(), flow_of(profile)
    if code is None or flow is None:
        return frozenset(), frozenset()
    trained = trained_of(profile)
    if not trained.any():
        return frozenset(), frozenset()
    given = flow.makers
    needed, after = trained.copy(), trained.copy()
    for row in range(len(given) - 1, -1, -1):
        if needed[row]:
            needed[given[row]] = True
    for row, made in enumerate(given):
        after[row] |= after[made].any()
    line_row = code.places_of(code.at(flow.thread, flow.start_ns))
    for_gradients = frozenset(line_row[needed].tolist()) - {-1}
    return frozenset(line_row[after & (line_row >= 0)].tolist()) - for_gradients, for_gradients
