"""Decides where one training step ends and the next begins, from events that the probe sees. No torch, no NVTX.

A step is what people mean by it: one optimizer step, from the first data fetch or forward after the previous optimizer
step to the next such event. So steps tile the time, gradient accumulation is one step, and the wait for a batch is in the
step that uses the batch. What says that a step's work is done, in this order:

``user``       ``nsysx.step()`` was called: only that counts from then on.
``optimizer``  the optimizer that ends a round has stepped. With several in turn (a GAN) a round holds them all.
``backward``   there is no optimizer, it steps inside backward, or it is compiled and cannot be seen: backward has ended.
``forward``    inference: a forward has ended.

The next step begins with the next fetch from a DataLoader where there is one, else with the next forward, or with the next
call of an optimizer that runs the forward itself (a closure). Evaluation between training steps ends the step and begins
none. In a program that makes an optimizer, only training makes steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: The optimizer that ends a round has not stepped while others did so often: it is gone, or too rare to make a round.
_GONE_AFTER = 12


class Steps:
    """The state between two borders. ``begin(index)`` and ``end()`` are called at borders, strictly in turn."""

    def __init__(
        self, begin: Callable[[int], Any], end: Callable[[], Any], states: Callable[[], int] = lambda: 0
    ) -> None:
        self._begin = begin
        self._end = end
        self._states = states  # returns for how many parameters optimizers hold state
        self._states_before = 0  # the same when the open step began
        self.index = -1  # of the step that is open, or was last
        self.is_open = False
        self.user = False
        self.by_fetch = False  # fetches begin steps, forwards do not
        self.optimizer_made = False
        self.optimizer_in_backward = False
        self.backward_seen = False
        self.forward_seen = False
        self.key: object = None  # the optimizer that ends a round
        self.keys: set[object] = set()  # those that have stepped
        self.pending: set[object] = set()  # those that were made and have not stepped
        self.expected: set[object] = set()  # the same when the work of the open step was completed
        self.done = 0  # how often the work of the open step was completed
        self.held = False  # the open step goes on although its work was completed: another optimizer is to come
        self.worked = False  # the open step held a forward, a backward or an optimizer step
        self.outside = False  # the open step held a forward or backward that no optimizer called
        self.backwards = 0  # in the open step
        self.unseen = 0  # backwards in a step whose optimizer cannot be seen, 0: it can
        self.others = 0  # optimizer steps since that of ``key``
        self.empty: list[int] = []  # steps that began and held nothing
        self.closed_by = ""

    @property
    def rule(self) -> str:
        """Return what completes a step, and what begins one."""
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
        """Say whether this is a training program, as far as one can know."""
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
        """Say whether another optimizer, made and not seen to step yet, is expected to end this round."""
        if self.by_fetch or not self.expected & self.pending or self._completed_by() != "optimizer":
            return False
        self.held = True
        return True

    def _look_for_unseen(self) -> None:
        """See whether the optimizer is compiled: it has got state, and none was ever seen to step."""
        if not self.backwards or self.keys or not self.optimizer_made or self.optimizer_in_backward:
            return
        if self._states() > self._states_before:
            self.unseen, self.done = self.backwards, 1

    def fetch(self, training: bool = True, exhausted: bool = False) -> None:
        """A batch is about to be fetched on the driving thread; ``exhausted`` if the loader is known to be at its end."""
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
        """A loader has come to its end."""
        if not self.user and self.is_open and self.done:
            self._close("loader end")

    def forward(self, training: bool = True) -> None:
        """A whole network is about to be called."""
        if self.user:
            return
        first, self.forward_seen = not self.forward_seen, True
        if not training and self.trains:
            # In the middle of a step it is a teacher, a rollout, a target network: part of the step.
            self._close_for_evaluation(self.done)
            return
        if self.by_fetch:
            # A batch that is fetched once and used again and again: the fetch says nothing any more.
            if self.is_open and self.done >= 2 and self._completed_by() == "optimizer":
                self.by_fetch = False
            elif self.is_open:
                return
        if first and not self.trains and not self.is_open:
            return  # one forward alone is as a rule a look at shapes, or a warm-up
        self._border()

    def forward_end(self) -> None:
        """The network has returned."""
        self._work("forward")

    def backward(self) -> None:
        """Backward is about to run: begins a step where no forward was seen (a network that is not a module)."""
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
        """Gradients are taken away. If that follows a backward and no optimizer was ever seen to step, one did unseen."""
        if self.user or not self.optimizer_made or self.optimizer_in_backward or self.keys:
            return
        if self.is_open and self.backwards and not self.done:
            self.unseen = max(self.backwards, 1)
            if not self.by_fetch:
                self.done = 1
            else:  # the fetch for the next step has come and gone: this is that step
                self.unseen, self.backwards = 1, 0

    def made_optimizer(self, key: object = None) -> None:
        """An optimizer was made: from here on this is a training program, and only its step completes one."""
        if key is not None:
            self.pending.add(key)
            self.keys.discard(key)  # the name of one that is gone
            if key == self.key:
                self.key = None
        if self.optimizer_made:
            return
        self.optimizer_made = True
        if not self.user:
            self._close("training begins")

    def optimizer(self, key: object) -> None:
        """An optimizer is about to step, outside of everything else: begins a step where it calls the network itself."""
        if self.user or self.optimizer_in_backward:
            return
        self.optimizer_made = True
        if not self.is_open:
            self._open()
        elif self.done and not self.by_fetch and not self.outside and key == self.key and not self._goes_on():
            self._close("border")
            self._open()

    def inner_optimizer(self, key: object) -> None:
        """An optimizer has stepped inside of another one: it ends nothing."""
        self.pending.discard(key)

    def optimizer_end(self, key: object, in_backward: bool = False) -> None:
        """The outermost optimizer step on the driving thread has returned, skipped by a scaler or not."""
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
        """Find out which optimizer is the last of a round."""
        new = key not in self.keys
        self.keys.add(key)
        self.pending.discard(key)
        self.unseen = 0
        if key == self.key:
            self.others = 0
            if self.held:  # the same again, and the others have not come: they are not of this round
                self.pending.clear()
            return
        self.others += 1
        # A new one ends the round from now on, be it the second of a GAN or that of the next stage, unless it came right
        # behind the one that does, with the same backward or in the same batch.
        if self.key is None or (new and (not self.done or self.held)) or self.others >= _GONE_AFTER:
            self.key = key
            self.others = 0

    def step(self) -> None:
        """The user says that a step begins here."""
        self.user = True
        self.worked = True
        self._close("border")
        self._open()
        self.worked = True

    def exit(self) -> None:
        """The program ends."""
        self._close("exit")
