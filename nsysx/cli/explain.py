"""``nsysx explain``: the manual of a finding, and what a call, a word or a column means."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from nsysx import nsys_messages
from nsysx.cli.command_output import emit
from nsysx.errors import EXIT_USAGE, NsysxError

#: Shown below the help: what is typed after the command, and what it does.
EXAMPLES = (
    ("NSX101", "a finding"),
    ("cudaHostAlloc", "a CUDA call"),
    ("launch latency", "a word of a report"),
    ("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", "a message of nsys or CUPTI"),
    ("columns", "every column of every table"),
    ("many-ranks", "torchrun, Slurm, Kubernetes"),
)


def _rule_manual(name: str) -> str | None:
    """Return the manual of a finding, None if there is none; polars is only loaded for names that could be findings."""
    if not name.upper().startswith("NSX") and "-" not in name:
        return None
    from nsysx import findings

    return findings.manual(name)


def _message_manual(text: str) -> str | None:
    """Return cause and remedy of a message of nsys or CUPTI, None for a text that is none."""
    message = nsys_messages.recognized(text)
    if message is None:
        return None
    capital = "" if message.cause.startswith("nsys") else message.cause[:1].upper()
    cause = f"{capital}{message.cause[len(capital) :]}"
    sentences = (f"{part}." for part in (cause, f"What to do: {message.remedy}"))
    lines = (textwrap.fill(s, width=100, initial_indent="  ", subsequent_indent="  ") for s in sentences)
    return "\n".join([text.strip().partition("\n")[0], *lines])


def _as_typed(names: list[str]) -> list[str]:
    """Return the names; several words without quotes that are one name, or a message of nsys, are one."""
    from nsysx.render import glossary

    whole = " ".join(names)
    return [whole] if glossary.lookup(whole) or nsys_messages.recognized(whole) else names


def explain(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Codes of findings, CUDA API functions, words of a report."),
    ] = None,
) -> None:
    """Print the manual of a finding, or what a CUDA call or word means; without a name, list all names.

    "definitions" are the exact words of a report, "columns" all tables of the JSON; the key of a table gives one. "recording" says
    what can be recorded, "cost" what that costs, "accuracy" how accurate the numbers are, "frameworks" what to expect of Trainer,
    Lightning, generate and others, "many-ranks" how to read the reports of a job. The list names all documents.
    """
    from nsysx.render import dictionary, glossary

    if not names:
        from nsysx import findings

        rules = [f"{rule.RULE.code}  {rule.RULE.slug}: {rule.RULE.title}" for rule in findings.rules()]
        tables = [*dictionary.TEXTS, *dictionary.keys()]
        emit("\n".join([*rules, *(entry.name for entry in glossary.entries()), *tables]))
        return
    texts = []
    for name in _as_typed(names):
        entry = glossary.lookup(name)
        text = (
            glossary.manual(entry) if entry else _rule_manual(name) or dictionary.lookup(name) or _message_manual(name)
        )
        if text is None:
            near = ", ".join(glossary.nearest(name)) or "none; nsysx explain lists all names"
            raise NsysxError(
                f"{name[:100]!r} is unknown", slug="no-such-name", hint=f"Near: {near}", exit_code=EXIT_USAGE
            )
        texts.append(text)
    emit("\n\n".join(texts))
