"""NSX110 exposed-comm: communication between GPUs that no compute hides.

What it means
    All-reduce, all-gather and reduce-scatter can overlap the backward pass. Where only communication runs, the GPU's
    compute units idle. The saving shown is an upper bound: communication that costs nothing. A kernel that waits for a late
    rank looks the same as one that transfers: NSX111 tells them apart, given the reports of all ranks. Of stages of a pipeline that
    compute for unlike times the longest one waits for nobody and all others for it: that is found on its own page, too. What an even
    cut saves ends where a host takes longer to launch its stage than its GPU to compute it: then fewer launches come first.

In the trace
    NCCL kernels with no compute kernel beside them, mostly after the last backward kernel.

Bad
    loss.backward()
    for p in model.parameters(): dist.all_reduce(p.grad)

Good
    model = DistributedDataParallel(model, bucket_cap_mb=25, gradient_as_bucket_view=True)
    loss.backward()                                    # buckets are reduced while backward goes on

Harmless when
    It is the last bucket only, or the links are the limit of this job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from nsysx import units
from nsysx.analyses import gpu_ledger
from nsysx.catalogue import DeviceActivity, StepLimit, StepPart
from nsysx.events.recorded_settings import settings_of
from nsysx.events.untrained_gathers import gathered_in_loop
from nsysx.findings import _pasted
from nsysx.findings._bucket_options import of_buckets, uses_ddp
from nsysx.findings._case import Case, Fix, Rule, Saving, ops_of, way
from nsysx.findings._costly_jobs import hidden_beside, one_gradient, one_unit
from nsysx.findings._divided_comm import EARLIER, EXPOSED, UNEVEN, divided_comm, of_ranks
from nsysx.findings._flow_work import in_short
from nsysx.findings._found import Found
from nsysx.findings._freezing_pastes import named_as_called
from nsysx.findings._late_gathers import prefetched
from nsysx.findings._late_host_lines import other_than_launching, shortened
from nsysx.findings._layer_exchanges import between_layers
from nsysx.findings._layer_messages import (
    gathers_of_layers,
    gathers_outputs,
    line_of_layers,
    needed_at_once,
    of_gathered_outputs,
    split_for_little,
)
from nsysx.findings._longest_stage import of_longest
from nsysx.findings._meetings import meeting
from nsysx.findings._names import launched_by, mostly
from nsysx.findings._needs import FUSABLE, fused_code, shards
from nsysx.findings._once import Takes
from nsysx.findings._pipeline_stages import (
    as_its_schedule,
    bubble_of_schedule,
    cut_evenly,
    fewer_micro_batches,
    hosts_set_pace,
    in_turn_or_uneven,
    in_turns,
    no_shorter_than_work,
    of_schedule,
    smaller_bubble,
    uneven,
)
from nsysx.findings._rank_rows import rank_rows, rank_shown
from nsysx.findings._sharded_models import fits_whole
from nsysx.findings._shares_of_ranks import as_much_in_each_step, in_like_order, share_line
from nsysx.findings._short_reductions import in_one_shot
from nsysx.findings._small_units import small_units, units_left_share, without_hooks
from nsysx.findings._units_in_words import in_blocks, in_its_words
from nsysx.findings._unlike_micro_batches import unlike_micro_batches
from nsysx.findings._unlike_steps import in_unlike_steps
from nsysx.findings._worker_lines import worker_batch
from nsysx.findings._worker_remedies import place_in_worker
from nsysx.findings.nsx106_input_starvation import of_loader
from nsysx.judging import rank_verdict
from nsysx.model import Finding, Row, Table
from nsysx.reading import nccl_notes
from nsysx.replay.engine import RemoveExposedComm
from nsysx.replay.slowed_kernels import slowed_ns

RULE = Rule(
    "NSX110",
    "exposed-comm",
    "Exposed communication",
    cause=(StepPart.COMM,),
    about=StepLimit.COMM,
    tries=("ddp-bucket-view", "ddp-static-graph", "ddp-large-buckets"),
)
REQUIRES = ("gpu",)
#: One rank alone shows that it is in a collective, not whether the transfer is slow or another rank is late.
_ALONE = (
    "Compare all ranks first: nsysx report RANK0.sqlite RANK1.sqlite ... If one is last, give every rank the same work; if "
    "none is, communicate earlier and in fewer, larger messages"
)
#: The ranks are in one report and could not be matched; otherwise `of_ranks` has better advice.
_TOGETHER = (
    "If one rank is always last, give every rank the same work; if none is, communicate earlier and in fewer, larger "
    "messages"
)
#: A stage with nothing to do waits for its neighbor: no rank is late.
_PIPELINE = Fix.by_name(
    "more-micro-batches",
    text="Use more micro-batches, an interleaved schedule, or stages that take equally long: waiting in send and receive is the bubble "
    "of a pipeline",
)


def _advice(case: Case, kernels: pl.DataFrame) -> Fix:
    """Return what to do, by the kind of communication and the ranks in the report; ``kernels``: name, count, ns."""
    between_two = sum(
        ns for name, ns in kernels["name", "ns"].iter_rows() if nccl_notes.kind_of(name) == nccl_notes.SEND_RECEIVE
    )
    rows = rank_rows(case)
    # An exchange among all ranks is made of the same kernels: where all ranks are known, it is seen whether two have messages of their own.
    stages = not rows or any(row["bubble_ns"] is not None for row in rows)
    if 2 * between_two > kernels["ns"].sum() and stages and not between_layers(case):
        return _PIPELINE
    comm = case.profile.attributed.gpu_ops.filter(pl.col("cls") == DeviceActivity.COMM.value)
    return Fix(_TOGETHER if comm["process"].n_unique() > 1 else _ALONE)


def check(case: Case) -> list[Finding]:
    """Return one finding where communication alone runs for 1 % of the step or more."""
    row = next(
        r for r in case.typed_rows(gpu_ledger.ROWS) if (r["process"], r["device"]) == (case.process, case.device)
    )
    recorded, hidden = case.per_step(row["comm_ns"]), case.per_step(row["hidden_comm_ns"])
    # Tracing holds ranks up, and their peers wait for them in here: what is told is of the step that the verdict speaks of.
    cost = case.taken_by(RULE.cause)
    comm = case.timed_ops(case.ops["cls"] == DeviceActivity.COMM.value, "op", "name", "module")
    kernels = comm.group_by(pl.col("name").cast(pl.String))
    longest = kernels.agg(pl.len().alias("count"), pl.col("ns").sum()).sort("ns", "name", descending=[True, False])
    if not case.notable(cost):
        sentence = (
            f"exposed communication takes {case.share(cost)} of the step"
            if cost + hidden
            else "no communication kernel ran"
        )
        waited_for = of_longest(case, RULE, longest, mostly(case.profile, comm)) or in_unlike_steps(case, RULE)
        return case.clear(RULE, sentence) if waited_for is None else [waited_for]
    evidence = [
        {"kernel": k, "count": n / case.steps, "total_ns": case.per_step(ns)}
        for k, n, ns in longest.head(6).iter_rows()
    ]
    detail = f"Nothing but communication runs for {units.duration(cost)} {case.per} ({case.share(cost)}); " + (
        f"{units.duration(hidden)} more is hidden behind compute." if hidden else "none is hidden behind compute."
    )
    title = f"Exposed communication takes {units.duration(cost)} {case.per}"
    slow = case.per_step(slowed_ns(case.profile)) if hidden else 0
    worth = case.worth(RemoveExposedComm(), bound=True)
    if worth.likely_ns is None and not case.stepless:  # no replay tells more than what is exposed
        worth = case.bound(cost, f"all that is exposed is gone ({worth.confidence})")
    if worth.likely_ns is not None:
        # Kernels beside it are faster only where none communicates at all: a rank that waits less still transfers.
        most = max(worth.most_ns or 0, min(worth.likely_ns, cost + slow))
        worth = replace(worth, likely_ns=min(worth.likely_ns, cost), most_ns=most)
    if case.notable(slow):
        title += f" and slows the kernels beside it by {units.duration(slow)}"
        detail += f" It takes SMs and memory: kernels beside it run {units.duration(slow)} longer than the same kernels alone."
    parts = [{"part": EXPOSED, "total_ns": cost}, {"part": "kernels beside it take longer", "total_ns": slow}]
    evidence = [*(p for p in parts if p["total_ns"]), *evidence]
    exposed = Found(
        RULE,
        title,
        detail,
        worth=worth,
        cost_ns=cost + slow,
        fix=_advice(case, longest),
        where=mostly(case.profile, comm),
        evidence=evidence,
        takes=Takes(ops_of(comm)),
    ).as_finding(case)
    if (met := meeting(case)) is not None:
        told = met.fix.into(
            replace(
                exposed,
                title=met.title or exposed.title,
                where=met.where or exposed.where,
                saving=exposed.saving if met.worth is None or met.worth.likely_ns is None else met.worth,
            ),
            torch=case.program.torch,
        )
        return [told]
    if exposed.fix == _PIPELINE.text:
        return _of_pipeline(case, exposed, longest, recorded)
    if (cut := of_longest(case, RULE, longest, mostly(case.profile, comm))) is not None and (
        cut.saving.likely_ns or 0
    ) > cost:
        return [cut]
    if (small := split_for_little(case, exposed)) is not None:
        return [small]
    if case.ranks is None:
        return _unless_needed(case, exposed)
    told = of_ranks(exposed, case.ranks, rank_shown(case), recorded_ns=recorded, stages=not between_layers(case))
    if told.fix == UNEVEN and rank_verdict.wait_for_work(case.ranks.rows or ()):
        told = as_much_in_each_step(case, told)
    elif told.fix == UNEVEN and (late := rank_verdict.wait_for_data(case.ranks.rows or ())):
        told = _data_sooner(case, told, late, recorded)
    elif _by_hosts(case, told, case.ranks):
        told = shortened(case, told, no_shorter_than_work(case, _fewer_launches(case, told, recorded), longest))
    elif told.fix == UNEVEN:
        told = in_like_order(case, told) or told
    return _unless_needed(case, told)


def _unless_needed(case: Case, finding: Finding) -> list[Finding]:
    """Return the finding with what its wrapper asks for, and nothing where that is to begin earlier what the next layer needs at once."""
    earlier = finding.fix in (EARLIER.text, _ALONE, _TOGETHER) and not gathers_outputs(case)
    if earlier and (why := needed_at_once(case) or one_gradient(settings_of(case.profile))):
        return in_one_shot(case, finding) or case.clear(RULE, why)
    return [_of_its_wrapper(case, finding)]


def _of_pipeline(case: Case, exposed: Finding, kernels: pl.DataFrame, recorded_ns: int) -> list[Finding]:
    """Return what is found where stages of a pipeline wait for each other; ``kernels``: name, count, ns of communication."""
    cost = case.taken_by(RULE.cause)
    bubble = min(bubble_of_schedule(case, kernels), cost)
    stages_late = 2 * bubble < cost and in_turns(case) is None
    more = f" The schedule itself leaves at most {units.duration(bubble)} of that; the rest is waiting for late stages."
    detail = exposed.detail + (more if stages_late else "")
    exposed = of_schedule(case, replace(exposed, detail=detail, saving=smaller_bubble(case, bubble)))
    if case.ranks is None:
        return [_of_its_wrapper(case, exposed)]
    told = of_ranks(exposed, case.ranks, rank_shown(case), recorded_ns=recorded_ns)
    if (stages := uneven(case)) is not None and (even := cut_evenly(case, told, stages, kernels)) is not None:
        return [even]
    if stages_late and (unlike := unlike_micro_batches(case, told, cost - bubble)) is not None:
        return [unlike]
    waits = rank_verdict.stages_wait_for_hosts(case.ranks.rows or ())
    if stages_late and (waits or hosts_set_pace(case, kernels)):
        told = fewer_micro_batches(case, told, kernels) or _fewer_launches(case, told, recorded_ns)
        told = no_shorter_than_work(case, told, kernels)
        # Stages that wait for each other in turn hide what is left of that.
        return [_of_its_wrapper(case, replace(told, saving=replace(told.saving, bound=True)))]
    if (otherwise := in_turn_or_uneven(case, told, kernels)) is not None:
        return [otherwise]
    if not stages_late and (enough := as_its_schedule(case, kernels)):
        return case.clear(RULE, enough)
    return [_of_its_wrapper(case, told)]


def _of_its_wrapper(case: Case, finding: Finding) -> Finding:
    """Return the finding with what the way to be parallel asks for, and without what only DDP has, where the program does not use it."""
    if finding.fix in (EARLIER.text, _ALONE, _TOGETHER) and gathers_outputs(case):
        size = of_gathered_outputs(case, finding.saving)
        return _PAIRED.into(
            replace(finding, saving=size, where={**finding.where, **line_of_layers(case, gathers_of_layers(case))})
        )
    if finding.fix == EARLIER.text and (ahead := prefetched(case, finding)) is not None:
        return ahead
    settings = settings_of(case.profile)
    of_unit = one_unit(settings) if settings is not None and finding.fix in (EARLIER.text, UNEVEN) else ""
    if (finding.fix == EARLIER.text or of_unit) and (exposed_ns := finding.saving.likely_ns) is not None:
        saving = hidden_beside(exposed_ns, "it runs beside computation that does not need it")
        finding = replace(finding, saving=saving)
        if of_unit and settings is not None:
            where = settings.place("FSDP") or finding.where
            return in_blocks(case, replace(finding, detail=f"{finding.detail} {of_unit}", where=where))
    return of_buckets(case, finding)


#: What to do where the output of each split layer is gathered.
_PAIRED = Fix.by_name("paired-splits")


def _by_hosts(case: Case, finding: Finding, table: Table) -> bool:
    """Return whether most of the exposed communication is a wait for ranks that launch later than this one, in more than a few meetings."""
    whole = (settings := settings_of(case.profile)) is not None and bool(one_unit(settings))
    return finding.fix == UNEVEN and not whole and rank_verdict.wait_for_hosts(table.rows or ())


def _data_sooner(case: Case, finding: Finding, late: Sequence[Row], recorded_ns: int | None) -> Finding:
    """Return the finding where the ranks wait for each other's input data: at most all idle time goes, and all that waits."""
    divided = None if case.ranks is None else divided_comm(finding, case.ranks, rank_shown(case), recorded_ns)
    idle = case.taken_by(p for p in StepPart if p.idle or p is StepPart.COMM)
    most = max(idle - (0 if divided is None else divided.transfer), 0)
    why = "the waits for the data go, and what the ranks wait for each other; how fast data can come is not known"
    saving = Saving.between(min(finding.saving.likely_ns or 0, most), most, why)
    loader = of_loader(case, saving)
    ranks = " and ".join(str(row["rank"]) for row in late)
    # Where one rank alone has too few samples, the line that shares them out makes the difference, not what each sample costs.
    share = share_line(case.profile) if len(late) == 1 else {}
    shares = f" ({in_short(share)} shares them out)" if share else ""
    text = (
        f"Get the input data of rank{'s' if len(late) > 1 else ''} {ranks} sooner, the other ranks wait for it: "
        f"{units.uncapitalized(loader.text)}. Does each worker of each rank get samples{shares}?"
    )
    settings, followed = settings_of(case.profile), worker_batch(case)
    of_settings = settings.place("samples", "loader", "loop") if settings else {}
    row_of_loader = share or (place_in_worker(case, followed) if followed else of_settings)
    where = {"module": "DataLoader", "phase": "data", "near": f"rank {late[0]['rank']}", **row_of_loader}
    return loader.but(text=text).into(replace(finding, where=where, saving=saving), torch=case.program.torch)


def _fewer_launches(case: Case, finding: Finding, recorded_ns: int | None) -> Finding:
    """Return the finding with what shortens a wait for other ranks' launches: fewer launches on every rank.

    At best only the GPU's own work and transfers are left, and what lines of the program run besides launching: on no rank launches
    then take time, and no rank waits for another.
    """
    program = case.program
    loop = program.optimizer != "fused" and program.optimizer_class in FUSABLE
    rollout = gathered_in_loop(case.profile) if shards(case) else None
    again = frozenset[int]() if rollout is None else rollout.gathers
    settings = settings_of(case.profile)
    by_layer = shards(case) and not again and settings is not None and bool(small_units(case, settings))
    whole = shards(case) and settings is not None and bool(fits_whole(settings))
    unhooked = by_layer or (whole and not again)
    if shards(case):
        fewer = "blocks-as-units" if by_layer else "replicated" if whole else "larger-shards"
        compiled, text = in_its_words(case, "", way("gathered-once" if again else fewer))[1], None
    else:
        if program.compiled:
            name, how = "compile-reduce-overhead", "CUDA graphs of what is already compiled"
        elif uses_ddp(case):
            name, how = "compile-wrapped", "torch.compile of the module before it is wrapped"
        else:
            staged = any(row.get("bubble_ns") is not None for row in rank_rows(case))
            name, how = "compile", "torch.compile of the model"
            taken = settings is not None and bool(settings.place("stage", "schedule"))
            how = f"torch.compile of each stage{', before PipelineStage takes it' if taken else ''}" if staged else how
        advice = f"Make fewer launches on every rank: {how}"
        compiled = named_as_called(case.profile, way(name, advice))
        text = f"{advice}{', fused=True for the optimizer' if loop else ''}: the ranks wait for each other's host code, not for data"
    ways = [compiled]
    if loop:
        code = fused_code(case)
        ways = [
            replace(compiled, name=f"{compiled.name},fused", paste=f"{compiled.paste}\n{code}"),
            way("fused", paste=code),
        ]
    fix = Fix.by_name(*ways, text=text or compiled.text)
    # What a line runs besides is no part of launching: fewer launches leave it where it is.
    other = other_than_launching(case)
    divided = None if case.ranks is None else divided_comm(finding, case.ranks, rank_shown(case), recorded_ns)
    transfer = 0 if divided is None else divided.transfer
    worth = case.bound(
        case.taken_by(p for p in StepPart if p.idle or p is StepPart.COMM) - other - transfer,
        f"the GPU's own work{', other host code' if case.notable(other) else ''} and transfers are left",
    )
    if shards(case) and finding.saving.likely_ns is not None and finding.saving.likely_ns < (worth.likely_ns or 0):
        # Larger units leave the model's launches: they save no more than no collective at all does, on any rank. With units their hooks go,
        # too, and operators become those of plain tensors (DDP for 24 layers on two H200: 160 ms became 74).
        without, units = replace(finding.saving, source="replay"), settings if by_layer else None
        left = 0.0 if units is None else units_left_share(case, units)
        worth = without_hooks(without, worth, left) if unhooked else replace(without, most_ns=worth.likely_ns)
    elif 2 * case.lost_to(StepLimit.LAUNCH) >= (worth.likely_ns or 0):
        # The size is that of exactly what is pasted: all launches stay that a compiler does not take together. A rank that waits for the
        # launches of another one has none to replay: what these save is known as a bound alone.
        worth = _pasted.likely(case, fix, worth, frozenset())
    return replace(
        fix.into(finding, torch=program.torch),
        where=(settings.place("FSDP") if by_layer and settings is not None else {})
        or _place_of(case, again)
        or {k: v for k, v in launched_by(case.profile).items() if v}
        or finding.where,
        saving=replace(
            finding.saving,
            likely_ns=worth.likely_ns,
            most_ns=worth.most_ns if worth.most_ns is not None else worth.likely_ns,
            bound=finding.saving.bound and not unhooked,
            error_ns=worth.error_ns if unhooked else finding.saving.error_ns,
            confidence=worth.confidence,
            source=worth.source,
        ),
    )


def _place_of(case: Case, ops: frozenset[int]) -> Row:
    """Return the place that launches most of these ops; empty without any."""
    chosen = case.timed_ops(case.ops["op"].is_in(list(ops)), "op", "name", "module")
    return mostly(case.profile, chosen) if chosen.height else {}
