"""What to do about a seed that has the rank in it, by which each rank has an order of its own: the program's line without the rank."""

from __future__ import annotations

import ast
import re
from copy import deepcopy

from nsysx.analyses.lines import orders_of_ranks, text_of, texts, texts_of_ranks
from nsysx.events.profile import Profile
from nsysx.findings._case import Fix
from nsysx.inject.nsysx_probe.rank_orders import SEEDS, is_library, is_rank
from nsysx.model import Row

_LIKE_ORDER = "like-order"
_IN_ONE_ORDER = (
    "Batches must be of like length at the same place on all ranks (sorted, then dealt out in turn: batches[rank::world]), and each rank "
    "must still take samples of its own there."
)
#: Of a generator that is kept, and of sizes, of which each rank draws samples for itself.
_DRAWS_MORE = " What else this generator draws, as noise, needs one of its own with the rank."
_SIZES_ALIKE = (
    "sizes = random.Random(seed + epoch)  # the same on all ranks: draws the sizes\n"
    "own = random.Random((seed + epoch) * world + rank)  # draws the samples of that size, where this rank does so itself"
)


def draws_sizes(profile: Profile, order: Row) -> bool:
    """Return whether what the seed at a line decides are sizes of batches alone."""
    return all(
        o.get("drawn") for o in orders_of_ranks(profile) if (o.get("file"), o["seed"]) == (order["file"], order["line"])
    )


def decided_by(profile: Profile, order: Row) -> str:
    """Return what the seed at a line decides."""
    if draws_sizes(profile, order):
        return "by which it draws the size of its batches"
    return "of the order in which it goes through its batches"


def in_one_order(profile: Profile, order: Row) -> Fix:
    """Return what makes ranks go through batches in one order: the line of the seed without the rank, else in general."""
    where = order["file"], order["line"]
    if draws_sizes(profile, order):  # the same generator may draw the samples, which stay each rank's own
        return Fix.by_name(_LIKE_ORDER, paste=_drawn_alike(profile, order) or _SIZES_ALIKE)
    noted = (o.get("text") for o in orders_of_ranks(profile) if (o.get("file"), o["seed"]) == where)
    text = next((each for each in noted if isinstance(each, str)), "")
    line = without_rank(text or text_of(texts(profile), *where) or text_of(texts_of_ranks(profile), *where) or "")
    if line is None:
        return Fix.by_name(_LIKE_ORDER)
    return Fix.by_name(
        _LIKE_ORDER, paste=line, condition=f"{_IN_ONE_ORDER}{'' if _is_used_at_once(line) else _DRAWS_MORE}"
    )


def _drawn_alike(profile: Profile, order: Row) -> str | None:
    """Return the program's lines with a generator of its own for sizes, None where they do not draw from that of Python's ``random``."""
    where = order["file"], order["line"]
    draws = {o["order"]: o.get("text") for o in orders_of_ranks(profile) if (o.get("file"), o["seed"]) == where}
    if len(draws) != 1:
        return None
    ((line, text),) = draws.items()
    drawn = text_of(texts(profile), where[0], line) or ""
    return drawn_alike(str(text or text_of(texts_of_ranks(profile), *where) or ""), drawn)


def drawn_alike(seeding: str, drawing: str) -> str | None:
    """Return a line that draws a size, and the generator that it draws from, seeded as now without the rank; None for other lines."""
    try:
        (seeds,), (draws,) = ast.parse(seeding.strip()).body, ast.parse(drawing.strip()).body
    except (SyntaxError, ValueError):
        return None
    call = seeds.value if isinstance(seeds, ast.Expr) else None
    of_self = "self." if "self." in f"{seeding}{drawing}" else ""
    named = f"{of_self}sizes = random.Random"
    seed = without_rank(f"{named}({ast.unparse(call.args[0])})") if isinstance(call, ast.Call) and call.args else None
    drawn = re.sub(r"\brandom\.(?=(choices?|randint|randrange)\()", f"{of_self}sizes.", ast.unparse(draws))
    if seed is None or drawn == ast.unparse(draws) or "np.random" in drawing:
        return None
    return f"{seed}  # once, the same on all ranks; kept where sizes are drawn\n{drawn}"


def _is_used_at_once(line: str) -> bool:
    """Return whether a statement makes a generator of which nothing is left behind it: ``random.Random(seed).shuffle(batches)``."""
    statement = ast.parse(line).body[0]
    call = statement.value if isinstance(statement, ast.Expr) else None
    method = call.func if isinstance(call, ast.Call) else None
    return isinstance(method, ast.Attribute) and isinstance(method.value, ast.Call)


def without_rank(text: str) -> str | None:
    """Return a statement of which each call has the same arguments without the rank; None where it has none, is no whole statement, or
    nothing is left of an argument.
    """
    try:
        tree = ast.parse(text)
        rest = _WithoutRank().visit(deepcopy(tree))
        line = ast.unparse(rest)
    except (SyntaxError, ValueError, RecursionError, MemoryError, _NothingLeftError):
        return None
    whole = len(tree.body) == 1 and line != ast.unparse(tree) and not any(is_rank(node) for node in ast.walk(rest))
    return line if whole and _seeds_generator(tree.body[0]) else None


def _seeds_generator(statement: ast.stmt) -> bool:
    """Return whether a statement seeds a generator of the program, and not all that a library draws."""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return isinstance(statement.value.func, ast.Attribute) and not is_library(statement.value.func.value)
    return any(getattr(call.func, "attr", getattr(call.func, "id", "")) in SEEDS for call in calls)


class _NothingLeftError(Exception):
    """Of a seed nothing is left without the rank."""


class _WithoutRank(ast.NodeTransformer):
    """Takes the rank out of sums, differences, and lists; what it multiplies goes with it."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = (_WithoutRank()._rest(side) for side in (node.left, node.right))
        if isinstance(node.op, (ast.Add, ast.BitXor, ast.BitOr)) and (left is None) != (right is None):
            kept = right if left is None else left
            assert kept is not None
            return kept
        if isinstance(node.op, ast.Sub) and right is None and left is not None:
            return left
        if left is None or right is None:
            raise _NothingLeftError
        return ast.copy_location(ast.BinOp(left, node.op, right), node)

    def visit_List(self, node: ast.List) -> ast.expr:
        return ast.copy_location(ast.List(self._left(node.elts), node.ctx), node)

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        return ast.copy_location(ast.Tuple(self._left(node.elts), node.ctx), node)

    def _left(self, parts: list[ast.expr]) -> list[ast.expr]:
        left = [rest for part in parts if (rest := self._rest(part)) is not None]
        if not left:
            raise _NothingLeftError
        return left

    def _rest(self, node: ast.expr) -> ast.expr | None:
        """Return what is left of an expression, None for the rank itself or a part with nothing else."""
        if isinstance(node, ast.Call) and len(node.args) == 1 and getattr(node.func, "id", "") == "int":
            return None if self._rest(node.args[0]) is None else node  # int(os.environ["RANK"])
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return None if is_rank(node.slice) else node
        named = node.func if isinstance(node, ast.Call) and not node.args else node
        if isinstance(named, (ast.Name, ast.Attribute)):
            return None if is_rank(named) else node
        try:
            rest = self.visit(node)
        except _NothingLeftError:
            return None
        assert isinstance(rest, ast.expr)
        return rest
