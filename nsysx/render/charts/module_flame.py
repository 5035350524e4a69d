"""The GPU time of one step by module as a flame graph: callers above what they call, repeated blocks as one box."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from nsysx import units
from nsysx.analyses import modules
from nsysx.analyses.modules import ModuleRow
from nsysx.answer.bars import NO_MODULE, each, folded_path
from nsysx.model import Summary
from nsysx.render.charts.canvas import Chart
from nsysx.render.charts.flame_graph import boxes_json, flame, frames
from nsysx.render.render_bounds import MODULE_LEAST, MODULE_LEVELS
from nsysx.render.safe_text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TABLE = modules.KEY


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
        node.below = _nodes(below, called, level + 1) if below and level < 4 * MODULE_LEVELS else []
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


def stacks(summary: Summary) -> dict[tuple[str, ...], float]:
    """Return the GPU time (ns) of one step by module, each below those that call it; none without at least two boxes.

    Modules that call each other in a circle have none. Different ones of one name are told apart by their number.
    """
    called = _children(summary.typed_rows(modules.ROWS))
    roots = _nodes(called.get(None, []), called, 0)
    whole = sum(n.all_ns for n in roots)
    if whole <= 0 or len(summary.typed_rows(modules.ROWS)) < 2:
        return {}
    per_step = each(summary)
    times: dict[tuple[str, ...], float] = {}

    def add(nodes: list[_Node], above: tuple[str, ...], caller: str) -> None:
        for node in nodes:
            label = _label(node, caller)
            names = (*above, label)
            number = 2
            while names in times:
                names, number = (*above, f"{label} #{number}"), number + 1
            times[names] = 0.0
            seen = [n for n in node.below if n.all_ns >= MODULE_LEAST * whole] if len(names) < MODULE_LEVELS else []
            add(seen, names, node.name)
            times[names] = per_step(node.all_ns - sum(n.all_ns for n in seen))

    shown = [n for n in roots if n.all_ns >= MODULE_LEAST * whole]
    add(shown, (), "")
    return times if len(times) > 1 else {}


def chart(summary: Summary, ax: Axes | None = None) -> Chart | None:
    """Return the picture of the modules, None without modules."""
    times = stacks(summary)
    if not times:
        return None
    whole = sum(times.values())
    most = max(times, key=lambda names: times[names])
    top = max((f for f in frames(times) if f.level == 0), key=lambda f: f.end_ns - f.start_ns)
    alt = (
        f"GPU time by module: {top.name} with all that it calls takes {units.duration(top.end_ns - top.start_ns)}; "
        f"most alone takes {most[-1]}, {units.duration(times[most])}, {units.share(times[most], whole)}."
    )
    caption = (
        "A box is as wide as the GPU time of the module and of all that it calls, in one step; repeated blocks are one box. "
        "The stronger its color, the more of that is the module's own."
    )
    return Chart(TABLE, partial(flame, times, "GPU time of one step", ax=ax), alt, caption, boxes_json(frames(times)))
