"""What a line that gathers whole weights is told: to work on each rank's own part, in the line's own words without the gather."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nsysx.analyses.lines import text_of, texts, texts_of_ranks
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Fix
from nsysx.findings._pieces_in_text import names_in, parsed
from nsysx.findings._work_bounds import LINES_AROUND_AVERAGE

#: A loop over the parameters of an average and of the network that it follows, and the weight of what is new.
_PAIRS = re.compile(r"\bzip\(\s*(?P<average>[\w.]+)\.parameters\(\)\s*,\s*(?P<network>[\w.]+)\.parameters\(\)")
_WEIGHT = re.compile(r"\b(?:lerp_?\(.*,\s*|add_?\(.*\balpha\s*=\s*)(?P<weight>[\w.]+(?:\s*-\s*[\w.]+)?)\s*\)\s*$")
#: What gathers a whole tensor of the parts of all ranks.
_GATHER = re.compile(r"\.full_tensor\(\s*\)")
_OWN_PART = ".to_local()"
#: Methods that change the tensor that they are called of: an average is kept in it.
_IN_PLACE = re.compile(r"^(lerp|mul|add|sub|copy|addcmul|addcdiv)_$")


def of_average(profile: Profile, file: str | None, line: int | None, fix: Fix | None) -> Fix | None:
    """Return the advice of such a line with the names of the program; that of another line, or of one without its text, as it is."""
    settings = settings_of(profile)
    if fix is None or not fix.ways or fix.ways[0].name != "shards-kept" or file is None or line is None:
        return fix
    source = texts(profile)
    near = range(line - LINES_AROUND_AVERAGE, line + LINES_AROUND_AVERAGE + 1)
    around = {number: (text_of(source, file, number) or "").partition("  #")[0] for number in near}
    pairs = next((match for text in around.values() if (match := _PAIRS.search(text))), None)
    found_weight = (match["weight"] for text in around.values() if (match := _WEIGHT.search(text)))
    weight = next(found_weight, "1 - decay")
    average, network = (pairs["average"], pairs["network"]) if pairs is not None else ("ema", "model")
    if settings is not None and _is_flat(settings):
        text = "Shard the average by the same policy as the network, and let each rank average its own part, without summon_full_params(): "
        return fix.but(
            text=f"{text}whole weights are needed to save them; here each step gathers them",
            paste=f"{average} = FullyShardedDataParallel({average}, ...)  # once, with the options of {network}\n"
            f"for e, p in zip({average}.parameters(), {network}.parameters()): e.lerp_(p, {weight})  # without summon_full_params()",
        )
    if settings is not None and pairs is not None:
        return fix.but(
            paste=f"torch._foreach_lerp_([e.to_local() for e in {average}.parameters()],  # {average}: sharded as {network} is\n"
            f"                     [p.to_local() for p in {network}.parameters()], {weight})"
        )
    return _without_gather(around, line, [*_of_file(source, file), *_of_file(texts_of_ranks(profile), file)], fix)


def _is_flat(settings: RecordedSettings) -> bool:
    """Return whether weights are sharded by FSDP's flat parameters alone, which have no parts of their own."""
    return bool(settings.wrappers("FSDP")) and not settings.wrappers("fully_shard")


def _of_file(source: Mapping[str, Any], file: str) -> list[str]:
    """Return the texts that were noted of a file, without comments."""
    noted = source.get(file, {})
    return [text.strip().partition("  #")[0] for text in noted.values() if isinstance(text, str)]


def _without_gather(around: Mapping[int, str], line: int, every: Iterable[str], fix: Fix) -> Fix:
    """Return the advice with the program's line without its gather, and with what its average is made of; ``every``: lines of its file.

    A tensor that is changed in place by whole ones is whole itself: its parts fit no part of the weights until it is made of such.
    """
    text = around[line]
    tree = parsed(text)
    if tree is None or not _GATHER.search(text):
        return fix
    own_line = _at_once(around, line, tree) or _GATHER.sub(_OWN_PART, text)
    kept = next(_changed_in_place(tree), None)
    if kept is None:
        return fix.but(paste=own_line)
    names = _origin(around, line, kept)
    made = next((each for name in names for each in every if _makes(each, name)), None)
    if made is not None:
        return fix.but(paste=f"{_GATHER.sub(_OWN_PART, made)}  # once, of each rank's own part\n{own_line}")
    condition = f"{fix.condition} {names[0]} must be made of each rank's own part, too ({_OWN_PART}.clone()), once."
    return fix.but(paste=own_line, condition=condition)


def _changed_in_place(tree: ast.Module) -> Iterator[str]:
    """Yield the names of tensors that a statement changes in place: ``a`` of ``a.mul_(d).add_(p.full_tensor())``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _IN_PLACE.match(node.func.attr):
            changed: ast.expr = node.func.value
            while isinstance(changed, ast.Call) and isinstance(changed.func, ast.Attribute):
                changed = changed.func.value
            if isinstance(changed, ast.Subscript):
                changed = changed.value
            if isinstance(changed, (ast.Name, ast.Attribute)) and not _GATHER.search(ast.unparse(changed)):
                yield ast.unparse(changed)


def _origin(around: Mapping[int, str], line: int, name: str) -> list[str]:
    """Return what a name stands for, where a line above takes it out of something (a loop, or an index), and the name itself."""
    for number in range(line, line - LINES_AROUND_AVERAGE - 1, -1):
        tree = parsed(around.get(number, ""))
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, (ast.For, ast.comprehension)):
                taken = _taken(node.target, node.iter, name)
            elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                value = node.value.value if isinstance(node.value, ast.Subscript) else None
                taken = value if value is not None and ast.unparse(node.targets[0]) == name else None
            else:
                continue
            if isinstance(taken, (ast.Name, ast.Attribute)):
                return [ast.unparse(taken), name]
    return [name]


def _taken(target: ast.expr, source: ast.expr, name: str) -> ast.expr | None:
    """Return out of what a loop takes a name, None where it takes it out of nothing that has a name."""
    if isinstance(target, ast.Name):
        return source if target.id == name else None
    zipped = isinstance(source, ast.Call) and isinstance(source.func, ast.Name) and source.func.id == "zip"
    if zipped and isinstance(target, ast.Tuple) and isinstance(source, ast.Call):
        pairs = zip(target.elts, source.args)  # noqa: B905 - zip's own options are no sources
        return next((each for part, each in pairs if isinstance(part, ast.Name) and part.id == name), None)
    return None


def _at_once(around: Mapping[int, str], line: int, tree: ast.Module) -> str | None:
    """Return one call for all rounds of the loop above a line, where that line is all of it and interpolates; None for others.

    What the last round of a loop is followed by may belong to it: where the text below the line was noted, nobody knows.
    """
    above, statement = parsed(around.get(line - 1, "")), tree.body[0]
    head = above.body[0] if above is not None and above.body else None
    call = statement.value if isinstance(statement, ast.Expr) else None
    if around.get(line + 1) or not isinstance(head, ast.For) or not isinstance(call, ast.Call) or call.keywords:
        return None
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "lerp_" or len(call.args) != 2:
        return None
    changed, (whole, weight) = ast.unparse(call.func.value), call.args
    averages = _taken(head.target, head.iter, changed)
    looped = names_in(head.target)
    read = [node.id for node in ast.walk(whole) if isinstance(node, ast.Name) and node.id in looped]
    network = _taken(head.target, head.iter, read[0]) if len(set(read)) == 1 else None
    if averages is None or network is None or averages is network or looped & names_in(weight):
        return None
    part = _GATHER.sub(_OWN_PART, ast.unparse(whole))
    return (
        f"torch._foreach_lerp_({_listed(averages)}, [{part} for {read[0]} in {ast.unparse(network)}], {ast.unparse(weight)})"
        "  # in place of the loop"
    )


def _listed(source: ast.expr) -> str:
    """Return what a loop takes its rounds from as a list: what a call returns may be gone through once."""
    return f"list({ast.unparse(source)})" if isinstance(source, ast.Call) else ast.unparse(source)


def _makes(text: str, name: str) -> bool:
    """Return whether a line makes what has this name of whole tensors."""
    tree = parsed(text) if _GATHER.search(text) else None
    statement = tree.body[0] if tree is not None and tree.body else None
    return isinstance(statement, ast.Assign) and name in map(ast.unparse, statement.targets)
