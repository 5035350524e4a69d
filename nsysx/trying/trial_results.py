"""What a change did to what the program computes, from its pairs of runs."""

from __future__ import annotations

from collections.abc import Sequence

from nsysx.trying.result import Baseline, ChangeTrial
from nsysx.trying.same import beyond_rounding, broken, computes_other, difference, diverged, largest, rounding
from nsysx.trying.trial_run import TrialRun

#: What a change that won alters, where it was told that its results do not differ at all, or by rounding alone.
_MORE_THAN_ROUNDING = "its results differ more than rounding explains: compare the losses"


def compare_results(
    trial: ChangeTrial, pairs: Sequence[tuple[TrialRun, TrialRun]], baseline: Baseline, plain_runs: int
) -> None:
    """Bring what is known of a change's results up to date; ``plain_runs``: of the unchanged program, from its start to its end.

    That a change alters results is told only where two of them were compared: a program may draw other numbers in each run.
    """
    records = [(a.record, b.record) for a, b in pairs]
    trial.difference, unchanged = largest(difference(a, b) for a, b in records), baseline.difference
    epsilon, trial.numbers = max(rounding(a, b) for a, b in records)
    trial.beyond_rounding = beyond_rounding(trial.difference, epsilon, unchanged)
    other = computes_other(trial.alters, trial.difference, trial.beyond_rounding, unchanged)
    if trial.alters != "computation" and plain_runs < 2 and (other or trial.beyond_rounding):
        trial.beyond_rounding, other = None, False
    if trial.beyond_rounding and trial.alters != "computation":
        trial.beware = _MORE_THAN_ROUNDING
    trial.diverged = bool(trial.beyond_rounding) and all(diverged(a, b) for a, b in records)
    trial.other_results = other or trial.diverged
    if broken(trial.difference) and not broken(unchanged):
        trial.verdict, trial.reason = "fails", "a loss or a parameter is no longer finite"
