"""What to change, put together from the remedies that the probe's folder of changes names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple

from nsysx.advice import Alternative, in_words
from nsysx.inject.nsysx_probe import changes
from nsysx.model import Finding
from nsysx.saving import Saving

State = Literal["holds", "violated", "unknown"]


class Need(NamedTuple):
    """One condition of a remedy: its test of a capture says whether it holds, and what was seen; ``mend`` how to meet it, if briefly."""

    name: str
    test: Callable[..., tuple[State, str]]
    mend: str = ""


@cache
def _remedies_by_name() -> dict[str, changes.Remedy]:
    return changes.remedies()


def for_anything(names: str) -> bool:
    """Return whether a remedy, the first of several with commas between, is for whatever kernels stand there; False for unknown ones."""
    remedy = _remedies_by_name().get(names.partition(",")[0])
    return remedy is not None and remedy.for_anything


def may_lose(names: str) -> bool:
    """Return whether a remedy of some with commas between has work of its own that may take longer than what it saves."""
    return any((each := _remedies_by_name().get(name)) is not None and each.may_lose for name in names.split(","))


def rounds_sent(names: str) -> bool:
    """Return whether with a remedy of some with commas between ranks send each other rounded numbers."""
    return any((each := _remedies_by_name().get(name)) is not None and each.rounds_sent for name in names.split(","))


def way(names: str, text: str | None = None, paste: str | None = None, condition: str | None = None) -> Alternative:
    """Return the remedy of a name, or of several at once with commas between, in words of this capture where they are given.

    Raises KeyError for a name that the folder of changes does not have.
    """
    remedies = [_remedies_by_name()[name] for name in names.split(",")]
    first = remedies[0]
    return Alternative(
        names,
        first.advice if text is None else text,
        first.example if paste is None else paste,
        first.condition if condition is None else condition,
    )


@dataclass(frozen=True)
class Fix:
    """What to change, in words; ``paste`` is PyTorch code that does it, ``condition`` a sentence on what must hold for that.

    ``needs`` are the same as tests of the capture (``_needs``): what violates one is never advised, see ``answer.first_action``. ``ways``
    are the remedies that it advises, any of which will do. Code to paste is always that of one of them: what was tried is known by name.
    ``unexplained``: what to change is not known, and it says how to record that. ``mending``: what it saves alone to mend what violates
    a need, None where that is not known.
    """

    text: str
    paste: str = ""
    condition: str = ""
    needs: tuple[Need, ...] = ()
    ways: tuple[Alternative, ...] = ()
    unexplained: bool = False
    mending: Saving | None = None

    def __post_init__(self) -> None:
        if self.paste and not self.ways:
            raise ValueError(f"no remedy is named for: {self.paste}")

    @classmethod
    def by_name(
        cls,
        *ways: str | Alternative,
        text: str | None = None,
        paste: str | None = None,
        condition: str | None = None,
        needs: tuple[Need, ...] = (),
    ) -> Fix:
        """Return the advice of remedies; words for all of them together may be given."""
        if len(ways) == 1 and isinstance(ways[0], str):
            ways = (way(ways[0], text, paste, condition),)
        named = tuple(way(remedy) if isinstance(remedy, str) else remedy for remedy in ways)
        whole = in_words(named)
        if paste is None:
            paste = _beside_each_other(named) or whole.paste
        return cls(
            whole.text if text is None else text,
            paste,
            whole.condition if condition is None else condition,
            needs,
            named,
        )

    @classmethod
    def listed(cls, lead: str, ways: Sequence[tuple[str, str]], last: str, needs: tuple[Need, ...] = ()) -> Fix:
        """Return the advice of remedies in a list of words, (name, words) each, behind ``lead`` and with ``last`` before the last one."""
        texts = [words for _, words in ways]
        text = lead + (f"{', '.join(texts[:-1])}{last}{texts[-1]}" if len(texts) > 1 else texts[0])
        return cls(text, needs=needs, ways=tuple(way(name, f"{lead}{words}", "", "") for name, words in ways))

    def but(self, *, text: str | None = None, paste: str | None = None, condition: str | None = None) -> Fix:
        """Return the advice in other words; those of a remedy that stands alone are its own."""
        text = self.text if text is None else text
        paste = self.paste if paste is None else paste
        condition = self.condition if condition is None else condition
        alone = len(self.ways) == 1
        ways = (Alternative(self.ways[0].name, text, paste, condition),) if alone else self.ways
        return Fix(text, paste, condition, self.needs, ways)

    def into(self, finding: Finding, *, torch: bool = True) -> Finding:
        """Return a finding with this advice; code to paste is for programs that use torch."""
        paste, ways = (self.paste, self.ways) if torch else ("", ())
        return replace(
            finding,
            fix=self.text,
            paste=paste,
            condition=self.condition,
            remedies=ways,
            unexplained=self.unexplained,
        )


def _beside_each_other(ways: Sequence[Alternative]) -> str:
    """Return the lines of remedies that have a label, one below the other, each told by its label; "" for others."""
    labels = [_remedies_by_name()[remedy.name].label for remedy in ways if "," not in remedy.name]
    if len(ways) < 2 or len(labels) < len(ways) or not all(labels):
        return ""
    heads = [remedy.paste.partition("\n")[0] for remedy in ways]
    width = max(map(len, heads)) + 2
    told = (f"# {'or ' if i else ''}{label}" for i, label in enumerate(labels))
    rest = (remedy.paste.removeprefix(head) for remedy, head in zip(ways, heads, strict=True))
    return "\n".join(f"{head:<{width}}{label}{more}" for head, label, more in zip(heads, told, rest, strict=True))
