"""The line that runs in steps which are far longer than usual while nothing records, as the probe noted it (``LongSteps``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nsysx import ids
from nsysx.analyses.lines import text_of, texts
from nsysx.events.sampled_stacks import spoken
from nsysx.findings._case import Case
from nsysx.findings._finding_bounds import MOST_SHARE
from nsysx.model import Row
from nsysx.records import whole_number
from nsysx.replay import peers


class LongStepLine(NamedTuple):
    """A line of the user's own code, ``text``: its function runs in ``share`` of the time of long steps, mostly at this line.

    ``usual``: the line runs in usual steps, too.
    """

    file: str
    line: int
    function: str
    text: str
    share: float
    usual: bool

    @property
    def where(self) -> Row:
        """Its place."""
        return {"file": self.file, "line": self.line}

    @property
    def in_words(self) -> str:
        """Its place in words."""
        return spoken(self.file, self.line, self.function)


def line_of_long_steps(case: Case) -> LongStepLine | None:
    """Return where a process spends its long steps, None where that is not known.

    Of a job it is the rank that runs something else there: the others, at lines of usual steps, may wait for it.
    """
    processes = [case.process, *(each for each in peers.ranks(case.profile) if each != case.process)]
    lines = [line for process in processes for line in _lines(case, process)]
    if len(processes) > 1:
        lines = [line for line in lines if not line.usual]
    return max(lines, key=lambda line: line.share, default=None)


def _lines(case: Case, process: int) -> Iterator[LongStepLine]:
    for record in ids.records_of(case.profile.trace.capture.probe, process):
        noted = record.get("long_steps")
        if not isinstance(noted, Mapping) or not (samples := whole_number(noted.get("samples"))):
            continue
        places = noted.get("places")
        rows = [p for p in places if isinstance(p, list) and len(p) == 5] if isinstance(places, list) else []
        of_function: dict[tuple[str, str], int] = {}
        for file, _, function, count, _ in rows:
            of_function[file, function] = of_function.get((file, function), 0) + count
        for (file, function), count in of_function.items():
            if count >= MOST_SHARE * samples:
                most = max((p for p in rows if (p[0], p[2]) == (file, function)), key=lambda p: p[3])
                text = text_of(texts(case.profile), file, most[1]) or ""
                yield LongStepLine(file, most[1], function, text, count / samples, usual=bool(most[4]))
