"""Finds the period of a program that only infers, from the order in which it calls its networks. No torch, no NVTX.

Without an optimizer, a backward or a loader, the calls are all that tells steps apart. A step is what repeats:

- The first network begins a step each time it is called. Until it is called a second time, so does another that is called again.
- A network that takes over from the first begins the steps from then on.
- If steps by that rule do not all call the same networks (a draft model four times, then the large one), the calls must repeat as a
  word; from its third occurrence on the word decides.
- Weights that change between two calls are a zeroth-order method at work. It changes them least between the calls of one step.

A rule that learns late has begun too many or too few steps before. ``correction`` is what must be added to their number.
"""

from __future__ import annotations

from .probe_bounds import MOST_PERIOD_CALLS, PERIOD_REPEATS


class Calls:
    """Is told of each outermost call of a network, and answers whether it begins a step."""

    def __init__(self) -> None:
        self._begun = 0
        self._correction = 0
        self._anchor: object = None
        self._repeats = False  # the anchor has been called again
        self._loose = 0  # steps that others began before that
        self._here: dict[object, int] = {}  # calls of each network since the anchor's last
        self._known: set[object] = set()  # networks that were called between two calls of the anchor
        self._history: list[object] = []
        self._learning = True
        self._word: list[object] = []
        self._at = 0  # the place in the word of the next call
        self._versions: dict[object, int] = {}
        self._least: int | None = None  # least change of weights between two calls
        self._updated = False  # weights have changed by more than that

    @property
    def correction(self) -> int:
        """Return the true number of steps less the number of those begun."""
        never = (
            self._least is not None and not self._updated
        )  # weights changed by the same in each step, so each call was one
        return self._correction + int(never)

    def begins(self, network: object, version: int | None = None) -> bool:
        """Return whether this call begins a step; ``version`` counts the changes of the network's weights."""
        begins = self._by_word(network)
        if begins is None:
            begins = self._by_anchor(network, version)
            self._begun += begins
            self._learn(network)
        else:
            self._begun += begins
        return begins

    def _by_word(self, network: object) -> bool | None:
        """Return whether the word begins anew with this call, None if there is no word or no more."""
        if not self._word:
            return None
        if network == self._word[self._at]:
            begins = self._at == 0
            self._at = (self._at + 1) % len(self._word)
            return begins
        self._anchor, self._repeats, self._known = self._word[0], True, set(self._word)
        self._word, self._here = [], {}
        return None

    def _by_anchor(self, network: object, version: int | None) -> bool:
        if self._same_step(network, version):
            return False
        again = self._here[network] = self._here.get(network, 0) + 1
        if self._anchor is None or network == self._anchor:
            if self._anchor is not None and not self._repeats:
                self._repeats = True
                self._correction -= self._loose
            self._known |= {n for n in self._here if n != network}
            self._anchor, self._here = network, {network: 1}
            return True
        if again == 1:
            return False
        if not self._repeats:
            self._loose += 1
            return True
        if network in self._known:
            return False
        # It was never called between two calls of the anchor, and now it is twice: the anchor is gone.
        self._correction += 1
        self._anchor, self._here, self._known = network, {network: 1}, set()
        return True

    def _same_step(self, network: object, version: int | None) -> bool:
        """Return whether weights have changed since the last call as they do within a step of a zeroth-order method."""
        before = self._versions.get(network)
        if version is None:
            return False
        self._versions[network] = version
        if before is None or version <= before:
            return False
        change = version - before
        if self._least is None:
            self._least = change
            return True
        if change > self._least and not self._updated:
            self._updated = True
            self._correction = 1 - self._begun  # all calls so far were one step
            return False
        return self._updated and change <= self._least

    def _learn(self, network: object) -> None:
        """Look for a word that the calls repeat and that holds every network that was called more than once."""
        calls = self._history
        if not self._learning:
            return
        calls.append(network)
        count = len(calls)
        self._learning = count < MOST_PERIOD_CALLS
        often = {n for n in set(calls) if calls.count(n) > 1}
        if len(often) < 2:
            return
        for length in range(2, count // PERIOD_REPEATS + 1):
            if calls[-length:] * PERIOD_REPEATS == calls[-length * PERIOD_REPEATS :] and often <= set(calls[-length:]):
                self._use(length)
                return

    def _use(self, length: int) -> None:
        """Steps are words of ``length`` calls from here on, if the anchor's rule would not make whole steps."""
        self._learning = False
        calls = self._history
        first = len(calls) - PERIOD_REPEATS * length
        while first > 0 and calls[first - 1] == calls[first - 1 + length]:
            first -= 1
        word = calls[first : first + length]
        anchor = word.index(self._anchor) if self._anchor in word else 0
        parts: list[set[object]] = []
        for network in word[anchor:] + word[:anchor]:
            if network == self._anchor or not parts:
                parts.append(set())
            parts[-1].add(network)
        if self._anchor in word and all(part == set(word) for part in parts):
            return
        done = len(calls) - first
        self._word, self._at = word, done % length
        self._correction = int(first > 0) + -(-done // length) - self._begun
