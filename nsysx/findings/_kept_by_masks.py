"""Networks, heads and experts that each compute all rows, of which a mask keeps those of one group: k of them compute k times what is kept.

An X-ray's operators tell it (``events.masked_calls``). What a program runs between its steps, as a rollout, has none: there the kernels
(``events.masked_runs``) and a loop in the program's text, which keeps by its own number what it calls, tell it together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.lines import texts
from nsysx.catalogue import StepPart
from nsysx.events.masked_calls import MaskedCalls, masked_calls
from nsysx.events.masked_runs import masked_runs
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE, TINY_KERNEL_NS
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import MASKED_LINES_APART
from nsysx.model import Finding, Row
from nsysx.replay.engine import ScaleOps

#: A call that makes one name of another, alone in its line, or within one that keeps rows.
_CALL = re.compile(
    r"^(?P<made>[A-Za-z_]\w*)(?:\s*,[\w\s,]*)?\s*=(?!=)\s*(?P<called>[\w.]+(?:\[\w+\])?)\((?P<given>[A-Za-z_][\w.]*)(?=[,)])"
)
_CALLED = re.compile(r"(?<![\w.])(?!torch\.|F\.)(?P<called>[\w.]+(?:\[\w+\])?)\((?P<given>[A-Za-z_][\w.]*)\)")
_SELECTS = re.compile(r"\bwhere\(|\bmasked_fill\w*\(|\*")
_KEPT = re.compile(r"^(?P<all>[A-Za-z_]\w*)\s*(?:\+?=)(?!=)")
#: What is compared with the number of a group.
_COMPARED = re.compile(
    r"(?P<group>[A-Za-z_][\w.]*)\s*==\s*(?!\w*(?:pad|ignore|eos|bos|blank|unk))(?P<number>[a-z_]\w*)\b(?![.(\[])"
)
_MADE = re.compile(r"^(?P<made>[A-Za-z_]\w*)\s*=(?!=)")


class _KeptInText(NamedTuple):
    """A line that keeps rows: of which tensor all, by which group's number, what is called with what to make which name ("" for none)."""

    whole: str
    group: str
    number: str
    called: str
    given: str
    made: str
    call: str
    adds: bool

    def paste(self, networks: int) -> str:
        """Return what takes its place."""
        rows = f"rows[{self.number}]"
        made = self.made or "part"
        call = self.call or f"part = {self.called}({self.given})"
        call = call.replace(f"{self.called}({self.given}", f"{self.called}({self.given}[{rows}]", 1)
        put = "index_add" if self.adds else "index_copy"
        return (
            f"rows = [({self.group} == {self.number}).nonzero().squeeze(1) for {self.number} in range({networks})]"
            f"  # once, while {self.group} stays the same\n{call}  # in the loop\n"
            f"{self.whole} = {self.whole}.{put}(0, {rows}, {made}.to({self.whole}.dtype))"
        )


class _Masked(NamedTuple):
    """GPU ops of what computes all rows (op, ns), how many do, which share of the rows of each is kept, and the line that calls them."""

    work: pl.DataFrame
    times: int
    share: float
    where: Row


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return the finding about such calls, where their change saves 5 % of the step or more."""
    flow = flow_of(case.profile)
    masked = [] if flow is None or case.program.compiled else list(_by_operators(case, flow))
    masked = masked or list(_by_kernels(case))
    finding = _found(case, rule, masked) if masked else None
    return [] if finding is None else [finding]


def _by_operators(case: Case, flow: OperatorFlow) -> Iterator[_Masked]:
    kept = masked_calls(flow)
    if not kept:
        return
    work, code = work_of_operators(case, flow), case.profile.code()
    for each in kept:
        rows = [row for call in each.calls for row in flow.outermost_of(call.first, call.last)]
        where = {} if code is None else place_of_operator(code, flow, np.array([_begin(flow, each)]))
        yield _Masked(work.filter(pl.col("row").is_in(rows))["op", "ns"], len(each.calls), each.share, where)


def _begin(flow: OperatorFlow, masked: MaskedCalls) -> int:
    """Return when what keeps the rows of the first call begins (ns)."""
    return int(flow.start_ns[masked.keeper])


def _by_kernels(case: Case) -> Iterator[_Masked]:
    lines = [
        (file, number)
        for file, of_file in texts(case.profile).items()
        for number in map(int, of_file)
        if _text_of(of_file, number) is not None
    ]
    if not lines:
        return
    for run in masked_runs(case.ops):
        work = case.ops.filter(pl.col("op").is_in(list(run.ops))).select("op", ns=pl.col("end_ns") - pl.col("start_ns"))
        yield _Masked(work, run.networks, 1 / run.networks, {"file": lines[0][0], "line": lines[0][1]})


def _text_of(lines: Mapping[str, object], number: int) -> _KeptInText | None:
    """Return what a line keeps by the number of a group of what it calls, or of what a line right before it calls; None for others."""
    text = str(lines.get(str(number)) or "").strip()
    kept = _KEPT.match(text)
    if kept is None or not _SELECTS.search(text):
        return None
    before = [
        str(lines.get(str(each)) or "").strip() for each in range(number - 1, number - 1 - MASKED_LINES_APART, -1)
    ]
    compared = _COMPARED.search(text)
    for line in before:
        made = _MADE.match(line)
        if compared is None and made and re.search(rf"\b{made['made']}\b", text):
            compared = _COMPARED.search(line)
    if compared is None:
        return None
    adds = "where(" not in text and "masked_fill" not in text
    keeping = (kept["all"], compared["group"], compared["number"])
    inner = _CALLED.search(text.partition("=")[2])
    if inner and "where" not in inner["called"]:
        return _KeptInText(*keeping, inner["called"], inner["given"], "", "", adds)
    for line in before:
        call = _CALL.match(line)
        if (
            call
            and not call["called"].startswith(("torch.", "F."))
            and re.search(rf"\b{call['made']}\b", text.partition("=")[2])
        ):
            return _KeptInText(*keeping, call["called"], call["given"], call["made"], line.partition("  #")[0], adds)
    return None


def _paste(case: Case, most: _Masked) -> str:
    """Return the loop's lines in the program's own names, "" where they do not tell."""
    lines, line = texts(case.profile).get(str(most.where.get("file"))), most.where.get("line")
    text = _text_of(lines, line) if isinstance(lines, Mapping) and isinstance(line, int) else None
    return "" if text is None else text.paste(most.times)


def _found(case: Case, rule: Rule, masked: list[_Masked]) -> Finding | None:
    work = pl.concat([each.work for each in masked])
    long = {share: list[int]() for share in sorted({each.share for each in masked})}
    for each in masked:
        long[each.share] += each.work.filter(each.work["ns"] > TINY_KERNEL_NS)["op"].to_list()
    edits = [ScaleOps(frozenset(ops), share, less_work=True) for share, ops in long.items() if ops]
    worth = case.worth_or_freed(*edits, cause=(StepPart.WORK,), bound=True) if edits else case.worth()
    if not edits or worth.likely_ns is None or not case.notable(worth.likely_ns, REPORTED_SHARE):
        return None
    most = max(masked, key=lambda each: (int(each.work["ns"].sum()), -each.times))
    cost = case.per_step(int(work["ns"].sum()))
    there = f"{in_short(most.where)}: " if most.where else ""
    paste = _paste(case, most)
    fix = Fix.by_name("rows-of-each-network")
    keeps = units.share(most.share, 1)
    took = f"{units.duration(cost)} {case.per}"
    title = f"{there}{most.times} networks each compute all rows, of which a mask keeps {keeps}: {took}"
    detail = (
        f"Each of {most.times} calls in turn computes every row, and a mask that compares with the call's number, or a pick, keeps those "
        f"of one group: of all that they compute, {keeps} is read. They take {took}, {case.share(cost)} of the step. Rows are taken to be "
        "dealt evenly; kernels of few rows may take more than their share."
    )
    return Found(
        rule,
        title,
        detail,
        worth=worth,
        cost_ns=cost,
        fix=fix.but(paste=paste) if paste else fix,
        where=most.where or None,
        takes=Takes(ops_of(work)),
    ).as_finding(case)
