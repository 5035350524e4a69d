"""The line that runs in steps which are far longer than usual while nothing records, as the probe noted it (``LongSteps``)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from nsysx import ids, units
from nsysx.analyses.lines import text_of, texts
from nsysx.events.profile import Profile
from nsysx.events.sampled_stacks import spoken
from nsysx.findings._case import Case, Saving
from nsysx.findings._finding_bounds import FEWEST_LONG_STEPS, LONG_STEP_TIMES, MOST_SHARE, OWN_REMEDY_SHARE
from nsysx.findings._fix import Fix, way
from nsysx.findings._line_remedies import Seen, fix_of
from nsysx.model import Row
from nsysx.records import whole_number
from nsysx.replay import peers

#: Remedies of lines that work on the CPU or wait for a disk. At others the program may only wait for the GPU, or for another rank.
_OF_THE_HOST = frozenset({
    "arrays-for-objects", "arrays-once", "converted-on-gpu", "copied-in-place", "decoded-in-workers", "drawn-by-weight", "drawn-rarely",
    "foreach-parameters", "groups-once", "histograms-rarely", "logged-rarely", "made-once", "metrics-rarely", "networks-kept", "no-collect",
    "no-process-in-a-step", "no-sleep", "numpy-on-gpu", "own-state-saved", "pairs-at-once", "parsed-once", "ranked-on-gpu", "sample-on-gpu",
    "saved-aside", "statistics-averaged", "symmetric-eigenvalues", "table-once", "tensors-gathered", "tokens-once", "wrapped-once",
})  # fmt: skip
#: Remedies of lines that are known to read values back.
_OF_READS = frozenset({"checked-rarely", "fixed-shape", "keep-on-gpu"})
#: What the area under a curve of all scores (ROC, precision and recall) is computed with.
_CURVE = {
    "sorts": re.compile(r"\b(np|numpy)\.(arg)?sort\(|\.argsort\("),
    "sums": re.compile(r"\b(np|numpy)\.cumsum\(|\.cumsum\("),
}
#: A group of ranks that is made, and a collective in a group.
_MAKES_GROUP, _IN_GROUP = re.compile(r"\bnew_(sub)?groups?\w*\("), re.compile(r"\bgroup\s*=\s*\w")
#: A file of weights is read, and a network is given them, in lines of one function.
_READS_WEIGHTS = (re.compile(r"\b(torch\.load|load_file)\("), re.compile(r"\bload_state_dict\("))
#: What is made once is kept, whatever runs how often.
_KEPT = ("made-once", "networks-kept", "wrapped-once")
#: The function of lines that stand in none.
_PROGRAM = "<module>"
#: What people call an evaluation.
_EVALUATION = re.compile(r"(?i)\b_?(run_|do_)?(eval|valid|test|infer|score)")


def called(function: str, line: int) -> str:
    """Return what a function is called in a sentence, by a line of it where it is the program itself."""
    return f"line {line}" if function == _PROGRAM else function


class LongStepLine(NamedTuple):
    """A line of the user's own code, ``text``: its function runs in ``share`` of the time of long steps, mostly at this line.

    ``usual``: the line runs in usual steps, too. ``enters``: what it calls takes that time, in many functions. ``beside``: the text of
    other lines of the function that take some of it. ``steps``: in how many long steps one looked. ``lines``: where in the function it was
    seen. ``entries``: the texts of the lines by which usual lines come to it.
    """

    file: str
    line: int
    function: str
    text: str
    share: float
    usual: bool
    enters: bool = False
    samples: int = 0
    beside: str = ""
    steps: int = 0
    lines: tuple[int, ...] = ()
    entries: str = ""

    @property
    def share_error(self) -> float:
        """Two standard errors of the share, of so many samples."""
        return 2 * math.sqrt(self.share * (1 - self.share) / self.samples) if self.samples else 0.0

    @property
    def where(self) -> Row:
        """Its place."""
        return {"file": self.file, "line": self.line}

    @property
    def evaluates(self) -> bool:
        """Whether an evaluation runs there, by its name."""
        return _EVALUATION.search(self.text if self.enters else self.function) is not None

    @property
    def entered_by_evaluation(self) -> bool:
        """Whether it runs below one, by the name of what is called."""
        return _EVALUATION.search(self.entries) is not None

    @property
    def called(self) -> str:
        """What runs there: its function, or the line of what the program runs in none, as a loop at its own level."""
        return called(self.function, self.line)

    @property
    def _what(self) -> str:
        return f"what {PurePath(self.file).name}:{self.line} calls" if self.enters else self.called

    def fix(self, otherwise: str, *, reads: bool = False) -> Fix:
        """Return what can be done about what the line does, or else less often; ``otherwise`` is the remedy where its text says nothing.

        ``reads``: values are read back there again and again.
        """
        by_text = fix_of(Seen(self.text, waits=float(reads)), _OF_THE_HOST | _OF_READS if reads else _OF_THE_HOST)
        if _IN_GROUP.search(self.text) and _MAKES_GROUP.search(
            self.beside
        ):  # it connects the ranks at its first collective
            by_text = Fix.by_name("groups-once")
        if all(each.search(f"{self.text}\n{self.beside}") for each in _READS_WEIGHTS):
            by_text = Fix.by_name("networks-kept")
        if all(_CURVE[step].search(f"{self.text}\n{self.beside}") for step in _CURVE):
            by_text = Fix.by_name("curve-on-gpu")
        rarely = way("evaluated-rarely" if self.evaluates else otherwise)
        text = rarely.text.replace("this", self._what, 1)
        if by_text is None:
            return Fix.by_name(way(rarely.name, text, rarely.paste, rarely.condition))
        if by_text.ways[0].name in _KEPT:
            return by_text
        often = (
            f"Or {'evaluate' if self.evaluates else f'run {self._what}'} less often, or in another thread or process"
        )
        return Fix.by_name(by_text.ways[0].name, rarely.name, text=f"{by_text.text}. {often}", paste=by_text.paste)

    def saving(self, cost_ns: int, steps: int) -> Saving:
        """Return what is saved of ``cost_ns`` of each step without this line's function in long steps, of which ``steps`` were seen."""
        error = max(self.share_error * cost_ns, cost_ns / max(steps, 1))  # one of them more or less
        why = f"from step lengths: {self.called} runs in {units.share(self.share, 1)} of the time of long steps"
        return Saving(round(self.share * cost_ns), why, error_ns=round(error), most_ns=cost_ns, source="steps")

    @property
    def in_words(self) -> str:
        """Its place in words."""
        return spoken(self.file, self.line, self.function)


def line_of_long_steps(case: Case, late: int | None = None) -> LongStepLine | None:
    """Return where a process spends its long steps, None where that is not known.

    Of a job it is the rank that runs something else there: the others, at lines of usual steps, may wait for it. ``late``: the process
    that is known to be late then.
    """
    if late is not None:
        return max(_lines(case, late), key=lambda line: (not line.usual, not line.enters, line.share), default=None)
    processes = peers.first_of_ranks(case.profile, case.process)
    lines = [line for process in processes for line in _lines(case, process)]
    if len(processes) > 1:
        lines = [line for line in lines if not line.usual]
        lines = [line for line in lines if not _met(case, line, processes)] or lines
    return max(lines, key=lambda line: (not line.enters, line.share), default=None)


def line_of_one_alone(case: Case) -> LongStepLine | None:
    """Return likewise a line that usual steps do not run and that one rank alone is at, or that works on the host by what it says; None
    where all may only wait there.

    One long step may be the end of the program.
    """
    line, processes = line_of_long_steps(case), peers.first_of_ranks(case.profile, case.process)
    if line is not None and line.steps < FEWEST_LONG_STEPS:
        return None
    if line is None or line.usual:
        return None
    return None if _met(case, line, processes) and fix_of(Seen(line.text), _OF_THE_HOST) is None else line


def _met(case: Case, line: LongStepLine, processes: Collection[int]) -> bool:
    """Return whether several ranks are at a line in long steps, as at one whose call waits for the rank that is at another line then."""
    at_it = (any(row[:2] == (line.file, line.line) for row in _samples(case, process)) for process in processes)
    return sum(at_it) > 1


def line_of_rare_calls(case: Case, calls: Collection[int]) -> Row:
    """Return the line of long steps where calls are made in these alone; empty where they are not, or no line is known."""
    steps = case.profile.steps.cpu.filter(pl.col("steady") & (pl.col("process") == case.process)).sort("start_ns")
    begin, end = (steps[c].to_numpy() for c in ("start_ns", "end_ns"))
    if len(begin) < 2:
        return {}
    made = case.profile.attributed.api_calls["start_ns"].to_numpy()[list(calls)]
    row = np.searchsorted(begin, made, side="right") - 1
    inside = (row >= 0) & (made < end[row])
    long = (end - begin) > LONG_STEP_TIMES * np.median(end - begin)
    if not inside.any() or (long[row] & inside).sum() < MOST_SHARE * inside.sum():
        return {}
    line = line_of_long_steps(case)
    return {} if line is None or line.usual else line.where


def line_of_one_rank(case: Case, process: int) -> Row:
    """Return the line at which one rank works in long steps while the others wait for it: of the function in which these wait most, where
    that rank is at another line than they are. Else the line of a function that is called an evaluation and that it alone runs; empty
    where neither was seen.
    """
    counts: dict[bool, dict[tuple[str, str], Counter[int]]] = {True: {}, False: {}}
    for each in peers.first_of_ranks(case.profile, process):
        for file, line, function, count in _samples(case, each):
            counts[each == process].setdefault((file, function), Counter())[line] += count
    works, waits = counts[True], counts[False]
    for (file, function), waiting in sorted(waits.items(), key=lambda item: -item[1].total()):
        alone = {line: n for line, n in works.get((file, function), {}).items() if line not in waiting}
        if alone:
            return {"file": file, "line": max(alone, key=lambda line: alone[line])}
    evaluates = {key: lines for key, lines in works.items() if key not in waits and _EVALUATION.search(key[1])}
    for (file, _), here in sorted(evaluates.items(), key=lambda item: -item[1].total())[:1]:
        return {"file": file, "line": max(here, key=lambda line: here[line])}
    return {}


def _samples(case: Case, process: int) -> Iterator[tuple[str, int, str, int]]:
    """Yield file, line, function and samples of what a process ran in long steps, and by what it entered that."""
    for record in ids.records_of(case.profile.trace.capture.probe, process):
        noted = record.get("long_steps")
        if isinstance(noted, Mapping):
            noted = _without_end(case.profile, noted)
            yield from (tuple(row[:4]) for row in (*_rows(noted, "places"), *_rows(noted, "entries")))


def _without_end(profile: Profile, noted: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a probe noted without the samples behind the loop: the last step ends with the program, which may take its time.

    A function that all steps run below one line of has left the loop where it is at another line.
    """
    around = profile.once(lines_around_steps)
    rows = [*_rows(noted, "places")]
    left = [row for row in rows if around.get((row[0], row[2]), row[1]) == row[1]]
    behind = sum(row[3] for row in rows) - sum(row[3] for row in left)
    samples = whole_number(noted.get("samples")) or 0
    return {**noted, "places": left, "samples": max(samples - behind, 0)} if behind else noted


def lines_around_steps(profile: Profile) -> dict[tuple[str, str], int]:
    """Return (file, function) -> the one line of it below which all steps run that an X-ray looked at, as ``main()`` of a program."""
    code, steps = profile.code(), profile.steps.cpu.filter(profile.steps.cpu["process"] == profile.process)
    if code is None or not steps.height:
        return {}
    stacks = np.unique(code.at(int(steps["thread"][0]), steps["start_ns"].sort().to_numpy()))
    functions = list(code.places["file", "function"].cast(pl.String).iter_rows())
    lines, often = code.places["line"].to_list(), Counter(functions)
    open_there = {row for stack in stacks.tolist() for row in code.chain(stack)[:-1]}
    return {functions[row]: lines[row] for row in open_there if often[functions[row]] == 1}


#: What the probe notes of long steps -> the columns of a row.
_COLUMNS = {"places": 5, "entries": 4}


def _rows(noted: Mapping[str, Any], name: str) -> list[list[Any]]:
    """Return the rows of one kind that a probe noted, as far as they are whole."""
    rows = noted.get(name)
    return [r for r in rows if isinstance(r, list) and len(r) == _COLUMNS[name]] if isinstance(rows, list) else []


def _lines(case: Case, process: int) -> Iterator[LongStepLine]:
    for record in ids.records_of(case.profile.trace.capture.probe, process):
        noted = record.get("long_steps")
        if not isinstance(noted, Mapping):
            continue
        noted = _without_end(case.profile, noted)
        if not (samples := whole_number(noted.get("samples"))):
            continue
        rows, steps = _rows(noted, "places"), whole_number(noted.get("steps")) or 0
        entering = (text_of(texts(case.profile), row[0], row[1]) or "" for row in _rows(noted, "entries"))
        entries = "\n".join(entering)
        of_function: dict[tuple[str, str], int] = {}
        for file, _, function, count, _ in rows:
            of_function[file, function] = of_function.get((file, function), 0) + count
        within, entered = False, any(row[3] >= MOST_SHARE * samples for row in _rows(noted, "entries"))
        for (file, function), count in of_function.items():
            most = max((p for p in rows if (p[0], p[2]) == (file, function)), key=lambda p: p[3])
            text = text_of(texts(case.profile), file, most[1]) or ""
            works_on_host = (
                entered and count >= OWN_REMEDY_SHARE * samples and fix_of(Seen(text), _OF_THE_HOST) is not None
            )
            if count >= MOST_SHARE * samples or works_on_host:
                within = True
                lines = tuple(p[1] for p in rows if (p[0], p[2]) == (file, function))
                others = [text_of(texts(case.profile), file, number) or "" for number in lines]
                share, beside = count / samples, "\n".join(others)
                yield LongStepLine(
                    file,
                    most[1],
                    function,
                    text,
                    share,
                    usual=bool(most[4]),
                    samples=samples,
                    beside=beside,
                    steps=steps,
                    lines=lines,
                    entries=entries,
                )
        for file, number, function, count in _rows(noted, "entries"):
            if not within and count >= MOST_SHARE * samples:
                # It runs many functions, as a network in evaluation: the line that calls them is where they can be left out.
                text = text_of(texts(case.profile), file, number) or ""
                yield LongStepLine(file, number, function, text, count / samples, usual=False, enters=True, steps=steps)
