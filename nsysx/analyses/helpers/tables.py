"""The tables of a report, made of its analyses, and what their sums cover."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import polars as pl

from nsysx import analyses
from nsysx.analyses import Analysis
from nsysx.events.profile import NotRecorded, Profile
from nsysx.model import Scope, Table
from nsysx.replay.engine import replayed_scope


def _table(module: Analysis, given: Profile) -> Table:
    try:
        frame: pl.DataFrame = module.table(given)
    except NotRecorded as answer:
        reason = f"{answer.reason}. To record it: {answer.fix}" if answer.fix else answer.reason
        return Table(module.KEY, module.TITLE, module.COLUMNS, None, reason, shown=module.SHOWN)
    names = [c.name for c in module.COLUMNS]
    assert set(frame.columns) >= set(names), (module.KEY, frame.columns)
    rows = tuple((frame if frame.columns == names else frame.select(names)).to_dicts())
    return Table(
        module.KEY,
        module.TITLE,
        columns=module.COLUMNS,
        rows=rows,
        reason="",
        scope=scope(module.SHOWN.covers, given),
        shown=module.SHOWN,
    )


class Tables(Mapping[str, Table]):
    """The tables of a report, each made when it is first read: the answer needs half of them. ``made`` are those so far.

    ``say`` is told the title of each before it is made.
    """

    def __init__(self, given: Profile, say: Callable[[str], None]) -> None:
        self._given, self._say = given, say
        self._analyses = {module.KEY: module for module in analyses.load()}
        self.made: dict[str, Table] = {}

    def __getitem__(self, key: str) -> Table:
        if key not in self.made:
            module = self._analyses[key]
            self._say(module.TITLE.lower())
            self.made[key] = _table(module, self._given)
        return self.made[key]

    def surely_recorded(self, key: str) -> bool:
        """Return whether the capture holds a table, as far as that is known without making it."""
        require = getattr(self._analyses.get(key), "require", None)
        if require is None:
            return False
        try:
            require(self._given)
        except NotRecorded:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._analyses | self.made)

    def __len__(self) -> int:
        return len(self._analyses | self.made)


def missing(tables: Mapping[str, Table], key: str) -> str | None:
    """Return why the capture does not hold a table, None when it does."""
    if isinstance(tables, Tables) and tables.surely_recorded(key):
        return None
    table = tables.get(key)
    if table is None:
        return f"the table {key} was not made"
    return None if table.rows is not None else table.reason or "not recorded"


def scope(covers: str, given: Profile) -> Scope | None:
    """Return what a table's sums cover, as its ``TableSpec`` says; None if each row has its own."""
    if covers == "rows":
        return None
    if covers == "replayed":
        return replayed_scope(given)
    if covers == "shown device":
        return given.scope if given.device is None else given.scope.on(given.device)
    return given.scope if covers == "steady" else given.whole.scope
