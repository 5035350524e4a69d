"""Tables that are split over the ranks (TorchRec) and called in line: the host reads what the ranks send each other of their sizes.

A look-up exchanges how many ids each rank sends, reads that, then exchanges the ids themselves. The GPU has no work meanwhile, and each
rank waits for the latest host. The library's own pipeline exchanges the ids of the next batch while this one is computed.
"""

from __future__ import annotations

import re

import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepPart
from nsysx.events.code_lines import CodeLines
from nsysx.events.profile import Profile
from nsysx.findings._case import Case, Fix, Rule, calls_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._found import Found
from nsysx.findings._names import called
from nsysx.findings._once import Takes, began_in, ops_of
from nsysx.frames import lookup
from nsysx.judging import waiting
from nsysx.model import Finding, Row
from nsysx.replay.engine import RemoveOps, RemoveWaits

#: Modules of TorchRec that exchange ids in their forward.
_SHARDED = r"^Sharded\w*Embedding\w*$"
_CALL = re.compile(r"=\s*(?P<network>[A-Za-z_][\w.]*)\(\s*[A-Za-z_]\w*\s*\)")


def reads_in_line(profile: Profile) -> frozenset[int]:
    """Return the calls that read sizes within such a module's forward."""
    return profile.once(_reads)


def _reads(profile: Profile) -> frozenset[int]:
    modules = profile.attributed.modules.select(pl.col("module", "cls").cast(pl.String)).drop_nulls()
    sharded = modules.filter(pl.col("cls").str.contains(_SHARDED))["module"].unique().to_list()
    if not sharded:
        return frozenset()
    waited = profile.once(waiting.waits).calls.filter(pl.col("asks") != waiting.NOTHING)["call"]
    api = profile.attributed.api_calls
    module, phase = (lookup.at(api[column], waited.to_numpy()).cast(pl.String) for column in ("module", "phase"))
    below = tuple(f"{each}." for each in sharded)
    inside = [path for path in module.unique().drop_nulls() if path in sharded or path.startswith(below)]
    return frozenset(waited.filter(module.is_in(inside).fill_null(value=False) & (phase == "forward")).to_list())


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return the finding about such reads, where a pipeline that makes them ahead saves 5 % of the step or more."""
    reads, code = reads_in_line(case.profile), case.profile.code()
    often = len(reads) / case.steps
    if not reads or often < 1:
        return []
    copies = case.ops.filter((pl.col("op_kind") == "memcpy") & pl.col("call").is_in(list(reads)))
    worth = case.worth(RemoveWaits(reads), RemoveOps(ops_of(copies)), cause=(*rule.cause, StepPart.COPY), bound=True)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return []
    idle = began_in(case.idle, reads)
    cost = case.per_step(float(case.idle["real_ns"].to_numpy()[idle].sum()))
    where = _place(case, code, reads)
    module = called(case.profile, str(where.get("module") or ""))
    lost = units.duration(case.lost(cost, worth))
    title = (
        f"{module or 'A table of all ranks'} waits for sizes from the other ranks in each forward: the GPU idles {lost}"
    )
    detail = (
        f"{case.often(len(calls_of(copies)), 'number', 'numbers')} that the ranks send each other {'are' if often > 1 else 'is'} read "
        "before the ids can be exchanged: the sizes are needed, but not in this step. Ranks wait for the latest of their hosts each time."
    )
    return [
        Found(
            rule, title, detail, worth=worth, cost_ns=cost, where=where, fix=_fix(case, where), calls=reads,
            takes=Takes(ops_of(copies), idle),
        ).as_finding(case)
    ]  # fmt: skip


def _place(case: Case, code: CodeLines | None, reads: frozenset[int]) -> Row:
    first = min(reads)
    module = case.profile.attributed.api_calls["module"].cast(pl.String)[first]
    line = {} if code is None else code.where_of(int(code.call[first]))
    return {"module": module, "phase": "forward", **line}


def _fix(case: Case, where: Row) -> Fix:
    """Return the advice, with the name of the network that the line calls."""
    fix = Fix.by_name("sparse-pipeline")
    text = (text_of(texts(case.profile), where["file"], where["line"]) or "") if where.get("line") else ""
    call = _CALL.search(text)
    return fix if call is None else fix.but(paste=re.sub(r"\bmodel\b", call["network"], fix.paste))
