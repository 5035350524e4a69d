"""The contract of the Summary on every kind of report, and the sums that must hold in all of them."""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars
import pytest
from hypothesis import HealthCheck, given, settings
from rich.console import Console

from nsysx.analyses.helpers.tables import Tables, missing
from nsysx.catalogue import CAUSES
from nsysx.cli.report import ReportOutputs
from nsysx.errors import EXIT_EMPTY, EXIT_USAGE, NsysxError
from nsysx.model import SCHEMA, Scope, Summary
from nsysx.pipeline import ReadingOptions, gather, summarize
from nsysx.render import brief, json_text, terminal_answer
from tests import builder, reports, strategies
from tests.builder import Report
from tests.examples import examples

ROOT = Path(__file__).resolve().parent.parent


# --- kinds of reports ----------------------------------------------------------------------------------------------------


def api_only() -> Report:
    """A capture whose GPU side was not recorded."""
    report = reports.training()
    for table in ("KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION", "CUDA_EVENT"):
        report.drop(f"CUPTI_ACTIVITY_KIND_{table}")
    return report


def no_nvtx() -> Report:
    report = reports.training()
    report.drop("NVTX_EVENTS")
    return report


def no_gpu() -> Report:
    """A script that ran on the CPU: ranges and nothing else."""
    report = reports.training()
    for table in list(report.layout):
        if "CUPTI" in table or "CUDA_G" in table:
            report.drop(table)
    return report


def no_api() -> Report:
    report = reports.training()
    report.drop("CUPTI_ACTIVITY_KIND_RUNTIME")
    return report


def two_processes() -> Report:
    report = Report()
    for pid in (1, 2):
        report.gpu(pid - 1, pids=[(pid, 0)])
        main = report.process(pid).thread(pid, f"rank{pid}")
        for i in range(6):
            t = 1000 * i
            main.add_range(f"step {i}", t, t + 900, domain="nsysx")
            main.add_range("forward", t + 1, t + 500, domain="nsysx")
            main.launch(t + 5, 10, kernel=f"k{pid}", gpu_start=t + 20, gpu_dur=100 * pid)
            main.launch(t + 50, 10, kernel="ncclDevKernel_AllReduce", gpu_start=t + 300, gpu_dur=100, stream=13)
    return report


def two_devices() -> Report:
    report = Report()
    main = report.process(1).thread(1)
    for i in range(6):
        t = 1000 * i
        main.add_range(f"step {i}", t, t + 900, domain="nsysx")
        for device in (0, 1):
            main.launch(t + 10 + 20 * device, 10, gpu_start=t + 50, gpu_dur=300 + 100 * device, device=device)
    return report


def odd() -> Report:
    """Hostile names, an unclosed range, work without a call, rows that end before they begin."""
    report = builder.case_odd_ranges()
    process = report.processes[0]
    process.kernel("<script>alert(1)</script>\x1b[31m", 700, 10)
    process.kernel("backwards", 900, -5)
    return report


KINDS: dict[str, Callable[[], Report]] = {
    "full": reports.training,
    "user ranges": lambda: reports.training(own=False),
    "old schema": lambda: reports.training(schema="3.7.2"),
    "oldest schema": lambda: reports.training(schema=""),
    "api only": api_only,
    "no nvtx": no_nvtx,
    "no gpu": no_gpu,
    "no api": no_api,
    "two processes": two_processes,
    "two devices": two_devices,
    "one step": lambda: reports.training(1),
    "odd": odd,
    **{f"case {name}": make for name, make in builder.CASES.items()},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Summary]:
    """Return the Summary of a kind of report, made once."""
    folder, known = tmp_path_factory.mktemp("kinds"), dict[str, Summary]()

    def make(kind: str) -> Summary:
        if kind not in known:
            known[kind] = summarize([KINDS[kind]().write(folder / f"{kind}.sqlite")])
        return known[kind]

    return make


each_kind = pytest.mark.parametrize("kind", KINDS)

# --- the contract --------------------------------------------------------------------------------------------------------

CONTRACT: dict[str, str] = {
    "capture": "files nsys_version schema_version gpus processes duration_ns diagnostics",
    "totals": "kernels kernel_ns api_calls api_ns memcpys memcpy_ns memsets memset_ns gpu_ops_without_call api_by_kind",
    "steps": "source count steady cpu_median_ns gpu_median_ns rows",
    "verdict": "code sentence evidence",
    "gpu_ledger": "process device window_ns compute_ns comm_ns copy_ns memset_ns idle_ns busy_ns hidden_copy_ns hidden_comm_ns "
    "idle_causes",
    "cpu_ledger": "process thread window_ns launch_ns copy_ns sync_wait_ns alloc_ns load_ns other_api_ns outside_api_ns",
    "kernels": "name count total_ns mean_ns median_ns min_ns max_ns std_ns share step_ns operator module file line "
    "api_self_ns queue_ns",
    "api_calls": "name kind calls total_ns self_ns backlog_ns own_op_ns host_ns first_ns steady_median_ns",
    "modules": "path cls calls forward_gpu_ns backward_gpu_ns self_gpu_ns launch_ns wait_ns idle_blamed_ns grade",
    "phases": "name cpu_ns gpu_busy_ns gpu_idle_ns",
    "waits": "api calls total_ns backlog_ns own_op_ns host_ns idle_caused_ns module phase file line saving_ns moves_to",
    "events": "",
    "memory": "",
    "first_calls": "",
    "ranks": "",
    "replay": "recorded_ns unchanged_ns error",
    "findings": "code slug verdict title detail where cost_ns_per_step saving_ns_per_step confidence fix evidence",
    "quality": "check status detail fix",
}
STEP_ROW = "index start_ns end_ns warmup phases"
CODES = {
    "gpu_bound", "launch_bound", "input_bound", "sync_bound", "copy_bound", "comm_bound", "alloc_bound", "warmup", "unknown",
}  # fmt: skip


def strictly(summary: Summary) -> Any:
    """Return the JSON as another program reads it; NaN and infinity are no JSON."""
    return json.loads(json_text.render(summary), parse_constant=lambda c: pytest.fail(c))


@each_kind
def test_every_key_of_the_contract(made: Callable[[str], Summary], kind: str) -> None:
    summary = made(kind)
    data = strictly(summary)
    assert data["schema"] == SCHEMA == "nsysx.summary/1"
    assert data["tool"]["version"]
    for key, names in CONTRACT.items():
        assert key in data, key
        rows = data[key] if isinstance(data[key], list) else [data[key]]
        for row in rows:
            assert row is None or set(names.split()) <= set(row), key
        if key in summary.tables:
            assert set(names.split()) <= {c.name for c in summary.tables[key].columns}, key
    for row in data["steps"]["rows"]:
        assert set(STEP_ROW.split()) <= set(row)
    assert data["verdict"]["code"] in CODES
    assert {c["status"] for c in data["quality"]} <= {"ok", "warn", "missing"}
    assert {f["verdict"] for f in data["findings"] or ()} <= {"found", "clear", "cannot_tell"}


@each_kind
def test_what_is_null_says_why(made: Callable[[str], Summary], kind: str) -> None:
    summary = made(kind)
    status = {c.check: c for c in summary.quality}
    for key, table in summary.tables.items():
        if table.rows is None:
            assert status[f"table {key}"].status == "missing"
            assert status[f"table {key}"].detail == table.reason != ""
        else:
            assert f"table {key}" not in status
    if summary.replay is None:
        assert status["replay"].status == "missing"
    if summary.totals["kernels"] is None:
        assert status["gpu work"].status == "missing"
        assert summary.verdict.code == "unknown"
        assert summary.tables["gpu_ledger"].rows is None
    if summary.totals["api_calls"] is None:
        assert summary.tables["cpu_ledger"].rows is None
    for row in summary.steps.rows:
        if row["gpu_ns"] is None:
            assert all(row[k] is None for k in row if k.startswith("gpu_")), "unknown is never a zero"


def test_nothing_is_a_zero_that_was_not_recorded(made: Callable[[str], Summary]) -> None:
    totals = made("api only").totals
    assert {totals[k] for k in ("kernels", "kernel_ns", "memcpys", "memcpy_ns", "memsets", "memset_ns")} == {None}
    assert totals["gpu_ops_without_call"] is None
    assert totals["api_calls"] > 0
    totals = made("no api").totals
    assert (totals["api_calls"], totals["api_ns"], totals["api_by_kind"]) == (None, None, None)
    assert totals["kernels"] == totals["gpu_ops_without_call"] - totals["memcpys"] - totals["memsets"] == 24


@each_kind
def test_rows_have_the_declared_columns_in_their_order(made: Callable[[str], Summary], kind: str) -> None:
    for key, table in made(kind).tables.items():
        names = [c.name for c in table.columns]
        assert all(list(row) == names for row in table.rows or ()), key


# --- sums ----------------------------------------------------------------------------------------------------------------


def length(rows: Any, start: str = "start_ns", end: str = "end_ns") -> int:
    return sum(r[end] - r[start] for r in rows)


def total(rows: Any, *names: str) -> int:
    return sum(r[n] for r in rows for n in names)


GPU_PARTS = ("compute_ns", "comm_ns", "copy_ns", "memset_ns", "idle_ns")
CPU_PARTS = ("launch_ns", "copy_ns", "sync_wait_ns", "alloc_ns", "load_ns", "other_api_ns", "outside_api_ns")


def check_sums(summary: Summary) -> None:
    """Everything that must add up, to the nanosecond."""
    totals, steps = summary.totals, summary.steps
    gpu, cpu = summary.rows("gpu_ledger"), summary.rows("cpu_ledger")
    for row in gpu:
        assert total([row], *GPU_PARTS) == row["window_ns"]
        assert row["busy_ns"] + row["idle_ns"] == row["window_ns"]
        assert row["copy_HtoD_ns"] + row["copy_DtoH_ns"] + row["copy_DtoD_ns"] + row["copy_other_ns"] == row["copy_ns"]
        assert sum(row["idle_causes"].values()) == row["idle_ns"]
        assert set(row["idle_causes"]) <= set(CAUSES)
        assert min(row[p] for p in GPU_PARTS) >= 0
    for row in cpu:
        assert total([row], *CPU_PARTS) == row["window_ns"]
        assert sum(row["outside_by_phase"].values()) == row["outside_api_ns"]
        assert min(row[p] for p in CPU_PARTS) >= 0
    if totals["api_by_kind"] is not None:
        kinds = totals["api_by_kind"].values()
        assert (sum(k["calls"] for k in kinds), sum(k["ns"] for k in kinds)) == (totals["api_calls"], totals["api_ns"])
        calls = summary.rows("api_calls")
        assert (total(calls, "calls"), total(calls, "total_ns")) == (totals["api_calls"], totals["api_ns"])
        assert total(calls, "self_ns") == sum(k["self_ns"] for k in kinds)
    if totals["kernels"] is not None and summary.tables["kernels"].rows is not None:
        kernels = summary.rows("kernels")
        assert (total(kernels, "count"), total(kernels, "total_ns")) == (totals["kernels"], totals["kernel_ns"])
        assert not totals["kernel_ns"] or sum(r["share"] for r in kernels) == pytest.approx(1)
        if (scope := summary.steps.scope).steps:
            of_kernels = {r["family"] for r in kernels}
            families = [r for r in summary.rows("kernel_families") if r["family"] in of_kernels]
            assert sum(r["step_ns"] for r in kernels) * scope.steps == pytest.approx(total(families, "total_ns"))
    for row in summary.rows("waits"):
        parts = [row[p] for p in ("backlog_ns", "own_op_ns", "host_ns")]
        # What a call waited for cannot be said where no GPU work was recorded.
        assert parts == [None] * 3 if totals["kernels"] is None else sum(parts) == row["total_ns"]
    for row in summary.rows("modules"):
        assert row["self_gpu_ns"] <= row["forward_gpu_ns"] + row["backward_gpu_ns"]
    # Steps: the parts of each add up to it, and the steady ones to the ledger of their device.
    shown = [r for r in steps.rows if r["gpu_ns"] is not None]
    for row in shown:
        assert (
            total([row], *(f"gpu_{p}" for p in GPU_PARTS)) == row["gpu_ns"] == row["gpu_end_ns"] - row["gpu_start_ns"]
        )
        assert sum(row["phases"].values()) <= row["cpu_ns"] == row["end_ns"] - row["start_ns"]
    steady = [r for r in shown if r["steady"]]
    if steady and not steps.whole:
        ledger = [g for g in gpu if g["device"] == steady[0]["device"] and len({h["process"] for h in gpu}) == 1]
        for row in ledger:
            for part in GPU_PARTS:
                assert total(steady, f"gpu_{part}") == row[part], part
    # Phases: on the driving thread they sum to the ledger's window, on the shown device to busy and idle.
    phases = summary.rows("phases")
    if phases:
        shown = set((steps.scope or summary.verdict.scope or Scope("capture", ())).processes)
        windows = {r["window_ns"] for r in summary.rows("cpu_ledger") if r["process"] in shown}
        assert not windows or {total(phases, "cpu_ns")} == windows
        inside = sum(r["cpu_ns"] for r in phases if r["name"] != "(between steps)")
        counted = [r for r in steps.rows if r["steady"] or steps.whole]
        assert inside >= sum(r["cpu_ns"] for r in counted) or steps.whole
        ledgers = {(g["busy_ns"], g["idle_ns"]) for g in gpu} or {(0, 0)}
        assert (total(phases, "gpu_busy_ns"), total(phases, "gpu_idle_ns")) in ledgers


@each_kind
def test_sums(made: Callable[[str], Summary], kind: str) -> None:
    check_sums(made(kind))


def test_modules_hold_all_gpu_time_of_the_steady_steps(made: Callable[[str], Summary], tmp_path: Path) -> None:
    """Steps 0 to 4 of six: each has 20 + 200 + 200 + 100 + 100 + 10 us of GPU ops."""
    summary = made("full")
    assert summary.steps.steady == (0, 4)
    rows = {r["path"]: r for r in summary.rows("modules")}
    us = 1000
    assert total(rows.values(), "self_gpu_ns") == 5 * 630 * us
    assert (rows["fc"]["forward_gpu_ns"], rows["fc"]["backward_gpu_ns"]) == (5 * 200 * us, 5 * 200 * us)
    assert (rows["fc"]["calls"], rows["fc"]["parent"], rows["fc"]["cls"], rows["fc"]["grade"]) == (
        5,
        "(Net)",
        "Linear",
        "thread",
    )
    assert rows["(Net)"]["forward_gpu_ns"] == 5 * 200 * us  # its child's
    assert rows["(Net)"]["self_gpu_ns"] == 0
    assert rows["(optimizer)"]["self_gpu_ns"] == 5 * 110 * us


def test_the_ledger_of_a_known_program(made: Callable[[str], Summary]) -> None:
    """Per step: kernels 60-260, 280-480, 520-620; allreduce 400-500 of which 20 us show; copy 20-40; memset 620-630."""
    (row,) = made("full").rows("gpu_ledger")
    per_step = {k: row[k] // 5 // 1000 for k in ("window_ns", *GPU_PARTS, "hidden_comm_ns", "copy_HtoD_ns")}
    assert per_step == {
        "window_ns": 1000, "compute_ns": 500, "comm_ns": 20, "copy_ns": 20, "memset_ns": 10, "idle_ns": 450,
        "hidden_comm_ns": 80, "copy_HtoD_ns": 20,
    }  # fmt: skip


@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(strategies.reports())
def test_any_report_adds_up(tmp_path_factory: pytest.TempPathFactory, report: Report) -> None:
    try:
        summary = summarize([report.write(tmp_path_factory.mktemp("p") / "r.sqlite")])
    except NsysxError as error:
        assert error.exit_code == EXIT_EMPTY
        return
    check_sums(summary)
    strictly(summary)


# --- windows -------------------------------------------------------------------------------------------------------------


def test_ledgers_of_single_steps_add_up_to_that_of_the_window(tmp_path: Path) -> None:
    path = reports.training().write(tmp_path / "r.sqlite")
    (whole,) = summarize([path], steps="0:5").rows("gpu_ledger")
    added: dict[str, int] = {}
    causes: dict[str, int] = {}
    for i in range(5):
        (row,) = summarize([path], steps=f"{i}:{i + 1}").rows("gpu_ledger")
        for name in ("window_ns", "busy_ns", "hidden_copy_ns", "hidden_comm_ns", *GPU_PARTS):
            added[name] = added.get(name, 0) + row[name]
        for name, ns in row["idle_causes"].items():
            causes[name] = causes.get(name, 0) + ns
    assert added == {k: whole[k] for k in added}
    assert causes == whole["idle_causes"]


def test_a_window_limits_the_totals_too(tmp_path: Path) -> None:
    path = reports.training().write(tmp_path / "r.sqlite")
    summary = summarize([path], steps="1:3")
    assert summary.totals["kernels"] == 2 * 4
    assert total(summary.rows("kernels"), "count") == 8
    check_sums(summary)
    assert summarize([path]).totals["kernels"] == 6 * 4


def test_all_is_the_whole_capture(tmp_path: Path) -> None:
    path = reports.training().write(tmp_path / "r.sqlite")
    summary = summarize([path], steps="all")
    assert summary.steps.whole
    check_sums(summary)
    (row,) = summary.rows("gpu_ledger")
    assert row["window_ns"] == (5 * 1000 + 630 - 20) * 1000


# --- choices -------------------------------------------------------------------------------------------------------------


def test_one_device(tmp_path: Path) -> None:
    path = two_devices().write(tmp_path / "r.sqlite")
    both = {r["device"]: r for r in summarize([path]).rows("gpu_ledger")}
    for device in (0, 1):
        summary = summarize([path], device=device)
        (row,) = summary.rows("gpu_ledger")
        assert row["busy_ns"] == both[device]["busy_ns"]
        assert summary.totals["kernels"] == 6


def test_a_wait_is_for_the_same_work_whichever_device_is_shown(tmp_path: Path) -> None:
    report = two_devices()
    main = report.processes[0].thread(1)
    for i in range(6):  # until the work of device 1 is done; that of device 0 ends 100 ns earlier
        main.sync("cudaStreamSynchronize_v3020", at=1000 * i + 100, dur=360, device=1)
    path = report.write(tmp_path / "r.sqlite")
    columns = ("api", "calls", "total_ns", "backlog_ns", "host_ns")
    rows = [[[r[c] for c in columns] for r in summarize([path], device=d).rows("waits")] for d in (None, 0, 1)]
    assert rows[0] and rows[0][0][3] > 0
    assert rows[0] == rows[1] == rows[2]


def test_one_rank(tmp_path: Path) -> None:
    path = two_processes().write(tmp_path / "r.sqlite")
    for rank in (0, 1):
        summary = summarize([path], rank=rank)
        assert {r["name"] for r in summary.rows("kernels")} == {f"k{rank + 1}", "ncclDevKernel_AllReduce"}
        assert len(summary.rows("gpu_ledger")) == 1


@pytest.mark.parametrize(
    ("options", "slug", "code"),
    [
        ({"device": 7}, "device-range", EXIT_EMPTY),
        ({"rank": 2}, "rank-range", EXIT_EMPTY),
        ({"rank": -1}, "rank-range", EXIT_EMPTY),
        ({"steps": "x"}, "steps-syntax", EXIT_USAGE),
        ({"steps": "90:99"}, "steps-empty", EXIT_EMPTY),
        ({"step_range": "("}, "step-range-syntax", EXIT_USAGE),
        ({"step_range": "nope"}, "step-range-empty", EXIT_EMPTY),
    ],
)
def test_choices_that_fail(tmp_path: Path, options: dict[str, Any], slug: str, code: int) -> None:
    path = two_processes().write(tmp_path / "r.sqlite")
    with pytest.raises(NsysxError) as caught:
        summarize([path], **options)
    assert (caught.value.slug, caught.value.exit_code) == (slug, code)


def test_one_report_twice(tmp_path: Path) -> None:
    path = two_processes().write(tmp_path / "r.sqlite")
    link = tmp_path / "link.sqlite"
    link.symlink_to(path)
    with pytest.raises(NsysxError) as caught:
        summarize([path, link])
    assert caught.value.exit_code == EXIT_USAGE


def test_progress_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    summarize([builder.case_a().write(tmp_path / "r.sqlite")], progress=said.append)
    assert said[0] == "reading the report"
    assert "building the breakdowns" in said
    assert all(said)


# --- the same again ------------------------------------------------------------------------------------------------------


def test_two_runs_agree_to_the_byte(tmp_path: Path) -> None:
    """In processes of their own, with other hash seeds and another number of threads."""
    path = reports.training().write(tmp_path / "r.sqlite")
    texts = []
    for seed, threads in (("1", "1"), ("2", "4")):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed, "POLARS_MAX_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-m", "nsysx", "report", str(path), "--json", "-"],
            env=environment,
            capture_output=True,
            check=True,
            timeout=600,
        )
        texts.append(done.stdout)
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["totals"]["kernels"] == 24


def test_reports_of_tests_are_read_by_as_many_threads_as_conftest_says() -> None:
    """It says so before anything imports polars, which would not listen later."""
    assert polars.thread_pool_size() == int(os.environ["POLARS_MAX_THREADS"])


def test_ties_have_an_order_of_their_own(tmp_path: Path) -> None:
    """Rows that last equally long do not change places with the order or the numbers in the file."""
    made = []
    for turn in range(4):
        report = Report()
        main = report.process(1).thread(1)
        for i, (kind, pageable) in enumerate([("DtoH", True), ("DtoH", False), ("HtoD", True), ("HtoD", False)]):
            main.memcpy(100 * i, 20, kind=kind, pageable=pageable, gpu_start=100 * i + 5, gpu_dur=10)
            main.launch(100 * i + 30, 5, kernel=f"k{i}", gpu_start=100 * i + 50, gpu_dur=10)
            main.call(f"cudaStream{'ABCD'[i]}", 100 * i + 40, 5)
        report.renumber(turn)
        report.shuffle(turn)
        data = strictly(summarize([report.write(tmp_path / "r.sqlite")]))
        made.append({k: data[k] for k in ("copy_sites", "copies", "kernels", "api_calls", "api_bill", "findings")})
    assert all(m == made[0] for m in made)


# --- only what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [reports.training, api_only, no_nvtx])
def test_the_answer_makes_half_of_the_tables_and_says_the_same(kind: Callable[[], Report], tmp_path: Path) -> None:
    path = kind().write(tmp_path / "r.sqlite")
    whole, lazily = summarize([path]), summarize([path], every_table=False)

    def told(summary: Summary) -> str:
        out = io.StringIO()
        terminal_answer.render(summary, Console(file=out, width=100), "r.sqlite")
        return brief.answer_json(summary, redact=True) + out.getvalue()

    assert told(lazily) == told(whole)
    assert isinstance(lazily.tables, Tables)
    assert len(lazily.tables.made) < 0.5 * len(whole.tables)
    assert json_text.render(replace(lazily, quality=whole.quality)) == json_text.render(
        whole
    )  # others are made when read


@pytest.mark.parametrize("kind", [reports.training, api_only, no_nvtx])
def test_a_table_that_tells_what_it_needs_is_recorded_where_that_is(kind: Callable[[], Report], tmp_path: Path) -> None:
    profile = gather(kind().write(tmp_path / "r.sqlite"), ReadingOptions())
    whole = dict(Tables(profile, lambda title: None))
    named = [key for key in whole if hasattr(importlib.import_module(f"nsysx.analyses.{key}"), "require")]
    assert named
    for key in named:
        tables = Tables(profile, lambda title: None)
        assert missing(tables, key) == (whole[key].reason or None)
        assert list(tables.made) == ([] if whole[key].rows is not None else [key])


@pytest.mark.parametrize("name", ["html", "json", "markdown", "csv", "full", "section"])
def test_what_shows_every_table_has_every_table(name: str) -> None:
    assert ReportOutputs(**{name: ("modules",) if name == "section" else True}).every_table
    assert not ReportOutputs(brief="-", cluster="local").every_table
