"""What else changes with the share of a sequence that a rank takes, in the program's own names: its mask, and what it gathers.

Tokens alone are half of it: a rank whose tokens are two parts of the sequence still masks as for one stretch, and keys that come from all
ranks are in the order of ranks. By the texts of the lines behind the attention and before it in its function.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from nsysx.analyses.lines import code_of_ranks, texts, texts_of_ranks
from nsysx.events.profile import Profile
from nsysx.findings._case import Case, Fix
from nsysx.findings._job_bounds import LINES_OF_ATTENTION, LINES_TO_ATTENTION
from nsysx.model import Finding

#: k[:end], as keys and values are given that end with what a rank sees.
_UNTIL_END = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\[:\s*([A-Za-z_]\w*)\s*\]")
_GATHERS = re.compile(r"(?i)gather")
_ASSIGNED = re.compile(r"^([A-Za-z_]\w*(?:\s*,\s*[A-Za-z_]\w*)*)\s*=(?!=)")
_CALL = r"[A-Za-z_][\w.]*(?:\(\))?"
#: x.chunk(world)[rank], torch.chunk(x, world, dim=1)[rank]: the stretch that a rank takes.
_STRETCH = re.compile(
    rf"(?P<whole>(?:\btorch\.chunk\(\s*(?P<given>[A-Za-z_][\w.]*)\s*,\s*|\b(?P<called>[A-Za-z_][\w.]*)\.chunk\(\s*)"
    rf"(?P<world>{_CALL})\s*(?P<dim>,\s*(?:dim\s*=\s*)?-?\d+)?\s*\)\[\s*(?P<rank>(?:\w+\.)*\w*rank\b(?:\(\))?)\s*\])"
)
_BEGINS = re.compile(r"^(async\s+)?def\b|^class\b|^return\b")


def in_names_of_lines(case: Case, fix: Fix, finding: Finding) -> Finding:
    """Return a finding that advises such a share with what else has to change; in general words where the lines do not tell."""
    file, line = finding.where.get("file"), finding.where.get("line")
    source = {int(n): str(text).strip() for n, text in texts(case.profile).get(str(file), {}).items() if n.isdecimal()}
    lines = _lines_of(source, line) if isinstance(line, int) else None
    if lines is None:
        return finding
    share = share_of_parts(case.profile)
    world, parted, taken = (
        ("world", fix.paste, "") if share is None else (share.world, share.paste, f" of {share.where}")
    )
    first, others = lines.names[0], lines.names[1:]
    several, parts = " and ".join(lines.names), f"{first}.chunk(2 * {world})"
    alike = f"{' and '.join(others)} alike; " if others else ""
    in_order = f"{first} = torch.cat({parts}[0::2] + {parts}[1::2][::-1])  # {alike}behind line {lines.gathered}, the sequence first"
    ended = f" (line {lines.ended})" if lines.ended is not None else ""
    told = (
        f"Shares{taken} alone are half of it: {several} of line {lines.gathered} then come in the order of ranks and go back in order. "
        f"{lines.end}{ended} and the mask of line {line} hold for one stretch: call attention once for each half of the queries, up to its "
        "own end."
    )
    return fix.but(paste=f"{parted}\n{in_order}", condition=told).into(finding, torch=case.program.torch)


class Share(NamedTuple):
    """The line at which a rank takes its stretch, with the two parts of a zigzag in its place (``paste``), ``where`` it stands, and what it
    calls the number of ranks.
    """

    paste: str
    world: str
    where: str


def share_of_parts(profile: Profile) -> Share | None:
    """Return the one line of the program that gives a rank its stretch of what is cut in as many as ranks; None without one."""
    noted = {
        (file, line) for source in (texts_of_ranks(profile), texts(profile)) for file in source for line in source[file]
    }
    cuts = {
        (file, line): text
        for file, line in sorted(noted)
        if line.isdigit() and _STRETCH.search(text := code_of_ranks(profile, file, int(line)))
    }
    if len(cuts) != 1:
        return None
    ((file, line), text) = next(iter(cuts.items()))
    return zigzag(text, f"{file.rpartition('/')[2]}:{line}")


def zigzag(text: str, where: str) -> Share | None:
    """Return a line that takes a stretch with two parts in its place; None where it takes none."""
    cut = _STRETCH.search(text)
    if cut is None:
        return None
    whole, world, rank, dim = cut["given"] or cut["called"], cut["world"], cut["rank"], cut["dim"] or ""
    parts = f"torch.cat([{whole}.chunk(2 * {world}{dim})[p] for p in ({rank}, 2 * {world} - 1 - {rank})]{dim})"
    return Share(
        f"{text[: cut.start()]}{parts}{text[cut.end() :]}  # tokens, targets and positions alike", world, where
    )


class _LinesBefore(NamedTuple):
    """What attention is given up to an end, by its names, the line that gathers that, and the one that makes the end where it is seen."""

    names: tuple[str, ...]
    end: str
    gathered: int
    ended: int | None


def _lines_of(source: Mapping[int, str], line: int) -> _LinesBefore | None:
    """Return the lines before attention at a line; None where its keys have no end, or are not seen to be gathered."""
    before: list[int] = []
    for number in range(line - 1, max(line - LINES_TO_ATTENTION, 0), -1):
        if _BEGINS.search(source.get(number, "")):
            break
        before.append(number)
    call = " ".join(source.get(number, "") for number in range(line, line + LINES_OF_ATTENTION + 1))
    if not (ends := _UNTIL_END.findall(call)):  # cut in a line of its own, under the same names
        cut = next((n for n in before if _UNTIL_END.search(source.get(n, ""))), 0)
        ends = _UNTIL_END.findall(source.get(cut, ""))
        if not {name for name, _ in ends} <= _names(source.get(cut, "")):
            return None
        before = [n for n in before if n < cut]
    if not ends or len({end for _, end in ends}) > 1:
        return None
    names, end = tuple(dict.fromkeys(name for name, _ in ends)), ends[0][1]
    made = {number: _names(source.get(number, "")) for number in before}
    gathered = next((n for n in before if made[n] & {*names} and _GATHERS.search(source[n])), None)
    ended = next((n for n in before if end in made[n]), None)
    return None if gathered is None else _LinesBefore(names, end, gathered, ended)


def _names(text: str) -> frozenset[str]:
    """Return the names that a line assigns."""
    assigned = _ASSIGNED.match(text)
    return frozenset(re.split(r"\s*,\s*", assigned[1])) if assigned else frozenset()
