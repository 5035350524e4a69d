"""Statements of the program that drop the oldest rows of tensors and put new ones behind, written over the oldest in place."""

from __future__ import annotations

import re
from collections.abc import Callable

from nsysx.findings._case import Fix

#: whole = torch.cat([whole[n:], new])
_SLIDES = re.compile(
    r"^\s*(?P<whole>[\w.]+)\s*=\s*torch\.(?:cat|concat|concatenate)\(\s*[\[(]\s*(?P=whole)\[(?P<first>[^\[\]:]+):\]\s*,\s*(?P<new>[\w.]+)\s*"
    r"[\])]\s*(?:,\s*(?:(?:dim|axis)\s*=\s*)?0\s*)?\)\s*$"
)


def ring(fix: Fix, text_of_line: Callable[[int], str | None], line: int) -> Fix:
    """Return the remedy in the words of a line and of those right before and behind that drop as many rows: these belong to them."""
    slides = _slides(text_of_line(line))
    if slides is None:
        return fix
    first, last = line, line
    while _alike(_slides(text_of_line(first - 1)), slides):
        first -= 1
    while _alike(_slides(text_of_line(last + 1)), slides):
        last += 1
    every = [each for n in range(first, last + 1) if (each := _slides(text_of_line(n))) is not None]
    whole, new = every[0]["whole"], every[0]["new"]
    owner = whole.rpartition(".")[0]
    oldest = f"{owner}.oldest" if owner else "oldest"
    names = {name for each in every for name in (each["whole"], each["new"])}
    rows = "slots" if "rows" in names else "rows"
    paste = [
        f"{rows} = ({oldest} + torch.arange(len({new}), device={whole}.device)) % len({whole})",
        *(f"{each['whole']}[{rows}] = {each['new']}" for each in every),
        f"{oldest} = ({oldest} + len({new})) % len({whole})",
    ]
    return fix.but(
        paste="\n".join(paste),
        condition=f"Begin with {oldest} = 0, and tensors of their full length. The oldest row is at {oldest} then: what counts rows "
        f"from it on reads ({oldest} + number) % len({whole}).",
    )


def _slides(text: str | None) -> re.Match[str] | None:
    return _SLIDES.match((text or "").partition("  #")[0])


def _alike(other: re.Match[str] | None, slides: re.Match[str]) -> bool:
    """Return whether another line drops as many rows of a tensor of the same object."""
    return (
        other is not None
        and other["first"] == slides["first"]
        and other["whole"].rpartition(".")[0] == slides["whole"].rpartition(".")[0]
    )
