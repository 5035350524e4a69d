"""The reports that stay loaded, and what they answer as JSON of 2.5 kB."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nsysx.answer import answered
from nsysx.api import report as read
from nsysx.api.report_object import Report
from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.model import Summary
from nsysx.reading import report_files, tried
from nsysx.render import answer_words as answers
from nsysx.render import brief, finding_ids, insight, invocation, table_json
from nsysx.render.safe_text import clean
from nsysx.render.small_json import Json, cut, text_of
from nsysx.serving.serving_bounds import MOST_LOADED

Stamp = tuple[tuple[str, int, int], ...]


def _stamp(files: list[Path]) -> Stamp:
    """Return what changes when a file is written: name, time and size."""
    stats = [(file, file.stat()) for file in files if file.exists()]
    return tuple((str(file), stat.st_mtime_ns, stat.st_size) for file, stat in stats)


class LoadedReport:
    """One report as it was read, with what was tried since then in its answer."""

    def __init__(self, path: Path) -> None:
        """Read a report. Raises NsysxError if it cannot be read."""
        self.path = path
        self.files = report_files.reports([path])
        self.stamp = _stamp(self.files)
        self.report: Report = read(*self.files)
        self.typed = invocation.of_files(self.files, redact=False)
        self._summary, self._brief = self.report.summary, ""
        self._tried: Stamp = self._stamp_of_tried()

    @property
    def current(self) -> bool:
        """Whether its files are those that were read."""
        return _stamp(self.files) == self.stamp

    @property
    def summary(self) -> Summary:
        """The Summary, decided again if something was tried since."""
        if (stamp := self._stamp_of_tried()) != self._tried:
            self._tried, self._brief = stamp, ""
            self._summary = answered(replace(self.report.summary, tried=tried.beside(self.files[0])))
        return self._summary

    def _stamp_of_tried(self) -> Stamp:
        return _stamp(tried.files_beside(self.files[0]))

    def facts(self) -> str:
        """Return what was read, and what can be asked."""
        summary = self.summary
        content: Json = {
            "loaded": str(self.path),
            "facts": [cut(fact, 160) for fact in answers.build(summary, redact=False).facts],
            "limit": summary.verdict.code,
            "findings": [
                name
                for name, f in zip(finding_ids.ids_of(summary), summary.findings or (), strict=True)
                if f.verdict == "found"
            ][:8],
            "tables": " ".join(key for key in table_json.names(summary) if self._holds(key)),
            "recorded_command": self.typed.program,
        }
        return text_of(content)

    def _holds(self, key: str) -> bool:
        table = self.summary.tables.get(key)
        return table is None or bool(table.rows)

    def answer(self) -> str:
        """Return the first answer."""
        summary = self.summary
        self._brief = self._brief or brief.answer_json(summary, self.typed, redact=False)
        return self._brief

    def insight(self, wanted: str) -> str:
        """Return one finding whole. Raises NsysxError if there is none of this id."""
        return insight.insight_json(self.summary, wanted, self.typed, redact=False)

    def table(self, name: str, columns: list[str], top: int, where: list[str]) -> str:
        """Return rows of a table. Raises NsysxError for names that do not exist."""
        return table_json.rows_json(self.summary, name, columns=columns, top=top, where=where, redact=False)

    def whatif(self, changes: Mapping[str, Any]) -> str:
        """Return what changes would save, replayed. Raises NsysxError as ``Report.whatif`` does."""
        for name in changes:
            if name not in WHATIF:
                hint = f"There are: {', '.join(WHATIF)}"
                raise NsysxError(f"whatif: no change {name[:40]}", slug="whatif-name", hint=hint, exit_code=EXIT_USAGE)
        return text_of({key: _shortened_value(value) for key, value in asdict(self.report.whatif(**changes)).items()})


#: The changes that can be replayed.
WHATIF = tuple(name for name in Report.whatif.__annotations__ if name != "return")


def _shortened_value(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [clean(item, 200) for item in value[:6]]
    return clean(value, 400) if isinstance(value, str) else value


class Shelf:
    """The loaded reports; ``last`` is the one that questions are about."""

    def __init__(self) -> None:
        self._loaded: dict[Path, LoadedReport] = {}

    def load(self, path: Path) -> LoadedReport:
        """Return a report, read again only if its files have changed. Raises NsysxError if it cannot be read."""
        key = path.absolute()
        kept = self._loaded.pop(key, None)
        self._loaded[key] = kept if kept is not None and kept.current else LoadedReport(key)
        while len(self._loaded) > MOST_LOADED:
            del self._loaded[next(iter(self._loaded))]
        return self._loaded[key]

    @property
    def last(self) -> LoadedReport:
        """The report that was loaded last. Raises NsysxError if there is none."""
        if not self._loaded:
            raise NsysxError("no report is loaded", slug="mcp-no-report", hint="Call load(path) first", exit_code=2)
        return next(reversed(self._loaded.values()))
