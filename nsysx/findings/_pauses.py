"""Pauses of Python that the probe noted, for the rules that look for long steps and gaps."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from nsysx.events import python_pauses
from nsysx.findings._case import Case, Fix


class Kind(NamedTuple):
    """A kind of pause: its key in ``Ranges.pauses``, its name in a title, several of them, and what to change."""

    key: str
    name: str
    several: str
    fix: Fix


KINDS = (
    Kind(
        "gc",
        python_pauses.NAMES["gc"],
        "garbage collections",
        Fix.by_name("gc-freeze"),
    ),
    Kind(
        "compile",
        python_pauses.NAMES["compile"],
        "recompilations by torch.compile",
        Fix.by_name("alike-inputs"),
    ),
)


def pauses_of_kind(case: Case, kind: Kind) -> pl.DataFrame:
    """Return the pauses of one kind of the shown process: columns of ``Ranges.pauses``."""
    rows = case.profile.ranges.pauses
    return rows.filter((rows["kind"] == kind.key) & (rows["process"] == case.process))


def pauses_in_words(kind: Kind, pauses: pl.DataFrame) -> str:
    """Return some pauses in words: how many, how many of them full collections, or why they happened."""
    many = f"{pauses.height} {kind.name if pauses.height == 1 else kind.several}"
    if kind.key == "gc":
        full = pauses.filter(pauses["generation"] == 2).height
        return f"{many} ({full} of them full)"
    reasons = pauses["reason"].drop_nulls()
    return f"{many} ({reasons[0]})" if len(reasons) else many
