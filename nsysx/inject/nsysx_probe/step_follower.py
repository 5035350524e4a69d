"""Decides where one training step ends and the next begins, from the events that the probe sees. No torch, no NVTX.

A step is one optimizer step, from the first data fetch or forward after the previous optimizer step to the next such event.
So steps leave no gaps, gradient accumulation is one step, and the wait for a batch is in the step that uses the batch. A step's
work is complete by the first of these rules that applies:

``user``       ``nsysx.step()`` was called: from then on only that counts.
``optimizer``  the optimizer that ends a round has stepped. If several take turns (a GAN), a round contains them all.
``backward``   backward has ended, and there is no optimizer, or it steps inside backward, or it is compiled and cannot be seen.
``forward``    inference: a forward has ended. Which networks make one step, `call_periods` finds out.
``loop``       there is nothing of all this, and the program's main loop begins its next round (`main_loop`).

The next step begins with the next fetch from a DataLoader if there is one, else with the next forward, or with the next
call of an optimizer that runs the forward itself (a closure). Evaluation between training steps ends a step and does not begin
one; a network that acts without gradients behind step after step (a rollout, a teacher) is a part of each. In a program that makes
an optimizer, only training makes steps.

What a step is may show only later: a rule that learns late corrects the number of steps (``count``), not the ranges that were sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

from .call_periods import Calls
from .probe_bounds import ACTS_FOR_STEPS, GONE_AFTER_STEPS, MOST_EMPTY_STEPS, MOST_TURNS
from .turns import Turns

#: Answers whether an optimizer is expected to step in this round, from its key and that of the one that ends rounds; None: unknown.
Related = Callable[[object, object], Optional[bool]]  # noqa: UP045 - Python 3.9 reads this too


class StepFollower:
    """Follows a program's steps. Calls ``begin(index)`` and ``end()`` at their borders, strictly in turn."""

    def __init__(
        self, begin: Callable[[int], Any], end: Callable[[], Any], states: Callable[[], int] = lambda: 0
    ) -> None:
        self._begin, self._end = begin, end
        self.related: Related = lambda _key, _ends: None
        self.restarted: Callable[[], object] = lambda: None  # what came before was no step
        self.compilations: Callable[[], int | None] = lambda: None  # how much torch.compile has compiled; None: unknown
        self._compiled: int | None = None  # that number when backward ended
        self._states = states  # returns the number of parameters for which optimizers hold state
        self._states_before = 0  # that number when the open step began
        self.index = -1  # of the open or else the last step
        self.first = 0  # the first step: those before it were none, because training or its thread began later
        self.correction = 0  # to be added to the number of steps
        self.unfinished = 0  # steps whose work was never completed
        self.calls = Calls()
        self._version: int | None = None  # of the weights when the open step began
        self._network: object = None  # which network's weights
        self._same = 0  # steps that began with the same weights as the one before
        self._updates = False  # weights have changed by hand between steps
        self._skipped = False  # the first call of a network began no step
        self.called = False  # a network was called with gradients since the last backward
        self.turns = 0  # how often the optimizer that ends a round has stepped in a held one
        self.is_open = False
        self.user = False
        self.loop: list[Any] | None = None  # file and line of the loop whose rounds are the steps
        self.by_fetch = False  # steps begin with fetches, not with forwards
        self.optimizer_made = False
        self.optimizer_in_backward = False
        self.backward_seen = False
        self.forward_seen = False
        self.key: object = None  # the optimizer that ends a round
        self.keys: set[object] = set()  # optimizers that have stepped
        self.pending: set[object] = set()  # optimizers that were made and have not stepped
        self.expected: set[object] = set()  # the pending ones when the work of the open step was completed
        self.done = 0  # how often the work of the open step was completed
        self.held = False  # the open step goes on although its work is complete, because another optimizer is expected
        self.worked = False  # the open step has had a forward, a backward or an optimizer step
        self.outside = False  # the open step has had a forward or backward that no optimizer called
        self.backwards = 0  # number of backwards in the open step
        self.unseen = 0  # number of backwards in a step if its optimizer cannot be seen, else 0
        self.others = 0  # optimizer steps since that of ``key``
        self.turns_taken = Turns()
        self.empty: list[int] = []  # steps without any work
        self.closed_by = ""
        self._acted = 0  # so many steps in a row were closed by a network that acts

    @property
    def count(self) -> int:
        """Return the number of steps: ranges without those that proved to be none, and corrected by what was learned later."""
        ranges = self.index + 1 - self.first
        if self.user:
            return ranges
        empty = sum(index >= self.first for index in self.empty)
        open_one = int(self.is_open and not self.done and self.worked)  # empty ones are known when they close
        steps = ranges - empty - self.unfinished - open_one - int(self.is_open and not self.worked)
        if not self.trains and not self.by_fetch:
            steps += self.calls.correction + int(self._skipped and steps > 0)
        return max(steps + self.correction, 0)

    @property
    def rule(self) -> str:
        """Return what completes a step and what begins one, such as "optimizer/fetch", or "user"."""
        if self.user or self.loop:
            return "user" if self.user else "loop/round"
        begins = "fetch" if self.by_fetch else "forward"
        return f"{self._completed_by()}/{begins}"

    def _completed_by(self) -> str:
        if self.optimizer_made and not self.optimizer_in_backward and not self.unseen:
            return "optimizer"
        return "backward" if self.backward_seen or self.optimizer_in_backward else "forward"

    @property
    def trains(self) -> bool:
        """Return whether the program has been seen to train."""
        return self.optimizer_made or self.backward_seen

    @property
    def alone(self) -> bool:
        """Return whether one optimizer ends each step, and no other one is expected to."""
        only = len(self.keys) == 1 and not self.pending and not self.user and not self.held
        return only and self.rule.startswith("optimizer/")

    def _open(self) -> None:
        self.index += 1
        self.is_open = True
        self.done = self.backwards = 0
        self.worked = self.outside = self.held = False
        if self.optimizer_made and not self.keys:
            self._states_before = self._states()
        self._begin(self.index)

    def _close(self, why: str) -> None:
        if self.is_open:
            if not self.worked and len(self.empty) < MOST_EMPTY_STEPS:
                self.empty.append(self.index)
            elif not self.done and not self.user:
                self.unfinished += 1
            self.is_open = False
            self.closed_by = why
            self._end()

    def _close_for_evaluation(self, complete: object, *, acts: bool = False) -> None:
        if self.is_open and complete and not (acts and self._acted >= ACTS_FOR_STEPS):
            self._close("evaluation")
            self._acted = self._acted + 1 if acts else 0

    def _border(self) -> None:
        if self.is_open and not self.done:
            self._look_for_unseen()
        if self.is_open and (not self.done or self._goes_on()):
            return
        self.next()

    def next(self) -> None:
        """End the open step here and begin the next one."""
        self._acted = self._acted if self._acted >= ACTS_FOR_STEPS or not self.is_open else 0
        self._close("border")
        self._open()

    def _goes_on(self) -> bool:
        """Return whether an optimizer that has not stepped yet is expected to end this round."""
        if self.by_fetch or self._completed_by() != "optimizer":
            return False
        if self._awaits() is False:
            return False
        self.held = True
        return True

    def _awaits(self) -> bool | None:
        """Return whether an optimizer that has not stepped works on a network of this step; None: one may."""
        related = [self.related(key, self.key) for key in self.expected & self.pending]
        return True if True in related else None if None in related else False

    def _look_for_unseen(self) -> None:
        """Check whether the optimizer is compiled: its state has grown, and no optimizer was ever seen to step."""
        if not self.backwards or self.keys or not self.optimizer_made or self.optimizer_in_backward:
            return
        if self._has_compiled() and self._states() > self._states_before:
            self.unseen, self.done = self.backwards, 1

    def _has_compiled(self) -> bool:
        """Return whether something may have been compiled since backward ended: an optimizer, whose steps are then not seen."""
        now = self.compilations()
        return now is None or now != self._compiled

    def fetch(self, training: bool = True, exhausted: bool = False) -> None:
        """A batch is about to be fetched on the driving thread; ``exhausted``: the loader is known to have no more."""
        if self.user or exhausted:
            return
        if not training and self.trains:
            self._close_for_evaluation(self.done or not self.worked)
            return
        if not self.by_fetch and self.index - self.first <= 2:
            self.by_fetch = True
        if self.by_fetch or not self.is_open:
            self._border()

    def epoch_end(self) -> None:
        """A loader has reached its end."""
        if not self.user and self.is_open and self.done:
            self._close("loader end")

    def forward(
        self, training: bool = True, network: object = None, version: int | None = None, *, acts: bool = False
    ) -> None:
        """A whole network is about to be called. ``version`` counts how often its weights were changed, None: unknown.

        ``acts``: it is called without gradients, and is not in evaluation mode.
        """
        if self.user:
            return
        first, self.forward_seen = not self.forward_seen, True
        self.called = self.called or training
        if not training and self.trains:
            # In the middle of a step it is a teacher, a rollout or a target network, and so part of the step.
            # Without any backward (a zeroth-order method) such calls are all that tells steps apart.
            complete = self.done and (self.by_fetch or not self._awaits())
            self._close_for_evaluation(complete, acts=acts and self.backward_seen)
            return
        if self.by_fetch:
            # A batch that is fetched once and used many times: from here on fetches do not tell steps apart.
            if self.is_open and self.done >= 2 and self._completed_by() == "optimizer" and not self._awaits():
                self.by_fetch = False
                self.correction += self.done - 1
            elif self.is_open:
                return
        if not self.trains:
            begins = self.calls.begins(network, version)
            if first and training and not self.is_open:
                self._skipped = True
                self._network, self._version = network, version
                return  # a single forward with gradients is usually a look at shapes
            if not begins and self.is_open:
                return
        elif self._accumulates(network, version):
            return
        before = self.index
        self._border()
        if self.index != before and version is not None:
            self._network, self._version = network, version

    def _accumulates(self, network: object, version: int | None) -> bool:
        """Return whether weights that the program changes by hand are still those of the open step's begin."""
        if self._completed_by() != "backward" or self.optimizer_made or self.by_fetch or not self.is_open:
            return False
        if version is None or self._version is None or network != self._network:
            return False
        same = version == self._version
        if not self._updates and same:
            self._same += 1
        elif not self._updates:
            self._updates = True
            self.correction -= self._same  # without a change between them, all steps so far were one
        return self._updates and same

    def forward_end(self) -> None:
        """The network has returned."""
        self._work("forward")

    def backward(self) -> None:
        """Backward is about to run; it begins a step if no forward was seen (a network that is not a module)."""
        if self.user:
            return
        if not self.trains:  # what came before the first backward was no step
            self._restart()
            self.called = self.is_open
        called, self.called, self.forward_seen = self.called, False, True
        if not (self.is_open and called):
            self.forward(True)
            self.called = False

    def network_comes(self) -> None:
        """The first network is about to be called: what was called before it, or in its step, made no steps."""
        if not self.user and not self.trains:
            if not self.by_fetch:
                self._close("a network is called")
            self._restart()

    def restart(self) -> None:
        """Another thread drives from here on: what came before was no step."""
        if not self.user:
            self._close("another thread drives")
            self._restart()
            self.key, self.keys, self.turns_taken = None, set(), Turns()
            self.by_fetch = self.forward_seen = self.backward_seen = False

    def _restart(self) -> None:
        self.first = self.index if self.is_open else self.index + 1
        self.correction, self.unfinished, self._skipped, self.loop = 0, 0, False, None
        self.calls = Calls()
        self.restarted()

    def backward_end(self) -> None:
        """Backward has returned."""
        if not self.backward_seen:
            self.backward_seen = True
            self.done = 0
        self.backwards += 1
        if self.optimizer_made and not self.keys:
            self._compiled = self.compilations()
        self._work("backward")

    def _work(self, what: str) -> None:
        self.worked = self.outside = True
        if self._completed_by() == what and (what == "forward" or self.backwards >= self.unseen):
            self.done += 1

    def zero_grad(self) -> None:
        """Gradients are reset. If a backward came before and no optimizer was ever seen to step, one must have stepped unseen."""
        if self.user or not self.optimizer_made or self.optimizer_in_backward or self.keys:
            return
        if self.is_open and self.backwards and not self.done and self._has_compiled():
            self.unseen = max(self.backwards, 1)
            if not self.by_fetch:
                self.done = 1
            else:  # the next step's fetch has already happened, so the open step is that step
                self.unseen, self.backwards = 1, 0

    def made_optimizer(self, key: object = None) -> None:
        """An optimizer was made: from here on the program trains, and an optimizer step completes a step."""
        if key is not None:
            self.pending.add(key)
            self.keys.discard(key)  # an optimizer that is gone had the same key
            self.turns_taken.forget(key)
            if key == self.key:
                self.key = None
        if self.optimizer_made:
            return
        self.optimizer_made = True
        if not self.user:
            self._close("training begins")
            self._restart()

    def optimizer(self, key: object) -> None:
        """An outermost optimizer is about to step; it begins a step if the optimizer calls the network itself."""
        if self.user or self.optimizer_in_backward:
            return
        self.optimizer_made = True
        if not self.is_open:
            self._open()
        elif self.done and not self.by_fetch and not self.outside and key == self.key and not self._goes_on():
            self._close("border")
            self._open()

    def inner_optimizer(self, key: object) -> None:
        """An optimizer has stepped inside another one, which ends nothing."""
        self.pending.discard(key)

    def optimizer_end(self, key: object, in_backward: bool = False) -> None:
        """An outermost optimizer step on the driving thread has returned, even if a scaler skipped it."""
        self.worked = True
        if self.user:
            return
        self.optimizer_made = True
        if in_backward:
            self.optimizer_in_backward = True
            return
        self._ends_round(key)
        if key == self.key:
            self.expected = set() if self.done and not self.held else set(self.pending)
            self.done += 1

    def _ends_round(self, key: object) -> None:
        """Decide which optimizer ends a round."""
        new = key not in self.keys
        self.keys.add(key)
        self.pending.discard(key)
        self.unseen = 0
        self.turns_taken.take(key)
        if key == self.key:
            self.correction -= self.turns_taken.first_round(self.others)
            self.others = 0
            if self.held:
                self.turns += 1
                if self.turns > MOST_TURNS or not self._awaits():  # the expected ones do not belong to this round
                    self.pending.clear()
                    self.correction += self.turns
            return
        self.turns = 0
        self.others += 1
        # A new optimizer ends the round from now on, whether it is the second of a GAN or that of the next stage, unless it came
        # right after the one that ends rounds, with the same backward or in the same batch.
        first = new and (not self.done or self.held)
        if self.key is None or first or self.others >= GONE_AFTER_STEPS or self.turns_taken.apart(key, self.key):
            if first and self.key is not None:
                self.turns_taken.begin_rounds(self.index - self.first)
            self.key = key
            self.others = 0

    def step(self) -> None:
        """The user's call of ``nsysx.step()``: a step begins here."""
        self.user = True
        self.worked = True
        self._close("border")
        self._open()
        self.worked = True

    def exit(self) -> None:
        """The program ends."""
        self._close("exit")
