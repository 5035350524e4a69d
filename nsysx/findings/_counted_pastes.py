"""Positions that a loss counts, taken before the head, in the names of the function that calls both."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from nsysx.analyses.lines import texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.narrowed_operators import ELEMENTWISE, sizes_of
from nsysx.events.operator_flow import OperatorFlow, handed_from, is_view
from nsysx.events.operator_names import LAYERS
from nsysx.findings._case import Case, Fix
from nsysx.findings._cut_rows import statement_at
from nsysx.findings._flow_work import in_short
from nsysx.findings._handed_slices import places_of
from nsysx.findings._pieces_in_text import function_of_call, names_in, with_names_replaced

_LOSS_CALLS = ("cross_entropy", "nll_loss")
_NO_LAYERS = (*_LOSS_CALLS, "view", "reshape", "flatten", "transpose", "permute", "float", "to", "isinstance", "len")
_OF_ROWS = re.compile(r"^aten::(layer_norm|rms_norm|native_layer_norm|dropout|log_softmax)$")
_CUTS = re.compile(r"^aten::(slice|select|narrow|index|index_select)$")
IGNORES = re.compile(r"-100\b|IGNOR|ignore_?(index|id|label|value)")


class RowsThatCount(NamedTuple):
    """How many targets count: ``most`` of each row, None where that is not known; ``same``: it is the same in each row; ``length`` of a
    row; ``first``: the first place of all rows that counts.
    """

    most: int | None
    same: bool
    length: int | None
    first: int | None = None


def ignored_number(case: Case, code: CodeLines, flow: OperatorFlow, loss: int) -> str:
    """Return how the line of a loss (row of the flow) writes the number that it ignores, "" where it does not."""
    statement = statement_at(case, code.where(places_of(code, flow, loss)[-1]))
    for call in _calls(statement):
        for keyword in call.keywords:
            if keyword.arg == "ignore_index":
                return ast.unparse(keyword.value)
    return ""


def fills_ignored(case: Case, code: CodeLines, flow: OperatorFlow, instant_ns: int, ignored: str) -> bool:
    """Return whether the line at work at an instant writes the number that a loss ignores, by its text."""
    (stack,) = code.at(flow.thread, np.array([instant_ns])).tolist()
    where = code.where_of(stack)
    lines = texts(case.profile).get(str(where.get("file")), {})
    text = str(lines.get(str(where["line"]), "")) if where else ""
    number = ignored.rpartition(".")[2]
    if re.search(rf"(?<![\w-]){re.escape(number)}(?!\w)", text) is not None and number:
        return True
    # A name may stand for the number that torch ignores by itself; another number does not.
    return (number in ("", "-100") or number.isidentifier()) and IGNORES.search(text) is not None


def fix_of_counted(
    case: Case, code: CodeLines, flow: OperatorFlow, loss: int, layer: int, counted: RowsThatCount
) -> Fix:
    """Return how to take the positions that count before the layer that makes the logits of a loss (rows of the flow)."""
    fix = Fix.by_name("rows-that-count")
    lines = _two_lines(case, code, flow, loss, layer)
    if lines is None:
        return fix
    others = "What else reads these logits gets those of the positions that count alone."
    hidden, labels, ignored = lines.hidden, lines.labels, lines.ignored
    before = f"  # in front of {lines.head_line}"
    if counted.most is not None and counted.same:
        name = unused(case, "rows_that_count", "counted_places")
        made = f"{name} = ({labels} != {ignored}).int().topk({counted.most}, dim=1).indices{before}"
        taken = f"{hidden}.gather(1, {name}[..., None].expand(-1, -1, {hidden}.shape[-1]))"
        return fix.but(
            text=f"Take the {counted.most} positions of each row whose labels count before the head. As many in each row: nothing waits "
            "to learn how many there are. Logits, loss and gradients of the others are made for nothing",
            paste="\n".join([made, *lines.rewritten(taken, f"{labels}.gather(1, {name})")]),
            condition=f"No row may have more labels than {counted.most}; those beyond would not be trained on. {others}",
        )
    if counted.first:
        from_first = [f"{each}[:, {counted.first}:]" for each in (hidden, labels)]
        return fix.but(
            text=f"Take the positions from the first on whose label counts before the head, here from {counted.first} of "
            f"{counted.length} on. Logits, loss and gradients of the others are made for nothing",
            paste="\n".join(lines.rewritten(*from_first)),
            condition=f"Labels in front of {counted.first} must be ignored in all batches. {others}",
        )
    name = unused(case, "counts", "label_counts")
    made = f"{name} = {labels} != {ignored}{before}"
    room = "" if counted.most is None else f" (the most in a row that was looked at is {counted.most})"
    return fix.but(
        text="Take the positions whose labels count before the head. Logits, loss and gradients of the others are made for nothing",
        paste="\n".join([made, *lines.rewritten(f"{hidden}[{name}][None]", f"{labels}[{name}][None]")]),
        condition="A mask as index waits once a step for the GPU to tell how many there are; without a wait: as many of each row as any "
        f"may have{room}, by {name}.int().topk(k, dim=1).indices and gather, as the others have labels that are ignored. {others}",
    )


class _TwoLines(NamedTuple):
    """The statements that call the head and the loss, one where they are the same, and the names of what these are given."""

    head: ast.stmt
    loss: ast.stmt
    hidden: str
    labels: str
    ignored: str
    head_line: str

    def rewritten(self, hidden: str, labels: str) -> Iterator[str]:
        """Yield the statements with other expressions in place of what head and loss are given."""
        head, loss = (_given_another(self.head, self.hidden, hidden, first=True), self.loss)
        if self.head is self.loss:
            yield ast.unparse(_given_another(head, self.labels, labels, first=False))
        else:
            yield ast.unparse(head)
            yield ast.unparse(_given_another(loss, self.labels, labels, first=False))


def _two_lines(case: Case, code: CodeLines, flow: OperatorFlow, loss: int, layer: int) -> _TwoLines | None:
    """Return the statements of one function that call head and loss, None where their texts, or what is made between, do not tell them."""
    of_loss, of_layer = places_of(code, flow, loss), places_of(code, flow, layer)
    depth = len(of_loss) - 1
    if of_loss[:depth] != of_layer[:depth] or len(of_layer) <= depth or not _by_rows(code, flow, layer, depth):
        return None
    maker, between = handed_from(flow, flow.made[loss][1], lambda name: is_view(name) or "contiguous" in name)
    whole = sizes_of(flow.size[between[-1]])[0] if between else sizes_of(flow.size[loss])[1]
    if (maker >= 0 and _CUTS.match(flow.names[maker])) or any(_CUTS.match(flow.names[row]) for row in between):
        return None
    if len(whole) != 2 or sizes_of(flow.size[layer])[0][:-1] != whole:
        return None
    head, last = (statement_at(case, code.where(places[depth])) for places in (of_layer, of_loss))
    if of_layer[depth] == of_loss[depth]:
        head = last
    taken = next((call for call in _calls(last) if function_of_call(call) in _LOSS_CALLS and len(call.args) > 1), None)
    if head is None or last is None or taken is None:
        return None
    hidden = {ast.unparse(call.args[0]) for call in _calls(head) if _takes_name(call)}
    labels = names_in(taken.args[1])
    if len(hidden) != 1 or len(labels) != 1 or hidden == labels or "[" in ast.unparse(taken):
        return None
    ignored = next((ast.unparse(k.value) for k in taken.keywords if k.arg == "ignore_index"), "-100")
    head_line = in_short(code.where(of_layer[depth]))
    return _TwoLines(head, last, hidden.pop(), labels.pop(), ignored, head_line)


def _by_rows(code: CodeLines, flow: OperatorFlow, layer: int, depth: int) -> bool:
    """Return whether all that a line of the function makes, up to a layer, makes each position of that position alone."""
    places = places_of(code, flow, layer)[: depth + 1]
    for row in reversed([row for row in flow.outermost if row < layer]):
        if places_of(code, flow, row)[: depth + 1] != places:
            return True
        name = flow.names[row]
        if not (is_view(name) or ELEMENTWISE.match(name) or _OF_ROWS.match(name) or name in LAYERS):
            return False
    return True


def _calls(statement: ast.stmt | None) -> list[ast.Call]:
    return [node for node in ast.walk(statement) if isinstance(node, ast.Call)] if statement is not None else []


def _takes_name(call: ast.Call) -> bool:
    """Return whether a call is one of a layer, or of a function, with a name first, and no method of a tensor or of its loss."""
    return bool(call.args) and isinstance(call.args[0], ast.Name) and function_of_call(call) not in _NO_LAYERS


def _given_another(statement: ast.stmt, name: str, expression: str, *, first: bool) -> ast.stmt:
    """Return a statement in which a call is given an expression in place of a name: the head first, or the loss second."""
    put = {name: ast.parse(expression, mode="eval").body}

    class _Replaces(ast.NodeTransformer):
        def visit_Call(self, call: ast.Call) -> ast.Call:
            self.generic_visit(call)
            if first and _takes_name(call) and isinstance(call.args[0], ast.Name) and call.args[0].id == name:
                call.args[0] = put[name]
            elif not first and function_of_call(call) in _LOSS_CALLS and len(call.args) > 1:
                call.args[1] = with_names_replaced(call.args[1], put)
            return call

    copied: ast.stmt = _Replaces().visit(ast.parse(ast.unparse(statement)).body[0])
    return ast.fix_missing_locations(copied)


def unused(case: Case, *names: str) -> str:
    """Return the first of some names that no line of the program holds, else the last."""
    written = " ".join(str(text) for lines in texts(case.profile).values() for text in lines.values())
    return next((name for name in names if re.search(rf"\b{name}\b", written) is None), names[-1])
