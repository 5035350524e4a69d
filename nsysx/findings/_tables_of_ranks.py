"""Tables of embeddings that every rank holds whole: each step reduces and updates all their rows, however few of them were looked up."""

from __future__ import annotations

import math
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.events.activation_lines import sent_by_nodes
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flow import flow_of
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Saving
from nsysx.findings._exposed_transfer import communication, exposed_transfer_ns
from nsysx.findings._finding_bounds import MOST_SHARE
from nsysx.findings._flow_work import place_of_operator
from nsysx.findings._work_bounds import LOOKED_UP_SHARE, SPARSE_UPDATE_LEFT
from nsysx.frames import lookup
from nsysx.model import Row
from nsysx.records import count_or_zero

_LOOKS_UP = ("aten::embedding", "aten::embedding_bag")


class _Tables(NamedTuple):
    """Tables of which a step looks up few rows: their numbers, rows, how many of them at most, and the line that looks up the largest."""

    elements: int
    rows: int
    looked_up: int
    where: Row


class RankTables(NamedTuple):
    """What it saves that only rows which were looked up are reduced and updated, the line, and a sentence."""

    saving: Saving
    where: Row
    text: str


def _tables(profile: Profile) -> _Tables | None:
    """Return the tables of the flow's step of which few rows are looked up, None without any or where lines are not recorded."""
    flow, code = flow_of(profile), profile.code()
    if flow is None or code is None:
        return None
    tables: dict[
        tuple[str, int, int], tuple[int, int]
    ] = {}  # module, rows and width -> rows looked up, and the operator
    for row, name in enumerate(flow.names):
        sizes = sizes_of(flow.size[row]) if name in _LOOKS_UP else []
        if len(sizes) < 2 or len(sizes[0]) != 2:
            continue
        module = next((call.path for call in reversed(flow.calls) if call.first <= row < call.last), "")
        looked_up, first = tables.get(key := (module, *sizes[0]), (0, row))
        tables[key] = looked_up + math.prod(sizes[1]), first
    few = {key: each for key, each in tables.items() if each[0] <= LOOKED_UP_SHARE * key[1]}
    if not few:
        return None
    largest = max(few, key=lambda key: key[1] * key[2])
    return _Tables(
        sum(rows * width for _, rows, width in few),
        sum(rows for _, rows, _ in few),
        sum(looked_up for looked_up, _ in few.values()),
        place_of_operator(code, flow, flow.start_ns[[few[largest][1]]]),
    )


def reduced_whole(case: Case) -> RankTables | None:
    """Return the tables whose gradients are most of what backward reduces over the ranks, where their transfer is notable; else None."""
    settings, tables = settings_of(case.profile), case.profile.once(_tables)
    optimizers = (None if settings is None else settings.rows("optimizers")) or ()
    elements = sum(count_or_zero(row.get("elements")) for row in optimizers)
    if tables is None or not elements or not MOST_SHARE * elements <= tables.elements <= elements:
        return None
    comm, share = communication(case), tables.elements / elements
    backward = (comm["phase"].cast(pl.String) == "backward").fill_null(value=False).to_numpy()
    backward = backward & ~sent_by_nodes(case.profile, comm)
    sent = share * exposed_transfer_ns(case, backward & lookup.matching(comm["name"], r"AllReduce"))
    if not case.notable(sent):
        return None
    updates = case.kernels.filter(case.kernels["phase"].cast(pl.String) == "optimizer")
    updated = share * (1 - SPARSE_UPDATE_LEFT) * case.per_step(int(updates["ns"].sum()))
    left = min(2 * tables.looked_up / tables.rows, 1.0)  # rows and their gradients are sent
    why = "rows that no rank looked up are not sent, at most they are not updated, either"
    text = (
        f"a step looks up {units.count(tables.looked_up)} of {units.count(tables.rows)} rows at most, and all of them are reduced "
        f"({units.duration(round(sent))} that nothing hides) and updated"
    )
    saving = Saving.between(round((1 - left) * sent), round((1 - left) * sent + updated), why)
    return RankTables(saving, tables.where, text)
