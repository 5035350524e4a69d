"""Positions whose labels count, chosen while a batch is collated, where nothing waits, and taken before the heads, in its names."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nsysx.analyses.lines import texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flow import OperatorFlow, is_view
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix
from nsysx.findings._counted_pastes import unused
from nsysx.findings._cut_rows import statement_at
from nsysx.findings._flow_work import in_short, place_of_operator
from nsysx.findings._handed_slices import places_of
from nsysx.findings._pieces_in_text import whole_statement
from nsysx.model import Row

_TEXT = (
    "Choose the positions whose labels count while the batch is collated: on the CPU nothing waits for their number, as the host does for "
    "that of a mask on the GPU. Give the {heads} the hidden states of these alone; logits, losses and gradients of the others are made "
    "for nothing"
)
_PASTE = (
    "keep = (labels.flatten() != {ignored}).nonzero().squeeze(1)  # in collate, on the CPU; it goes with the batch\n"
    "logits = head(hidden.flatten(0, 1)[keep])  # each head; labels, and what else has a number of each position: .flatten()[keep]"
)
_CONDITION = "What else reads these logits or labels gets those of the positions that count alone: there the mask is 1 everywhere."
#: Ways to write that rows and columns of logits become rows.
_FLAT = (".flatten(0, 1)", ".flatten(end_dim=1)", ".flatten(0, -2)", ".flatten(end_dim=-2)")


class ComparedLabels(NamedTuple):
    """Labels of the loader's batches that a comparison (row of the flow) makes a mask of: what they are called, and their tensor there."""

    name: str
    row: int
    tensor: int


def fix_of_compared(
    case: Case, code: CodeLines, flow: OperatorFlow, layers: Sequence[int], labels: ComparedLabels
) -> Fix:
    """Return how to take the positions whose labels count before the layers that make logits (rows of the flow)."""
    heads = "heads" if len(layers) > 1 else "head"
    compared = statement_at(case, place_of_operator(code, flow, flow.start_ns[[labels.row]]))
    ignored = _ignored(compared)
    fix = Fix.by_name(
        "rows-that-count", text=_TEXT.format(heads=heads), paste=_PASTE.format(ignored=ignored), condition=_CONDITION
    )
    keep = unused(case, "keep", "kept_positions")
    of_batch = _labels_of_batch(case, code, flow, labels, keep)
    networks = [_network(case, code, flow, layer, keep) for layer in layers]
    if of_batch is None or not all(networks):
        return fix
    chosen = f"({labels.name}.flatten() != {ignored}).nonzero().squeeze(1)"
    collated = _collated(case, labels.name, keep, chosen)
    return fix.but(paste="\n".join([collated, *of_batch, *(line for lines in networks for line in lines)]))


def _ignored(statement: ast.stmt | None) -> str:
    """Return what a statement compares labels with, as it writes it."""
    compared = [node for node in ast.walk(statement) if isinstance(node, ast.Compare)] if statement is not None else []
    return ast.unparse(compared[0].comparators[0]) if len(compared) == 1 else "-100"


def _collated(case: Case, name: str, keep: str, chosen: str) -> str:
    """Return the line with which the batch gets the positions too: the collate function's own, where its text tells it."""
    settings = settings_of(case.profile)
    for loader in (settings.rows("loaders") if settings is not None else None) or ():
        file, _, first = str(loader.get("collates") or "").rpartition(":")
        lines = texts(case.profile).get(file, {})
        numbers = sorted(
            int(line) for line in lines if str(line).isdigit() and first.isdigit() and int(line) > int(first)
        )
        returns = next((n for n in numbers if str(lines[str(n)]).strip().startswith("return ")), None)
        statement = whole_statement(str(lines[str(returns)])) if returns is not None else None
        if statement is not None and (line := _with_entry(statement, name, keep, chosen)):
            return f"{line}  # {in_short({'file': file, 'line': returns})}, on the CPU: nothing waits"
    return f"{keep} = {chosen}  # in collate, on the CPU: nothing waits; it goes with the batch"


def _with_entry(statement: ast.stmt, name: str, keep: str, chosen: str) -> str:
    """Return a statement that returns a dictionary with an entry more, "" for one that returns no labels of this name in one."""
    made = statement.value if isinstance(statement, ast.Return) else None
    entry = ast.parse(chosen, mode="eval").body
    if isinstance(made, ast.Call) and ast.unparse(made.func) == "dict" and not made.args:
        named = [each.arg for each in made.keywords if ast.unparse(each.value) == name]
        made.keywords.append(ast.keyword(keep, entry))
        return ast.unparse(statement) if name in named else ""
    if isinstance(made, ast.Dict):
        entries = zip(made.keys, made.values, strict=True)
        if any(isinstance(k, ast.Constant) and k.value == name and ast.unparse(v) == name for k, v in entries):
            made.keys.append(ast.Constant(keep))
            made.values.append(entry)
            return ast.unparse(statement)
    return ""


def _labels_of_batch(
    case: Case, code: CodeLines, flow: OperatorFlow, labels: ComparedLabels, keep: str
) -> list[str] | None:
    """Return the lines that take the positions, and the labels there, from the batch; None where no line takes its flat labels."""
    row = flow.row_of.get(labels.tensor, -1)
    where = place_of_operator(code, flow, flow.start_ns[[row]]) if row >= 0 else {}
    statement = statement_at(case, where)
    if (
        not isinstance(statement, ast.Assign)
        or len(statement.targets) != 1
        or len(sizes_of(flow.size[labels.row])[0]) != 1
    ):
        return None
    taken = [
        node
        for node in ast.walk(statement.value)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == labels.name
    ]
    if len(taken) != 1:
        return None
    batch = ast.unparse(taken[0].value)
    return [f'{keep} = {batch}["{keep}"]', f"{ast.unparse(statement)}[{keep}]  # {in_short(where)}"]


def _network(case: Case, code: CodeLines, flow: OperatorFlow, layer: int, keep: str) -> list[str]:
    """Return the lines that call a language model without its head, and then the head for some positions; none where texts do not tell."""
    where = _line_of_program(code, flow, layer)
    statement = statement_at(case, where)
    if (
        not isinstance(statement, ast.Assign)
        or len(statement.targets) != 1
        or not _made_by_layer_alone(code, flow, layer)
    ):
        return []
    value = ast.unparse(statement.value)
    flat = next((way for way in _FLAT if value.endswith(f".logits{way}")), None)
    call = next(_calls_of_logits(statement.value), None)
    if flat is None or call is None or any(each.arg in (None, "labels", "logits_to_keep") for each in call.keywords):
        return []
    model = ast.unparse(call.func)
    call.func = ast.parse(f"{model}.base_model", mode="eval").body
    hidden = unused(case, "hidden", "hidden_states")
    return [
        f"{hidden} = {ast.unparse(call)}.last_hidden_state  # {in_short(where)}",
        f"{ast.unparse(statement.targets[0])} = {model}.get_output_embeddings()({hidden}{flat}[{keep}])",
    ]


def _line_of_program(code: CodeLines, flow: OperatorFlow, row: int) -> Row:
    return code.where(places_of(code, flow, row)[-1])


def _calls_of_logits(value: ast.expr) -> Iterator[ast.Call]:
    for node in ast.walk(value):
        if isinstance(node, ast.Attribute) and node.attr == "logits" and isinstance(node.value, ast.Call):
            yield node.value


def _made_by_layer_alone(code: CodeLines, flow: OperatorFlow, layer: int) -> bool:
    """Return whether the logits leave the call of the network as its layer made them: nothing scales or caps them there."""
    start_ns = int(flow.start_ns[layer])
    around = [call for call in flow.calls if call.start_ns <= start_ns < call.end_ns]
    if not around:
        return False
    outer = max(around, key=lambda call: call.end_ns - call.start_ns)
    return all(is_view(flow.names[row]) for row in flow.outermost if layer < row < outer.last)
