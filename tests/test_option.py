"""Options declared once: the command line, its help, a file of options and the words for another process follow."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from nsysx.cli import declared as cli
from nsysx.cli import process
from nsysx.option import Option, declared
from nsysx.recording import capture
from nsysx.recording.environment import probe_environment
from nsysx.recording.options import Options, Outputs, Result
from nsysx.recording.ranks import option_words

ALL = Options(
    output=Path("o"), force=True, report=False, probe=False, steps="2:4", lines=True, memory=True, python=True, gil=True,
    ops=True, gpu_metrics=True, per_rank=True, nsys=Path("/n"), nsys_args=("--a=1", "-b"), graphs="graph", osrt=True,
    clocks=True, depth=3, only="a b", marks="all", backward="ops", calibrate=True,
)  # fmt: skip


def parsed(monkeypatch: pytest.MonkeyPatch, *words: str) -> Options:
    """Return the options that reach the recording from what is typed."""
    got: list[Options] = []

    def run(command: list[str], options: Options) -> Result:
        got.append(options)
        return Result(0, Outputs.named(Path("r")))

    monkeypatch.setattr(capture, "run", run)
    monkeypatch.setattr(sys, "argv", ["nsysx", "run", *words, "--", "true"])
    assert process.exit_code_of_command() == 0
    return got[0]


def test_every_option_is_declared_and_arrives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert [one.field for one in declared(Options)] == [field.name for field in fields(Options)]
    assert all(getattr(ALL, field.name) != field.default for field in fields(Options)), "each is given here"
    assert parsed(monkeypatch, "-o", "o", *option_words(ALL)) == ALL
    assert parsed(monkeypatch) == Options()
    for field in fields(Options):  # and each alone
        one = replace(Options(), **{field.name: getattr(ALL, field.name)})
        words = ["-o", "o"] if field.name == "output" else option_words(one)
        assert parsed(monkeypatch, *words) == one


def test_a_file_of_options_knows_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nsysx.toml").write_text('[run]\nno-report = true\nonly = "a b"\nmarks = "all"\ndepth = 3\n')
    assert parsed(monkeypatch) == Options(report=False, only="a b", marks="all", depth=3)


@dataclass(frozen=True, slots=True)
class OneMore(Options):
    """The options with one added, as a try."""

    zork: Annotated[int | None, Option("How much to zork.", least=1, variable="NSYSX_ZORK", advanced=True)] = None


def test_an_added_option_touches_its_declaration_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    got: dict[str, Any] = {}
    app = typer.Typer(rich_markup_mode=None)

    def others(command: Annotated[list[str], typer.Argument(metavar="CMD")]) -> None: ...

    def work(command: list[str], **given: Any) -> None:
        got["options"] = cli.options_of(OneMore, given)

    app.command(cls=cli.Grouped)(cli.with_options(work, others, OneMore))
    app(["--zork", "3", "true"], standalone_mode=False)
    assert got["options"] == OneMore(zork=3)
    helps = typer.main.get_command(app).get_help(typer.Context(typer.main.get_command(app)))
    assert "--zork" in helps.partition(f"{cli.ADVANCED}:")[2]
    assert "How much to zork." in helps
    [one] = [one for one in declared(OneMore) if one.field == "zork"]
    assert one.typed(3) == ["--zork", "3"]


def test_the_probe_is_told_what_it_needs(tmp_path: Path) -> None:
    told = probe_environment(replace(ALL, probe=True), {}, tmp_path, own_lines=True)
    assert {name: value for name, value in told.items() if name.startswith("NSYSX_")} == {
        "NSYSX_PROBE_DIR": str(tmp_path), "NSYSX_STEPS": "2:4", "NSYSX_LINES": "1", "NSYSX_OPS": "1", "NSYSX_DEPTH": "3",
        "NSYSX_ONLY": "a b", "NSYSX_MARKS": "all", "NSYSX_BACKWARD": "ops",
    }  # fmt: skip
