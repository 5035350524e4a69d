"""Budgets, waits that are allowed, and numbers in texts."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import junitparser
import pytest
import tomllib

from nsysx.cli import check
from nsysx.comparing import budget, side
from nsysx.comparing.side import Captured
from nsysx.errors import NsysxError
from nsysx.model import Capture, Check, Steps, Summary, Table, Verdict
from nsysx.render import check_text
from tests.comparing import programs
from tests.comparing.programs import MS, program, summary
from tests.comparing.test_commands import call
from tests.samples import Samples

NET = {"a": 3 * MS, "b": 2 * MS, "c": 5 * MS}


def captured(folder: Path, name: str = "r", **options: object) -> Captured:
    return programs.captured(summary(folder, program(NET, **options), name), f"{name}.sqlite")


def test_a_budget_that_was_written_from_a_report_is_kept(tmp_path: Path) -> None:
    one = captured(tmp_path, item_in="b")
    wanted = tomllib.loads(budget.init(one))
    assert wanted["counts"]["launches"] == 3
    assert budget.check(one, wanted).exit_code == 0


def test_a_planted_item_fails_with_its_module_and_the_mended_program_passes(tmp_path: Path) -> None:
    good = captured(tmp_path, "good")
    wanted = tomllib.loads(budget.init(good))
    bad = budget.check(captured(tmp_path, "bad", item_in="b"), wanted)
    assert bad.exit_code == 1
    broken = [r.name for r in bad.results if r.status == "broken"]
    assert any(name.startswith("wait cudaMemcpyAsync in b") for name in broken)
    assert "counts.copies" in broken
    assert budget.check(captured(tmp_path, "mended"), wanted).exit_code == 0


def test_waits_are_matched_by_what_is_named_and_counted() -> None:
    wait = {
        "api": "cudaStreamSynchronize",
        "module": "m",
        "phase": "loss",
        "file": "/x/train.py",
        "line": 7,
        "calls": 20,
    }
    table = Table("waits", "", (), (wait,))
    said = Summary(
        "",
        Capture((), None, None, (), (), None, ()),
        (),
        {},
        Steps("", "", 0, None, None, None, ()),
        Verdict("unknown", ""),
        {"waits": table},
        None,
        None,
    )
    one = Captured("r", said, {}, (1,) * 10, 10)

    def states(*allowed: dict[str, object]) -> list[str]:
        return [r.status for r in budget.lint(one, allowed)]

    assert states({"api": "cudaStreamSynchronize", "count": 2}) == ["kept"]
    assert states({"api": "cudaStreamSynchronize", "count": 1}) == ["broken"]
    assert states({"module": "m", "count": 1}, {"file": "train.py", "line": 7, "count": 1}) == ["kept"]
    assert states({"module": "other", "count": 9}) == ["broken"]
    found = budget.lint(one, [])[0]
    assert (found.file, found.line) == ("/x/train.py", 7)


def test_times_know_their_noise(tmp_path: Path) -> None:
    one = captured(tmp_path, noise=1000)
    step = sum(one.step_ns) / len(one.step_ns) / MS
    limits = {step * 1.2: 0, step * 0.999: 5, step * 0.8: 1}
    for limit, code in limits.items():
        assert budget.check(one, {"times_ms": {"step": limit}}).exit_code == code
    assert budget.check(one, {"modules_ms": {"c": 5.1}, "families_ms": {"convolution": 0}}).exit_code == 0
    assert budget.check(one, {"gpu_busy_min": 0.5}).exit_code == 0
    assert budget.check(one, {"gpu_busy_min": 1.1}).exit_code == 1
    [module] = budget.check(one, {"modules_ms": {"c": 5.1}}).results
    assert module.value == pytest.approx(5, rel=0.001)
    assert 0 < module.noise < 0.5, "in milliseconds, as the limit"


def test_limits_relative_to_a_baseline(tmp_path: Path) -> None:
    base = captured(tmp_path, "base")
    slow = programs.captured(summary(tmp_path, program({**NET, "c": 7 * MS}), "slow"), "slow")
    wanted = {"times_ms": {"step": "+5%"}, "modules_ms": {"c": "+5 %"}}
    assert budget.check(base, wanted, base).exit_code == 0
    assert budget.check(slow, wanted, base).exit_code == 1
    with pytest.raises(NsysxError):
        budget.check(base, wanted)


def test_what_was_not_measured_never_passes(tmp_path: Path) -> None:
    one = captured(tmp_path)
    assert budget.check(one, {}).exit_code == 4
    assert budget.check(one, {"peak_memory_bytes": 1}).exit_code == 4
    assert budget.check(one, {"peak_memory_bytes": 1, "counts": {"launches": 3}}).exit_code == 5
    lost = replace(one.summary, quality=(Check("diagnostics", "warn", "events lost"),))
    assert budget.check(side.captured(lost, "x"), {"counts": {"launches": 3}}).exit_code == 4


UNBOUNDED = ("1e400%", "+inf%", "nan%", float("inf"), float("nan"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"x": 1},
        {"counts": 3},
        {"allow": {}},
        {"counts": {"launches": "many"}},
        *({"counts": {"launches": w}} for w in UNBOUNDED),
    ],
)
def test_a_budget_with_mistakes_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(NsysxError) as error:
        budget.check(captured(tmp_path), wrong, captured(tmp_path, "baseline"))
    assert error.value.exit_code == 2


def test_junit_and_annotations_hold_any_name(tmp_path: Path) -> None:
    name = 'a<b>&"]]>\x00\x1b\n::error::x%'
    result = budget.BudgetLine(name, "broken", 1.0, 0.0, 0.0, "", name, f"d{name}/t,r:ain.py", 7)
    verdict = budget.BudgetVerdict("r", (result, budget.BudgetLine("ok", "kept", 1, 1, 0, "", "fine")), 1)
    suites = list(junitparser.JUnitXml.fromstring(check_text.junit(verdict).encode()))
    cases = [case for suite in suites for case in (suite if isinstance(suite, junitparser.TestSuite) else [suite])]
    assert [[type(r) for r in case.result] for case in cases] == [[junitparser.Failure], []]
    assert cases[1].name == "ok" and 'a<b>&"]]>' in str(cases[0].name)
    lines = check_text.github(verdict).splitlines()
    assert len(lines) == 1
    head, _, message = lines[0].removeprefix("::error ").partition("::")
    assert "line=7" in head.split(",")
    assert "%25" in message
    assert "|" not in check_text.markdown(verdict).splitlines()[4].replace("| ", "").replace(" |", "")


def logging(folder: Path, name: str, steps: int) -> Captured:
    """A program that synchronizes once more in every fifth step, and copies a trifle in each."""
    report = program(NET, steps=steps, item_in="b", noise=20_000)
    main = report.process(100).thread(100, "python")
    at = [r["start"] for r in report.rows["NVTX_EVENTS"] if str(r["text"]).startswith("step ")]
    for begin in at[::5]:
        main.sync("cudaDeviceSynchronize_v3020", at=begin + 500, dur=100)
    return programs.captured(summary(folder, report, name), name)


def test_a_shorter_capture_of_the_same_program_keeps_the_budget(tmp_path: Path) -> None:
    """What only some steps do, and times that two runs differ by, are no limits."""
    wanted = tomllib.loads(budget.init(logging(tmp_path, "long", 27)))
    assert all(float(n).is_integer() for n in wanted["counts"].values())
    assert {a["count"] for a in wanted["allow"]} == {1}
    assert "exposed_copy" not in wanted["times_ms"], "a copy of 2 us in a step of 10 ms"
    for steps in (9, 12, 40):
        kept = budget.check(logging(tmp_path, f"s{steps}", steps), wanted)
        assert kept.exit_code == 0, [r.detail for r in kept.results if r.status != "kept"]
    twice = {**wanted, "counts": {**wanted["counts"], "copies": 0}}
    assert budget.check(logging(tmp_path, "again", 12), twice).exit_code == 1


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(NET).write(tmp_path / "r.sqlite")
    code, out, _ = call(capsys, monkeypatch, "check", tmp_path / "r.sqlite", "--init")
    (tmp_path / "b.toml").write_text(out)
    assert code == 0
    words = ["check", tmp_path / "r.sqlite", "--budget", tmp_path / "b.toml"]
    code, out, _ = call(capsys, monkeypatch, *words, "--json", "-", "--junit", tmp_path / "j.xml")
    assert (code, json.loads(out)["schema"]) == (0, "nsysx.check/1")
    assert list(junitparser.JUnitXml.fromfile(str(tmp_path / "j.xml")))
    data = (tmp_path / "r.sqlite").read_bytes()
    (tmp_path / "r.sqlite").write_bytes(data[: len(data) // 3])
    code, out, err = call(capsys, monkeypatch, *words)
    assert (code, out) == (4, ""), err
    assert call(capsys, monkeypatch, "check", tmp_path / "none.sqlite", "--init")[0] == 3
    assert call(capsys, monkeypatch, "check", tmp_path / "r.sqlite")[0] == 2


@pytest.mark.parametrize(
    "wanted, hint",
    [
        ({"modules_ms": {"nosuch": 60}}, "Known: "),
        ({"modules_ms": {"aa": 60}}, "Did you mean a?"),
        ({"findings": {"NSX1O1": 0}}, "Did you mean NSX"),
        ({"families_ms": {"convolutoin": 1.0}}, "Did you mean convolution?"),
        ({"idle_ms": {"hostcode": 1.0}}, "Did you mean host_code?"),
    ],
)
def test_a_name_that_exists_nowhere_is_no_limit(tmp_path: Path, wanted: dict[str, object], hint: str) -> None:
    with pytest.raises(NsysxError) as error:
        budget.check(captured(tmp_path), wanted)
    assert error.value.exit_code == 2
    assert hint in (error.value.hint or "")


def test_what_exists_but_did_not_run_is_a_limit_that_holds(tmp_path: Path) -> None:
    wanted = {"families_ms": {"convolution": 1.0}, "idle_ms": {"alloc": 1.0}, "findings": {"NSX104": 0}}
    assert budget.check(captured(tmp_path), wanted).exit_code == 0


@pytest.mark.parametrize("count", ["many", True, -1, float("nan"), float("inf")])
def test_an_allowed_wait_has_a_number(tmp_path: Path, count: object) -> None:
    with pytest.raises(NsysxError, match="is no number of waits") as error:
        budget.check(captured(tmp_path), {"allow": [{"api": "x", "count": count}]})
    assert error.value.exit_code == 2


def test_the_budget_in_the_manual_is_kept_by_the_sample_that_it_is_for(recorded: Samples) -> None:
    manual = (resources.files("nsysx") / "docs" / "compare.md").read_text(encoding="utf-8")
    wanted = tomllib.loads(manual.partition("```toml\n")[2].partition("```")[0])
    one = side.captured(recorded.summary("masked_nonzero"), "masked_nonzero.sqlite")
    assert budget.check(one, wanted, baseline=one).exit_code == 0


def test_annotations_name_files_as_the_repository_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    recorded = ("/home/somebody/project/src/train.py", "src/train.py", "/elsewhere/other.py")
    assert [check._in_repository(file) for file in recorded] == ["src/train.py", "src/train.py", "/elsewhere/other.py"]
    result = budget.BudgetLine("wait x", "broken", 1.0, 0.0, 0.0, "per step", "x", recorded[0], 7)
    text = check_text.github(budget.BudgetVerdict("r", (result,), 1), check._in_repository)
    assert text.startswith("::error file=src/train.py,line=7,")
