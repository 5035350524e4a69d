"""Every command that an output proposes runs as it stands, from a folder in which there is nothing.

A page and Markdown are read by others, so they name reports without their folders: their commands run where the report is.
"""

from __future__ import annotations

import html
import json
import lzma
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nsysx.cli import process
from nsysx.model import Summary
from nsysx.pipeline import summarize
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


def on_pages(summary: Summary, page: str) -> Iterator[str]:
    """Yield the commands of what is read by others."""
    yield from in_text(markdown.render(summary))
    yield from in_text(html.unescape(page))


#: Texts for people that begin with the name of a command, and are no command.
PROSE = re.compile(r"^nsysx \w+$| (?:measures|records|tells|of this|and|or|narrows|, )|[,;).]$|\.\.\.")


def distinct(commands: Iterator[str]) -> list[str]:
    """Return each command once, with a program where the report does not name one; without what only a reader can fill in."""
    typed = dict.fromkeys(command for command in commands if command)
    return [command.replace(" -- CMD", " -- python3 program.py") for command in typed if not PROSE.search(command)]


def ran(command: str, folder: Path, nsys: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
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
    told = capsys.readouterr()
    return code, told.out, told.err


#: Options whose value is a name of this report; ``--table`` and ``--xray`` keep theirs.
_NAMES_OF_A_REPORT = ("--insight", "--change", "-o", "--steps", "--where")


def form(command: str) -> str:
    """Return what commands of one kind share: the command and its options, without files, names of this report and the program."""
    words = shlex.split(command.partition(" -- ")[0])
    words = words[3:] if words[0] == "cd" else words
    kept = [word for before, word in zip(["", *words], words, strict=False) if before not in _NAMES_OF_A_REPORT]
    return " ".join("FILE" if "/" in word or ".sqlite" in word else word for word in kept if not word.startswith("NSX"))


class Shelter:
    """The folder of a report, which holds what its commands need, and an empty one elsewhere."""

    def __init__(self, original: Path, folder: Path) -> None:
        self.home, self.elsewhere = folder / "the report's folder", folder / "elsewhere"
        self.home.mkdir(parents=True)
        self.elsewhere.mkdir()
        self.report = self.home / f"{original.name.partition('.sqlite')[0]}.sqlite"
        packed = original.suffix == ".xz"
        self.report.write_bytes(lzma.decompress(original.read_bytes()) if packed else original.read_bytes())
        record = original.with_name(f"{self.report.stem}.run.json")
        if record.is_file():  # it was recorded elsewhere, by a Python that is not here
            told = json.loads(record.read_text())
            told["command"][0] = sys.executable
            (self.home / record.name).write_text(json.dumps(told))
        os.link(self.report, self.home / f"{self.report.stem}-after.sqlite")

    def commands(self, summary: Summary, page: str) -> list[tuple[str, Path]]:
        """Return the commands that outputs of its report propose, and where they are typed."""
        asked = distinct(proposed(summary, self.report, self.elsewhere))
        shared = distinct(on_pages(summary, page))
        return [*((c, self.elsewhere) for c in asked), *((c, self.home) for c in shared)]

    def failing(
        self, asked: list[tuple[str, Path]], seen: set[str], nsys: Path, capsys: pytest.CaptureFixture[str],
        key: Callable[[str], str] = str,
    ) -> list[tuple[str, int, str]]:  # fmt: skip
        """Run commands, and those that their outputs propose, each ``key`` once; return those that failed, with code and message."""
        bad = []
        for command, folder in asked:
            if key(command) in seen:
                continue
            seen.add(key(command))
            if "-o " in command:  # its report is that of a changed program
                command = command.replace("-after", "-after2")
            code, out, error = ran(command, folder, nsys, capsys)
            for log in self.home.glob("*.log.jsonl"):  # what a comparison refuted is not tried again
                log.unlink()
            if code or "Traceback" in error:
                bad.append((command, code, error))
            more = [c for c in distinct(in_text(out)) if "REPORT" not in c and "AFTER" not in c]
            asked.extend((c, folder) for c in more)
        return bad


#: One report of each kind, and programs of frameworks.
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


def test_every_form_of_proposed_command_runs_elsewhere(
    recorded: Samples, pairs: Samples, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands differ by report, finding and program; each form is run once, for the first report that proposes it."""
    nsys, seen, bad = FakeNsys(tmp_path / "fake").path, set[str](), []
    for name in REPORTS:
        samples, sample = (pairs, name.removeprefix("pairs/")) if name.startswith("pairs/") else (recorded, name)
        shelter = Shelter(samples.report(sample), tmp_path / sample)
        asked = shelter.commands(samples.summary(sample), samples.page(sample).read_text())
        assert len(asked) >= 3
        bad += shelter.failing(asked, seen, nsys, capsys, form)
    assert not bad, bad
    assert {command.split()[1] for command in seen} >= {"report", "whatif", "compare", "run", "try", "explain"}


#: Reports at hand, all of whose commands are run: NSYSX_REPORTS=FOLDER:FOLDER.
AT_HAND = [
    report
    for folder in os.environ.get("NSYSX_REPORTS", "").split(":")
    if folder
    for report in sorted([*Path(folder).glob("*.sqlite"), *Path(folder).glob("*.sqlite.xz")])
]


@pytest.mark.parametrize("report", AT_HAND, ids=[report.name for report in AT_HAND])
def test_every_command_of_a_report_at_hand_runs_elsewhere(
    report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shelter = Shelter(report, tmp_path / "of")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(shelter.home)
        summary = summarize([Path(shelter.report.name)], timelines=True)
    asked = shelter.commands(summary, html_page.render(summary))
    bad = shelter.failing(asked, set(), FakeNsys(tmp_path / "fake").path, capsys)
    assert not bad, bad
