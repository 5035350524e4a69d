"""Stages of a pipeline: how many micro-batches their messages leave possible, and what it saves to cut them evenly."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from nsysx import units
from nsysx.analyses.lines import texts
from nsysx.catalogue import StepPart
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix, Saving
from nsysx.findings._costly_collectives import metrics_each_step, metrics_often, place_of_metrics
from nsysx.findings._finding_bounds import (
    BUBBLE_GAINED_SHARE,
    ENOUGH_MICRO_BATCHES_TIMES,
    EVEN_STAGES_SAVING_SHARE,
    FEWEST_MICRO_STEPS,
    MANY_MICRO_BATCHES_TIMES,
    MORE_MICRO_BATCHES_TIMES,
    TURNS_ERROR_SHARE,
    TURNS_GAINED_SHARE,
)
from nsysx.findings._loops_of_stages import two_loops
from nsysx.findings._rank_rows import rank_rows
from nsysx.findings._slower_host import more_of_slower_host_ns
from nsysx.findings._stage_cut import counts_line, cut_line, cut_text
from nsysx.findings._stage_layers import cut_once, in_words, moved, paste_of, stage_layers, text_of
from nsysx.findings._work_bounds import HOSTS_FASTER_SHARE
from nsysx.judging.judging_bounds import UNEVEN_CUT_SHARE, UNEVEN_STAGES_TIMES, UNLIKE_STAGES_TIMES
from nsysx.judging.other_work import FASTER_ALONE, others_of_gpu
from nsysx.judging.rank_waiting import per_step
from nsysx.judging.schedule import Schedule, paced_ns
from nsysx.judging.stages_in_turn import at_once_share, stages_in_turn
from nsysx.judging.uneven_stages import UnevenStages, uneven_stages
from nsysx.model import Finding
from nsysx.reading import nccl_notes
from nsysx.replay import rank_alone


def uneven(case: Case, times: float = UNEVEN_STAGES_TIMES) -> UnevenStages | None:
    """Return stages of a pipeline of which the longest has so many times the mean work; two ranks that a wrapper spans are no stages: they
    send parts of a sequence.
    """
    settings, rows = settings_of(case.profile), rank_rows(case)
    spanned = settings is not None and bool(settings.rows("wrappers")) and len(rows) == 2
    # Of stages that work in turn none waits for the longest alone: cut evenly they take as long.
    if spanned or uneven_stages(rows, times) is None or in_turns(case) is not None:
        return None
    return uneven_stages(rows, times, rank_alone.hosts_ns(case.profile, case.step_ns))


def in_whole_layers(case: Case, finding: Finding, kernels: pl.DataFrame) -> Finding | None:
    """Return the finding with the numbers of layers that make stages of unlike work even; None where these are not known, or save little.

    ``kernels``: name, count, ns.
    """
    stages = uneven(case, UNLIKE_STAGES_TIMES)
    layers = None if stages is None else stage_layers(case, stages)
    if stages is None or layers is None:
        return None
    few = least_micro_batches(case, kernels)
    layers = cut_once(case, stages, layers, few)
    saving = moved(case, stages, layers, (few, _messages(case, kernels)))
    if saving is None:
        return None
    fix = Fix.by_name(
        "even-stages", text=text_of(stages, layers), paste=paste_of(layers, cut_text(case.profile, layers.counts))
    )
    told = in_words(stages, layers)
    if layers.hosts_ns and max(layers.hosts_ns) > case.step_ns - (saving.most_ns or saving.likely_ns or 0):
        told += f" Hosts launch that in up to {units.duration(round(max(layers.hosts_ns)))}: fewer launches are next."
        fix = fix.but(condition=f"{fix.condition}{_HOSTS_NEXT_UP}")
    placed = _of_stages(case, finding, stages, told, saving)
    return fix.into(replace(placed, where={**placed.where, **counts_line(case.profile, layers.counts)}))


def held_by_hosts(case: Case, finding: Finding, kernels: pl.DataFrame) -> Finding | None:
    """Return the finding with the numbers of layers that make stages even once hosts launch less; None where these hold no cut up.

    ``kernels``: name, count, ns. What that saves is not told: launches go first, and how many is not known.
    """
    stages = uneven(case, UNLIKE_STAGES_TIMES)
    if stages is None or not stages.hosts_ns:
        return None
    of_work = stages._replace(hosts_ns=())
    layers = stage_layers(case, of_work)
    batches = (least_micro_batches(case, kernels), _messages(case, kernels))
    if layers is None or moved(case, of_work, layers, batches) is None:
        return None
    saving = Saving(None, "alone it saves little or nothing: layers move with their launches")
    text = f"Make fewer launches in every stage first; then {units.uncapitalized(text_of(stages, layers))}"
    fix = Fix.by_name("even-stages", text=text, paste=paste_of(layers, cut_text(case.profile, layers.counts)))
    told = (
        f"{in_words(stages, layers)} Hosts take longer to launch that, without tracing: now {stages.hosts_in_words()}."
    )
    cut = fix.into(_of_stages(case, finding, stages, told, saving))
    title = (
        f"Rank {stages.longest['rank']} has most of the pipeline's work, but an even cut gains only with fewer launches"
    )
    return replace(cut, title=title)


def no_shorter_than_work(case: Case, finding: Finding, kernels: pl.DataFrame) -> Finding:
    """Return a finding about fewer launches with no more saved than leaves a step what its kernels take: all that the busiest rank
    computes and, in a pipeline, one micro-batch of each other stage, of the most that there may be. ``kernels``: name, count, ns.
    """
    rows = rank_rows(case)
    work = [per_step(row, "compute_ns") for row in rows]
    if not work or finding.saving.likely_ns is None:
        return finding
    stages = any(row.get("bubble_ns") is not None for row in rows)
    least_ns = paced_ns(work, _messages(case, kernels)) if stages else max(work)
    if least_ns > case.step_ns:  # another schedule
        least_ns = max(work)
    most_ns = max(round(case.step_ns - least_ns), 0)
    if max(finding.saving.likely_ns, finding.saving.most_ns or 0) <= most_ns:
        return finding
    saving = finding.saving.within(most_ns)
    return replace(
        finding, saving=replace(saving, confidence="the GPU work of the busiest rank is left, with the bubble, if any")
    )


def hosts_set_pace(case: Case, kernels: pl.DataFrame) -> bool:
    """Return whether a host of a pipeline takes longer to launch its stage than all stages, cut evenly, compute; ``kernels``: as above."""
    stages = uneven(case, 0.0)
    return stages is not None and stages.held_by_hosts(least_micro_batches(case, kernels))


def cut_evenly(case: Case, finding: Finding, stages: UnevenStages, kernels: pl.DataFrame) -> Finding | None:
    """Return the finding with what it saves that all stages have as much work; None where no number of whole layers saves much.

    ``kernels``: name, count, ns. At least the longest stage's extra work goes, but for the bubble of the fewest micro-batches that the
    messages leave possible; at most all that a step takes shrinks like that, host code and gaps, too, with the bubble of the most.
    """
    if (cut := in_whole_layers(case, finding, kernels)) is not None or stage_layers(case, stages) is not None:
        return cut
    few, many = least_micro_batches(case, kernels), _messages(case, kernels)
    least = min(stages.step_ns(few) - stages.even_step_ns(few), case.step_ns)
    most = max(case.step_ns * (1 - stages.even_step_ns(many) / stages.step_ns(many)), least)
    count, mean = len(stages.work_ns), sum(stages.work_ns) / len(stages.work_ns)
    even = f"{units.duration(round(mean))} on each of {count} if the stages are cut evenly"
    likely, shared = round((least + most) / 2), bool(others_of_gpu(case.profile))
    if likely < EVEN_STAGES_SAVING_SHARE * case.step_ns:
        return None
    why = "the longest stage sets the pace; layers are not cut exactly evenly"
    saving = Saving(
        likely,
        f"{why}; {FASTER_ALONE}" if shared else why,
        bound=shared,
        error_ns=max(round((most - least) / 2), round(UNEVEN_CUT_SHARE * likely)),
        source="time",
    )
    more, less = (units.duration(round(abs(ns - mean))) for ns in (max(stages.work_ns), min(stages.work_ns)))
    text = (
        f"Cut the stages of the pipeline by the time that they take, forward and backward, not by the number of layers or parameters: rank "
        f"{stages.longest['rank']} has {more} a step more than the mean of all, rank {stages.shortest['rank']} {less} less"
    )
    return Fix.by_name("even-stages", text=text).into(_of_stages(case, finding, stages, "", saving, even))


def _of_stages(
    case: Case, finding: Finding, stages: UnevenStages, told: str, saving: Saving, even: str = ""
) -> Finding:
    """Return a finding about the longest stage, with its place: where the network is cut or the stage made, else where the shown rank
    exchanges messages if it is that.
    """
    settings = settings_of(case.profile)
    line = cut_line(case.profile) or ({} if settings is None else settings.place("stage") or settings.place("schedule"))
    # The shown rank's own line says nothing of the place where another one works.
    of_shown = finding.where if stages.longest["process"] == case.process else {}
    each = ", ".join(
        f"rank {row['rank']} {units.duration(ns)}"
        for row, ns in ((stages.longest, max(stages.work_ns)), (stages.shortest, min(stages.work_ns)))
    )
    work = f"GPU work of a step: {each} as recorded{'; ' if even else ''}{even}."
    return replace(
        finding,
        title=f"Rank {stages.longest['rank']} has most of the pipeline's work; the others wait for it",
        detail=" ".join(part for part in (finding.detail, work, told) if part),
        where={**(line or of_shown), "near": f"rank {stages.longest['rank']}"},
        saving=saving,
    )


def stages_of(case: Case) -> int:
    return max(len(case.ranks.rows or ()) if case.ranks is not None else 0, 2)


def _messages(case: Case, kernels: pl.DataFrame) -> float:
    """Return how many messages the shown stage sends or receives in a step: it has no more micro-batches than that."""
    kinds = ((nccl_notes.kind_of(name), count) for name, count in kernels["name", "count"].iter_rows())
    return max(float(sum(count for kind, count in kinds if kind == nccl_notes.SEND_RECEIVE)) / case.steps, 1.0)


def of_schedule(case: Case, finding: Finding) -> Finding:
    """Return a finding about the bubble at the line that makes the schedule, with its micro-batches, where the settings have them."""
    settings = settings_of(case.profile)
    line = {} if settings is None else settings.place("schedule")
    if settings is None or not line:
        return finding
    count = settings.micro_batches()
    batches = f" The schedule has {units.several(count, 'micro-batch', 'micro-batches')}." if count else ""
    return replace(finding, where=line, detail=f"{finding.detail}{batches}")


def least_micro_batches(case: Case, kernels: pl.DataFrame) -> float:
    """Return the fewest micro-batches that a stage may have in a step: as its schedule has them, else by its messages.

    ``kernels``: name, count, ns.
    """
    settings = settings_of(case.profile)
    if settings is not None and (count := settings.micro_batches()):
        return float(count)
    return max(_messages(case, kernels) / (2 if stages_of(case) == 2 else 4), 1.0)


def bubble_of_schedule(case: Case, kernels: pl.DataFrame) -> int:
    """Return the most that the schedule of a pipeline leaves idle in a step (ns); ``kernels``: name, count, ns.

    A stage exchanges at most two messages with each neighbor for each micro-batch, so there are at least what is left of their number.
    """
    return round(case.step_ns * Schedule(stages_of(case), least_micro_batches(case, kernels)).of_step)


def smaller_bubble(case: Case, cost: int) -> Saving:
    """Return what more micro-batches save of a step in which the schedule of a pipeline leaves ``cost`` idle (ns)."""
    stages = stages_of(case)
    bubble = min(cost / case.step_ns, 0.99)
    many = MORE_MICRO_BATCHES_TIMES * max((stages - 1) * (1 - bubble) / bubble, 1.0)
    then = (case.step_ns - cost) / (1 - Schedule(stages, many).of_step)
    likely = round(BUBBLE_GAINED_SHARE * max(case.step_ns - then, 0.0))
    why = f"{MORE_MICRO_BATCHES_TIMES} times as many micro-batches; small ones use a GPU less well"
    return Saving(likely, why, error_ns=round(0.3 * likely), most_ns=cost, source="time")


def fewer_micro_batches(case: Case, finding: Finding, kernels: pl.DataFrame) -> Finding | None:
    """Return the finding with fewer micro-batches where far more than hide the bubble are launched; else None.

    ``kernels``: name, count, ns. What is launched and sent goes in proportion, and the bubble of fewer micro-batches comes.
    """
    stages, count = stages_of(case), least_micro_batches(case, kernels)
    if count < MANY_MICRO_BATCHES_TIMES * stages:
        return None
    few, work = ENOUGH_MICRO_BATCHES_TIMES * stages, case.taken_by((StepPart.WORK,))
    bubble = work * (Schedule(stages, few).of_work - Schedule(stages, count).of_work)
    waits = case.taken_by(part for part in StepPart if part.idle or part is StepPart.COMM)
    saved = max(round((1 - few / count) * waits - bubble), 0)
    told = f"A step has {count:.0f} micro-batches; {few} hide the bubble of {stages} stages nearly as well."
    why = "launches and messages of a step go with the micro-batches; larger kernels use a GPU better"
    saving = Saving.between(saved // 2, saved, why)
    return Fix.by_name("fewer-micro-batches").into(replace(finding, detail=f"{finding.detail} {told}", saving=saving))


def in_turns(case: Case) -> UnevenStages | None:
    """Return the stages of a pipeline that hardly ever compute at once although a step has several micro-batches; None without such."""
    settings = settings_of(case.profile)
    count = None if settings is None else settings.micro_batches()
    if not count:  # tokens that each need the one before go through the stages in turn, too
        return None
    hosts = rank_alone.hosts_ns(case.profile, case.step_ns)
    return stages_in_turn(rank_rows(case), at_once_share(case.profile), count, case.step_ns, hosts)


def _beside_each_other(case: Case, finding: Finding, stages: UnevenStages, count: int) -> Finding:
    """Return the finding about stages that work in turn, priced by the schedule that they could run: by their work, or a slower host.

    A host that sets the pace never waits for messages; how fast it is without tracing is an estimate.
    """
    of_work, paced = stages._replace(hosts_ns=()).step_ns(count), stages.step_ns(count)
    whole = units.duration(sum(stages.work_ns))
    at_once = units.share(at_once_share(case.profile), 1)
    turns = (
        f"The stages take turns: of a step as recorded all of them compute {whole}, and {at_once} of what could "
        f"overlap does; with {units.several(count, 'micro-batch', 'micro-batches')} beside each other they need "
        f"{units.duration(of_work)}."
    )
    saved, most, why = case.step_ns - paced, case.step_ns - of_work, "but for the bubble of their schedule"
    likely = TURNS_GAINED_SHARE * saved
    error = TURNS_ERROR_SHARE * likely
    if paced > of_work:
        turns += (
            f" Hosts take {stages.hosts_in_words()} to launch that, without tracing: then fewer launches save more."
        )
        likely, why = saved, "until a host that launches for longer sets the pace"
        most = min(most, case.step_ns - (1 - HOSTS_FASTER_SHARE) * paced)
        # To both sides more is open than of the GPU's work.
        error = min(max(TURNS_ERROR_SHARE * likely, more_of_slower_host_ns(paced)), likely)
    saving = Saving(
        round(likely),
        f"the stages work beside each other, {why}",
        error_ns=round(error),
        most_ns=round(max(most, likely)),
        source="limits" if paced > of_work else "time",
    )
    loops = two_loops(texts(case.profile).get(str(finding.where.get("file") or ""), {}))
    fix = Fix.by_name("batches-in-flight")
    if loops:
        fix = fix.but(text=_BY_HAND, paste=loops, condition=_KEPT)
    if paced > of_work:
        fix = fix.but(condition=f"{fix.condition}{_HOSTS_NEXT}")
    return fix.into(replace(finding, detail=f"{finding.detail} {turns}", saving=saving))


#: The same in a loop that the program has written out itself.
_BY_HAND = (
    "Keep all micro-batches in flight: first all forwards, then all backwards (GPipe; or 1F1B). Now the stages take turns: one micro-batch "
    "is in flight, whatever their number"
)
_KEPT = (
    "Each stage keeps the activations of all micro-batches until their backward; where these do not fit, run backwards behind few forwards "
    "(1F1B: as many as stages follow)."
)


#: What is next where a host may launch its part of a cut for longer than GPUs compute.
_HOSTS_NEXT_UP = (
    " Then a host may set the pace: fewer launches (torch.compile of each stage) are next, and the cut stays right."
)


#: What is next where hosts launch for longer than GPUs then compute.
_HOSTS_NEXT = " Then a host sets the pace: fewer launches (torch.compile of each stage) are next."


def one_at_a_time(case: Case, finding: Finding, kernels: pl.DataFrame) -> Finding | None:
    """Return the finding where stages work in turn although a step has several micro-batches; else None. ``kernels``: name, count, ns.

    A step is then nearly as long as what all stages compute: each waits until its own micro-batch comes back. Where a line reads a value of
    all ranks as often, that is what keeps them together.
    """
    turns_seen, often = in_turns(case), metrics_often(case) >= least_micro_batches(case, kernels)
    if turns_seen is not None and not often:
        return _beside_each_other(case, finding, turns_seen, round(least_micro_batches(case, kernels)))
    rows = [row for row in rank_rows(case) if row.get("bubble_ns") is not None]
    work, count = [per_step(row, "compute_ns") for row in rows], round(least_micro_batches(case, kernels))
    if len(rows) < 2 or count < FEWEST_MICRO_STEPS or not sum(work):
        return None
    # What else a step idles for is no waiting for a stage.
    taken = max(sum(per_step(row, part) for part in ("compute_ns", "exposed_wait_ns")) for row in rows)
    beside = max(work) + (sum(work) - max(work)) / count
    if taken < (beside + sum(work)) / 2:
        return None
    saved = round(case.step_ns * (1 - beside / taken))
    turns = (
        f"The stages take turns: of a step as recorded all of them compute {units.duration(sum(work))}, and with "
        f"{units.several(count, 'micro-batch', 'micro-batches')} beside each other they need {units.duration(beside)}."
    )
    where, fix = finding.where, Fix.by_name("batches-in-flight")
    if often:
        where, fix = place_of_metrics(case), Fix.by_name("collective-rarely")
        turns += f" {units.capitalized(metrics_each_step(case))}."
    saving = Saving(
        round(TURNS_GAINED_SHARE * saved),
        "the stages work beside each other, but for the bubble of their schedule",
        error_ns=round(TURNS_ERROR_SHARE * TURNS_GAINED_SHARE * saved),
        most_ns=saved,
        source="time",
    )
    return fix.into(replace(finding, detail=f"{finding.detail} {turns}", where=where, saving=saving))


def in_turn_or_uneven(case: Case, finding: Finding, kernels: pl.DataFrame) -> Finding | None:
    """Return the finding about stages that work in turn, else about those whose layers are dealt unevenly, or that hosts hold up."""
    alone = one_at_a_time(case, finding, kernels)
    return alone or in_whole_layers(case, finding, kernels) or held_by_hosts(case, finding, kernels)


def as_its_schedule(case: Case, kernels: pl.DataFrame) -> str:
    """Return that a schedule of so many micro-batches leaves hardly any bubble, "" where they are few; ``kernels``: name, count, ns."""
    stages, count = stages_of(case), least_micro_batches(case, kernels)
    if case.ranks is None or count < ENOUGH_MICRO_BATCHES_TIMES * stages:
        return ""
    return (
        f"stages of a pipeline wait for each other about as long as the schedule of {count:.0f} micro-batches leaves them idle "
        f"({units.share(Schedule(stages, count).of_step, 1)} of a step)"
    )
