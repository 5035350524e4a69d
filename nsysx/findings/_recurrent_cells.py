"""Recurrent cells that a program calls for each element of a sequence: a layer of torch runs the whole sequence in one call."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import polars as pl

from nsysx.advice import Alternative
from nsysx.analyses import modules
from nsysx.events.needs_of_calls import state_is_touched
from nsysx.events.operator_flow import flow_of
from nsysx.findings._case import Case, way
from nsysx.findings._finding_bounds import SEQUENCE_CELL_CALLS
from nsysx.findings._fix import Fix

_LAYERS = {"LSTMCell": "LSTM", "GRUCell": "GRU", "RNNCell": "RNN"}


class RecurrentCell(NamedTuple):
    """A cell of torch: its path, its class, and how often a step calls it."""

    path: str
    cls: str
    calls: float

    @property
    def whole(self) -> Alternative:
        """The layer in its place."""
        layer, name = _LAYERS[self.cls], self.cls.removesuffix("Cell").lower()
        state = "(h[None], c[None])" if layer == "LSTM" else "h[None]"
        paste = (
            f"{name} = nn.{layer}(cell.input_size, cell.hidden_size, batch_first=True)\n"
            f"out, state = {name}(x, {state})  # x: [batch, time, features], in place of the loop over its time"
        )
        often = f"{self.calls:.0f} calls of {self.cls} a step"
        text = f"Run nn.{layer} on the whole sequence in place of {often}, where each input is known before"
        return way(
            "sequence-at-once", text, paste, "It takes the weights of the cell: weight_ih_l0 for weight_ih, and so on."
        )


def recurrent_cell(case: Case) -> RecurrentCell | None:
    """Return the recurrent cell that the program calls for each element of a sequence, None where it calls none.

    None, too, where an X-ray shows that a layer would not make the same: the state is changed between two calls, or the input needs it.
    """
    cells = (
        RecurrentCell(str(r["path"]), str(r["cls"]), (r["calls"] or 0) / case.steps)
        for r in case.typed_rows(modules.ROWS)
        if r["cls"] in _LAYERS
    )
    most = max(cells, key=lambda cell: cell.calls, default=None)
    if most is None or most.calls < SEQUENCE_CELL_CALLS:
        return None
    flow = flow_of(case.profile)
    calls = [] if flow is None else [call for call in flow.calls if (call.path, call.cls) == (most.path, most.cls)]
    return None if flow is not None and state_is_touched(flow, calls) else most


def sequence_of(case: Case, launches: Collection[int]) -> Fix | None:
    """Return what to do about launches that one line makes as a loop, where most of them are a recurrent cell's."""
    cell = recurrent_cell(case) if launches else None
    if cell is None:
        return None
    made = case.calls.filter(pl.col("call").is_in(list(launches)))["module"].cast(pl.String)
    return Fix.by_name(cell.whole) if 2 * int((made == cell.path).sum()) > len(made) else None
