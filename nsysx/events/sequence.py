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
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.events import marked_when
from nsysx.events.alignment import Pairs, align
from nsysx.events.correlate import Correlated
from nsysx.events.event_bounds import COMPARED_SEQUENCES, MARKED, REPEATED, UNMATCHED
from nsysx.events.launch_tokens import LaunchTokens, tokens_by_process
from nsysx.events.nvtx_ranges import Flags, Ranges, Repeats
from nsysx.frames import lookup
from nsysx.frames.intervals import I64


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


class _Repeater:
    """Works through the steps of one process."""

    def __init__(
        self,
        marks: marked_when.Marks,
        steps: pl.DataFrame,
        tokens: dict[int, LaunchTokens],
        ranges: Ranges,
        results: _Found,
    ) -> None:
        self.marks, self.tokens, self.results = marks, tokens, results
        start, end = (steps[c].to_numpy() for c in ("start_ns", "end_ns"))
        whole = marks.throughout(start, end)
        self.templates = [(int(start[i]), int(end[i])) for i in np.flatnonzero(whole)]
        self.others = [(int(start[i]), int(end[i])) for i in np.flatnonzero(~whole)]
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
        return exact

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

    def _pairs(self, these: LaunchTokens, cut: slice, theirs: LaunchTokens, c: slice) -> Pairs:
        """Return which tokens correspond: by all of the key, then, in between, by API and kernel alone."""
        ask = (0, these.key[cut].tobytes(), theirs.key[c].tobytes())
        if ask not in self._known:
            ours, others = align(these.key[cut], theirs.key[c])
            parts_a, parts_b = [ours], [others]
            edges_a = [-1, *ours.tolist(), cut.stop - cut.start]
            edges_b = [-1, *others.tolist(), c.stop - c.start]
            plain_a, plain_b = these.name[cut], theirs.name[c]
            for (a0, a1), (b0, b1) in zip(itertools.pairwise(edges_a), itertools.pairwise(edges_b), strict=True):
                if a1 - a0 > 1 and b1 - b0 > 1:
                    more_a, more_b = align(plain_a[a0 + 1 : a1], plain_b[b0 + 1 : b1])
                    parts_a.append(more_a + a0 + 1)
                    parts_b.append(more_b + b0 + 1)
            self._known[ask] = np.sort(np.concatenate(parts_a)), np.sort(np.concatenate(parts_b))
        return self._known[ask]

    def _settle(self, tokens: LaunchTokens, cut: slice, matched: I64, theirs: I64) -> None:
        """Say of each call of the cut whether it corresponds to one of the marked step, and to which: ``theirs``."""
        state = np.full(cut.stop - cut.start, UNMATCHED, np.int8)
        state[matched - cut.start] = REPEATED
        call = tokens.call[cut]
        self.results.states[call[call >= 0]] = state[call >= 0]
        ours = tokens.call[matched]
        self.results.of[ours[ours >= 0]] = theirs[ours >= 0]

    def _copy(
        self,
        threads: tuple[int, int],
        step: tuple[int, int],
        template: tuple[int, int],
        source: LaunchTokens,
        of_template: slice,
        tokens: LaunchTokens,
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


def _between(
    states: npt.NDArray[np.int8], calls: pl.DataFrame, marks: dict[int, marked_when.Marks], steps: pl.DataFrame
) -> Flags:
    """Fill in the calls that are not tokens: as the tokens around them are. Return which calls lie in steps without marks."""
    process, thread, start = (calls[c].to_numpy() for c in ("process", "thread", "start_ns"))
    free = np.zeros(calls.height, np.bool_)
    for key, process_marks in marks.items():
        of_process = np.flatnonzero(process == key)
        steps_here = steps.filter(pl.col("process") == key).sort("start_ns")
        begin, end = steps_here["start_ns"].to_numpy(), steps_here["end_ns"].to_numpy()
        last = np.searchsorted(begin, start[of_process], side="right") - 1
        inside = (last >= 0) & (start[of_process] < end[np.maximum(last, 0)]) & ~process_marks.at(start[of_process])
        free[of_process[inside]] = True
    unmarked = states != MARKED
    states[unmarked & ~free] = MARKED  # a stretch of marks inside of a step
    unmarked &= free
    rows = np.arange(len(states))
    before = np.maximum.accumulate(np.where(unmarked, rows, -1)) if len(rows) else rows
    after = np.minimum.accumulate(np.where(unmarked, rows, len(rows))[::-1])[::-1] if len(rows) else rows
    for side, there in ((before, before >= 0), (after, after < len(rows))):
        other = np.where(there, side, 0)
        near = free & ~unmarked & there & (thread[other] == thread)
        states[near] = np.maximum(states[near], states[other[near]])
    states[free & (states == MARKED)] = UNMATCHED  # a thread that no marked step knows
    return free


def _beside(like: I64, calls: pl.DataFrame, tokens: Iterable[LaunchTokens]) -> None:
    """Fill in what the calls that are not tokens correspond to: the same function, as far behind the corresponding token."""
    kept = np.zeros(len(like), np.bool_)
    for of_thread in tokens:
        kept[of_thread.call[of_thread.call >= 0]] = True
    thread, name = calls["thread"].to_numpy(), lookup.distinct(calls["name"])[1]
    rows = np.arange(len(like))
    last = np.maximum.accumulate(np.where(kept, rows, -1))
    chosen = np.flatnonzero(~kept & (last >= 0) & (like[last] >= 0))
    token = last[chosen]
    theirs = like[token] + chosen - token
    chosen, token, theirs = (x[theirs < len(like)] for x in (chosen, token, theirs))
    same = (name[chosen] == name[theirs]) & (last[theirs] == like[token])
    same &= (thread[chosen] == thread[token]) & (thread[theirs] == thread[like[token]])
    like[chosen[same]] = theirs[same]


def repeat(ranges: Ranges, correlated: Correlated) -> Ranges:
    """Return ``ranges`` with those of marked steps copied into the steps without marks, and ``repeats`` set.

    Without such steps the same object is returned.
    """
    marks = marked_when.switches(ranges.notes)
    steps = ranges.ranges.filter((pl.col("kind") == "step") & pl.col("own")).select("process", "start_ns", "end_ns")
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
    tokens = tokens_by_process(correlated, ranges, list(marks))
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
    states = results.states
    free = _between(states, calls, marks, pl.concat(stretches))
    _beside(results.of, calls, tokens.values())
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
        states, results.of, marked=marked, steps=others, exact=exact, launches=int(launched.sum()), unmatched=unmatched
    )
    return replace(ranges, ranges=both[0], marks=both[1], repeats=repeats)
