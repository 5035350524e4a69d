"""A checkpoint inside of another one: backward computes the same part of the forward again for each of the two.

The outer one keeps nothing of its part until backward computes it anew, and the inner one then keeps nothing of that. With
``use_reentrant=False`` backward ends each as soon as it has what it needs: what stands last in the outer part is computed twice only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses.lines import texts, texts_of_ranks
from nsysx.catalogue import StepPart
from nsysx.events.nested_recomputation import ComputedAgain, computed_again
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._finding_bounds import MUCH_UNREAD_SHARE
from nsysx.findings._flow_work import in_short
from nsysx.findings._gone_backwards import edits_of_gone
from nsysx.findings._once import Takes
from nsysx.findings._pieces_in_text import parsed, with_part
from nsysx.findings._recomputed import asking_lines
from nsysx.findings._work_bounds import MOST_LINES_NAMED
from nsysx.model import Row

#: The path of what a wrapper of torch checkpoints, and lines that wrap.
_IN_WRAPPER = "_checkpoint_wrapped_module"
_WRAPS = re.compile(r"\b(apply_activation_checkpointing|\w*checkpoint_wrapper)\(")


def seen(case: Case, settings: RecordedSettings) -> str:
    """Return which modules are computed once more than one checkpoint needs, "" where none is or they take little."""
    again = computed_again(case.profile) if settings.number("checkpoints") else None
    ns = case.per_step(int(_work(case, again)["ns"].sum()))
    if again is None or not case.notable(ns, MUCH_UNREAD_SHARE):
        return ""
    often = {2: "twice", 3: "three times", 4: "four times"}[again.times]
    return (
        f"calls of {_classes(again)} are computed {often} in each step: in the forward, and in backward once for each of the checkpoints "
        f"that they stand in; what is more than once in backward takes {units.duration(ns)} {case.per}"
    )


def found(case: Case) -> bool:
    """Return whether there are such modules, which go before checkpoints that are meant."""
    settings = settings_of(case.profile)
    return settings is not None and bool(seen(case, settings))


def _classes(again: ComputedAgain) -> str:
    return " and ".join(list(dict.fromkeys(cls for _, cls in again.names))[:MOST_LINES_NAMED])


def _work(case: Case, again: ComputedAgain | None) -> pl.DataFrame:
    """Return the GPU ops that backward computes again although it has done so: op, call, ns."""
    if again is None:
        return case.timed_ops(case.ops["op"] < 0, "op", "call")
    ops = case.ops
    inside = again.within(ops["thread"].fill_null(-1).to_numpy(), ops["call_start_ns"].fill_null(-1).to_numpy())
    return case.timed_ops(pl.Series(inside) & ops["recompute"].fill_null(value=False), "op", "call")


def without(case: Case, _: RecordedSettings | None) -> Saving:
    """Return what it is worth if backward computes each call once."""
    work = _work(case, computed_again(case.profile))
    parts = (StepPart.WORK, StepPart.HOST, StepPart.LAUNCH, StepPart.COMM)
    return case.worth_or_freed(*edits_of_gone(case, work), cause=parts)


def taken(case: Case) -> Takes:
    """Return this work."""
    return Takes(ops_of(_work(case, computed_again(case.profile))))


def place(case: Case) -> Row:
    """Return the line of the inner checkpoint: one that names such a module, else the first that asks for checkpoints."""
    return next((where for where, _ in _lines(case)), {})


def _lines(case: Case) -> Iterator[tuple[Row, str]]:
    """Yield the lines that ask for checkpoints, those first whose text names a module that is computed again; with their texts."""
    again, lines = computed_again(case.profile), list(asking_lines(texts(case.profile)))
    last = {path.split(".")[-1] for path, _ in again.names} if again is not None else set[str]()
    named = [each for each in lines if (call := _call(each[1])) is not None and call[1].split(".")[-1] in last]
    yield from named
    yield from (each for each in lines if each not in named)


def worded(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy with the modules and the lines of the program."""
    again, lines = computed_again(case.profile), list(_lines(case))
    if again is None:
        return title, remedy
    title = (
        f"{_classes(again)}: checkpoint() inside of checkpoint(), so that backward computes the same again and again"
    )
    if len(lines) == 1 and (classes := _wrapped(case)):
        return title, _without_wrapper(case, remedy, lines[0], classes)
    pasted = [(where, new) for where, text in lines if (new := without_checkpoint(text))]
    if len(lines) < 2 or not pasted:
        return title, remedy
    others = " and ".join(in_short(where) for where, _ in lines[:MOST_LINES_NAMED])
    # The line in which the checkpoint goes, and one like it beside it: those of the same file that name a part by an attribute of self.
    kept = [
        new
        for where, new in pasted
        if where["file"] == pasted[0][0]["file"] and _of_self(new) == _of_self(pasted[0][1])
    ]
    return title, replace(remedy, text=f"{remedy.text}: of {others} one stays", paste="\n".join(kept))


def _wrapped(case: Case) -> str:
    """Return the classes of the modules that a wrapper of torch checkpoints, "" for none."""
    names = case.profile.ranges.ranges.filter(
        pl.col("recompute"),
        pl.col("kind").cast(pl.String) == "module",
        pl.col("name").cast(pl.String).str.ends_with(_IN_WRAPPER),
    )
    return " and ".join(names["cls"].cast(pl.String).drop_nulls().unique().sort().to_list()[:MOST_LINES_NAMED])


def _without_wrapper(case: Case, remedy: Alternative, inner: tuple[Row, str], classes: str) -> Alternative:
    """Return the remedy where one of the two checkpoints is a wrapper, made before the steps, and the other a line's."""
    source = texts_of_ranks(case.profile)
    wraps = [
        ({"file": file, "line": int(number)}, called[1])
        for file, lines in source.items()
        for number, text in lines.items()
        if (called := _WRAPS.search(str(text))) is not None
    ]
    there = f"{in_short(wraps[0][0])} and " if wraps else f"the wrapper around {classes} and "
    function = f"{in_short(wraps[0][0])}: no {wraps[0][1]}()" if wraps else "no checkpoint_wrapper()"
    paste = f"# {function} around {classes}\n{inner[1].partition('  #')[0].strip()}  # stays"
    return replace(remedy, text=f"{remedy.text}: of {there}{in_short(inner[0])} one stays", paste=paste)


def called_plainly(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy with the program's line that asks for checkpoints, without that."""
    text = next((text for _, text in asking_lines(texts(case.profile))), "")
    plain = without_checkpoint(text)
    return title, remedy if plain is None else replace(remedy, paste=plain)


def _of_self(text: str) -> bool:
    return "self." in text


def without_checkpoint(text: str) -> str | None:
    """Return a line without the checkpoint around a call; None where there is none, or the call cannot be told from its options."""
    text = text.partition("  #")[0].strip()
    called = _call(text)
    if called is None:
        return None
    node, function = called
    given = [ast.get_source_segment(text, each) or ast.unparse(each) for each in node.args[1:]]
    given += [ast.get_source_segment(text, each) or "" for each in node.keywords if each.arg not in _OPTIONS]
    plain = f"{function}({', '.join(given)})"
    return f"{with_part(text, node, plain)}  # not checkpoint({function}, ...)"


#: What checkpoint() takes itself.
_OPTIONS = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")


def _call(text: str) -> tuple[ast.Call, str] | None:
    """Return the one call of checkpoint() of a line of ASCII, and the function that it is given."""
    text = text.partition("  #")[0].strip()
    tree = parsed(text) if text.isascii() else None
    calls = [
        node
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "checkpoint" and node.args
    ]
    if len(calls) != 1 or any(isinstance(each, ast.Starred) for each in calls[0].args[:1]):
        return None
    function = calls[0].args[0]
    return (calls[0], ast.unparse(function)) if isinstance(function, (ast.Name, ast.Attribute, ast.Subscript)) else None
