"""Module ranges of steps that the probe did not mark, told from a marked step whose sequence of calls they repeat.

The probe marks modules in few steps only (``inject.nsysx_probe.marking``) and says where with ``info`` marks. Here each step
without marks is held against the marked ones, and likewise each call of a network outside of steps (an evaluation, a teacher, a
rollout), thread by thread: launches (API, kernel, grid, block), copies, memsets,
waits and the borders of phases are one sequence. Where they repeat those of a marked step, that step's module ranges and
backward marks are copied, with their times carried over between the calls that correspond. So a range holds exactly the
calls that repeat those it held, and everything that reads ranges reads these too. What corresponds to nothing stays without
a module, grade ``none``.

    marked    |[ln: a b ][fc: c    ]|        a to d: launches; x: one that no marked step had
    without   |  a   b     c  x     |        ln: a b, fc: c, x: none
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.events import beside_sequence, marked_when
from nsysx.events.alignment import Pairs, align, with_alike
from nsysx.events.correlate import Correlated
from nsysx.events.event_bounds import COMPARED_SEQUENCES, REPEATED, UNMATCHED
from nsysx.events.families import OTHER, family
from nsysx.events.nvtx_ranges import Ranges, Repeats
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.inject.nsysx_probe.ranges import PHASES

#: Kinds of calls that a program makes in the same order each time. Allocations and queries of events come as they please.
_KEPT = "^(launch|graph_launch|copy|memset|sync)$"


@dataclass(frozen=True)
class _Tokens:
    """What the sequence of one thread is made of, in order of time: calls (``call`` >= 0) and borders of phases."""

    start: I64
    end: I64
    key: I64
    name: I64
    kind: I64
    call: I64
    counted: I64  # calls before each token, and in all
    phases: bool  # it has phases of its own

    def cut(self, start: int, end: int) -> slice:
        """Return the tokens that begin in [start, end)."""
        a, b = np.searchsorted(self.start, [start, end]).tolist()
        return slice(a, b)

    def works(self, cut: slice) -> bool:
        """Return whether there is anything to repeat: a call, or phases of the thread's own."""
        return bool(self.counted[cut.stop] > self.counted[cut.start]) or (self.phases and cut.stop > cut.start)


def _hashes(frame: pl.DataFrame, *columns: str) -> I64:
    """Return one number per row that is equal where these columns are."""
    return frame.select(pl.struct(columns).hash()).to_series().to_numpy().view(np.int64)


def _kinds(kernels: pl.Series) -> pl.Series:
    """Return the family of each kernel of which one is known, else its name."""
    names = kernels.unique().drop_nulls()
    families = pl.Series([family(name) for name in names.to_list()], dtype=pl.String)
    families = families.zip_with(families != OTHER, names)
    kinds: pl.Series = kernels.replace(names, families)
    return kinds


def _tokens(correlated: Correlated, ranges: Ranges, processes: list[int]) -> dict[int, _Tokens]:
    """Return thread -> its tokens, of the processes that have steps without marks."""
    calls = correlated.api_calls
    wanted = calls["process"].is_in(processes).to_numpy() & lookup.matching(calls["kind"], _KEPT)
    thread, start, end = (calls[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    rows = np.flatnonzero(wanted)
    # A driver call inside a runtime call is part of that.
    reach = np.zeros(len(rows), np.int64)
    borders = [0, *(np.flatnonzero(np.diff(thread[rows])) + 1).tolist(), len(rows)]
    for a, b in itertools.pairwise(borders):
        reach[a + 1 : b] = np.maximum.accumulate(end[rows[a:b]])[:-1] if b > a else 0
    rows = rows[start[rows] >= reach]
    launched = correlated.gpu_ops.select("call", op="name", grid="grid", block="block").drop_nulls("call")
    op = launched.unique("call", keep="first", maintain_order=True)
    made = calls["call", "name"][rows].join(op, on="call", how="left", maintain_order="left")
    made = made.with_columns(lookup.text(made[c]) for c in ("name", "op"))
    key, name = _hashes(made, "name", "op", "grid", "block"), _hashes(made, "name", "op")
    kind = _hashes(made.with_columns(_kinds(made["op"])), "name", "op")
    phases = ranges.ranges.filter((pl.col("kind") == "phase") & pl.col("own") & pl.col("process").is_in(processes))
    names, code = lookup.distinct(phases["name"])
    number = 2 * np.array([PHASES.index(n) if n in PHASES else -1 for n in names], np.int64)[code]
    phase_thread, began, ended = (phases[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    backward = number == 2 * PHASES.index("backward")
    by_thread = {}
    for thread_key in np.unique(np.concatenate((thread[rows], phase_thread))).tolist():
        of_thread, phases_here = thread[rows] == thread_key, phase_thread == thread_key
        has_phases = bool(phases_here.any())
        if not has_phases:  # what it does for a backward lies in that
            phases_here = backward & (phase_thread >> 24 == thread_key >> 24)
        times = np.concatenate((start[rows[of_thread]], began[phases_here], ended[phases_here]))
        until = np.concatenate((end[rows[of_thread]], began[phases_here], ended[phases_here]))
        keys = np.concatenate((key[of_thread], number[phases_here], number[phases_here] + 1))
        plain = np.concatenate((name[of_thread], number[phases_here], number[phases_here] + 1))
        alike = np.concatenate((kind[of_thread], number[phases_here], number[phases_here] + 1))
        order = np.lexsort((until, times))
        call = np.concatenate((rows[of_thread], np.full(2 * int(phases_here.sum()), -1, np.int64)))[order]
        counted = np.concatenate(([0], np.cumsum(call >= 0)))
        by_thread[thread_key] = _Tokens(
            times[order],
            until[order],
            key=keys[order],
            name=plain[order],
            kind=alike[order],
            call=call,
            counted=counted,
            phases=has_phases,
        )
    return by_thread


@dataclass
class _Copies:
    """What is copied: rows of the frame of ranges (or marks) with their new times."""

    row: list[I64] = field(default_factory=list)
    start: list[I64] = field(default_factory=list)
    end: list[I64] = field(default_factory=list)
    thread: list[I64] = field(default_factory=list)

    def frame(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the copied ones of these rows."""
        if not self.row:
            return rows.clear()
        row, start, end, thread = (np.concatenate(parts) for parts in (self.row, self.start, self.end, self.thread))
        return rows[row].with_columns(
            pl.Series("start_ns", start),
            pl.Series("end_ns", np.maximum(end, start)),
            pl.Series("thread", thread),
            pl.lit(-1, dtype=pl.Int64).alias("number"),  # what autograd numbers is not repeated
            pl.lit(True).alias("repeated"),
        )


@dataclass(frozen=True)
class _Found:
    """What is found out about each call: ``Repeats.calls`` and ``Repeats.of``."""

    states: npt.NDArray[np.int8]
    of: I64

    def link(self, ours: I64, theirs: I64) -> None:
        """Let calls correspond to others; -1 stands for a token that is no call."""
        self.of[ours[ours >= 0]] = theirs[ours >= 0]

    def through(self) -> I64:
        """Return ``of`` with what corresponds to a call that itself corresponds to another one led on to that."""
        beyond = np.append(self.of, -1)[self.of]
        return np.where(beyond >= 0, beyond, self.of)


class _Repeater:
    """Works through the steps of one process."""

    def __init__(
        self,
        marks: marked_when.Marks,
        steps: pl.DataFrame,
        tokens: dict[int, _Tokens],
        ranges: Ranges,
        results: _Found,
    ) -> None:
        self.marks, self.tokens, self.results = marks, tokens, results
        start, end = (steps[c].to_numpy() for c in ("start_ns", "end_ns"))
        whole = marks.throughout(start, end)
        self.templates = [(int(start[i]), int(end[i])) for i in np.flatnonzero(whole)]
        self.others = [(int(start[i]), int(end[i])) for i in np.flatnonzero(~whole)]
        self.xrayed = marked_when.xrayed(ranges, tokens, self.templates)
        self.sources = [(ranges.ranges, "module", _Copies()), (ranges.marks, "backward_module", _Copies())]
        self._placed = [self._by_thread(frame, kind) for frame, kind, _ in self.sources]
        self._known: dict[tuple[int, bytes, bytes], Pairs] = {}

    def _by_thread(self, frame: pl.DataFrame, kind: str) -> dict[int, tuple[I64, I64, I64]]:
        """Return thread -> row, start, end of the probe's ranges of one kind, in order of time."""
        rows = np.flatnonzero(((frame["kind"] == kind) & frame["own"]).to_numpy())
        thread, start, end = (frame[c].to_numpy()[rows] for c in ("thread", "start_ns", "end_ns"))
        by_thread = {}
        for thread_key in self.tokens:
            in_order = np.flatnonzero(thread == thread_key)
            in_order = in_order[np.argsort(start[in_order], kind="stable")]
            by_thread[thread_key] = (rows[in_order], start[in_order], end[in_order])
        return by_thread

    def run(self) -> int:
        """Copy ranges into every step without marks; return how many steps repeat a marked one whole."""
        cuts = {
            thread: [(step, tokens.cut(*step)) for step in self.templates] for thread, tokens in self.tokens.items()
        }
        exact = 0
        for step in self.others:
            whole = True
            used: set[int] = set()
            for thread, tokens in self.tokens.items():
                cut = tokens.cut(*step)
                if not tokens.works(cut):
                    continue
                match = self._template(thread, step, cut, cuts, used)
                if match is None:
                    self._settle(tokens, cut, np.empty(0, np.int64), np.empty(0, np.int64))
                    whole = False
                    continue
                source, template, of_template, (ours, theirs) = match
                used.add(source)
                self._settle(tokens, cut, cut.start + ours, self.tokens[source].call[of_template.start + theirs])
                self._copy(
                    (source, thread), step, template, self.tokens[source], of_template, tokens, cut, (ours, theirs)
                )
                whole &= len(ours) == cut.stop - cut.start == of_template.stop - of_template.start
            exact += whole
        self._lead_on(cuts)
        return exact

    def _lead_on(self, cuts: dict[int, list[tuple[tuple[int, int], slice]]]) -> None:
        """Let the calls of marked steps without lines and operators correspond to those of a step with them."""
        noted = {thread: [c for c in of_thread if c[0] in self.xrayed] for thread, of_thread in cuts.items()}
        for thread, tokens in self.tokens.items() if self.xrayed else ():
            for step, cut in cuts[thread]:
                if step in self.xrayed or (match := self._template(thread, step, cut, noted, set())) is None:
                    continue
                source, _, of_template, (ours, theirs) = match
                self.results.link(tokens.call[cut.start + ours], self.tokens[source].call[of_template.start + theirs])

    def _template(
        self,
        thread: int,
        step: tuple[int, int],
        cut: slice,
        cuts: dict[int, list[tuple[tuple[int, int], slice]]],
        used: set[int],
    ) -> tuple[int, tuple[int, int], slice, Pairs] | None:
        """Return the thread, step and tokens that ``cut`` repeats best, and the tokens that correspond, from the cut on."""
        tokens = self.tokens[thread]
        ours = tokens.key[cut]
        source = thread
        if not any(tokens.works(c) for _, c in cuts[thread]):  # only of this step: another thread did its work then
            idle = (t for t, other in self.tokens.items() if t not in used and not other.works(other.cut(*step)))
            worker = next((t for t in idle if any(self.tokens[t].works(c) for _, c in cuts[t])), None)
            if worker is None:
                return None
            source = worker
        theirs = self.tokens[source]
        marked = [(template, c) for template, c in reversed(cuts[source]) if theirs.works(c)]
        for template, c in marked:
            if c.stop - c.start == len(ours) and (theirs.key[c] == ours).all():
                same = np.arange(len(ours))
                return source, template, c, (same, same)
        best: tuple[tuple[int, int], slice, Pairs] | None = None
        seen: set[bytes] = set()
        for template, c in marked:
            word = theirs.key[c].tobytes()
            if word in seen:
                continue
            seen.add(word)
            pairs = self._pairs(tokens, cut, theirs, c)
            if best is None or len(pairs[0]) > len(best[2][0]):
                best = template, c, pairs
            if len(seen) >= COMPARED_SEQUENCES:
                break
        return None if best is None else (source, *best)

    def _pairs(self, these: _Tokens, cut: slice, theirs: _Tokens, c: slice) -> Pairs:
        """Return which tokens correspond: by all of the key, then, in between, by API and kernel alone, then by the kind of kernel.

        For other sizes a library takes another kernel of its own for the same operator: where as many calls lie between the same two as
        in the marked step, all of the same kinds, they are the same calls.
        """
        ask = (0, these.key[cut].tobytes(), theirs.key[c].tobytes())
        if ask not in self._known and np.array_equal(these.kind[cut], theirs.kind[c]):
            # Rounds that are all alike have no place of their own: only the whole tells which is which.
            self._known[ask] = (np.arange(cut.stop - cut.start),) * 2
        if ask not in self._known:
            ours, others = align(these.key[cut], theirs.key[c])
            parts_a, parts_b = [ours], [others]
            before_a, before_b = (np.concatenate(([-1], rows)) for rows in (ours, others))
            left_a = np.diff(before_a, append=cut.stop - cut.start) - 1
            left_b = np.diff(before_b, append=c.stop - c.start) - 1
            plain_a, plain_b = these.name[cut], theirs.name[c]
            single_a, single_b = (rows[(left_a == 1) & (left_b == 1)] + 1 for rows in (before_a, before_b))
            alike = plain_a[single_a] == plain_b[single_b]
            parts_a.append(single_a[alike])
            parts_b.append(single_b[alike])
            for gap in np.flatnonzero((left_a > 0) & (left_b > 0) & (left_a + left_b > 2)).tolist():
                a, b = int(before_a[gap]) + 1, int(before_b[gap]) + 1
                more_a, more_b = align(plain_a[a : a + left_a[gap]], plain_b[b : b + left_b[gap]])
                parts_a.append(more_a + a)
                parts_b.append(more_b + b)
            ours, others = np.sort(np.concatenate(parts_a)), np.sort(np.concatenate(parts_b))
            self._known[ask] = with_alike(ours, others, these.kind[cut], theirs.kind[c])
        return self._known[ask]

    def _settle(self, tokens: _Tokens, cut: slice, matched: I64, theirs: I64) -> None:
        """Say of each call of the cut whether it corresponds to one of the marked step, and to which: ``theirs``."""
        state = np.full(cut.stop - cut.start, UNMATCHED, np.int8)
        state[matched - cut.start] = REPEATED
        call = tokens.call[cut]
        self.results.states[call[call >= 0]] = state[call >= 0]
        self.results.link(tokens.call[matched], theirs)

    def _copy(
        self,
        threads: tuple[int, int],
        step: tuple[int, int],
        template: tuple[int, int],
        source: _Tokens,
        of_template: slice,
        tokens: _Tokens,
        cut: slice,
        pairs: Pairs,
    ) -> None:
        """Copy the ranges of the marked step that began on one thread to the other step's thread, with their times."""
        ours, theirs = pairs
        old, new = (
            np.concatenate(([edge[0]], np.stack((t.start[rows], t.end[rows]), axis=1).ravel(), [edge[1]]))
            for t, rows, edge in (
                (source, of_template.start + theirs, template),
                (tokens, cut.start + ours, step),
            )
        )
        old, new = np.maximum.accumulate(old), np.maximum.accumulate(new)
        for (_, _, copies), placed in zip(self.sources, self._placed, strict=True):
            row, start, end = placed[threads[0]]
            a, b = np.searchsorted(start, template).tolist()
            there = placed[threads[1]][1]
            if b == a or np.diff(np.searchsorted(there, step)).item():  # none, or it has its own
                continue
            began = np.interp(start[a:b], old, new).astype(np.int64)
            ended = np.interp(end[a:b], old, new).astype(np.int64)
            free = ~self.marks.at(
                began
            )  # a stretch with marks of its own (the capture of a CUDA graph) needs no others
            copies.row.append(row[a:b][free])
            copies.start.append(began[free])
            copies.end.append(ended[free])
            copies.thread.append(np.full(int(free.sum()), threads[1]))


def repeat(ranges: Ranges, correlated: Correlated) -> Ranges:
    """Return ``ranges`` with those of marked steps copied into the steps without marks, and ``repeats`` set.

    Without such steps the same object is returned.
    """
    marks = marked_when.switches(ranges.notes)
    if not marks:
        return ranges
    steps = ranges.ranges.filter((pl.col("kind") == "step") & pl.col("own"))["process", "start_ns", "end_ns"]
    stretches = steps, marked_when.calls_outside(ranges, steps)
    for process in list(marks):
        of_process = [rows.filter(pl.col("process") == process) for rows in stretches]
        whole = [marks[process].throughout(r["start_ns"].to_numpy(), r["end_ns"].to_numpy()) for r in of_process]
        if all(w.all() or not w.any() for w in whole):  # none without marks, or none to tell them from (`--marks off`)
            del marks[process]
    if not marks:
        return ranges
    calls = correlated.api_calls
    results = _Found(np.zeros(calls.height, np.int8), np.full(calls.height, -1))
    tokens = _tokens(correlated, ranges, list(marks))
    marked = others = exact = 0
    copied_ranges, copied_marks = [ranges.ranges], [ranges.marks]
    for process, process_marks in marks.items():
        threads = {thread: t for thread, t in tokens.items() if thread >> 24 == process}
        for rows in stretches:
            here = rows.filter(pl.col("process") == process).sort("start_ns")
            worker = _Repeater(process_marks, here, threads, ranges, results)
            repeated = worker.run()
            if rows is steps:
                exact += repeated
                marked, others = marked + len(worker.templates), others + len(worker.others)
            copied_ranges.append(worker.sources[0][2].frame(ranges.ranges))
            copied_marks.append(worker.sources[1][2].frame(ranges.marks))
    states, like = results.states, results.through()
    free = beside_sequence.settle(states, calls, marks, pl.concat(stretches))
    beside_sequence.lead(like, calls, [t.call[t.call >= 0] for t in tokens.values()])
    launched = free & (calls["gpu_ops"] > 0).to_numpy()
    order = ("end_ns", "label")
    down = [True, False]
    both = [
        lookup.ordered(pl.concat(parts), "start_ns", list(order), group="thread", descending=down)
        for parts in (copied_ranges, copied_marks)
    ]
    both[0] = both[0].drop("range").with_row_index("range")
    unmatched = int((launched & (states == UNMATCHED)).sum())
    repeats = Repeats(
        states, like, marked=marked, steps=others, exact=exact, launches=int(launched.sum()), unmatched=unmatched
    )
    return replace(ranges, ranges=both[0], marks=both[1], repeats=repeats)
