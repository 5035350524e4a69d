"""The command line: what is imported, what is a usage error, how results are written."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nsysx import outputs, pipeline
from nsysx.cli import command_output, run
from nsysx.cli import process as cli
from nsysx.cli.app import common_first, with_stdout
from nsysx.errors import NsysxError
from nsysx.reading import report_files
from nsysx.recording.run_outputs import Outputs, RunResult
from nsysx.selection import Selection
from tests.builder import Report
from tests.replay.test_peers import job as two_ranks
from tests.reports import training

ROOT = Path(__file__).parents[1]


def nsysx(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the real program in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}  # type: ignore[dict-item]
    return subprocess.run(
        [sys.executable, "-m", "nsysx", *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        **options,  # type: ignore[call-overload]
    )


Here = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Here:
    """The same command line in this process: what it prints of a report does not hang on how it was started."""

    def nsysx(*words: object) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["nsysx", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capfd.readouterr()
        assert isinstance(end.value.code, int)
        return subprocess.CompletedProcess(sys.argv, end.value.code, said.out, said.err)

    return nsysx


@pytest.fixture
def sqlite(tmp_path: Path) -> Path:
    """A capture of two kernels."""
    report = Report()
    thread = report.process(100).thread(100, name="python")
    thread.launch(at=1000, dur=500, kernel="gemm", gpu_start=2000, gpu_dur=4000)
    thread.launch(at=2000, dur=500, kernel="relu", gpu_start=7000, gpu_dur=1000)
    path = tmp_path / "capture.sqlite"
    report.write(path)
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    return folder / "page.html"


def only(path: Path) -> bool:
    """Say whether nothing but ``path`` lies in its folder: no half file, no temporary one."""
    return [found.name for found in path.parent.iterdir()] == [path.name]


# --- start-up -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["run", "--help"], ["report", "--help"]])
def test_help_loads_no_heavy_package(words: list[str]) -> None:
    code = (
        "import sys\nfrom nsysx.cli import process as cli\nsys.argv[1:] = " + repr(words) + "\n"
        "try:\n    cli.main()\nfinally:\n"
        "    heavy = {'polars', 'numpy', 'matplotlib', 'torch', 'jinja2', 'rich', 'nvtx'} & set(sys.modules)\n"
        "    sys.stderr.write(str(sorted(heavy)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "[]")
    assert done.stdout


def test_a_report_is_not_made_to_wait_for_converters_of_options(sqlite: Path) -> None:
    """pydantic, of which typer makes the converters, takes 0.08 s; only a number that was typed needs one."""
    asked = [["--json", "-"], ["--brief", "-"], [], ["--top", "3", "--section", "waits"]]
    code = (
        "import sys\nfrom nsysx.cli import process as cli\n"
        f"for words in {asked}:\n"
        f"    sys.argv[1:] = ['report', {str(sqlite)!r}, *words]\n"
        "    try:\n        cli.main()\n"
        "    except SystemExit as end:\n        print(end.code, 'pydantic' in sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.stderr.splitlines() == [*["0 False"] * 3, "0 True"]


def test_help_is_quick() -> None:
    """0.07 to 0.17 s where a bare Python takes 0.012 s; polars alone would add 0.2 s."""

    def least_cpu_s(*words: str) -> float:
        times = []
        for _ in range(5):
            process = subprocess.Popen(
                [sys.executable, *words], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL
            )
            used = os.wait4(process.pid, 0)[2]
            process.returncode = 0
            times.append(used.ru_utime + used.ru_stime)
        return min(times)

    # Processor time, and relative: other work on the machine must not fail this.
    assert least_cpu_s("-m", "nsysx", "--help") < max(0.12, 20 * least_cpu_s("-c", "pass"))


def test_the_help_of_run_shows_few_options() -> None:
    """What few people need works all the same, and stands in the manual: `nsysx explain recording`."""
    shown = re.findall(r"^  (?:-\w, )?--\w[\w-]*", nsysx("run", "--help").stdout, re.MULTILINE)
    assert 10 <= len([option for option in shown if "--help" not in option]) <= 14


def test_no_words_is_help_and_a_usage_error() -> None:
    done = nsysx()
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: nsysx" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["zork"],
        ["run"],
        ["run", "--zork", "x"],
        ["run", "--graphs", "some", "x"],
        ["run", "--xray", "some", "x"],
        ["run", "--steps", "5:5", "x"],
        ["run", "--depth", "-1", "x"],
        ["report"],
        ["report", "--top", "0", "x.sqlite"],
        ["report", "--json", "-", "--markdown", "-", "x.sqlite"],
    ],
)
def test_usage_errors_are_one_line(words: list[str]) -> None:
    done = nsysx(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("nsysx: error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("separator", [[], ["--"]])
def test_what_follows_the_command_is_the_commands(tmp_path: Path, separator: list[str]) -> None:
    from tests.recording.test_capture import FakeNsys

    nsys = FakeNsys(tmp_path / "fake").path
    done = nsysx("run", "--nsys", nsys, "--dry-run", *separator, "sh", "x.py", "-o", "y", "--help", "--", "a b")
    assert done.returncode == 0, done.stderr
    assert " sh x.py -o y --help -- 'a b'\n" in done.stdout


# --- errors ---------------------------------------------------------------------------------------------------------------


def ends_with(monkeypatch: pytest.MonkeyPatch, error: BaseException, *words: str) -> int:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(report_files, "reports", list)
    monkeypatch.setattr(pipeline, "summarize", fails)
    monkeypatch.setattr(sys, "argv", ["nsysx", *(words or ("report", "x.sqlite"))])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_our_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    error = NsysxError("x.sqlite: is damaged", slug="damaged", hint="Export it again", exit_code=3)
    assert ends_with(monkeypatch, error) == 3
    assert capsys.readouterr() == ("", "nsysx: error: x.sqlite: is damaged. Export it again\n")


def test_a_bug_of_ours_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("NSYSX_DEBUG", raising=False)
    assert ends_with(monkeypatch, ZeroDivisionError("division by zero")) == 125
    said = capsys.readouterr().err
    assert said == "nsysx: error: ZeroDivisionError: division by zero. Run with NSYSX_DEBUG=1 for the traceback\n"


def test_a_bug_of_ours_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYSX_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        ends_with(monkeypatch, ZeroDivisionError())


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with(monkeypatch, KeyboardInterrupt()) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_reader_that_goes_away(sqlite: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        [sys.executable, "-m", "nsysx", "report", str(sqlite)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    _, said = process.communicate(timeout=600)
    assert (process.returncode, said) == (-13, "")  # as cat ends


def test_once_answered_a_broken_pipe_is_an_error_again(capsys: pytest.CaptureFixture[str]) -> None:
    """A pool of workers of which one died writes to a pipe without a reader: that must not end the process."""
    before = signal.getsignal(signal.SIGPIPE)
    with command_output.answering():
        assert signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL
    command_output.emit("told")
    assert (signal.getsignal(signal.SIGPIPE), capsys.readouterr().out) == (before, "told\n")
    assert before == signal.SIG_IGN, "as Python starts"


# --- report ---------------------------------------------------------------------------------------------------------------


def test_the_answer_is_the_default_and_tables_are_asked_for(sqlite: Path, here: Here) -> None:
    done = nsysx("report", sqlite)
    assert (done.returncode, done.stderr) == (0, "")
    assert "GPU busy" in done.stdout
    assert "gemm" in here("report", sqlite, "--full").stdout


def test_what_to_ask_next_names_the_report_as_it_was_typed(sqlite: Path, tmp_path: Path, here: Here) -> None:
    odd = tmp_path / "a b" / "r.sqlite"
    odd.parent.mkdir()
    odd.symlink_to(sqlite)
    assert f"nsysx report '{odd}' --html page.html" in here("report", odd).stdout


def test_what_to_ask_next_of_several_reports_can_be_asked(tmp_path: Path, here: Here) -> None:
    for rank, pid in enumerate((100, 200)):
        two_ranks(marks=(5, 5), only=pid).write(tmp_path / f"r.rank{rank}.sqlite")
    said = here("report", tmp_path).stdout
    assert f"nsysx whatif {tmp_path}" in said
    done = here("whatif", tmp_path, "--no-comm", "--rank", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "communication" in done.stdout


def test_a_run_that_recorded_nothing_proposes_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = RunResult(1, Outputs.named(tmp_path / "r"), Report().write(tmp_path / "r.sqlite"))
    run._say_result(result, told=run._report_run(result)[0])
    said = capsys.readouterr().err
    assert "nsysx: no page: " in said
    assert "next:" not in said


def test_a_run_names_what_it_wrote_as_a_shell_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = RunResult(0, Outputs.named(tmp_path / "r"), tmp_path / "r.sqlite")
    result.written += [Path("r.sqlite"), Path("a b.json")]
    run._say_result(result, told=True)
    wrote, then, _ = capsys.readouterr().err.splitlines()
    assert wrote == "nsysx: wrote r.sqlite  'a b.json'"
    assert then == f"nsysx: next: nsysx report {tmp_path / 'r.sqlite'}"
    run._say_result(result, told=True, answered=True)
    assert capsys.readouterr().err.splitlines()[1] == f"{then} --full", "the first screen follows anyway"


def test_a_run_ends_with_the_answer_as_report_prints_it(
    sqlite: Path, tmp_path: Path, here: Here, capfd: pytest.CaptureFixture[str]
) -> None:
    result = RunResult(0, Outputs.named(tmp_path / "r"), sqlite)
    told, summary = run._report_run(result)
    assert told and summary is not None
    run._say_answer(summary, result)
    said = capfd.readouterr().err
    printed = here("report", sqlite).stdout.split("\nNEXT")[0].split()
    assert said.split("\nNEXT")[0].split() == printed
    assert "DO" in printed


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("help report", "report --help"),
        ("help", "--help"),
        ("report r.sqlite -v", "-v report r.sqlite"),
        ("report -q r.sqlite --full", "-q report r.sqlite --full"),
        ("run -q -- python train.py -v", "-q run -- python train.py -v"),
        ("run python train.py -q", "run python train.py -q"),
    ],
)
def test_options_of_all_commands_may_stand_behind_the_command(typed: str, meant: str) -> None:
    """What belongs to CMD stays CMD's."""
    assert common_first(typed.split()) == meant.split()


def test_the_page_opens_in_the_browser(sqlite: Path, tmp_path: Path) -> None:
    """The browser is a program that writes down what it is to open."""
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path / "opened"}\n')
    browser.chmod(0o755)
    done = nsysx("report", sqlite, "--open", env={"BROWSER": f"{browser} %s"})
    assert done.returncode == 0
    page = (tmp_path / "opened").read_text().strip()
    assert Path(page.removeprefix("file://")).read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_json_alone_on_stdout(sqlite: Path, here: Here) -> None:
    done = here("report", sqlite, "--json", "-")
    assert json.loads(done.stdout)["totals"]["kernels"] == 2
    assert (done.returncode, done.stderr) == (0, "")


def test_several_outputs_at_once(sqlite: Path, tmp_path: Path, here: Here) -> None:
    page, data, ticket = tmp_path / "p.html", tmp_path / "d.json", tmp_path / "t.md"
    done = here("report", sqlite, "--html", page, "--json", data, "--markdown", ticket)
    assert done.returncode == 0
    assert "DO  " in done.stdout
    assert done.stderr.splitlines() == [f"nsysx: wrote {path}" for path in (page, data, ticket)]
    assert json.loads(data.read_text())["schema"] == "nsysx.summary/1"
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")
    assert "**Do this:**" in ticket.read_text()


def test_an_input_error_leaves_no_output(tmp_path: Path, target: Path) -> None:
    done = nsysx("report", tmp_path / "none.sqlite", "--html", target)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert not list(target.parent.iterdir())


def test_refuses_to_overwrite(sqlite: Path, target: Path, here: Here) -> None:
    target.write_text("precious")
    done = nsysx("report", sqlite, "--html", target)
    assert done.returncode == 2
    assert done.stderr == f"nsysx: error: {target}: exists already. Use --force (-f) or another name\n"
    assert target.read_text() == "precious"
    assert here("report", sqlite, "--html", target, "--force").returncode == 0
    assert "precious" not in target.read_text()
    assert only(target)


@pytest.mark.parametrize("option", ["--csv", "--html", "--plots"])
def test_an_option_is_no_name_of_an_output(sqlite: Path, option: str) -> None:
    done = nsysx("report", sqlite, option, "-f")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "nsysx: error: -f: is an option, not a file. Name a file for the option before it\n"
    assert not Path("-f").exists()


_WAITS = ("--section", "waits")


def test_an_output_without_a_file_is_printed(sqlite: Path) -> None:
    done = nsysx("report", sqlite, "--json", *_WAITS)
    assert (done.returncode, done.stderr) == (0, "")
    assert "waits" in json.loads(done.stdout) and "kernels" not in json.loads(done.stdout)
    said = ["report", "a.sqlite", "--json", "-"]
    assert with_stdout([*said[:3], *_WAITS]) == [*said, *_WAITS] == with_stdout([*said, *_WAITS])
    assert with_stdout(["report", "a.sqlite", *_WAITS, "--json"]) == ["report", "a.sqlite", *_WAITS, "--json", "-"]
    assert with_stdout(["-q", "whatif", "a.sqlite", "--json"]) == ["-q", "whatif", "a.sqlite", "--json", "-"]


def test_what_stands_behind_two_dashes_is_the_programs() -> None:
    assert with_stdout(["try", "--json", "--", "python", "t.py", "--json"]) == [
        "try",
        "--json",
        "-",
        "--",
        "python",
        "t.py",
        "--json",
    ]
    assert with_stdout(["run", "report", "--json"]) == ["run", "report", "--json"]
    assert with_stdout(["run", "python", "t.py", "--json"]) == ["run", "python", "t.py", "--json"]


# --- writing --------------------------------------------------------------------------------------------------------------


def test_written_as_other_programs_write(target: Path) -> None:
    outputs.write_text(target, "ü\n", force=False)
    assert target.read_bytes() == "ü\n".encode()
    before = os.umask(0)
    os.umask(before)
    assert target.stat().st_mode & 0o777 == 0o666 & ~before
    assert only(target)


def test_a_file_made_meanwhile_is_kept(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = outputs.check_output

    def racing(path: Path, **options: bool) -> None:
        check(path, **options)
        path.write_text("precious")

    monkeypatch.setattr(outputs, "check_output", racing)
    with pytest.raises(NsysxError, match="exists already"):
        outputs.write_text(target, "new", force=False)
    assert target.read_text() == "precious"
    assert only(target)


def test_a_link_is_replaced_not_followed(target: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    target.symlink_to(victim)
    with pytest.raises(NsysxError, match="exists already"):
        outputs.write_text(target, "new", force=False)
    outputs.write_text(target, "new", force=True)
    assert (victim.read_text(), target.read_text(), target.is_symlink()) == ("precious", "new", False)


def test_a_dangling_link_is_not_written_through(target: Path, tmp_path: Path) -> None:
    target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(NsysxError, match="exists already"):
        outputs.write_text(target, "new", force=False)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("force", [False, True])
def test_a_full_disk_leaves_nothing_behind(target: Path, force: bool) -> None:
    if force:
        target.write_text("precious")
    # The kernel's limit of a file's size fails just where a full disk does. Python ignores its signal by itself.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(NsysxError, match="could not be written"):
            outputs.write_text(target, "x" * 1_000_000, force=force)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.read_text() for path in target.parent.iterdir()] == (["precious"] if force else [])


def test_a_folder_where_nothing_can_be_written() -> None:
    with pytest.raises(NsysxError, match="cannot write there"):
        outputs.write_text(Path("/proc/page.html"), "x", force=False)


@pytest.mark.parametrize(("name", "what"), [("no/p.html", "does not exist"), ("", "is a folder")])
def test_a_place_that_is_none(tmp_path: Path, name: str, what: str) -> None:
    with pytest.raises(NsysxError, match=what) as caught:
        outputs.write_text(tmp_path / name, "x", force=True)
    assert caught.value.exit_code == 2


def test_text_that_is_not_unicode(target: Path) -> None:
    outputs.write_text(target, "name \udc80", force=False)
    assert target.read_text() == "name \\udc80"


def shell(words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``nsysx`` with the redirections of a shell."""
    line = f"{shlex.quote(sys.executable)} -m nsysx {words}"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(["sh", "-c", line], cwd=folder, env=env, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("report r.sqlite --json j.json 2>&-", 0, ""),
        ("report r.sqlite --json - >&-", 3, "stdout: could not be written (it is closed)"),
        ("report r.sqlite --json - >/dev/full", 3, "stdout: could not be written (No space left on device)"),
        ("report r.sqlite >/dev/full", 3, "stdout: could not be written (No space left on device)"),
        ("explain >/dev/full", 3, "stdout: could not be written (No space left on device)"),
    ],
)
def test_streams_that_take_nothing(sqlite: Path, tmp_path: Path, words: str, code: int, said: str) -> None:
    (tmp_path / "r.sqlite").symlink_to(sqlite)
    done = shell(words, tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1 if said else 0)
    assert said in done.stderr


def test_a_terminal_that_does_not_know_its_width(sqlite: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    assert "GPU busy" in here("report", sqlite).stdout


def test_ctrl_c_is_said(sqlite: Path, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, threading\nfrom nsysx import pipeline\nfrom nsysx.cli import process as cli\n"
        "def wait(*_, **__):\n    os.kill(os.getpid(), signal.SIGINT)\n    threading.Event().wait()\n"
        "pipeline.summarize = wait\n"
        f"sys.argv[1:] = ['report', {str(sqlite)!r}]\ncli.program()\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "nsysx: interrupted\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--html", "r.sqlite"], "is the report that is read"),
        (["--json", "link.sqlite"], "is the report that is read"),
        (["--json", "hard.sqlite"], "is the report that is read"),
        (["--json", "a", "--html", "./a"], "is asked for twice"),
        (["--json", "pipe"], "is a device or a pipe"),
        (["--json", "null"], "is a device or a pipe"),
        (["--markdown", "circle"], "cannot be a file"),
        (["--html", "x" * 300], "cannot be a file"),
        (["--csv", ""], "no folder is named"),
    ],
)
def test_outputs_that_are_refused(sqlite: Path, tmp_path: Path, words: list[str], said: str) -> None:
    report = tmp_path / "r.sqlite"
    report.write_bytes(sqlite.read_bytes())
    (tmp_path / "link.sqlite").symlink_to(report)
    (tmp_path / "hard.sqlite").hardlink_to(report)
    (tmp_path / "null").symlink_to("/dev/null")
    (tmp_path / "circle").symlink_to("circle")
    os.mkfifo(tmp_path / "pipe")
    before = {p.name: p.lstat().st_mode for p in tmp_path.iterdir()}
    done = shell(shlex.join(["report", "r.sqlite", *words, "-f"]), tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
    assert {p.name: p.lstat().st_mode for p in tmp_path.iterdir()} == before
    assert report.read_bytes() == sqlite.read_bytes()


def test_of_several_outputs_all_or_none_are_written(
    sqlite: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    words = f"report {shlex.quote(str(sqlite))} --json j.json --markdown m.md --csv tables"
    full = shell(f"--version >/dev/null; ulimit -f 8; {shlex.quote(sys.executable)} -m nsysx {words}", folder)
    assert full.returncode == 3
    assert "could not be written" in full.stderr
    assert "Nothing was left behind" in full.stderr
    assert not list(folder.iterdir())
    monkeypatch.chdir(folder)
    done = here(*shlex.split(words))
    assert done.returncode == 0
    assert {"j.json", "m.md", "tables"} == {p.name for p in folder.iterdir()}
    assert f"tables ({len(list((folder / 'tables').glob('*.csv')))} tables)\n" in done.stderr


def test_several_inputs_reach_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def remember(paths: list[Path], selection: Selection, **options: object) -> None:
        asked.update(options, paths=paths, selection=selection)
        raise NsysxError("enough", slug="enough")

    monkeypatch.setattr(report_files, "reports", list)
    monkeypatch.setattr(pipeline, "summarize", remember)
    words = ["report", "a.sqlite", "b.sqlite", "--steps", "all", "--step-range", "^it", "--device", "1", "--rank", "0"]
    monkeypatch.setattr(sys, "argv", ["nsysx", *words])
    with pytest.raises(SystemExit):
        cli.main()
    assert asked["paths"] == [Path("a.sqlite"), Path("b.sqlite")]
    assert asked["selection"] == Selection(steps="all", step_range="^it", device=1, rank=0)


def test_a_process_ends_at_once_but_not_before_its_cleaners_ran() -> None:
    code = (
        "import atexit, sys\n"
        "from nsysx.cli import process as cli\n"
        "class Kept:\n"
        "    def __del__(self): print('taken apart')\n"
        "kept = Kept()\n"
        "def main():\n"
        "    atexit.register(print, 'cleaned')\n"
        "    print('told', end=' ')\n"
        "    raise SystemExit(7)\n"
        "cli.main = main\n"
        "cli.program()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (7, "told cleaned\n", "")


def test_a_command_imports_no_other_command() -> None:
    code = (
        "import sys\nfrom nsysx.cli import process as cli\nsys.argv[1:] = WORDS\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    from nsysx.cli.app import COMMANDS\n"
        "    print(*(c for c in COMMANDS if f'nsysx.cli.{c}'.replace('.try', '.try_') in sys.modules))\n"
    )
    for words, imported in (
        (["report", "none.sqlite"], "report"),
        (["-v", "report", "none.sqlite"], "run report compare"),
    ):
        said = subprocess.run(
            [sys.executable, "-c", code.replace("WORDS", repr(words))], capture_output=True, text=True
        )
        assert said.stdout.startswith(imported) and (len(said.stdout.split()) == 1) == (words[0] == "report"), said


def test_the_answer_in_a_terminal_imports_no_picture() -> None:
    code = "import sys, nsysx.render.terminal_answer\nprint([m for m in sys.modules if 'charts' in m or 'matplotlib' in m])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_polars_is_imported_after_its_threads_are_limited() -> None:
    code = (
        "import sys\nfrom nsysx.cli import process as cli\nfrom nsysx.ranks import parallel_reading as jobs\n"
        "seen = []\njobs.limit_threads = lambda: seen.append('polars' in sys.modules)\n"
        "sys.argv[1:] = WORDS\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    print(seen)\n"
    )
    for words in (["report", "none.sqlite"], ["whatif", "none.sqlite", "--no-host"]):
        said = subprocess.run(
            [sys.executable, "-c", code.replace("WORDS", repr(words))], capture_output=True, text=True
        )
        assert said.stdout == "[False]\n", said.stderr


# --- what was meant -------------------------------------------------------------------------------------------------------


def test_what_was_probably_meant_is_said(sqlite: Path) -> None:
    def said(*words: str) -> str:
        done = nsysx(*words, cwd=sqlite.parent)
        assert (done.returncode != 0, done.stdout, done.stderr.count("\n")) == (True, "", 1)
        return done.stderr

    training(6).write(sqlite.parent / "steps.sqlite")
    assert "Did you mean: nsysx report capture.sqlite\n" in said("capture.sqlite")
    assert "Did you mean: nsysx run -- sh train.sh\n" in said("sh", "train.sh")
    assert "Did you mean capture.sqlite?" in said("report", "captur.sqlite")
    for text, meant in (
        ("[counts]\nlaunchs = 3\n", "counts.launchs is unknown. Did you mean launches?"),
        ("[count]\nlaunches = 3\n", "[count] is unknown. Did you mean counts?"),
        ("[[allow]]\nmodul = 'x'\n", "allow.modul is unknown. Did you mean module?"),
    ):
        (sqlite.parent / "b.toml").write_text(text)
        assert meant in said("check", "steps.sqlite", "--budget", "b.toml")


def test_tables_are_said_to_be_written_in_one_line(
    sqlite: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = here("report", sqlite, "--csv", "d")
    made = len(list((tmp_path / "d").iterdir()))
    assert done.stderr == f"nsysx: wrote d ({made} tables)\n"


@pytest.mark.parametrize(
    ("terminal", "kind", "links"), [(True, "xterm", True), (True, "dumb", False), (False, "xterm", False)]
)
def test_a_file_that_was_written_is_a_link_only_where_a_terminal_shows_links(
    terminal: bool, kind: str, links: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", kind)
    command_output.wrote(Path("a page.html"), " (2 tables)")
    name = (
        f"\x1b]8;;{Path('a page.html').resolve().as_uri()}\x1b\\a page.html\x1b]8;;\x1b\\" if links else "a page.html"
    )
    assert capsys.readouterr().err == f"nsysx: wrote {name} (2 tables)\n"
