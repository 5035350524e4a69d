"""Which collectives cost each rank what, by who takes part and by what launches them: communication that no compute hides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict

import numpy as np

from nsysx.analyses.helpers.module_names import folded
from nsysx.model import Table, TableSpec
from nsysx.ranks.collective_costs import MOVES, UNMATCHED, WAITS, Stretches
from nsysx.ranks.job_compared import JobCompared, Takers
from nsysx.ranks.job_ledger import chosen
from nsysx.ranks.rank_bounds import MOST_COMMUNICATION_PLACES
from nsysx.ranks.rank_columns import CoveredSteps, ExposedWait, RankNumber
from nsysx.ranks.rank_places import Place
from nsysx.ranks.rank_record import Rank, number
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "communication_places"
TITLE = "Exposed communication by place"


class PlaceRow(TypedDict):
    """Exposed communication of a rank in one kind of collective, one group of ranks and one place."""

    rank: RankNumber
    steps: CoveredSteps
    collective: Annotated[
        str | None,
        Of("kind of collective, or the call of MPI; null for the rest, which has many, and where none was seen"),
    ]
    group: Annotated[
        str | None,
        Of(
            "process group by its name in the program: a dimension of a DeviceMesh, its description, or data for that of DDP and "
            "FSDP; null likewise, and where it has none or the settings were not read"
        ),
    ]
    members: Annotated[Sequence[int] | None, Of("ranks that take part, as far as they were recorded; null likewise")]
    phase: Annotated[str | None, Of("phase that launches it")]
    module: Annotated[str | None, Of("module that launches it; repeated ones together, their number as *")]
    file: Annotated[str | None, Of("file of the line that launches it", label="Python line")]
    line: Annotated[int | None, Of("its line")]
    calls: Annotated[int, Of("collectives that are exposed at all", sums="row")]
    wait_ns: ExposedWait
    transfer_ns: Annotated[int, Of("exposed time in which data moves", "ns", sums="row", label="exposed transfer")]
    unmatched_ns: Annotated[
        int, Of("exposed and on no other rank", "ns", sums="row", label="exposed, on no other rank")
    ]
    exposed_ns: Annotated[
        int,
        Of(
            "the three together; over the rows of a rank its comm_ns, and what it idles in calls of MPI",
            "ns",
            sums="row",
            label="exposed",
        ),
    ]


COLUMNS = columns_of(PlaceRow)
ROWS: TableOf[PlaceRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="rows",
    place=242,
    group="rank-tables",
    intro=(
        "What is launched where: communication that no compute hides, by kind, by the ranks that take part, and by phase, module and line."
    ),
    first=names("rank collective exposed_ns file module wait_ns transfer_ns group members phase calls steps"),
    keep="exposed_ns",
)


def _rows(
    ranks: Sequence[Rank], r: int, parts: Stretches, takers: Mapping[tuple[int, int], Takers]
) -> list[dict[str, Any]]:
    """Return the rows of one rank, the longest first."""
    rank = ranks[r]
    sums: dict[tuple[Any, ...], list[int]] = {}
    for row in np.unique(parts.row).tolist():
        of_row = parts.row == row
        launched = rank.places[rank.placed[row]] if row >= 0 and len(rank.placed) else Place()
        kind = rank.series[rank.belongs[row]].kind if row >= 0 else None
        module = None if launched.module is None else folded(launched.module)
        each = sums.setdefault((kind, *takers.get((r, row), Takers()), *launched._replace(module=module)), [0, 0, 0, 0])
        each[0] += row >= 0
        for i, state in enumerate((WAITS, MOVES, UNMATCHED), 1):
            each[i] += int(parts.ns[of_row & (parts.state == state)].sum())
    order = sorted(sums.items(), key=lambda e: (-sum(e[1][1:]), str(e[0])))
    keys = ("collective", *Takers._fields, *Place._fields)
    kept = order if len(order) <= MOST_COMMUNICATION_PLACES else order[: MOST_COMMUNICATION_PLACES - 1]
    if rest := order[len(kept) :]:
        kept = [*kept, ((None,) * len(keys), [sum(each[i] for _, each in rest) for i in range(4)])]
    figures = ("calls", "wait_ns", "transfer_ns", "unmatched_ns")
    return [
        {"rank": number(ranks, r), "steps": rank.steps, "exposed_ns": sum(each[1:])}
        | dict(zip(keys, key, strict=True))
        | dict(zip(figures, each, strict=True))
        for key, each in kept
    ]


def table(compared: JobCompared | None, reason: str) -> Table:
    """Return the exposed communication of each rank by place. Without a second rank no rows, and the reason."""
    if compared is None:
        return Table(KEY, TITLE, COLUMNS, None, reason, shown=SHOWN)
    ranks, takers, parts = compared.ranks, compared.takers, compared.stretches
    shown = chosen(ranks, [int(p.ns[p.state == WAITS].sum()) for p in parts])
    rows = [row for r in shown for row in _rows(ranks, r, parts[r], takers)]
    if (on_host := compared.on_host) is not None:
        of_host = on_host.aligned.ranks, on_host.parts, compared.takers_on_host
        rows += [row for r in shown for row in _rows(of_host[0], r, of_host[1][r], of_host[2])]
    return Table(KEY, TITLE, COLUMNS, tuple({c.name: row[c.name] for c in COLUMNS} for row in rows), shown=SHOWN)
