"""Counts of scores at thresholds in a program's own lines: masks of all scores and thresholds, as sums of a histogram's cells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_EXPRESSION = r"[A-Za-z_][\w.]*"
_CONVERTED = r"(?:\.(?:float|int|long|bool)\(\))?"
#: One more dimension behind all others, and before them.
_BEHIND = r"(?:\[(?:(?::\s*,\s*)+|\.\.\.\s*,\s*)None\s*\]|\.unsqueeze\(-1\))"
_BEFORE = r"(?:\[(?:None\s*,\s*)+:?\s*\]|\.unsqueeze\(0\))?"
_COMPARES = (
    rf"(?:(?P<scores>{_EXPRESSION}){_BEHIND}\s*(?P<sign>[<>]=?)\s*(?P<grid>{_EXPRESSION}){_BEFORE}|"
    rf"(?P<grid_first>{_EXPRESSION}){_BEFORE}\s*(?P<sign_first>[<>]=?)\s*(?P<scores_last>{_EXPRESSION}){_BEHIND})"
)
#: above = score[:, None] >= grid, and the same within a statement.
_COMPARED = re.compile(
    rf"^(?P<mask>[A-Za-z_]\w*)\s*=\s*(?:{_COMPARES}|\({_COMPARES.replace('?P<', '?P<in_')}\){_CONVERTED})$"
)
_INLINE = re.compile(rf"\({_COMPARES}\){_CONVERTED}")
_OTHER_MASK = re.compile(r"^(?P<name>[A-Za-z_]\w*)\s*=\s*(?:~|1\s*-\s*)\s*(?P<mask>[A-Za-z_]\w*)$")
_WEIGHTS = re.compile(rf"^(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<made>.+?){_BEHIND}(?P<converted>{_CONVERTED})$")
_FACTOR = rf"~?{_EXPRESSION}(?:{_BEHIND}{_CONVERTED})?"
#: tp += (above * pos).sum(0)
_SUMMED = re.compile(
    r"^(?P<target>[A-Za-z_][\w.]*(?:\[[\"'\w]+\])?)\s*(?P<assigned>\+?=)\s*"
    rf"\(?\s*(?P<first>{_FACTOR})\s*(?:[*&]\s*(?P<second>{_FACTOR})\s*)?\)?\.sum\((?:dim\s*=\s*|axis\s*=\s*)?0\)$"
)
#: A sign as of ``scores sign grid`` where the grid stands first, and what a comparison is called that has no name.
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NAMELESS = {True: "mask_behind", False: "mask_before"}
#: Names of the lines that are pasted.
_OWN_NAMES = re.compile(r"\b(cell|columns|size|in_cells)\b(?!\()")


class _Compared(NamedTuple):
    """A comparison of scores with a grid: the name of its mask, both, whether a score at a threshold lies behind it, and whether the
    mask holds the scores behind the threshold.
    """

    mask: str
    scores: str
    grid: str
    right: bool
    behind: bool


def counted_in_cells(compared: Sequence[str], summed: Sequence[str], lines: Sequence[str], sums: int) -> str:
    """Return the lines in place of comparisons, their masks and the sums; "" where the program's do not say what is summed.

    ``summed``: the statements of that many ``sums``, ``lines``: all of the function near them.
    """
    comparisons = [_comparison(text) for text in compared]
    if (
        len({each and each[1:4] for each in comparisons}) != 1
        or len(summed) != sums
        or any(map(_OWN_NAMES.search, lines))
    ):
        return ""
    behind = {each.mask: each.behind for each in comparisons if each is not None}
    for other in filter(None, (_OTHER_MASK.match(_code(line)) for line in lines)):
        if other["mask"] in behind:
            behind[other["name"]] = not behind[other["mask"]]
    weights = {m["name"]: m["made"] + m["converted"] for line in lines if (m := _WEIGHTS.match(_code(line)))}
    if comparisons[0] is None:
        return ""
    _, scores, grid, right, _ = comparisons[0]
    cells, totals = dict[str, str](), list[str]()
    for text in summed:
        match = _SUMMED.match(_INLINE.sub(lambda inline: _compared_of(inline, "").mask, _code(text)))
        factors = [] if match is None else [match[name] for name in ("first", "second") if match[name]]
        masks = [factor for factor in factors if factor.removeprefix("~") in behind]
        if match is None or len(masks) != 1:
            return ""
        (factor,) = [each for each in factors if each not in masks] or [""]
        weight = _without_last(factor, weights) if factor else f"torch.ones_like({scores}, dtype=torch.long)"
        if weight is None:
            return ""
        name = next((earlier for earlier, made in cells.items() if made == weight), None)
        if name is None:
            name = factor if factor in weights else f"counts_{len(cells)}"
            cells[name] = weight
        # Cells are numbered by how many thresholds lie before them: a mask holds those behind its threshold, or those up to it.
        from_behind = behind[masks[0].removeprefix("~")] ^ masks[0].startswith("~")
        total = f"{name}.flip(-1).cumsum(-1).flip(-1)[..., 1:]" if from_behind else f"{name}.cumsum(-1)[..., :-1]"
        totals.append(f"{match['target']} {match['assigned']} {total}")
    names, made = ", ".join(cells), ", ".join(f"in_cells({_bare(weight)})" for weight in cells.values())
    return "\n".join(
        (
            f"cell = torch.bucketize({scores}, {grid}, right={right})  # {grid} ascends; {scores}: samples first",
            f"columns, size = {scores}[0].numel(), len({grid}) + 1",
            f"cell = (cell.view(-1, columns) + size * torch.arange(columns, device={scores}.device)).flatten()",
            "def in_cells(w):  # the weight in each interval of scores",
            f"    w = w.expand_as({scores}).flatten().to(torch.float if w.is_floating_point() else torch.long)",
            f"    return w.new_zeros(columns * size).scatter_add_(0, cell, w).view(*{scores}.shape[1:], size)",
            f"{names} = {made}",
            *totals,
        )
    )


def _comparison(text: str) -> _Compared | None:
    """Return the comparison that a statement makes, None where it says none, or more than one."""
    named = _COMPARED.match(_code(text))
    if named is not None:
        return _compared_of(named, "in_" if named["in_scores"] or named["in_scores_last"] else "", named["mask"])
    inline = list(_INLINE.finditer(text))
    return _compared_of(inline[0], "") if len(inline) == 1 else None


def _compared_of(match: re.Match[str], prefix: str, mask: str = "") -> _Compared:
    first, last = match[f"{prefix}scores"], match[f"{prefix}scores_last"]
    grid = match[f"{prefix}grid"] or match[f"{prefix}grid_first"]
    sign = match[f"{prefix}sign"] or _MIRRORED[match[f"{prefix}sign_first"]]
    behind = sign in (">", ">=")
    return _Compared(mask or _NAMELESS[behind], first or last, grid, right=sign in (">=", "<"), behind=behind)


def _without_last(factor: str, weights: dict[str, str]) -> str | None:
    """Return what a factor is without the thresholds' dimension; None where that is not known."""
    if factor in weights:
        return weights[factor]
    match = re.match(rf"^({_EXPRESSION}){_BEHIND}({_CONVERTED})$", factor)
    return None if match is None else f"{match[1]}{match[2]}"


def _bare(made: str) -> str:
    """Return an expression without the parentheses around all of it."""
    inner = made[1:-1]
    depth = 0
    for sign in inner:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if depth < 0:
            return made
    return inner if made.startswith("(") and made.endswith(")") else made


def _code(line: str) -> str:
    """Return a line without a remark behind it."""
    return line.partition("  #")[0].strip()
