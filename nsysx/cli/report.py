"""``nsysx report``: where the step time went, in the terminal or as a page, JSON, Markdown or CSV."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from nsysx import outputs
from nsysx.cli.command_output import answering, console, emit, talk, wrote
from nsysx.cli.declared_options import with_options
from nsysx.cli.shared_options import ReportsOrSummary, files_of
from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.option import Option
from nsysx.selection import Handling, Selection

#: Shown below the help: what is typed after the command, and what it does.
EXAMPLES = (
    ("train.sqlite", "the answer"),
    ("train.sqlite --html page.html", "and the page"),
    ("train.sqlite --open", "the page in the browser"),
    ("summary.json --html page.html", "the page of what --json wrote, without timelines"),
    ("train.sqlite --plots pictures", "every picture, for slides and papers"),
    ("train.sqlite --full --top 20", "every table, 20 rows each"),
    ("train.sqlite --brief -", "the answer for programs; then --insight ID, --table NAME"),
    ("job.rank0.sqlite job.rank1.sqlite", "the ranks of one job; or their folder"),
)

if TYPE_CHECKING:
    from nsysx.model import Summary
    from nsysx.render.charts.beside import DrawingProcess


def _print_schema(wanted: bool) -> None:
    if wanted:
        from nsysx.render import json_text, summary_schema

        emit(json_text.text_of(dict(summary_schema.schema())))
        raise typer.Exit


def _print_brief_schema(wanted: bool) -> None:
    if wanted:
        from nsysx.render import brief_schema, json_text

        emit(json_text.text_of(dict(brief_schema.schema())))
        raise typer.Exit


JsonSchema = Annotated[
    bool,
    typer.Option("--json-schema", callback=_print_schema, is_eager=True, help="Print the JSON Schema of the Summary."),
]
BriefSchema = Annotated[
    bool,
    typer.Option(
        "--brief-schema",
        callback=_print_brief_schema,
        is_eager=True,
        help="Print that of --brief, --insight and --table.",
    ),
]


@dataclass(frozen=True)
class ReportOutputs:
    """What is written and printed: the name of a file, "-" for stdout, or None."""

    html: Annotated[Path | None, Option("Write the page to F.", "F", typed_only=True)] = None
    json: Annotated[str | None, Option("Write the Summary as JSON.", "F|-", typed_only=True)] = None
    markdown: Annotated[str | None, Option("Write Markdown for a ticket.", "F|-", typed_only=True)] = None
    open: Annotated[bool, Option("Open the page in the browser; without --html, a copy of it.", typed_only=True)] = (
        False
    )
    csv: Annotated[str | None, Option("Write every table as DIR/TABLE.csv.", "DIR", typed_only=True)] = None
    plots: Annotated[
        str | None, Option("Write every picture as DIR/NAME.svg, .png and .pdf.", "DIR", typed_only=True)
    ] = None
    brief: Annotated[str | None, Option("Write the answer for programs: 2.5 kB of JSON.", "F|-", typed_only=True)] = (
        None
    )
    insight: Annotated[str | None, Option("Print this finding of --brief as JSON.", "ID", typed_only=True)] = None
    table: Annotated[
        str | None, Option("Print rows of this table as JSON; --top N of them.", "NAME", typed_only=True)
    ] = None
    where: Annotated[
        tuple[str, ...], Option("Only rows of --table like COLUMN=VALUE, ~PART, >N, <N.", "TEST", typed_only=True)
    ] = ()
    columns: Annotated[str | None, Option("Only these columns of --table.", "A,B", typed_only=True)] = None
    cluster: Annotated[str | None, Option("Read the reports on a dask cluster.", "local|ADDRESS", typed_only=True)] = (
        None
    )
    full: Annotated[bool, Option("Print all tables, not only the answer.")] = False
    section: Annotated[tuple[str, ...], Option("Print only this section, or --json it (repeatable).", "NAME")] = ()

    @property
    def every_table(self) -> bool:
        """Whether something shows or writes every table; the answer and ``--brief`` read few of them."""
        written = (self.html, self.json, self.markdown, self.csv, self.plots)
        asked = self.table is not None or self.insight is not None
        return any(name is not None for name in written) or self.full or bool(self.section) or asked

    @property
    def folders(self) -> list[Path]:
        """The folders that are written."""
        return [Path(name) for name in (self.csv, self.plots) if name is not None]

    @property
    def pictures(self) -> bool:
        """Whether something is drawn."""
        return self.html is not None or self.plots is not None

    def require_possible(self, *, force: bool) -> list[Path]:
        """Return the files and the folder to write. Raises NsysxError unless all of them can be written."""
        printed = (self.insight is not None) + (self.table is not None)
        if (self.json, self.markdown, self.brief).count("-") + printed > 1:
            message = "only one of --json -, --markdown -, --brief -, --insight and --table can write to stdout"
            raise NsysxError(message, slug="two-results", exit_code=EXIT_USAGE)
        if (self.where or self.columns is not None) and self.table is None:
            message = "--where and --columns choose from a --table"
            raise NsysxError(message, slug="no-table", hint="Name one, such as --table waits", exit_code=EXIT_USAGE)
        folders = {"--csv": self.csv, "--plots": self.plots}
        if option := next((option for option, name in folders.items() if name is not None and not name.strip()), ""):
            raise NsysxError(f"{option}: no folder is named", slug="output-name", exit_code=EXIT_USAGE)
        written = (self.html, self.json, self.markdown, self.brief, *folders.values())
        named = [str(name) for name in written if name is not None]
        if option := next((name for name in named if name.startswith("-") and name != "-"), ""):
            hint = "Name a file for the option before it"
            raise NsysxError(f"{option}: is an option, not a file", slug="output-name", hint=hint, exit_code=EXIT_USAGE)
        targets = files_of((self.html, self.json, self.markdown, self.brief))
        for path in targets:
            outputs.check_output(path, force=force)
        for folder in self.folders:
            outputs.check_folder(folder)
        return [*targets, *self.folders]

    def _json(self, summary: Summary) -> str:
        """Return the JSON of the Summary, or of the chosen sections."""
        from nsysx.render import json_text

        if not self.section:
            return json_text.render(summary)
        from nsysx.render import sections

        return json_text.text_of(sections.to_json(summary, self.section))

    def texts(
        self, summary: Summary, files: Sequence[Path], *, top: int, redact: bool, drawing: DrawingProcess | None
    ) -> dict[str, str]:
        """Return the outputs as texts by the name of the file or "-", without the CSV tables; ``files`` are the reports."""
        texts: dict[str, str] = {}
        if self.html is not None:
            from nsysx.render import html_page

            texts[str(self.html)] = html_page.render(summary, redact=redact, drawing=drawing)
        if self.json is not None:
            texts[self.json] = self._json(summary)
        if self.markdown is not None:
            from nsysx.render import markdown as markdown_page

            texts[self.markdown] = markdown_page.render(summary, redact=redact)
        if self.brief is not None:
            from nsysx.render import brief, invocation

            texts[self.brief] = brief.answer_json(summary, invocation.of_files(files, redact=redact), redact=redact)
        if self.insight is not None:
            from nsysx.render import insight, invocation

            typed = invocation.of_files(files, redact=redact)
            texts["-"] = insight.insight_json(summary, self.insight, typed, redact=redact)
        if self.table is not None:
            from nsysx.render import table_json

            columns = [name.strip() for name in (self.columns or "").split(",") if name.strip()]
            texts["-"] = table_json.rows_json(
                summary, self.table, columns=columns, top=top, where=self.where, redact=redact
            )
        return texts


@with_options
def report(
    files: ReportsOrSummary,
    *,
    wanted: ReportOutputs,
    json_schema: JsonSchema = False,
    brief_schema: BriefSchema = False,
    selection: Selection,
    handling: Handling,
) -> None:
    """Say where the step time went: in the terminal, or as a page, JSON, Markdown or CSV."""
    from nsysx.progress import Progress

    if wanted.open and wanted.html is None:
        wanted = replace(
            wanted, html=Path(tempfile.mkdtemp(prefix="nsysx-")) / f"{files[0].name.partition('.')[0]}.html"
        )
    targets = wanted.require_possible(force=handling.force)
    with _drawing(wanted) as drawing, Progress() as progress:
        summary, reports = _summary(files, targets, wanted, selection, handling, progress)
        progress("writing")
        texts = wanted.texts(summary, reports, top=handling.top, redact=handling.redact, drawing=drawing)
        written = _write(summary, texts, wanted, redact=handling.redact, force=handling.force)
    if "-" in texts:
        emit(texts["-"])
    elif wanted.full or wanted.section:
        _tables(summary, handling.top, wanted.section)
    else:
        _answer(summary, reports if files[0].suffix.lower() == ".json" else files, reports)
    _say_written(written, wanted)
    if wanted.open and wanted.html is not None:
        _open(wanted.html)


@contextlib.contextmanager
def _drawing(wanted: ReportOutputs) -> Iterator[DrawingProcess | None]:
    """Run with a process that draws the pictures of the page, None where none is made or none can be."""
    from nsysx.ranks import parallel_reading

    parallel_reading.limit_threads()
    if not wanted.pictures:
        yield None
        return
    from nsysx import pipeline  # noqa: F401 - the process has what this one has imported
    from nsysx.render import html_page  # noqa: F401
    from nsysx.render.charts import beside, style

    drawing = beside.DrawingProcess.start() if wanted.html is not None else None
    if drawing is None or wanted.plots is not None:
        style.import_early()
    with drawing or contextlib.nullcontext():
        yield drawing


def _summary(
    files: list[Path],
    targets: list[Path],
    wanted: ReportOutputs,
    selection: Selection,
    handling: Handling,
    progress: Callable[[str], None],
) -> tuple[Summary, list[Path]]:
    """Return the Summary of the reports, or the one that a JSON file holds, and the reports that it is of."""
    from nsysx import pipeline
    from nsysx.reading import report_files

    if any(file.suffix.lower() == ".json" for file in files):
        outputs.check_apart(targets, files)
        summary = _from_json(files, selection, pictures=wanted.pictures)
        return summary, [files[0].parent / name for name in summary.capture.files] or files
    reports = report_files.reports(files)
    outputs.check_apart(targets, [*files, *reports])
    summary = pipeline.summarize(
        reports,
        selection,
        timelines=wanted.pictures,
        every_table=wanted.every_table,
        workers=handling.jobs,
        cluster=wanted.cluster,
        progress=progress,
    )
    return summary, reports


def _from_json(files: Sequence[Path], selection: Selection, *, pictures: bool) -> Summary:
    """Return the Summary that ``--json`` wrote. Raises NsysxError, exit code 2, where more is asked of it than it holds."""
    name = files[0].name
    if len(files) > 1:
        message = f"{name}: a Summary stands alone"
        hint = "Of several ranks, write one of all their reports: nsysx report RANKS --json FILE.json"
        raise NsysxError(message, slug="several-summaries", hint=hint, exit_code=EXIT_USAGE)
    if selection != Selection():
        message = f"{name}: a Summary covers what was chosen when it was written"
        hint = "Give its report to choose steps, a device, a rank or a time range"
        raise NsysxError(message, slug="summary-selection", hint=hint, exit_code=EXIT_USAGE)
    from nsysx.comparing import side_inputs
    from nsysx.render import declared_tables

    summary = declared_tables.of_json(side_inputs.summary_of(files[0]))
    return declared_tables.without_timelines(summary) if pictures else summary


def _open(page: Path) -> None:
    """Open a page in the browser, or say where it is if there is none."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        talk(f"nsysx: no browser here: open {page.resolve()}")


def _say_written(written: list[Path], wanted: ReportOutputs) -> None:
    """Say which files were written; those of a folder in one line."""
    of_folder = {folder: [p for p in written if p.parent == folder] for folder in wanted.folders}
    named = files_of((wanted.html, wanted.json, wanted.markdown, wanted.brief))
    for path in written:
        if path in named:
            wrote(path)
    for name, what in ((wanted.csv, "tables"), (wanted.plots, "pictures")):
        if name is not None:
            endings = {".csv"} if what == "tables" else {".svg"}
            wrote(Path(name), f" ({sum(p.suffix in endings for p in of_folder[Path(name)])} {what})")


def _write(summary: Summary, texts: dict[str, str], wanted: ReportOutputs, *, redact: bool, force: bool) -> list[Path]:
    """Write the texts that go to files, the tables as CSV and the pictures: all or none; return the files."""
    contents: dict[Path, outputs.Content] = {Path(name): text for name, text in texts.items() if name != "-"}
    if wanted.csv is not None:
        from nsysx.render import csv_text

        tables = {key: table for key, table in summary.tables.items() if table.rows is not None}
        contents |= {Path(wanted.csv) / f"{key}.csv": csv_text.render(table) for key, table in tables.items()}
    if wanted.plots is not None:
        from nsysx.render import plots

        pictures = plots.files(summary, redact=redact)
        contents |= {Path(wanted.plots) / name: _bytes(data) for name, data in pictures.items()}
    with contextlib.ExitStack() as folders:
        for folder in wanted.folders:
            folders.enter_context(outputs.folder_for(folder))
        outputs.write_files(contents, force=force)
    return list(contents)


def _bytes(data: bytes) -> Callable[[BinaryIO], object]:
    """Return what writes these bytes."""
    return lambda file: file.write(data)


def _answer(summary: Summary, files: list[Path], reports: list[Path]) -> None:
    from nsysx.render import invocation, terminal_answer

    typed = invocation.typed_here(files, reports)
    with answering():
        terminal_answer.render(summary, console(), typed.reports, typed.program, typed.folder)


def _tables(summary: Summary, top: int, section: Sequence[str]) -> None:
    from nsysx.render import terminal

    with answering():
        terminal.render(summary, console(), top=top, sections=section or None)
