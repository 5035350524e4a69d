"""What every finding keeps: a code of its own, a manual, an answer to anything, and inputs left as they were."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest

from nsysx import findings
from nsysx.analyses.helpers.tables import Tables
from nsysx.events.profile import Profile
from nsysx.model import Finding, Table
from nsysx.pipeline import ReadingOptions, gather
from nsysx.render import json_text
from nsysx.replay.engine import replay_of
from tests.builder import CASES, Report
from tests.findings import Program, empty, healthy, rule_alone, said_of
from tests.findings.test_memory_and_input import thrashing, uploading
from tests.findings.test_waits import masked

RULES = findings.rules()
each = pytest.mark.parametrize("rule", RULES, ids=[r.RULE.code for r in RULES])


def everything(program: Program, number: int) -> None:
    """A step in which much is wrong."""
    with program.range("data DataLoader"):
        program.host(3_000)
    uploading(program, number)
    masked(program, number)
    thrashing(program, number)
    with program.range("optimizer AdamW"), program.range("opt.0:Loop"):
        for _ in range(30):
            program.launch(3, "void vectorized_elementwise_kernel<4, Add>(int)")


def judged(path: Path) -> tuple[Profile, dict[str, Table], tuple[Finding, ...]]:
    profile = gather(path, ReadingOptions())
    tables = dict(Tables(profile, lambda title: None))
    return profile, tables, findings.judge(profile, tables, replay_of(profile))


def test_codes_and_slugs_are_unique_and_the_asked_for_ones_exist() -> None:
    codes = [r.RULE.code for r in RULES]
    slugs = [r.RULE.slug for r in RULES]
    assert len(set(codes)) == len(codes)
    assert len(set(slugs)) == len(slugs)
    wanted = {f"NSX{n}" for n in (*range(101, 122), 190)}
    assert wanted <= set(codes)


@each
def test_the_manual_says_all_that_a_manual_says(rule) -> None:
    text = findings.manual(rule.RULE.code.lower())
    assert text is not None
    assert text == findings.manual(rule.RULE.slug)
    assert text.startswith(f"{rule.RULE.code} {rule.RULE.slug}: ")
    for part in ("What it means", "In the trace", "Bad", "Good", "Harmless when"):
        match = re.search(rf"^{part}\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
        assert match, part
        assert match[1].strip(), part


@each
def test_the_file_is_named_by_its_rule(rule) -> None:
    name = rule.__name__.rpartition(".")[2]
    assert name == f"{rule.RULE.code}_{rule.RULE.slug}".lower().replace("-", "_")


@each
def test_its_tests_are_found_by_its_code(rule) -> None:
    own = [p for p in Path(__file__).parent.glob("test_*.py") if p != Path(__file__)]
    assert any(f'"{rule.RULE.code}"' in p.read_text(encoding="utf-8") for p in own)


def test_all_rules_are_known_after_one_was_asked_alone() -> None:
    findings._by_code.cache_clear()
    with rule_alone("NSX101"):
        assert [rule.RULE.code for rule in findings.rules()] == ["NSX101"]
        assert findings.rule_of("NSX101").slug
    assert all(findings.rule_of(rule.RULE.code) is rule.RULE for rule in RULES) and len(RULES) > 30


def test_an_unknown_name_has_no_manual() -> None:
    assert findings.manual("NSX999") is None


@pytest.mark.parametrize("case", sorted(CASES))
def test_every_rule_answers_every_report(case: str, tmp_path: Path) -> None:
    found = said_of(CASES[case]().write(tmp_path / "r.sqlite"))
    assert {f.code for f in found} == {r.RULE.code for r in RULES}
    for code in {f.code for f in found}:
        own = [f for f in found if f.code == code]
        assert len(own) == 1 or all(f.verdict == "found" for f in own)


@each
def test_a_report_without_cuda_is_never_found_or_clear_without_reason(rule, tmp_path: Path) -> None:
    profile, tables, _ = judged(empty().report.write(tmp_path / "r.sqlite"))
    (finding,) = (f for f in findings.judge(profile, tables, None) if f.code == rule.RULE.code)
    assert finding.verdict != "clear"
    assert finding.detail


def test_without_a_replay_nothing_is_promised(tmp_path: Path) -> None:
    path = Program().steps(everything).report.write(tmp_path / "r.sqlite")
    profile, tables, with_replay = judged(path)
    without = findings.judge(profile, tables, None)
    # What a time on the GPU itself bounds needs no replay: the idle time behind a loader, the kernels of a chain.
    for finding in without:
        assert (
            finding.saving_ns_per_step is None
            or finding.saving.bound
            or finding.saving.confidence.startswith("an estimate: ")
        )
        assert (finding.saving_ns_per_step or 0) <= (finding.cost_ns_per_step or 0)
    assert {f.code for f in with_replay if f.saving_ns_per_step} <= {f.code for f in without if f.verdict == "found"}
    assert any(f.saving_ns_per_step for f in with_replay)


def test_the_order_of_rows_changes_nothing(tmp_path: Path) -> None:
    program = Program().steps(everything)
    straight = judged(program.report.write(tmp_path / "r.sqlite"))[2]
    program.report.shuffle(3)
    assert judged(program.report.write(tmp_path / "r.sqlite"))[2] == straight


def test_asking_twice_gives_the_same_and_alters_nothing(tmp_path: Path) -> None:
    profile, tables, first = judged(Program().steps(everything).report.write(tmp_path / "r.sqlite"))
    frames = {
        "api_calls": profile.attributed.api_calls,
        "gpu_ops": profile.attributed.gpu_ops,
        "idle": profile.ledgers.idle,
        "waits": profile.ledgers.waits,
        "steps": profile.steps.cpu,
        **profile.trace.frames,
    }
    before: dict[str, pl.DataFrame] = {name: frame.clone() for name, frame in frames.items()}
    rows = json.dumps({k: t.rows for k, t in tables.items()}, default=str)
    assert findings.judge(profile, tables, replay_of(profile)) == first
    for name, frame in frames.items():
        assert frame.equals(before[name]), name
    assert json.dumps({k: t.rows for k, t in tables.items()}, default=str) == rows


def test_found_stand_by_saving_never_by_wait(tmp_path: Path) -> None:
    found = judged(Program().steps(everything).report.write(tmp_path / "r.sqlite"))[2]
    order = ["found", "clear", "cannot_tell"]
    assert [f.verdict for f in found] == sorted((f.verdict for f in found), key=order.index)
    savings = [f.saving_ns_per_step or 0 for f in found if f.verdict == "found"]
    assert savings == sorted(savings, reverse=True)
    assert any(f.code == "NSX101" and "costs next to nothing" in f.title for f in found)


def test_a_cost_is_never_below_its_worth(tmp_path: Path) -> None:
    for finding in judged(Program().steps(everything).report.write(tmp_path / "r.sqlite"))[2]:
        if finding.cost_ns_per_step is not None:
            assert finding.cost_ns_per_step >= (finding.saving_ns_per_step or 0), finding.title


def test_each_rule_has_tests_of_its_own() -> None:
    """Each code is asked for by name, in a test that finds it and in one that does not, or has a file of its own with both."""
    here = Path(__file__)
    own = {p.name.split("_")[1].upper() for p in here.parent.glob("test_nsx*.py")}
    text = "".join(p.read_text(encoding="utf-8") for p in here.parent.glob("test_*.py") if p != here)
    assert [r.RULE.code for r in RULES if r.RULE.code not in own and text.count(f'"{r.RULE.code}"') < 2] == []


@each
def test_a_manual_and_its_words_are_plain(rule) -> None:
    text = findings.manual(rule.RULE.code) or ""
    for word in ("null likewise", "limit_from", "queue_full", "cannot_tell", "+-", "--osrt", "at most 0 ns"):
        assert word not in text, word


def test_no_saving_is_longer_than_the_step(tmp_path: Path) -> None:
    summary = Program().steps(everything).summary(tmp_path)
    assert summary.replay is not None
    for finding in summary.findings or ():
        assert 0 <= (finding.saving_ns_per_step or 0) <= summary.replay["recorded_ns"]


def test_findings_are_part_of_the_json(tmp_path: Path) -> None:
    summary = Program().steps(masked).summary(tmp_path)
    first = json.loads(json_text.render(summary))["findings"][0]
    assert set(first) == {
        "code", "slug", "verdict", "title", "detail", "where", "cost_ns_per_step", "saving_ns_per_step", "confidence", "fix",
        "evidence", "bound", "error_ns", "paste", "condition", "scope", "saving_scope", "because", "conditions", "unblocked_ns",
        "unblocked_most_ns", "most_ns", "title_as_recorded", "cost_as_recorded", "own_ns_per_step", "overlaps",
        "remedies", "saving_source", "unexplained", "stepless_ns",
    }  # fmt: skip


def test_names_of_the_program_stay_data(tmp_path: Path) -> None:
    """Regular expressions, formats and selectors in names change nothing."""

    def body(program: Program, number: int) -> None:
        with program.range("loss"), program.range("a.^${1}*(.[{:Evil"):
            program.launch(500, "DeviceSelectSweepKernel<{0}> %s .* ^nccl$ (")
            for _ in range(30):
                program.launch(2, "$1 elementwise ^x.*(")
            program.sync()
            program.host(2_000)

    found = said_of(Program().steps(body).write(tmp_path))
    assert any(f.verdict == "found" and f.where.get("module") == "a.^${1}*(.[{" for f in found)


def test_a_report_of_nothing_but_one_call(tmp_path: Path) -> None:
    report = Report()
    report.process(1).thread(1).call("cudaMalloc_v3020", 10, 10)
    found = said_of(report.write(tmp_path / "r.sqlite"))
    assert all(f.verdict != "found" or f.code in ("NSX103", "NSX190") for f in found)


def test_a_healthy_program_has_no_finding_but_of_its_capture(tmp_path: Path) -> None:
    (tmp_path / "r.run.json").write_text('{"nsysx": "recorded"}')
    found = said_of(Program().steps(healthy).write(tmp_path))
    assert [f.code for f in found if f.verdict == "found"] == []
