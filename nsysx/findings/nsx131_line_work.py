"""NSX131 line-work: lines of the program whose kernels only move memory take a large part of the GPU's work.

What it means
    A loss, an augmentation, a metric or an average that is written out in elementwise operations reads and writes its tensors once
    for each of them. For logits over a large vocabulary each pass moves as many bytes as the weights of the model.
    torch.compile(model) does not reach what runs outside of the model. Often one function of torch does the same in one pass.
    Operators that are larger than their result needs are told, too: a head that computes every position, of which only the last
    is read, or channels that are resampled before they are mixed. So are tensors that a loop makes longer by torch.cat, which copies all
    that is there for each part that comes: caches, histories, windows, buffers; and tensors that it fills part by part under autograd,
    whose backward copies all of the gradient for each part; and layers or networks that compute all rows again for each that comes.
    Tensors of which a loop takes pieces one by one (w[e], x[:, t]) are told likewise: backward makes a gradient of the whole for each.
    Attention that a loop calls for each document of a packed sequence is told, too, and a random order of all for few numbers of it.
    So is work on copies of rows, f(x[index]), that the rows need once, f(x)[index]: layers on edges of a graph, on repeated states.
    So is attention over the whole room of a cache of keys and values, of which few were written.
    So are caches that a beam search puts in another order for each token, though most of their rows are the same in all beams.
    So are networks, heads or experts that each compute all rows, of which a mask keeps those of one group.
    So are weights that each call puts together of a frozen one and a product of small rank (LoRA), whose gradients are made whole.
    So are layers on joined rows, layer(cat([a, b])), of which a part is a copy of fewer rows: a sum of two layers needs these once.
    So is torch.einsum of three or more tensors whose first two make a large one.
    So are heads that make logits for positions whose labels the loss ignores (prompts, padding), where the loader's batches show these.
    So are tensors that are converted only to be added to one of another type, as gradients to sums in float32.
    So are layers of a graph network that compute all nodes of a sampled subgraph, of which the seeds are read.
    So is deformable attention in operators of torch, where a library's kernel was not built.
    So are losses of the nearest points whose gradients go through the distances of all pairs.
    So are cubes of all triples of samples, of which a mask of classes keeps few.
    So are messages of a graph's edges that are written out and added up, where a sparse product adds as it reads.
    So are products with masks of experts and places, nearly all zeros, that send rows of tokens to their slots and back.

In the trace
    Elementwise, reduction and copy kernels that one function of the program launches, in its forward and for its backward. A line
    inside a network counts only if what it calls has a better form that is known.

Bad
    target = F.one_hot(target, classes).float()            # rows of zeros, in int64 and once more in float32
    loss = -(target * F.log_softmax(logits, -1)).sum(-1).mean()

Good
    loss = F.cross_entropy(logits, target, label_smoothing=0.1)

Harmless when
    The tensors are small, or what is written out has no shorter form.
"""

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
from nsysx.catalogue import Call, StepLimit, StepPart
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
    _nearest_pairs,
    _neighbour_orders,
    _neighbour_searches,
    _pooled_rows,
    _product_forms,
    _reordered_rows,
    _row_matrices,
    _sampled_layers,
    _sampled_levels,
    _shared_factors,
    _smaller_operators,
    _solved_systems,
    _taken_pieces,
    _triple_cubes,
    _unwritten_keys,
    _written_parts,
)
from nsysx.findings._case import Case, Fix, Rule, Saving, ops_of
from nsysx.findings._class_pastes import compared_classes
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._found import Found
from nsysx.findings._instead import Instead, instead
from nsysx.findings._line_remedies import quoted
from nsysx.findings._needs import DIFFERENTIATED_ONCE
from nsysx.findings._once import Claim, Takes
from nsysx.findings._token_logps import picked_of_logits
from nsysx.findings._work_bounds import LINES_APART
from nsysx.findings._work_remedies import WorkKind, kinds_of
from nsysx.findings.nsx112_fusion import chains_among, of_networks
from nsysx.frames import lookup
from nsysx.model import Finding
from nsysx.replay.engine import RemoveOps
from nsysx.roofline.element_types import converts_types

RULE = Rule(
    "NSX131",
    "line-work",
    "Work of lines that only moves memory",
    cause=(StepPart.WORK,),
    about=StepLimit.GPU,
    leads=True,
    rests_on="The operators of these lines were recorded",
)
REQUIRES = ("steps", "kernels")
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


def check(case: Case) -> list[Finding]:
    """Return a finding for each group of lines whose change saves 5 % of the step or more."""
    code = case.profile.code()
    if code is None:
        return case.cannot_tell(RULE, "which line launches a kernel was not recorded", "nsysx run -- CMD")
    grown = [*_grown_by_cat.findings_of(case, RULE), *_grown_rows.findings_of(case, RULE)]
    grown += [*_grown_sequences.findings_of(case, RULE), *_reordered_rows.findings_of(case, RULE)]
    grown += [*_pooled_rows.findings_of(case, RULE), *_kept_by_masks.findings_of(case, RULE)]
    grown += [*_written_parts.findings_of(case, RULE), *_taken_pieces.findings_of(case, RULE)]
    grown += [*_neighbour_searches.findings_of(case, RULE), *_lighter_operators.findings_of(case, RULE)]
    grown += [*_enlarged_logits.findings_of(case, RULE), *_ignored_targets.findings_of(case, RULE)]
    grown += [*_converted_addends.findings_of(case, RULE), *_unwritten_keys.findings_of(case, RULE)]
    grown += [*_nearest_pairs.findings_of(case, RULE), *_sampled_levels.findings_of(case, RULE)]
    grown += [*_edge_messages.findings_of(case, RULE), *_triple_cubes.findings_of(case, RULE)]
    groups = _groups(case, code, _ops_of(grown))
    findings = [*grown, *(f for group in groups if (f := _found(case, group)) is not None)]
    sampled, seeds = _sampled_layers.findings_of(case, RULE)
    findings += [
        *sampled,
        *_smaller_operators.findings_of(case, RULE, seeds),
        *_neighbour_orders.findings_of(case, RULE),
    ]
    findings += [*_copied_rows.findings_of(case, RULE), *_row_matrices.findings_of(case, RULE)]
    findings += [*_joined_parts.findings_of(case, RULE), *_einsum_orders.findings_of(case, RULE)]
    factorized = _shared_factors.findings_of(case, RULE)
    findings += [*factorized, *_solved_systems.findings_of(case, RULE, _ops_of(factorized))]
    findings += _low_rank_weights.findings_of(case, RULE)
    findings += _product_forms.findings_of(case, RULE, _ops_of(findings))
    return findings or case.clear(
        RULE, f"no lines whose kernels only move memory can save {units.bound(REPORTED_SHARE)} of the step"
    )


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
    """Return the kernels that move memory, of lines that are known: op, ns, family, file, line, function, inside (a network), graph.

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
        place=pl.Series(line_row),
        inside=pl.Series(of_networks(case.profile, ops)),
    )
    places = code.places.with_row_index("place").with_columns(pl.col("place").cast(pl.Int64))
    return kernels.filter(chosen).join(places, on="place", how="inner", maintain_order="left").drop_nulls("line")


def _found(case: Case, group: _Group) -> Finding | None:
    """Return the finding about lines, None where their change saves too little."""
    replaced = group.replaced
    gone = _gone(case, group) if replaced is None else replaced.gone
    worth = Saving() if replaced is None else replaced.worth(case)
    if worth.likely_ns is None:
        worth = case.worth_or_time(
            case.per_step(int(gone["ns"].sum())), "the kernels that go", RemoveOps(ops_of(gone)), cause=RULE.cause
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
        RULE,
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
    if group.kind.remedy in ("compile-function", "fused-loss"):
        rows = _ignored_targets.perhaps_ignored(case, group.texts)
    return fix if rows is None else Fix.by_name(*fix.ways, rows, paste=fix.paste)


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
