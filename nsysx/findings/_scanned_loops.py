"""Loops over time that carry one value on, h = a[t] * h + b[t], as advantages, returns and filters do: a scan takes their place.

Read from the lines of the loop that ran: the value is in every round what it was, once times something, plus something, neither of which
depends on it. Lines that only take elements by the loop's number run for all elements at once as they stand, with all numbers in its place.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from nsysx.analyses import lines
from nsysx.analyses.lines import texts
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flow import flow_of
from nsysx.findings._case import Case, Fix
from nsysx.findings._first_rounds import chosen_in_first, with_else
from nsysx.findings._line_remedies import BATCHED, IN_ONE, PREALLOCATED
from nsysx.findings._loop_texts import LoopText, loop_around
from nsysx.findings._pieces_in_text import function_of_call, names_in
from nsysx.findings._read_in_rounds import fix_at
from nsysx.findings._recurrences import OF_ELEMENTS, SCANNED, parts_of
from nsysx.findings._scans_by_function import rounds_of_function

_SCAN = Fix.by_name("scan-at-once")


def or_scan(case: Case, row: lines.CodeLineRow, fix: Fix | None, *, looping: bool) -> Fix | None:
    """Return the advice to scan for a line that launches in the rounds of such a loop, and what else is known of the line for any other.

    Where the code to paste is not known, a line that does something of its own keeps its advice.
    """
    source = texts(case.profile)
    of_file = source.get(str(row["file"] or "")) if looping else None
    loop = loop_around(with_else(of_file), row["line"] or 0) if isinstance(of_file, Mapping) else None
    if loop is None:
        return _by_function(case, row, fix)
    read = fix_at(source, row["file"], row["line"])
    if read is not None:
        return read
    paste = scanned(loop.header, loop.body)
    if paste is None:  # a line of it may look like one
        return BATCHED if fix == _SCAN else fix
    if paste and _alike(case):
        return _SCAN.but(paste=paste, condition=_CONDITION)
    return _SCAN if fix is None or fix in _OF_ANY_LOOP else fix


def _by_function(case: Case, row: lines.CodeLineRow, fix: Fix | None) -> Fix | None:
    """Return the advice to scan for the lines of a helper's loop and of the function of its rounds that it is given; else as it is."""
    paste = rounds_of_function(row, case.typed_rows(lines.ROWS), texts(case.profile))
    if paste is None or not (fix is None or fix in _OF_ANY_LOOP):
        return fix
    return _SCAN.but(paste=paste, condition=_CONDITION) if paste and _alike(case) else _SCAN


def scan_of_lines(source: Mapping[str, object], line: int, sampled: Sequence[int]) -> Fix | None:
    """Return the advice to scan for a line of such a loop that no X-ray saw, None for any other. ``sampled``: the lines at which the
    program was seen in that function; ``source``: the texts of lines of its file.
    """
    source = with_else(source)
    noted = loop_around(_of_one_function(source, sampled), line)
    loop = noted or _rounds_of(source, sampled)
    paste = None if loop is None else scanned(loop.header, loop.body)
    if paste is None:
        return None
    if noted is not None and not _is_whole(source, noted, sampled):
        paste = ""
    condition = f"{_CONDITION} {_AS_MANY_DIMENSIONS}" + ("" if noted is not None else f" {_FROM_THE_LAST}")
    return _SCAN.but(paste=paste, condition=condition) if paste else _SCAN


def _of_one_function(source: Mapping[str, object], sampled: Sequence[int]) -> Mapping[str, object]:
    """Return the texts of lines without those behind a gap below the sampled ones: they may be of another function, of any indent."""
    numbers = {int(number) for number in source if number.isdigit()}
    last = max(sampled, default=0)
    while last + 1 in numbers:
        last += 1
    return {number: text for number, text in source.items() if number.isdigit() and int(number) <= last}


def _is_whole(source: Mapping[str, object], loop: LoopText, sampled: Sequence[int]) -> bool:
    """Return whether the lines of a loop follow one another: one in between that nobody saw may give a name another value."""
    head = max(
        (int(number) for number, text in source.items() if text == loop.header and int(number) < min(sampled)),
        default=0,
    )
    return all(source.get(str(number)) for number in range(head, head + 1 + len(loop.body)))


def _rounds_of(source: Mapping[str, object], sampled: Sequence[int]) -> LoopText | None:
    """Return a loop of which only lines of the body are known, with the head that they speak for; None where they do not.

    A round that reads what belongs to the next number goes from the last to the first. So many rounds run as what they write has elements.
    """
    numbers = sorted(sampled)
    body = [str(source.get(str(number)) or "") for number in numbers]
    try:
        statements = ast.parse(textwrap.dedent("\n".join(body))).body
    except SyntaxError:
        return None
    pieces = [each for statement in statements for each in ast.walk(statement) if isinstance(each, ast.Subscript)]
    named = {name for each in pieces for name in names_in(each.slice)}
    stored = [each for each in pieces if isinstance(each.ctx, ast.Store) and isinstance(each.slice, ast.Name)]
    moved = [each.slice for each in pieces if isinstance(each.slice, ast.BinOp)]
    if len(named) != 1 or len(statements) != len(numbers) or numbers[-1] - numbers[0] != len(numbers) - 1:
        return None
    if not stored or not moved or not all(isinstance(each.op, ast.Add) for each in moved):
        return None
    header = f"for {next(iter(named))} in reversed(range(len({ast.unparse(stored[0].value)}))):"
    return LoopText(header, tuple(body))


#: What is said about a loop whatever it does.
_OF_ANY_LOOP = (*IN_ONE, PREALLOCATED)


_CONDITION = "Sums are made in another order: the last digits differ."
#: Where no X-ray saw what the elements are of.
_AS_MANY_DIMENSIONS = "What is taken by the round's number has as many dimensions each."
#: Where the head of the loop was not noted.
_FROM_THE_LAST = "For a loop from the last element to the first, over all of them: its head was not recorded."


def _alike(case: Case) -> bool:
    """Return whether the elements that are taken are of tensors of as many dimensions: others would not be set side by side as before."""
    flow = flow_of(case.profile)
    if flow is None:
        return True
    taken = [sizes_of(size) for name, size in zip(flow.names, flow.size, strict=True) if name == "aten::select"]
    return len({len(sizes[0]) for sizes in taken if sizes}) <= 1


def scanned(header: str, body: Sequence[str]) -> str | None:
    """Return code that computes a loop's linear recurrence for all elements, "" where none is known; None where the loop is none."""
    try:
        loop = ast.parse(textwrap.dedent(f"{header.strip()} pass")).body[0]
        statements = ast.parse(textwrap.dedent("\n".join(body))).body
    except SyntaxError:
        return None
    if not isinstance(loop, ast.For):
        return None
    return _RecurrentRounds(loop, statements).scan()


class _RecurrentRounds:
    """The rounds of one loop. ``carried``: names that a round reads before it gives them a value, and that another one gave them."""

    def __init__(self, loop: ast.For, statements: Sequence[ast.stmt]) -> None:
        self.loop = loop
        chosen = {id(each): chosen_in_first(loop, each) for each in statements}
        self.chosen = {id(each.statement): each for some in chosen.values() for each in some}
        self.statements = list[ast.stmt]()
        for each in statements:
            self.statements += [value.statement for value in chosen[id(each)]] or [each]
        statements = self.statements
        self.numbers = names_in(loop.target)
        given = {name for each in statements for name in _names_given(each)}
        self.carried, given_before = set[str](), set[str]()
        for each in statements:
            self.carried |= (_read(each) & given) - given_before
            given_before |= _names_given(each)

    def scan(self) -> str | None:
        """See ``scanned``."""
        kept_at = [(each, name) for each in self.statements for name in self._kept(each)]
        if len(kept_at) != 1:
            return None
        (statement, name), position = kept_at[0], self.statements.index(kept_at[0][0])
        if name in self.numbers:  # another one in each round
            return None
        assert isinstance(statement, ast.Assign)
        # What depends on the value may be stored, and must not come into the next round.
        depends = {name}
        for each in self.statements[position + 1 :]:
            depends |= _names_given(each) if _read(each) & depends else set()
        if depends & (self.carried - {name}) or any(_read(each) & depends for each in self.statements[:position]):
            return None
        parts = parts_of(statement.value, name)
        if parts is None or parts[0] is None or not _of_rounds(self, parts):  # without a factor it is a sum
            return None
        return self._paste(statement, name, position, parts[0], parts[1])

    def _kept(self, each: ast.stmt) -> Iterator[str]:
        names = _targets(each)
        yield from (
            name for name in names if isinstance(each, ast.Assign) and name in self.carried and name in _read(each)
        )

    def _paste(self, statement: ast.Assign, name: str, position: int, factor: ast.expr, rest: ast.expr) -> str:
        begin = self._all_numbers()
        if begin is None or self.carried != {name}:
            return ""
        before, after = self.statements[:position], self.statements[position + 1 :]
        if not all(self._runs_for_all(each) for each in (*before, ast.Expr(statement.value))):
            return ""
        stores = [code for each in after if (code := self._stored(each, name)) is not None]
        stores = [
            *stores,
            *(f"{ast.unparse(each)} = {name}" for each in statement.targets if isinstance(each, ast.Subscript)),
        ]
        if len(stores) != len(after) + sum(isinstance(each, ast.Subscript) for each in statement.targets):
            return ""
        every = {
            node.id for each in (self.loop, *self.statements) for node in ast.walk(each) if isinstance(node, ast.Name)
        }
        a, b = ("a", "b") if every.isdisjoint("ab") else ("scale_of_all", "sum_of_all")
        made = [
            begin,
            *(ast.unparse(each) for each in before),
            f"{b} = {ast.unparse(rest)}",
            f"{a} = {ast.unparse(factor)} + torch.zeros_like({b})  # {name} = {a} * {name} + {b}",
            f"{b} = torch.cat([{b}[:1] + {a}[:1] * {name}, {b}[1:]])  # with what {name} is before the first",
            *(row.format(a=a, b=b) for row in SCANNED),
            f"{name} = {b}",
            *stores,
        ]
        return "\n".join(made)

    def _all_numbers(self) -> str | None:
        """Return the line that gives what the loop takes one by one for all rounds at once, in the order of the rounds; None if unknown."""
        target, each, turned = self.loop.target, self.loop.iter, ""
        if function_of_call(each) == "reversed" and isinstance(each, ast.Call) and len(each.args) == 1:
            each, turned = each.args[0], ".flip(0)"
        taken = next((taken for statement in self.statements for taken in self._taken(statement)), None)
        if (
            isinstance(target, ast.Name)
            and isinstance(each, ast.Call)
            and function_of_call(each) == "range"
            and taken is not None
        ):
            args = ", ".join(map(ast.unparse, each.args))
            return f"{target.id} = torch.arange({args}, device={taken}.device){turned}"
        if (
            isinstance(target, ast.Tuple)
            and isinstance(each, ast.Call)
            and function_of_call(each) == "zip"
            and not turned
        ):
            names = [ast.unparse(name) for name in target.elts]
            tensors = [
                ast.unparse(tensor)
                for tensor in each.args
                if not isinstance(tensor, (ast.Call, ast.Starred)) or _is_method(tensor)
            ]
            return (
                f"{', '.join(names)} = {', '.join(tensors)}" if len(names) == len(tensors) == len(each.args) else None
            )
        return None

    def _taken(self, statement: ast.stmt) -> Iterator[str]:
        """Yield the tensors of which a statement takes the element of the round's number."""
        for node in ast.walk(statement):
            if (
                isinstance(node, ast.Subscript)
                and isinstance(node.ctx, ast.Load)
                and names_in(node.slice) & self.numbers
            ):
                yield ast.unparse(node.value)

    def _runs_for_all(self, statement: ast.stmt) -> bool:
        """Return whether a statement does for all rounds what it does for one where the round's number stands for all of them."""
        chosen = self.chosen.get(id(statement))
        if chosen is not None:
            read = names_in(chosen.first) | names_in(chosen.others)
            return not read & self.carried and self._runs_for_all(ast.Expr(chosen.others))
        if not isinstance(statement, (ast.Assign, ast.Expr)) or (
            isinstance(statement, ast.Assign) and not _targets(statement)
        ):
            return False
        ranged = isinstance(self.loop.target, ast.Name) and function_of_call(self.loop.iter) in ("range", "reversed")
        inside = set[int]()
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and function_of_call(node) not in OF_ELEMENTS:
                return False
            if isinstance(
                node, (ast.IfExp, ast.Compare, ast.BoolOp, ast.NamedExpr, ast.ListComp, ast.GeneratorExp, ast.MatMult)
            ):
                return False
            if isinstance(node, ast.Subscript):
                first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
                if not (
                    ranged
                    and names_in(node.slice) <= self.numbers
                    and names_in(first)
                    and not isinstance(first, ast.Slice)
                ):
                    return False
                inside |= {id(each) for each in ast.walk(node.slice)}
        alone = [
            each
            for each in ast.walk(statement)
            if isinstance(each, ast.Name) and each.id in self.numbers and id(each) not in inside
        ]
        return not (ranged and alone)

    def _stored(self, statement: ast.stmt, name: str) -> str | None:
        """Return the code that stores for all rounds what a statement stores in one, None for any other statement."""
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
            first = statement.targets[0].slice
            whole = isinstance(first, ast.Name) and first.id in self.numbers and isinstance(self.loop.target, ast.Name)
            return ast.unparse(statement) if whole and self._runs_for_all(ast.Expr(statement.value)) else None
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
            return None
        call = statement.value
        turned = function_of_call(call) == "insert" and len(call.args) == 2 and ast.unparse(call.args[0]) == "0"
        if not isinstance(call.func, ast.Attribute) or not (
            turned or (function_of_call(call) == "append" and len(call.args) == 1)
        ):
            return None
        if not self._runs_for_all(ast.Expr(call.args[-1])):
            return None
        value = ast.unparse(call.args[-1])
        kept = f"({value}).flip(0)" if turned and value != name else f"{value}.flip(0)" if turned else value
        return f"{ast.unparse(call.func.value)} = {kept}  # of all rounds: nothing is left to stack"


def _of_rounds(rounds: _RecurrentRounds, parts: tuple[ast.expr | None, ast.expr]) -> bool:
    """Return whether what is added is another one in each round: of a sequence, or made of one in the round."""
    made = {name for each in rounds.statements for name in _names_given(each)}
    return bool(names_in(parts[1]) & (made | rounds.numbers))


def _targets(statement: ast.stmt) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [each.id for each in targets if isinstance(each, ast.Name)]


def _names_given(statement: ast.stmt) -> set[str]:
    """Return the names that a statement gives a value."""
    return {each.id for each in ast.walk(statement) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def _read(statement: ast.stmt) -> set[str]:
    read = {each.id for each in ast.walk(statement) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    return read | (_names_given(statement) if isinstance(statement, ast.AugAssign) else set())


def _is_method(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
