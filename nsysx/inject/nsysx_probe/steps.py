"""Decides where one training step ends and the next begins, from the events that the probe sees. No torch, no NVTX.

A step is one optimizer step, from the first data fetch or forward after the previous optimizer step to the next such event.
So steps leave no gaps, gradient accumulation is one step, and the wait for a batch is in the step that uses the batch. A step's
work is complete by the first of these rules that applies:

``user``       ``nsysx.step()`` was called: from then on only that counts.
``optimizer``  the optimizer that ends a round has stepped. If several take turns (a GAN), a round contains them all.
``backward``   backward has ended, and there is no optimizer, or it steps inside backward, or it is compiled and cannot be seen.
``forward``    inference: a forward has ended.

The next step begins with the next fetch from a DataLoader if there is one, else with the next forward, or with the next
call of an optimizer that runs the forward itself (a closure). Evaluation between training steps ends a step and does not begin
one. In a program that makes an optimizer, only training makes steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: After this many steps of other optimizers, the one that ended rounds is gone or steps too rarely to end one.
_GONE_AFTER = 12


class Steps:
    """Follows a program's steps. Calls ``begin(index)`` and ``end()`` at their borders, strictly in turn."""

    def __init__(
        self, begin: Callable[[int], Any], end: Callable[[], Any], states: Callable[[], int] = lambda: 0
    ) -> None:
        self._begin = begin
        self._end = end
        self._states = states  # returns the number of parameters for which optimizers hold state
        self._states_before = 0  # that number when the open step began
        self.index = -1  # of the open or else the last step
        self.is_open = False
        self.user = False
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
        self.empty: list[int] = []  # steps without any work
        self.closed_by = ""

    @property
    def rule(self) -> str:
        """Return what completes a step and what begins one, such as "optimizer/fetch", or "user"."""
        if self.user:
            return "user"
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
            if not self.worked and len(self.empty) < 100:
                self.empty.append(self.index)
            self.is_open = False
            self.closed_by = why
            self._end()

    def _close_for_evaluation(self, complete: object) -> None:
        if self.is_open and complete:
            self._close("evaluation")

    def _border(self) -> None:
        if self.is_open and not self.done:
            self._look_for_unseen()
        if self.is_open and (not self.done or self._goes_on()):
            return
        self._close("border")
        self._open()

    def _goes_on(self) -> bool:
        """Return whether an optimizer that has not stepped yet is expected to end this round."""
        if self.by_fetch or not self.expected & self.pending or self._completed_by() != "optimizer":
            return False
        self.held = True
        return True

    def _look_for_unseen(self) -> None:
        """Check whether the optimizer is compiled: its state has grown, and no optimizer was ever seen to step."""
        if not self.backwards or self.keys or not self.optimizer_made or self.optimizer_in_backward:
            return
        if self._states() > self._states_before:
            self.unseen, self.done = self.backwards, 1

    def fetch(self, training: bool = True, exhausted: bool = False) -> None:
        """A batch is about to be fetched on the driving thread; ``exhausted``: the loader is known to have no more."""
        if self.user or exhausted:
            return
        if not training and self.trains:
            self._close_for_evaluation(self.done or not self.worked)
            return
        if not self.by_fetch and self.index <= 2:
            self.by_fetch = True
        if self.by_fetch or not self.is_open:
            self._border()

    def epoch_end(self) -> None:
        """A loader has reached its end."""
        if not self.user and self.is_open and self.done:
            self._close("loader end")

    def forward(self, training: bool = True) -> None:
        """A whole network is about to be called."""
        if self.user:
            return
        first, self.forward_seen = not self.forward_seen, True
        if not training and self.trains:
            # In the middle of a step it is a teacher, a rollout or a target network, and so part of the step.
            self._close_for_evaluation(self.done)
            return
        if self.by_fetch:
            # A batch that is fetched once and used many times: from here on fetches do not tell steps apart.
            if self.is_open and self.done >= 2 and self._completed_by() == "optimizer":
                self.by_fetch = False
            elif self.is_open:
                return
        if first and not self.trains and not self.is_open:
            return  # a single forward is usually a look at shapes or a warm-up
        self._border()

    def forward_end(self) -> None:
        """The network has returned."""
        self._work("forward")

    def backward(self) -> None:
        """Backward is about to run; it begins a step if no forward was seen (a network that is not a module)."""
        self.forward(True)

    def backward_end(self) -> None:
        """Backward has returned."""
        if not self.backward_seen:
            self.backward_seen = True
            self.done = 0
        self.backwards += 1
        self._work("backward")

    def _work(self, what: str) -> None:
        self.worked = self.outside = True
        if self._completed_by() == what and (what == "forward" or self.backwards >= self.unseen):
            self.done += 1

    def zero_grad(self) -> None:
        """Gradients are reset. If a backward came before and no optimizer was ever seen to step, one must have stepped unseen."""
        if self.user or not self.optimizer_made or self.optimizer_in_backward or self.keys:
            return
        if self.is_open and self.backwards and not self.done:
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
            if key == self.key:
                self.key = None
        if self.optimizer_made:
            return
        self.optimizer_made = True
        if not self.user:
            self._close("training begins")

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
            self.expected = set() if self.done else set(self.pending)
            self.done += 1

    def _ends_round(self, key: object) -> None:
        """Decide which optimizer ends a round."""
        new = key not in self.keys
        self.keys.add(key)
        self.pending.discard(key)
        self.unseen = 0
        if key == self.key:
            self.others = 0
            if self.held:  # it stepped again before the expected ones, so they do not belong to this round
                self.pending.clear()
            return
        self.others += 1
        # A new optimizer ends the round from now on, whether it is the second of a GAN or that of the next stage, unless it came
        # right after the one that ends rounds, with the same backward or in the same batch.
        if self.key is None or (new and (not self.done or self.held)) or self.others >= _GONE_AFTER:
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
