"""The GPU time of one step by module as an icicle: callers above what they call, repeated blocks as one box.

A box is as wide as the GPU time of its modules and of all that they call; the part with no box below it is their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from nsysx import units
from nsysx.analyses import modules
from nsysx.analyses.modules import ModuleRow
from nsysx.answer.bars import NO_MODULE, each, folded_path
from nsysx.model import Summary
from nsysx.render.first_screen import Box, LaneBoxes
from nsysx.render.safe_text import clean, scrub

#: Most levels drawn, and the share of the GPU work below which a module gets no box.
_MOST_LEVELS, _LEAST = 7, 0.004
#: Number of shades of a box, by the share of its time that is its own.
_SHADES = 4


@dataclass(slots=True)
class _Node:
    """Modules drawn as one box: repeated ones, with all their children."""

    name: str
    rows: list[ModuleRow] = field(default_factory=list)
    own_ns: float = 0.0
    all_ns: float = 0.0
    below: list[_Node] = field(default_factory=list)


def _children(rows: Iterable[ModuleRow]) -> dict[str | None, list[ModuleRow]]:
    """Return the rows by their caller; a row whose caller is not in the table is at the top."""
    rows = list(rows)
    paths = {r["path"] for r in rows}
    called: dict[str | None, list[ModuleRow]] = {}
    for row in rows:
        above = row.get("parent")
        called.setdefault(above if above in paths and above != row["path"] else None, []).append(row)
    return called


def _nodes(rows: list[ModuleRow], called: dict[str | None, list[ModuleRow]], level: int) -> list[_Node]:
    """Return the modules of one level, repeated ones of one class together, largest first."""
    nodes: dict[tuple[str, str], _Node] = {}
    for row in rows:
        pattern = folded_path(str(row["path"] or NO_MODULE))
        nodes.setdefault((pattern, str(row.get("cls") or "")), _Node(pattern)).rows.append(row)
    for node in nodes.values():
        # Work outside modules has no path, and modules at the top have no caller: that does not make them children.
        below = [r for row in node.rows if row["path"] is not None for r in called.get(row["path"], ())]
        node.own_ns = sum(row["self_gpu_ns"] or 0 for row in node.rows)
        node.below = _nodes(below, called, level + 1) if below and level < 4 * _MOST_LEVELS else []
        node.all_ns = node.own_ns + sum(n.all_ns for n in node.below)
    return sorted(nodes.values(), key=lambda n: (-n.all_ns, n.name))


def _label(node: _Node, above: str) -> str:
    """Return the name of a box below the one above it: "attn", "blocks x 8", "Conv2d x 10"."""
    name = node.name
    if len(node.rows) == 1:
        name = str(node.rows[0]["path"] or NO_MODULE)
    short = name[len(above) + 1 :] if above and name.startswith(f"{above}.") else name
    if len(node.rows) > 1:
        kind = str(node.rows[0].get("cls") or "")
        base = short.removesuffix("*").rstrip(".") or kind or "module"
        short = f"{base} x {len(node.rows)}"
    return clean(short, 60)


def build(summary: Summary, *, redact: bool = True) -> tuple[LaneBoxes, ...]:
    """Return the levels from the top down as boxes, in percent of the GPU work of one step; none without modules.

    ``redact`` hides what names a person or machine.
    """
    called = _children(summary.of(modules.ROWS))
    roots = _nodes(called.get(None, []), called, 0)
    whole = sum(n.all_ns for n in roots)
    if whole <= 0 or len(summary.of(modules.ROWS)) < 2:
        return ()
    per_step = each(summary)
    levels: list[list[Box]] = []
    todo = [(0, 0.0, "", roots)]
    for level, left, above, nodes in todo:  # grows while it is iterated
        if level == _MOST_LEVELS:
            continue
        for node in nodes:
            width = 100 * node.all_ns / whole
            if width < 100 * _LEAST:
                break  # all that follow are smaller still
            if level == len(levels):
                levels.append([])
            levels[level].append(
                _box(node, left, width, above, per_step(node.all_ns), per_step(node.own_ns), per_step(whole))
            )
            todo.append((level + 1, left, node.name, node.below))
            left += width
    if sum(map(len, levels)) < 2:  # one box says nothing
        return ()
    if redact:
        levels = [[replace(b, text=scrub(b.text), title=scrub(b.title)) for b in boxes] for boxes in levels]
    return tuple(LaneBoxes("", tuple(sorted(boxes, key=lambda b: b.left))) for boxes in levels)


def _box(node: _Node, left: float, width: float, above: str, all_ns: float, own_ns: float, whole: float) -> Box:
    label = _label(node, above)
    kinds = sorted({str(r["cls"]) for r in node.rows if r.get("cls")})
    named = f" ({clean(kinds[0], 60)})" if len(kinds) == 1 and kinds[0] not in label else ""
    title = f"{label}{named}: {units.duration(all_ns)} a step, {units.share(all_ns, whole)} of the GPU's work"
    if node.below:
        title += f"; {units.duration(own_ns)} of it outside the modules below"
    shade = round(_SHADES * own_ns / all_ns) if all_ns else 0
    return Box(left, width, f"own{shade}", False, label, title)
