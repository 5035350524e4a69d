"""Lines whose kernels only move memory: what their change saves, by kinds of such work and by what stands at a line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses import lines
from nsysx.catalogue import Call
from nsysx.events.code_lines import CodeLines
from nsysx.events.kernel_libraries import INDUCTOR, library_of
from nsysx.findings import (
    _converted_addends,
    _copied_rows,
    _edge_messages,
    _einsum_orders,
    _enlarged_logits,
    _grown_by_cat,
    _grown_rows,
    _grown_sequences,
    _ignored_targets,
    _joined_parts,
    _kept_by_masks,
    _lighter_operators,
    _low_rank_weights,
    _masked_positions,
    _nearest_pairs,
    _neighbour_orders,
    _neighbour_searches,
    _pooled_rows,
    _product_forms,
    _promoted_arithmetic,
    _reordered_rows,
    _row_matrices,
    _sampled_layers,
    _sampled_levels,
    _shared_factors,
    _smaller_operators,
    _solved_systems,
    _taken_pieces,
    _threshold_counts,
    _triple_cubes,
    _unwritten_keys,
    _written_parts,
)
from nsysx.findings._case import Case, Fix, Rule, Saving, ops_of
from nsysx.findings._class_pastes import compared_classes
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._found import Found
from nsysx.findings._function_texts import lines_of_function
from nsysx.findings._instead import Instead, instead
from nsysx.findings._line_remedies import quoted
from nsysx.findings._needs import DIFFERENTIATED_ONCE
from nsysx.findings._once import Claim, Takes
from nsysx.findings._sorted_pastes import largest_for_sort, rank_of_sorted
from nsysx.findings._token_logps import picked_of_logits
from nsysx.findings._work_bounds import LINES_APART
from nsysx.findings._work_remedies import WorkKind, kinds_of
from nsysx.findings.nsx112_fusion import chains_among, of_networks
from nsysx.frames import lookup
from nsysx.model import Finding
from nsysx.replay.engine import RemoveOps
from nsysx.roofline.element_types import converts_types

#: Kernels that compute little for what they move.
_MOVING = (
    "elementwise",
    "norm",
    "reduction",
    "random",
    "softmax and loss",
    "copy",
    "sort, scan and gather",
    "embedding",
)
#: Phases that have rules of their own.
_OTHER_PHASES = ("optimizer", "zero_grad", "clip")


#: What is said of a softmax's logarithm of which one number of each row is read.
_PICKED = (
    "Take the logarithm of the softmax for the tokens that are read alone, in one compiled function: log_softmax writes it for all of the "
    "vocabulary, in float32, and gather's backward fills as much with zeros"
)


#: What is said of a sort of which few are read, and how many is known.
_FEW = "Take the few that are read by torch.topk: sorting puts all in order for them"

#: What a line reads of the logarithm of a softmax for a loss, or for what is like one: that of targets.
_OF_TARGETS = re.compile(r"gather\(|take_along_dim|nll_loss|cross_entropy|one_hot|kl_div")


class _Group(NamedTuple):
    """Lines of one function: file, numbers and text, first the one that the remedy is for; their kernels: op, ns, family, line; what
    comes in place of their work, None where that is not known.
    """

    file: str
    function: str
    lines: list[int]
    texts: list[str]
    kernels: pl.DataFrame
    kind: WorkKind
    replaced: Instead | None = None


class _Line(NamedTuple):
    """A line of a file: its number, what stands there, and its function."""

    number: int
    text: str
    function: str


def findings_of(case: Case, rule: Rule, code: CodeLines) -> list[Finding]:
    """Return a finding for each group of lines whose change saves 5 % of the step or more."""
    grown = [*_grown_by_cat.findings_of(case, rule), *_grown_rows.findings_of(case, rule)]
    grown += [*_grown_sequences.findings_of(case, rule), *_reordered_rows.findings_of(case, rule)]
    grown += [*_pooled_rows.findings_of(case, rule), *_kept_by_masks.findings_of(case, rule)]
    grown += [*_written_parts.findings_of(case, rule), *_taken_pieces.findings_of(case, rule)]
    grown += [*_neighbour_searches.findings_of(case, rule), *_lighter_operators.findings_of(case, rule)]
    masked = _masked_positions.findings_of(case, rule)
    grown += [*_enlarged_logits.findings_of(case, rule), *masked]
    grown += _ignored_targets.findings_of(case, rule, _ops_of(masked))
    grown += [*_converted_addends.findings_of(case, rule), *_unwritten_keys.findings_of(case, rule)]
    grown += [*_nearest_pairs.findings_of(case, rule), *_sampled_levels.findings_of(case, rule)]
    grown += [*_edge_messages.findings_of(case, rule), *_triple_cubes.findings_of(case, rule)]
    grown += [*_threshold_counts.findings_of(case, rule), *_promoted_arithmetic.findings_of(case, rule)]
    groups = _groups(case, code, _ops_of(grown))
    findings = [*grown, *(f for group in groups if (f := _found(case, rule, group)) is not None)]
    sampled, seeds = _sampled_layers.findings_of(case, rule)
    findings += [
        *sampled,
        *_smaller_operators.findings_of(case, rule, seeds),
        *_neighbour_orders.findings_of(case, rule),
    ]
    findings += [*_copied_rows.findings_of(case, rule), *_row_matrices.findings_of(case, rule)]
    findings += [*_joined_parts.findings_of(case, rule), *_einsum_orders.findings_of(case, rule)]
    factorized = _shared_factors.findings_of(case, rule)
    findings += [*factorized, *_solved_systems.findings_of(case, rule, _ops_of(factorized))]
    findings += _low_rank_weights.findings_of(case, rule)
    findings += _product_forms.findings_of(case, rule, _ops_of(findings))
    return findings


def _ops_of(findings: Sequence[Finding]) -> frozenset[int]:
    """Return the GPU ops that findings claim."""
    return frozenset[int]().union(*(f.takes.ops for f in findings if isinstance(f, Claim)))


def _groups(case: Case, code: CodeLines, claimed: frozenset[int]) -> Iterator[_Group]:
    """Return the lines with much such work: those outside of networks by what they are part of, inside those with a known remedy.

    ``claimed``: GPU ops of other findings.
    """
    texts = {(r["file"], r["line"]): str(r["text"] or "") for r in case.typed_rows(lines.ROWS)}
    kernels = _moving(case, code)
    kernels = kernels.filter(~pl.col("op").is_in(list(claimed)))
    told = _grown_by_cat.tells(case)
    # Inside of networks a line counts by itself or with others of its kind, whatever function it is in.
    purpose = pl.when("inside").then(pl.lit("")).otherwise("function").alias("purpose")
    for (file, _, inside), part in kernels.group_by("file", purpose, "inside", maintain_order=True):
        by_line = part.group_by("line").agg(pl.col("ns").sum()).sort("line")
        replayed = 2 * int(part.filter("graph")["ns"].sum()) > int(
            part["ns"].sum()
        )  # captured elsewhere: the line only launches them
        of_line = dict(by_line.iter_rows())
        function_of = dict(part["line", "function"].iter_rows())
        for numbers in _blocks(list(of_line)):
            if not case.notable(case.per_step(sum(of_line[n] for n in numbers)), REPORTED_SHARE):
                continue
            ranked = [
                _Line(n, texts.get((file, n), ""), function_of[n]) for n in sorted(numbers, key=lambda n: -of_line[n])
            ]
            for kind, index in kinds_of([line.text for line in ranked], outside=not inside, trains=case.program.trains):
                if kind.remedy == _grown_by_cat.BY_TEXT and told:
                    continue
                if kind.remedy == "compile-function" and (replayed or DIFFERENTIATED_ONCE.test(case)[0] == "violated"):
                    continue
                chosen = _chosen(kind, ranked, ranked[index], inside=inside)
                if not case.notable(case.per_step(sum(of_line[line.number] for line in chosen)), REPORTED_SHARE):
                    continue
                numbers_of = [line.number for line in chosen]
                work = part.filter(pl.col("line").is_in(numbers_of))
                if kind.remedy == "fused-loss" and not (replayed or _of_a_loss(case, chosen, work)):
                    continue
                replaced = instead(case, kind.remedy, work)
                if replaced is not None and not replaced.fits:
                    continue
                yield _Group(
                    str(file),
                    str(chosen[0].function),
                    lines=numbers_of,
                    texts=[line.text for line in chosen],
                    kernels=work,
                    kind=kind,
                    replaced=replaced,
                )
                break


def _of_a_loss(case: Case, chosen: Sequence[_Line], work: pl.DataFrame) -> bool:
    """Return whether lines with the logarithm of a softmax make a loss, not metrics: backward goes through it, or it is that of targets."""
    differentiated = not case.program.trains or bool(work["backward"].any())
    return differentiated or any(_OF_TARGETS.search(line.text) for line in chosen)


def _chosen(kind: WorkKind, lines_near: Sequence[_Line], first: _Line, *, inside: bool) -> list[_Line]:
    """Return the line that a remedy is for, and those near it that go with it; none where what it needs stands in none of them."""
    beside = (
        line
        for line in lines_near
        if line is not first and kind.goes_with(line.text, inside=inside, of_function=line.function == first.function)
    )
    chosen = [first, *beside]
    return chosen if any(re.search(kind.needs, line.text) for line in chosen) else []


def _blocks(numbers: list[int]) -> list[list[int]]:
    """Return the numbers of lines, in order, in blocks of those that lie close together."""
    blocks: list[list[int]] = []
    for number in numbers:
        if blocks and number - blocks[-1][-1] <= LINES_APART:
            blocks[-1].append(number)
        else:
            blocks.append([number])
    return blocks


def _moving(case: Case, code: CodeLines) -> pl.DataFrame:
    """Return the kernels that move memory, of lines that are known: op, ns, family, file, line, function, inside (a network),
    graph, backward.

    ``graph``: a CUDA graph was launched, and which line captured the kernel is not known.
    """
    ops = case.ops
    phase = ops["phase"].cast(pl.String)
    chosen = (ops["op_kind"] == "kernel") & ops["family"].cast(pl.String).is_in(_MOVING).fill_null(value=False)
    chosen &= ~phase.is_in(_OTHER_PHASES).fill_null(value=False)
    # What a compiler wrote is fused already, whatever line called it.
    chosen &= (library_of(ops["name"].cast(pl.Categorical)) != INDUCTOR).fill_null(value=True)
    line_row = code.places_of(code.op[ops["op"].to_numpy()])
    kernels = ops.select("op", pl.col("family").cast(pl.String), ns=pl.col("end_ns") - pl.col("start_ns"))
    launched = lookup.at(case.profile.attributed.api_calls["kind"], ops["call"].fill_null(-1).to_numpy())
    kernels = kernels.with_columns(
        graph=(launched == Call.GRAPH_LAUNCH).fill_null(value=False),
        backward=(phase == "backward").fill_null(value=False),
        place=pl.Series(line_row),
        inside=pl.Series(of_networks(case.profile, ops)),
    )
    places = code.places.with_row_index("place").with_columns(pl.col("place").cast(pl.Int64))
    return kernels.filter(chosen).join(places, on="place", how="inner", maintain_order="left").drop_nulls("line")


def _found(case: Case, rule: Rule, group: _Group) -> Finding | None:
    """Return the finding about lines, None where their change saves too little."""
    replaced = group.replaced
    gone = _gone(case, group) if replaced is None else replaced.gone
    worth = Saving() if replaced is None else replaced.worth(case)
    if worth.likely_ns is None:
        worth = case.worth_or_time(
            case.per_step(int(gone["ns"].sum())), "the kernels that go", RemoveOps(ops_of(gone)), cause=rule.cause
        )
    if worth.likely_ns is None or not case.notable(worth.likely_ns, REPORTED_SHARE):
        return None
    if group.kind.remedy == "compile-function":
        worth = _with_narrow_ends(worth, case.per_step(_narrow_ns(case, group)))
    taken = case.per_step(int(group.kernels["ns"].sum()))
    first, last = min(group.lines), max(group.lines)
    there = f"{PurePath(group.file).name}:{first}{f'-{last}' if last > first else ''}"
    text = group.texts[0].partition("  #")[0]
    title = (
        f"{there} {group.function} moves memory for {units.duration(taken)} {case.per}, {case.share(taken)} of the step"
    )
    detail = (
        f"{group.kernels.height / case.steps:.0f} kernels of {'these lines' if last > first else 'this line'} and of their backward "
        f"compute little and move much{f': `{quoted(text)}`' if text else ''}. "
        f"{units.duration(case.per_step(int(gone['ns'].sum())))} of that is avoidable."
    )
    evidence = [
        {"file": group.file, "line": number, "total_ns": case.per_step(ns)}
        for number, ns in group.kernels.group_by("line").agg(pl.col("ns").sum()).sort("line").iter_rows()
    ]
    return Found(
        rule,
        title,
        detail,
        worth=worth,
        cost_ns=taken,
        fix=_fix_here(case, group),
        where={"file": group.file, "line": group.lines[0]},
        evidence=evidence,
        takes=Takes(ops_of(group.kernels)),
    ).as_finding(case)


def _fix_here(case: Case, group: _Group) -> Fix:
    """Return the remedy; a function that is to be compiled is compiled by its own name, but for one that holds the whole program."""
    fix, rows = _fix_of(group), None
    if group.kind.remedy == "largest-for-sort":
        return _few_in_names(case, group, fix)
    if group.kind.remedy in ("compile-function", "fused-loss"):
        rows = _ignored_targets.perhaps_ignored(case, group.texts)
    return fix if rows is None else Fix.by_name(*fix.ways, rows, paste=fix.paste)


#: What must hold where the line is told in its own names.
_AS_MANY = "A row must have as many; of equal values the index of another one may be taken."


def _few_in_names(case: Case, group: _Group, fix: Fix) -> Fix:
    """Return the advice not to sort in the names of the line, where its function shows how many are read."""
    paste = largest_for_sort(
        lines_of_function(case.profile, group.file, group.lines[0]),
        group.lines[0],
        rank_of_sorted(case, group.kernels),
    )
    return fix.but(text=_FEW, paste=paste, condition=_AS_MANY) if paste else fix


def _fix_of(group: _Group) -> Fix:
    """Return the remedy of lines, whatever their labels are."""
    fix, called = Fix.by_name(group.kind.remedy), group.function
    if group.kind.remedy == "fused-loss" and (picked := picked_of_logits(group.texts)):
        return fix.but(text=_PICKED, paste=picked)
    if group.kind.remedy == "classes-compared":
        return fix.but(paste=compared_classes(group.texts[0], called))
    named = re.fullmatch(r"(?!main$)[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", called)
    if group.kind.remedy != "compile-function" or named is None:
        return fix
    # A method may well be part of the model: what matters is that no compiler has seen it.
    text = "Fuse this function, which is not compiled" if "." in called else None
    return fix.but(text=text, paste=f"{called} = torch.compile({called})")


def _with_narrow_ends(worth: Saving, more_ns: int) -> Saving:
    """Return a saving by the longest kernels of chains that may be so much larger (ns)."""
    if worth.likely_ns is None or not more_ns:
        return worth
    least = max(0, worth.likely_ns - (worth.error_ns or 0))
    most = max(worth.likely_ns, worth.most_ns or 0) + more_ns
    why = "between its longest kernels and what its conversions move"
    return replace(worth.between(least, most, why), scope=worth.scope)


def _narrow_ns(case: Case, group: _Group) -> int:
    """Return by how much chains in which numbers are converted may be shorter than their longest kernel (ns in all steps).

    In one kernel they come or go as they are before it or behind it: no more moves than the conversion does, however many others there
    are. Of a loss over 49,152 words (H200) two such chains take 10.3 ms, 4.1 ms less by their longest kernels, and 8.0 ms less compiled.
    """
    chains = _chains(case, group).join(case.ops["op", "name"], on="op", maintain_order="left")
    names, name = lookup.distinct(chains["name"])
    converts = np.array([n is not None and converts_types(n) for n in names], np.bool_)[name]
    runs = chains.with_columns(converted=pl.when(pl.Series(converts)).then("ns")).group_by("run")
    return int(runs.agg(pl.col("ns").max() - pl.col("converted").min().fill_null(pl.col("ns").max()))["ns"].sum())


def _chains(case: Case, group: _Group) -> pl.DataFrame:
    return chains_among(case.profile, np.isin(case.ops["op"].to_numpy(), group.kernels["op"].to_numpy()))


def _gone(case: Case, group: _Group) -> pl.DataFrame:
    """Return the kernels that are not needed with the remedy: op, ns."""
    if group.kind.stays is not None:
        return group.kernels.filter(~pl.col("family").is_in(group.kind.stays))["op", "ns"]
    return _chains(case, group).filter(~pl.col("longest"))["op", "ns"]
