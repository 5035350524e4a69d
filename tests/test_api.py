"""The library: its examples, what it gives, what it refuses, and how little `import nsysx` costs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from mypy import api as mypy_api

import nsysx
from nsysx import api, pipeline
from nsysx.api import named_frames, report_object
from nsysx.api.argument_errors import worded
from nsysx.export import frames as event_frames
from tests.reports import training
from tests.samples import Samples

ROOT = Path(__file__).resolve().parents[1]


def run(code: str) -> str:
    """Run Python in a process of its own and return what it prints."""
    words = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training(6).write(tmp_path_factory.mktemp("api") / "r.sqlite")


@pytest.mark.parametrize("name", ["nsysx", "nsysx.api", "nsysx.api.report_object", "nsysx.api.compared"])
def test_examples_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[name]
    monkeypatch.chdir(ROOT)
    done = doctest.testmod(module, extraglobs={"nsysx": nsysx}, optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert done.failed == 0
    assert done.attempted >= 2


def test_import_loads_the_standard_library_alone() -> None:
    loaded = run("import sys; before = set(sys.modules); import nsysx; print(*(set(sys.modules) - before))").split()
    assert {m.split(".")[0] for m in loaded} - set(sys.stdlib_module_names) == {"nsysx"}
    assert [m for m in loaded if m.startswith("nsysx.")] == []
    assert run("import nsysx; nsysx.step(); print(sorted(nsysx.__all__), 'report' in dir(nsysx))").strip() == (
        "['NotRecorded', 'NsysxError', '__version__', 'capture', 'compare', 'range', 'report', 'step'] True"
    )


def test_every_public_name_is_there_and_typed() -> None:
    stub = (ROOT / "nsysx" / "__init__.pyi").read_text(encoding="utf-8")
    for name in nsysx.__all__:
        assert getattr(nsysx, name) is not None
        assert re.search(rf"\b{name}\b", stub), name
    assert (ROOT / "nsysx" / "py.typed").is_file()
    with pytest.raises(AttributeError, match="zork"):
        nsysx.zork  # noqa: B018
    importlib.import_module("nsysx.comparing.comparison")  # a room that is loaded takes no name of the library
    assert nsysx.compare is api.compare


def test_types_of_the_package_are_those_of_its_functions() -> None:
    """The checker of the whole package has seen the functions; what users see is the stub, which only hands them on."""
    stub = (ROOT / "nsysx" / "__init__.pyi").read_text(encoding="utf-8")
    for name in ("report", "compare", "NotRecorded"):
        assert f"from nsysx.api import {name} as {name}\n" in stub
    for name in ("step", "range", "capture"):
        (shown,) = re.findall(rf"^def {name}\((.*?)\)", stub, re.MULTILINE)
        assert [word.split(":")[0].strip() for word in shown.split(",") if word] == list(
            inspect.signature(getattr(nsysx, name)).parameters
        )


def test_frames_are_those_of_the_summary_and_of_the_events(report: Path) -> None:
    s = nsysx.report(report)
    summary = pipeline.summarize([report])
    assert s.summary.to_json() == summary.to_json() == s.to_json()
    assert s.kernels.to_dicts() == [dict(r) for r in summary.rows("kernels")]
    assert s.steps["cpu_ns"].to_list() == [r["cpu_ns"] for r in summary.steps.rows]
    assert s.ops.filter(op_kind="kernel").height == s.totals["kernels"]
    assert (s.verdict, s.quality, s.capture, s.unprofiled) == (
        summary.verdict, summary.quality, summary.capture, summary.unprofiled,
    )  # fmt: skip
    for name in s.names():
        described = s.columns(name)
        try:
            frame = s.frame(name)
        except nsysx.NotRecorded as answer:
            assert str(answer)
            continue
        assert isinstance(frame, pl.DataFrame)
        assert frame.columns == described["column"].to_list()
        assert [str(t) for t in frame.dtypes] == described["type"].to_list()
        assert getattr(s, name).height == frame.height
        assert name in dir(s)
    with pytest.raises(AttributeError, match="zork"):
        s.zork  # noqa: B018
    with pytest.raises(AttributeError, match="did you mean 'kernels'"):
        s.kernles  # noqa: B018
    with pytest.raises(KeyError, match="no frame 'zork'; names"):
        s.frame("zork")
    assert (
        repr(s) == f"<nsysx.Report {', '.join(s.capture.files)}: {s.verdict.sentence.partition('. ')[0].rstrip('.')}>"
    )


@pytest.mark.parametrize("name", ["steps", "modules", "kernels", "waits", "calls", "ops"])
def test_columns_that_docstrings_name_are_there(report: Path, name: str) -> None:
    named = re.findall(r"``(\w+)``", getattr(api.Report, name).__doc__)
    columns = nsysx.report(report).columns(name)["column"].to_list()
    assert len(named) > 5
    assert set(named) - {"calls"} <= set(columns)


def test_chosen_steps(report: Path) -> None:
    s = nsysx.report(str(report), steps="2:4")
    assert set(s.calls["step"].drop_nulls()) == {2, 3}
    assert s.summary.steps.steady == (2, 3)


def test_whatif_is_what_the_command_says(report: Path) -> None:
    s = nsysx.report(report)
    answer = s.whatif(remove_wait="all", graph=["all"])
    assert answer.now_ns - answer.step_ns == answer.saving_ns
    assert len(answer.changes) == 2
    assert answer.error_ns >= 0
    with pytest.raises(nsysx.NsysxError, match="nothing is changed"):
        s.whatif()
    with pytest.raises(nsysx.NsysxError, match="matches nothing"):
        s.whatif(remove_module="zork")


def test_without_a_replay_that_can_be_trusted_the_loader_is_still_answered(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command gives a bound there, so the library does not refuse either; everything else stays refused."""
    from nsysx.events.profile import Profile
    from nsysx.replay.engine import Replay, replay_of

    s = nsysx.report(report)
    loading = 123_456
    s.whatif(graph=["all"])
    monkeypatch.setattr("nsysx.replay.engine.TRUSTED_ERROR", -1.0)
    s = nsysx.report(report)
    monkeypatch.setattr(Replay, "loading_ns", lambda _: loading)
    monkeypatch.setattr(replay_of(s._profile), "error", 0.5)
    answer = s.whatif(free_loader=True)
    assert answer.saving_ns == loading == answer.now_ns - answer.step_ns
    assert answer.error_ns == round(answer.now_ns / 2), "the bar is the part of the step by which the replay is off"

    def inexact(profile: Profile) -> Replay:
        replay = replay_of(profile)
        assert isinstance(replay, Replay)
        replay.error = 0.25
        return replay

    monkeypatch.setattr(importlib.import_module("nsysx.api.report_object"), "replay_of", inexact)
    with pytest.raises(nsysx.NsysxError, match=r"misses the recorded step by 25 %: no claims are made"):
        s.whatif(graph=["all"])


def test_pages(report: Path) -> None:
    s = nsysx.report(report)
    page, shown = s.to_html(), s._repr_html_()
    assert page.startswith("<!DOCTYPE html>")
    assert 'id="ledger"' in page
    assert shown.startswith("<iframe ")
    assert shown.count("<") == 2, "the page inside is text to the notebook: nothing of it acts there"
    assert "Do this" in shown
    assert "ledger" not in shown.split("&lt;body&gt;")[1].split("&lt;script&gt;")[0]
    assert len(shown) < 60_000
    assert s.to_markdown().startswith("**")


def test_compare(report: Path, tmp_path: Path) -> None:
    slower = training(6, gap=400).write(tmp_path / "slower.sqlite")
    c = nsysx.compare([report], slower)
    assert c.to_json()["schema"] == "nsysx.compare/1"
    assert c.parts["difference_ns"].sum() == c.difference_ns
    assert c.verdict == c.answer.verdict
    assert c.to_markdown().strip()
    assert c.to_html().startswith("<!DOCTYPE html>")
    assert c._repr_html_().startswith("<iframe ")


def test_ranks(tmp_path: Path) -> None:
    import lzma

    files = []
    for n in (0, 1):
        files.append(tmp_path / f"ddp_per_rank.rank{n}.sqlite")
        packed = ROOT / "sample_reports" / f"ddp_per_rank.rank{n}.sqlite.xz"
        files[-1].write_bytes(lzma.decompress(packed.read_bytes()))
        shutil.copy(packed.with_name(f"ddp_per_rank.rank{n}.run.json"), tmp_path)
    s = nsysx.report(*files, rank=1, jobs=1)
    assert s.frame("ranks").height == 2
    assert s.ops["process"].unique().to_list() == s.frame("gpu_ledger")["process"].unique().to_list()


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(nsysx.NsysxError, match="no such file") as caught:
        nsysx.report(tmp_path / "no.sqlite")
    assert caught.value.exit_code == 3
    with pytest.raises(nsysx.NsysxError, match="no file"):
        nsysx.report()


# --- in a program that is profiled -----------------------------------------------------------------------------------------


def torch_that_notes(*, cuda: bool = True, broken: bool = False) -> str:
    fails = "raise RuntimeError('CUDA error')" if broken else "pass"
    return f"""
import sys, types
said = []
def synchronize():
    said.append('sync')
    {fails}
cudart = types.SimpleNamespace(cudaProfilerStart=lambda: said.append('start'), cudaProfilerStop=lambda: said.append('stop'))
cuda = types.SimpleNamespace(is_available=lambda: {cuda}, synchronize=synchronize, cudart=lambda: cudart)
sys.modules['torch'] = types.SimpleNamespace(cuda=cuda)
import nsysx
"""


def test_a_window_of_the_programs_own() -> None:
    code = "with nsysx.capture():\n    said.append('work')\nprint(said)\n"
    assert run(torch_that_notes() + code).strip() == "['sync', 'start', 'work', 'sync', 'stop']"
    assert run(torch_that_notes(cuda=False) + code).strip() == "['work']"
    assert run(torch_that_notes(broken=True) + code).strip() == "['sync', 'work', 'sync']"
    assert run("said = []\nimport nsysx\n" + code).strip() == "['work']"


def test_a_window_closes_when_the_program_fails() -> None:
    code = "try:\n    with nsysx.capture():\n        1 / 0\nexcept ZeroDivisionError:\n    print(said)\n"
    assert run(torch_that_notes() + code).strip() == "['sync', 'start', 'sync', 'stop']"


def test_ranges_are_pushed_and_popped() -> None:
    nvtx = """
import sys, types
said = []
sys.modules['nvtx'] = types.SimpleNamespace(push_range=said.append, pop_range=lambda: said.append('pop'))
import nsysx
@nsysx.range('inner')
def inner(): said.append('work')
with nsysx.range('outer'):
    inner(); inner()
print(said)
"""
    assert run(nvtx).strip() == "['outer', 'inner', 'work', 'pop', 'inner', 'work', 'pop', 'pop']"
    assert run("import sys; sys.modules['nvtx'] = None\nimport nsysx\nwith nsysx.range('a'): print(1)").strip() == "1"


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., list[str]]:
    from nsysx.recording import capture, commands
    from nsysx.recording.find_nsys import find_nsys
    from tests.recording.test_capture import FakeNsys

    nsys = find_nsys(FakeNsys(tmp_path / "fake").path)
    return lambda **options: commands.profile_command(
        nsys, capture.RunOptions(**options), tmp_path / "r", ["python", "x.py"]
    )


def test_run_leaves_the_window_to_the_program(command: Callable[..., list[str]], tmp_path: Path) -> None:
    from nsysx.recording import capture
    from nsysx.recording.environment import probe_environment

    assert "--capture-range=cudaProfilerApi" in command(steps="manual")
    assert "--capture-range=cudaProfilerApi" not in command()
    for steps, told in (("manual", None), ("3:5", "3:5"), ("auto", "auto")):
        environment = probe_environment(capture.RunOptions(steps=steps), {}, tmp_path)
        assert environment.get("NSYSX_STEPS") == told, "the probe opens no window that the program opens"


def test_what_a_notebook_prints_is_short(report: Path) -> None:
    s = nsysx.report(report)
    c = nsysx.compare(s, s)
    assert repr(c) == f"<nsysx.Compared {c.verdict}: {c.sentence.partition('. ')[0].rstrip('.')}>"
    with pytest.raises(nsysx.NsysxError, match="after: no report"):
        nsysx.compare(s, [])
    for shown in (s, s.summary, c, c.answer, s.capture, *s.findings):
        assert len(repr(shown)) < 3000, type(shown)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"steps": "zz"}, "steps='zz': not a window of steps. Write A:B with A < B, or all"),
        ({"rank": 7}, "rank=7: the report holds "),
        ({"max_size": "q"}, "max_size='q': not a size"),
        ({"step_range": "("}, "step_range='(': missing )"),
        ({"step_range": "zork"}, "step_range zork matches no range"),
        ({"time_range": "900:901"}, "time_range='900:901': nothing was recorded then"),
    ],
)
def test_errors_name_arguments(report: Path, arguments: dict[str, Any], said: str) -> None:
    if "max_size" in arguments:
        report = Path(ROOT / "sample_reports" / "tiny_stack.sqlite.xz")
    with pytest.raises(nsysx.NsysxError) as error:
        nsysx.report(report, **arguments)
    assert str(error.value).startswith(said)
    assert "--" not in str(error.value)


def test_errors_of_what_if_name_arguments(report: Path) -> None:
    s = nsysx.report(report)
    with pytest.raises(nsysx.NsysxError, match=r"^remove_wait='zork': matches nothing\. The report has: "):
        s.whatif(remove_wait="zork")


def test_commands_in_errors_stay_commands() -> None:
    command = "Name the steps: nsysx report FILE --step-range REGEX --json F"
    assert worded(command, {"step_range"}) == command
    assert worded("Give --baseline FILE", {"steps"}) == "Give --baseline FILE"
    assert worded("give --max-size a larger size", {"max_size"}) == "give max_size a larger size"
    text = "--no-empty-cache (frees in the steps): matches nothing"
    assert worded(text, {"no_empty_cache"}) == "no_empty_cache (frees in the steps): matches nothing"


def test_the_frames_that_a_type_checker_knows_are_those_of_a_report(recorded: Samples, tmp_path: Path) -> None:
    """``s.kernles`` is an error before the program runs, and no frame is."""
    names = set(named_frames.NamedFrames.__annotations__)
    of_class = {name for name in vars(report_object.Report) if not name.startswith("_")}
    made = {"steps", *recorded.summary("tiny_stack").tables, *event_frames.BY_NAME}
    assert names | (of_class & made) == made and not names & of_class
    checked = "import nsysx\ns = nsysx.report('r.sqlite')\nframe = s.kernel_spread\ns.kernles\n"
    # With the settings of the project, so that what the check of its types left in the cache need not be found out again.
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8").replace('packages = ["nsysx"]\n', "")
    (tmp_path / "pyproject.toml").write_text(settings, encoding="utf-8")
    words = [f"--config-file={tmp_path / 'pyproject.toml'}", f"--cache-dir={ROOT / '.mypy_cache'}", "-c", checked]
    stdout, _, status = mypy_api.run(words)
    assert status == 1 and '"Report" has no attribute "kernles"' in stdout and stdout.count("error:") == 1, stdout
