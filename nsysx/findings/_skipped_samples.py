"""What a worker makes of samples that it then leaves to another worker or rank: a stream that each of them works through as a whole.

``if index % shards != shard: continue`` behind what makes a sample lets every worker of every rank make all of them: more workers make no
batch come sooner. In front of it, each makes its own.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nsysx.findings._finding_bounds import MOST_SHARE
from nsysx.findings._work_bounds import ALIKE_RUNS_SHARE, SKIPPED_TIMES
from nsysx.findings._worker_lines import WorkerBatch, WorkerLine

#: A condition on the number of a sample, by who takes it.
_DEALS = re.compile(r"%.*(?i:world|rank|replica|worker|shard|wid\b|gpu|proc|node)")


class SkippedSamples(NamedTuple):
    """The line that takes longest of what is made for ``made`` samples of which ``samples`` are handed out; the line that deals them."""

    line: WorkerLine
    dealing: WorkerLine
    made: int
    samples: int


def skipped_samples(followed: WorkerBatch) -> SkippedSamples | None:
    """Return what is made for samples that a line then leaves to others, None where that is not most of a worker's time."""
    longest = followed.lines[0] if followed.lines else None
    if longest is None or longest.runs < SKIPPED_TIMES * followed.samples:
        return None
    often = ALIKE_RUNS_SHARE * longest.runs
    alike = [each for each in followed.lines if often <= each.runs <= longest.runs / ALIKE_RUNS_SHARE]
    dealing = next((each for each in alike if _DEALS.search(each.text)), None)
    if dealing is None or dealing == longest or sum(each.ns for each in alike) < MOST_SHARE * followed.wall_ns:
        return None
    return SkippedSamples(longest, dealing, longest.runs, followed.samples)
