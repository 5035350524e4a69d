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
from nsysx.events.table_gradients import shared_tables
from nsysx.events.trained_operators import trained_of
from nsysx.findings._case import Case, Saving
from nsysx.findings._exposed_transfer import communication, exposed_transfer_ns
from nsysx.findings._finding_bounds import MOST_SHARE
from nsysx.findings._flow_work import place_of_operator
from nsysx.findings._work_bounds import LOOKED_UP_SHARE, SPARSE_UPDATE_LEFT
from nsysx.frames import lookup
from nsysx.model import Row
from nsysx.records import count_or_zero

_LOOKS_UP = ("aten::embedding", "aten::embedding_bag")


class LookedUp(NamedTuple):
    """A trained table of embeddings of the flow's step: its rows, numbers in one, how many rows are looked up at most, the operator (row),
    and the module that looks up (path and class).
    """

    rows: int
    width: int
    looked_up: int
    operator: int
    module: str = ""
    cls: str = ""


class FewRows(NamedTuple):
    """Tables of which a step looks up few rows: their numbers, rows, how many of them at most, and the line that looks up the largest.

    ``largest``: that table. ``tables``: how many they are, of ``of_tables`` that are trained.
    """

    elements: int
    rows: int
    looked_up: int
    where: Row
    largest: LookedUp | None = None
    tables: int = 1
    of_tables: int = 1

    @property
    def share(self) -> float:
        """Which share of the rows is looked up at most."""
        return self.looked_up / self.rows


class RankTables(NamedTuple):
    """What it saves that only rows which were looked up are reduced and updated, the line, and a sentence."""

    saving: Saving
    where: Row
    text: str


def _looked_up(profile: Profile) -> list[LookedUp]:
    """Return the tables of the flow's step, by module and size: those that are trained, and by nothing but what looks up.

    A frozen one has no gradient; that of one with the weight of a head has all rows.
    """
    flow = flow_of(profile)
    trained, shared = trained_of(profile), shared_tables(profile)
    by_node = bool(trained.any())  # without recorded nodes no lookup is known to be frozen
    tables: dict[tuple[str, int, int], LookedUp] = {}
    for row, name in enumerate(flow.names if flow is not None else ()):
        sizes = sizes_of(flow.size[row]) if flow is not None and name in _LOOKS_UP else []
        if flow is None or len(sizes) < 2 or len(sizes[0]) != 2 or sizes[0] in shared or (by_node and not trained[row]):
            continue
        module, cls = next(((c.path, c.cls) for c in reversed(flow.calls) if c.first <= row < c.last), ("", ""))
        rows, width = sizes[0]
        before = tables.get(key := (module, rows, width), LookedUp(rows, width, 0, row, module, cls))
        tables[key] = before._replace(looked_up=before.looked_up + math.prod(sizes[1]))
    return list(tables.values())


def few_rows(profile: Profile, most_share: float) -> FewRows | None:
    """Return the tables of which no more than a share of the rows is looked up, None without any or where lines are not recorded."""
    flow, code = flow_of(profile), profile.code()
    tables = profile.once(_looked_up)
    few = [table for table in tables if table.looked_up <= most_share * table.rows]
    if flow is None or code is None or not few:
        return None
    largest = max(few, key=lambda table: table.rows * table.width)
    return FewRows(
        sum(table.rows * table.width for table in few),
        sum(table.rows for table in few),
        sum(table.looked_up for table in few),
        place_of_operator(code, flow, flow.start_ns[[largest.operator]]),
        largest,
        len(few),
        len(tables),
    )


def most_of_optimizers(profile: Profile, most_share: float) -> tuple[FewRows, int] | None:
    """Return `few_rows` and how many numbers optimizers hold, if tables are most of these; None where they are not, or none is known."""
    settings, tables = settings_of(profile), few_rows(profile, most_share)
    optimizers = (None if settings is None else settings.rows("optimizers")) or ()
    elements = sum(count_or_zero(row.get("elements")) for row in optimizers)
    if tables is None or not elements or not MOST_SHARE * elements <= tables.elements <= elements:
        return None
    return tables, elements


def reduced_whole(case: Case) -> RankTables | None:
    """Return the tables whose gradients are most of what backward reduces over the ranks, where their transfer is notable; else None."""
    most = most_of_optimizers(case.profile, LOOKED_UP_SHARE)
    if most is None:
        return None
    tables, elements = most
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
