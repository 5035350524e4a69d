"""``nsysx report``: where the step time went, in the terminal or as a page, JSON, Markdown or CSV."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nsysx import outputs, redaction
from nsysx.cli.declared import with_options
from nsysx.cli.options import Reports, files_of
from nsysx.cli.talk import answering, console, emit, wrote
from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.option import Option
from nsysx.selection import Handling, Selection

#: Shown below the help: what is typed after the command, and what it does.
EXAMPLES = (
    ("train.sqlite", "the answer"),
    ("train.sqlite --html page.html", "and the page"),
    ("train.sqlite --full --top 20", "every table, 20 rows each"),
    ("job.rank0.sqlite job.rank1.sqlite", "the ranks of one job; or their folder"),
)

if TYPE_CHECKING:
    from nsysx.model import Summary


def _print_schema(wanted: bool) -> None:
    if wanted:
        from nsysx.render import json_text, summary_schema

        emit(json_text.text_of(dict(summary_schema.schema())))
        raise typer.Exit


JsonSchema = Annotated[
    bool,
    typer.Option("--json-schema", callback=_print_schema, is_eager=True, help="Print the JSON Schema of the Summary."),
]


@dataclass(frozen=True)
class Wanted:
    """What is written and printed: the name of a file, "-" for stdout, or None."""

    html: Annotated[Path | None, Option("Write the page to F.", "F", typed_only=True)] = None
    json: Annotated[str | None, Option("Write the Summary as JSON.", "F|-", typed_only=True)] = None
    markdown: Annotated[str | None, Option("Write Markdown for a ticket.", "F|-", typed_only=True)] = None
    csv: Annotated[str | None, Option("Write every table as DIR/TABLE.csv.", "DIR", typed_only=True)] = None
    brief: Annotated[str | None, Option("Write the answer for programs: a few kB of JSON.", "F|-", typed_only=True)] = (
        None
    )
    cluster: Annotated[str | None, Option("Read the reports on a dask cluster.", "local|ADDRESS", typed_only=True)] = (
        None
    )
    full: Annotated[bool, Option("Print all tables, not only the answer.")] = False
    section: Annotated[tuple[str, ...], Option("Print only this section (repeatable).", "NAME")] = ()

    @property
    def every_table(self) -> bool:
        """Whether something shows or writes every table; the answer and ``--brief`` read few of them."""
        written = (self.html, self.json, self.markdown, self.csv)
        return any(name is not None for name in written) or self.full or bool(self.section)

    @property
    def pictures(self) -> bool:
        """Whether something is drawn."""
        return self.html is not None

    def require_possible(self, *, force: bool) -> list[Path]:
        """Return the files and the folder to write. Raises NsysxError unless all of them can be written."""
        if (self.json, self.markdown, self.brief).count("-") > 1:
            message = "only one of --json -, --markdown - and --brief - can write to stdout"
            raise NsysxError(message, slug="two-results", exit_code=EXIT_USAGE)
        if self.csv is not None and not self.csv.strip():
            raise NsysxError("--csv: no folder is named", slug="output-name", exit_code=EXIT_USAGE)
        named = [str(name) for name in (self.html, self.json, self.markdown, self.brief, self.csv) if name is not None]
        if option := next((name for name in named if name.startswith("-") and name != "-"), ""):
            hint = "Name a file for the option before it"
            raise NsysxError(f"{option}: is an option, not a file", slug="output-name", hint=hint, exit_code=EXIT_USAGE)
        targets = files_of((self.html, self.json, self.markdown, self.brief))
        for path in targets:
            outputs.check_output(path, force=force)
        if self.csv is None:
            return targets
        outputs.check_folder(Path(self.csv))
        return [*targets, Path(self.csv)]

    def texts(self, summary: Summary, *, redact: bool) -> dict[str, str]:
        """Return the outputs as texts by the name of the file or "-", without the CSV tables."""
        texts: dict[str, str] = {}
        if self.html is not None:
            from nsysx.render import html_page

            texts[str(self.html)] = html_page.render(summary, redact=redact)
        if self.json is not None:
            from nsysx.render import json_text

            texts[self.json] = json_text.render(summary)
        if self.markdown is not None:
            from nsysx.render import markdown as markdown_page

            texts[self.markdown] = markdown_page.render(summary, redact=redact)
        if self.brief is not None:
            from nsysx.render import brief

            texts[self.brief] = brief.of(summary, redact=redact)
        return texts


@with_options
def report(
    files: Reports, *, wanted: Wanted, json_schema: JsonSchema = False, selection: Selection, handling: Handling
) -> None:
    """Say where the step time went: in the terminal, or as a page, JSON, Markdown or CSV."""
    from nsysx.progress import Progress

    targets = wanted.require_possible(force=handling.force)
    from nsysx.ranks import parallel_reading

    parallel_reading.limit_threads()
    from nsysx import pipeline
    from nsysx.reading import inputs

    if wanted.pictures:
        from nsysx.render.charts import style

        style.import_early()
    with Progress() as progress:
        reports = inputs.reports(files)
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
        progress("writing")
        texts = wanted.texts(summary, redact=handling.redact)
        written = _write(summary, texts, wanted, force=handling.force)
    if "-" in texts:
        emit(texts["-"])
    elif wanted.full or wanted.section:
        _tables(summary, handling.top, wanted.section)
    else:
        _answer(summary, files, reports[0])
    _say_written(written, wanted.csv)


def _say_written(written: list[Path], csv: str | None) -> None:
    """Say which files were written; the tables in one line."""
    tables = [path for path in written if csv is not None and path.suffix == ".csv" and path.parent == Path(csv)]
    for path in written:
        if path not in tables:
            wrote(path)
    if csv is not None:
        wrote(Path(csv), f" ({len(tables)} tables)")


def _write(summary: Summary, texts: dict[str, str], wanted: Wanted, *, force: bool) -> list[Path]:
    """Write the texts that go to files, and the tables as CSV; return the files."""
    written = {Path(name): text for name, text in texts.items() if name != "-"}
    if wanted.csv is not None:
        return list(_write_tables(summary, Path(wanted.csv), written, force=force))
    outputs.write_texts(written, force=force)
    return list(written)


def _write_tables(summary: Summary, folder: Path, others: dict[Path, str], *, force: bool) -> dict[Path, str]:
    """Write the recorded tables, each to its own file, together with the ``others``: all or none."""
    from nsysx.render import csv_text

    tables = {folder / f"{key}.csv": table for key, table in summary.tables.items() if table.rows is not None}
    texts = others | {path: csv_text.render(table) for path, table in tables.items()}
    with outputs.folder_for(folder):
        outputs.write_texts(texts, force=force)
    return texts


#: If more files than this were given, the commands that the answer suggests abbreviate them.
_MOST_TYPED = 4


def _answer(summary: Summary, files: list[Path], first: Path) -> None:
    from nsysx.render import terminal_answer
    from nsysx.render.safe_text import clean

    shown = [*map(str, files)] if len(files) <= _MOST_TYPED else [str(files[0]), "...", str(files[-1])]
    with answering():
        terminal_answer.render(summary, console(), clean(shlex.join(shown), 1000), _recorded(first))


def _recorded(report: Path) -> str:
    """Return the command that ``nsysx run`` recorded a report of, as a shell takes it, "" where it is not known."""
    from nsysx.reading.beside import run_json
    from nsysx.render.safe_text import clean

    words = run_json(report).get("command")
    return clean(redaction.shell([*map(str, words)]), 300) if isinstance(words, list) else ""


def _tables(summary: Summary, top: int, section: Sequence[str]) -> None:
    from nsysx.render import terminal

    with answering():
        terminal.render(summary, console(), top=top, sections=section or None)
