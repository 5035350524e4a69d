"""NSX106 input-starvation: the GPU idles because the next batch is not ready.

What it means
    The loop waits for its data loader while the GPU has nothing to do. With num_workers=0 the main thread does the decoding
    and augmenting; otherwise there are too few workers or they are too slow. A wait while the GPU has work costs nothing.

In the trace
    The range of the data phase, with the device idle under it. A recorded window may lack it, because it opens with batches that
    workers had made before. The time in the loader's next() of steps without the profiler then shows it.
    One forked worker is followed for one batch. The line with most of its time is named, and so is a function that runs several times
    for each sample it returns: each worker may decode a whole stream and keep only its share.
    The line with most of the worker's time comes first where it has a known remedy: lists made into tensors, whole files read for a few
    values, a crop that comes last, loops over single items. More workers would only share that work.
    Where nearly all waits are in the steps in which short epochs begin, the workers start anew each time: they are to be kept, and so is
    the loader, where the program makes a new one for each epoch.
    Where few steps wait, and workers make batches faster than steps take them, single slow samples hold back all batches behind them.
    Ranks of DistributedDataParallel whose batches hold the same samples are told so: each loads what the others load, too.
    Ranks that compute one forward together (tensor, context parallelism) need the same samples: each can load a part of every batch.

Bad
    loader = DataLoader(data, batch_size=64)                       # num_workers=0

Good
    loader = DataLoader(data, batch_size=64, num_workers=8, pin_memory=True, persistent_workers=True, prefetch_factor=4)

Harmless when
    The GPU works during the wait ("hidden"), or only the first batch of an epoch is late.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nsysx import units
from nsysx.analyses import data_loader, loader_lines
from nsysx.analyses.loader_lines import LoaderLineRow
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events import bare, batch_waits, sampled_stacks
from nsysx.events.recorded_settings import file_and_line, settings_of
from nsysx.findings import _new_workers
from nsysx.findings._case import Case, Fix, Rule, way
from nsysx.findings._finding_bounds import (
    LATE_BATCH_TIMES,
    MANY_BATCH_ROWS,
    MORE_WORKERS,
    NEW_WORKERS,
    SAME_AS_WORKERS_SHARE,
    SLOWER_WORKERS_TIMES,
)
from nsysx.findings._found import Found
from nsysx.findings._late_samples import as_queue_hides, late_samples
from nsysx.findings._loaded_by_parts import as_parts_can, loaded_whole
from nsysx.findings._loader_pastes import with_options
from nsysx.findings._needs import LOADER
from nsysx.findings._same_samples import same_samples
from nsysx.findings._samples_on_gpu import ON_CPU, samples_on_gpu, where_on_gpu
from nsysx.findings._stopped_workers import as_all_workers_can, few_at_work, is_of_few
from nsysx.findings._work_bounds import FEWEST_UNHINDERED_STEPS, SAME_LENGTH_TIMES, UNHINDERED_WORK_SHARE
from nsysx.findings._worker_lines import WorkerBatch, worker_batch
from nsysx.findings._worker_remedies import place_in_worker, skipped_behind, worker_fix, works_in_lines
from nsysx.judging.limit_words import pair
from nsysx.model import Finding, Row
from nsysx.replay.engine import FreeLoader, Replay
from nsysx.saving import Saving

RULE = Rule(
    "NSX106",
    "input-starvation",
    "Input starvation",
    cause=(StepPart.INPUT,),
    about=StepLimit.INPUT,
    whole=True,
    picture="loader",
    direct=3,
    tries=("loader-workers", "loader-workers-8", "loader-prefetch", "bound-data"),
)
_WORKERS = Fix.by_name(
    "loader-workers-8",
    "cheaper-samples",
    text="Use more workers: DataLoader(num_workers=8, pin_memory=True, persistent_workers=True), or cheaper samples",
    needs=(LOADER,),
)

#: Where a loader is waited for.
_PLACE: dict[str, object] = {"module": "DataLoader", "phase": "data"}
#: Advice for ranks that must be given the same samples.
_OF_GROUPS = ("loaded-by-parts", "loaded-once")
_OTHERWISE = Fix("Prepare the next batch while the GPU works on this one: in another thread, process or stream")
_HANDED_OVER = Fix.by_name(
    "loader-workers-8",
    "cheaper-samples",
    text="Prepare the batches faster, with more workers or cheaper samples: DataLoader(num_workers=8, pin_memory=True, "
    "persistent_workers=True), if a DataLoader does it",
)


def _busiest_line(row: LoaderLineRow) -> str:
    """Return a sentence on the line that takes most of the loader's time."""
    inside = f", in {row['framework']}" if row["framework"] else ""
    line_text = sampled_stacks.spoken(row["file"], row["line"], row["function"])
    return f" The loader spends {units.share(row['share'], 1)} of its time at {line_text}{inside} ({row['samples']} samples)."


def _main_loader(case: Case) -> Row:
    """Return the settings of the loader that is iterated most; empty where none were recorded."""
    settings = settings_of(case.profile)
    loaders = (settings.rows("loaders") if settings else None) or ()
    return max(loaders, key=lambda r: r.get("iterators") or 0, default={})


def of_loader(case: Case, worth: Saving) -> Fix:
    """Return how a loader gets faster: no option that it has already, as far as its settings were read.

    ``worth`` is what a loader that is always ready saves. More workers come first where they alone may give that: they make no loader
    faster by more than their number grows.
    """
    settings, most = settings_of(case.profile), _main_loader(case)
    followed = worker_batch(case)
    if followed is not None and (left := skipped_behind(followed)) is not None:
        return replace(left.fix, needs=(LOADER,))
    at_source = few_at_work(case, most) or samples_on_gpu(case, most)
    if at_source is not None:
        return at_source
    if followed is not None and followed.again:
        return _done_again(followed, most.get("workers"))
    same = same_samples(case, settings)
    # Ranks that train on all they load have as much to load for a step with samples of their own.
    if same is not None and same.cut:
        return same.fix()
    if (whole := loaded_whole(case, settings)) is not None:
        return replace(whole.fix(), needs=(LOADER,))
    by_line = worker_fix(case, followed) if followed is not None else None
    most_time = f"; most of their time is at {followed.place}" if followed else ""
    workers, cores = most.get("workers"), settings.cpu("allowed") if settings else None
    batch = most.get("batch_size")
    many = isinstance(batch, int) and batch >= MANY_BATCH_ROWS and most.get("collate") == "default_collate"
    if many and not (followed is not None and works_in_lines(followed)):
        rows = way("batched-samples")
        text = f"{rows.text}: here each batch makes {units.count(batch)} calls and stacks as many tensors"
        return Fix.by_name(
            way(rows.name, text), "loader-workers-8" if not workers else "cheaper-samples", text=text, needs=(LOADER,)
        )
    if not isinstance(workers, int) or not workers:
        return _WORKERS
    told = {"pin_memory": "pin_memory=True", "persistent_workers": "persistent_workers=True"}
    # The loop itself keeps a core busy.
    more = min(2 * workers, cores - 1) if isinstance(cores, int) else 2 * workers
    room = more >= MORE_WORKERS * workers
    lacks = [text for name, text in told.items() if most.get(name) is False]
    if by_line is not None:
        share = f". More workers share that work: num_workers={more} in place of {workers}" if room else ""
        return replace(by_line.fix, text=f"{by_line.fix.text}{share}", needs=(LOADER,))
    if not room and told["pin_memory"] not in lacks:
        rest = f" (and could have {told['persistent_workers']})" if lacks else ", and its other options are set"
        return Fix.by_name(
            "cheaper-samples",
            text=f"Make samples cheaper, or decode and augment on the GPU: the loader has {workers} workers for {cores} cores{rest}"
            f"{most_time}",
            needs=(LOADER,),
        )
    options = [f"num_workers={more}"] * room + lacks
    made = ", ".join(options)
    step = case.longest_step_ns
    if room and (worth.likely_ns or 0) > step * (1 - workers / more):
        beside = (
            f"DataLoader({made}) in place of {workers} workers gives {more / workers:.2f}x at most, which is not enough"
        )
        return Fix.by_name(
            "cheaper-samples",
            text=f"Make samples cheaper (read and decode only what is used), or decode and augment on the GPU: {beside}"
            f"{most_time}",
            needs=(LOADER,),
        )
    return Fix.by_name(
        way(
            "loader-workers",
            f"Use DataLoader({made}): it has {workers} workers",
            with_options(case, most.get("made"), **dict(option.split("=") for option in options)),
        ),
        "cheaper-samples",
        text=f"Use DataLoader({made}): it has {workers} workers; or cheaper samples{most_time}",
        needs=(LOADER,),
    )


def _as_workers_can(case: Case, worth: Saving, wait_ns: int) -> Saving:
    """Return what new workers save in place of none: from a third of the batches that they could give, to a loader that is always ready.

    Tried with eight: 10.9x, where a step waited 26 ms for its batch, and 3.8x, where it waited 115 ms.
    """
    if worth.likely_ns is None or worth.bound:
        return worth
    error_ns = worth.error_ns or 0
    slow_ns = LATE_BATCH_TIMES * wait_ns // NEW_WORKERS
    if case.step_ns - slow_ns >= worth.likely_ns - error_ns:
        return worth
    at_best = units.duration(wait_ns / NEW_WORKERS)
    why = f"{NEW_WORKERS} workers give a batch every {at_best} at best, perhaps {LATE_BATCH_TIMES} times as late"
    return Saving.between(max(0, case.step_ns - slow_ns), min(worth.likely_ns + error_ns, case.step_ns), why)


def _as_without_waits(case: Case, worth: Saving) -> Saving:
    """Return what a loader that is always ready saves, at most down to steps that ran as short again and again while nothing recorded.

    Those waited for nothing: neither this rank for its batch, nor for another rank that waits for its own, which a replay of one rank
    keeps. They are no shorter than the GPU's work, as cheaper steps of several kinds would be.
    """
    timed = np.sort(np.asarray(bare.of_process(case.profile.trace.capture, case.process), np.int64))
    if worth.likely_ns is None or worth.bound or worth.most_ns is not None or len(timed) < FEWEST_UNHINDERED_STEPS:
        return worth
    short = timed[timed <= SAME_LENGTH_TIMES * timed[0]]
    work_ns = case.taken_by((StepPart.WORK,))
    if len(short) < FEWEST_UNHINDERED_STEPS or timed[0] < UNHINDERED_WORK_SHARE * work_ns:
        return worth
    most_ns = round(case.step_ns - float(np.median(short)))
    if most_ns <= worth.likely_ns + (worth.error_ns or 0):
        return worth
    return replace(worth, most_ns=most_ns)


def _done_again(followed: WorkerBatch, workers: object) -> Fix:
    """Return the advice where a function runs several times for each sample that a worker hands out."""
    text = f"Do less for each sample: {followed.place} runs {followed.again:.3g} times for each one that a worker hands out"
    if isinstance(workers, int) and workers > 1 and abs(followed.again - workers) <= SAME_AS_WORKERS_SHARE * workers:
        text += f", and there are {workers} workers: each goes through all of the data. Let a worker choose its samples before this"
    return Fix.by_name("cheaper-samples", text=f"{text}; more workers would only do it again", needs=(LOADER,))


class _Rate(NamedTuple):
    """How often the workers of a loader can give a batch (ns), by one of them that was followed; ``stock``: batches made ahead."""

    ns: float
    workers: int
    stock: int
    followed: WorkerBatch


def _rate_of_workers(case: Case) -> _Rate | None:
    """Return how often batches come where all steps that were seen may have lived on those made ahead, None else.

    A loader hands out as many as its workers have made while the program started, or stood still, before its own rate is seen.
    """
    most, followed = _main_loader(case), worker_batch(case)
    workers, ahead = most.get("workers"), most.get("prefetch_factor")
    if followed is None or not isinstance(workers, int) or workers < 1 or followed.samples != most.get("batch_size"):
        return None
    stock = workers * (ahead if isinstance(ahead, int) else 1)
    seen = max(len(case.typed_rows(data_loader.ROWS)), len(bare.of_process(case.profile.trace.capture, case.process)))
    return _Rate(followed.batch_ns / workers, workers, stock, followed) if seen <= stock else None


def _of_stock(case: Case, rate: _Rate) -> Found:
    """Return the finding that the steps lived on batches made ahead, faster than any more can come."""
    every = units.duration(rate.ns)
    slower = Saving(
        round(case.step_ns * (1 - case.step_ns / rate.ns)), ""
    )  # what of a step at the workers' rate would go
    why = (
        f"These steps lived on batches made ahead. When they are used up a step takes about {every}, and {units.duration(case.step_ns)} "
        f"with a loader that keeps up: about {rate.ns / case.step_ns:.1f}x"
    )
    detail = (
        f"One batch took a worker {units.duration(rate.followed.batch_ns)}, so {rate.workers} workers give one every {every}. "
        f"The steps take {units.duration(case.step_ns)}: up to {rate.stock} batches are made ahead, and no more steps were seen."
        f"{rate.followed.sentence()}"
    )
    title = f"The loader cannot keep up for long: {rate.workers} workers give a batch every {every}"
    where = {**_PLACE, **place_in_worker(case, rate.followed)}
    evidence: list[Row] = [{"leads": True, "batch_every_ns": round(rate.ns), "made_ahead": rate.stock}]
    fix = of_loader(case, slower)
    return Found(RULE, title, detail, worth=Saving(None, why), cost_ns=None, where=where, fix=fix, evidence=evidence)


def _fix(case: Case, worth: Saving) -> Fix:
    """Return how the next batch comes earlier, by what hands it over: a loader, another thread or process, or nothing that is known."""
    if case.program.loader:
        return of_loader(case, worth)
    return _HANDED_OVER if _handed_over(case) and case.program.python else _OTHERWISE


def _handed_over(case: Case) -> bool:
    """Return whether another thread or process hands a batch over: no range of the program marks the waits."""
    return not (case.profile.ranges.ranges["name"] == batch_waits.DATA).any()


def _where(case: Case, fix: Fix, busiest: LoaderLineRow | None, followed: WorkerBatch | None) -> dict[str, object]:
    """Return the place of what the advice changes: the sampled line, where the loader is made, or where its samples are."""
    where: dict[str, object] = {**_PLACE, "module": _PLACE["module"] if case.program.loader else None}
    settings, advised = settings_of(case.profile), fix.ways[0].name if fix.ways else ""
    if advised == ON_CPU and (launching := where_on_gpu(case)):
        return {**where, **launching}
    if busiest and advised != "more-shards":
        return {**where, "file": busiest["file"], "line": busiest["line"]}
    if settings and advised in ("own-samples", "loader-workers-8", "more-shards", *_OF_GROUPS):
        return {**where, **settings.place("loader", "loop")}
    if followed:
        return {**where, **place_in_worker(case, followed)}
    if settings and case.program.loader and advised == "cheaper-samples":
        return {**where, **settings.place("samples", "loader", "loop")}
    return where


def check(case: Case) -> list[Finding]:
    """Return one finding where the GPU idles for data for 1 % of the steady step or more."""
    missing = case.missing(data_loader.KEY)
    if missing and case.profile.attributed.phase_spans.height and case.profile.trace.capture.probe:
        return case.clear(RULE, "the probe saw no DataLoader in use")
    if missing:
        return case.cannot_tell(RULE, missing)
    rows = [r for r in case.typed_rows(data_loader.ROWS) if r["steady"]]
    if not rows:
        return case.cannot_tell(RULE, "no steady step is in the capture", "profile more steps")
    wait = round(sum(r["wait_ns"] for r in rows) / len(rows))
    # The same idle time of the device as in the verdict and its picture.
    idle = case.lost_to(StepLimit.INPUT)
    behind = _rate_of_workers(case)
    if behind is not None and behind.ns > SLOWER_WORKERS_TIMES * case.step_ns and not case.notable(idle):
        return [_of_stock(case, behind).as_finding(case)]
    # The two cover steps that are offset by one: on the device a step begins where its wait ends.
    wait = max(wait, idle)
    if not case.notable(idle):
        return case.clear(RULE, f"the GPU idles {case.share(idle)} of the step for data")
    worth = case.worth(FreeLoader(), cause=RULE.cause)
    if worth.likely_ns is None:
        # No replay is needed to know what the GPU does meanwhile: nothing.
        worth = case.bound(idle, "the time the GPU idles while the step waits for its batch")
    title = f"The GPU idles {units.duration(idle)} {case.per} waiting for input data"
    starved = sum(r["verdict"] == "starved" for r in rows)
    waited = f"waits {units.duration(wait)} for its batch ({case.share(wait)})"
    detail = (
        f"The program {waited}, and the GPU idles meanwhile for {units.duration(idle)}."
        if case.stepless
        else f"The step {waited}. The GPU idles meanwhile in {starved} of {len(rows)} steady steps, {units.duration(idle)} {case.per}."
    )
    more = case.replay.more_loading_ns if isinstance(case.replay, Replay) and case.replay.trusted else 0
    evidence: list[Row] = []
    if 2 * more > idle:
        part, whole = pair(idle, case.step_ns)
        title = f"The loader cannot keep up: the GPU waits {part} of {whole} for input data"
        recorded = round(sum(r["wait_ns"] for r in rows) / len(rows))
        detail = (
            f"In steps without the profiler the loop waits {units.duration(more)} longer for a batch than in recorded ones "
            f"({units.duration(recorded)}), and the GPU has nothing to do: the window opened with batches that workers had made while "
            "the program stood still."
        )
        evidence = [{"more_wait_ns": more, "recorded_wait_ns": recorded, "step_ns": case.step_ns}]
    after = f"; after that the limit is {worth.next_limit}" if worth.next_limit else ""
    detail += f" A loader that is always ready would save up to {units.duration(worth.likely_ns)}{after}."
    api = round(sum(r["api_ns"] for r in rows) / len(rows))
    if api > 0.1 * wait:
        detail += f" CUDA calls (copies and pinning) take {units.duration(api)} of the wait."
    sampled = [r for r in case.typed_rows(loader_lines.ROWS) if r["share"] is not None]
    busiest = max(sampled, key=lambda r: r["time_ns"], default=None)
    detail += _busiest_line(busiest) if busiest else ""
    followed = worker_batch(case) if case.program.loader else None
    detail += followed.sentence() if followed else ""
    restarted = _new_workers.waited_for(case, rows) if case.program.loader else None
    if restarted is not None:
        title += ", nearly all of it where an epoch starts new workers"
        evidence.append({"set_in_program": "persistent_workers=False", "epoch_steps": round(restarted["every"])})
        fix, where = _new_workers.kept(case, restarted), {**_PLACE, **file_and_line(restarted["made"])}
    else:
        fix = _fix(case, worth)
        if followed is not None and (late := late_samples(case, _main_loader(case), followed, rows)) is not None:
            fix, worth = late, as_queue_hides(worth)
        new = fix is _WORKERS or ON_CPU in [remedy.name for remedy in fix.ways]
        worth = _as_workers_can(case, worth, wait) if new else worth
        worth = as_all_workers_can(case, _main_loader(case), worth) if is_of_few(fix) else worth
        where = _where(case, fix, busiest, followed)
        worth = _as_without_waits(case, worth)
        if fix.ways and fix.ways[0].name in _OF_GROUPS and (loaded := loaded_whole(case, settings_of(case.profile))):
            worth = as_parts_can(case, worth, loaded)
    if not case.program.loader and _handed_over(case):
        detail += (
            " The thread that launches waits in the operating system until another thread or process hands it over."
        )
    return [
        Found(RULE, title, detail, worth=worth, cost_ns=idle, where=where, fix=fix, evidence=evidence).as_finding(case)
    ]
