"""NSX105 exposed-copy: copies between host and device that no kernel hides.

What it means
    A copy from pageable memory goes through a staging buffer at half the speed or less and blocks the CPU; on the kernels'
    own stream it also makes them wait. From pinned memory, with non_blocking=True and on a separate stream, the next batch
    is copied while the GPU works on this one, and the copy costs nothing.

In the trace
    MemcpyHtoD with source "pageable" and a long cudaMemcpyAsync over it, and no kernel at the same time.

Bad
    x = batch.to("cuda")

Good
    loader = DataLoader(data, pin_memory=True, ...)
    with torch.cuda.stream(copy_stream):                    # while the previous batch is worked on
        upcoming = batch.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(copy_stream)

Harmless when
    It is small, happens once, or overlaps a kernel.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses import copy_sites, gpu_ledger, lines
from nsysx.analyses.helpers import shared_columns
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import Call, StepLimit, StepPart
from nsysx.events.recorded_settings import settings_of
from nsysx.findings import _copied_tables, _copied_weights, _grown_copies, _picked_tables, _unpinned_batches
from nsysx.findings._case import SITE, Case, Fix, Rule, Saving, calls_of, ops_of, way
from nsysx.findings._checked_rounds import is_check
from nsysx.findings._copied_of_few import told_by_few
from nsysx.findings._fields_at_once import fields_at_once
from nsysx.findings._finding_bounds import (
    ALL_COPIES_SHARE,
    HIDING_KERNELS_SHARE,
    MADE_ON_CPU_SHARE,
    MOST_COPY_PLACES,
    MOST_SHARE,
    MUCH_READ_BACK_BYTES,
)
from nsysx.findings._found import Found
from nsysx.findings._host_metrics import calls_of_metrics
from nsysx.findings._needs import PAGEABLE, numbers_copied, step_of
from nsysx.findings._once import Takes, began_in
from nsysx.findings._rates_on_gpu import reads_by_parameter
from nsysx.findings._rounds_of_their_own import are_of_rounds
from nsysx.frames import lookup
from nsysx.model import Finding, Row
from nsysx.replay.edits import pinned_rate
from nsysx.replay.engine import Edit, OverlapCopies, RemoveHost, RemoveOps, RemoveWaits

RULE = Rule(
    "NSX105",
    "exposed-copy",
    "Pageable or unoverlapped copies",
    cause=(StepPart.COPY,),
    about=StepLimit.COPY,
    tries=("pin-memory", "non-blocking", "pinned-copies", "bound-data"),
)
REQUIRES = ("copy_sites",)
_AHEAD = Fix.by_name("copy-ahead")
_SOONER = _AHEAD.but(
    text="Launch the copy of the next batch before the kernels of this one: it has pinned memory and a stream of its own already, but no "
    "kernel is queued to run beside it"
)
#: Copies to pinned memory that nothing waits for: what is left is the stream on which they are, and when they begin.
_OUT_ON_A_STREAM = Fix.by_name("copy-out-on-a-stream")
_OUT_BESIDE = Fix(
    "Launch the next kernels before these copies end: they are pinned and on their own stream already, but no kernel is "
    "queued to run beside them"
)
_READ_LATER = Fix.by_name("read-later")
_PIN = Fix.by_name(
    way(
        "pin-memory,copy-ahead",
        "Pin the memory (pin_memory=True), and copy the next batch with non_blocking=True on a separate stream",
        f"{way('pin-memory').paste}\n{_AHEAD.paste}",
        _AHEAD.condition,
    ),
    needs=(PAGEABLE,),
)
_MAKE = Fix.by_name(
    "made-on-gpu",
    way("pinned-copies", paste=""),
    text="Create this data on the GPU (torch.randn, randint, randperm and indexing take device='cuda'); pin what must come from the CPU "
    "(tensor.pin_memory(), DataLoader(pin_memory=True)) and copy it with non_blocking=True",
    condition="Keep a pinned tensor until its copy is done.",
    needs=(PAGEABLE,),
)
#: The same where the GPU does not wait for the data itself: it lies in memory already.
_PIN_ONCE = Fix.by_name("pinned-copies", needs=(PAGEABLE,))
#: The parts of the verdict that belong to the host.
_HOST = (StepPart.SYNC, StepPart.HOST, StepPart.LAUNCH)
#: Ranges in which FSDP gathers the parameters of a module.
_FSDP = r"\bFSDP|fully_shard"
#: Phases in which no batch is copied.
_NO_BATCH = ("backward", "optimizer")
_OBSTACLES = {
    "pageable": "the memory is pageable",
    "sync_after": "the CPU waits right afterwards",
    "same_stream": "copies and kernels share a stream",
    "nothing_beside": "no kernel is queued to run meanwhile",
}
_SELECT = "Select or reduce on the GPU"
_WAYS = {"HtoD": "to the GPU", "DtoH": "to the host"}


def check(case: Case) -> list[Finding]:
    """Return a finding per place whose copies are exposed, or make the GPU idle, for 1 % of the step or more."""
    rows, full = case.typed_rows(copy_sites.ROWS), _always_copying(case)
    findings = _of_places(case, rows, full) if rows else []
    if full and not findings:
        return case.clear(
            RULE, "copies keep the link between host and GPU busy all the time: only fewer bytes would help"
        )
    return findings or case.clear(RULE, "exposed copies take less than 1 % of the step at every place")


def _of_places(case: Case, rows: Sequence[copy_sites.CopySiteRow], full: bool) -> list[Finding]:
    copies = case.timed_ops(
        case.ops["op_kind"] == "memcpy", "op", "call", "name", "src_kind", "dst_kind", "module", "phase"
    )
    copies = copies.with_columns(
        pl.col("name").alias("direction"), shared_columns.memory("src_kind"), shared_columns.memory("dst_kind")
    )
    copies = case.with_lines(copies)
    waits = case.profile.ledgers.waits
    after = case.upload_waits.join(waits, on="call", how="inner", maintain_order="left").with_columns(
        pl.sum_horizontal("backlog_ns", "own_op_ns", "host_ns").alias("wait_ns")
    )
    findings: list[Finding] = []
    of_metrics = calls_of_metrics(case)
    for row in rows:
        if (
            row["direction"] not in ("HtoD", "DtoH")
            or not row["obstacle"]
            or len(findings) == MOST_COPY_PLACES
            or is_check(case.profile, row)
        ):
            continue
        if row["obstacle"] == "nothing_beside" and full:  # no kernel that runs beside a copy makes the link faster
            continue
        at_site = copies.filter(lookup.same_values(row, ("direction", "src_kind", "dst_kind", *SITE)))
        if (
            calls_of(at_site) and calls_of(at_site) <= of_metrics
        ):  # NSX123 tells them with the work that the host does with what they bring
            continue
        if reads_by_parameter(case, calls_of(at_site)) or are_of_rounds(case.profile, calls_of(at_site)):
            continue
        syncs = after.filter(pl.col("copy").is_in(at_site["call"].drop_nulls().implode()))
        exposed = case.per_step(row["exposed_ns"])
        held = case.per_step((row["api_ns"] or 0) + int(syncs["wait_ns"].sum()))
        # A call that blocks the CPU costs nothing while the GPU has work.
        holding = waits.filter(pl.col("call").is_in([*at_site["call"].drop_nulls(), *syncs["call"]]))
        if not case.notable(max(exposed, case.per_step(int(holding["idle_caused_ns"].sum())))):
            continue
        limit = row["limit_bytes_per_s"]
        # A copy that blocks the CPU costs the lead over the GPU that the host loses in it, too.
        cause = (*RULE.cause, *_HOST) if case.notable(held) or not case.notable(exposed) else RULE.cause
        rate = limit or (pinned_rate(case.profile) if row["direction"] == "HtoD" else math.inf)
        weights = _of_weights(case, row)
        kept = None if weights else _copied_tables.kept_on_gpu(case, row, at_site)
        picked = None if weights or kept else _picked(case, row)
        fix = _copied_weights.ON_GPU if weights else kept or picked or _fix(case, row, at_site)
        edits: tuple[Edit, ...] = (OverlapCopies(ops_of(at_site), rate), RemoveWaits(calls_of(syncs)))
        if weights or kept is not None or picked is not None or fix is _MAKE or fix.text.startswith(_SELECT):
            # No copy is left, nor what the CPU does to make the data, or with all that it gets.
            edits = (
                RemoveOps(ops_of(at_site)),
                edits[1],
                RemoveHost(_calls_beside_copies(case, at_site, made=fix is _MAKE or picked is not None)),
            )
        grown = None if weights else _grown_copies.only_new(case, row, at_site)
        if grown is not None:
            fix, edits = grown[0], grown[1:]
        elif not weights and (of_few := told_by_few(case, row, at_site)) is not None:
            fix, edits = of_few[0], (of_few[1], RemoveWaits(calls_of(syncs)))
        worth = case.worth(*edits, cause=cause, bound=True)
        if weights:
            worth = _less_update(case, worth, row["bytes"])
        way = _WAYS[row["direction"]]
        obstacle = _OBSTACLES.get(row["obstacle"], row["obstacle"])
        detail = (
            f"{case.often(row['count'], f'copy {way}', f'copies {way}')}, from {row['src_kind']} to {row['dst_kind']} memory "
            f"({units.size(row['bytes'] / case.steps)} {case.per}): {units.duration(exposed)} with no kernel running at the "
            f"same time, because {obstacle}."
        )
        single = row["count"] in (1, case.steps)
        if held:
            detail += f" {'It blocks' if single else 'They block'} the CPU for {units.duration(held)}, including the wait after them."
        if row["bandwidth_bytes_per_s"]:
            detail += f" {'It reaches' if single else 'They reach'} {units.bandwidth(row['bandwidth_bytes_per_s'])}"
            detail += f" of {units.bandwidth(limit)} ({row['limit_from']})." if limit else "."
        gpu = f"take {units.duration(exposed)} of GPU time" if case.notable(exposed) else ""
        cpu = f"block the CPU for {units.duration(held)}" if case.notable(held) else ""
        costs = " and ".join(filter(None, (gpu, cpu))) or "take hardly any GPU time"
        title = f"Copies {way}{case.in_module(row)} {costs}"
        made = calls_of(at_site)
        takes = Takes(ops_of(at_site), began_in(case.idle, made | calls_of(syncs)))
        findings.append(
            Found(
                RULE, title, detail, worth=worth, cost_ns=exposed, fix=fix, where=row, calls=made, takes=takes
            ).as_finding(case)
        )
    return findings


def _picked(case: Case, row: Row) -> Fix | None:
    """Return the advice about copies of rows that a line picks from a table on the host."""
    if row["direction"] != "HtoD":  # the numbers of the rows
        return _picked_tables.picked_before(case, row)
    return _picked_tables.picked_on_gpu(case, row, (row["bytes"] or 0) // max(row["count"], 1))


def _of_weights(case: Case, row: Row) -> bool:
    """Return whether the copies of a place are those of weights that the program itself keeps on the host; FSDP has its own advice."""
    text = text_of(texts(case.profile), row["file"], row["line"]) or ""
    of_fsdp = re.search(_FSDP, str(row["module"] or ""))
    if not case.program.torch or of_fsdp is not None or _copied_weights.drawn(case, row["file"], row["line"]):
        return False
    return _copied_weights.of_weights(case, row["count"], row["bytes"], text)


def _less_update(case: Case, worth: Saving, moved: int) -> Saving:
    """Return what is saved if weights stay on the GPU: all that copies and the CPU take, less what the GPU needs for the same."""
    if worth.likely_ns is None:
        return worth
    update = min(case.per_step(_copied_weights.update_ns(case, moved)), worth.likely_ns)
    why = "copies, waits and host code between them are gone, and the GPU updates the weights itself"
    return replace(worth, likely_ns=worth.likely_ns - update, bound=False, confidence=f"{why}: {worth.confidence}")


def _always_copying(case: Case) -> bool:
    """Return whether copies run, one way or the other, for all of the steady steps."""
    shown = [r for r in case.typed_rows(gpu_ledger.ROWS) if (r["process"], r["device"]) == (case.process, case.device)]
    return any(r["copy_ns"] + r["hidden_copy_ns"] >= ALL_COPIES_SHARE * r["window_ns"] > 0 for r in shown)


def _made_before(case: Case, copies: pl.DataFrame) -> bool:
    """Return whether the GPU idles right before these copies: then the CPU makes what they move, and pinning does not help.

    Not where another line than theirs keeps it idle for most of that: what that line does has a rule of its own.
    """
    ended = case.idle.filter(case.idle["op"].is_in(copies["op"].implode()))
    before = case.per_step(float(ended["real_ns"].sum()))
    if not case.notable(before, MADE_ON_CPU_SHARE):
        return False
    of_program = [row for row in case.typed_rows(lines.ROWS) if row["file"]]
    longest = max(of_program, key=lambda row: row["idle_caused_ns"], default=None)
    if longest is None or case.per_step(longest["idle_caused_ns"]) < MOST_SHARE * before:
        return True
    return bool(((copies["file"] == longest["file"]) & (copies["line"] == longest["line"])).any())


def _calls_beside_copies(case: Case, copies: pl.DataFrame, *, made: bool) -> frozenset[int]:
    """Return the calls before which the CPU makes what these copies move, or works with what they brought: the next call's."""
    calls = copies["call"].drop_nulls().to_numpy()
    api = case.profile.attributed.api_calls
    if made:  # what PyTorch asks before a copy (cudaStreamIsCapturing) comes behind the code that made its data
        asks = lookup.at(api["kind"], calls - 1).eq(Call.OTHER).fill_null(value=False).to_numpy()
        return frozenset([*calls.tolist(), *(calls[asks] - 1).tolist()])
    sync = lookup.at(api["kind"], calls + 1).is_in(Call.WAITS).fill_null(value=False).to_numpy()
    return frozenset([*(calls + 1).tolist(), *(calls[sync] + 2).tolist()])


def _unpinned_loader(case: Case) -> bool:
    """Return whether a loader of the program may give batches that are not pinned; one that pins them is not asked to."""
    settings = settings_of(case.profile)
    loaders = settings.rows("loaders") if settings else None
    pins = bool(loaders) and all(r.get("pin_memory") is True for r in loaders or ())
    return case.program.loader and not pins


def _out_of_pinned(case: Case, row: Row) -> Fix:
    """Return how to hide copies to pinned memory: by what still exposes them."""
    fix = {"sync_after": _READ_LATER, "nothing_beside": _OUT_BESIDE}.get(row["obstacle"], _OUT_ON_A_STREAM)
    return fix if case.program.torch else Fix(fix.text)


def _fix(case: Case, row: Row, copies: pl.DataFrame) -> Fix:
    """Return how to hide these copies: nothing that is done already, and no word of a batch where none is copied."""
    program = case.program
    pinned = row["obstacle"] != "pageable"
    if row["direction"] == "DtoH":
        if pinned and row["dst_kind"] == "pinned":
            return _out_of_pinned(case, row)
        if not program.torch:
            return Fix("Copy to pinned memory (cudaHostAlloc) on a separate stream, and read the result later")
        made = case.calls["start_ns"].filter(case.calls["call"].is_in(copies["call"].drop_nulls().implode()))
        each_step = 2 * len(np.unique(step_of(case.profile, made))) >= case.steps
        if each_step and not case.stepless and row["bytes"] >= MUCH_READ_BACK_BYTES * case.steps:
            size = units.size(row["bytes"] / case.steps)
            return Fix(
                f"{_SELECT} (topk, argmax, sum) and copy only the result: {size} go to the host in each step; "
                "copy what you need in full to pinned memory with non_blocking=True"
            )
        return Fix("Copy to pinned memory with non_blocking=True and read the result a step later")
    if not program.torch:
        works, exposed = int(case.kernels["ns"].sum()), row["exposed_ns"] or 0
        if pinned and works < HIDING_KERNELS_SHARE * exposed:
            return Fix(
                "Copy less, keep the data on the GPU, or copy in pieces on two streams, to the GPU and to the host at once: the kernels "
                f"take {units.duration(case.per_step(works))}, too short to hide {units.duration(case.per_step(exposed))} of copies"
            )
        how = "" if pinned else "from pinned memory (cudaHostAlloc), "
        return Fix(f"Copy {how}on a separate stream, while kernels run")
    if (once := numbers_copied(case, [row])) is not None:
        return Fix.by_name(once)
    text = text_of(texts(case.profile), row["file"], row["line"]) or ""
    if (fields := fields_at_once(case, text, copies["call"])) is not None:
        return fields
    module, phase = str(row["module"] or ""), row["phase"]
    if re.search(_FSDP, module):
        return Fix(
            "FSDP copies these parameters from the host: keep them on the GPU if they fit (no CPU offload), or prefetch those of "
            "the next module (forward_prefetch=True), so that their copy overlaps the module before"
        )
    pin = "" if pinned else "pin the data (tensor.pin_memory()) and "
    if (module and module not in case.profile.attributed.without_path) or phase in _NO_BATCH:
        how = f"Create this data on the GPU, or keep it there; if it must come from the host, {pin}"
        return Fix(f"{how}copy it earlier with non_blocking=True")
    if case.stepless:
        how = f"{pin}copy it with non_blocking=True on a separate stream, before the work that needs it"
        return Fix(how[:1].upper() + how[1:])
    ahead = _SOONER if row["obstacle"] == "nothing_beside" else _AHEAD
    if pinned:
        return ahead
    if (of_batch := _unpinned_batches.that_pins(case, row, copies)) is not None:
        return of_batch
    return _PIN if _unpinned_loader(case) else _MAKE if _made_before(case, copies) else _PIN_ONCE
