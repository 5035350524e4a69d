"""Columns that several tables of ranks have: each with one meaning, unit and label."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from nsysx.rows import Of

RankNumber: TypeAlias = Annotated[int, Of("number of the rank")]
CoveredSteps: TypeAlias = Annotated[int, Of("steps that the sums cover; 0: the whole capture")]
ExposedWait: TypeAlias = Annotated[
    int, Of("exposed time in which it waits for another rank", "ns", sums="row", label="waits for a rank")
]
