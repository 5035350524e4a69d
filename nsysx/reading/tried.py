"""What ``nsysx try`` measured on the program of a report: NAME.try.json beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nsysx import records
from nsysx.advice import Tried, verdict_of
from nsysx.reading import opening, trials_log
from nsysx.reading.sidecar_files import report_name, run_json
from nsysx.redaction import redacted

#: What ``nsysx try`` writes; a later major version is not read.
SCHEMA = "nsysx.try/1"


def file_beside(report: Path) -> Path:
    """Return where ``nsysx try`` leaves what it measured: ``a.try.json`` for ``a.sqlite.xz``."""
    report = report if report.name else opening.real(report)  # "." has no name
    return report.with_name(f"{report_name(report)}.try.json")


def files_beside(report: Path) -> list[Path]:
    """Return the files beside a report that say what was tried."""
    return [file_beside(report), trials_log.log_beside(report)]


def beside(report: Path) -> tuple[Tried, ...]:
    """Return what was tried: as NAME.try.json has it, and what NAME.log.jsonl says of these and other changes later.

    () if there are no such files or nothing usable in them.
    """
    try:
        last = of_json(opening.json_beside(file_beside(report)))
    except records.UnreadableError:
        last = ()
    return tuple(({tried.change: tried for tried in last} | {t.change: t for t in trials_log.logged(report)}).values())


def report_of(command: Sequence[str], folder: Path) -> Path | None:
    """Return the newest report in a folder that ``nsysx run`` made of this command, None if there is none."""
    reports, shown = [], redacted(command)
    for file in folder.glob("*.run.json"):
        report = file.with_name(file.name.removesuffix(".run.json") + ".sqlite")
        recorded = run_json(report).get("command")
        if report.is_file() and isinstance(recorded, list) and _same_command(redacted([*map(str, recorded)]), shown):
            reports.append(report)
    return max(reports, key=lambda f: f.stat().st_mtime_ns, default=None)


def _same_command(words_now: Sequence[object], other: Sequence[str]) -> bool:
    """Return whether two commands are the same, however their program was found."""
    programs = {Path(str(words[0])).name for words in (words_now, other) if words}
    return len(programs) == 1 and list(words_now[1:]) == list(other[1:])


def of_json(content: object) -> tuple[Tried, ...]:
    """Return the changes of a ``nsysx.try/1``, also those made together. Raises records.UnreadableError."""
    content = records.mapping(content, "this")
    if content.get("schema") != SCHEMA:
        raise records.UnreadableError("this is no nsysx.try/1")
    now = records.mapping(content.get("baseline"), "baseline").get("step_ns")
    trials = [*records.rows(content.get("trials"), "trials")]
    if content.get("together") is not None:
        trials.append(records.mapping(content["together"], "together"))
    return tuple(_tried(trial, now) for trial in trials)


def _tried(trial: Mapping[str, Any], now: object) -> Tried:
    measured = trial.get("ratio") is not None
    times = {"now_ns": now, **{f"{key}_ns": trial.get(f"{source}_ns") for key, source in _TIMES}}
    whole = {
        k: round(v) if measured and isinstance(v, int | float) and abs(v) < float("inf") else None
        for k, v in times.items()
    }
    outcome = verdict_of(trial.get("verdict", ""), other_results=bool(trial.get("other_results")))
    given = {**trial, **whole, "verdict": outcome, "codes": trial.get("findings", []), "place": trial.get("where", "")}
    return records.record(Tried, given, "trial")


_TIMES = (("then", "step"), ("low", "low"), ("high", "high"))
