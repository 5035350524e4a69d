"""Products of matrices that another form gives with less work (``events.product_forms``): what they take, and what comes instead."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import limits_of_work
from nsysx.analyses.lines import text_of, texts
from nsysx.events import kernel_math
from nsysx.events.code_lines import CodeLines
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.product_forms import ProductForm, product_forms
from nsysx.events.profile import NotRecorded
from nsysx.events.routing_masks import routed_products, unit_rows
from nsysx.events.trained_operators import trained_of
from nsysx.findings import _routed_pastes, _transform_pastes
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._instead import FORMAT_OF_SIZE, Instead
from nsysx.findings._once import Takes
from nsysx.findings._pieces_in_text import whole_statement
from nsysx.findings._routing_names import RoutingNames, routing_names
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
        paste = _transform_pastes.halved(
            _statements(case, frozenset().union(*(form.rows for form in forms)), places[forms[0].at])
        )
        return fix.but(paste=paste or None)
    if forms[0].kind != "routed":
        return fix
    lines = [
        (text_of(source, each["file"], each["line"]) if (each := places[form.at]) else None, form) for form in forms
    ]
    if _routed_pastes.has_no_places(forms[0]):
        return fix.but(text=_BY_NUMBER, paste=_routed_pastes.moved_rows(lines), condition=f"{_NUMBERED}{left_out}")
    names = _routing_names(case, forms, places)
    if names:
        computed = _computed(source, forms, places)
        paste = _routed_pastes.moved_rows(lines, names, computed)
        return fix.but(paste=paste, condition=f"{'' if computed else _STAYS}{left_out}".strip())
    paste = _routed_pastes.moved_rows(lines)
    grouped = forms[0].before.count(" x ") > 2
    return fix.but(paste=paste, condition=f"{fix.condition}{_OF_GROUPS if grouped else ''}{left_out}")


def _routing_names(case: Case, forms: Sequence[ProductForm], places: Mapping[int, Row]) -> RoutingNames | None:
    """Return what the program calls what it makes the masks of, None where its lines do not tell, or are not of one function."""
    flow, code, where = flow_of(case.profile), case.profile.code(), places[forms[0].at]
    if flow is None or code is None or not where:
        return None
    rows, classes = frozenset().union(*(form.rows for form in forms)), dict[int, int]()
    of_units = unit_rows(flow, rows)
    functions = {_function_of(code, flow, row) for row in [*of_units, *(form.at for form in forms)]}
    if len(functions) != 1 or None in functions:
        return None
    for row, number in of_units.items():
        line = int(place_of_operator(code, flow, flow.start_ns[[row]])["line"])
        if classes.setdefault(line, number) != number:
            return None
    there = [row for row in rows if _function_of(code, flow, row) in functions]
    return routing_names(_statements(case, there, where), classes, forms[0].before)


def _function_of(code: CodeLines, flow: OperatorFlow, row: int) -> tuple[str, str] | None:
    """Return the function (file and name) in whose line an operator is, None where that is not known."""
    at_work = int(code.places_of(code.at(flow.thread, flow.start_ns[[row]]))[0])
    file, name = (code.places[column][at_work] if at_work >= 0 else None for column in ("file", "function"))
    return (str(file), str(name)) if file is not None and name is not None else None


def _computed(source: Mapping[str, Any], forms: Sequence[ProductForm], places: Mapping[int, Row]) -> list[str]:
    """Return the program's lines between the product that sends rows and the one that brings them back, if they are few and all known."""
    there, back = (
        {
            (where["file"], int(where["line"]))
            for form in forms
            if form.sums_tokens is sends and (where := places[form.at])
        }
        for sends in (True, False)
    )
    if len(there) != 1 or len(back) != 1:
        return []
    ((file, first),), ((other, last),) = there, back
    if file != other or not 0 < last - first - 1 <= MOST_LINES_NAMED:
        return []
    lines = [(text_of(source, file, number) or "").strip() for number in range(first + 1, last)]
    return lines if all(line and whole_statement(line) is not None for line in lines) else []


def _statements(case: Case, rows: Iterable[int], where: Row) -> dict[int, str]:
    """Return the lines (number -> text) of a place's file in which these operators are."""
    flow, code, source = flow_of(case.profile), case.profile.code(), texts(case.profile)
    statements = dict[int, str]()
    for row in sorted(rows) if flow is not None and code is not None else ():
        assert flow is not None
        assert code is not None
        each = place_of_operator(code, flow, flow.start_ns[[row]])
        if each and where and each["file"] == where["file"]:
            statements[int(each["line"])] = text_of(source, each["file"], each["line"]) or ""
    return statements


#: What is said where the lines are in the program's own names.
_STAYS = "What the experts compute stays, between the two."
#: What masks of several groups of tokens need besides; and what is said of masks of rows and numbers alone.
_OF_GROUPS = " Flatten the groups of tokens first, and count on the experts from one group to the next."
_BY_NUMBER = "Move rows by their numbers: products with a mask of weighed one-hot rows multiply by zeros"
_NUMBERED = "number and weight: of each row where it belongs, and what it counts there; n: how many there are. Sums have no fixed order."
