"""What a change saves: one record, made where a rule asks for it, held by its finding, and read by every output. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from nsysx.scope import Scope

#: Below this share of the step nothing is worth a change, and what is saved is no line of its own. Chosen.
NOTABLE = 0.01


@dataclass(frozen=True, slots=True)
class Saving:
    """What a change saves of a step (ns): ``likely_ns``, None where no claim can be made; ``confidence`` says why, or how sure it is.

    ``bound``: it is an upper bound, ``most_ns`` the most that is left open, the error of the replay included, None where that is the
    same. ``error_ns`` is its error bar. ``mended``: the same once what the change needs and does not have is mended, too, None where it
    lacks nothing. ``source``: what it was computed from: a "replay" of the steps in ``scope``, the "time" that was recorded of what goes,
    the lengths of "steps", or replays between which the "limits" of what comes instead lie: then ``error_ns`` reaches to the least that
    it saves and ``most_ns`` is the most. Of a replay, ``moves_to`` says where a wait moves, ``next_limit`` what limits the step then,
    ``host_ns`` how long its host is then at work, and ``covered`` whether it holds what is changed.
    """

    likely_ns: int | None = None
    confidence: str = ""
    bound: bool = False
    error_ns: int | None = None
    most_ns: int | None = None
    mended: Saving | None = None
    source: Literal["", "replay", "time", "steps", "limits"] = ""
    scope: Scope | None = None
    moves_to: str | None = None
    next_limit: str | None = None
    host_ns: int = 0
    covered: bool = True

    @classmethod
    def between(cls, least_ns: int, most_ns: int, confidence: str) -> Saving:
        """Return a saving of which only the least and the most follow from recorded times: likely is their middle."""
        middle, half = (least_ns + most_ns) // 2, (most_ns - least_ns) // 2
        return cls(middle, confidence, error_ns=half, most_ns=most_ns, source="time")

    @property
    def mended_ns(self) -> int | None:
        """What it saves once what the change needs is mended, None where it lacks nothing or that is not known."""
        return None if self.mended is None else self.mended.likely_ns

    def within(self, step_ns: int) -> Saving:
        """Return the same, with no more saved than a step takes."""
        most, likely = (None if ns is None else min(ns, step_ns) for ns in (self.most_ns, self.likely_ns))
        return replace(self, likely_ns=likely, most_ns=most, mended=self.mended and self.mended.within(step_ns))

    def to_json(self) -> dict[str, Any]:
        """Return what stands in the JSON of a finding, under the names that it has there."""
        after = self.mended or Saving()
        return {
            "saving_ns_per_step": self.likely_ns,
            "confidence": self.confidence,
            "bound": self.bound,
            "error_ns": self.error_ns,
            "saving_scope": self.scope and self.scope.to_json(),
            "unblocked_ns": after.likely_ns,
            "unblocked_most_ns": after.most_ns,
            "most_ns": self.most_ns,
            "saving_source": self.source,
        }

    @staticmethod
    def nested(finding: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON of a finding with its saving as a record of its own, for `records.record`."""
        saving = {name: finding[key] for name, key in _OF_FINDING.items() if key in finding}
        if finding.get("unblocked_ns") is not None:
            saving["mended"] = {"likely_ns": finding["unblocked_ns"], "most_ns": finding.get("unblocked_most_ns")}
        return {**finding, "saving": saving}


#: Fields of a Saving, and what they are called in the JSON of a finding.
_OF_FINDING = {
    "likely_ns": "saving_ns_per_step",
    "confidence": "confidence",
    "bound": "bound",
    "error_ns": "error_ns",
    "scope": "saving_scope",
    "most_ns": "most_ns",
    "source": "saving_source",
}

#: The keys of a finding in the JSON, in their order.
FINDING_KEYS = (
    "code", "slug", "verdict", "title", "detail", "where", "cost_ns_per_step", "saving_ns_per_step", "confidence", "fix", "evidence",
    "bound", "error_ns", "paste", "condition", "scope", "saving_scope", "because", "title_as_recorded", "cost_as_recorded", "conditions",
    "unblocked_ns", "unblocked_most_ns", "most_ns", "own_ns_per_step", "overlaps", "remedies", "saving_source", "unexplained",
    "stepless_ns",
)  # fmt: skip
