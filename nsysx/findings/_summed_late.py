"""Gradients that a line of the program reduces over the ranks once for each micro-batch: their sum could be reduced once, behind the last.

Stages of a pipeline that hold one table together (tied embeddings), and loops that average by hand, reduce behind each backward, or in a
hook of it. A sum over ranks of sums over micro-batches is the same in either order. Each exchange also holds stages up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import DeviceActivity
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Saving
from nsysx.findings._finding_bounds import FEWEST_MICRO_STEPS
from nsysx.findings._once import Takes
from nsysx.frames.intervals import I64
from nsysx.model import Row
from nsysx.reading import nccl_notes
from nsysx.replay.engine import RemoveOps

_REDUCES = ("allreduce", "reducescatter", "reduce")
#: Lines that reduce a gradient that a parameter keeps: by its attribute, or by a name that the line before gives it.
_KEPT = re.compile(r"\.(main_)?grad\b")
_CALL = re.compile(r"[\w.]*\b(all_reduce|reduce_scatter_tensor|reduce)\((?P<given>[\w.]+)[^()]*\)")


class _EachMicroBatch(NamedTuple):
    """A line (row of the places) that reduces behind each backward: its text, how many backwards a step has, what it reduces in each
    (collectives and bytes), and its GPU ops in all steady steps, but the last of each step.
    """

    line_row: int
    text: str
    backwards: int
    each: int
    size_bytes: int
    early: frozenset[int]


def _find(profile: Profile) -> _EachMicroBatch | None:
    """Return the line that reduces most in this way; None without one, and where a wrapper reduces."""
    code, settings = profile.code(), settings_of(profile)
    ops = profile.attributed.gpu_ops
    ours = (ops["cls"] == DeviceActivity.COMM.value) & (ops["process"] == profile.process)
    comm = ops.filter(ours & ops["call_start_ns"].is_not_null()).sort("call_start_ns")
    if code is None or settings is None or settings.rows("wrappers") or not comm.height or not profile.scope.steps:
        return None
    messages = nccl_notes.messages(profile.trace, comm, nccl_notes.members(profile.trace).get(profile.process, {}))
    reduces = np.array([message.kind in _REDUCES for message in messages], np.bool_)
    size = np.array([message.bytes or 0 for message in messages], np.int64)
    line = np.where(reduces, code.places_of(code.op[comm["op"].to_numpy()]), -1)
    called, op, source = comm["call_start_ns"].to_numpy(), comm["op"].to_numpy(), texts(profile)
    steady = comm["op"].is_in(profile.steady_ops["op"].to_list()).to_numpy()
    reduced = list[_EachMicroBatch]()
    for row in np.unique(line[line >= 0]).tolist():
        file, number, _ = code.places.row(row)
        before, text = (text_of(source, file, each) or "" for each in (number - 1, number))
        theirs = line == row
        if not _of_gradient(before, text) or not (theirs & steady).any():
            continue
        backwards, each = _rounds(profile, called[theirs], size[theirs])
        if backwards >= FEWEST_MICRO_STEPS:
            early = _early(profile, called[theirs & steady], op[theirs & steady], each)
            size_bytes = int(size[theirs & steady].sum()) // profile.scope.steps // backwards
            reduced.append(_EachMicroBatch(row, text, backwards, each, size_bytes, early))
    return max(reduced, key=lambda each: each.size_bytes, default=None)


def _of_gradient(before: str, text: str) -> bool:
    """Return whether a line reduces the gradient that a parameter keeps."""
    call = _CALL.search(text)
    if call is None:
        return False
    given = call["given"]
    named = re.compile(rf"\b{re.escape(given)}\s*=[^=].*\.(main_)?grad\b")
    return _KEPT.search(given) is not None or any(named.search(each) for each in (before, text))


def _rounds(profile: Profile, called: I64, size: I64) -> tuple[int, int]:
    """Return how many backwards an X-ray step has, and how many collectives of a line each; (0, 0) where they are not alike, or some
    have none.
    """
    ranges = profile.ranges.ranges.filter((pl.col("process") == profile.process) & pl.col("own") & ~pl.col("repeated"))
    phases = (
        ranges.filter(ranges["kind"] == "phase")
        .select("start_ns", "end_ns", pl.col("name").cast(pl.String))
        .sort("start_ns")
    )
    for start, end in ranges.filter(ranges["kind"] == "step")["start_ns", "end_ns"].sort("start_ns").iter_rows():
        inside = phases.filter(pl.col("start_ns").is_between(start, end))
        begins = inside.filter(inside["name"] == "backward")["start_ns"].to_numpy()
        of_step = (called >= start) & (called < end)
        if len(begins) < FEWEST_MICRO_STEPS or not of_step.any():
            continue
        updates = inside.filter(pl.col("name").str.starts_with("optimizer"))["start_ns"].to_numpy()
        if ((updates > begins[0]) & (updates < begins[-1])).any():
            return 0, 0
        which = np.searchsorted(begins, called[of_step], side="right") - 1
        each = [tuple(size[of_step][which == number].tolist()) for number in range(len(begins))]
        return (len(begins), len(each[0])) if each[0] and len(set(each)) == 1 else (0, 0)
    return 0, 0


def _early(profile: Profile, called: I64, op: I64, each: int) -> frozenset[int]:
    """Return the GPU ops of all but the last round of each steady step."""
    steps = profile.steps.cpu.filter(profile.steps.cpu["process"] == profile.process)["start_ns"].sort().to_numpy()
    step = np.searchsorted(steps, called, side="right")
    rounds = (op[step == number] for number in np.unique(step))  # in order of their calls
    return frozenset(number for those in rounds for number in those[:-each].tolist())


def reduced_each(case: Case, _: RecordedSettings | None = None) -> str:
    """Return that a line reduces gradients for each micro-batch."""
    reduced = case.profile.once(_find)
    if reduced is None:
        return ""
    each = "once" if reduced.each == 1 else f"{units.count(reduced.each)} times"
    return (
        f"this line reduces gradients over the ranks {each} for each of the {reduced.backwards} backwards of a step, "
        f"{units.size(reduced.size_bytes)} each: the sum over the ranks is the same behind the last one, and ranks do not wait for each "
        "other in between"
    )


def reduced_once(case: Case, _: RecordedSettings | None) -> Saving | None:
    """Return what it saves if those of all but the last backward go: a bound, since ranks may wait for each other elsewhere then."""
    reduced = case.profile.once(_find)
    return None if reduced is None else case.worth_or_freed(RemoveOps(reduced.early), bound=True)


def taken(case: Case) -> Takes:
    """Return these reductions."""
    reduced = case.profile.once(_find)
    return Takes(frozenset() if reduced is None else reduced.early)


def place_of_line(case: Case) -> Row:
    """Return the line."""
    reduced, code = case.profile.once(_find), case.profile.code()
    return {} if reduced is None or code is None else code.where(reduced.line_row)


def line_of(profile: Profile) -> int | None:
    """Return the line (row of the places) that reduces so, None without one."""
    reduced = profile.once(_find)
    return None if reduced is None else reduced.line_row


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy, with the call of the line."""
    reduced, code = case.profile.once(_find), case.profile.code()
    call = None if reduced is None else _CALL.search(reduced.text)
    if reduced is None or call is None or code is None:
        return title, remedy
    if not _KEPT.search(call["given"]):
        file, line, _ = code.places.row(reduced.line_row)
        paste = added_up(texts(case.profile).get(str(file), {}), line or 0)
        return title, replace(remedy, paste=paste) if paste else remedy
    update = remedy.paste.splitlines()[-1]
    return title, replace(
        remedy, paste=f"{call[0]}  # once, behind the last micro-batch: not in the loop, nor in a hook\n{update}"
    )


def added_up(of_file: Mapping[str, object], line: int) -> str:
    """Return the lines for a gradient that gets a name, is reduced in a line, and is then added to a sum that is kept; "" for others."""
    before, text, behind = (str(of_file.get(str(line + each), "")).strip() for each in (-1, 0, 1))
    call = _CALL.search(text)
    given = "" if call is None else re.escape(call["given"])
    made = re.match(rf"{given}\s*=\s*(?P<value>[^=].*)$", before)
    added = re.match(rf"(?P<sum>[\w.]+)(\s*\+=\s*{given}|\.add_\({given}\))$", behind)
    if call is None or made is None or added is None:
        return ""
    reads = [
        (int(number), str(other).strip())
        for number, other in of_file.items()
        if number.isdigit()
        and int(number) != line + 1
        and re.search(rf"=.*(?<![\w.]){re.escape(added['sum'])}\b", str(other))
    ]
    ahead = f": ahead of line {reads[0][0]} ({reads[0][1]})" if len(reads) == 1 else ""
    once = call[0].replace(f"({call['given']}", f"({added['sum']}", 1)
    return (
        f"{added['sum']} += {made['value']}  # in place of lines {line - 1} to {line + 1}\n"
        f"{once}  # once, behind the last micro-batch{ahead}"
    )
