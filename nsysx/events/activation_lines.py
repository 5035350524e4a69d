"""Lines of the program that send activations over the ranks, or the gradients of these: what their layers compute waits for each.

A node of autograd computes the gradients of what its operator was given, and hooks of a tensor run where its own node is evaluated. The
gradient of a parameter is whole where the engine accumulates it, in a node of its own: hooks that reduce it run there, or behind backward.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events import thread_roles
from nsysx.events.code_lines import evaluations_among
from nsysx.events.layers import Layer
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_bounds import MOST_OF_LINE_SHARE
from nsysx.events.profile import Profile

#: The evaluation of the node that accumulates the gradient of a parameter, and of that behind which fully_shard reduces those of a unit.
_OF_PARAMETERS = r"AccumulateGrad$|RegisterPostBackwardFunctionBackward$"
#: The function of a node that the program defines.
_OF_NODE = ".backward"


class ActivationLines(NamedTuple):
    """Lines (rows of the places) most of whose communication is that of layers in forward, or that of nodes in backward."""

    forward: frozenset[int] = frozenset()
    backward: frozenset[int] = frozenset()


def activation_lines(profile: Profile) -> ActivationLines:
    """Return these lines of the shown process; none where lines are not recorded."""
    return profile.once(_find)


def _find(profile: Profile) -> ActivationLines:
    code, ops = profile.code(), profile.steady_ops
    comm = ops.filter(ops["cls"] == DeviceActivity.COMM.value)
    if code is None or not comm.height:
        return ActivationLines()
    line_of_op = code.places_of(code.op[comm["op"].to_numpy()])
    ns = (comm["end_ns"] - comm["start_ns"]).to_numpy()
    forward = (comm["phase"].cast(pl.String) == "forward").fill_null(value=False).to_numpy()
    noted = line_of_op >= 0
    whole, *parts = (
        np.bincount(line_of_op[noted], (ns * chosen)[noted], minlength=code.places.height)
        for chosen in (np.ones(comm.height, np.bool_), forward, sent_by_nodes(profile, comm))
    )
    return ActivationLines(
        *(frozenset(np.flatnonzero((whole > 0) & (part > MOST_OF_LINE_SHARE * whole)).tolist()) for part in parts)
    )


def sent_by_nodes(profile: Profile, ops: pl.DataFrame) -> Flags:
    """Return which GPU ops nodes of autograd launch that compute gradients, or hooks of what they are given: none of a parameter's own."""
    code, repeats, calls = profile.code(), profile.ranges.repeats, ops["call"].fill_null(-1).to_numpy()
    by_name = np.zeros(ops.height, np.bool_)
    if code is not None:
        functions = code.places["function"].str.ends_with(_OF_NODE).fill_null(value=False).to_numpy()
        by_name = np.append(functions, False)[code.places_of(code.op[ops["op"].to_numpy()])]
    like = calls if repeats is None else np.append(repeats.like, -1)[calls]
    inside = np.zeros(ops.height, np.bool_)
    inside[calls >= 0] = _in_nodes(profile, profile.attributed.api_calls[like[calls >= 0]], by_name[calls >= 0])
    return inside


def _in_nodes(profile: Profile, calls: pl.DataFrame, by_name: Flags) -> Flags:
    """Return which calls of an X-ray step a node of autograd makes that computes gradients, or a hook of what it is given.

    ``by_name``: which the function of a node seems to make; that counts where no operators were recorded around them.
    """
    layer = profile.once(_evaluations)
    computes = np.append(~layer.rows["name"].cast(pl.String).str.contains(_OF_PARAMETERS).to_numpy(), False)
    threads, start, inside = calls["thread"].to_numpy(), calls["start_ns"].to_numpy(), np.zeros(calls.height, np.bool_)
    for thread in np.unique(threads).tolist():
        theirs = threads == thread
        row = layer.at(thread, start[theirs])
        of_autograd = profile.attributed.roles.get(thread) == thread_roles.AUTOGRAD
        inside[theirs] = np.where(row >= 0, computes[row], by_name[theirs] & of_autograd)
    return inside


def _evaluations(profile: Profile) -> Layer:
    """Return how torch's engine calls nodes, in the X-ray steps of the shown process."""
    return evaluations_among(
        profile.ranges.ranges.filter(
            (pl.col("process") == profile.process)
            & (pl.col("kind") == "op")
            & ~(pl.col("crossing") | pl.col("repeated"))
        )
    )
