"""The lines at which a late rank's host is longer than its peers': which of them hold it up, in words, and what can be done about them."""

from __future__ import annotations

import re
from pathlib import PurePath

from nsysx import units
from nsysx.findings import _copied_weights, _line_remedies
from nsysx.findings._case import Fix
from nsysx.findings._finding_bounds import COPIES_LATE_SHARE, MOST_SHARE, RUN_ON_PEERS_SHARE
from nsysx.model import Row


def holds(late: Row) -> Row | None:
    """Return the line that holds a rank longer than its peers, else the first of its lines in one function that do together; None where
    none does, or all take longer by a like share. ``lines``: how many they are.
    """
    lines = late.get("late_lines") or ()
    first: Row = next(iter(lines), {})
    together = [x for x in lines if x.get("function") and all(x[k] == first[k] for k in ("file", "function"))]
    for held in (list(lines[:1]), together):
        ns, there = (sum(x[column] for x in held) for column in ("ns", "others_ns"))
        if held and ns >= 2 * there and ns - there >= MOST_SHARE * late["late_ns"]:
            return {**first, "ns": ns, "others_ns": there, "lines": len(held)}
    return None


def line_in_words(line: Row) -> str:
    """Return a line as people write it, with what stands there, and with how many more of its function."""
    text = _line_remedies.quoted(str(line["text"] or ""))
    more = f" with {units.several(line['lines'] - 1, 'more line')} of {line['function']}" if line["lines"] > 1 else ""
    return f"{PurePath(str(line['file'])).name}:{line['line']}" + (f" `{text}`" if text else "") + more


def line_by_ranks(line: Row) -> str:
    """Return how long a line takes on the late rank and on the others."""
    others = units.duration(line["others_ns"]) if line["others_ns"] else "nothing"
    return f"{units.duration(line['ns'])} per step there and {others} on its peers"


def fix_of(line: Row, late: Row) -> Fix:
    """Return what can be done about a line that one rank waits in, or that takes it longer than its peers, which run it, too."""
    if line["others_ns"] >= RUN_ON_PEERS_SHARE * line["ns"]:
        return Fix.by_name(
            "equal-host-work",
            text=f"Give every rank as much to do in {line_in_words(line)}: it takes rank {late['rank']} {units.duration(line['ns'])} a "
            f"step, and its peers {units.duration(line['others_ns'])}",
        )
    text = str(line["text"] or "")
    remedy = _line_remedies.fix_of(_line_remedies.Seen(text))
    alone = f"Only rank {late['rank']} is held by {line_in_words(line)}{_calling(line, late)}"
    if _copied_weights.kept_on_cpu(text) and _copies_more(late):
        return kept_on_gpu(line, late)
    if remedy is None:
        return Fix(f"{alone}: take it out of the step, do it beside the steps, or share it between the ranks")
    return remedy.but(text=f"{alone}: {units.uncapitalized(remedy.text)}")


def kept_on_gpu(line: Row, late: Row) -> Fix:
    """Return the advice to keep on the GPU what a line that one rank alone runs keeps of the weights."""
    there = f"{line_in_words({**line, 'text': '', 'lines': 1})}{_calling(line, late)}"
    beside = [str(x["text"] or "") for x in late["late_lines"] or () if x.get("function") == line["function"]]
    return _copied_weights.on_gpu(
        [str(line["text"] or ""), *beside],
        f"Keep on the GPU what rank {late['rank']} alone keeps of the weights, updated in one call: the others wait for {there}",
        f"Let each rank keep on its GPU what rank {late['rank']} alone keeps of the weights, of its own shards, updated in one call: "
        f"all ranks gather whole weights, and wait, for {there}",
    )


def lines_as_evidence(late: Row) -> tuple[Row, ...]:
    """Return at which lines the host of a straggler is longer, as evidence."""
    return tuple(
        {
            "line": f"{PurePath(str(line['file'])).name}:{line['line']}",
            "text": line["text"],
            "in a step_ns": line["ns"],
            "on its peers_ns": line["others_ns"],
        }
        for line in late["late_lines"] or ()
    )


def _copies_more(late: Row) -> bool:
    """Return whether a rank copies more than its peers do, to a notable part of what it is late by: no value that is read does."""
    why = late["late_because"] or {}
    more = sum(why.get(part, 0) for part in ("copy", "idle: copy_call"))
    return bool(more >= COPIES_LATE_SHARE * (late["late_ns"] or 0))


def _calling(line: Row, late: Row) -> str:
    """Return in words from where the function of a line is called, "" where no other line that this rank alone runs names it."""
    name = str(line["function"] or "").rpartition(".")[2]
    for other in late["late_lines"] or ():
        alone = not other["others_ns"] and other.get("function") != line["function"]
        if name and alone and re.search(rf"\b{re.escape(name)}\(", str(other["text"] or "")):
            return f", called in {PurePath(str(other['file'])).name}:{other['line']}"
    return ""
