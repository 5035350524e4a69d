"""What was tried and what came of it: ``nsysx.try/1``. All times are ns of one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from nsysx.advice import Verdict, verdict_of
from nsysx.trying.same import RunDifference

SCHEMA = "nsysx.try/1"

#: The verdict on all changes is the first of these that any of them has.
_FIRST: tuple[Verdict, ...] = (
    "faster", "changes_results", "cannot_tell", "same", "slower", "fails", "does_not_apply",
)  # fmt: skip


@dataclass
class Baseline:
    """The unchanged program: the median step over its runs, the lowest and the highest. ``measured_steps``: of each run.

    ``difference`` holds the largest ones between two unchanged runs after the same steps. ``fast_step_ns`` and ``slow_step_ns``: a
    tenth of its steps are shorter, a tenth longer. ``unseeded``: those two differ from the first steps on by more than rounding
    explains, so what a change does to results cannot be told. ``first_step_ns``: from the first start of the command to its first step.
    """

    step_ns: float | None = None
    low_ns: float | None = None
    high_ns: float | None = None
    runs: int = 0
    measured_steps: int = 0
    warm_up_steps: int = 0
    clock: str = ""
    peak_memory_bytes: int | None = None
    difference: RunDifference = field(default_factory=RunDifference)
    fast_step_ns: float | None = None
    slow_step_ns: float | None = None
    unseeded: bool = False
    first_step_ns: float | None = None


@dataclass
class ChangeTrial:
    """One change. ``ratio``: changed over unchanged step, and its interval; ``step_ns`` is that of the baseline times it.

    ``pairs``: of runs or, if the change was turned off and on in one run (``within_a_run``), of blocks of steps.
    ``start_ns``: what the change adds to the first steps. ``pays_after_steps``: after so many steps that is regained.
    ``difference``: from unchanged runs. ``beyond_rounding``: early weights differ more than rounding of ``numbers`` (such as float32)
    and unchanged runs explain; None if that cannot be told. ``diverged``: and its loss is far above the unchanged one.
    ``other_results``: it alters weights more than it should, diverged, or is a bound, so it is never among the best. ``does`` is a
    phrase for people, ``note`` what torch said of the change. ``findings`` are the codes of those that advise it.
    """

    change: str
    does: str = ""
    verdict: Verdict = "cannot_tell"
    step_ns: float | None = None
    low_ns: float | None = None
    high_ns: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    pairs: int = 0
    within_a_run: bool = False
    start_ns: float | None = None
    pays_after_steps: int | None = None
    difference: RunDifference = field(default_factory=RunDifference)
    numbers: str = ""
    beyond_rounding: bool | None = None
    diverged: bool = False
    other_results: bool = False
    peak_memory_bytes: int | None = None
    alters: str = "speed"
    beware: str = ""
    reason: str = ""
    note: str = ""
    paste: str = ""
    where: str = ""
    advised: bool = False
    findings: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> Verdict:
        """The one verdict on the change: what its times say, unless it alters the results more than it should."""
        return verdict_of(self.verdict, other_results=self.other_results)


@dataclass
class TryResult:
    """Everything that was measured. ``stopped`` says why it ended early, "" if it did not."""

    command: list[str]
    baseline: Baseline = field(default_factory=Baseline)
    trials: list[ChangeTrial] = field(default_factory=list)
    together: ChangeTrial | None = None
    stopped: str = ""
    interrupted: bool = False

    @property
    def best(self) -> ChangeTrial | None:
        """The change that the verdict on all of them is about: the one that won, else the one that came nearest to it."""
        if winners := self.winners():
            return winners[0]
        return min(self.trials, key=lambda t: (_FIRST.index(t.outcome), t.ratio or 1.0), default=None)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; what is not finite becomes null."""
        told = _plain(asdict(self))
        trials = [*self.trials, *filter(None, [self.together])]
        for part, trial in zip([*told["trials"], *filter(None, [told["together"]])], trials, strict=True):
            part["outcome"] = trial.outcome
        told["verdict"] = None if self.best is None else self.best.outcome
        for part in (told["baseline"], *told["trials"], *filter(None, [told["together"]])):
            part |= {
                f"{name}_difference": value for name, value in part.pop("difference").items() if name != "early_steps"
            }
        told["baseline"]["early_steps"] = self.baseline.difference.early_steps
        return {"schema": SCHEMA, **told}

    def measured(self) -> bool:
        """Return whether anything is known of any change."""
        return any(t.pairs or t.verdict != "cannot_tell" for t in self.trials)

    def winners(self) -> list[ChangeTrial]:
        """Return the changes that made the step faster and compute the same, the best first."""
        won = [t for t in self.trials if t.verdict == "faster" and not t.other_results]
        return sorted(won, key=lambda t: t.ratio or 1.0)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    return value
