"""Options declared once: the command line, its help, a file of options and the words for another process follow."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import pytest
import typer

import nsysx
from nsysx import api, pipeline
from nsysx.cli import declared_options as cli
from nsysx.cli import process
from nsysx.cli.app import command_line
from nsysx.comparing import side_inputs
from nsysx.option import Declared, Option, declared
from nsysx.reading import report_files as named_inputs
from nsysx.recording import capture
from nsysx.recording.environment import probe_environment
from nsysx.recording.per_rank import option_words
from nsysx.recording.run_options import RunOptions
from nsysx.recording.run_outputs import Outputs, RunResult
from nsysx.replay.changes import Changes, JobChanges
from nsysx.selection import Handling, Selection

#: Options whose values have a form of their own.
FORMED: dict[str, Any] = {
    "output": Path("o"),
    "nsys": Path("/n"),
    "nsys_args": ("--a=1", "-b"),
    "steps": "2:4",
    "depth": 3,
    "source": ("a b", "!c"),
}


def other(one: Declared) -> Any:
    """Return a value of an option that is not its default."""
    if one.flag:
        return not one.default
    words = [word for word in one.option.words if word != one.default] or ["a b"]
    return FORMED.get(one.field, words[-1] if one.kind in (str, str | None) else (one.option.least or 0) + 3)


#: The probe reads the limit, so that one is a limit.
ALL = RunOptions(**{one.field: "9" if one.field == "limit" else other(one) for one in declared(RunOptions)})


def parsed(monkeypatch: pytest.MonkeyPatch, *words: str) -> RunOptions:
    """Return the options that reach the recording from what is typed."""
    got: list[RunOptions] = []

    def run(command: list[str], options: RunOptions) -> RunResult:
        got.append(options)
        return RunResult(0, Outputs.named(Path("r")))

    monkeypatch.setattr(capture, "run", run)
    monkeypatch.setattr(sys, "argv", ["nsysx", "run", *words, "--", "true"])
    assert process.exit_code_of_command() == 0
    return got[0]


def test_every_option_is_declared_and_arrives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert [one.field for one in declared(RunOptions)] == [field.name for field in fields(RunOptions)]
    assert all(getattr(ALL, field.name) != field.default for field in fields(RunOptions)), "each is given here"
    assert parsed(monkeypatch, "-o", "o", *option_words(ALL)) == ALL
    assert parsed(monkeypatch) == RunOptions()
    for field in fields(RunOptions):  # and each alone
        one = replace(RunOptions(), **{field.name: getattr(ALL, field.name)})
        words = ["-o", "o"] if field.name == "output" else option_words(one)
        assert parsed(monkeypatch, *words) == one


def test_a_file_of_options_knows_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nsysx.toml").write_text('[run]\nno-report = true\nonly = "a b"\nmarks = "all"\ndepth = 3\n')
    assert parsed(monkeypatch) == RunOptions(report=False, only="a b", marks="all", depth=3)


@dataclass(frozen=True, slots=True)
class OneMore(RunOptions):
    """The options with one added, as a try."""

    zork: Annotated[int | None, Option("How much to zork.", least=1, variable="NSYSX_ZORK", advanced=True)] = None


def test_an_added_option_touches_its_declaration_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[tuple[list[str], OneMore]] = []
    app = typer.Typer(rich_markup_mode=None)

    def work(command: Annotated[list[str], typer.Argument(metavar="CMD")], *, options: OneMore) -> None:
        got.append((command, options))

    app.command(cls=cli.Grouped)(cli.with_options(work))
    app(["--zork", "3", "true"], standalone_mode=False)
    assert got == [(["true"], OneMore(zork=3))]
    helps = typer.main.get_command(app).get_help(typer.Context(typer.main.get_command(app)))
    assert "--zork" in helps.partition(f"{cli.ADVANCED}:")[2]
    assert "How much to zork." in helps
    [one] = [one for one in declared(OneMore) if one.field == "zork"]
    assert one.typed(3) == ["--zork", "3"]


def test_the_probe_is_told_what_it_needs(tmp_path: Path) -> None:
    told = probe_environment(replace(ALL, probe=True), {}, tmp_path)
    assert {name: value for name, value in told.items() if name.startswith("NSYSX_")} == {
        "NSYSX_PROBE_DIR": str(tmp_path),
        "NSYSX_LIMIT": "1",  # there is one; `nsysx run` asks when it is reached
        **{
            one.option.variable: "1"
            if one.flag
            else "a b:!c"
            if one.field == "source"
            else str(getattr(ALL, one.field))
            for one in declared(RunOptions)
            if one.option.variable
        },
    }
    assert (told["NSYSX_NO_SOURCE"], told["NSYSX_DEPTH"], told["NSYSX_ONLY"]) == ("1", "3", "a b")


# --- options that commands and the library share ------------------------------------------------------------------------


def commands() -> dict[str, set[str]]:
    """Return the parameters of each command as the command line has them."""
    group: Any = typer.main.get_command(command_line())
    return {name: {p.name for p in command.params} for name, command in group.commands.items()}


@pytest.mark.parametrize("holder", [Selection, Handling])
def test_a_command_has_the_shared_options_declared_for_it_and_no_other(holder: type) -> None:
    assert [one.field for one in declared(holder)] == [field.name for field in fields(holder)]  # type: ignore[arg-type]
    for command, parameters in commands().items():
        if command in ("run", "try", "skill"):  # their own --steps and --force mean something else
            continue
        for one in declared(holder):
            assert (one.parameter in parameters) == (command in one.option.commands), (command, one.field)


#: A value for each shared option that is not its default.
CHOSEN = Selection(steps="1:3", step_range="^s", device=1, rank=2, time_range="0:4", every_step=True, max_size="1G")


@pytest.mark.parametrize("command", ["report", "compare", "check", "whatif", "export"])
def test_what_is_selected_arrives(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert all(getattr(CHOSEN, field.name) != field.default for field in fields(Selection)), "each is given here"
    got: list[Selection] = []

    def gather(files: Any, options: pipeline.ReadingOptions, **more: Any) -> Any:
        got.append(Selection(**{field.name: getattr(options, field.name) for field in fields(Selection)}))
        raise nsysx.NsysxError("seen", slug="seen")

    monkeypatch.setattr(pipeline, "gather_job", gather)
    monkeypatch.setattr(named_inputs, "reports", list)
    monkeypatch.setattr(side_inputs.parallel_reading, "run", lambda work, files, **more: [work(f) for f in files])
    its = [one for one in declared(Selection) if command in one.option.commands]
    words = [word for one in its for word in one.typed(getattr(CHOSEN, one.field))]
    report = tmp_path / "r.sqlite"
    report.write_bytes(b"")
    more = {"compare": [str(report)], "check": ["--init"], "export": ["--perfetto", str(tmp_path / "t")]}
    monkeypatch.setattr(sys, "argv", ["nsysx", command, *words, str(report), *more.get(command, [])])
    assert process.exit_code_of_command() != 0
    assert got[0] == Selection(**{one.field: getattr(CHOSEN, one.field) for one in its})


def test_every_change_arrives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    every = Changes(**{f.name: ("a", "b") if f.default == () else True for f in fields(Changes)})
    got: list[Changes] = []
    job = type("Job", (), {"profile": None})
    monkeypatch.setattr(named_inputs, "reports", list)
    monkeypatch.setattr(pipeline, "gather_job", lambda files, options: job)
    monkeypatch.setattr("nsysx.replay.requested_edits.lines", lambda profile, changes, first: got.append(changes) or [])
    report = tmp_path / "r.sqlite"
    report.write_bytes(b"")
    words = [word for one in declared(Changes) for word in one.typed(getattr(every, one.field))]
    monkeypatch.setattr(sys, "argv", ["nsysx", "whatif", str(report), *words])
    assert process.exit_code_of_command() == 0
    assert got == [every]


def test_every_change_of_a_job_arrives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    every = JobChanges(equal_ranks=True, usual_rank=3, faster_links=4, hide_transfer=True, on_all_ranks="no-sync")
    assert all(getattr(every, f.name) != f.default for f in fields(JobChanges))
    got: list[JobChanges] = []
    job = type("Job", (), {"profile": None, "ranks": ()})
    monkeypatch.setattr(named_inputs, "reports", list)
    monkeypatch.setattr(pipeline, "gather_job", lambda files, options: job)
    monkeypatch.setattr("nsysx.ranks.job_whatif.lines", lambda ranks, wanted: got.append(wanted) or ["told"])
    report = tmp_path / "r.sqlite"
    report.write_bytes(b"")
    words = [word for one in declared(JobChanges) for word in one.typed(getattr(every, one.field))]
    monkeypatch.setattr(sys, "argv", ["nsysx", "whatif", str(report), *words])
    assert process.exit_code_of_command() == 0
    assert got == [every]


def parameters(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Return the type and default of each parameter with a default."""
    hints = get_type_hints(function)
    all_of = inspect.signature(function).parameters.values()
    return {p.name: (hints[p.name], p.default) for p in all_of if p.default is not p.empty}


def test_the_library_spells_out_what_is_declared() -> None:
    read = parameters(api.report)
    its = parameters(pipeline.summarize)
    assert {k: its[k] for k in read if k in its} == {
        one.parameter: (one.kind, one.default) for one in declared(Selection)
    }
    jobs = next(one for one in declared(Handling) if one.field == "jobs")
    assert read == {one.parameter: (one.kind, one.default) for one in [*declared(Selection), jobs]}
    several = {Sequence[str]: str | Sequence[str]}
    asked = {one.parameter: (several.get(one.kind, one.kind), one.default) for one in declared(Changes)}
    assert parameters(api.Report.whatif) == asked
    [redact] = [one for one in declared(Handling) if one.field == "redact"]
    for writes in (api.Report.to_html, api.Report.to_markdown, api.Compared.to_html):
        assert parameters(writes) == {"redact": (redact.kind, redact.default)}


def test_the_library_hands_on_what_it_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    got: list[tuple[pipeline.ReadingOptions, Any]] = []

    def gather(files: Any, options: pipeline.ReadingOptions, *, workers: Any) -> Any:
        got.append((options, workers))
        raise nsysx.NsysxError("seen", slug="seen")

    monkeypatch.setattr(pipeline, "gather_job", gather)
    monkeypatch.setattr(named_inputs, "reports", list)
    with pytest.raises(nsysx.NsysxError, match="seen"):
        nsysx.report(tmp_path, jobs=3, **{field.name: getattr(CHOSEN, field.name) for field in fields(Selection)})
    assert got == [(pipeline.ReadingOptions.from_selection(CHOSEN, timelines=True), 3)]


@pytest.mark.parametrize("field", [field.name for field in fields(Changes)])
def test_the_library_hands_on_every_change(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Changes] = []

    class Trusted:
        trusted = True

    def edits(profile: Any, changes: Changes) -> list[Any]:
        asked.append(changes)
        return []

    room = sys.modules["nsysx.api.report_object"]
    monkeypatch.setattr(room, "Replay", Trusted)
    monkeypatch.setattr(room, "replay_of", lambda profile: Trusted())
    monkeypatch.setattr("nsysx.replay.requested_edits.edits", edits)
    one = next(one for one in declared(Changes) if one.field == field)
    value: Any = ("a", "b") if one.default == () else True
    report: Any = object.__new__(api.Report)
    report.__dict__["_profile"] = None
    with pytest.raises(nsysx.NsysxError, match="nothing is changed"):
        api.Report.whatif(report, **{one.parameter: value})
    assert asked == [replace(Changes(), **{field: value})]
