"""Lines that deal a stream out to the workers of a loader, and know nothing of ranks: each rank's workers then go through all of it."""

from __future__ import annotations

import re
from typing import NamedTuple

from nsysx.analyses.lines import texts_of_ranks
from nsysx.events.profile import Profile
from nsysx.model import Row

#: info.num_workers and info.id, or what a program calls these numbers.
_NUMBER = re.compile(r"\b(?:\w+\.)?(?:num_workers|n_workers|nworkers)\b")
_WORKER = re.compile(r"\b(?:\w*info\w*\.id|\w*worker_id|wid|worker)\b")
_DEALS = re.compile(r"%|\bislice\(|::")
_RANK = re.compile(r"(?i)rank|world")
_OF_JOB = 'rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])  # of torchrun: workers inherit both'


class WorkerSplit(NamedTuple):
    """The line, and its text."""

    where: Row
    text: str

    def among_ranks(self) -> str:
        """Return the line that deals out to the workers of all ranks."""
        number = _NUMBER.search(self.text)
        several = number[0] if number is not None else "num_workers"
        worker = _WORKER.sub(
            lambda match: f"(rank * {several} + {match[0]})", _NUMBER.sub("(world * \\g<0>)", self.text)
        )
        return f"{_OF_JOB}\n{worker}"


def worker_split(profile: Profile) -> WorkerSplit | None:
    """Return the only line that deals out to the workers of one rank; None for none, or for several."""
    every = {
        (file, int(line)): str(text).partition("  #")[0].strip()
        for file, of_file in texts_of_ranks(profile).items()
        for line, text in of_file.items()
    }
    deals = {where: text for where, text in every.items() if _deals(text)}
    if len(deals) != 1:
        return None
    ((file, line), text), *_ = deals.items()
    return WorkerSplit({"file": file, "line": line}, text)


def _deals(text: str) -> bool:
    return bool(_NUMBER.search(text) and _WORKER.search(text) and _DEALS.search(text)) and not _RANK.search(text)
