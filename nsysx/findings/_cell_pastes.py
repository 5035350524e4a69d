"""The code that runs cells' loop over time as one call of a layer of torch, in the names of the program's own function around it."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nsysx.findings._cell_rounds import Made, RoundsOfCells, Value, rounds_of_cells
from nsysx.findings._loop_texts import depth_of
from nsysx.findings._pieces_in_text import OtherFormError, function_of_call, names_in

_LAYERS = {"LSTMCell": "LSTM", "GRUCell": "GRU", "RNNCell": "RNN"}
#: Calls that make a tensor of zeros, and those that hand on the same numbers.
_ZEROS, _SAME = ("zeros", "zeros_like", "new_zeros"), ("to", "float", "cuda", "contiguous", "clone", "expand")
#: What only a tensor has: a name is one where this stands behind it.
_OF_TENSOR = r"\.(size|shape|new_\w+|dtype|device|unbind|transpose|permute)\b"


class CellLoop(NamedTuple):
    """A loop over time that calls cells: what its rounds do, its first and last line, and the code instead, "" where that is not known."""

    rounds: RoundsOfCells
    first: int
    last: int
    paste: str = ""


class _AroundLoop(NamedTuple):
    """The statements beside a loop, those before and behind it, and the text of the function's other lines, which stand further out."""

    before: Sequence[ast.stmt]
    behind: Sequence[ast.stmt]
    outer: str
    top: int


def loop_of_cells(
    texts: Mapping[int, str], line: int, groups: Mapping[str, int], cls: str, function: str
) -> CellLoop | None:
    """Return the loop over time around a line that calls cells, None where there is none that does nothing else.

    ``texts``: the lines of the function that ran, by their numbers; ``groups``: see ``rounds_of_cells``; ``cls``: the class of the cells;
    ``function``: its name with its class.
    """
    for head in sorted(number for number, text in texts.items() if number < line and text.lstrip().startswith("for ")):
        depth = depth_of(texts[head])
        behind = [number for number in sorted(texts) if number > head]
        last = max((n for n in _while_deeper(behind, texts, depth + 1)), default=head)
        loop = _parsed({n: texts[n] for n in sorted(texts) if head <= n <= last}) if last >= line else None
        if not loop or not isinstance(loop[0], ast.For):
            continue
        rounds = rounds_of_cells(loop[0], groups, pairs=cls == "LSTMCell")
        if rounds is None:
            continue
        before = [number for number in sorted(texts, reverse=True) if number < head]
        above = sorted(_while_deeper(before, texts, depth))
        below = list(_while_deeper([number for number in behind if number > last], texts, depth))
        outer = "\n".join(
            text for number, text in texts.items() if number not in {*above, *below, *range(head, last + 1)}
        )
        try:
            sides = [_parsed({number: texts[number] for number in part}) for part in (above, below)]
            if sides[0] is None or sides[1] is None:
                raise OtherFormError
            parts = _AroundLoop(sides[0], sides[1], outer, head)
            paste = _LayerPaste(rounds, loop[0], parts, groups, cls, function, "\n".join(texts.values())).code(last)
        except OtherFormError:
            paste = ""
        return CellLoop(rounds, head, last, paste)
    return None


def _while_deeper(numbers: Sequence[int], texts: Mapping[int, str], depth: int) -> list[int]:
    """Return the first of some lines, as far as none is indented less."""
    end = next((count for count, n in enumerate(numbers) if depth_of(texts[n]) < depth), len(numbers))
    return list(numbers[:end])


def _parsed(texts: Mapping[int, str]) -> list[ast.stmt] | None:
    """Return the statements of some lines, with the numbers of the lines; None where they are none."""
    if not texts:
        return []
    first, last = min(texts), max(texts)
    code = textwrap.dedent("\n".join(texts.get(number, "") for number in range(first, last + 1)))
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return None
    return ast.increment_lineno(tree, first - 1).body


class _LayerPaste:
    def __init__(
        self,
        rounds: RoundsOfCells,
        loop: ast.For,
        parts: _AroundLoop,
        groups: Mapping[str, int],
        cls: str,
        function: str,
        text: str,
    ) -> None:
        self.rounds, self.loop, self.parts, self.groups = rounds, loop, parts, groups
        self.layer, self.function, self.text = _LAYERS[cls], function, text
        self.given = dict[str, ast.expr]()
        for statement in parts.before:
            self._note(statement)

    def _note(self, statement: ast.stmt) -> None:
        """Note what names are given by an assignment before the loop; a name that another statement gives is not known."""
        if not isinstance(statement, ast.Assign):
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    self.given.pop(node.id, None)
            return
        for target in statement.targets:
            if isinstance(target, ast.Name):
                self.given[target.id] = statement.value
            elif isinstance(target, ast.Tuple):
                values = statement.value.elts if isinstance(statement.value, ast.Tuple) else []
                for number, each in enumerate(target.elts):
                    if isinstance(each, ast.Name) and len(values) == len(target.elts):
                        self.given[each.id] = values[number]
                    elif isinstance(each, ast.Name):
                        self.given[each.id] = ast.parse(f"({ast.unparse(statement.value)})[{number}]", mode="eval").body

    def code(self, last: int) -> str:
        """Return the code: the layer at the end of ``__init__``, and the call in place of lines up to the last one replaced."""
        if not all(group.startswith("self.") for group in self.groups) or "." not in self.function:
            raise OtherFormError
        rounds, time = self.rounds, self.rounds.sequence.dimension
        sequence, whole = self._sequence()
        name = next(
            (n for n in (f"self.{self.layer.lower()}", "self.over_time") if not re.search(rf"{n}\b", self.text)), None
        )
        if name is None or (rounds.stored and not whole):
            raise OtherFormError
        start = self._start()
        out, hidden, memory = self._free("out", "outputs_of_all"), self._free("h_n"), self._free("c_n")
        behind, replaced = self._behind(out, time)
        left = self._left(behind, hidden, memory)
        read = set[str]().union(*(names_in(each) for each in behind), re.findall(r"\w+", self.parts.outer))
        lists = [each for each in rounds.outputs if each in read]
        for each in rounds.outputs:
            if not isinstance(begins := self.given.get(each), ast.List) or begins.elts:
                raise OtherFormError
        state = hidden if self.layer != "LSTM" else f"({hidden}, {memory})"
        called = f"{name}({', '.join((sequence, *start))})"
        lines = [f"{out}, {state} = {called}" if left else f"{out} = {called}[0]"]
        lines += [f"{each} = {out}" for each in rounds.stored]
        lines += [f"{each} = list({out}.unbind({time}))" for each in lists]
        lines += left
        changed = behind[: replaced + 1] if replaced >= 0 else []
        if not left and not lists and not rounds.stored and len(changed) == 1:
            code = ast.unparse(changed[0])
            if len(re.findall(rf"\b{out}\b", code)) == 1:
                lines, changed = [re.sub(rf"\b{out}\b", lambda _: f"{called}[0]", code)], []
        lines += [ast.unparse(each) for each in changed]
        if replaced >= 0:
            last = max(last, self.parts.behind[replaced].end_lineno or last)
        first, kept = self._kept("\n".join((*lines, *map(ast.unparse, behind))))
        in_init = self._layer(name, "\n".join((*kept, *lines, *map(ast.unparse, behind), self.parts.outer)))
        head = f"# in {self.function}, in place of lines {first} to {last}:"
        return "\n".join((*in_init, head, *kept, *lines))

    def _free(self, *names: str) -> str:
        for name in (*names, *(f"{each}_of_all" for each in names)):
            if not re.search(rf"\b{name}\b", self.text):
                return name
        raise OtherFormError

    def _sequence(self) -> tuple[str, bool]:
        """Return the sequence that the rounds go through, and whether that is all of the tensor."""
        (tensor, time), each = self.rounds.sequence, self.loop.iter
        if function_of_call(each) == "range" and isinstance(each, ast.Call):
            count = each.args[0]
            if isinstance(count, ast.Name) and count.id in self.given:
                count = self.given[count.id]
            length = ast.unparse(count)
            of_tensor = {f"{tensor}.size({time})", f"{tensor}.shape[{time}]", f"{tensor}.size()[{time}]"}
            if length in of_tensor or (time == 0 and length == f"len({tensor})"):
                return tensor, True
            return f"{tensor}[{':, ' * time}:{ast.unparse(each.args[0])}]", False
        called = isinstance(each, ast.Call) and function_of_call(each) != "enumerate"
        if called or re.search(rf"\b{re.escape(tensor)}{_OF_TENSOR}", self.text):
            return tensor, True
        return f"torch.stack(tuple({tensor}))", True

    def _start(self) -> list[str]:
        """Return the state that the layer begins with as its argument, nothing where it is zeros."""
        places = self.rounds.states
        roots = {re.split(r"[\[.]", text)[0] for each in places for text in each}
        if all(self._zero(ast.Name(root, ast.Load())) for root in roots):
            return []
        if any(root in self.given and isinstance(self.given[root], ast.Constant) for root in roots):
            raise OtherFormError
        kinds = [
            f"{of_layers[0]}[None]" if len(of_layers) == 1 else f"torch.stack([{', '.join(of_layers)}])"
            for of_layers in zip(*places, strict=True)
        ]
        return [kinds[0]] if len(kinds) == 1 else [f"({', '.join(kinds)})"]

    def _zero(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            given = self.given.pop(node.id, None)  # a name may be given what it was, in another form
            is_zero = given is not None and self._zero(given)
            if given is not None:
                self.given[node.id] = given
            return is_zero
        if isinstance(node, (ast.Tuple, ast.List)):
            return all(map(self._zero, node.elts))
        if isinstance(node, ast.ListComp):
            return self._zero(node.elt)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return isinstance(node.left, ast.List) and self._zero(node.left)
        if isinstance(node, ast.Call):
            name = function_of_call(node)
            handed = isinstance(node.func, ast.Attribute) and name in _SAME and self._zero(node.func.value)
            return name in _ZEROS or handed
        return False

    def _behind(self, out: str, time: int) -> tuple[list[ast.stmt], int]:
        """Return the statements behind the loop with the outputs put together in place of their lists, and the last that is another."""
        stacks = _StacksOfOutputs(self.rounds.outputs, out, time)
        statements, last = list[ast.stmt](), -1
        for number, statement in enumerate(self.parts.behind):
            made = stacks.count
            copied = ast.parse(ast.unparse(statement)).body[0]
            statements.append(stacks.visit(copied))
            last = number if stacks.count > made else last
        return statements, last

    def _left(self, behind: Sequence[ast.stmt], hidden: str, memory: str) -> list[str]:
        """Return the lines that give the names that the code behind the loop reads what the last round left in them."""
        read = set[str]().union(*(names_in(each) for each in behind), re.findall(r"\w+", self.parts.outer))
        values = self.rounds.left
        lines, groups = list[str](), dict[str, list[str]]()
        for text in values:
            root = re.split(r"[\[.]", text)[0]
            if root in read and root != "self":
                groups.setdefault(root, []).append(text)
            elif root == "self":
                raise OtherFormError
        for root, texts in groups.items():
            if texts == [root]:
                lines.append(f"{root} = {_last_of(values[root], hidden, memory)}")
                continue
            if texts != [f"{root}[{number}]" for number in range(len(self.rounds.cells))]:
                raise OtherFormError
            lines.append(f"{root} = [{', '.join(_last_of(values[text], hidden, memory) for text in texts)}]")
        return lines

    def _kept(self, code: str) -> tuple[int, list[str]]:
        """Return the first line that goes, and those from there to the loop that stay: what they give is still read."""
        read = {*re.findall(r"\w+", code), *re.findall(r"\w+", self.parts.outer)}
        first, kept, rows = self.parts.top, list[str](), list[str]()
        for statement in reversed(self.parts.before):
            targets = {
                node.id
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
            if isinstance(statement, ast.Assign) and targets and targets.isdisjoint(read):
                first, kept = statement.lineno, list(rows)
            else:
                read |= names_in(statement)
                rows.insert(0, ast.unparse(statement))
        return first, kept

    def _layer(self, name: str, code: str) -> list[str]:
        """Return the lines of ``__init__`` that make the layer in place of the cells."""
        if any(re.search(rf"{re.escape(group)}\b", code) for group in self.groups):
            raise OtherFormError
        group, count = next(iter(self.groups.items()))
        cell = f"{group}[0]" if count else group
        layers = (f"len({group})" if count else "1") if len(self.groups) == 1 else str(len(self.groups))
        bare = re.search(r"(?<![\w.])nn\.", self.text) and not re.search(r"\btorch\.", self.text)
        module = "nn" if bare else "torch.nn"
        options = ["bias=cell.bias", *(["nonlinearity=cell.nonlinearity"] if self.layer == "RNN" else [])]
        options += ["batch_first=True"] if self.rounds.sequence.dimension else []
        made = f"{name} = {module}.{self.layer}(cell.input_size, cell.hidden_size, {layers}, {', '.join(options)})"
        where = f"# at the end of {self.function.rpartition('.')[0]}.__init__:"
        return [where, f"cell = {cell}", made, f"del {', '.join(self.groups)}"]


class _StacksOfOutputs(ast.NodeTransformer):
    """Puts all outputs where their lists are put together; ``count``: how often it did."""

    def __init__(self, lists: Sequence[str], out: str, time: int) -> None:
        self.lists, self.out, self.time, self.count = lists, out, time, 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        given = [*node.args[1:], *(each.value for each in node.keywords if each.arg == "dim")]
        dimension = 0 if not given else given[0].value if isinstance(given[0], ast.Constant) else None
        listed = ast.unparse(node.args[0]) if node.args else ""
        if ast.unparse(node.func) != "torch.stack" or listed not in self.lists or dimension not in (0, 1):
            return self.generic_visit(node)
        self.count += 1
        text = self.out if dimension == self.time else f"{self.out}.transpose(0, 1)"
        return ast.parse(text, mode="eval").body


def _last_of(value: Value, hidden: str, memory: str) -> str:
    """Return the code of what cells made in the last round."""
    if isinstance(value, Made):
        both = {"h": f"{hidden}[{value.layer}]", "c": f"{memory}[{value.layer}]"}
        return f"({both['h']}, {both['c']})" if value.what == "both" else both[value.what]
    if isinstance(value, list):
        return f"[{', '.join(_last_of(each, hidden, memory) for each in value)}]"
    raise OtherFormError
