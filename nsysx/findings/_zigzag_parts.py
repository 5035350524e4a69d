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
#: x[rank * size : (rank + 1) * size], size = seq // world: the same as a slice.
_RANK = r"(?:\w+\.)*\w*rank\b(?:\(\))?"
_SLICE = re.compile(
    rf"\b(?P<whole>[A-Za-z_][\w.]*)\[\s*(?P<rank>{_RANK})\s*\*\s*(?P<size>[A-Za-z_][\w.]*)\s*:\s*"
    r"\(\s*(?P=rank)\s*\+\s*1\s*\)\s*\*\s*(?P=size)\s*\]"
)
_OF_WORLD = rf"=\s*[A-Za-z_][\w.]*\s*//\s*(?P<world>{_CALL})\s*(?:#.*)?$"
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
    if share is not None and world.startswith("self.") and not lines.uses(share.rank):  # another object's
        world = "world"
    first, others = lines.names[0], lines.names[1:]
    several, parts = " and ".join(lines.names), f"{first}.chunk(2 * {world})"
    alike = f"{' and '.join(others)} alike; " if others else ""
    in_order = (
        f"{first} = torch.cat({parts}[0::2] + {parts}[1::2][::-1])  # {alike}{lines.restored}, the sequence first"
    )
    ended = f" (line {lines.ended})" if lines.ended is not None else ""
    told = (
        f"The shares{taken} are half of the change: {several} of line {lines.gathered} come by rank then, and go back into order. "
        f"{lines.end}{ended} and the mask of line {line} hold for one stretch: call attention once for each half of the queries, up to its "
        "own end."
    )
    return fix.but(paste=f"{parted}\n{in_order}", condition=told).into(finding, torch=case.program.torch)


class Share(NamedTuple):
    """The line at which a rank takes its stretch, with the two parts of a zigzag in its place (``paste``), ``where`` it stands, and what it
    calls the number of ranks and its own.
    """

    paste: str
    world: str
    where: str
    rank: str


def share_of_parts(profile: Profile) -> Share | None:
    """Return the one line of the program that gives a rank its stretch of what is cut in as many as ranks; None without one."""
    noted = {
        (file, line) for source in (texts_of_ranks(profile), texts(profile)) for file in source for line in source[file]
    }
    cuts = {
        (file, line): text
        for file, line in sorted(noted)
        if line.isdigit() and (_STRETCH.search(text := code_of_ranks(profile, file, int(line))) or _SLICE.search(text))
    }
    if len(cuts) != 1:
        return None
    ((file, line), text) = next(iter(cuts.items()))
    where, cut = f"{file.rpartition('/')[2]}:{line}", _SLICE.search(text)
    if cut is None:
        return zigzag(text, where)
    sizes = re.compile(rf"^{re.escape(cut['size'])}\s*{_OF_WORLD}")
    lines = (code_of_ranks(profile, name, int(number)) for name, number in noted if name == file and number.isdigit())
    worlds = {size["world"] for size in map(sizes.match, lines) if size is not None}
    return _of_slice(text, where, cut, worlds.pop()) if len(worlds) == 1 else None


def _of_slice(text: str, where: str, cut: re.Match[str], world: str) -> Share:
    """Return a line that takes a slice of the ranks' size with two parts in its place; ``world``: how many such slices there are."""
    parts = (
        f"torch.cat([{cut['whole']}.chunk(2 * {world})[p] for p in ({cut['rank']}, 2 * {world} - 1 - {cut['rank']})])"
    )
    paste = f"{text[: cut.start()]}{parts}{text[cut.end() :]}  # tokens, targets and positions alike"
    return Share(paste, world, where, cut["rank"])


def zigzag(text: str, where: str) -> Share | None:
    """Return a line that takes a stretch with two parts in its place; None where it takes none."""
    cut = _STRETCH.search(text)
    if cut is None:
        return None
    whole, world, rank, dim = cut["given"] or cut["called"], cut["world"], cut["rank"], cut["dim"] or ""
    parts = f"torch.cat([{whole}.chunk(2 * {world}{dim})[p] for p in ({rank}, 2 * {world} - 1 - {rank})]{dim})"
    return Share(
        f"{text[: cut.start()]}{parts}{text[cut.end() :]}  # tokens, targets and positions alike", world, where, rank
    )


class _LinesBefore(NamedTuple):
    """What attention is given up to an end, by its names, the line that gathers that, and the one that makes the end where it is seen.

    ``restored``: where the program puts it back in order, in words; ``texts``: the lines of the function up to attention.
    """

    names: tuple[str, ...]
    end: str
    gathered: int
    ended: int | None
    restored: str
    texts: tuple[str, ...]

    def uses(self, name: str) -> bool:
        """Return whether the function of attention uses this name, so that others of its object hold there, too."""
        return any(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text) for text in self.texts)


def _lines_of(source: Mapping[int, str], line: int) -> _LinesBefore | None:
    """Return the lines before attention at a line; None where its keys have no end, or are not seen to be gathered."""
    before: list[int] = []
    for number in range(line - 1, max(line - LINES_TO_ATTENTION, 0), -1):
        if _BEGINS.search(source.get(number, "")):
            break
        before.append(number)
    call = " ".join(source.get(number, "") for number in range(line, line + LINES_OF_ATTENTION + 1))
    cut, function = line, [call, *(source.get(n, "") for n in before)]
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
    restored = f"behind line {gathered}"
    if gathered is None:  # by the caller, under the same names
        within = {*before, *range(cut, line + LINES_OF_ATTENTION + 1)}
        others = {n: text for n, text in source.items() if n not in within and not text.startswith("def ")}
        gathered, restored = _gathered_by_caller(others, names), f"before line {cut}"
    return None if gathered is None else _LinesBefore(names, end, gathered, ended, restored, tuple(function))


def _gathered_by_caller(source: Mapping[int, str], names: tuple[str, ...]) -> int | None:
    """Return the one line that gathers what goes by these names into a call soon behind it; None without one."""
    given = re.compile(r"\w\([^()]*" + r"[^()]*".join(rf"(?<![\w.]){name}(?![\w.])" for name in names))
    lines = [
        n
        for n, text in source.items()
        if _names(text) == {*names}
        and _GATHERS.search(text)
        and any(given.search(source.get(m, "")) for m in range(n + 1, n + 1 + LINES_TO_ATTENTION))
    ]
    return lines[0] if len(lines) == 1 else None


def _names(text: str) -> frozenset[str]:
    """Return the names that a line assigns."""
    assigned = _ASSIGNED.match(text)
    return frozenset(re.split(r"\s*,\s*", assigned[1])) if assigned else frozenset()
