"""Products of float32 where autocast does not reach, in a step that multiplies in 16 bits elsewhere: nothing switches it off there.

Autocast holds for the thread that enters it, while its block runs. A network, a head or a loss that is called outside of the block computes
in float32; so does what another thread runs, what the backward of a Function multiplies, and what writes into a tensor that is given. In a
program without autocast it is what has kept parameters of float32, as a part that a policy of mixed precision does not reach.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepPart
from nsysx.events import line_runs, thread_roles
from nsysx.events.attribute import IN_STEP
from nsysx.events.autocast_entries import entries_of
from nsysx.events.behind_backward import behind_backward
from nsysx.events.code_lines import CodeLines
from nsysx.events.kernel_math import number_format
from nsysx.events.line_regions import Region
from nsysx.events.lines_of_threads import places_in_threads
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.events.result_readers import ResultReaders
from nsysx.findings._case import Case, Fix, Rule, Saving, ops_of, way
from nsysx.findings._costly_jobs import sharded
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._rates_in_halves import ITS_OWN, ProductsOfFlow, forward_ns, left_at_own_rates, multiplying
from nsysx.findings._solvers import in_solvers
from nsysx.findings._without_autocast import HALVES, WIDE, in_its_halves, makes_only_scores, switched_off, switched_on
from nsysx.findings._work_bounds import (
    FP32_IN_HALVES_LEFT,
    MOST_LINES_NAMED,
    TF32_IN_HALVES_LEFT,
)
from nsysx.model import Finding, Row
from nsysx.records import whole_number
from nsysx.replay.engine import ScaleOps

#: Products with weights; what multiplies activations alone may make scores, which need all digits.
_WITH_WEIGHTS = re.compile(r"^aten::(linear|addmm|conv\w*|_?convolution)$")
_16_BITS = ("bfloat16", "float16")


class _Reason(NamedTuple):
    """Why autocast does not reach a product: what the title says of its line and of the one to change, and the remedy."""

    here: str
    there: str
    remedy: Alternative


class Outside(NamedTuple):
    """``findings`` with the products of float32 that they tell, and those that are so for a reason, of which none is told (GPU ops)."""

    findings: list[Finding]
    told: frozenset[int]
    meant: frozenset[int]


def outside(case: Case, rule: Rule, told: frozenset[int]) -> Outside:
    """Return a finding for each reason for which products take 5 % of the step; ``told``: GPU ops of other findings."""
    flow, code, settings = flow_of(case.profile), case.profile.code(), settings_of(case.profile)
    formats = number_format(case.kernels["name"], case.kernels["family"])
    wide_ns = int(case.kernels["ns"].filter(formats.is_in(WIDE).fill_null(value=False)).sum())
    if flow is None or code is None or settings is None or not case.notable(case.per_step(wide_ns)):
        return Outside([], frozenset(), frozenset())
    products = _Products(case, flow, code, settings)
    if not case.notable(case.per_step(int(products.halves["ns"].sum()))):
        return Outside([], frozenset(), frozenset())
    left = products.wide.filter(~pl.col("op").is_in(list(told)))
    findings, taken = list[Finding](), frozenset[int]()
    for name, theirs in products.by_reason(left):
        worth = _worth(case, products, theirs) if _notable(case, theirs) else None
        if worth is not None and case.notable(worth.likely_ns or 0, REPORTED_SHARE):
            findings.append(_finding(case, rule, products, _reason(name, settings), theirs, worth))
            taken |= ops_of(theirs)
    return Outside(findings, taken, products.meant)


def _notable(case: Case, theirs: pl.DataFrame) -> bool:
    return case.notable(case.per_step(int(theirs["ns"].sum())), REPORTED_SHARE)


class _Products:
    """The kernels of a step that multiply: op, ns, format, phase, stack, row (of the outermost operator), thread, forward.

    ``halves`` in 16 bits, ``wide`` in float32 where nothing asks for it; ``meant``: GPU ops of those where something does.
    """

    def __init__(self, case: Case, flow: OperatorFlow, code: CodeLines, settings: RecordedSettings) -> None:
        self._case, self._flow, self._code, self.settings = case, flow, code, settings
        self.of_flow = ProductsOfFlow(flow)
        kernels = self._kernels()
        self.halves = kernels.filter(pl.col("format").is_in(HALVES))
        wide = kernels.filter(pl.col("format").is_in(WIDE) & ((pl.col("stack") >= 0) | self._apart(kernels)))
        self._on = switched_on(case.profile, code, flow, settings)
        self._off = list[Region]()
        for _, region in switched_off(case.profile, code, flow, settings):
            by_variable = self._within([region], self.halves).any()  # which was true
            (self._on if by_variable else self._off).append(region)
        meant = self._meant(wide)
        self.meant = ops_of(wide.filter(meant))
        self.wide = wide.filter(~meant)

    def _kernels(self) -> pl.DataFrame:
        case, calls = self._case, self._case.profile.attributed.api_calls
        kernels = multiplying(case, self._flow)
        return kernels.with_columns(
            stack=pl.Series(self._code.op[kernels["op"].to_numpy()]),
            thread=pl.Series(calls["thread"].to_numpy()[kernels["call"].to_numpy()]),
            solves=kernels["op"].is_in(
                case.kernels["op"].filter(pl.Series(in_solvers(case), dtype=pl.Boolean)).to_list()
            ),
        )

    def _apart(self, kernels: pl.DataFrame) -> pl.Series:
        """Return which are launched by a thread of the program that launches none of 16 bits."""
        roles = self._case.profile.attributed.roles
        working = set(self.halves["thread"].to_list())
        apart = [thread for thread, role in roles.items() if role == thread_roles.USER and thread not in working]
        return kernels["thread"].is_in(apart)

    # ---- what is meant to be float32 --------------------------------------------------------------------------------

    def _meant(self, wide: pl.DataFrame) -> pl.Series:
        """Return which products of float32 are so on purpose, or are too narrow for tensor cores."""
        rows = [row for row in wide["row"].unique().to_list() if row >= 0]
        narrow = [row for row in rows if self.of_flow.is_narrow(row) or self.of_flow.is_wide_by_torch(row)]
        process = self._case.profile.attributed.gpu_ops.filter(pl.col("process") == self._case.process)
        of_updates = pl.Series(behind_backward(process, wide), dtype=pl.Boolean) & ~self._apart(wide)
        of_updates &= (wide["module"].is_null() | (wide["module"].cast(pl.String) == IN_STEP)).fill_null(value=True)
        meant: pl.Series = of_updates | wide["solves"] | (wide["phase"] == "optimizer") | wide["row"].is_in(narrow)
        return meant | self._within(self._off, wide) | self._scores(wide) | self._of_hooks(wide)

    def _within(self, regions: list[Region], wide: pl.DataFrame) -> pl.Series:
        """Return which products lie in some regions."""
        stack, row = wide["stack"].to_numpy(), wide["row"].to_numpy()
        line_row, start = self._code.places_of(stack), np.append(self._flow.start_ns, -1)[row]
        inside = np.zeros(len(stack), np.bool_)
        for region in regions:
            inside |= np.isin(stack, region.stacks) | np.isin(line_row, region.backward)
            inside |= (start >= 0) & (region.holds(start) >= 0)
        return pl.Series(inside, dtype=pl.Boolean)

    def _scores(self, wide: pl.DataFrame) -> pl.Series:
        """Return which products belong to calls of which all make scores of activations."""
        readers = ResultReaders(self._flow)
        distinct = [row for row in wide["row"].unique().to_list() if row >= 0]
        scores = {
            row
            for row in distinct
            if not _WITH_WEIGHTS.match(self._flow.names[row]) and makes_only_scores(readers, row)
        }
        top = pl.Series(self.tops(wide["stack"].to_list()))
        others = set(top.filter(~wide["row"].is_in(list(scores))).to_list())
        return wide["row"].is_in(list(scores)) & ~top.is_in(list(others))

    def _of_hooks(self, wide: pl.DataFrame) -> pl.Series:
        """Return which products functions of the program make of gradients in backward, as for the factors of a preconditioner: neither a
        Function nor a forward that runs again.
        """
        code, flow = self._code, self._flow
        of_main = set(code.open[flow.thread].labels.tolist()) - {-1} if flow.thread in code.open else set()
        roots = {code.chain(stack)[0] for stack in of_main}
        names = code.places["function"].cast(pl.String).fill_null("").to_list()

        def hooked(stack: int) -> bool:
            chain = code.chain(stack)
            return (
                bool(roots)
                and chain[0] not in roots
                and not any(names[row].endswith((".forward", ".backward")) for row in chain)
            )

        hooks = [stack for stack in wide["stack"].unique().to_list() if stack >= 0 and hooked(stack)]
        return wide["phase"].str.starts_with("backward") & wide["stack"].is_in(hooks)

    # ---- whose products they are ------------------------------------------------------------------------------------

    @cached_property
    def _mixed(self) -> set[int]:
        """The stacks below which products of 16 bits are made."""
        mixed = set[int]()
        for stack in self.halves["stack"].unique().to_list():
            while stack >= 0 and stack not in mixed:
                mixed.add(stack)
                stack = int(self._code.parent[stack])
        return mixed

    def tops(self, stacks: list[int]) -> list[int]:
        """Return for each stack the outermost one above it below which all products are float32: the call that can be changed."""
        encloses = self._case.profile.once(line_runs.of_lines).encloses if stacks else ()

        def top(stack: int) -> int:
            if (backward := self._in_backward(stack)) >= 0:
                return backward
            above = int(self._code.parent[stack])
            while above >= 0 and stack not in self._mixed | {-1} and above not in self._mixed:
                if encloses[self._code.place[above]]:
                    break
                stack, above = above, int(self._code.parent[above])
            return stack

        top_of = {stack: top(stack) for stack in set(stacks)}
        return [top_of[stack] for stack in stacks]

    def by_reason(self, wide: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
        """Yield products of float32 by why they are so."""
        if not wide.height:
            return
        columns = (
            wide["stack"].to_list(),
            self._within(self._on, wide).to_list(),
            self._apart(wide).to_list(),
            self._without_forward(wide).to_list(),
        )
        threads = "thread" if any(columns[2]) else ""
        reasons = [
            "thread"
            if apart
            else threads
            if without
            else self._backward_of(stack) or ("inside" if within else "outside")
            for stack, within, apart, without in zip(*columns, strict=True)
        ]
        wide = wide.with_columns(reason=pl.Series(reasons, dtype=pl.String)).filter(pl.col("reason") != "")
        for (reason,), theirs in wide.group_by("reason", maintain_order=True):
            yield str(reason), theirs

    def _without_forward(self, wide: pl.DataFrame) -> pl.Series:
        """Return which products are gradients of operators that were not recorded: their line is that which calls backward."""
        ranges = self._case.profile.ranges.ranges
        backward = (pl.col("kind") == "phase") & pl.col("name").cast(pl.String).str.starts_with("backward")
        begins = ranges.filter(backward & (pl.col("thread") == self._flow.thread))["start_ns"].sort().to_numpy()
        calling = list(set(self._code.at(self._flow.thread, begins).tolist()) - {-1})
        return (wide["row"] < 0) & wide["phase"].str.starts_with("backward") & wide["stack"].is_in(calling)

    def _backward_of(self, stack: int) -> str:
        """Return "backward of NAME" where a stack lies in the backward of a Function of the program, "" for others."""
        backward = self._in_backward(stack)
        if backward < 0:
            return ""
        owner = str(self._code.places["function"][int(self._code.place[backward])]).rpartition(".backward")[0]
        return f"backward of {owner.rpartition('<locals>.')[2]}"

    def _in_backward(self, stack: int) -> int:
        """Return the stack, itself or above, that ends in the backward of a Function, -1 where there is none."""
        while stack >= 0:
            if str(self._code.places["function"][int(self._code.place[stack])] or "").endswith(".backward"):
                return stack
            stack = int(self._code.parent[stack])
        return -1

    def places(self, theirs: pl.DataFrame, *, tops: bool) -> list[tuple[Row, int]]:
        """Return the lines of products with their time (ns, all steps), that with most first; ``tops``: of calls that can be changed."""
        apart = theirs.filter(self._apart(theirs))
        if apart.height:
            return self._places_apart(apart, tops=tops)
        stacks = theirs["stack"].to_list()
        line = self._code.places_of(np.array(self.tops(stacks) if tops else stacks))
        sums = theirs.with_columns(line=pl.Series(line)).group_by("line").agg(pl.col("ns").sum())
        sums = sums.filter(sums["line"] >= 0).sort("ns", "line", descending=[True, False])
        return [(where, ns) for row, ns in sums.iter_rows() if (where := self._code.where(row))]

    def _places_apart(self, theirs: pl.DataFrame, *, tops: bool) -> list[tuple[Row, int]]:
        places = places_in_threads(self._case.profile, theirs["call"].to_numpy())
        sums = Counter[tuple[str, int]]()
        for (outer, inner), ns in zip(places, theirs["ns"].to_list(), strict=True):
            if row := outer if tops else inner:
                sums[row["file"], row["line"]] += ns
        return [({"file": file, "line": line}, ns) for (file, line), ns in sums.most_common()]


def _reason(name: str, settings: RecordedSettings) -> _Reason:
    if name == "thread":
        return _Reason(
            " in a thread that enters no autocast", "in a thread that enters no autocast", way("autocast-in-thread")
        )
    if name.startswith("backward"):
        there = f"in the {name}, which runs outside of autocast"
        return _Reason(f": the {name} runs outside of autocast", there, way("autocast-in-backward"))
    if name == "inside":
        return _Reason(" although autocast is on", "", way("cast-by-hand"))
    if settings.autocast("regions") or settings.autocast("forward") or entries_of(settings):
        return _Reason(" outside of autocast", "outside of autocast", way("inside-autocast"))
    return _without_any(settings)


def _without_any(settings: RecordedSettings) -> _Reason:
    """Return why products are float32 in a program of 16 bits that enters no autocast."""
    policies = [(row.get("parameter_dtype"), whole_number(row.get("count")) or 1) for row in sharded(settings)]
    without = sum(count for dtype, count in policies if dtype not in _16_BITS)
    if policies and 0 < without < sum(count for _, count in policies):
        some = f"{without} of {sum(count for _, count in policies)} wrappers keep parameters of float32"
        return _Reason(f": {some}", "", way("one-policy"))
    dtypes = [frozenset(row.get("dtypes") or ()) for row in settings.rows("networks") or ()]
    if dtypes and all(each and each <= set(_16_BITS) for each in dtypes):
        return _Reason(" although all parameters have 16 bits", "", way("same-dtype"))
    text = (
        "Enter autocast around this call, or convert what it holds by .to(torch.bfloat16): the rest of the step multiplies in 16 bits, "
        "without autocast"
    )
    elsewhere = "where the rest has 16 bits"
    return _Reason(f", {elsewhere}", elsewhere, way("inside-autocast", text))


def _worth(case: Case, products: _Products, theirs: pl.DataFrame) -> Saving:
    """Return what 16 bits save of products: at the step's own rates for like sizes, else by those of tensor cores."""
    left = left_at_own_rates(case, products.of_flow, forward_ns(theirs), forward_ns(products.halves))
    tf32 = theirs.filter(theirs["format"] == "tf32")
    fp32 = theirs.filter(theirs["format"] != "tf32")
    if left is not None:
        parts, why = [(theirs, left)], f"if these products are as fast as {ITS_OWN}"
    else:
        parts = [(tf32, TF32_IN_HALVES_LEFT), (fp32, FP32_IN_HALVES_LEFT)]
        why = "if these products have 16 bits, by the rates of tensor cores"
    least, likely, most = (
        [ScaleOps(ops_of(each), share[i], less_work=True) for each, share in parts if each.height and share[i] < 1]
        for i in range(3)
    )
    if not likely:
        return Saving(None, "products of 16 bits and like size are no faster")
    worth = case.worth_between(least, likely, most, why, cause=(StepPart.WORK,))
    return worth if worth.likely_ns is not None else case.worth_or_freed(*likely, cause=(StepPart.WORK,))


def _around(case: Case, remedy: Alternative, where: Row) -> Alternative:
    """Return a remedy that enters autocast around a call with the line that calls, where that is a statement by itself."""
    text = text_of(texts(case.profile), where.get("file"), where.get("line")) or ""
    try:
        statement = isinstance(ast.parse(text).body[0], (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return))
    except (SyntaxError, ValueError, IndexError, RecursionError, MemoryError):  # a part of one, or a block's head
        statement = False
    if remedy.name != "inside-autocast" or not statement:
        return remedy
    return way(remedy.name, remedy.text, f'with torch.autocast("cuda", torch.bfloat16):\n    {text}')


def _finding(
    case: Case, rule: Rule, products: _Products, reason: _Reason, theirs: pl.DataFrame, worth: Saving
) -> Finding:
    taken = case.per_step(int(theirs["ns"].sum()))
    lines = products.places(theirs, tops=False)
    calls = products.places(theirs, tops=True) if reason.there else lines
    where = calls[0][0] if calls else {}
    multiplies, called = in_short(lines[0][0]) if lines else "", in_short(where)
    if reason.there and called != multiplies:
        why = f": {called} calls it {reason.there}"
    else:
        why = reason.here
    others = ", ".join(
        f"{in_short(row)} ({units.duration(case.per_step(ns))})" for row, ns in calls[1:MOST_LINES_NAMED]
    )
    detail = (
        f"The rest of the step multiplies in 16 bits. These products take {units.duration(taken)} {case.per} ({case.share(taken)})."
        + (f" They are called by {called}, and by {others}." if others else "")
    )
    return Found(
        rule,
        f"{multiplies or 'The step'} multiplies in float32 for {units.duration(taken)}{why}",
        detail,
        worth=worth,
        cost_ns=taken,
        fix=Fix.by_name(in_its_halves(_around(case, reason.remedy, where), products.settings)),
        where=where,
        takes=Takes(ops_of(theirs)),
    ).as_finding(case)
