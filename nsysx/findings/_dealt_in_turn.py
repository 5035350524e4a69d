"""Batches of which each rank takes every n-th, in an order in which neighbours are of unlike work: the same line, with each of a group of
like work to one rank.

The order that all ranks share stays what shuffles: a group stands where the first of its batches stood, so that no seed is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from nsysx.analyses.lines import text_of, texts, texts_of_ranks
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Fix
from nsysx.model import Row

_REMEDY = "like-batches"
_DEALS = re.compile(
    r"(?P<batches>[A-Za-z_][\w.]*)\[\s*(?P<rank>(?:\w+\.)*\w*rank\b(?:\(\))?)\s*::\s*(?P<world>[A-Za-z_][\w.]*(?:\(\))?)\s*\]"
    r"(?P<listed>\.tolist\(\))?"
)
#: What a sampler keeps of its samples by which their work is told.
_LENGTHS = re.compile(r"\bself\.(\w*(?:len|length|size|duration)s)\b")
_TEXT = (
    "Deal batches of like work to all ranks at the same time: in groups of as many as there are ranks, by what they cost, and of each "
    "group one to each rank; now neighbours in one shuffled order, of unlike work, come in the same step"
)
_WORK_DIFFERS = "It must be the work of the batches that differs: lengths, sizes, or what of each sample is computed."


class Dealt(NamedTuple):
    """Where each rank takes every n-th batch, what stands there, and the attribute with the lengths of samples, "" where none is seen."""

    where: Row
    line: str
    lengths: str


def line_of_sampler(profile: Profile) -> Dealt | None:
    """Return where the sampler of the loader that is iterated most deals batches out; None where it is not one line that does."""
    settings = settings_of(profile)
    sampler = {} if settings is None else settings.place("shares")
    if not sampler:
        return None
    below = {line: text for line, text in _lines(profile, sampler["file"]) if line >= sampler["line"]}
    dealing = [line for line, text in below.items() if _DEALS.search(text)]
    if len(dealing) != 1:
        return None
    kept = {name for line, text in below.items() if line <= dealing[0] for name in _LENGTHS.findall(text)}
    lengths = kept.pop() if len(kept) == 1 and _by_batches(profile) else ""
    return Dealt({"file": sampler["file"], "line": dealing[0]}, below[dealing[0]], lengths)


def in_groups(line: str, lengths: str = "") -> Fix:
    """Return what deals the batches of a line out in groups of like work, in its own names; in general where it deals none.

    ``lengths``: the attribute by which the work of a batch of samples is told.
    """
    deals = _DEALS.search(line)
    if deals is None or line[deals.end() :].startswith((".", "[")):
        return Fix.by_name(_REMEDY)
    batches, rank, world = deals["batches"], deals["rank"], deals["world"]
    share = f"[{batches}[group[{rank}]]{deals['listed'] or ''} for group in groups]"
    paste = (
        f"{f'cost = lambda batch: max(self.{lengths}[i] for i in batch){chr(10)}' if lengths else ''}"
        f"by_cost = sorted(range(len({batches})), key=lambda i: cost({batches}[i]))\n"
        f"groups = sorted(zip(*[iter(by_cost)] * {world}))  # in the order of {batches}\n"
        f"{line[: deals.start()]}{share}{line[deals.end() :]}"
    )
    cost = "" if lengths else f" cost({batches}[i]): the work of one, as its longest sample."
    return Fix.by_name(
        _REMEDY,
        text=_TEXT,
        paste=paste,
        condition=f"{batches} must be shuffled, and alike on all ranks.{cost} {_WORK_DIFFERS}",
    )


def _by_batches(profile: Profile) -> bool:
    """Return whether the sampler of the loader gives whole batches: then the loader has no size of them."""
    settings = settings_of(profile)
    loaders = (None if settings is None else settings.rows("loaders")) or ()
    row = max(loaders, key=lambda row: row.get("iterators") or 0, default=None)
    return row is not None and "batch_size" in row and row["batch_size"] is None


def _lines(profile: Profile, file: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that were noted, in order, without remarks behind them."""
    noted = {**texts_of_ranks(profile).get(file, {}), **texts(profile).get(file, {})}
    for line in sorted(int(line) for line in noted if str(line).isdigit()):
        yield line, (text_of({file: noted}, file, line) or "").partition("  #")[0]
