"""The line that picks items of a result, put before the one that makes all of them, in the program's own names.

A resampling, a pooling or a convolution makes each item (image, channel) of its own alone (``separate_items``): picking gives the same
before it, as long as the index needs nothing that is made between the two lines, nor more than the lengths of what is picked from.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from nsysx.analyses.lines import texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.narrowed_operators import result_sizes, sizes_of
from nsysx.events.operator_flow import OperatorFlow, is_view
from nsysx.events.separate_items import separate_dimensions
from nsysx.findings._case import Case
from nsysx.findings._cut_rows import RETYPES, statement_at
from nsysx.findings._flow_work import in_short
from nsysx.findings._handed_slices import Replaced, places_of
from nsysx.findings._loop_texts import depth_of
from nsysx.findings._pieces_in_text import names_in, parsed
from nsysx.model import Row

_RESAMPLES = "aten::upsample_"
#: Functions of torch that make each item by itself, as a text calls them.
_FUNCTIONS = re.compile(
    r"^(interpolate|upsample\w*|(adaptive_)?(max|avg)_pool\dd|conv(_transpose)?\dd|pad|pixel_(un)?shuffle|(group|instance)_norm|grid_sample)$"
)
#: They need both dimensions of images and channels: one that is picked away has to be put in again.
_NEEDS_BOTH = re.compile(r"^aten::(group_norm|instance_norm|grid_sampler|pixel_)")
_PICKING_CALLS = ("index_select", "narrow", "select")


class _Pick(NamedTuple):
    """What picks in a statement: the expression, the whole that it picks from, and the parts that say what it picks."""

    node: ast.Subscript | ast.Call
    whole: ast.expr
    parts: tuple[ast.expr, ...]

    def taking_from(self, argument: ast.expr) -> ast.expr:
        """Return the same pick of another tensor."""
        if isinstance(self.node, ast.Subscript):
            return ast.Subscript(argument, self.node.slice, ast.Load())
        assert isinstance(self.node.func, ast.Attribute)
        return ast.Call(ast.Attribute(argument, self.node.func.attr, ast.Load()), self.node.args, self.node.keywords)


class Order(NamedTuple):
    """The lines that make items and that pick of them: of which so many of the first dimensions are kept apart.

    ``alone``: nothing runs in the first one that needs all items. ``padded``: the pick takes a dimension away which the operator needs.
    """

    made: Row
    read: Row
    items: int
    alone: bool = False
    padded: bool = False


def makes_by_item(flow: OperatorFlow, row: int) -> bool:
    """Return whether an operator makes each image or channel by itself, as a function of torch that a text calls by its name."""
    name, sizes = flow.names[row], sizes_of(flow.size[row])
    result = result_sizes(flow, [sizes_of(text) for text in flow.size]).get(flow.number[row], ())
    return "softmax" not in name and bool(sizes and separate_dimensions(name, sizes, result))


def picked_before(
    case: Case, code: CodeLines, flow: OperatorFlow, changes: Mapping[frozenset[int], Sequence[int]]
) -> str:
    """Return the lines that pick items before these are made; where their texts do not tell how, in what order they come.

    ``changes``: what picks (rows of the flow) -> the operators that make items which it leaves out, that of most work first.
    """
    orders = [(max(picks), makes[0]) for picks, makes in changes.items()]
    places = {tuple(tuple(places_of(code, flow, row)) for row in order) for order in orders}
    (picks, makes), every = orders[0], frozenset(row for rows in changes.values() for row in rows)
    by_one = len(places) == 1 and all(len(each) == 1 for each in changes)
    if by_one and (lines := _reordered(case, code, flow, picks, makes, every)):
        return lines
    read = in_short(code.where(places_of(code, flow, picks)[-1])) or "the line behind"
    function = "F.interpolate" if flow.names[makes].startswith(_RESAMPLES) else "layer"
    return f"y = {function}(x[index])  # index: by which {read} picks items; not {function}(x)[index]"


def _reordered(case: Case, code: CodeLines, flow: OperatorFlow, picks: int, makes: int, every: frozenset[int]) -> str:
    """Return the lines of one call of a function in their new order, "" where these do not tell it.

    ``every``: all operators that make items which are left out.
    """
    inner, outer = places_of(code, flow, makes), places_of(code, flow, picks)
    sizes, name = sizes_of(flow.size[makes]), flow.names[makes]
    result = result_sizes(flow, [sizes_of(text) for text in flow.size])
    before, after = sizes_of(flow.size[picks])[0], result.get(flow.number[picks])
    items = len(separate_dimensions(name, sizes, before))
    gone = len(before) - len(after or ())
    if after is None or inner[:-1] != outer[:-1] or len(sizes[0]) != len(before) or sizes[0][:items] != before[:items]:
        return ""
    if gone not in (0, 1) or (gone and _NEEDS_BOTH.match(name)):
        return ""
    stacks = code.at(flow.thread, flow.start_ns[flow.outermost]).tolist()
    (there,) = code.at(flow.thread, flow.start_ns[[makes]]).tolist()
    beside = [row for row, stack in zip(flow.outermost, stacks, strict=True) if stack == there]
    alone = all(row in every or is_view(flow.names[row]) for row in beside)
    order = Order(
        code.where(inner[-1]),
        code.where(outer[-1]),
        items,
        alone=alone,
        padded=gone == 1 and name.startswith(_RESAMPLES),
    )
    return in_new_order(case, order)


def in_new_order(case: Case, order: Order) -> str:
    """Return the line that makes all items with the pick of another line, and what is left of that one; "" where these do not tell it."""
    made, read, items, padded = order.made, order.read, order.items, order.padded
    making, reading = statement_at(case, made), statement_at(case, read)
    if making is None or reading is None or made["file"] != read["file"]:
        return ""
    if made["line"] == read["line"]:
        return _in_one_line(making, order)
    if not isinstance(making, ast.Assign) or len(making.targets) != 1 or not isinstance(making.targets[0], ast.Name):
        return ""
    whole, call = making.targets[0].id, _call_in(making.value, alone=order.alone)
    pick = _pick_in(reading, items, lambda each: isinstance(each, ast.Name) and each.id == whole)
    if pick is None or call is None or int(made["line"]) > int(read["line"]):
        return ""
    lengths = [node for part in pick.parts for node in _lengths_of(part, whole, items)]
    if _mentions(reading, whole) != 1 + len(lengths) + _stores(reading, whole):
        return ""
    needed = {node.id for part in pick.parts for node in ast.walk(part) if isinstance(node, ast.Name)} - {whole}
    earlier = _moved(case, made, read, whole, needed)
    if earlier is None:
        return ""
    argument = call.args[0]
    same_name = isinstance(argument, ast.Name) and argument.id == whole
    at_made, at_read = in_short(made), in_short(read)
    if same_name and not padded and _mentions(making.value, whole) == 1 and _gives_back(reading, pick.node, whole):
        left = ast.unparse(_exchanged(reading, pick.node, pick.whole))
        first = f"{whole} = {ast.unparse(pick.taking_from(ast.Name(whole)))}  # {at_read}, before {at_made}"
        rest = [] if left == f"{whole} = {whole}" else [f"{left}  # {at_read}, behind it"]
        return "\n".join((*earlier, first, f"{ast.unparse(making)}  # {at_made}", *rest))
    if lengths and not isinstance(argument, ast.Name | ast.Attribute):
        return ""
    for node in lengths:
        Replaced(node, argument).visit(pick.node)
    new = _applied(making, call, pick, padded=padded)
    left = ast.unparse(_exchanged(reading, pick.node, pick.whole))
    behind = f"# {at_read} goes" if left == f"{whole} = {whole}" else f"{left}  # {at_read}"
    return "\n".join((*earlier, f"{new}  # {at_made}", behind))


def _in_one_line(statement: ast.stmt, order: Order) -> str:
    """Return a statement that makes all items and picks of them, with the pick before; "" for another one."""
    value = statement.value if isinstance(statement, ast.Assign | ast.Return) else None
    call = _call_in(value, alone=False) if value is not None else None
    pick = _pick_in(statement, order.items, lambda each: each is call) if call is not None else None
    if call is None or pick is None or pick.whole is not call:
        return ""
    return (
        f"{_applied(_exchanged(statement, pick.node, call), call, pick, padded=order.padded)}  # {in_short(order.made)}"
    )


def _applied(statement: ast.stmt, call: ast.Call, pick: _Pick, *, padded: bool) -> str:
    """Return a statement whose call is given what is picked of its first argument."""
    argument = call.args[0]
    apart = isinstance(argument, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    picked = ast.unparse(pick.taking_from(argument if apart else ast.Name(f"({ast.unparse(argument)})")))
    call.args[0] = ast.parse(f"{picked}[:, None]" if padded else picked, mode="eval").body
    if padded:
        statement = _exchanged(statement, call, ast.parse(f"{ast.unparse(call)}[:, 0]", mode="eval").body)
    return ast.unparse(statement)


def _exchanged(statement: ast.stmt, old: ast.expr, new: ast.expr) -> ast.stmt:
    """Return a statement with another expression in the place of one."""
    changed = Replaced(old, new).visit(statement)
    assert isinstance(changed, ast.stmt)
    return changed


def _call_in(value: ast.expr, *, alone: bool) -> ast.Call | None:
    """Return the call that makes each item: the only one of such a function, or the only call where nothing else runs in the line.

    None where there are several.
    """
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call) and node.args]
    named = [each for each in calls if _FUNCTIONS.match(_called(each))]
    others = [each for each in calls if _called(each) not in RETYPES]
    may_be = named or (others if alone else [])
    return may_be[0] if len(may_be) == 1 and not isinstance(may_be[0].args[0], ast.Starred) else None


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)


def _pick_in(statement: ast.stmt, items: int, is_whole: Callable[[ast.expr], bool]) -> _Pick | None:
    """Return what picks from the whole in a statement, None where nothing does, several do, or more than the first dimensions is picked."""
    picks = list[_Pick]()
    for node in ast.walk(statement):
        whole: ast.expr
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            whole = node.value
            parts = tuple(node.slice.elts) if isinstance(node.slice, ast.Tuple) else (node.slice,)
            if not _of_first(parts, items):
                continue
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PICKING_CALLS:
            whole, parts = node.func.value, tuple(node.args)
            if node.keywords:
                continue
        else:
            continue
        if is_whole(_without_types(whole)) or is_whole(whole):
            picks.append(_Pick(node, whole, parts))
    return picks[0] if len(picks) == 1 else None


def _of_first(parts: tuple[ast.expr, ...], items: int) -> bool:
    """Return whether an index picks of the first dimensions alone, each by a part of its own."""
    new = any(
        isinstance(part, ast.Starred) or (isinstance(part, ast.Constant) and part.value is None) for part in parts
    )
    rest = [part for part in parts[items:] if not (isinstance(part, ast.Constant) and part.value is Ellipsis)]
    first = [part for part in parts[:items] if isinstance(part, ast.Constant) and part.value is Ellipsis]
    all_of_rest = all(isinstance(part, ast.Slice) and part.lower is part.upper is part.step is None for part in rest)
    return not new and all_of_rest and (not first or parts[-1] is first[0])


def _without_types(value: ast.expr) -> ast.expr:
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in RETYPES:
        value = value.func.value
    return value


def _gives_back(statement: ast.stmt, node: ast.expr, whole: str) -> bool:
    """Return whether a statement gives the whole's name to what is picked of it, in another type or not."""
    if not isinstance(statement, ast.Assign) or [ast.unparse(each) for each in statement.targets] != [whole]:
        return False
    return _without_types(statement.value) is node


def _lengths_of(part: ast.expr, whole: str, items: int) -> list[ast.Name]:
    """Return the names of the whole in an expression that ask for its length in one of the first dimensions (`x.shape[1]`)."""
    names = list[ast.Name]()
    for node in ast.walk(part):
        tensor: ast.expr
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            tensor, which = node.value.value, node.slice
        elif (
            isinstance(node, ast.Call)
            and _called(node) == "size"
            and isinstance(node.func, ast.Attribute)
            and len(node.args) == 1
        ):
            tensor, which = node.func.value, node.args[0]
        else:
            continue
        first = isinstance(which, ast.Constant) and isinstance(which.value, int) and 0 <= which.value < items
        if first and isinstance(tensor, ast.Name) and tensor.id == whole:
            names.append(tensor)
    return names


def _mentions(node: ast.AST, name: str) -> int:
    return sum(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node))


def _stores(node: ast.AST, name: str) -> int:
    return sum(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store) for each in ast.walk(node)
    )


def _moved(case: Case, made: Row, read: Row, whole: str, needed: set[str]) -> list[str] | None:
    """Return the lines between two that make what the index is made of, to stand before the first; None where they cannot.

    Lines that run were noted, with the spaces before them.
    """
    noted = texts(case.profile).get(str(made["file"]), {})
    depth = [depth_of(str(noted.get(str(each["line"]), ""))) for each in (made, read)]
    making, moved, needed = statement_at(case, made), list[str](), set(needed)
    if depth[0] != depth[1] or making is None:
        return None
    for line in range(int(read["line"]) - 1, int(made["line"]), -1):
        text = str(noted.get(str(line), ""))
        if not text.strip():
            continue
        tree = parsed(text.strip())
        if tree is None or _mentions(tree, whole) or depth_of(text) < depth[0]:
            return None
        stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        if stored.isdisjoint(needed):
            continue
        statement = tree.body[0]
        if (
            not isinstance(statement, ast.Assign)
            or depth_of(text) != depth[0]
            or any(_mentions(making, name) for name in stored)
        ):
            return None
        needed |= names_in(statement.value)
        moved.append(f"{ast.unparse(statement)}  # from line {line}, before {in_short(made)}")
    return moved[::-1]
