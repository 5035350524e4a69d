"""``nsysx whatif``: its words, what they select, and what it says when they select nothing."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nsysx import units
from nsysx.cli import process as cli
from nsysx.errors import EXIT_EMPTY, EXIT_INPUT, EXIT_USAGE, NsysxError
from nsysx.events.profile import Profile
from nsysx.pipeline import summarize
from nsysx.render.answer_text import first_clause
from nsysx.replay import engine, requested_edits
from nsysx.replay.requested_edits import Changes
from tests.builder import Report
from tests.reports import US, gather

STEPS = 6


def program() -> Report:
    """Steps of 1,040 us that are bound by their waits: two kernels, each waited for, and 200 us of host code behind each.

    us of a step: launch 10, kernel 20-320 of module enc.a, wait until 324; copy 330-430 of 1 MiB, pinned; launch 524,
    kernel 534-834 of module enc.b, wait until 838; data loading 840-940; a cudaMalloc 950-970.
    """
    report = Report()
    report.gpu(pids=[(1, 0)])
    process = report.process(1)
    process.context()
    main = process.thread(1, "python")
    for i in range(STEPS):
        t = i * 1040 * US

        def at(us: int, t: int = t) -> int:
            return t + us * US

        main.add_range(f"step {i}", at(0), at(1030), domain="nsysx")
        main.add_range("forward", at(1), at(839), domain="nsysx")
        main.add_range(":Net", at(2), at(838), domain="nsysx")
        main.add_range("enc:Encoder", at(3), at(837), domain="nsysx")
        main.add_range("enc.a:Linear", at(5), at(326), domain="nsysx")
        main.launch(at(10), 5 * US, kernel="gemm_a<float>", gpu_start=at(20), gpu_dur=300 * US)
        main.sync(at=at(16), dur=308 * US)
        main.memcpy(at(328), 2 * US, kind="HtoD", bytes=1 << 20, gpu_start=at(330), gpu_dur=100 * US)
        main.add_range("enc.b:Conv", at(520), at(836), domain="nsysx")
        main.launch(at(524), 5 * US, kernel="conv_b<float>", gpu_start=at(534), gpu_dur=300 * US)
        main.sync("cudaDeviceSynchronize_v3020", at=at(530), dur=308 * US)
        main.add_range("data DataLoader", at(840), at(940), domain="nsysx")
        main.call("cudaMalloc_v3020", at(950), 20 * US)
    return report


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program().write(tmp_path_factory.mktemp("whatif") / "r.sqlite")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    return gather(program(), tmp_path_factory.mktemp("whatif"))


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line and return its exit code, stdout and stderr."""

    def command(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nsysx", "whatif", *map(str, words)])
        code = cli.exit_code_of_command()
        out, err = capsys.readouterr()
        return code, out, err

    return command


def names_of(profile: Profile, edit: engine.RemoveWaits | engine.Graph) -> set[str]:
    calls = profile.attributed.api_calls
    assert edit.calls is not None
    return set(calls[sorted(edit.calls)]["name"].to_list())


# --- what the words select -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "api"),
    [
        ("cudaStreamSynchronize", {"cudaStreamSynchronize"}),
        ("Synchronize", {"cudaStreamSynchronize", "cudaDeviceSynchronize"}),
        ("enc.a", {"cudaStreamSynchronize"}),
        ("enc.b", {"cudaDeviceSynchronize"}),
        ("enc", {"cudaStreamSynchronize", "cudaDeviceSynchronize"}),  # a module brings its children
        ("cudaStreamSynchronize in enc.a (forward)", {"cudaStreamSynchronize"}),
        ("in enc.b", {"cudaDeviceSynchronize"}),
    ],
)
def test_waits_by_api_module_and_site(given: Profile, text: str, api: set[str]) -> None:
    ((words, edit),) = requested_edits.edits(given, Changes(remove_wait=[text]))
    assert isinstance(edit, engine.RemoveWaits)
    assert names_of(given, edit) == api
    assert text in words


def test_an_exact_name_beats_a_part_of_one(given: Profile) -> None:
    """``enc.a`` is also a part of nothing else here, but ``a`` is a part of most names."""
    ((_, part),) = requested_edits.edits(given, Changes(remove_wait=["a"]))
    ((_, exact),) = requested_edits.edits(given, Changes(remove_wait=["enc.a"]))
    assert isinstance(part, engine.RemoveWaits)
    assert isinstance(exact, engine.RemoveWaits)
    assert exact.calls is not None
    assert part.calls is not None
    assert exact.calls < part.calls


def test_all(given: Profile) -> None:
    assert requested_edits.edits(given, Changes(remove_wait=["all"]))[0][1] == engine.RemoveWaits()
    assert requested_edits.edits(given, Changes(graph=["all"]))[0][1] == engine.Graph()


def test_only_the_steady_steps(given: Profile) -> None:
    ((_, edit),) = requested_edits.edits(given, Changes(remove_wait=["enc.a"]))
    assert isinstance(edit, engine.RemoveWaits)
    assert edit.calls is not None
    assert len(edit.calls) == given.scope.steps == STEPS - 1


@pytest.mark.parametrize(
    ("text", "names", "factor"),
    [
        ("gemm=2x", {"gemm_a<float>"}, 0.5),
        ("gemm_a<float>=4x", {"gemm_a<float>"}, 0.25),
        ("float=1.25x", {"gemm_a<float>", "conv_b<float>"}, 0.8),
        ("convolution=10x", {"conv_b<float>"}, 0.1),
        ("conv_b=0.5x", {"conv_b<float>"}, 2.0),  # slower is a question, too
    ],
)
def test_kernels_by_name_and_family(given: Profile, text: str, names: set[str], factor: float) -> None:
    ((_, edit),) = requested_edits.edits(given, Changes(kernel=[text]))
    assert isinstance(edit, engine.ScaleOps)
    assert set(given.attributed.gpu_ops[sorted(edit.ops)]["name"].to_list()) == names
    assert edit.factor == pytest.approx(factor)


def test_modules(given: Profile) -> None:
    ((_, edit),) = requested_edits.edits(given, Changes(remove_module=["enc"]))
    assert isinstance(edit, engine.RemoveOps)
    assert len(edit.ops) == 3 * (STEPS - 1)
    ((_, edit),) = requested_edits.edits(given, Changes(graph=["enc.b"]))
    assert isinstance(edit, engine.Graph)
    assert names_of(given, edit) == {"cudaLaunchKernel", "cudaDeviceSynchronize"}


def test_copies_take_the_rate_of_the_reports_own_pinned_ones(given: Profile) -> None:
    ((_, edit),) = requested_edits.edits(given, Changes(overlap_copies=True))
    assert isinstance(edit, engine.OverlapCopies)
    assert edit.bandwidth_bytes_per_s == pytest.approx((1 << 20) / 100e-6)


# --- the command ---------------------------------------------------------------------------------------------------------


def saving_us(out: str) -> float:
    found = re.search(r"saves\s+(-?[\d.]+) (ns|us|ms)", out)
    assert found, out
    return float(found[1]) * {"ns": 1e-3, "us": 1, "ms": 1e3}[found[2]]


def test_a_wait(path: Path, run: Run) -> None:
    """Without the first wait copy and second launch come at once: the copy runs from 320 to 420, then the kernel, 114 us
    earlier than before.
    """
    code, out, err = run(path, "--remove-wait", "enc.a")
    assert (code, err) == (0, "")
    assert "recorded   1.04 ms a step, mean of 5 steady steps" in out
    assert "no wait: enc.a" in out
    assert saving_us(out) == pytest.approx(114, abs=3)
    assert out.count("saves") == 1


def test_kernels_twice_as_fast(path: Path, run: Run) -> None:
    code, out, _ = run(path, "--kernel", "gemm=2x")
    assert code == 0
    assert saving_us(out) == pytest.approx(150, abs=2)


def test_loading_of_other_steps_is_not_taken_from_these(path: Path, run: Run) -> None:
    """100 us in each step, also in those before and after the replayed ones."""
    for steps in ("0:5", "1:4", "2:3"):
        code, out, _ = run(path, "--free-loader", "--steps", steps)
        assert code == 0
        assert saving_us(out) == pytest.approx(100, abs=1), steps


def test_several_changes_also_all_together(path: Path, run: Run) -> None:
    code, out, _ = run(path, "--kernel", "gemm=2x", "--kernel", "conv_b=2x", "--free-loader")
    assert code == 0
    assert out.count("saves") == 4
    assert "all of it together" in out
    assert saving_us(out.partition("together")[2]) == pytest.approx(400, abs=5)


@pytest.mark.parametrize(
    "words",
    [
        ["--graph", "all"], ["--remove-alloc"], ["--no-host"], ["--no-comm"], ["--overlap-copies"], ["--free-loader"],
        ["--remove-module", "enc.b"], ["--remove-wait", "all"], ["--kernel", "gemm=2x", "--steps", "1:4"],
    ],
)  # fmt: skip
def test_every_word_gives_an_answer(path: Path, run: Run, words: list[str]) -> None:
    code, out, err = run(path, *words)
    assert (code, err) == (0, "")
    for line in ("step", "saves", "limit", "±"):
        assert line in out


# --- errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--remove-wait", "nope"], EXIT_USAGE, "The report has: cudaDeviceSynchronize in enc.b (forward)"),
        (["--remove-wait", ""], EXIT_USAGE, "matches nothing"),
        (["--graph", "nope"], EXIT_USAGE, "The report has: enc."),
        (["--remove-module", ""], EXIT_USAGE, "matches nothing"),
        (["--kernel", "gemm"], EXIT_USAGE, "not NAME=2x"),
        (["--kernel", "gemm=2"], EXIT_USAGE, "not NAME=2x"),
        (["--kernel", "gemm=0x"], EXIT_USAGE, "not NAME=2x"),
        (["--kernel", "gemm=-1x"], EXIT_USAGE, "not NAME=2x"),
        (["--kernel", "=2x"], EXIT_USAGE, "not NAME=2x"),
        (["--kernel", "nope=2x"], EXIT_USAGE, "matches nothing"),
        (["--kernel", "gemm=2x", "--steps", "9:8"], EXIT_USAGE, "not a window"),
        (["--kernel", "gemm=2x", "--steps", "50:51"], EXIT_EMPTY, "steps 0 to 5"),
        (["--kernel", "gemm=2x", "--steps", "all"], EXIT_EMPTY, "no replay"),
        (["--no-such-option"], EXIT_USAGE, "--no-such-option"),
    ],
)
def test_errors_are_one_line_with_their_code(path: Path, run: Run, words: list[str], code: int, said: str) -> None:
    found, out, err = run(path, *words)
    assert (found, out) == (code, "")
    assert said in err
    assert err.startswith("nsysx: error: ")
    assert err.count("\n") == 1


def test_a_file_that_is_none(run: Run, tmp_path: Path) -> None:
    code, out, err = run(tmp_path / "none.sqlite", "--free-loader")
    assert (code, out) == (EXIT_INPUT, "")
    assert "none.sqlite" in err


def test_copies_where_there_are_none(tmp_path: Path) -> None:
    report = program()
    report.drop("CUPTI_ACTIVITY_KIND_MEMCPY")
    with pytest.raises(NsysxError) as caught:
        requested_edits.edits(gather(report, tmp_path), Changes(overlap_copies=True))
    assert caught.value.exit_code == EXIT_USAGE


def test_a_replay_that_misses_the_recorded_step_makes_no_claims(
    path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "TRUSTED_ERROR", -1.0)
    code, out, err = run(path, "--remove-alloc")
    assert (code, out) == (EXIT_EMPTY, "")
    assert "no claims are made" in err


def test_bounds_need_no_replay(path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "TRUSTED_ERROR", -1.0)
    for words in ([], ["--free-loader"]):
        code, out, _ = run(path, *words)
        assert code == 0
        assert "GPU work  700 us a step" in out
        assert "loader    100 us a step waiting for data: without it 940 us" in out


def whole_lines(out: str) -> list[str]:
    """Return the lines, each with those in which it goes on."""
    return re.sub(r"\n {4,}", " ", out).splitlines()


def test_without_a_wish_what_could_be_changed_is_listed_best_first(path: Path, run: Run) -> None:
    code, out, _ = run(path)
    assert code == 0
    listed = [line for line in whole_lines(out) if line.startswith("--")]
    savings = [float(re.search(r"\((\d+(?:\.\d+)?) %\)", line)[1]) for line in listed if "saves" in line]  # type: ignore[index]
    assert savings == sorted(savings, reverse=True)
    assert {"--free-loader", "--graph", "--no-host", "--remove-alloc"} <= {line.split()[0] for line in listed}


def test_the_first_row_is_the_change_of_the_page_with_its_figures(path: Path, run: Run) -> None:
    """And what saves nothing is not listed."""
    code, out, _ = run(path)
    answer = summarize([path], every_table=False).answer
    rows = [line for line in whole_lines(out) if line.startswith(("report's advice", "--"))]
    assert code == 0 and rows[0].startswith("report's advice") and not any("report's" in row for row in rows[1:])
    assert f"step {units.duration(answer.then_ns or 0)} (" in rows[0] and answer.do[-1].code in rows[0]
    savings = [float(re.search(r"saves [^(]*\(([\d.]+) %\)", row)[1]) for row in rows[1:]]  # type: ignore[index]
    assert min(savings) >= 0.5
    _, asked, _ = run(path, "--free-loader")
    assert "report's advice" not in asked


def test_the_list_fits_the_terminal_and_cuts_no_advice(path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    _, out, _ = run(path)
    assert max(map(len, out.splitlines())) <= 60
    advice = summarize([path], every_table=False).answer.do[-1].text
    assert first_clause(advice) in " ".join(out.split())


def test_names_of_the_program_do_nothing_to_the_terminal(tmp_path: Path, run: Run) -> None:
    report = program()
    hostile = "\x1b]0;owned\x07\u202e\nnsysx: fine"
    for row in report.rows["StringIds"]:
        if row["value"] == "gemm_a<float>":
            row["value"] = hostile
    for row in report.rows["NVTX_EVENTS"]:
        if row["text"] == "enc.a:Linear":
            row["text"] = f"enc.{hostile[:11]}:Linear"
    path = report.write(tmp_path / "r.sqlite")
    for words in (["--remove-wait", "nope"], ["--remove-wait", "all"], ["--kernel", f"{hostile}=2x"]):
        _, out, err = run(path, *words)
        for text in (out, err):
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text), words
        assert err.count("\n") <= 1
