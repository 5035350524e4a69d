"""Every command that an output proposes runs as it stands, from a folder in which there is nothing.

A page and Markdown are read by others, so they name reports without their folders: their commands run where the report is.
"""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsysx.cli import process
from nsysx.model import Summary
from nsysx.render import answer_words, brief, finding_ids, html_page, insight, invocation, markdown, terminal_answer
from tests.recording.test_capture import FakeNsys
from tests.samples import KINDS, NAMES, PAIR_NAMES, Samples

pytestmark = pytest.mark.traced

#: A command in a text: between code marks, or from the word to the end of its line.
IN_TEXT = re.compile(
    r"`(nsysx [a-z][^`]*)`|<code>(nsysx [a-z].*?)</code>|^ *(?:NEXT|next:)? *(nsysx [a-z].*)$", re.MULTILINE
)


def proposed(summary: Summary, report: Path, folder: Path) -> Iterator[str]:
    """Yield the commands that the outputs of a report propose to somebody in a folder, each as it is typed."""
    typed, program = shlex.quote(os.path.relpath(report, folder)), invocation.recorded_program(report)
    anywhere = invocation.of_files([report], redact=False)
    told = json.loads(brief.answer_json(summary, anywhere, redact=False))
    yield from told["commands"].values()
    for name, finding in zip(finding_ids.ids_of(summary), summary.findings or (), strict=True):
        if finding.verdict == "found":
            yield from json.loads(insight.insight_json(summary, name, anywhere, redact=False))["commands"].values()
    worded = answer_words.build(summary, redact=False, typed=typed, command=program)
    yield from (*worded.commands, worded.next, *(s.command for s in worded.sure))
    yield from (check.fix for check in summary.quality if check.fix.startswith("nsysx "))
    lines = "\n".join(line for line, _ in terminal_answer.lines(summary, 200, typed=typed, command=program))
    yield from in_text(lines)


def in_text(text: str) -> Iterator[str]:
    """Yield the commands that stand in a text."""
    for match in IN_TEXT.finditer(text):
        yield next(filter(None, match.groups()))


def on_pages(summary: Summary) -> Iterator[str]:
    """Yield the commands of what is read by others."""
    yield from in_text(markdown.render(summary))
    yield from in_text(html.unescape(html_page.render(summary)))


#: Texts for people that begin with the name of a command, and are no command.
PROSE = re.compile(r"^nsysx \w+$| (?:measures|records|tells|of this|and|or|narrows|, )|[,;).]$|\.\.\.")


def distinct(commands: Iterator[str]) -> list[str]:
    """Return each command once, with a program where the report does not name one; without what only a reader can fill in."""
    typed = dict.fromkeys(command for command in commands if command)
    return [command.replace(" -- CMD", " -- python3 program.py") for command in typed if not PROSE.search(command)]


def ran(command: str, folder: Path, nsys: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a command as a shell does that has nothing but this folder; what runs a program says what it would do."""
    words = shlex.split(command)
    if words[0] == "cd":
        folder, words = Path(words[1]).expanduser(), words[3:]
    assert words[0] == "nsysx" and not {"&&", "|", ">", ";"} & {*words}, command
    if words[1] in ("run", "try"):
        words.insert(2, "--dry-run")
    if words[1] == "run":
        words[2:2] = ["--nsys", str(nsys)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(
            sys, "argv", [word.replace("~", str(Path.home()), 1) if word.startswith("~/") else word for word in words]
        )
        code = process.exit_code_of_command()
    return code, capsys.readouterr().err


#: One report of each kind, and programs of frameworks: a command takes a second, and every report has a dozen.
REPORTS = (*KINDS, "ddp_four.rank0", "pairs/lightning", "pairs/trainer")


@pytest.mark.parametrize("name", [*NAMES, *(f"pairs/{pair}" for pair in PAIR_NAMES)])
def test_every_command_that_is_proposed_has_all_that_it_needs(
    name: str, recorded: Samples, pairs: Samples, tmp_path: Path
) -> None:
    """It names the report by a path that leads to it, and no word in it stands for something."""
    samples = pairs if name.startswith("pairs/") else recorded
    report = samples.report(name.removeprefix("pairs/"))
    for command in distinct(proposed(samples.summary(name.removeprefix("pairs/")), report, tmp_path)):
        words = shlex.split(command)
        words = words[3:] if words[0] == "cd" else words
        assert not {"REPORT", "AFTER", "AFTER.sqlite", "FILE", "CMD"} & {*words}, command
        if words[1] in ("report", "whatif", "compare"):
            assert (tmp_path / words[2]).exists() and Path(words[2]).name == report.name, command
        assert words[1] != "run" or " -- " in command, command


@pytest.mark.parametrize("name", REPORTS)
def test_every_command_that_is_proposed_runs_elsewhere(
    name: str, recorded: Samples, pairs: Samples, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = pairs if name.startswith("pairs/") else recorded
    original = samples.report(name.removeprefix("pairs/"))
    home, elsewhere = tmp_path / "the report's folder", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    report = Path(shutil.copy(original, home))
    record = original.with_suffix(".run.json")
    if record.is_file():  # it was recorded elsewhere, by a Python that is not here
        told = json.loads(record.read_text())
        told["command"][0] = sys.executable
        (home / record.name).write_text(json.dumps(told))
    shutil.copy(report, home / f"{report.stem}-after.sqlite")
    nsys = FakeNsys(tmp_path / "fake").path
    asked = distinct(proposed(samples.summary(name.removeprefix("pairs/")), report, elsewhere))
    assert len(asked) >= 3
    shared = distinct(on_pages(samples.summary(name.removeprefix("pairs/"))))
    bad = []
    for command, folder in [*((c, elsewhere) for c in asked), *((c, home) for c in shared)]:
        if "-o " in command:  # its report is that of a changed program
            command = command.replace("-after", "-after2")
        code, error = ran(command, folder, nsys, capsys)
        # A report without a replay, or whose advice cannot be tried, says so in one line.
        if code not in (0, 4) or "Traceback" in error:
            bad.append((command, code, error))
    assert not bad, bad
