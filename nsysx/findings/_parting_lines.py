"""The line of the program at which several things part that are asked for together, such as the layers that are given one tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from nsysx.events.code_lines import CodeLines
from nsysx.findings._case import Case
from nsysx.model import Row


def parting_line(case: Case, groups: Sequence[Sequence[tuple[int, int]]]) -> Row:
    """Return file and line at which most of some groups part, each of (thread, instant); empty where no line is known."""
    code, places = case.profile.code(), Counter[int]()
    if code is None:
        return {}
    for group in groups:
        stacks = [int(code.at(thread, np.array([start_ns]))[0]) for thread, start_ns in group]
        places.update({_parting(code, [code.own_chain(stack)[::-1] for stack in stacks]): len(group)})
    del places[-1]
    return code.where(max(places, key=lambda line: places[line])) if places else {}


def _parting(code: CodeLines, chains: Sequence[Sequence[int]]) -> int:
    """Return the line of the innermost function that all chains of lines pass: the one in which most do, -1 without one."""
    parting = -1
    for lines in zip(*chains, strict=False):
        if len({code.places.row(line)[::2] for line in lines}) > 1:  # file and function
            break
        often = Counter(lines)
        parting = max(often, key=lambda line: (often[line], -line))
        if len(often) > 1:
            break
    return parting
