"""The line that runs in steps which are far longer than usual while nothing records, as the probe noted it (``LongSteps``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nsysx import ids
from nsysx.events.sampled_stacks import spoken
from nsysx.findings._case import Case
from nsysx.findings._finding_bounds import MOST_SHARE
from nsysx.model import Row
from nsysx.records import whole_number
from nsysx.replay import peers

#: A rank at such a line waits for the GPU, and so perhaps for what another rank does.
_WAITS = re.compile(
    r"\.(item|cpu|tolist|numpy|synchronize|backward|step|wait)\(|barrier|all_(reduce|gather)|broadcast|reduce_scatter"
)


class LongStepLine(NamedTuple):
    """A line of the user's own code, ``text``: its function runs in ``share`` of the time of long steps, mostly at this line."""

    file: str
    line: int
    function: str
    text: str
    share: float

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

    Of a job it is the rank that does not wait there: the others may be long because of it.
    """
    processes = [case.process, *(each for each in peers.ranks(case.profile) if each != case.process)]
    lines = [line for process in processes for line in _lines(case, process)]
    if len(processes) > 1:
        lines = [line for line in lines if line.text and not _WAITS.search(line.text)]
    return max(lines, key=lambda line: line.share, default=None)


def _lines(case: Case, process: int) -> Iterator[LongStepLine]:
    for record in ids.records_of(case.profile.trace.capture.probe, process):
        noted, source = record.get("long_steps"), record.get("source")
        if not isinstance(noted, Mapping) or not (samples := whole_number(noted.get("samples"))):
            continue
        places = noted.get("places")
        known = [p for p in places if isinstance(p, list) and len(p) == 4] if isinstance(places, list) else []
        of_function: dict[tuple[str, str], int] = {}
        for file, _, function, count in known:
            of_function[file, function] = of_function.get((file, function), 0) + count
        for (file, function), count in of_function.items():
            if count >= MOST_SHARE * samples:
                line = max((p for p in known if (p[0], p[2]) == (file, function)), key=lambda p: p[3])[1]
                texts = source.get(file) if isinstance(source, Mapping) else None
                text = texts.get(str(line), "") if isinstance(texts, Mapping) else ""
                yield LongStepLine(file, line, function, str(text), count / samples)
