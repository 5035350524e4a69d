"""Products of float32 in a region that switches autocast off, where the rest of the step multiplies in 16 bits.

Autocast is switched off for what needs all digits: routers, softmax, norms, losses. What else lies in the region runs in float32, too:
its products at half the rate of 16 bits with TF32, less without, and all that it copies and sends at twice the bytes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import DeviceActivity, StepPart
from nsysx.events.autocast_entries import AutocastEntry, entries_of, regions_of_entries
from nsysx.events.code_lines import CodeLines
from nsysx.events.kernel_math import number_format
from nsysx.events.line_regions import Region, region_of
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.events.result_readers import ResultReaders
from nsysx.findings._case import Case, Fix, Rule, Saving, ops_of, way
from nsysx.findings._costly_jobs import sharded
from nsysx.findings._finding_bounds import HALF_OF_BYTES_LEFT, LONG_MESSAGE_NS, REPORTED_SHARE
from nsysx.findings._flow_work import in_short, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._rates_in_halves import ITS_OWN, ProductsOfFlow, forward_ns, left_at_own_rates, multiplying
from nsysx.findings._region_pastes import narrowed
from nsysx.findings._solvers import in_solvers
from nsysx.findings._work_bounds import (
    CASTS_IN_HALVES_LEFT,
    FP32_IN_HALVES_LEFT,
    OTHERS_IN_HALVES_LEFT,
    TF32_IN_HALVES_LEFT,
)
from nsysx.frames.intervals import I64
from nsysx.model import Finding, Row
from nsysx.replay.engine import Edit, RemoveOps, ScaleOps
from nsysx.roofline.element_types import types_of

_ENTERS = re.compile(r"\bautocast\(")
#: A region that is switched off by its own words, or by a variable.
_OFF = re.compile(r"\bautocast\(.*(\benabled\s*=\s*(?!True\b)|[,(]\s*False\b)")
HALVES, WIDE = ("bf16", "fp16"), ("tf32", "tf32x3", "fp32")
#: What needs all digits of a product that it reads: the scores of a router, of an attention or of a loss.
_SCORES = re.compile(r"softmax|logsumexp|cross_entropy|nll_loss|sigmoid|topk|argmax|sort|_loss(_|$)")
_JOINS = re.compile(r"^aten::(cat|stack)$")
_PRODUCTS = re.compile(r"^aten::(mm|bmm|addmm|baddbmm|linear|matmul|einsum|conv\w*|_?convolution)$")


class _Work(NamedTuple):
    """GPU ops of a region: products with TF32 and without tensor cores, other kernels of float32, long messages, conversions; the products'
    time in a step (ns), the line that makes most of it, "" where that is not known, and all that do.
    """

    tf32: frozenset[int]
    fp32: frozenset[int]
    others: frozenset[int]
    messages: frozenset[int]
    casts: frozenset[int]
    products_ns: int
    line: str
    lines: frozenset[int]

    @property
    def products(self) -> frozenset[int]:
        """All products."""
        return self.tf32 | self.fp32


def findings_of(case: Case, rule: Rule) -> list[tuple[Finding, frozenset[int]]]:
    """Return a finding for each such region whose products take 5 % of the step, with the GPU ops of these."""
    flow, code, settings = flow_of(case.profile), case.profile.code(), settings_of(case.profile)
    if flow is None or code is None or settings is None or not _in_halves(case, settings):
        return []
    findings, products = [], frozenset[int]()
    regions = switched_off(case.profile, code, flow, settings)
    for entry, region in sorted(regions, key=lambda each: int((each[1].end_ns - each[1].start_ns).sum())):
        work = _work(case, code, flow, region, settings)
        if work is None or not products.isdisjoint(work.products):  # a region around another one
            continue
        worth = _worth(case, flow, work) if case.notable(work.products_ns, REPORTED_SHARE) else None
        if worth is not None and case.notable(worth.likely_ns or 0, REPORTED_SHARE):
            findings.append((_finding(case, rule, (entry, region), work, worth, settings), work.products))
            products |= work.products
    return findings


def _in_halves(case: Case, settings: RecordedSettings) -> bool:
    """Return whether the step runs under autocast, and multiplies in 16 bits."""
    entered = settings.autocast("regions") and settings.autocast("dtypes")
    if not entered and not settings.autocast("forward") and not entries_of(settings):
        return False
    halves = number_format(case.kernels["name"], case.kernels["family"]).is_in(HALVES).fill_null(value=False)
    return case.notable(case.per_step(int(case.kernels["ns"].filter(halves).sum())))


def switched_off(
    profile: Profile, code: CodeLines, flow: OperatorFlow, settings: RecordedSettings
) -> list[tuple[AutocastEntry | None, Region]]:
    """Return what runs where autocast is switched off, as the probe noted it; what only the text of a line says has no entry."""
    return _regions(profile, code, flow, settings, on=False)


def switched_on(profile: Profile, code: CodeLines, flow: OperatorFlow, settings: RecordedSettings) -> list[Region]:
    """Return what runs where autocast is entered, likewise."""
    return [region for _, region in _regions(profile, code, flow, settings, on=True)]


def _regions(
    profile: Profile, code: CodeLines, flow: OperatorFlow, settings: RecordedSettings, *, on: bool
) -> list[tuple[AutocastEntry | None, Region]]:
    entries = entries_of(settings)
    chosen = [each for each in entries if each.on is on and not each.restores]
    regions: list[tuple[AutocastEntry | None, Region]] = list(regions_of_entries(profile, code, flow, chosen))
    noted = {_place(where) for each in entries for where in (each.line, each.around)}
    source = texts(profile)
    for line_row in range(code.places.height):
        file, line = code.places.row(line_row)[:2]
        text = text_of(source, file, line) or ""
        if (file, line) not in noted and _ENTERS.search(text) and bool(_OFF.search(text)) is not on:
            region = region_of(profile, code, flow, line_row)
            if region is not None:
                regions.append((None, region))
    return regions


def _place(where: Row) -> tuple[str | None, int | None]:
    return where.get("file"), where.get("line")


def _scores(flow: OperatorFlow, region: Region) -> set[int]:
    """Return the products in a region (rows of outermost operators) of which only scores are made, those of a loss or a router."""
    readers = ResultReaders(flow)
    inside = region.holds(flow.start_ns) >= 0
    rows = [row for row in flow.outermost if inside[row] and _PRODUCTS.match(flow.names[row])]
    return {row for row in rows if makes_only_scores(readers, row)}


def makes_only_scores(readers: ResultReaders, row: int) -> bool:
    """Return whether all that reads a result, past what hands it on, makes scores of it."""
    waiting, seen = [row], {row}
    while waiting:
        read_by = readers.readers.get(readers.flow.number[waiting.pop()], set())
        # What no operator reads goes to something that was not recorded with its arguments, such as a message.
        if not read_by or -1 in read_by:
            return False
        for reader in read_by - seen:
            if readers.hands_on(reader) or _JOINS.match(readers.flow.names[reader]):
                waiting.append(reader)
            elif not _SCORES.search(readers.flow.names[reader]):
                return False
        seen |= read_by
    return True


def _work(case: Case, code: CodeLines, flow: OperatorFlow, region: Region, settings: RecordedSettings) -> _Work | None:
    """Return what a region launches, itself or by its gradients, that 16 bits make shorter; None where autocast is on in it."""
    ops = case.timed_ops(case.ops["op"].is_not_null(), "op", "name", "family", "phase", "cls", "op_kind")
    stack = code.op[ops["op"].to_numpy()]
    line_row = code.places_of(stack)
    there = (np.isin(stack, region.stacks) & (stack >= 0)) | (np.isin(line_row, region.backward) & (line_row >= 0))
    work = work_of_operators(case, flow)
    scores = ops_of(work.filter(pl.col("row").is_in(list(_scores(flow, region)))))
    solving = ops_of(case.kernels.filter(pl.Series(in_solvers(case), dtype=pl.Boolean)))
    there &= ~(
        ops["op"].is_in(list(scores | solving)) | (ops["phase"].cast(pl.String) == "optimizer").fill_null(value=False)
    ).to_numpy()
    ops = ops.with_columns(line_row=pl.Series(line_row)).filter(pl.Series(there, dtype=pl.Boolean))
    comm = ops["cls"] == DeviceActivity.COMM.value
    kernels = ops.filter((ops["op_kind"] == "kernel") & ~comm)
    formats = number_format(kernels["name"], kernels["family"])
    if formats.is_in(HALVES).any():
        return None
    wide = kernels.filter(formats.is_in(WIDE).fill_null(value=False))
    tf32 = kernels.filter((formats == "tf32").fill_null(value=False))
    named = kernels["name"].cast(pl.String).to_list()
    floats = [types.size == 4 and not types.casts for types in map(types_of, named)]
    others = kernels.filter(pl.Series(floats, dtype=pl.Boolean) & formats.is_null() & (kernels["family"] != "gemm"))
    casts = [types.casts and "copy_kernel" in name for types, name in zip(map(types_of, named), named, strict=True)]
    # What a wrapper gathers for the modules in the region has the type of its own policy.
    sent = ops.clear() if sharded(settings) else ops.filter(comm & (ops["ns"] >= LONG_MESSAGE_NS))
    return _Work(
        ops_of(tf32),
        ops_of(wide) - ops_of(tf32),
        ops_of(others),
        ops_of(sent),
        ops_of(kernels.filter(pl.Series(casts, dtype=pl.Boolean))),
        case.per_step(int(wide["ns"].sum())),
        in_short(code.where_most(_rows(wide), wide["ns"].to_numpy())),
        frozenset(int(code.places.row(row)[1] or 0) for row in set(_rows(wide).tolist()) - {-1}),
    )


def _rows(work: pl.DataFrame) -> I64:
    rows: I64 = work["line_row"].to_numpy()
    return rows


def _worth(case: Case, flow: OperatorFlow, work: _Work) -> Saving:
    """Return what 16 bits save: of products at least, of messages and other kernels besides."""
    kernels = multiplying(case, flow)
    wide = forward_ns(kernels.filter(kernels["op"].is_in(list(work.products))))
    halves = forward_ns(kernels.filter(pl.col("format").is_in(HALVES)))
    left = left_at_own_rates(case, ProductsOfFlow(flow), wide, halves)

    def edits(which: int) -> list[Edit]:
        factors = (
            (work.tf32, (left or TF32_IN_HALVES_LEFT)[which]),
            (work.fp32, (left or FP32_IN_HALVES_LEFT)[which]),
            (work.others, OTHERS_IN_HALVES_LEFT[which]),
            (work.messages, HALF_OF_BYTES_LEFT),
            (work.casts, CASTS_IN_HALVES_LEFT[which]),
        )
        return [
            ScaleOps(ops, left, less_work=True) if left else RemoveOps(ops) for ops, left in factors if ops and left < 1
        ]

    parts = (StepPart.WORK, StepPart.COMM) if work.messages else (StepPart.WORK,)
    rates = ITS_OWN if left else "the rates of tensor cores"
    why = f"if what the region computes and sends is of 16 bits, by {rates} and by its bytes"
    return case.worth_between(edits(0), edits(1), edits(2), why, cause=parts)


def _finding(
    case: Case,
    rule: Rule,
    region: tuple[AutocastEntry | None, Region],
    work: _Work,
    worth: Saving,
    settings: RecordedSettings,
) -> Finding:
    taken = case.timed_ops(case.ops["op"].is_in(list(work.others | work.messages | work.casts)), "op")
    whole = work.products_ns + case.per_step(int(taken["ns"].sum()))
    multiplies, off = work.line, in_short(region[1].where)
    title = f"{multiplies or off} multiplies in float32 for {units.duration(work.products_ns)}: {off} {_how(region[0])}"
    besides = ", and so does what it sends" if work.messages else ""
    detail = (
        f"The rest of the step multiplies in 16 bits. Products in this region take {units.duration(work.products_ns)} {case.per} "
        f"({case.share(work.products_ns)}); other kernels of float32 in it move twice the bytes of 16 bits{besides}."
    )
    ops = work.products | work.others | work.messages | work.casts
    return Found(
        rule,
        title,
        detail,
        worth=worth,
        cost_ns=whole,
        fix=_fix(case, region, work, settings),
        where=region[1].where,
        takes=Takes(ops),
    ).as_finding(case)


def _fix(case: Case, region: tuple[AutocastEntry | None, Region], work: _Work, settings: RecordedSettings) -> Fix:
    """Return the remedy, in the region's own statements where these are plain."""
    entry, where = region[0], region[1].where
    fix = Fix.by_name(in_its_halves(_remedy(entry), settings))
    if not where or (entry is not None and (entry.function or entry.around)):
        return fix
    noted = texts(case.profile).get(where["file"], {})
    source = {int(line): text for line, text in noted.items() if isinstance(text, str) and str(line).isdigit()}
    paste = narrowed(source, int(where["line"]), work.lines)
    if paste is None:
        return fix
    return fix.but(text=_LEFT_OUT if paste.left_out else None, paste=paste.code)


#: What is said of a region that nothing in it needs.
_LEFT_OUT = (
    "Leave this region out, and its casts to float32: under the autocast around it these products have 16 bits, which tensor cores add up "
    "in float32"
)


def _how(entry: AutocastEntry | None) -> str:
    """Return in words how a line switches autocast off."""
    if entry is None or not (entry.function or entry.around):
        return "switches autocast off"
    if entry.around:
        return f"switches autocast off by {in_short(entry.line)}"
    name = entry.function.rpartition("<locals>.")[2]
    if entry.casts:
        return f"casts what {name} is given to float32"
    return f"switches autocast off for {name}" if entry.decorator else f"calls {name}, which switches autocast off"


def _remedy(entry: AutocastEntry | None) -> Alternative:
    if entry is not None and entry.casts:
        return way("cast-inputs-in-16-bits")
    return way("autocast-left-on" if entry is not None and entry.function else "float32-where-needed")


def in_its_halves(remedy: Alternative, settings: RecordedSettings) -> Alternative:
    """Return a remedy for bfloat16 with the 16 bits that the program computes in."""
    dtypes = settings.autocast("dtypes")
    if not dtypes or not all("float16" in str(name) and "bfloat16" not in str(name) for name in dtypes):
        return remedy
    return way(
        remedy.name,
        remedy.text.replace("bfloat16", "float16"),
        remedy.paste.replace("bfloat16", "float16"),
        "Float16 keeps 10 bits of the mantissa, and no number above 65,504: the loss must still converge.",
    )
