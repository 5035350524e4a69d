"""Where the order of a program's batches, or their size, depends on the rank: a generator that has the rank in its seed decides it.

Ranks with orders of their own have batches of unlike lengths in the same step, even where each gets as much work over an epoch. The same
generator for noise, augmentation or dropout is right: only what is gone through in the order counts, and what is drawn and called a size,
a length or a bucket. It is read in the program's text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

#: Without these words no text is parsed.
_WORDS = re.compile(
    r"(?is)(?=.*rank)(?=.*(?:shuffle|permut|randperm|choice|randint|randrange|integers))(?=.*(?:seed|random|rng|generator))"
)
_RANK = re.compile(r"(?i)(^|_)rank$")
_SEED = re.compile(r"(?i)seed")
#: Calls that seed, and calls that make an order.
SEEDS = {"Random", "RandomState", "default_rng", "manual_seed", "seed", "SeedSequence", "PCG64"}
_ORDERS = {"shuffle", "permutation", "permuted", "randperm"}
#: Calls that draw one of several, and names of what a batch has one of: its size in pixels or tokens.
_DRAWS = {"choice", "choices", "randint", "randrange", "integers"}
_SIZE = re.compile(
    r"(?i)(^|_)(sides?|sizes?|res|resolutions?|len|lens|lengths?|seq_?len|buckets?|height|width|h|w|shape|frames?|tokens?|(img_?)?sz)$"
)
#: Functions of a program that seed all of these libraries: ``init_seeds(seed + rank)``, ``seed_everything(seed + rank)``.
_SEEDS_ALL = re.compile(r"(?i)^((set|init|fix)\w*_?seeds?\w*|seed_(everything|all)\w*)$")
#: What all of a library's generators are seeded with, by the name of the library.
_LIBRARIES = {"random", "np", "numpy", "torch"}
#: They are called for each sample, or for each batch.
_OF_A_SAMPLE = {"__getitem__", "__getitems__", "__call__", "forward"}


class RankOrder(NamedTuple):
    """The line of the seed, and that of the order which it decides, with the first and last line of the function that makes it.

    ``drawn``: no order, but the size of a batch, drawn for each.
    """

    seed: int
    order: int
    first: int
    last: int
    drawn: bool = False


def rank_orders(text: str) -> list[RankOrder]:
    """Return the orders of a program's text that depend on the rank, [] where none is seen or the text is no Python."""
    if not _WORDS.search(text):
        return []
    try:
        return _Text(ast.parse(text)).orders()
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deep
        return []


class _Scope(NamedTuple):
    """The module, or a function with its class: what its variables, and its class's attributes, are known by."""

    node: ast.AST
    name: str
    cls: str


class _Text:
    def __init__(self, tree: ast.Module) -> None:
        self.scopes = [_Scope(tree, "", ""), *_functions(tree, "")]
        self.seeded: dict[
            str, int
        ] = {}  # what has the rank in its seed: variable in its scope, attribute, function, or library
        for _ in range(3):  # of a seed, its generator, and what returns that
            for scope in self.scopes:
                self._note(scope)

    def _note(self, scope: _Scope) -> None:
        for node in _own(scope.node):
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                line = self._line(node.value, scope)
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    key = _key(target, scope)
                    of_seed = node.lineno if _SEED.search(key) and _names_rank(node.value) else 0
                    if key and (line or of_seed):
                        self.seeded.setdefault(key, line or of_seed)
            elif isinstance(node, ast.Return) and node.value is not None and scope.name:
                line = self._line(node.value, scope)
                if line:
                    self.seeded.setdefault(f"{scope.cls}.{getattr(scope.node, 'name', '')}()", line)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and self._seeds(node, scope):
                key = _key(node.func.value, scope)
                if key:
                    self.seeded.setdefault(key, node.lineno)
            elif isinstance(node, ast.Call) and _SEEDS_ALL.match(_called(node)) and any(map(_names_rank, node.args)):
                for library in ("random", "np", "numpy", "torch"):
                    self.seeded.setdefault(library, node.lineno)

    def _seeds(self, call: ast.Call, scope: _Scope) -> bool:
        """Return whether a call seeds a generator with the rank."""
        given = [*call.args, *(k.value for k in call.keywords)]
        return _called(call) in SEEDS and any(_names_rank(a) or self._has_seed(a, scope) for a in given)

    def _has_seed(self, node: ast.AST, scope: _Scope) -> bool:
        keys = (_key(n, scope) for n in ast.walk(node))
        return any(key in self.seeded and _SEED.search(key) for key in keys if key)

    def _line(self, node: ast.AST, scope: _Scope) -> int:
        """Return the line of the seed of a generator that an expression is, 0 where it is none that has the rank in it."""
        key = _key(node, scope)
        if key in self.seeded and not _SEED.search(key):
            return self.seeded[key]
        if not isinstance(node, ast.Call):
            return 0
        if self._seeds(node, scope):
            return node.lineno
        of_self = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "self"
        function = f"{scope.cls if of_self else ''}.{_called(node)}()"
        return self.seeded.get(function, 0) if of_self or isinstance(node.func, ast.Name) else 0

    def orders(self) -> list[RankOrder]:
        """Return the orders, and behind them the sizes that are drawn."""
        by_rank: dict[RankOrder, None] = {}
        for scope in self.scopes:
            if getattr(scope.node, "name", "") in _OF_A_SAMPLE:
                continue
            orders = [
                (call, False) for call, target in _order_calls(scope.node) if _gone_through(scope.node, call, target)
            ]
            for call, drawn in (*orders, *((call, True) for call in _size_draws(scope.node))):
                line = self._of_order(call, scope)
                if line:
                    lines = [n.lineno for n in ast.walk(scope.node) if hasattr(n, "lineno")]
                    by_rank[RankOrder(line, call.lineno, min(lines), max(lines), drawn)] = None
        return sorted(by_rank, key=lambda order: order.drawn)

    def _of_order(self, call: ast.Call, scope: _Scope) -> int:
        """Return the line of the seed that decides an order: of the generator that is called or given, else of its library's.

        A library may be seeded anew where the order is made.
        """
        given = [k.value for k in call.keywords if k.arg in ("generator", "rng", "random")]
        if given or not isinstance(call.func, ast.Attribute):
            return self._line(given[0], scope) if given else 0
        key = _key(call.func.value, scope)
        seeds = [
            n
            for n in _own(scope.node)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and _key(n.func.value, scope) == key
        ]
        anew = any(_called(n) in SEEDS and not self._seeds(n, scope) for n in seeds if n is not call)
        return 0 if anew and key in _LIBRARIES else self._line(call.func.value, scope)


def _functions(node: ast.AST, cls: str) -> Iterator[_Scope]:
    """Yield each function, with the class that it is in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield _Scope(child, f"{child.name}:{child.lineno}", cls)
        yield from _functions(child, child.name if isinstance(child, ast.ClassDef) else cls)


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield what stands in a scope, in its order, without the functions in it."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield node
            yield from _own(node)


def _key(node: ast.AST, scope: _Scope) -> str:
    """Return by which name a variable, an attribute or a library is known, "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id if node.id in _LIBRARIES else f"{scope.name} {node.id}"
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        path = f"{node.value.id}.{node.attr}"
        of_self = f"{scope.cls}.{node.attr}" if node.value.id == "self" else f"{scope.name} {path}"
        return {"np.random": "np", "numpy.random": "np"}.get(path, of_self)
    return ""


def is_library(node: ast.AST) -> bool:
    """Return whether an expression is a library whose generators all draw by one seed."""
    if isinstance(node, ast.Attribute):
        return node.attr == "random" and is_library(node.value)
    return isinstance(node, ast.Name) and node.id in _LIBRARIES


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _names_rank(node: ast.AST) -> bool:
    """Return whether an expression has the number of a rank in it."""
    return any(is_rank(n) for n in ast.walk(node))


def is_rank(node: ast.AST) -> bool:
    """Return whether a name, an attribute, or a text as the key of an environment or a config, is the number of a rank."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and bool(_RANK.search(node.value))
    if isinstance(node, ast.Name):
        return bool(_RANK.search(node.id))
    return isinstance(node, ast.Attribute) and bool(_RANK.search(node.attr))


def _order_calls(scope: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Yield each call that makes an order, with the name of what is in that order then, "" where it has none."""
    named = {id(n.value): n.targets[0] for n in _own(scope) if isinstance(n, ast.Assign)}
    for node in _own(scope):
        for inner in ast.walk(node) if isinstance(node, (ast.Assign, ast.Return, ast.Expr, ast.For)) else ():
            if isinstance(inner, ast.Call) and _called(inner) in _ORDERS:
                first = inner.args[0] if _called(inner) == "shuffle" and inner.args else None
                target = (
                    first if first is not None else named.get(id(node.value)) if isinstance(node, ast.Assign) else None
                )
                yield inner, ast.dump(target).replace("Store()", "Load()") if target is not None else ""


def _size_draws(scope: ast.AST) -> Iterator[ast.Call]:
    """Yield each call that draws what is then called a size."""
    for node in _own(scope):
        if not isinstance(node, ast.Assign):
            continue
        names = (
            n.id if isinstance(n, ast.Name) else n.attr
            for t in node.targets
            for n in ast.walk(t)
            if isinstance(n, (ast.Name, ast.Attribute))
        )
        if any(_SIZE.search(name) for name in names):
            yield from (n for n in ast.walk(node.value) if isinstance(n, ast.Call) and _called(n) in _DRAWS)


def _gone_through(scope: ast.AST, call: ast.Call, target: str) -> bool:
    """Return whether a loop goes through an order that was made before it, or the scope gives it to one that does, as to a loader.

    What a loop calls one by one are operations, such as augmentations, and no batches.
    """

    def holds(node: ast.AST) -> bool:
        return any(n is call or (target and ast.dump(n) == target) for n in ast.walk(node))

    for node in _own(scope):
        if isinstance(node, (ast.For, ast.AsyncFor)):
            inside = [n for part in node.body for n in ast.walk(part)]
            calls = {_called(n) for n in inside if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
            names = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
            if call in inside or calls & names:
                continue
            parts = [n for n in inside if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Slice)]
            if holds(node.iter) or any(holds(n.value) for n in parts):
                return True
        elif isinstance(node, ast.Call):  # DataLoader(data, batch_sampler=order)
            if any(k.arg in ("sampler", "batch_sampler") and holds(k.value) for k in node.keywords):
                return True
        elif isinstance(node, (ast.Return, ast.YieldFrom)) and node.value is not None and holds(node.value):
            return not isinstance(scope, ast.Module)
    return False
