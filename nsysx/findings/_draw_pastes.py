"""Draws by weights that stay as they are, by running sums that are made once: the same draws, in the names of the program."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nsysx.analyses.lines import texts
from nsysx.events.profile import Profile
from nsysx.findings._fix import Fix
from nsysx.findings._function_texts import lines_of_function
from nsysx.findings._loop_texts import depth_of
from nsysx.findings._pieces_in_text import names_in, parsed, with_part

_OF_ARRAYS = (
    "Make the running sum of the weights once, and search in it for each draw: choice() checks all weights, adds them up and divides the "
    "sums in each call. It takes the same random numbers, so the draws stay the same, bit for bit"
)
_OF_LISTS = (
    "Make the running sum of the weights once, and give it to each draw as cum_weights: choices() adds all weights up in each call. The "
    "draws stay the same"
)
_DEPENDS = (
    "What writes to {weights} must make {sums} anew; the sum of all weights must be 1. On the GPU (other draws): torch.searchsorted(c, "
    "torch.rand({size}, dtype=c.dtype, device=c.device), right=True), c: {sums} there, in float64."
)
_LOOPS = re.compile(r"\s*(async\s+)?(for|while)\b")
#: Names of numbers; what has another name may be an array of items.
_COUNT = re.compile(r"(^|\.)_*(n|num|count|size|length|total)$|(^|\.)_*(n|num)_\w+$|_(size|count|length)$")
_OF_CHOICE, _OF_CHOICES = ("a", "size", "replace", "p"), ("population", "weights")


class _Draw(NamedTuple):
    """A call that draws by weights: these, its generator, how many it draws (text), and whether it is Python's own, of lists."""

    call: ast.Call
    weights: ast.expr
    generator: str
    size: str
    of_lists: bool


def by_running_sums(profile: Profile, file: str | None, line: int | None, fix: Fix) -> Fix:
    """Return the advice about a line that draws by weights in its own names, where nothing in the steps is seen to change these."""
    lines = lines_of_function(profile, file, line)
    every = [str(text) for of_file in texts(profile).values() for text in of_file.values()]
    return in_names(lines, line, every, fix) if line is not None else fix


def in_names(lines: Mapping[int, str], line: int, every: Sequence[str], fix: Fix) -> Fix:
    """Return the same for a line of a function, number -> text; ``every``: all lines that ran in the steps."""
    draw = _draw(lines.get(line, ""))
    if draw is None or not _stays(draw.weights, lines, line, every):
        return fix
    of_draw, text = ast.unparse(draw.weights), lines[line].strip()
    sums = _name_of_sums(draw, every)
    made = f"{sums} = {_made(draw)}  # once, beside where {of_draw} is set"
    if draw.of_lists:
        given = ", ".join(
            [ast.unparse(draw.call.args[0]), f"cum_weights={sums}", *([f"k={draw.size}"] if draw.size else [])]
        )
        paste = f"{made}; import itertools\n{with_part(text, draw.call, f'{draw.generator}.choices({given})')}"
        condition = f"What writes to {of_draw} must make {sums} anew."
        return fix.but(text=_OF_LISTS, paste=paste, condition=condition)
    search = f'{sums}.searchsorted({draw.generator}.random({draw.size}), side="right")'
    paste = f"{made}\n{sums} /= {sums}[-1]\n{with_part(text, draw.call, search)}"
    condition = _DEPENDS.format(weights=of_draw, sums=sums, size=draw.size or "1")
    return fix.but(text=_OF_ARRAYS, paste=paste, condition=condition)


def _draw(text: str) -> _Draw | None:
    """Return the only draw by weights of a line, None for lines without one, and for draws of what may be an array of items."""
    tree = parsed(text.strip())
    draws = [each for node in ast.walk(tree) if (each := _of_call(node)) is not None] if tree is not None else []
    return draws[0] if len(draws) == 1 else None


def _of_call(node: ast.AST) -> _Draw | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    generator, words = ast.unparse(node.func.value), {str(each.arg): each.value for each in node.keywords}
    names: Sequence[str] = {"choice": _OF_CHOICE, "choices": _OF_CHOICES}.get(node.func.attr, ())
    given = {**words, **dict(zip(names, node.args, strict=False))}
    if len(node.args) > len(names) or "torch" in generator:
        return None
    if node.func.attr == "choices":
        by_names = {*given} <= {"population", "weights", "k"} and {"population", "weights"} <= {*given} and node.args
        size = ast.unparse(given["k"]) if "k" in given else ""
        return _Draw(node, given["weights"], generator, size, of_lists=True) if by_names else None
    if not {"a", "p"} <= {*given} <= {"a", "size", "replace", "p", "shuffle"} or not _is_count(given["a"]):
        return None
    if "replace" in given and ast.unparse(given["replace"]) != "True":
        return None
    size = ast.unparse(given["size"]) if "size" in given else ""
    return _Draw(node, given["p"], generator, size, of_lists=False)


def _is_count(node: ast.expr) -> bool:
    """Return whether rows are drawn by their numbers: of a number, not of an array of items."""
    text = ast.unparse(node)
    called = isinstance(node, ast.Call) and (
        text.startswith("len(") or (re.match(r"(np|numpy)\.arange\(", text) is not None and len(node.args) == 1)
    )
    shaped = isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith(".shape")
    return called or shaped or isinstance(node, ast.Constant) or _COUNT.search(text) is not None


def _stays(weights: ast.expr, lines: Mapping[int, str], line: int, every: Sequence[str]) -> bool:
    """Return whether nothing that runs in the steps is seen to change weights: attributes, or names that a loop of the function finds.

    ``lines``: those of the function; ``every``: all that ran in the steps.
    """
    inner = [node for node in ast.walk(weights) if isinstance(node, ast.expr)]
    if not all(
        isinstance(node, ast.Name | ast.Attribute | ast.Constant | ast.BinOp) or _is_sum(node) for node in inner
    ):
        return False
    attributes = {node.attr for node in inner if isinstance(node, ast.Attribute)} - {"sum"}
    names = names_in(weights) - {"self"}
    if attributes & {name for text in every for name in _changed(text, ast.Attribute)}:
        return False
    if names & {name for text in lines.values() for name in _changed(text, ast.Name)}:
        return False
    # An argument may be another one in each call: it is not known whose names are.
    depth = depth_of(lines[line])
    in_loop = any(n < line and depth_of(text) < depth and _LOOPS.match(text) for n, text in lines.items())
    return bool(attributes or names) and (not names or in_loop)


def _is_sum(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sum"


def _changed(text: str, kind: type[ast.Name | ast.Attribute]) -> Iterator[str]:
    """Yield the names, or attributes, that a line gives a value, or a part of one."""
    tree = parsed(text.strip())
    for node in ast.walk(tree) if tree is not None else ():
        whole = node
        while isinstance(whole, ast.Subscript):
            whole = whole.value
        if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del) and isinstance(whole, kind):
            yield whole.attr if isinstance(whole, ast.Attribute) else whole.id


def _name_of_sums(draw: _Draw, every: Sequence[str]) -> str:
    """Return a name for the running sums beside the weights that the lines do not have yet."""
    roots = [node for node in ast.walk(draw.weights) if isinstance(node, ast.Attribute) and node.attr != "sum"]
    owner = f"{ast.unparse(roots[0].value)}." if roots else ""
    usual = "cum_weights" if draw.of_lists else "cdf"
    names = (usual, "running_sums", "sums_of_weights")
    return owner + next(
        (each for each in names if not any(re.search(rf"\b{each}\b(?!=)", t) for t in every)), names[-1]
    )


def _made(draw: _Draw) -> str:
    weights = ast.unparse(draw.weights)
    if draw.of_lists:
        return f"list(itertools.accumulate({weights}))"
    return ast.unparse(ast.Attribute(draw.weights, "cumsum", ast.Load())) + "(dtype=float)"
