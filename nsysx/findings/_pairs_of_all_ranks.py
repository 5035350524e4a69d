"""Losses over the pairs of all ranks' samples, of which every rank computes all (``events.gathered_products``): its own rows are enough."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.gathered_products import gathered_products
from nsysx.events.operator_flow import OperatorFlow
from nsysx.findings._case import Case, Fix
from nsysx.findings._flow_work import NeedlessOperators, in_short, place_of_operator
from nsysx.model import Row

#: The option of OpenCLIP's loss, and of what follows it, by which a rank computes its own rows.
_OPTION = re.compile(r"\blocal_loss\b")


def pairs_of_all_ranks(
    case: Case, flow: OperatorFlow, code: CodeLines
) -> Iterator[tuple[NeedlessOperators, Mapping[int, float]]]:
    """Yield the products of gathered rows with gathered columns, of which every rank makes all; with each the share that stays."""
    whole = gathered_products(case.profile)
    if whole is None:
        return
    where = place_of_operator(code, flow, flow.start_ns[[whole.products[0]]])
    ranks = "both ranks compute" if whole.ranks == 2 else f"all {whole.ranks} ranks compute"
    size = " x ".join(map(str, whole.size))
    title = f"{in_short(where) or 'The step'}: {ranks} the same {size} matrix of what was gathered"
    why = (
        f"{units.several(len(whole.products), 'product')} of gathered rows with gathered columns, and what is summed of them by row, "
        "come out the same on each rank."
        + (" The loss goes both ways: a rank needs its own rows and its own columns." if whole.both_ways else "")
    )
    kept = {row: whole.kept(row) for row in whole.rows}
    fix = _own_rows(case, code, where, both_ways=bool(whole.both_ways))
    yield NeedlessOperators(whole.rows, title, why, fix, where), kept


def _own_rows(case: Case, code: CodeLines, where: Row, *, both_ways: bool) -> Fix:
    """Return the advice with the names of the line that multiplies, where the line of its function that gathers gives them."""
    fix, source = Fix.by_name("own-rows"), texts(case.profile)
    functions = {row[2] for row in code.places.iter_rows() if where and row[:2] == (where["file"], where["line"])}
    of_function = [row for row in code.places.iter_rows() if where and row[0] == where["file"] and row[2] in functions]
    written = [text_of(source, *row[:2]) or "" for row in sorted(of_function)]
    if any(_OPTION.search(text) for text in written):
        owner = str(of_function[0][2] or "").rpartition(".")[0] or "the loss"
        advice = f"Set local_loss of {owner}: each rank then computes the rows of its own samples against what was gathered of all"
        return fix.but(
            text=advice, paste=f"local_loss=True, gather_with_grad=True  # where {owner} is made, or in its settings"
        )
    paste = own_rows_of(text_of(source, where.get("file"), where.get("line")) or "", written, both_ways=both_ways)
    return fix.but(paste=paste) if paste else fix


def own_rows_of(text: str, function: Sequence[str], *, both_ways: bool) -> str:
    """Return the line of a product with a rank's own rows, "" where the lines of its ``function`` do not name what was gathered."""
    product = re.match(r"^\s*(\w+)\s*=\s*(.*@.*?)\s*(#.*)?$", text)
    part_of = {whole: part for line in function for whole, part in _gathered_from(line)}
    if product is None:
        return ""
    left, _, right = product[2].partition("@")
    rows, columns = ([name for name in part_of if re.search(rf"\b{name}\b", side)] for side in (left, right))
    if len(rows) != 1 or len(columns) != 1:
        return ""
    (row,), (column,) = rows, columns
    part = part_of[row]
    lines = [f"{product[1]} = {_renamed(left, {row: part})}@{right}  # rows of this rank's samples"]
    if both_ways and row != column:
        other = f"{_renamed(left, {row: part_of[column]})}@{_renamed(right, {column: row})}"
        lines.append(f"# in place of {product[1]} turned: {other}")
    lines.append(f"# targets: dist.get_rank() * len({part}) + torch.arange(len({part}), device={part}.device)")
    return "\n".join(lines)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"\b\w+\b", lambda match: names.get(match[0], match[0]), text)


def _gathered_from(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names to which a line gives what a call gathers, each with that of what it gathers."""
    try:
        tree = ast.parse(text.strip())
    except SyntaxError:
        return
    made = tree.body[0] if len(tree.body) == 1 else None
    if not isinstance(made, ast.Assign) or len(made.targets) != 1 or "gather" not in text:
        return
    target = made.targets[0]
    names = [
        each.id for each in (target.elts if isinstance(target, ast.Tuple) else [target]) if isinstance(each, ast.Name)
    ]
    calls = [node for node in ast.walk(made.value) if isinstance(node, ast.Call) and "gather" in ast.unparse(node.func)]
    given = [each.id for each in calls[-1].args if isinstance(each, ast.Name)] if calls else []
    if len(given) >= len(names):
        yield from zip(names, given, strict=False)
