"""Products of matrices that another form gives with less work (``events.product_forms``): what they take, and what comes instead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import limits_of_work
from nsysx.analyses.lines import text_of, texts
from nsysx.events import kernel_math
from nsysx.events.code_lines import CodeLines
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.product_forms import ProductForm, product_forms
from nsysx.events.profile import NotRecorded
from nsysx.events.routing_masks import routed_products
from nsysx.events.trained_operators import trained_of
from nsysx.findings import _routed_pastes, _transform_pastes
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._instead import FORMAT_OF_SIZE, Instead
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import (
    ADDED_AT_MOST_SHARE,
    MOST_LINES_NAMED,
    ROUTED_AT_LEAST_TIMES,
    ROUTED_AT_MOST_SHARE,
)
from nsysx.model import Finding, Row
from nsysx.roofline.device_rates import DeviceRates
from nsysx.roofline.element_types import OF_FORMAT, types_of
from nsysx.roofline.roofline_bounds import HALF_TRANSFORM_AT_MOST_SHARE, INSTEAD_AT_MOST_SHARE, PRODUCTS_AT_MOST_TIMES

#: Kind of a form -> its remedy, and what is said about it.
_KINDS: Mapping[str, tuple[str, str]] = {
    "order": ("other-order", "{there}A product of {before} is only multiplied on: {after} is enough in the other order"),
    "diagonal": ("scaled-rows", "{there}A product with a diagonal matrix of {before} only scales"),
    "picked": ("classes-as-numbers", "{there}A product with rows of a unit matrix, {before}, only picks rows"),
    "added": ("added-by-number", "{there}A product with turned rows of a unit matrix, {before}, only adds up rows by their number"),
    "blocks": ("blocks-at-once", "{there}A product with blocks of {after} multiplies a matrix of {before}, mostly zeros"),
    "kron": ("factors-in-turn", "{there}A product with the Kronecker product of {after} multiplies a matrix of {before}"),
    "repeated": ("views-for-copies", "{there}A copy of {after} repeats {before}"),
    "transform": ("real-transform", "{there}The whole Fourier transform of real numbers ({before}): {after} are enough"),
    "products": ("sums-by-product", "{there}All products of {before} are written out, {after}, and then summed"),
    "routed": ("rows-to-slots", "{there}Masks of {before} send rows to slots by products, nearly all of them with zeros"),
    "distances": ("distances-by-product", "{there}All differences of {before} are written out, {after}"),
}  # fmt: skip
#: Work of memory in place of products takes at most this share of them; of a transform a half is left, and some kernels more.
_AT_MOST = {
    "diagonal": INSTEAD_AT_MOST_SHARE,
    "picked": INSTEAD_AT_MOST_SHARE,
    "added": ADDED_AT_MOST_SHARE,
    "repeated": INSTEAD_AT_MOST_SHARE,
    "routed": ROUTED_AT_MOST_SHARE,
    "transform": HALF_TRANSFORM_AT_MOST_SHARE,
}


def findings_of(case: Case, rule: Rule, claimed: frozenset[int]) -> list[Finding]:
    """Return a finding for each kind of form that saves 5 % of the step or more; ``claimed``: GPU ops of other findings."""
    flow = flow_of(case.profile)
    forms = [] if flow is None else [*product_forms(flow), *routed_products(flow)]
    if flow is None or not forms:
        return []
    try:
        rates = case.profile.once(limits_of_work.device_rates)
    except NotRecorded:
        return []
    work = work_of_operators(case, flow).filter(~pl.col("op").is_in(list(claimed)))
    by_kind: dict[str, list[ProductForm]] = {}
    for form in forms:
        by_kind.setdefault(form.kind, []).append(form)
    findings = (_found(case, rule, flow, work, forms=of_kind, rates=rates) for of_kind in by_kind.values())
    return [finding for finding in findings if finding is not None]


def _of_forms(work: pl.DataFrame, forms: Sequence[ProductForm]) -> pl.DataFrame:
    """Return the GPU ops that go: op, ns."""
    rows = frozenset().union(*(form.rows for form in forms))
    return work.filter(pl.col("row").is_in(list(rows)))["op", "ns"]


def _least_ns(
    case: Case, flow: OperatorFlow, forms: Sequence[ProductForm], work: pl.DataFrame, rates: DeviceRates
) -> float | None:
    """Return the least time of what comes instead, over all steps and with its gradients; None where the numbers' format is not known."""
    kernels = case.ops.join(_of_forms(work, forms), on="op", how="inner").sort("ns", descending=True)
    formats = kernel_math.number_format(kernels["name"], kernels["family"]).drop_nulls()
    sizes = [
        size for name in kernels["name"].cast(pl.String).unique(maintain_order=True) if (size := types_of(name).size)
    ]
    number_format = formats[0] if len(formats) else FORMAT_OF_SIZE.get(sizes[0]) if sizes else None
    width, rate = OF_FORMAT.get(number_format or ""), rates.products.get(number_format or "")
    if width is None or rate is None:
        return None
    trained, least = trained_of(case.profile), 0.0
    for form in forms:
        moved = rates.memory_ns(width * form.numbers)
        if moved is None:
            return None
        least += (3 if trained[form.at] else 1) * max(form.operations / rate.per_s * 1e9, moved)
    return least * case.steps


def _found(
    case: Case, rule: Rule, flow: OperatorFlow, work: pl.DataFrame, *, forms: Sequence[ProductForm], rates: DeviceRates
) -> Finding | None:
    """Return the finding about forms of one kind, None where they save too little."""
    gone, limit = _of_forms(work, forms), _least_ns(case, flow, forms, work, rates)
    taken = int(gone["ns"].sum())
    if limit is None or not case.notable(case.per_step(taken), REPORTED_SHARE):
        return None
    times = ROUTED_AT_LEAST_TIMES if forms[0].kind == "routed" else 1.0
    most = max(PRODUCTS_AT_MOST_TIMES * limit, _AT_MOST.get(forms[0].kind, 0.0) * taken)
    worth = Instead(gone, times * limit, most, at_limit=times == 1).worth(case)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    of_row, code = dict(work.group_by("row").agg(pl.col("ns").sum()).iter_rows()), case.profile.code()
    dearest = max(forms, key=lambda form: sum(of_row.get(row, 0) for row in form.rows))
    places = {
        form.at: {} if code is None else place_of_operator(code, flow, flow.start_ns[[form.at]]) for form in forms
    }
    made_at = _lines_of_work(code, flow, forms, of_row)
    where, lines = places[dearest.at], _dearest_first({each: ns for each, (ns, _) in made_at.items()})
    remedy, title = _KINDS[dearest.kind]
    cost = case.per_step(taken)
    there_too = f", in {', '.join(lines[:MOST_LINES_NAMED])}" if len(lines) > 1 else ""
    detail = (
        f"{units.duration(cost)} {case.per} with what the gradients launch, {case.share(cost)} of the step"
        f"{there_too}. In the other form the same result takes "
        f"{units.duration(case.per_step(math.ceil(limit)))} at the device's limit."
    )
    there = f"{in_short(where)}: " if where else ""
    return Found(
        rule, title.format(there=there, before=dearest.before, after=dearest.after), detail, worth=worth, cost_ns=cost,
        fix=_fix(case, remedy, forms, places, _left_out(case, made_at)), where=where or None, takes=Takes(ops_of(gone)),
    ).as_finding(case)  # fmt: skip


#: A line of the program: its file and number.
_Line = tuple[str, int]


def _lines_of_work(
    code: CodeLines | None, flow: OperatorFlow, forms: Sequence[ProductForm], of_row: Mapping[int, int]
) -> dict[_Line, tuple[int, bool]]:
    """Return the lines whose work goes, with how much that is (ns) and whether a form itself is there, or only what is made for it."""
    lines = dict[_Line, tuple[int, bool]]()
    named_rows = {form.at for form in forms}
    for row in sorted(frozenset().union(*(form.rows for form in forms))) if code is not None else ():
        assert code is not None
        where = place_of_operator(code, flow, flow.start_ns[[row]]) if of_row.get(row) or row in named_rows else {}
        if where:
            line = str(where["file"]), int(where["line"])
            ns, named = lines.get(line, (0, False))
            lines[line] = ns + of_row.get(row, 0), named or row in named_rows
    return lines


def _dearest_first(lines: Mapping[_Line, int]) -> list[str]:
    """Return lines in short, that with the most work first."""
    ordered = sorted(lines, key=lambda line: (-lines[line], line))
    return list(dict.fromkeys(in_short({"file": file, "line": number}) for file, number in ordered))


def _left_out(case: Case, lines: Mapping[_Line, tuple[int, bool]]) -> str:
    """Return that lines make nothing but what the forms read, which nobody reads then, and which lines; "" where they take little."""
    makers = {line: ns for line, (ns, named) in lines.items() if not named}
    if not case.notable(case.per_step(sum(makers.values()))):
        return ""
    told = list[str]()
    for file in sorted({file for file, _ in makers}):
        numbers = sorted(number for each, number in makers if each == file)
        first = last = numbers[0]
        for number in [*numbers[1:], 0]:
            if number != last + 1:
                told.append(in_short({"file": file, "line": first}) + (f" to {last}" if last > first else ""))
                first = number
            last = number
    return f" Nothing reads the masks then: leave out what makes them ({', '.join(told)})."


def _fix(case: Case, remedy: str, forms: Sequence[ProductForm], places: Mapping[int, Row], left_out: str) -> Fix:
    """Return the remedy, in the names of the program where its lines are those that a form is written out for.

    ``places``: of each form; ``left_out``: what is said of the lines that make masks.
    """
    fix, source = Fix.by_name(remedy), texts(case.profile)
    if forms[0].kind == "transform":
        paste = _transform_pastes.halved(_statements(case, forms, places))
        return fix.but(paste=paste or None)
    if forms[0].kind != "routed":
        return fix
    lines = [
        (text_of(source, each["file"], each["line"]) if (each := places[form.at]) else None, form) for form in forms
    ]
    paste = _routed_pastes.moved_rows(lines)
    if _routed_pastes.has_no_places(forms[0]):
        return fix.but(text=_BY_NUMBER, paste=paste, condition=f"{_NUMBERED}{left_out}")
    grouped = forms[0].before.count(" x ") > 2
    return fix.but(paste=paste, condition=f"{fix.condition}{_OF_GROUPS if grouped else ''}{left_out}")


def _statements(case: Case, forms: Sequence[ProductForm], places: Mapping[int, Row]) -> dict[int, str]:
    """Return the lines (number -> text) of the first form's file in which operators of the forms are."""
    flow, code, source = flow_of(case.profile), case.profile.code(), texts(case.profile)
    where, statements = places[forms[0].at], dict[int, str]()
    for row in (
        sorted(frozenset().union(*(form.rows for form in forms))) if flow is not None and code is not None else ()
    ):
        assert flow is not None
        assert code is not None
        each = place_of_operator(code, flow, flow.start_ns[[row]])
        if each and where and each["file"] == where["file"]:
            statements[int(each["line"])] = text_of(source, each["file"], each["line"]) or ""
    return statements


#: What masks of several groups of tokens need besides; and what is said of masks of rows and numbers alone.
_OF_GROUPS = " Flatten the groups of tokens first, and count on the experts from one group to the next."
_BY_NUMBER = "Move rows by their numbers: products with a mask of weighed one-hot rows multiply by zeros"
_NUMBERED = "number and weight: of each row where it belongs, and what it counts there; n: how many there are. Sums have no fixed order."
