"""Linear layers on joined rows of which parts are copies (``events.joined_parts``): what they take, and what the layers of the parts take.

W [a, b] = W_a a + W_b b: of a part that is copied the layer computes its rows once. What is summed then is as wide as the result.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.joined_parts import JoinedPart, JoinedRows, joined_rows
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.profile import Profile
from nsysx.findings import _copied_pastes
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, left_of_new, place_of_operator, work_with_gradients
from nsysx.findings._found import Found
from nsysx.findings._instead import Instead
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import ALIGNED_NUMBERS, FEW_ROWS_NS, MOST_LINES_NAMED, SUMMED_PARTS_PASSES
from nsysx.model import Finding

_REMEDY = "layer-of-parts"
_JOINS = ("cat", "concat", "concatenate")


class _LayerOfParts(NamedTuple):
    """A layer that becomes one for each part: what goes (op, ns), and what comes in its place, at least and at most (ns, all steps)."""

    joined: JoinedRows
    gone: pl.DataFrame
    least_ns: float
    most_ns: float

    @property
    def saved_ns(self) -> float:
        return float(int(self.gone["ns"].sum()) - math.sqrt(self.least_ns * self.most_ns))


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding for the layers on rows that are put together from copies, if layers of the parts save 5 % of the step or more."""
    flow, code = flow_of(case.profile), case.profile.code()
    every = [] if flow is None or case.program.compiled else [each for each in joined_rows(flow) if each.has_copies]
    if flow is None or code is None or not every:
        return []
    work = work_with_gradients(case, flow)
    changes = [change for each in every if (change := _change(each, work)).saved_ns > 0]
    # A layer of a network is often called for each of its levels or rounds: all are told together.
    changes.sort(key=lambda change: -change.saved_ns)
    finding = _found(case, rule, flow, code, changes) if changes else None
    return [] if finding is None else [finding]


def _change(joined: JoinedRows, work: pl.DataFrame) -> _LayerOfParts:
    """Return how long a layer of each part takes, with the copies behind it.

    Each part's product is shorter as its rows and its width are. What is added up is as wide as the layer's result: passes over it, each
    like the joining, which reads and writes the joined rows.
    """
    layer = work.filter(work["row"] == joined.layer)
    joining = work.filter(work["row"] == joined.joining)
    inner = joined.inner
    ns = layer["ns"].to_numpy()
    least = most = 0.0
    for part in joined.parts:
        share = part.width / inner * part.rows / joined.rows
        least += float((ns * share).sum())
        most += left_of_new(ns, ns * share, FEW_ROWS_NS)
    forward = float(joining.filter(~joining["backward"])["ns"].sum())
    pass_ns = forward * joined.wide / inner
    low, high = SUMMED_PARTS_PASSES
    summed = len(joined.parts) - 1
    most += (
        sum(part.copying is None for part in joined.parts) * pass_ns
    )  # short rows of many do not shorten what is written
    least, most = least + low * summed * pass_ns, most + high * summed * pass_ns
    copying = [part.copying for part in joined.parts if part.copying is not None]
    copied = work.filter(pl.col("row").is_in(copying))
    for part in joined.parts:
        if part.copying is not None and not part.lazy:
            again = float(copied.filter(copied["row"] == part.copying)["ns"].sum()) * joined.wide / part.width
            least, most = least + again, most + again
    gone = pl.concat([layer, joining, copied]).unique("op", maintain_order=True).select("op", "ns")
    return _LayerOfParts(joined, gone, least, most)


def _found(
    case: Case, rule: Rule, flow: OperatorFlow, code: CodeLines, changes: Sequence[_LayerOfParts]
) -> Finding | None:
    gone = pl.concat([change.gone for change in changes]).unique("op", maintain_order=True)
    least, most = (sum(getattr(change, key) for change in changes) for key in ("least_ns", "most_ns"))
    worth = Instead(gone, least, most, at_limit=False).worth(case)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    first = changes[0].joined
    places = [place_of_operator(code, flow, flow.start_ns[[change.joined.layer]]) for change in changes]
    where, cost = places[0], case.per_step(int(gone["ns"].sum()))
    copied = [part for part in first.parts if part.copying is not None]
    sources = " and ".join(units.count(part.rows) for part in copied)
    title = (
        f"{in_short(where) or 'The step'}: a layer runs on {units.count(first.rows)} rows put together from copies of {sources}: "
        f"{units.duration(cost)} {case.per}"
    )
    parts = " + ".join(str(part.width) for part in first.parts)
    detail = (
        f"cat joins {parts} numbers for each of {units.count(first.rows)} rows, and only a linear layer reads them. Of a part that was "
        f"copied from {sources} rows the layer computes the same for each copy. {units.duration(cost)} {case.per} with the joining and "
        f"all gradients, {case.share(cost)} of the step."
    )
    others = list(dict.fromkeys(in_short(there) for there in places if there and there != where))[:MOST_LINES_NAMED]
    fix = Fix.by_name(_REMEDY)
    if others:
        do, _, why = fix.text.partition(": ")
        fix = fix.but(text=f"{do}, likewise in {', '.join(others)}: {why}")
    paste = pasted(case.profile, flow, code, first)
    return Found(
        rule, title, detail, worth=worth, cost_ns=cost, fix=fix.but(paste=paste or fix.paste), where=where or None,
        takes=Takes(ops_of(gone)),
    ).as_finding(case)  # fmt: skip


def pasted(profile: Profile, flow: OperatorFlow, code: CodeLines, joined: JoinedRows) -> str | None:
    """Return the line with a layer for each part, in the names of the program; None where its text does not tell."""
    source = texts(profile)
    text = _line_of(source, flow, code, joined.layer)
    tree = _parsed(text)
    call_of_joined = None
    if tree is not None and text.isascii():
        call_of_joined = _call_of_joined(tree, _line_of(source, flow, code, joined.joining))
    if call_of_joined is None:
        return None
    call, given = call_of_joined
    layer = _layer(flow, joined.layer, ast.unparse(call.func))
    if layer is None or len(given) != len(joined.parts):
        return None
    named, rest = layer
    fewest = min(range(len(given)), key=lambda n: joined.parts[n].rows)
    summands, handed, remarks = list[str](), list[str](), list[str]()
    for n, (part, each) in enumerate(zip(joined.parts, given, strict=True)):
        weights = f"w{n}, {named}.bias" if n == fewest and joined.with_bias else f"w{n}"
        summand = _summand(source, flow, code, part, each, weights)
        if (
            summand is None and part.copying is not None and isinstance(each, ast.Name)
        ):  # another function copies, and hands on
            summand = each.id
            handed.append(each.id)
            remarks.append(_copied_before(source, flow, code, part, each.id, weights))
        if summand is None:
            return None
        summands.append(summand)
    names = ", ".join(f"w{n}" for n in range(len(given)))
    split = f"{named}.weight.split([{', '.join(str(part.width) for part in joined.parts)}], 1)"
    ends = np.cumsum([part.width for part in joined.parts])
    if (ends % ALIGNED_NUMBERS).any():  # a view of such rows would not be aligned either
        split = f"(part.contiguous() for part in {split})"
    whole = " + ".join(summands)
    before, behind = text[: call.col_offset], text[call.end_col_offset :]
    alone = (not behind and re.search(r"(=|return)\s*$", before)) or (before.endswith("(") and behind.startswith(")"))
    whole = f"{rest}({whole})" if rest else whole if alone else f"({whole})"
    if handed:
        split += f"  # before {' and '.join(handed)} are copied"
    return "\n".join((f"{names} = {split}", f"{before}{whole}{behind}", *remarks))


def _copied_before(
    source: Mapping[str, Any], flow: OperatorFlow, code: CodeLines, part: JoinedPart, name: str, weights: str
) -> str:
    """Return what a name stands for once the layer of its part is in front of the copying, which another function does."""
    row = part.copying if part.copying is not None else 0
    where, text = place_of_operator(code, flow, flow.start_ns[[row]]), _line_of(source, flow, code, row)
    there = f"line {where['line']}" if where else "the copying"
    copied = _copied_pastes.copied_whole(text.removeprefix("return "), flow.names[row].removeprefix("aten::"))
    if copied is not None:
        return f"# {name}: {copied.with_rows(f'F.linear({copied.rows}, {weights})')}  ({there})"
    return f"# {name}: copies of F.linear(rows, {weights}); rows: what {there} copies now{f' ({text})' if text else ''}"


def _line_of(source: Mapping[str, Any], flow: OperatorFlow, code: CodeLines, row: int) -> str:
    """Return the text of the line that runs an operator, "" where it is not known."""
    where = place_of_operator(code, flow, flow.start_ns[[row]])
    return (text_of(source, where["file"], where["line"]) or "").partition("  #")[0].strip() if where else ""


def _call_of_joined(tree: ast.Module, joining: str) -> tuple[ast.Call, list[ast.expr]] | None:
    """Return the call of a layer with joined parts alone, and the parts; ``joining``: the line that joins them, and names the whole."""
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords
    ]
    joins = [(call, given) for call in calls if (given := _parts_joined(call.args[0]))]
    if not joins and (other := _parsed(joining)) is not None and isinstance(other.body[0], ast.Assign):
        given, target = _parts_joined(other.body[0].value), other.body[0].targets[0]
        name = target.id if isinstance(target, ast.Name) else None
        named = [call for call in calls if isinstance(call.args[0], ast.Name) and call.args[0].id == name]
        joins = [(call, given) for call in named if given]
    return joins[0] if len(joins) == 1 else None


def _parts_joined(node: ast.expr) -> list[ast.expr]:
    """Return the parts that an expression joins, none where it does something else."""
    if (
        not isinstance(node, ast.Call)
        or not isinstance(node.func, ast.Attribute)
        or node.func.attr not in _JOINS
        or not node.args
    ):
        return []
    return node.args[0].elts if isinstance(node.args[0], (ast.List, ast.Tuple)) else []


def _parsed(text: str) -> ast.Module | None:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    return tree if tree.body else None


def _layer(flow: OperatorFlow, row: int, called: str) -> tuple[str, str] | None:
    """Return the layer's name in a line that calls it, and the name of what comes behind it in the same call, "" for none."""
    paths = [call.path.split(".") for call in flow.calls if call.first <= row < call.last]
    if not paths:
        return None
    path, attribute = max(paths, key=len), called.split(".")[-1]
    if path[-1] == attribute:
        return called, ""
    if path[-1] == "0" and path[-2:-1] == [attribute]:
        return f"{called}[0]", f"{called}[1:]"
    return None


def _summand(
    source: Mapping[str, Any], flow: OperatorFlow, code: CodeLines, part: JoinedPart, given: ast.expr, weights: str
) -> str | None:
    """Return the layer of a part in the program's names: what is copied is copied behind it, what is expanded is broadcast by the sum."""
    text = ast.unparse(given)
    if part.copying is None:
        return f"F.linear({text}, {weights})"
    by = flow.names[part.copying].removeprefix("aten::")
    if isinstance(given, ast.Name):  # the line that makes the copies gives them this name
        line = _line_of(source, flow, code, part.copying)
        named = re.match(rf"{re.escape(given.id)}\s*=\s*(?!=)(.*)$", line)
        if named is None:
            return None
        text = named[1]
    copied = _copied_pastes.copied_whole(text, by)
    if copied is None:
        return None
    if part.lazy:
        return f"F.linear({copied.rows}, {weights})"
    return copied.with_rows(f"F.linear({copied.rows}, {weights})")
