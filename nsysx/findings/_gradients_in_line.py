"""Gradients of split layers' inputs that are reduced over the ranks behind the weight's gradient, and could be beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses import lines
from nsysx.events.gradients_in_line import reduced_in_line
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._added_reductions import gradients_apart
from nsysx.findings._case import Case, Saving
from nsysx.findings._costly_jobs import hidden_beside
from nsysx.findings._exposed_transfer import transfer_of_ops_ns
from nsysx.findings._once import Takes
from nsysx.model import Row

_GROUP = re.compile(r"\bgroup\s*=\s*([A-Za-z_][\w.]*)")


def _ops(case: Case) -> frozenset[int]:
    """Return the GPU ops of the steady steps that correspond to such reductions; none of a compiled program."""
    reductions, repeats = reduced_in_line(case.profile), case.profile.ranges.repeats
    if not reductions or repeats is None or case.program.compiled:
        return frozenset()
    like = np.append(repeats.like, -1)[case.ops["call"].fill_null(-1).to_numpy()]
    return frozenset(case.ops["op"].to_numpy()[np.isin(like, [each.call for each in reductions])].tolist())


def _hidden_ns(case: Case) -> int:
    """Return how much of their transfer could run beside the weights' gradients (ns a step)."""
    ops, reductions = _ops(case), reduced_in_line(case.profile)
    if not ops:
        return 0
    beside_ns = sum(each.beside_ns for each in reductions) / len(reductions)  # of one of them
    return min(transfer_of_ops_ns(case, ops), case.per_step(len(ops) * beside_ns))


def reduced_behind(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that gradients of inputs are reduced in line behind the weights' gradients."""
    hidden = _hidden_ns(case)
    if not case.notable(hidden) or gradients_apart(case):
        return ""
    often = case.often(len(_ops(case)), "reduction", "reductions")
    return (
        f"{often} of a step begin when a layer's node has made both gradients, and the next one waits: {units.duration(hidden)} of "
        "transfer that nothing hides could run beside the products of the weights' gradients, which need nothing of it"
    )


def beside_weights(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it saves if they run beside these products."""
    return hidden_beside(_hidden_ns(case), "it runs beside the weights' gradients")


def taken(case: Case) -> Takes:
    """Return these reductions."""
    return Takes(_ops(case))


def place_of_reduction(case: Case) -> Row:
    """Return the line that makes most of them."""
    code, reductions = case.profile.code(), reduced_in_line(case.profile)
    if code is None or not reductions:
        return {}
    stacks = np.concatenate([code.at(each.thread, np.array([each.start_ns], np.int64)) for each in reductions])
    return code.where_most(code.places_of(stacks), np.ones(len(stacks), np.int64))


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy with the group of the line that reduces."""
    where, source = place_of_reduction(case), lines.texts(case.profile)
    of_file: Mapping[str, object] = source.get(str(where.get("file"))) or {}
    group = _GROUP.search(str(of_file.get(str(where.get("line"))) or ""))
    return title, replace(remedy, paste=remedy.paste.replace("group=tp", f"group={group[1]}")) if group else remedy
