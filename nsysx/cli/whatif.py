"""``nsysx whatif``: how long the step would take with something changed."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from nsysx import units
from nsysx.advice import Answer
from nsysx.cli.command_output import console, deliver, emit, harmless
from nsysx.cli.declared_options import with_options
from nsysx.cli.shared_options import Reports, files_of, schema_option
from nsysx.option import Option
from nsysx.replay.changes import Changes, JobChanges
from nsysx.selection import Handling, Selection

if TYPE_CHECKING:
    from nsysx.answer.loop_worth import LoopWorth

#: Shown below the help: what is typed after the command, and what it does.
EXAMPLES = (
    ("train.sqlite", "everything that could be changed"),
    ("train.sqlite --remove-wait losses.py:47", "without this wait"),
    ("train.sqlite --graph all", "a step in one CUDA graph"),
    ("train.sqlite --json whatif.json", "all of it for programs"),
    ("ddp.sqlite --equal-ranks", "the same work on all ranks"),
)


@dataclass(frozen=True)
class WhatIfOutputs:
    """Where the answer goes besides the terminal."""

    json: Annotated[str | None, Option("Write the answer as JSON.", "F|-", typed_only=True)] = None


JsonSchema = Annotated[bool, schema_option("whatif")]


@with_options
def whatif(
    files: Reports,
    *,
    json_schema: JsonSchema = False,
    changes: Changes,
    of_job: JobChanges,
    wanted: WhatIfOutputs,
    selection: Selection,
    handling: Handling,
) -> None:
    """Say how long the step would take with something changed; without an option, list what can be changed."""
    from nsysx import outputs
    from nsysx.ranks import parallel_reading

    for target in files_of([wanted.json]):
        outputs.check_output(target, force=handling.force)
        outputs.check_apart([target], files)
    parallel_reading.limit_threads()
    from nsysx import pipeline
    from nsysx.answer import loop_worth
    from nsysx.ranks import job_whatif
    from nsysx.reading import report_files
    from nsysx.render import json_text
    from nsysx.replay import requested_edits as room
    from nsysx.replay import whatif_json

    options = pipeline.ReadingOptions.from_selection(selection)
    job = pipeline.gather_job(report_files.reports(files), options)
    of_ranks = changes == Changes() or of_job != JobChanges()
    of_ranks_alone = changes == Changes() and of_job != JobChanges()

    def answered() -> tuple[Answer, LoopWorth | None]:
        summary = pipeline.summary_of(job, replace(options, every_table=False))
        return summary.answer, loop_worth.of_advised(summary)

    if wanted.json is not None:
        values: dict[str, Any] = {"schema": whatif_json.WHATIF_SCHEMA}
        if not of_ranks_alone:
            values |= whatif_json.values(job.profile, changes)
            values["advised"] = whatif_json.advised(*answered()) if changes == Changes() else None
        prices = job_whatif.prices(job.ranks, of_job) if of_ranks else None
        values["job"] = None if prices is None else prices.to_json()
        deliver(wanted.json, json_text.text_of(values), force=handling.force)
        return
    together = job_whatif.lines(job.ranks, of_job) if of_ranks else []
    if of_ranks_alone:
        emit("\n".join(_fitting(together)))
        return
    first = _advised(*answered()) if changes == Changes() else ""
    emit("\n".join(_fitting(room.lines(job.profile, changes, first) + ["", *together] * bool(together))))


#: The name at the begin of a line, which its columns set apart from what is said of it.
_NAME = re.compile(r"\s*\S+(?: \S+)*\s{2,}")


def _fitting(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines, made harmless, as lines that fit the terminal: a long one goes on below what is said of its name."""
    width = console().width
    for line in map(harmless, lines):
        name = _NAME.match(line)
        indent = " " * (name.end() if name is not None and name.end() < width // 2 else 4)
        yield from textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]


def _advised(answer: Answer, loop: LoopWorth | None) -> str:
    """Return what the report advises for the list, with the report's figures; "" where it gives none.

    Of a change between steps, which no step holds, the loop per step stands for the step.
    """
    from nsysx.render.answer_text import first_clause

    do = answer.do[-1]
    what = f"{do.code}, {first_clause(do.text)}"
    if answer.then_ns is None and loop is not None:
        saves = units.share(loop.now_ns - loop.then_ns, loop.now_ns)
        return f"loop at best {units.duration(loop.then_ns)}, {saves} less: {what}"
    if answer.then_ns is None or answer.now_ns is None:
        return ""
    low, high = answer.then_low_ns, answer.then_high_ns
    between = f" ({units.duration(low)} to {units.duration(high)})" if low is not None and high is not None else ""
    saves = units.share(answer.now_ns - answer.then_ns, answer.now_ns)
    at_best = "at best " if answer.bound else ""
    return f"step {at_best}{units.duration(answer.then_ns)}{between}, {saves} less: {what}"
