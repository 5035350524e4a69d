"""The only place that knows the order of the rooms: files in, Summary out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import nsysx
from nsysx import answer, findings
from nsysx.analyses.helpers import report_totals, step_record, timeline_data
from nsysx.analyses.helpers import tables as tables_of
from nsysx.errors import EXIT_EMPTY, EXIT_USAGE, NsysxError
from nsysx.events import (
    attribute,
    bare_apart,
    compiled_parts,
    correlate,
    ledger,
    nvtx_ranges,
    profile,
    sampling,
    sequence,
)
from nsysx.events import steps as steps_room
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.judging import capture_checks, host_pace, late_hosts, nothing_recorded, rank_verdict, stages_in_turn, verdict
from nsysx.model import Check, Finding, Row, Summary, Table, Unprofiled, Verdict, in_order
from nsysx.pictures import Lane
from nsysx.ranks import (
    collect,
    job_compared,
    match,
    one_job,
    other_lanes,
    other_reports,
    own_time,
    parallel_reading,
    rank_checks,
    rank_record,
    rank_table,
    rank_tables,
    unreadable_reports,
)
from nsysx.ranks.chosen_work import chosen_work, one_process
from nsysx.reading import as_sqlite, load, opening, selecting, table_rows
from nsysx.replay import rank_alone
from nsysx.replay.engine import Withheld, replay_of, replayed_scope, unprofiled_of
from nsysx.selection import Selection


def _replay(given: Profile, judged: Sequence[Finding]) -> Row | None:
    """Return the figures of the replay itself, None if there is none (a check says why)."""
    replay = replay_of(given)
    if isinstance(replay, Withheld):
        return None
    return {
        "recorded_ns": replay.recorded_ns,
        "unchanged_ns": replay.unchanged_ns,
        "error": replay.error,
        "trusted": replay.trusted,
        "steps": replay.steps,
        "without_gpu_ns": host_pace.without_gpu_ns(given, replay, judged),
        "scope": scope.to_json() if (scope := replayed_scope(given)) else None,
    }


def _unprofiled(given: Profile) -> Unprofiled | None:
    """Return the step without a profiler, None if it is unknown (a check says why)."""
    estimate = unprofiled_of(given)
    return None if isinstance(estimate, Withheld) else estimate


@dataclass(frozen=True)
class ReadingOptions(Selection):
    """How to read a report: what of it, and what else is made of it. Picklable, so that it can be sent to workers.

    ``every_table``: all tables are made and the frames can be freed; else each is made when it is first read, and the checks do
    not say which of the others the report lacks. ``whole``: all of a long capture is read, whoever asks.
    """

    process: int | None = None
    timelines: bool = False
    every_table: bool = True
    whole: bool = False
    progress: Callable[[str], None] | None = None

    @property
    def in_parts(self) -> bool:
        """Whether parts of a long capture are enough: nobody asked for all of it, or for certain steps."""
        return not (
            self.whole
            or self.every_step
            or self.steps
            or self.step_range
            or self.time_range
            or self.process is not None
        )

    @classmethod
    def from_selection(
        cls, selection: Selection, *, timelines: bool = False, progress: Callable[[str], None] | None = None
    ) -> ReadingOptions:
        """Return the options for what a selection names."""
        chosen = {field.name: getattr(selection, field.name) for field in fields(Selection)}
        return cls(**chosen, timelines=timelines, progress=progress)


def summarize(
    files: Sequence[Path],
    selection: Selection | None = None,
    *,
    timelines: bool = False,
    every_table: bool = True,
    progress: Callable[[str], None] | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    steps: str | None = None,
    step_range: str | None = None,
    device: int | None = None,
    rank: int | None = None,
    time_range: str | None = None,
    every_step: bool = False,
    max_size: str = Selection.max_size,
) -> Summary:
    """Return the Summary of a report, or of the reports of all ranks of one job.

    ``selection`` says what of it is read; its fields can be given by name instead. ``timelines`` also
    gathers the picture data; ``every_table`` as in `ReadingOptions`; ``progress`` is told each stage. Of several reports the tables
    show ``rank`` (by default the first) and the table "ranks" compares all; ``workers`` and ``cluster`` say where they are
    read, see ``parallel_reading.run``. Raises NsysxError, exit code 3 if a file cannot be read, 4 if there is nothing to
    analyze, 2 for bad options.
    """
    named = Selection(
        steps, step_range, device=device, rank=rank, time_range=time_range, every_step=every_step, max_size=max_size
    )
    options = ReadingOptions.from_selection(selection or named, timelines=timelines, progress=progress)
    options = replace(options, every_table=every_table)
    return summary_of(gather_job(files, options, workers=workers, cluster=cluster), options)


@dataclass(frozen=True)
class Job:
    """The profile of the report to show, completed by the reports of the other ranks, and a record of every rank.

    ``files`` are the names of several reports and ``report`` the place of the shown one among them; ``shown`` is the number of the
    rank to show, None if there is only one report. ``beside`` are the lanes of the other ranks, where pictures are drawn. ``aligned``
    are the ranks of several reports on one clock.
    """

    profile: Profile
    ranks: tuple[rank_record.Rank, ...]
    files: tuple[str, ...] = ()
    report: int = 0
    shown: int | None = None
    beside: other_lanes.OtherRanksLanes = field(default_factory=other_lanes.OtherRanksLanes)
    aligned: match.Aligned | None = None

    @cached_property
    def compared(self) -> job_compared.JobCompared | None:
        """All ranks of the job, compared; None where there is only one."""
        return job_compared.compare(self.ranks, self.aligned)

    @cached_property
    def alone_because(self) -> str:
        """Why there is only one rank."""
        return job_compared.reason(self.ranks, len({process for process, _ in self.profile.ledgers.activity}))

    @cached_property
    def rank_table(self) -> Table:
        """The table "ranks"."""
        return rank_table.table(self.compared, self.alone_because)


def gather_job(
    files: Sequence[Path], options: ReadingOptions, *, workers: int | None = None, cluster: str | None = None
) -> Job:
    """Return the input of the analyses for a report, or for the reports of all ranks of one job. Raises as ``summarize`` does."""
    if len({opening.real(p) for p in files}) != len(files):
        raise NsysxError("one report is given twice", slug="same-report", exit_code=EXIT_USAGE)
    if len(files) == 1:
        given = gather(files[0], options)
        return Job(given, tuple(rank_record.numbered(_replayed(given))))
    options = replace(options, whole=True)  # ranks are compared call by call
    read = partial(parallel_reading.run, workers=workers, cluster=cluster, progress=options.progress)
    of_file = partial(_records, replace(options, rank=None, progress=None))  # a worker gets no callback
    work = partial(unreadable_reports.result_or_error, of_file)
    names = tuple(p.name for p in files)
    if options.rank is not None:
        ranks = _one_job(unreadable_reports.without_errors(read(work, files)), names)
        numbers = [rank_record.number(ranks, index) for index in range(len(ranks))]
        if options.rank not in numbers:
            listed = f"{len(numbers)} ranks, {min(numbers)} to {max(numbers)}" if numbers else "no ranks"
            raise NsysxError(
                f"--rank {options.rank}: the reports hold {listed}", slug="rank-range", exit_code=EXIT_EMPTY
            )
        wanted = ranks[numbers.index(options.rank)]
        given = gather(files[wanted.report], replace(options, rank=None, process=wanted.process))
        aligned = match.align(ranks)
        given = other_reports.learn(given, aligned, wanted.report)
        beside = (
            _lanes_of_others(given, aligned, wanted.report, files, read)
            if options.timelines
            else other_lanes.OtherRanksLanes()
        )
        return Job(given, ranks, names, wanted.report, options.rank, beside, aligned)
    first: list[Profile | NsysxError] = []
    shown_one = partial(unreadable_reports.result_or_error, partial(gather, options=options))
    others = read(work, files[1:], meanwhile=lambda: first.append(shown_one(files[0])))
    unreadable_reports.without_errors([*first, *others])  # all that cannot be read at once
    (given,), rest = unreadable_reports.without_errors(first), unreadable_reports.without_errors(others)
    ranks = _one_job([own_time.with_replays(collect.records(given), given), *rest], names)
    shown = next((n for n, r in enumerate(ranks) if not r.report), 0)
    number = rank_record.number(ranks, shown) if ranks else 0
    aligned = match.align(ranks)
    given = other_reports.learn(given, aligned, 0)
    beside = _lanes_of_others(given, aligned, 0, files, read) if options.timelines else other_lanes.OtherRanksLanes()
    return Job(given, ranks, names, shown=number, beside=beside, aligned=aligned)


def _lanes_of_others(
    given: Profile,
    aligned: match.Aligned,
    report: int,
    files: Sequence[Path],
    read: Callable[..., list[Any]],
) -> other_lanes.OtherRanksLanes:
    """Return the lanes of the ranks that ``given``, of this report, does not hold: their reports are read once more."""
    plan = other_lanes.plan(given, aligned, report)
    paths = {files[n].resolve(): n for n in sorted({rank.report for rank in plan.wanted})}
    lanes: dict[tuple[int, other_lanes.Stretch], tuple[Lane, ...]] = {}
    for of_report in read(partial(_lanes, plan, paths), list(paths)) if paths else ():
        lanes |= of_report
    return other_lanes.OtherRanksLanes(plan, lanes)


def _lanes(plan: other_lanes.LanePlan, places: Mapping[Path, int], path: Path) -> other_lanes.Lanes:
    """Return the lanes of the ranks of one report, of which only the windows are read."""
    report = places[path.resolve()]
    shifts = [rank.offset_ns for rank in plan.wanted if rank.report == report]
    trace = load.load(path, window=(plan.span.start_ns - max(shifts), plan.span.end_ns - min(shifts)))
    files = trace.run.get("files")
    if isinstance(files, dict) and files.get("cold"):
        trace = load.load(path)  # the clock of the joined capture is not that of its parts
    return other_lanes.lanes(plan, report, correlate.correlate(trace).gpu_ops)


def _records(options: ReadingOptions, path: Path) -> tuple[rank_record.Rank, ...]:
    """Return the ranks of one of several reports: all that is compared of it."""
    given = gather(path, options)
    return other_reports.with_steps(own_time.with_replays(collect.records(given), given), given)


def _replayed(given: Profile) -> tuple[rank_record.Rank, ...]:
    """Return the ranks of a report alone, with their replays if there are several."""
    ranks = collect.records(given, alone=True)
    return own_time.with_replays(ranks, given) if len(ranks) > 1 else ranks


def _one_job(reports: Sequence[Sequence[rank_record.Rank]], names: Sequence[str]) -> tuple[rank_record.Rank, ...]:
    """Return the ranks of all reports, numbered. Errors: NsysxError where they are not of one job."""
    ranks = [replace(r, report=i) for i, of_report in enumerate(reports) for r in of_report]
    one_job.require(ranks, names)
    return tuple(rank_record.numbered(ranks))


def _quality(job: Job, tables: dict[str, Table], of_job: Mapping[str, Table]) -> tuple[Check, ...]:
    """Return every check of the shown report and of all ranks; ``tables`` are those of the shown report."""
    shown = [*tables.values(), *of_job.values()]
    checks = [*capture_checks.checks(job.profile, shown), *rank_checks.checks(job.ranks, job.rank_table.rows or ())]
    if job.shown is not None:
        detail = f"{len(job.ranks)} ranks; every table but `ranks` shows rank {job.shown}"
        checks.append(Check("ranks", "ok", detail, "--rank N shows another"))
    return in_order(checks)


def _verdict(job: Job, judged: Sequence[Finding]) -> Verdict:
    """Return what limits the step, with the rank that the others wait for."""
    given = job.profile
    result = replace(verdict.judge(given), scope=tables_of.scope("shown device", given))
    if given.steps.source == "capture":
        result = findings.of_experiment(result, judged)
    settings = settings_of(given)
    micro_batches = None if settings is None else settings.micro_batches()
    staged = micro_batches is not None and result.step_ns is not None
    hosts_ns = rank_alone.hosts_ns(given, result.step_ns or 0) if staged else {}
    at_once = stages_in_turn.at_once_share(given) if staged else None
    held_at = late_hosts.in_words(given, job.rank_table.rows or ())
    result = rank_verdict.of_ranks(result, job.rank_table, job.shown, micro_batches, hosts_ns, at_once, held_at)
    late = rank_table.sentence(job.rank_table.rows or (), given.trace.capture.probe)
    return replace(result, evidence=(*result.evidence, late)) if late else result


def gather(path: Path, options: ReadingOptions) -> Profile:
    """Return the profile of one report, the input of all analyses. Raises as ``summarize`` does."""
    given = _gather(path, options)
    if given.trace.sampled is None or sampling.stands(given):
        return given
    return _gather(path, replace(options, whole=True))


def _gather(path: Path, options: ReadingOptions) -> Profile:

    def say(stage: str) -> None:
        if options.progress:
            options.progress(stage)

    say("reading the report")
    window = selecting.window_of(options.time_range) if options.time_range else None
    choice, most = sampling.CHOICE if options.in_parts else None, as_sqlite.bytes_of(options.max_size)
    trace = load.load(path, options.progress, window=window, choice=choice, most_bytes=most)
    trace = chosen_work(
        trace if options.process is None else one_process(trace, options.process), options.device, options.rank
    )
    if not trace.recorded & {"runtime", "kernel", "memcpy", "memset", "graph", "nvtx"}:
        raise nothing_recorded.error(path, trace)
    # Rows without an end, such as names of domains, are read in any window.
    if window is not None and not any(
        trace.frames[f]["end_ns"].count() for f in ("runtime", "kernel", "memcpy", "memset", "graph", "nvtx")
    ):
        lasts = trace.capture.duration_ns
        hint = f"The session lasts {lasts / 1e9:.3f} s" if lasts else "Give a part of the session, in seconds"
        message = f"--time-range {options.time_range}: nothing was recorded then"
        raise NsysxError(message, slug="time-range-empty", hint=hint, exit_code=EXIT_EMPTY)
    say("correlating API calls and GPU work")
    named = compiled_parts.by_region(nvtx_ranges.read(trace))
    correlated = correlate.correlate(trace)
    # Drop the raw frames once they have become ranges, calls and GPU ops: less memory is faster.
    trace = trace.without("nvtx", "runtime", "kernel", "memcpy", "memset", "graph")
    trace = replace(trace, left_out=trace.left_out + correlated.left_out)
    say("attributing to modules")
    named = sequence.repeat(named, correlated)
    attributed = attribute.attribute(trace, correlated, named)
    steps = steps_room.find(
        named,
        attributed,
        steps=options.steps,
        step_range=options.step_range,
        probes=trace.capture.probe,
        whole_in=window,
        seams=trace.seams,
        main=trace.main,
        sampled=trace.sampled,
    )
    trace = bare_apart.told_apart(trace, steps, attributed.api_calls)
    table_rows.give_back()
    say("building the breakdowns")
    ledgers = ledger.build(trace, attributed, named)
    chosen = options.steps not in (None, "all")
    return profile.gather(trace, named, attributed, steps, ledgers, only_steady=chosen, device=options.device)


def summary_of(job: Job, options: ReadingOptions) -> Summary:
    """Return the Summary of a job that ``gather_job`` gathered with these options, judged once, with all ranks known."""

    def say(stage: str) -> None:
        if options.progress:
            options.progress(stage)

    given, tables = job.profile, tables_of.Tables(job.profile, say)
    table_rows.give_back()
    say("replaying the steps")
    replay = replay_of(given)
    if options.every_table:
        dict(tables)  # makes them
    table_rows.give_back()
    say("looking for what can be changed")
    alone = timeline_data.timelines(given) if options.timelines else ()
    drawn = tuple(other_lanes.added(picture, job.beside) for picture in alone)
    judged = findings.judge(given, tables, replay, job.rank_table, job.shown)
    conclusion = _verdict(job, judged)
    others = (room for room in rank_tables.ROOMS if room is not rank_table)  # that one is made already
    of_job = {rank_table.KEY: job.rank_table} | {o.KEY: o.table(job.compared, job.alone_because) for o in others}
    quality = _quality(job, tables.made, of_job)
    tables.made |= of_job
    capture = replace(given.trace.capture, files=job.files) if job.files else given.trace.capture
    return answer.answered(
        Summary(
            version=nsysx.__version__,
            capture=capture,
            quality=quality,
            totals=report_totals.totals(given),
            steps=step_record.steps(given),
            verdict=conclusion,
            tables=tables.made if options.every_table else tables,
            replay=_replay(given, judged),
            unprofiled=_unprofiled(given),
            tried=given.trace.tried,
            findings=judged,
            timelines=drawn,
            strips=timeline_data.strips(given) if options.timelines else (),
        )
    )
