"""The answer of a comparison as records: what it says, its parts, and both steps without the profiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from nsysx.catalogue import FAMILIES, Cause, DeviceActivity
from nsysx.comparing.comparability import ComparabilityCheck
from nsysx.comparing.comparing_bounds import NAMED_PART_SHARE
from nsysx.comparing.differences import PartDifference

SCHEMA = "nsysx.compare/1"
#: Fields of the answer that are plain values, under the same names in its JSON.
AS_THEY_ARE = (
    *("verdict", "difference_ns", "low_ns", "high_ns", "before_ns", "after_ns", "drift_ns", "detectable_ns", "margin"),
    *("basis", "sentence", "parts_by", "decided_by"),
)
#: Names in a sentence: causes of idle time, and parts of the GPU's ledger.
_NOUNS = {
    **{cause.value: cause.noun for cause in Cause},
    **{activity.value: activity.noun for activity in DeviceActivity},
}


@dataclass(frozen=True)
class DifferencePart:
    """A part of the difference: compute of a module or family, a part of the ledger, or idle time of a cause."""

    kind: str
    name: str | None
    difference_ns: int
    before_ns: int
    after_ns: int
    low_ns: int | None
    high_ns: int | None
    verdict: str
    status: str

    @property
    def words(self) -> str:
        """The name of the part in a sentence."""
        return part_words(self.kind, self.name)


def part_words(kind: str, name: str | None) -> str:
    """Return the name of a part in a sentence."""
    if kind == "module":
        if name is None:
            return "kernels of no known module"
        return (
            f"module {name} kernels" if name.isdigit() else f"{name} kernels"
        )  # "64 kernels" would be a number of them
    if kind == "family":
        return FAMILIES.get(str(name), f"{name or 'other'} kernels")
    if kind == "rest":
        return str(name)
    return _NOUNS.get(str(name), str(name).replace("_", " "))


@dataclass(frozen=True)
class Real:
    """The step without the profiler on both sides; ``low_ns`` and ``high_ns`` bound the difference."""

    before_ns: int
    after_ns: int
    difference_ns: int
    low_ns: int
    high_ns: int
    verdict: str
    sources: tuple[str, str]


@dataclass(frozen=True)
class Comparison:
    """The answer. Times per step; differences are after minus before. ``basis`` is what the interval covers.

    ``decided_by`` is "step", or "gpu_work" if the host's noise hides the step's difference and GPU work limits both sides.

    ``detectable_ns`` is the smallest change that could have been seen, None without an interval. ``whole``: no steps were
    found, and every capture counts as one.
    """

    verdict: str
    difference_ns: int
    low_ns: int | None
    high_ns: int | None
    before_ns: int
    after_ns: int
    drift_ns: int
    detectable_ns: int | None
    margin: float
    basis: str
    sentence: str
    parts: tuple[DifferencePart, ...] = field(repr=False)
    parts_by: str
    comparability: tuple[ComparabilityCheck, ...] = field(repr=False)
    tables: Mapping[str, Sequence[PartDifference]] = field(repr=False)
    real: Real | None
    gpu_work: PartDifference = field(repr=False)
    decided_by: str
    notes: tuple[str, ...]
    steps: Mapping[str, Sequence[Sequence[int]]] = field(repr=False)
    names: tuple[tuple[str, ...], tuple[str, ...]]
    whole: bool = False

    def changes_the_step(self, row: PartDifference | DifferencePart) -> bool:
        """Return whether a row differs by enough of the step before to be named."""
        return abs(row.difference_ns) >= NAMED_PART_SHARE * self.before_ns

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain JSON values, keys as in the contract `nsysx.compare/1`."""

        def row(difference: PartDifference) -> dict[str, Any]:
            return {**asdict(difference), "difference_ns": difference.difference_ns}

        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in AS_THEY_ARE},
            "whole_captures": self.whole,
            "parts": [asdict(p) for p in self.parts],
            "comparability": [asdict(line) for line in self.comparability],
            "gpu_work": row(self.gpu_work),
            "unprofiled": None if self.real is None else asdict(self.real),
            "notes": list(self.notes),
            "before": list(self.names[0]),
            "after": list(self.names[1]),
            "steps": {side: [list(lengths) for lengths in captures] for side, captures in self.steps.items()},
            **{key: [row(difference) for difference in rows] for key, rows in self.tables.items()},
        }
