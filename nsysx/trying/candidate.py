"""A change that is tried: its runs so far, and what they say of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from nsysx.inject.nsysx_probe.changes import Change
from nsysx.trying.result import Baseline, ChangeTrial
from nsysx.trying.trial_bounds import FEWEST_PAIRS
from nsysx.trying.trial_results import compare_results
from nsysx.trying.trial_run import TrialRun, peak_memory_of
from nsysx.trying.trial_steps import noise_of
from nsysx.trying.verdicts import basis_of_few, gain, gain_of_blocks
from nsysx.units import several


@dataclass
class Candidate:
    """A change, or several at once, with its pairs of runs (unchanged, changed)."""

    changes: tuple[Change, ...]
    trial: ChangeTrial
    pairs: list[tuple[TrialRun, TrialRun]] = field(default_factory=list)
    unchanged_first: bool = False
    done: bool = False
    blocks: bool = False  # it was turned off and on in its runs

    @property
    def few(self) -> bool:
        """Whether it rests on few pairs of runs."""
        return bool(self.pairs) and not self.blocks and len(self.pairs) < FEWEST_PAIRS

    def note_effect(self, run: TrialRun) -> bool:
        """Note where changes took effect; return whether one of them did not, which ends their trial."""
        trial, seen = self.trial, run.record.get("changes", {})
        trial.where = trial.where or next((s["where"] for s in seen.values() if s["where"]), "")
        trial.note = next((s["note"] for s in seen.values() if s["note"]), trial.note)
        missing = [(name, s["why_not"]) for name, s in seen.items() if not s["took"]]
        if missing and run.outcome not in ("failed", "hangs"):
            trial.verdict, self.done = "does_not_apply", True
            reasons = [f"{name}: {why}" if len(self.changes) > 1 else why for name, why in missing]
            trial.reason = "; ".join(reasons) or "it took no effect"
        return bool(missing)

    def judge(self, baseline: Baseline, unchanged: Sequence[TrialRun], stopped: str) -> None:
        """Bring the record of the trial up to date; ``stopped``: why nothing more is measured, "" if something may be."""
        trial, pairs = self.trial, self.pairs
        if not pairs or trial.verdict in ("fails", "does_not_apply"):
            if not pairs and not self.done:
                trial.reason = trial.reason or f"it was not tried{stopped and ': '}{stopped}"
            return
        if self.blocks:
            steps = [pair for _, run in pairs for pair in run.block_pairs]
            measured = gain_of_blocks(steps)
        else:
            steps = [(a.step_ns, b.step_ns) for a, b in pairs]
            noise = max(noise_of(run.record) for pair in pairs for run in pair)
            measured = gain(steps, [r.step_ns for r in unchanged], noise)
        assert baseline.step_ns is not None
        trial.pairs, trial.within_a_run = len(steps), self.blocks
        trial.verdict = measured.verdict  # type: ignore[assignment]
        trial.ratio, trial.ratio_low, trial.ratio_high = measured[:3]
        trial.step_ns, trial.low_ns, trial.high_ns = (baseline.step_ns * r for r in measured[:3])
        compare_results(trial, pairs, baseline, sum(not r.turned_off for r in unchanged))
        trial.peak_memory_bytes = peak_memory_of([b for _, b in pairs if not b.turned_off])
        if trial.verdict == "fails":
            self.done = True
            return
        later = [b.start_ns - a.start_ns for a, b in pairs if not a.turned_off]
        trial.start_ns = statistics.median(later) if later else None
        saved = baseline.step_ns - trial.step_ns
        trial.pays_after_steps = None
        if trial.verdict == "faster" and saved > 0 and trial.start_ns is not None:
            trial.pays_after_steps = max(0, math.ceil(trial.start_ns / saved))
        if trial.verdict == "cannot_tell":
            units = "blocks of steps" if self.blocks else "runs"
            trial.reason = f"{several(len(steps), 'pair')} of {units} {'does' if len(steps) == 1 else 'do'} not decide"
        else:
            trial.reason = basis_of_few(len(steps)) if self.few else ""
