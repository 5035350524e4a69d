"""A session: the unchanged program first, then for each change pairs of runs in the order A B B A, until the interval decides."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from nsysx.inject.nsysx_probe.changes import Change
from nsysx.redaction import redacted
from nsysx.trying import chosen_changes, plans
from nsysx.trying.candidate import Candidate
from nsysx.trying.result import Baseline, TryResult
from nsysx.trying.same import of_unchanged, unseeded
from nsysx.trying.trial_bounds import (
    ENDING_S,
    ENDING_SHARE,
    FEWEST_PAIRS,
    HANGING_STEP_TIMES,
    LATER_START_SHARE,
    MOST_BLOCK_RUNS,
    MOST_PAIRS,
    SHORT_BUDGET_S,
)
from nsysx.trying.trial_run import Runner, RunPlan, RunTimeouts, TrialRun, peak_memory_of, require_steps
from nsysx.trying.try_options import TryOptions
from nsysx.units import duration, several


class Session:
    """Measures the candidates in their order; `measure` does everything and `result` holds what is known at any time."""

    def __init__(
        self, command: Sequence[str], candidates: Sequence[tuple[Change, ...]], options: TryOptions,
        show: Callable[[str], object] = lambda _line: None, advised: Sequence[str] = (), spent_s: float = 0.0,
    ) -> None:  # fmt: skip
        """``spent_s``: what of the budget is gone before the first run, by reading a report."""
        self.runner = Runner(command)
        self.options = options
        self.show = show
        self.result = TryResult(redacted(command))
        self.deadline = time.monotonic() + options.budget_s - spent_s
        self.plan = plans.first(options.steps, options.budget_s)
        self.unchanged: list[TrialRun] = []
        self.fresh: TrialRun | None = None  # an unchanged run that has just ended and is in no pair
        self.start_s = 0.0
        self.cuda, self.optimizers = False, list[str]()
        self.tried = [Candidate(c, chosen_changes.untried(c, advised)) for c in candidates]
        self.result.trials = [t.trial for t in self.tried]

    # ---- the unchanged program --------------------------------------------------------------------------------------

    def measure(self) -> TryResult:
        """Measure everything within the budget. Raises NsysxError if the unchanged program cannot be measured."""
        try:
            if self.options.budget_s >= SHORT_BUDGET_S or not self._scout_changed():
                self._scout()
            for tried in self.tried:
                self._first_pairs(tried)
            self._compare_turned()
            self._more_pairs()
            if self.options.together:
                self._try_together()
        except KeyboardInterrupt:
            self.result.interrupted = True
            self.result.stopped = "interrupted"
        except _StopError as stop:
            self.result.stopped = str(stop)
        for tried in self.tried:
            self._judge(tried)
        return self.result

    def _scout(self) -> None:
        """Measure the unchanged program; later runs make as many steps as its first one."""
        left = self._left_s()
        self.show("the unchanged program, to find its steps")
        run = self.runner.run((), self.plan, RunTimeouts(left, left, left, self.deadline))
        require_steps(run)
        self.start_s = run.start_s
        self.cuda, self.optimizers = run.record["cuda"], run.record["optimizers"]
        if (plan := plans.like(run, self.options.steps)) is not None:
            self.plan = plan
            self._add_unchanged(run)
            self.fresh = run
            return
        self.plan = plans.after(run, self.options.steps, self.options.budget_s)
        again = self._run(())
        if again.outcome == "ended" and again.record:  # it makes fewer steps than the plan has
            self.plan = plans.after(again, self.options.steps, self.options.budget_s)
            again = self._run(())
        if again.outcome != "measured":
            raise _StopError(_not_again(again))
        self._add_unchanged(again)
        self.fresh = again

    def _scout_changed(self) -> bool:
        """Measure the first change and the unchanged program in one start; return whether an unchanged step is known now.

        A short budget may have no room for two starts. What does not work out is done again, in the usual order.
        """
        tried = next((t for t in self.tried if not any(c.environment for c in t.changes)), None)
        if tried is None:
            return False
        left = self._left_s()
        self.show(f"{tried.trial.change}, turned off and on in one run")
        plan = plans.turning(self.options.steps, self.options.budget_s)
        run = self.runner.run(tried.changes, self._ending(plan), RunTimeouts(left, left, left, self.deadline))
        if run.outcome == "late":
            require_steps(run)
        like = plans.like(run, self.options.steps)
        if like is None:
            return False
        tried.note_effect(run)
        if tried.done and any(seen["took"] for seen in run.record["changes"].values()):
            return False  # of several changes some were made
        self.plan, self.start_s = like, run.start_s
        self.cuda, self.optimizers = run.record["cuda"], run.record["optimizers"]
        if tried.done:
            self.fresh = run
            self._add_unchanged(run)
        elif run.turned_off:
            tried.blocks = run.has_blocks
            tried.pairs = [(run, run)] if tried.blocks else []
            self.fresh = None if tried.blocks else run
            self._add_unchanged(run)
        else:
            tried.pairs = [(self._run_unchanged(), run)]
        self._judge(tried)
        return True

    def _add_unchanged(self, run: TrialRun) -> None:
        self.unchanged.append(run)
        self._base()

    def _base(self) -> None:
        """Bring the baseline up to date. Blocks without a change are the unchanged program, too."""
        steps = [r.step_ns for r in self.unchanged]
        turned = [run.block_pairs for t in self.tried if t.blocks for _, run in t.pairs if not run.turned_off]
        steps += [statistics.median(off for off, _ in pairs) for pairs in turned if pairs]
        plain = [r for r in self.unchanged if not r.turned_off]
        records = [r.record for r in plain]
        self.result.baseline = Baseline(
            statistics.median(steps), min(steps), max(steps), len(steps), self.plan.steps, self.plan.warm,
            self.unchanged[-1].record["clock"], peak_memory_of(plain), of_unchanged(records),
            *self.unchanged[-1].spread, unseeded(records), self.start_s * 1e9,
        )  # fmt: skip

    # ---- runs -------------------------------------------------------------------------------------------------------

    def _run(self, changes: Sequence[Change]) -> TrialRun:
        patience = float(self.options.patience)
        unchanged_s = self.unchanged[-1].step_ns / 1e9 if self.unchanged else 0.0
        step_s = max(patience, HANGING_STEP_TIMES * unchanged_s)
        longest = max([step_s, *(c.start_s for c in changes)])
        limits = RunTimeouts(max(longest, 3 * self.start_s), longest, step_s, self.deadline)
        names = " + ".join(c.name for c in changes) or "unchanged"
        left = max(0, self._left_s())
        done = sum(tried.done or tried.trial.verdict != "cannot_tell" for tried in self.tried)
        self.show(
            f"{names}; {done} of {several(len(self.tried), 'change')} decided; {duration(left * 1e9)} of the budget left"
        )
        plan = self.plan
        if changes:
            waiting = [t for t in self.tried if not t.done and not t.pairs] or [t for t in self.tried if not t.done]
            plan = self._ending(plans.shared(plan, self.unchanged[-1], left / max(1, len(waiting))))
        run = self.runner.run(changes, plan, limits)
        if run.outcome == "late":
            raise self._used_up()
        return run

    def _ending(self, plan: RunPlan) -> RunPlan:
        """Return a plan whose run ends with the budget, with what it has."""
        ending_s = min(ENDING_S, ENDING_SHARE * self.options.budget_s)
        return replace(plan, until_s=time.time() + max(0, self._left_s()) - ending_s)

    def _run_unchanged(self) -> TrialRun:
        run = self._run(())
        if run.outcome != "measured":
            alone = len(self.unchanged) < 2 and not any(tried.pairs for tried in self.tried)
            raise _StopError(
                _not_again(run) if alone else f"the unchanged program could not be run again: {run.silence}"
            )
        self._add_unchanged(run)
        return run

    def _left_s(self) -> float:
        return self.deadline - time.monotonic()

    def _within_budget(self, tried: Candidate | None = None) -> None:
        """Stop unless what comes next still fits into the budget: of a change, or an unchanged run.

        Whether a change can be turned off and on is known once it ran. Until then one run is asked for, which may be cut; and while
        no change has run, it is begun even if that fits only because a second start is quicker.
        """
        last = self.unchanged[-1]
        if tried is None:
            needed = last.wall_s
        elif not tried.pairs:
            nothing = not any(t.pairs or t.done for t in self.tried)
            needed = plans.least_s(self.plan, last) * (LATER_START_SHARE if nothing else 1)
        elif tried.blocks:
            needed = plans.changed_s(self.plan, last)
        else:
            needed = 2 * last.wall_s
        if needed > self._left_s():
            raise self._used_up()

    def _used_up(self) -> _StopError:
        """Return that the budget was used up and, where changes were left out, which one has room for them."""
        left = [t for t in self.tried if not t.done and not t.pairs]
        if not left or not self.unchanged:
            return _StopError("the budget was used up")
        each_s = plans.changed_s(self.plan, self.unchanged[-1])
        minutes = math.ceil((self.options.budget_s + len(left) * each_s) / 60)
        return _StopError(
            f"the budget was used up, and a change takes {duration(each_s * 1e9)} or more: --budget {minutes}m for the rest"
        )

    # ---- changes ----------------------------------------------------------------------------------------------------

    def _first_pairs(self, tried: Candidate) -> None:
        if reason := self._lacks(tried.changes):
            tried.trial.verdict, tried.trial.reason, tried.done = "does_not_apply", reason, True
            return
        wanted = self.options.pairs or (FEWEST_PAIRS if self._has_room() else 1)
        while len(tried.pairs) < (1 if tried.blocks else wanted) and not tried.done:
            self._within_budget(tried)
            self._pair(tried)
            self._judge(tried)
        if len(self.unchanged) < 2 and tried.pairs and tried.trial.alters != "computation":
            self._compare_unchanged(tried)

    def _has_room(self) -> bool:
        """Return whether every change that waits can have its pairs at once; else each gets one first."""
        waiting = sum(not t.done and not t.pairs for t in self.tried)
        return self._left_s() >= waiting * 2 * FEWEST_PAIRS * self.unchanged[-1].wall_s

    def _compare_unchanged(self, tried: Candidate) -> None:
        """If results differ with a change, run the unchanged program again: do those of unchanged runs differ as much?"""
        if not (tried.trial.difference.weights or tried.trial.difference.loss):
            return
        self._within_budget()
        self.fresh = self._run_unchanged()
        self._judge(tried)

    def _compare_turned(self) -> None:
        """Where the first run was the one with the change, compare its early results with an unchanged run, if there is time."""
        turned = [t for t in self.tried if t.pairs and t.pairs[0][0].turned_off and t.trial.alters != "computation"]
        if not turned or plans.least_s(self.plan, self.unchanged[-1]) > self._left_s():
            return
        self.fresh = self._run_unchanged()
        for tried in turned:
            tried.pairs = [(self.fresh if a.turned_off else a, b) for a, b in tried.pairs]
            self._judge(tried)

    def _more_pairs(self) -> None:
        """Give those that are undecided, or rest on few pairs of runs, more of them, in turn."""
        if self.options.pairs:
            return
        while left := [t for t in self.tried if not t.done and (t.trial.verdict == "cannot_tell" or t.few)]:
            for tried in left:
                self._within_budget(tried)
                self._pair(tried)
                self._judge(tried)
                tried.done = tried.done or len(tried.pairs) >= (MOST_BLOCK_RUNS if tried.blocks else MOST_PAIRS)

    def _try_together(self) -> None:
        best: dict[str, Change] = {}
        by_trial = {id(t.trial): t for t in self.tried}
        for trial in self.result.winners():
            for change in by_trial[id(trial)].changes:
                best.setdefault(change.group, change)
        if len(best) < 2:
            return
        tried = Candidate(tuple(best.values()), chosen_changes.untried(tuple(best.values()), ()))
        self.result.together = tried.trial
        self.tried.append(tried)
        self._first_pairs(tried)
        self._more_pairs()

    def _lacks(self, changes: Sequence[Change]) -> str:
        """Return what the program lacks for a change, "" if nothing is known to be missing."""
        needs = {c.needs for c in changes}
        if "cuda" in needs and not self.cuda:
            return "the program used no GPU"
        return "no optimizer was seen" if "optimizer" in needs and not self.optimizers else ""

    def _pair(self, tried: Candidate) -> None:
        """Run one pair: A B, then B A, and so on, so that a drift favors neither side.

        Without an unchanged run that has just ended, the change is first: one that fails costs one run. A change that was turned
        off and on in its run needs no unchanged run beside it.
        """
        fresh, self.fresh = self.fresh, None
        if not tried.pairs:
            tried.unchanged_first = fresh is not None
        if not tried.blocks and (len(tried.pairs) % 2 == 0) == tried.unchanged_first:
            before = fresh or self._run_unchanged()
            if (changed := self._run_changed(tried)) is not None:
                tried.pairs.append((before, changed))
        elif (changed := self._run_changed(tried)) is not None:
            alone = tried.blocks or changed.has_blocks
            tried.pairs.append((self.unchanged[-1] if alone else self._run_unchanged(), changed))
        if len(tried.pairs) == 1:
            tried.blocks = tried.pairs[0][1].has_blocks
        if tried.blocks:
            self._base()

    def _judge(self, tried: Candidate) -> None:
        tried.judge(self.result.baseline, self.unchanged, self.result.stopped)

    def _run_changed(self, tried: Candidate) -> TrialRun | None:
        """Return a measured run with the change made, None if it failed or did not apply, which ends its trial."""
        run, trial = self._run(tried.changes), tried.trial
        missing = tried.note_effect(run)
        if run.outcome in ("failed", "hangs") or (run.outcome == "ended" and not missing):
            fits = self.unchanged[-1].wall_s <= self._left_s()
            if fits and len(self.unchanged) < 2 and not any(t.pairs for t in self.tried):
                self.fresh = self._run_unchanged()  # is it the change, or does the program refuse a second start?
            trial.verdict, tried.done = "fails", True
            trial.reason = run.silence
            trial.where = run.where or trial.where
        return None if tried.done else run


class _StopError(Exception):
    """Nothing more can be measured; what was measured is kept."""


def _not_again(run: TrialRun) -> str:
    """Return that the program cannot be started a second time."""
    return f"the program ran once, but not again: {run.silence}{f' at {run.where}' if run.where else ''}"
