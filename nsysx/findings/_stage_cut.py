"""Where a program cuts its network in stages of a pipeline, by the text of its lines."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Sequence
from typing import TypeGuard

from nsysx.analyses.lines import text_of, texts_of_ranks
from nsysx.events.profile import Profile
from nsysx.model import Row

#: A number of layers divided by that of stages or ranks, a stage's stretch of them, or a point at which a network is split.
_CUT = re.compile(
    r"(?i)//\s*\(?\s*[\w.]*stages?\b|\b\w*(?:layer|block|depth)\w*\b.*//\s*\(?\s*[\w.]*(?:world|rank)|"
    r"\b\w*(?:layer|block)\w*\[.*(?:stage|rank).*:.*\]|\bSplitPoint\."
)

#: Points at which a network is split, and a stretch of layers between two of a list of borders.
_SPLIT_POINT = re.compile(r"\.(\d+)(?=[\"']\s*:\s*SplitPoint\.BEGINNING)")
_EDGES = re.compile(r"\[\s*(\w+)\[([\w.]+)\]\s*:\s*\1\[\2 \+ 1\]\s*\]")


#: How many layers each stage has, as a setting writes it: layers_per_stage=(6, 6), "blocks": [6, 6].
_COUNTS = re.compile(
    r"(?i)(?P<name>\b\w*(?:stage|layer|block)\w*[\"']?\s*[:=]\s*[\[(]\s*)(?P<counts>\d+(?:\s*,\s*\d+)+)(?=\s*,?\s*[\])])"
)


def counts_line(profile: Profile, counts: Sequence[int]) -> Row:
    """Return the one line of the program that sets these numbers of layers; empty without one, or where several do."""
    noted = texts_of_ranks(profile)
    places = [
        (file, int(line))
        for file, lines in noted.items()
        for line in lines
        if str(line).isdigit() and counts_with(text_of(noted, file, int(line)) or "", counts, counts)
    ]
    return {"file": places[0][0], "line": places[0][1]} if len(places) == 1 else {}


def counts_with(text: str, counts: Sequence[int], better: Sequence[int]) -> str:
    """Return a line that sets these numbers of layers with better ones in their place, "" where it sets others."""
    code = text.partition("  #")[0].strip()
    match = _COUNTS.search(code)
    if match is None or [int(number) for number in match["counts"].split(",")] != [*counts]:
        return ""
    return f"{code[: match.start('counts')]}{', '.join(map(str, better))}{code[match.end('counts') :]}"


def cut_line(profile: Profile) -> Row:
    """Return the line that cuts the network in stages, as its text shows; empty where none does."""
    noted = texts_of_ranks(profile)
    places = [(file, int(line)) for file, lines in noted.items() for line in lines if str(line).isdigit()]
    cuts = (
        (file, line) for file, line in places if _CUT.search((text_of(noted, file, line) or "").partition("  #")[0])
    )
    file, line = next(cuts, ("", 0))
    return {"file": file, "line": line} if file else {}


def cut_text(profile: Profile, counts: Sequence[int] = ()) -> str:
    """Return the text of that line, "" where none is known; rather of the one that sets these numbers of layers."""
    line = counts_line(profile, counts) or cut_line(profile)
    return (text_of(texts_of_ranks(profile), line.get("file"), line.get("line")) or "").partition("  #")[0].strip()


def cut_with(text: str, counts: Sequence[int], stages: str) -> str:
    """Return a line that cuts a network evenly so that each stage has its own number of layers, "" where it cuts in another way.

    ``stages``: the expression that has those numbers. What is multiplied by the number of a stage is where it begins.
    """
    try:
        parsed = ast.parse(text)
    except SyntaxError:
        parsed = None
    if parsed is not None and len(parsed.body) == 1:
        borders = _Borders(parsed, stages)
        changed = borders.visit(parsed).body[0]
        if borders.whole:
            pair = isinstance(changed, ast.Assign) and isinstance(changed.value, ast.Tuple)
            return re.sub(r" = \((.*)\)$", r" = \1", ast.unparse(changed)) if pair else ast.unparse(changed)
    ends = _SPLIT_POINT.findall(text)
    if ends and len(ends) == len(counts) - 1:
        starts = (str(end) for end in itertools.accumulate(counts))
        return _SPLIT_POINT.sub(lambda match: f"{match[0][: -len(match[1])]}{next(starts)}", text)
    if (edges := _EDGES.search(text)) is not None:
        return f"{edges[1]} = {[0, *itertools.accumulate(counts)]}  # where the stages begin and end\n{text}"
    return ""


class _Borders(ast.NodeTransformer):
    """Puts the sum of the stages before in place of a product with the number of the stage.

    ``whole``: both ends of a stage, or those of all, stand in the line.
    """

    def __init__(self, parsed: ast.Module, stages: str) -> None:
        self._changed, self._stages = set[str](), stages
        self._each = {ast.unparse(node.target) for node in ast.walk(parsed) if isinstance(node, ast.comprehension)}
        names = self._each | {ast.unparse(node.left) for node in ast.walk(parsed) if _is_next(node)}
        self._numbers = names | {f"{name} + 1" for name in names}

    @property
    def whole(self) -> bool:
        return bool(self._changed & self._each) or any(f"{name} + 1" in self._changed for name in self._changed)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Change ``stage * n`` and ``stage * n // stages``."""
        product = node.left if isinstance(node.op, ast.FloorDiv) else node
        if isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult):
            for factor in (product.left, product.right):
                number = ast.unparse(factor)
                if number in self._numbers:
                    self._changed.add(number)
                    return ast.parse(f"sum({self._stages}[:{number}])", mode="eval").body
        return self.generic_visit(node)


def _is_next(node: ast.AST) -> TypeGuard[ast.BinOp]:
    """Return whether this is the number of a stage and one."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add)
        and isinstance(node.left, ast.Name | ast.Attribute)
        and isinstance(node.right, ast.Constant)
        and node.right.value == 1
    )
