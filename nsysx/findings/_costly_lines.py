"""A line of an X-ray that costs, and the lines beside it that go by the same change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nsysx.analyses import lines
from nsysx.events import line_runs
from nsysx.events.code_lines import CodeLines
from nsysx.events.line_shares import driver
from nsysx.findings import _line_causes, _line_remedies
from nsysx.findings._calling_loops import calling_loop
from nsysx.findings._case import Case, Fix
from nsysx.findings._finding_bounds import FEWEST_CALLING_ROUNDS

#: Remedies of lines at which ranks meet; with reads of values in one function they exchange metrics, and go together.
_MEETS = ("collective-rarely", "counted-apart", "logged-apart", "tensors-gathered", "values-at-once")
_EXCHANGED = ("keep-on-gpu", *_MEETS)
#: Lines that make arrays of what was picked one by one.
_PUTS_TOGETHER = re.compile(r"\b(stack|v?hstack|concatenate|(as)?array|(as_)?tensor|from_numpy)\(")
#: A line that gives a name of the function's a value.
_ASSIGNS = re.compile(r"\s*([A-Za-z_]\w*)\s*[-+*/]?=(?!=)(.*)")
_NAME = re.compile(r"[A-Za-z_]\w*")
#: The rows of lines by file, line and function.
Rows = Mapping[tuple[str | None, int | None, str], lines.CodeLineRow]


class CostlyLine(NamedTuple):
    """A line that costs: its place among the lines, its row, what it costs of a step (ns), and the calls that it makes as a loop.

    ``aside``: no gradient needs what it makes. ``below``: the file of a package in which most of its time is, "" for none. ``cause``:
    why it takes so long, where that decides what to do. ``part``: the share of its time that it is about. ``rounds``: a loop of its group
    alone calls it, in so many rounds, of which one stays; 0 for others.
    """

    place: int
    row: lines.CodeLineRow
    cost: int
    seen: _line_remedies.Seen
    looping: frozenset[int]
    fix: Fix | None
    aside: bool = False
    below: str = ""
    cause: _line_causes.LineCause | None = None
    part: float = 1.0
    rounds: float = 0.0

    @property
    def kind(self) -> tuple[object, ...]:
        """Lines of one function with one remedy are one thing to do."""
        if self.fix is None or not self.fix.ways:
            return (self.place,)
        name = self.fix.ways[0].name
        if self.fix == _line_remedies.CALLBACKS:  # of one trainer, wherever they are called
            return (name,)
        if name == "scan-at-once" and self.fix.paste:  # of a helper's rounds and the function that it is given
            return self.row["file"], self.fix.paste, name
        if self.cause is not None and self.cause.looped:
            # Loops of one class walk the same structure.
            return self.row["file"], self.cause.looped.rpartition(".")[0] or self.cause.looped, name
        return self.row["file"], self.row["function"], "exchanged" if name in _EXCHANGED else name

    @property
    def meets(self) -> bool:
        """Whether ranks meet at this line, where they need not."""
        return self.fix is not None and bool(self.fix.ways) and self.fix.ways[0].name in (*_MEETS, "shards-kept")


Kinds = Mapping[tuple[object, ...], Sequence[CostlyLine]]
#: What is said about a line that reads a value.
_READS = Fix.by_name("keep-on-gpu")


def lines_beside(group: Sequence[CostlyLine]) -> list[CostlyLine]:
    """Return the lines beside the first one of a group that no loop of it calls, each once: a line may have several functions."""
    places: dict[tuple[str | None, int | None], CostlyLine] = {}
    for line in group:
        if not line.rounds or not places:
            places.setdefault((line.row["file"], line.row["line"]), line)
    return list(places.values())[1:]


def with_reads_between(
    case: Case, code: CodeLines, rows: Rows, every: Mapping[int, float], kinds: Kinds
) -> dict[tuple[object, ...], list[CostlyLine]]:
    """Return lines by kind, those that make calls between the rounds of a loop with the loop."""
    between = {kind: Beside(case, code, rows, every, kinds, kind).between_rounds() for kind in kinds}
    taken = {line.place for group in between.values() for line in group}
    joined = {k: [*(line for line in kinds[k] if line.place not in taken), *between[k]] for k in kinds}
    return {kind: group for kind, group in joined.items() if group}


class Beside:
    """The other lines that go by the change of the lines of one ``kind``. ``every``: place -> what the GPU idles while it runs (ns)."""

    def __init__(
        self,
        case: Case,
        code: CodeLines,
        rows: Rows,
        every: Mapping[int, float],
        kinds: Kinds,
        kind: tuple[object, ...],
    ) -> None:
        self._case, self._code, self._rows, self._every, self._group = case, code, rows, every, kinds[kind]
        #: Lines with something else to be done about them than to read later.
        others = (line for other, group in kinds.items() if other != kind for line in group)
        self._elsewhere = {line.place for line in others if line.fix != _READS}

    def also(self) -> list[CostlyLine]:
        """Return them, none for most kinds."""
        kind = self._group[0].kind[-1]
        if kind == "exchanged" and any(line.meets for line in self._group):
            return self._that_read()
        if kind == "arrays-for-objects":
            return self._that_put_together()
        if kind == "drawn-by-weight":
            return self._that_weigh()
        looped = any(line.cause is not None and line.cause.looped for line in self._group)
        return self._of_loops() if looped else []

    def _others(self, wanted: Callable[[int, lines.CodeLineRow], bool]) -> Iterator[tuple[int, lines.CodeLineRow]]:
        named = {line.place for line in self._group}
        for line_row in range(self._code.places.height):
            row = self._rows.get(self._code.places.row(line_row))
            if line_row not in named and row is not None and wanted(line_row, row):
                yield line_row, row

    def _line(self, line_row: int, row: lines.CodeLineRow, fix: Fix | None) -> CostlyLine:
        seen = _line_remedies.Seen(
            str(row["text"] or "").partition("  #")[0], 0.0, 0.0, row["waits"] / self._case.steps
        )
        cost = self._case.per_step(self._every.get(line_row, 0.0))
        return CostlyLine(line_row, row, cost=cost, seen=seen, looping=frozenset(), fix=fix)

    def _in_function(self, row: lines.CodeLineRow) -> bool:
        return any((row["file"], row["function"]) == (line.row["file"], line.row["function"]) for line in self._group)

    def _that_read(self) -> list[CostlyLine]:
        """Return those that read values in a function in which ranks exchange some: they make the CPU wait before it."""
        kind = self._group[0].kind
        reading = self._others(lambda _, row: bool(row["waits"]) and self._in_function(row))
        made = (self._line(line_row, row, None) for line_row, row in reading)
        read = (line._replace(fix=_line_remedies.fix_of(line.seen)) for line in made)
        return [line for line in read if line.kind == kind]

    def _that_put_together(self) -> list[CostlyLine]:
        """Return those of the same function that make arrays of what was picked one by one."""

        def wanted(_: int, row: lines.CodeLineRow) -> bool:
            text = str(row["text"] or "")
            return not row["launches"] and self._in_function(row) and _PUTS_TOGETHER.search(text) is not None

        return [self._line(line_row, row, self._group[0].fix) for line_row, row in self._others(wanted)]

    def _that_weigh(self) -> list[CostlyLine]:
        """Return those of the same function that launch nothing and compute the weights of a draw, or what is made of these after it."""
        last = max(line.row["line"] or 0 for line in self._group)
        names = frozenset[str]().union(*(_line_remedies.weights_of(line.seen.text) for line in self._group))
        assigning: list[tuple[int, int, lines.CodeLineRow, re.Match[str]]] = []
        for line_row, row in self._others(lambda _, row: not row["launches"] and self._in_function(row)):
            assigns = _ASSIGNS.match(str(row["text"] or "").partition("  #")[0])
            if assigns is not None:
                assigning.append((row["line"] or 0, line_row, row, assigns))
        assigning.sort(key=lambda each: each[0])
        chosen: list[tuple[int, lines.CodeLineRow]] = []
        for number, line_row, row, assigns in reversed(assigning):
            if number < last and assigns[1] in names:
                chosen.append((line_row, row))
                names |= frozenset(_NAME.findall(assigns[2]))
        made = names & {assigns[1] for number, *_, assigns in assigning if number < last}
        for number, line_row, row, assigns in assigning:
            if number > last and made.intersection(_NAME.findall(assigns[2])):
                chosen.append((line_row, row))
                made |= {assigns[1]}
        return [self._line(line_row, row, self._group[0].fix) for line_row, row in chosen]

    def between_rounds(self) -> list[CostlyLine]:
        """Return those that make calls between the rounds of a loop, such as reads of sizes, where one operation takes the place of all."""
        first, thread = self._group[0], driver(self._case.profile)
        if thread is None or first.fix not in _line_remedies.IN_ONE or not first.looping or first.aside:
            return []
        runs = self._case.profile.once(line_runs.of_lines)
        of_loop = [line_runs.begins(self._case.profile, line.place, thread) for line in self._group]
        rounds = np.sort(np.concatenate(of_loop))
        calling = calling_loop(self._case, self._code, [line.place for line in self._group])

        def wanted(line_row: int, row: lines.CodeLineRow) -> bool:
            # Of a loop that calls the function only what reads a value between the calls is known to go along.
            reads = row["waits"] >= FEWEST_CALLING_ROUNDS * self._case.steps and not row["launches"]
            in_loop = calling is not None and reads and calling.holds(row["file"], row["function"])
            if (
                line_row in self._elsewhere
                or not (self._in_function(row) or in_loop)
                or runs.rounds[line_row] < FEWEST_CALLING_ROUNDS
            ):
                return False
            begins = np.searchsorted(rounds, line_runs.begins(self._case.profile, line_row, thread))
            # One behind the other, a loop of its own would lie between two rounds, or outside of all.
            return len(np.unique(begins)) >= min(len(begins), FEWEST_CALLING_ROUNDS)

        made = []
        for line_row, row in self._others(wanted):
            calls = self._code.made_at(self._case.calls, [line_row])["call"]
            if len(calls):
                line = self._line(line_row, row, self._group[0].fix)
                made.append(line._replace(looping=frozenset(calls.to_list())))
        return made

    def _of_loops(self) -> list[CostlyLine]:
        """Return those that run in the same loops over single items, and launch nothing: short ones do not hold the CPU by themselves."""
        loops = {line.cause.loop for line in self._group if line.cause is not None} - {-1}

        def wanted(line_row: int, row: lines.CodeLineRow) -> bool:
            return not row["launches"] and any(
                _line_causes.in_loop(self._case, self._code, line_row, loop) for loop in loops
            )

        return [self._line(line_row, row, self._group[0].fix) for line_row, row in self._others(wanted)]
