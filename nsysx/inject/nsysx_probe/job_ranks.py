"""The ranks of a job, as they tell each other in the store of torch.distributed: which of them the same nsys records.

Whatever has started them (torchrun, accelerate, deepspeed, mpirun, srun, Ray, mp.spawn), ranks with a process group have that store in
common. Each puts down there which ``nsysx run`` records it when its first step has ended, and looks at the end of the steps after it
whether all others have. Nothing here waits for one that does not. Standard library only.
"""

from __future__ import annotations

import os
import sys
import time

from .probe_bounds import RANKS_ASK_S, RANKS_LOOK_S

if False:  # importing typing takes milliseconds
    from collections.abc import Sequence
    from typing import Any

#: What the keys in the store begin with.
_PREFIX = "nsysx"


class JobRanks:
    """``rank``; ``here``: those that the same nsys records, in order; ``runs``: each nsysx run of the job, by its lowest rank.

    ``start`` differs where ranks are started anew. ``kinds``: what completes a step of each rank that is here.
    """

    def __init__(
        self,
        rank: int,
        here: Sequence[int],
        start: str,
        runs: Sequence[int] = (),
        store: Any = None,
        kinds: Sequence[str] = (),
    ) -> None:
        self.rank, self.here, self.start, self.kinds = rank, list(here), start, list(kinds)
        self.alike = len(set(kinds)) <= 1
        self.leads = rank == self.here[0]
        self.chooses = self.leads and (not runs or rank == runs[0])
        self.several_runs = len(runs) > 1
        self.link = RunLink(store, start, rank, list(runs)) if self.leads and self.several_runs else None


class RollCall:
    """The roll of all ranks. Raises what the store raises, if there is none, or if it cannot be asked without waiting."""

    def __init__(self, address: str, kind: str = "") -> None:
        distributed: Any = sys.modules["torch.distributed"]
        self._store = distributed.distributed_c10d._get_default_store()
        self._rank, self._size = distributed.get_rank(), distributed.get_world_size()
        self._address = address
        self._store.check([self._key(self._rank)])
        self._store.set(self._key(self._rank), f"{address} {os.getpid()} {kind or '-'}")

    def look(self, *, last: bool) -> JobRanks | None:
        """Return the ranks if all have come; ``last``: those of this node will do, if the launcher says which these are."""
        if self._have_come(range(self._size)):
            words_of = {rank: self._store.get(self._key(rank)).decode().split() for rank in range(self._size)}
            here = [rank for rank, words in words_of.items() if words[0] == self._address]
            lowest: dict[str, int] = {}
            for rank, (address, *_) in words_of.items():
                lowest.setdefault(address, rank)
            kinds = [words_of[rank][2] for rank in here]
            return JobRanks(self._rank, here, words_of[0][1], list(lowest.values()), self._store, kinds)
        of_node = _of_node(self._rank) if last else range(0)
        if of_node and self._have_come(of_node):
            words = [self._store.get(self._key(rank)).decode().split() for rank in of_node]
            return JobRanks(self._rank, of_node, words[0][1], kinds=[kind for *_, kind in words])
        return None

    def _have_come(self, ranks: Sequence[int]) -> bool:
        return bool(self._store.check([self._key(rank) for rank in ranks]))

    def _key(self, rank: int) -> str:
        return f"{_PREFIX}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/rank-{rank}"


def _of_node(rank: int) -> range:
    """Return the ranks of this node as the launcher numbers them, none if it does not say."""
    number, size = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    first = rank - int(number) if number.isdecimal() and size.isdecimal() else -1
    return range(first, first + int(size)) if first >= 0 else range(0)


class RunLink:
    """What several runs of nsysx that record one job tell each other, each by its lowest rank: on other nodes, or one for each rank."""

    def __init__(self, store: Any, start: str, rank: int, runs: Sequence[int]) -> None:
        self._store, self._start, self._rank, self._runs = store, start, rank, runs
        self._asked = 0.0

    def gather(self, number: int, until: float) -> bool:
        """Say that this run has come to meeting ``number``, and wait for the others; return whether all came. Nothing is raised."""
        try:
            self._store.set(self._key(f"done-{number}-{self._rank}"), "1")
            keys = [self._key(f"done-{number}-{rank}") for rank in self._runs]
            while not self._store.check(keys):
                if time.monotonic() > until:
                    return False
                time.sleep(RANKS_LOOK_S)
        except RuntimeError:  # the rank that keeps the store has ended
            return False
        return True

    def announce(self, number: int, step: int) -> None:
        """Say with which step all hold meeting ``number``."""
        try:
            self._store.set(self._key(f"step-{number}"), str(step))
        except RuntimeError:
            pass

    def announced(self, number: int) -> int | None:
        """Return that step if another run has said it; asked as seldom as a bare step can bear."""
        now = time.monotonic()
        if now - self._asked < RANKS_ASK_S:
            return None
        self._asked = now
        try:
            key = self._key(f"step-{number}")
            return int(self._store.get(key)) if self._store.check([key]) else None
        except RuntimeError:
            return None

    def _key(self, name: str) -> str:
        return f"{_PREFIX}/{self._start}/{name}"
