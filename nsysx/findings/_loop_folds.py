"""A loop that calls a network with one part of a tensor after the other, as one call: its dimension is folded into that of the batch."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from nsysx.findings._loop_texts import loop_around
from nsysx.findings._pieces_in_text import (
    function_of_call,
    names_in,
    plain_name,
    statement_or_head,
    whole_statement,
    with_node_replaced,
)

#: Modules whose functions are no networks.
_PACKAGES = ("torch", "F", "nn", "np", "numpy", "math", "dist", "time", "random", "functional")
#: Methods that treat each number by itself.
_OF_EACH = ("contiguous", "float", "half", "bfloat16", "double", "detach", "clone", "to", "cuda", "type")
_JOINS = {"stack": "stack", "cat": "cat", "concat": "cat", "concatenate": "cat"}
_IN_PLACE = "  # in place of the loop"


class _PartRounds(NamedTuple):
    """What rounds make, and of which parts: ``piece`` in it of ``whole``, taken by its number in a dimension; ``number`` of rounds (text),
    "" where they take all of the dimension.
    """

    made: ast.expr
    piece: ast.expr
    whole: str
    dimension: int
    number: str


class _Join(NamedTuple):
    """A call that joins what the rounds made, along which dimension, as a new one or not."""

    call: ast.Call
    dimension: int
    stacks: bool


def folded_loop(lines: Mapping[int, str], line: int, unbinding: Collection[int] = ()) -> str:
    """Return the statement in place of a loop of which a line calls a network, "" where its lines do not show what a round is given.

    ``lines``: those of the function, with their indents; ``unbinding``: lines that take a tensor apart, as loops over tensors do.
    """
    statement = whole_statement(lines.get(line, ""))
    if statement is None:
        return ""
    for node in ast.walk(statement):
        if isinstance(node, ast.ListComp | ast.GeneratorExp) and len(node.generators) == 1:
            (over,) = node.generators
            if over.ifs or over.is_async:
                return ""
            rounds = _rounds(node.elt, over.target, over.iter, lines, unbinds=line in unbinding)
            return _of_list(statement, node, rounds, lines, line) if rounds is not None else ""
    return _of_loop(lines, line, unbinding)


def _of_list(statement: ast.stmt, made: ast.expr, rounds: _PartRounds, lines: Mapping[int, str], line: int) -> str:
    """Return the statement for torch.stack([net(x[:, t]) for t in range(n)], 1), or for such a list that is joined later."""
    join = next((each for each in _joins(statement) if each.call.args[0] is made), None)
    if join is not None:
        return with_node_replaced(statement, join.call, _joined(rounds, join))
    if isinstance(statement, ast.Assign) and statement.value is made and len(statement.targets) == 1:
        (target,) = statement.targets
        return _of_name(target.id, rounds, lines, {line}) if isinstance(target, ast.Name) else ""
    return ""


def _of_loop(lines: Mapping[int, str], line: int, unbinding: Collection[int]) -> str:
    """Return the statement for parts.append(net(x[:, t])) in a loop that does nothing else."""
    loop = loop_around({str(number): text for number, text in lines.items()}, line)
    head = whole_statement(f"{loop.header.strip()} pass") if loop is not None else None
    if loop is None or not isinstance(head, ast.For) or head.orelse:
        return ""
    body = [whole_statement(text) for text in loop.body]
    made = body[0].value if body and isinstance(body[0], ast.Expr | ast.Assign) else None
    if len(body) == 2 and isinstance(body[0], ast.Assign):  # y = net(x[:, t]), and the list is given y
        appended, name = _appended(body[1]), body[0].targets[0]
        alike = appended is not None and ast.unparse(appended[1]) == ast.unparse(name)
        listed = appended[0] if appended is not None and alike and isinstance(name, ast.Name) else ""
    else:
        appended = _appended(body[0]) if len(body) == 1 else None
        listed, made = appended if appended is not None else ("", None)
    if not listed or made is None:
        return ""
    begins = max(number for number, text in lines.items() if number < line and text == loop.header)
    rounds = _rounds(made, head.target, head.iter, lines, unbinds=begins in unbinding)
    if rounds is None:
        return ""
    inside = {number for number, text in lines.items() if text in (loop.header, *loop.body)}
    return _of_name(listed, rounds, lines, inside)


def _appended(statement: ast.stmt | None) -> tuple[str, ast.expr] | None:
    """Return the list that a statement puts something at the end of, and what; None for another statement."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or len(call.args) != 1:
        return None
    listed = call.func.value
    plain = call.func.attr == "append" and isinstance(listed, ast.Name) and not call.keywords
    return (listed.id, call.args[0]) if plain and isinstance(listed, ast.Name) else None


def _of_name(listed: str, rounds: _PartRounds, lines: Mapping[int, str], made_in: set[int]) -> str:
    """Return the statement that joins a list of the function, of what one call makes; or the list, where it is read elsewhere, too.

    ``made_in``: the lines that make it.
    """
    outside = [
        tree
        for number, text in lines.items()
        if number not in made_in and (tree := statement_or_head(text)) is not None
    ]
    nodes = [(tree, node) for tree in outside for node in ast.walk(tree)]
    given = [tree for tree, node in nodes if isinstance(node, ast.Name) and node.id == listed and _is_stored(node)]
    reads = [node for _, node in nodes if isinstance(node, ast.Name) and node.id == listed and not _is_stored(node)]
    joins = [(tree, join) for tree in outside for join in _joins(tree) if ast.unparse(join.call.args[0]) == listed]
    if not joins or not all(_is_empty(tree, listed) for tree in given):
        return ""
    if len(reads) == 1:
        ((statement, join),) = joins
        return with_node_replaced(statement, join.call, _joined(rounds, join)) + _IN_PLACE
    changed = any(isinstance(n, ast.Attribute) and n.value in reads for _, n in nodes)  # more is put into it
    axis = 0 if rounds.dimension == 0 else 1
    return "" if changed else f"{listed} = {_apart(rounds)}.unbind({axis}){_IN_PLACE}"


def _is_stored(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _is_empty(statement: ast.stmt, name: str) -> bool:
    """Return whether a statement gives a name an empty list."""
    pairs: list[tuple[ast.expr, ast.expr | None]] = []
    if isinstance(statement, ast.AnnAssign):
        pairs = [(statement.target, statement.value)]
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            pairs = [*zip(target.elts, value.elts, strict=True)]
    values = [value for target, value in pairs if value is not None and ast.unparse(target) == name]
    return len(values) == 1 and ast.unparse(values[0]) in ("[]", "list()")


def _joins(statement: ast.AST) -> Iterator[_Join]:
    """Yield the calls of torch.stack and torch.cat in a statement, with numbers for their dimension."""
    for node in ast.walk(statement):
        if not isinstance(node, ast.Call) or function_of_call(node) not in _JOINS or not node.args:
            continue
        words = {str(each.arg): each.value for each in node.keywords}
        along = [*node.args[1:], *(words[each] for each in ("dim", "axis") if each in words)]
        if len(along) > 1 or not {*words} <= {"dim", "axis"} or ast.unparse(node.func).partition(".")[0] != "torch":
            continue
        try:
            dimension = ast.literal_eval(along[0]) if along else 0
        except ValueError:
            continue
        if type(dimension) is int:
            yield _Join(node, dimension, stacks=_JOINS[function_of_call(node)] == "stack")


def _rounds(
    made: ast.expr, target: ast.expr, over: ast.expr, lines: Mapping[int, str], *, unbinds: bool
) -> _PartRounds | None:
    """Return what rounds make of which parts, None where they take them in another way, or are given more than these."""
    if not isinstance(target, ast.Name):
        return None
    uses = [node for node in ast.walk(made) if isinstance(node, ast.Name) and node.id == target.id]
    if len(uses) != 1:
        return None
    parents = {child: node for node in ast.walk(made) for child in ast.iter_child_nodes(node)}
    counted = isinstance(over, ast.Call) and ast.unparse(over.func) == "range" and len(over.args) == 1
    if counted and isinstance(over, ast.Call):
        taken = _by_number(uses[0], parents)
        if taken is None:
            return None
        piece, whole, dimension = taken
        number = ast.unparse(over.args[0])
        number = "" if _is_all(number, whole, dimension, lines) else number
    else:
        unbound = _unbound(over, unbinds=unbinds)
        if unbound is None:
            return None
        piece, (whole, dimension), number = uses[0], unbound, ""
    return _PartRounds(made, piece, whole, dimension, number) if _only_calls(piece, made, parents) else None


def _by_number(use: ast.Name, parents: Mapping[ast.AST, ast.AST]) -> tuple[ast.expr, str, int] | None:
    """Return the part that is taken by a number, of what, and in which dimension: x[:, t], x[..., t], x.select(1, t)."""
    above = parents.get(use)
    if isinstance(above, ast.Call) and isinstance(above.func, ast.Attribute) and above.func.attr == "select":
        dimension = ast.unparse(above.args[0])
        plain = len(above.args) == 2 and above.args[1] is use and dimension.isdigit() and plain_name(above.func.value)
        return (above, ast.unparse(above.func.value), int(dimension)) if plain else None
    index: ast.AST | None = above if isinstance(above, ast.Tuple) else use
    piece = parents.get(index) if index is not None else None
    if not isinstance(piece, ast.Subscript) or piece.slice is not index or not plain_name(piece.value):
        return None
    each = index.elts if isinstance(index, ast.Tuple) else [use]
    others = [ast.unparse(part) for part in each if part is not use]
    if others == ["..."] and each[-1] is use:
        return piece, ast.unparse(piece.value), -1
    return (piece, ast.unparse(piece.value), each.index(use)) if {*others} <= {":"} else None


def _unbound(over: ast.expr, *, unbinds: bool) -> tuple[str, int] | None:
    """Return the tensor whose parts are gone through, and the dimension: x.unbind(1), and x itself where it is known to be a tensor."""
    if plain_name(over):
        return (ast.unparse(over), 0) if unbinds else None
    if not isinstance(over, ast.Call) or not isinstance(over.func, ast.Attribute) or over.func.attr != "unbind":
        return None
    given = [*over.args, *(each.value for each in over.keywords if each.arg == "dim")]
    whole = given.pop(0) if ast.unparse(over.func.value) == "torch" and given else over.func.value
    dimension = ast.unparse(given[0]) if given else "0"
    return (ast.unparse(whole), int(dimension)) if plain_name(whole) and dimension.isdigit() else None


def _is_all(number: str, whole: str, dimension: int, lines: Mapping[int, str]) -> bool:
    """Return whether a number is the length of a dimension, by its text, or by the line that makes it."""
    lengths = {
        f"{whole}.shape[{dimension}]",
        f"{whole}.size({dimension})",
        *([f"len({whole})"] if not dimension else []),
    }
    if number in lengths:
        return True
    made = [tree for text in lines.values() if isinstance(tree := whole_statement(text), ast.Assign)]
    targets = [(each, frozenset[str]().union(*map(names_in, each.targets))) for each in made]
    naming = [each for each, names in targets if number in names]
    # What is given another value may have had another size before.
    if len(naming) != 1 or dimension < 0 or any(whole in names for _, names in targets):
        return False
    target, value = naming[0].targets[0], ast.unparse(naming[0].value)
    if isinstance(target, ast.Tuple):
        named = [ast.unparse(each) for each in target.elts]
        shaped = value in (f"{whole}.shape", f"{whole}.size()", f"{whole}.shape[:{len(named)}]")
        return shaped and named[dimension : dimension + 1] == [number] and not any("*" in each for each in named)
    return value in lengths


def _only_calls(piece: ast.expr, made: ast.expr, parents: Mapping[ast.AST, ast.AST]) -> bool:
    """Return whether what is made of a part is that of networks, one called with what another one makes, which get nothing else."""
    node: ast.AST = piece
    networks = 0
    while node is not made:
        above = parents[node]
        if isinstance(above, ast.Attribute) and above.attr in _OF_EACH and isinstance(parents.get(above), ast.Call):
            node = parents[above]
            if not all(_is_constant(each) for each in _arguments(node)):
                return False
            continue
        rest = [each for each in _arguments(above) if each is not node]
        if not isinstance(above, ast.Call) or above.func is node or not _may_be_network(above.func):
            return False
        if len(rest) == len(_arguments(above)) or not all(map(_is_constant, rest)):
            return False
        node, networks = above, networks + 1
    return networks > 0


def _arguments(call: ast.AST) -> Sequence[ast.expr]:
    return [*call.args, *(each.value for each in call.keywords)] if isinstance(call, ast.Call) else []


def _is_constant(node: ast.expr) -> bool:
    """Return whether an argument is a number or a text, or a type or device that each round is given alike."""
    return (
        isinstance(node, ast.Constant)
        or ast.unparse(node).rpartition(".")[2] in ("device", "dtype")
        or (isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch")
    )


def _may_be_network(function: ast.expr) -> bool:
    owner = function
    while isinstance(owner, ast.Attribute | ast.Subscript):
        owner = owner.value
    plain = isinstance(owner, ast.Name) and owner.id not in _PACKAGES
    return plain and not (isinstance(function, ast.Name) and hasattr(builtins, function.id))


def _parts(rounds: _PartRounds) -> str:
    """Return the tensor with the parts that the rounds take."""
    if not rounds.number:
        return rounds.whole
    before = "..., " if rounds.dimension < 0 else ":, " * rounds.dimension
    return f"{rounds.whole}[{before}:{rounds.number}]"


def _called(rounds: _PartRounds, given: str) -> str:
    return with_node_replaced(rounds.made, rounds.piece, given)


def _apart(rounds: _PartRounds) -> str:
    """Return what one call makes of all parts, with the dimension of the rounds behind that of the batch, before it for parts of rows."""
    parts, d = _parts(rounds), rounds.dimension
    moved = parts if d in (0, 1) else f"{parts}.movedim({d}, 1)"
    sizes = f"{rounds.whole}.shape[:2]" if d in (0, 1) and not rounds.number else f"(len({rounds.whole}), -1)"
    sizes = f"({rounds.number}, -1)" if d == 0 and rounds.number else sizes
    return f"{_called(rounds, f'{moved}.flatten(0, 1)')}.unflatten(0, {sizes})"


def _joined(rounds: _PartRounds, join: _Join) -> str:
    """Return what joins what one call makes of all parts as the rounds' results were joined."""
    parts, d, to = _parts(rounds), rounds.dimension, join.dimension
    if not join.stacks and to == 0:  # rows of one round after those of the other
        first = parts if d == 0 else f"{parts}.transpose(0, 1)" if d == 1 else f"{parts}.movedim({d}, 0)"
        return _called(rounds, f"{first}.flatten(0, 1)")
    axis = 0 if d == 0 else 1
    aim = to if join.stacks or to > 0 else to - 1
    moved = _apart(rounds) + ("" if aim == axis else f".movedim({axis}, {aim})")
    return moved if join.stacks else f"{moved}.flatten({aim}, {aim + 1})"
