"""A report as an object with records, frames, pictures and questions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from nsysx import pipeline
from nsysx.advice import Answer
from nsysx.analyses.helpers import step_record
from nsysx.api.argument_errors import python_words
from nsysx.api.files import File, framed
from nsysx.api.named_frames import NamedFrames
from nsysx.errors import EXIT_EMPTY, EXIT_USAGE, NsysxError
from nsysx.events.profile import NotRecorded as NotRecorded
from nsysx.events.profile import Profile
from nsysx.export import frames as event_frames
from nsysx.export import parquet
from nsysx.model import Capture, Check, Column, Finding, Summary, Unprofiled, Verdict
from nsysx.option import options_of
from nsysx.reading import report_files as named_inputs
from nsysx.replay import requested_edits as changes
from nsysx.replay.engine import Replay, replay_of
from nsysx.selection import Selection

if TYPE_CHECKING:
    from nsysx.render.plots import Plots


@dataclass(frozen=True)
class WhatIf:
    """How long a step takes with something changed, without the profiler's time. All ns are per step.

    ``step_ns`` = ``now_ns`` - ``saving_ns``. ``error_ns`` is the error bar of the saving. ``limit`` says what limits the step
    then, ``moves_to`` names the wait that grew most, None for none. ``changes`` describes the changes in words.
    """

    changes: tuple[str, ...]
    now_ns: int
    step_ns: int
    saving_ns: int
    error_ns: int
    limit: str
    moves_to: str | None


def _answered(profile: Profile, wanted: changes.Changes) -> WhatIf:
    """Return what a change is worth. Raises NsysxError as ``Report.whatif`` says."""
    replay = replay_of(profile)
    if not isinstance(replay, Replay):
        raise NsysxError(f"no replay: {replay.reason}", slug="whatif-no-replay", exit_code=EXIT_EMPTY)
    if not replay.trusted and wanted == changes.Changes(free_loader=True):
        # What waits for data needs no replay, as the command says, too; how far the replay is off bounds the rest.
        loading, recorded = replay.loading_ns(), replay.recorded_ns
        off = round(replay.error * recorded)
        return WhatIf(
            ("the data loader is free, as recorded",),
            recorded,
            step_ns=recorded - loading,
            saving_ns=loading,
            error_ns=off,
            limit="",
            moves_to=None,
        )
    if not replay.trusted:
        raise NsysxError(replay.misses, slug="whatif-untrusted", exit_code=EXIT_EMPTY)
    asked = changes.edits(profile, wanted)
    if not asked:
        raise NsysxError("whatif: nothing is changed", slug="whatif-empty", exit_code=EXIT_USAGE)
    done = replay.outcome(*(edit for _, edit in asked))
    words = tuple(words for words, _ in asked)
    return WhatIf(
        words,
        replay.steady.now_ns,
        step_ns=done.step_ns,
        saving_ns=done.saving_ns,
        error_ns=done.bar_ns,
        limit=done.next_limit,
        moves_to=done.moves_to,
    )


class Report(NamedFrames):
    """A capture that was read; ``nsysx.report`` returns it.

    Records: ``summary`` and its parts ``verdict``, ``answer``, ``findings``, ``unprofiled``, ``capture``, ``quality``, ``totals``.

    Frames (polars), each also as ``frame(name)``; ``names()`` lists them, ``columns(name)`` describes their columns:

    - ``steps``: a row per step of the shown process: start_ns, end_ns, cpu_ns, gpu_ns and its parts, phases.
    - tables of the report, as in its JSON: ``modules``, ``kernels``, ``waits``, ``api_calls``, ``copies``, ``phases``, ...
    - the events: ``calls`` (a row per CUDA API call) and ``ops`` (a row per kernel, copy, memset; ``op.call`` joins
      ``calls.call``), both with module, phase and step; ``ranges``, ``blocking_calls``, ``gpu_idle``, ``memory_events``, ...

    Times are ns from the start of the session. A frame that the capture does not hold raises NotRecorded, with a way to record it.

    >>> s = nsysx.report("sample_reports/masked_nonzero.sqlite.xz")
    >>> s.steps.select("index", "steady").row(5)
    (5, True)
    >>> kernels = s.ops.filter(op_kind="kernel")
    >>> kernels.height == s.totals["kernels"]
    True
    >>> s.ops.join(s.calls.select("call", api="name"), on="call").height == s.ops["call"].count()
    True
    >>> s.frame("memory_events")
    Traceback (most recent call last):
    nsysx.events.profile.NotRecorded: memory events were not recorded
    """

    def __init__(self, summary: Summary, file: Path, profile: Profile) -> None:
        """Use ``nsysx.report``."""
        self.summary = summary
        self._file, self._profile = file, profile

    def __fspath__(self) -> str:
        """Return the path of the file, so that a report can be used wherever its path can: ``nsysx.compare(a, b)``."""
        return str(self._file)

    def __repr__(self) -> str:
        """Return the files and what limits the step in a line: the first sentence of the verdict."""
        from nsysx.render.answer_words import first_sentence

        return f"<nsysx.Report {', '.join(self.capture.files)}: {first_sentence(self.verdict.sentence)}>"

    # ---- records ----------------------------------------------------------------------------------------------------

    @property
    def verdict(self) -> Verdict:
        """What limits the step: ``code``, ``sentence``, ``evidence``."""
        return self.summary.verdict

    @property
    def answer(self) -> Answer:
        """What to do, what it is worth, how sure that is, and what else was found: as the first screen of the page has it."""
        return self.summary.answer

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What each rule found, or why it cannot tell."""
        return self.summary.findings or ()

    @property
    def unprofiled(self) -> Unprofiled | None:
        """The step as it runs without a profiler, None if unknown."""
        return self.summary.unprofiled

    @property
    def capture(self) -> Capture:
        """Where the numbers come from: files, nsys, GPUs, processes."""
        return self.summary.capture

    @property
    def quality(self) -> tuple[Check, ...]:
        """How far the capture can be trusted."""
        return self.summary.quality

    @property
    def totals(self) -> Mapping[str, Any]:
        """Counts and times (ns) of everything; a value is None if the report has no table for it."""
        return self.summary.totals

    # ---- frames -----------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> pl.DataFrame:
        """A row per step of the shown process: ``index``, ``number``, ``steady``, ``start_ns``, ``end_ns``, ``cpu_ns``, ``gpu_ns``.

        ``gpu_ns`` is the sum of ``gpu_compute_ns``, ``gpu_comm_ns``, ``gpu_copy_ns``, ``gpu_memset_ns`` and ``gpu_idle_ns``.
        """
        return self.frame("steps")

    @property
    def modules(self) -> pl.DataFrame:
        """A row per module, summed over the steady steps: ``path``, ``cls``, ``calls``, ``forward_gpu_ns``, ``backward_gpu_ns``.

        ``self_gpu_ns`` excludes its children; ``launch_ns``, ``queue_ns``, ``wait_ns`` and ``sync_ns`` cover its own calls and ops;
        ``idle_blamed_ns`` is GPU idle time that ended with its work.
        """
        return self.frame("modules")

    @property
    def kernels(self) -> pl.DataFrame:
        """A row per kernel, by name: ``name``, ``family``, ``count``, ``total_ns``, ``mean_ns``, ``median_ns``, ``share`` (0 to 1)."""
        return self.frame("kernels")

    @property
    def waits(self) -> pl.DataFrame:
        """A row per place that waits, summed over the steady steps: ``api``, ``module``, ``phase``, ``file``, ``line``, ``calls``.

        ``total_ns`` is the sum of ``backlog_ns`` (work launched earlier), ``own_op_ns`` (its own copy) and ``host_ns``;
        ``idle_caused_ns`` is the GPU idle time that it causes, ``saving_ns`` what the steps save without it.
        """
        return self.frame("waits")

    @property
    def calls(self) -> pl.DataFrame:
        """A row per CUDA API call: ``call``, ``name``, ``kind``, ``thread``, ``start_ns``, ``end_ns``, ``module``, ``phase``, ``step``."""
        return self.frame("calls")

    @property
    def ops(self) -> pl.DataFrame:
        """A row per kernel, copy, memset or whole graph on a GPU: ``op``, ``op_kind``, ``name``, ``start_ns``, ``end_ns``.

        ``call`` is its row of ``calls``, ``queue_ns`` from the end of that call to its start, ``bytes`` the size of copies and
        memsets; ``device``, ``stream``, ``module``, ``phase`` and ``step`` say where it belongs.
        """
        return self.frame("ops")

    if not TYPE_CHECKING:  # a type checker knows the frames of NamedFrames, and no others

        def __getattr__(self, name: str) -> pl.DataFrame:
            """Return a frame by its name."""
            if name.startswith("_") or name not in self._frame_names():
                close = difflib.get_close_matches(name, self._frame_names(), 1)
                meant = f"did you mean {close[0]!r}?" if close else "names() lists its frames"
                raise AttributeError(f"a report has no {name!r}; {meant}")
            return self.frame(name)

    def __dir__(self) -> Iterable[str]:
        """List the frames too."""
        return sorted({*super().__dir__(), *self._frame_names()})

    def _frame_names(self) -> tuple[str, ...]:
        return "steps", *self.summary.tables, *event_frames.BY_NAME

    def names(self) -> list[str]:
        """Return the names of all frames, including those that the capture does not hold."""
        return sorted(self._frame_names())

    def frame(self, name: str) -> pl.DataFrame:
        """Return a frame by its name. Raises NotRecorded if the capture does not hold it, KeyError for no such frame."""
        if name == "steps":
            return parquet.steps(self.summary)
        if name in self.summary.tables:
            return event_frames.summary_table(self.summary, name)
        return event_frames.event_frame(self._profile, name)

    def columns(self, name: str) -> pl.DataFrame:
        """Return a description of a frame: column, type, unit, meaning. Raises KeyError for no such frame.

        >>> s = nsysx.report("sample_reports/masked_nonzero.sqlite.xz")
        >>> s.columns("ops").filter(column="queue_ns").row(0)
        ('queue_ns', 'Int64', 'ns', 'max(0, start - call end)')
        """
        columns: tuple[Column, ...]
        if name == "steps":
            columns = step_record.STEPS
        elif name in self.summary.tables:
            columns = self.summary.tables[name].columns
        else:
            columns = event_frames.BY_NAME[name].columns
        rows = [(c.name, str(event_frames.column_type(c)), c.unit, c.meaning) for c in columns]
        return pl.DataFrame(rows, schema=dict.fromkeys(("column", "type", "unit", "meaning"), pl.String), orient="row")

    # ---- questions --------------------------------------------------------------------------------------------------

    @python_words
    def whatif(
        self,
        *,
        remove_wait: str | Sequence[str] = (),
        graph: str | Sequence[str] = (),
        kernel: str | Sequence[str] = (),
        remove_module: str | Sequence[str] = (),
        remove_sync_calls: str | Sequence[str] = (),
        overlap_copies: bool = False,
        pin_copies: bool = False,
        free_loader: bool = False,
        remove_alloc: bool = False,
        fuse_optimizer: bool = False,
        no_empty_cache: bool = False,
        no_host: bool = False,
        no_comm: bool = False,
    ) -> WhatIf:
        """Return how long the step takes with all these changes made: the options of ``nsysx whatif``, with the same meaning.

        Raises NsysxError if nothing is asked, a name matches nothing, or there is no trusted replay.

        >>> s = nsysx.report("sample_reports/masked_nonzero.sqlite.xz")
        >>> answer = s.whatif(remove_module="MaskedLoss")
        >>> answer.saving_ns == answer.now_ns - answer.step_ns > 20_000_000
        True
        """
        return _answered(self._profile, options_of(changes.Changes, locals()))

    # ---- pictures ---------------------------------------------------------------------------------------------------

    @property
    def plot(self) -> Plots:
        """The pictures: ``step()``, ``timeline()``, ``memory()``, ``ranks()``, ``flame()``, each a figure of matplotlib.

        >>> s = nsysx.report("sample_reports/masked_nonzero.sqlite.xz")
        >>> figure = s.plot.step()
        >>> figure.axes[0].get_xlabel()
        'one step, ms'
        """
        from nsysx.render.plots import Plots

        return Plots(self.summary)

    # ---- outputs ----------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the Summary as plain values, by the contract ``nsysx.summary/1``."""
        return self.summary.to_json()

    def to_html(self, *, redact: bool = True) -> str:
        """Return the page that ``nsysx report --html`` writes; ``redact`` hides host, user and paths."""
        from nsysx.render import html_page

        return html_page.render(self.summary, redact=redact)

    def to_markdown(self, *, redact: bool = True) -> str:
        """Return the answer as Markdown for a ticket."""
        from nsysx.render import markdown

        return markdown.render(self.summary, redact=redact)

    def _repr_html_(self) -> str:
        """Return the first screen of the page for notebooks, in a frame of its own."""
        from nsysx.render import html_page

        return framed(html_page.first(self.summary), "The answer of nsysx")


@python_words
def report(
    *files: File,
    steps: str | None = None,
    step_range: str | None = None,
    time_range: str | None = None,
    device: int | None = None,
    rank: int | None = None,
    every_step: bool = False,
    max_size: str = Selection.max_size,
    jobs: int | None = None,
) -> Report:
    """Read a report, or the reports of all ranks of one job, and return what ``nsysx report`` says about it.

    ``steps`` is "A:B" or "all", ``step_range`` a regular expression for the ranges that are the steps, ``time_range`` "A:B" in
    seconds of the session. Of a long capture some steps are read, all of them with ``every_step``. Several files are ranks of one
    job: the tables show ``rank`` (by default that of the first file), ``ranks`` compares all; ``jobs`` files are read at once.
    No more than ``max_size`` of a packed file is unpacked.
    Raises NsysxError if a file cannot be read, is no report or is empty.

    >>> s = nsysx.report("sample_reports/gpt.sqlite.xz")
    >>> s.totals["kernels"], s.modules.height > 10
    (6286, True)
    """
    selection = options_of(Selection, locals())
    if not files:
        raise NsysxError("report: no file is given", slug="no-file", exit_code=EXIT_USAGE)
    paths = named_inputs.reports([Path(f) for f in files])
    options = pipeline.ReadingOptions.from_selection(selection, timelines=True)
    job = pipeline.gather_job(paths, options, workers=jobs)
    return Report(pipeline.summary_of(job, options), paths[job.report], job.profile)
