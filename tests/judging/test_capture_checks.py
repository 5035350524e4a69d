"""How far a capture can be trusted: every check in every state that it can have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsysx.errors import NsysxError
from nsysx.model import Check
from nsysx.pipeline import summarize
from tests import builder, reports
from tests.builder import Report, Thread
from tests.reports import MS, US

TRAINING_RANGES = {"step": 6, "phase": 18, "module": 12, "backward_module": 6}
PUSHED = sum(TRAINING_RANGES.values()) + 6  # optimizer


def checks(report: Report, folder: Path, run: dict[str, Any] | None = None, **options: Any) -> dict[str, Check]:
    path = report.write(folder / "r.sqlite")
    if run is not None:
        path.with_suffix(".run.json").write_text(json.dumps(run), encoding="utf-8")
    found = summarize([path], **options).quality
    named = [c for c in found if not c.table]
    assert len({c.check for c in found}) == len(found), "one line per check"
    order = [("missing", "warn", "ok").index(c.status) for c in named]
    assert order == sorted(order), "trouble first"
    assert [c for c in found if c.table] == list(found[len(named) :])
    return {c.check: c for c in found}


def simple(*extra: Callable[[Thread], object]) -> Report:
    report = Report()
    main = report.process(1).thread(1, "python")
    main.launch(0, 10, gpu_start=20, gpu_dur=100)
    for add in extra:
        add(main)
    return report


def probe(**facts: Any) -> dict[str, Any]:
    return {"probe": [{"pid": 100, "backend": "nvtx", "ranges": {}, "pair_cost_ns": None, **facts}]}


# --- the probe is off -----------------------------------------------------------------------------------------------------


def test_who_used_nsysx_run_hears_why_there_are_no_ranges(tmp_path: Path) -> None:
    run = {"probe": [], "probe_off": {"reason": "no NVTX backend: no nvtx", "fix": "pip install nvtx"}}
    check = checks(simple(), tmp_path, run)["probe ranges"]
    assert (check.status, check.fix) == ("missing", "pip install nvtx")
    assert check.detail.endswith("no NVTX backend: no nvtx")
    empty = Report()
    empty.process(1).thread(1)
    path = empty.write(tmp_path / "empty.sqlite")
    path.with_suffix(".run.json").write_text(json.dumps(run), encoding="utf-8")
    with pytest.raises(NsysxError, match="no NVTX backend") as caught:
        summarize([path])
    assert "nsysx run" not in str(caught.value)


# --- the record of the run -----------------------------------------------------------------------------------------------


def test_a_report_that_was_moved_without_the_record_of_its_run_says_so(tmp_path: Path) -> None:
    """Its ranges show that nsysx run made it; a report with the record, and one of nsys alone, say nothing."""
    report = reports.training()
    found = checks(report, tmp_path)["run record"]
    assert (found.status, found.fix) == ("warn", "put NAME.run.json beside this report")
    assert "run record" not in checks(report, tmp_path, probe(ranges=TRAINING_RANGES))
    (tmp_path / "r.run.json").unlink()
    assert "run record" not in checks(simple(), tmp_path)
    cold = summarize([report.write(tmp_path / "r.cold.sqlite")]).quality
    assert "run record" not in {check.check for check in cold}, "a first window has no record of its own"


# --- GPU work ------------------------------------------------------------------------------------------------------------


def test_gpu_work_missing(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    main.call("cudaFree_v3020", 0, 10)
    check = checks(report, tmp_path)["gpu work"]
    assert (check.status, check.detail) == ("missing", "no kernel, copy or memset is in the report")
    assert check.fix.startswith("let the program reach its work"), "nothing was lost: it asked for none"
    main.launch(20, 10)
    check = checks(report, tmp_path)["gpu work"]
    assert "but 1 launch: the GPU side was not recorded" in check.detail
    assert "torch.profiler" in check.fix  # what takes it away without a word of nsys


@pytest.mark.parametrize(("cuda", "doubt"), [(True, "numbers"), (False, "")])
def test_a_program_that_traces_itself(tmp_path: Path, cuda: bool, doubt: str) -> None:
    report = Report()
    main = report.process(1).thread(1)
    main.launch(20, 10)
    facts = {"pid": 1, "backend": "nvtx", "own_profiler": {"times": 3, "cuda": cuda}}
    found = checks(report, tmp_path, {"probe": [facts, {"pid": 2, "own_profiler": None}]})
    check = found["torch.profiler"]
    assert "starts torch.profiler itself (3 times)" in check.detail and check.doubt == doubt
    assert ("kernels may be in its trace" in check.detail) is cuda
    assert (found["gpu work"].fix == check.fix) is cuda  # CUPTI serves one tool: what took the kernels away is known
    report.process(1).thread(1).launch(60, 10, gpu_start=80)
    (tmp_path / "r.run.json").unlink()
    assert "torch.profiler" not in checks(report, tmp_path)


@pytest.mark.parametrize(("schema", "newer"), [("2.7.1", False), ("3.25.1", False), ("4.0.0", True), ("12.1", True)])
def test_an_export_of_a_later_nsys_is_read_and_said(tmp_path: Path, schema: str, newer: bool) -> None:
    report = Report(schema)
    report.process(1).thread(1).launch(20, 10, gpu_start=40)
    found = checks(report, tmp_path)
    assert ("export schema" in found) is newer
    assert not newer or found["export schema"].detail.startswith(f"schema {schema} of nsys is newer")


def test_steps_in_which_the_gpu_does_nothing(tmp_path: Path) -> None:
    report = Report()
    main = report.process(1).thread(1)
    main.launch(0, 5 * US, gpu_start=10 * US, gpu_dur=20 * US)
    for i in range(8):
        main.add_range(f"step {i}", (i + 1) * MS, (i + 1) * MS + 900 * US)
        main.call("cudaGetDevice_v3020", (i + 1) * MS + 5 * US, 900)
    summary = summarize([report.write(tmp_path / "r.sqlite")])
    assert (summary.verdict.code, summary.totals["kernels"], summary.steps.count) == ("unknown", 1, 8)
    assert summary.verdict.sentence.startswith("The steps hold no GPU work; 1 GPU operation lies outside them")


def test_a_recorded_program_that_never_used_cuda(tmp_path: Path) -> None:
    """Whoever ran `nsysx run` need not be told to."""
    report = Report()
    report.process(1).thread(1).add_range("mine", 0, 10)
    run = {"schema": "nsysx.run/1", "probe": [{"pid": 1, "torch": "2.13.0+cpu"}]}
    fix = checks(report, tmp_path, run)["gpu work"].fix
    assert "made no CUDA call, and its PyTorch (2.13.0+cpu) is built for CPUs" in fix
    assert "nsysx run" not in fix


def test_gpu_work_that_nsys_says_it_may_have_lost(tmp_path: Path) -> None:
    """What nsys 2025.1 wrote of a program under a driver of CUDA 13, killed before it quit."""
    report = Report()
    report.process(1).thread(1).call("cuStreamCreate", 0, 10)
    report.diagnostic(
        "Number of CUPTI events produced: 31, CUPTI buffers: 49 of 50. Some CUPTI events might be missing. To make sure "
        "all the events are collected, let the application run until it quits.", severity=1
    )  # fmt: skip
    assert checks(report, tmp_path)["gpu work"].fix.startswith("let the program end inside the capture")
    report.diagnostic("Installed CUDA driver version (13.3) is not supported by this build of Nsight Systems.")
    check = checks(report, tmp_path)["gpu work"]
    assert check.fix.startswith("install an nsys as new as the driver (CUDA 13.3); let the program end")


@pytest.mark.parametrize("kernels", [0, 12])
def test_gpu_events_that_hardware_tracing_dropped(tmp_path: Path, kernels: int) -> None:
    """What a window on a Blackwell GPU leaves: all calls, few or no kernels, and two messages that explain it."""
    report = Report("3.24.7")
    thread = report.process(100).thread(100)
    for i in range(40):
        thread.launch(i * 10 * US, 5 * US, gpu_start=i * 10 * US + 6 * US if i < kernels else None, gpu_dur=3 * US)
    report.diagnostic("Hardware tracing used for CUDA tracing", severity=1)
    report.diagnostic("Number of incomplete CUPTI events dropped: 28")
    found = checks(report, tmp_path)
    assert "hardware" in found["cuda tracing"].detail
    assert "28 GPU events" in found["dropped GPU events"].detail
    lost = found["launches without kernel"] if kernels else found["gpu work"]
    for check in (lost, found["dropped GPU events"]):
        assert "-t cuda-sw,nvtx" in check.fix
    assert "diagnostics" not in found


def test_gpu_ops_without_call(tmp_path: Path) -> None:
    assert checks(simple(), tmp_path)["gpu ops without call"].status == "ok"
    found = checks(simple(lambda m: m.process.kernel("k", 200, 10)), tmp_path)["gpu ops without call"]
    assert (found.status, found.fix != "") == ("warn", True)
    assert found.detail.startswith("the launch of 1 kernel, copy or memset (50 %) is not in the capture")


def test_launches_without_kernel(tmp_path: Path) -> None:
    def many(main: Thread) -> None:
        for i in range(11):
            main.launch(1000 + 20 * i, 10)

    found = checks(simple(many), tmp_path)["launches without kernel"]
    assert (found.status, found.detail) == (
        "warn",
        "the kernels of 11 of 12 launches are not in the report: lost, or captured into a graph",
    )
    # Launches that were captured into a graph have none either.
    assert "launches without kernel" not in checks(simple(many, lambda m: m.graph_node(1005, 3)), tmp_path)
    assert "launches without kernel" not in checks(simple(lambda m: m.launch(1000, 10)), tmp_path)


def test_launches_that_had_not_run_when_the_limit_was_reached_are_counted(tmp_path: Path) -> None:
    """However few they are; where others behind them have their kernel, something else took theirs."""
    stopped = {"limit": {"reached": [{"after_s": 120.0, "by": "time", "window": False}]}}
    queued = simple(lambda m: m.launch(1000, 10), lambda m: m.launch(1020, 10))
    found = checks(queued, tmp_path, stopped)["launches without kernel"]
    assert (found.status, found.doubt) == ("warn", "") and found.detail == (
        "the kernels of 2 of 3 launches are not in the report, because nsys dropped what the GPU had not done when the limit of the "
        "recording was reached"
    )
    assert "waits for the GPU" in found.fix
    closed = {"limit": {"reached": [{"after_s": 120.0, "by": "time", "window": True}]}}
    assert "launches without kernel" not in checks(queued, tmp_path, closed)
    # A graph was captured, and the wait for the GPU ended before it came to rest.
    tired = closed | {"probe": [{"device_waits": [{"ns": 5_000_000_000, "rested": False}]}]}
    graphs = simple(lambda m: m.launch(1000, 10), lambda m: m.launch(1020, 10), lambda m: m.graph_node(1005, 3))
    assert "the kernels of 2 of 3 launches" in checks(graphs, tmp_path, tired)["launches without kernel"].detail
    assert "launches without kernel" not in checks(graphs, tmp_path, closed)
    behind = simple(lambda m: m.launch(1000, 10), lambda m: m.launch(2000, 10, gpu_start=2020, gpu_dur=10))
    assert "launches without kernel" not in checks(behind, tmp_path, stopped)


def test_an_instance_of_a_divided_card(tmp_path: Path) -> None:
    report = simple()
    report.gpu(0, "NVIDIA A30 MIG 2g.12gb", pids=[(report.processes[0].pid, 0)])
    assert "(MIG 2g.12gb)" in checks(report, tmp_path)["divided card"].detail
    assert "divided card" not in checks(simple(), tmp_path)


def test_graphs(tmp_path: Path) -> None:
    found = checks(builder.case_opaque_graph(), tmp_path)["opaque graphs"]
    assert found.status == "warn" and "--graphs node" in found.fix
    assert found.detail.startswith("the kernels inside 1 CUDA graph launch (5.8 us) were not recorded")
    assert "opaque graphs" not in checks(builder.case_graph(), tmp_path)
    found = checks(simple(lambda m: m.graph_launch(500, 10)), tmp_path)["graphs without work"]
    assert (found.status, found.detail) == ("warn", "the work of 1 CUDA graph launch is not in the report")


@pytest.mark.parametrize(("early", "status"), [(3, "ok"), (1 * MS, "ok"), (2 * MS, "warn")])
def test_clock_skew(tmp_path: Path, early: int, status: str) -> None:
    found = checks(simple(lambda m: m.launch(10 * MS, 10, gpu_start=10 * MS - early, gpu_dur=5)), tmp_path)
    assert found["clock skew"].status == status


def test_no_skew(tmp_path: Path) -> None:
    assert "clock skew" not in checks(simple(), tmp_path)


# --- rows ----------------------------------------------------------------------------------------------------------------


def test_rows_that_are_left_out(tmp_path: Path) -> None:
    clean = checks(simple(), tmp_path)
    assert not {"bad times", "bad rows", "diagnostics", "open ranges"} & set(clean)
    dirty = checks(
        simple(
            lambda m: m.call("cudaFree_v3020", 500, -3),
            lambda m: m.process.kernel("k", 1 << 62, 5),
            lambda m: m.add_range("never closed", 5, None),
            lambda m: m.report.diagnostic("Some CUPTI events were lost"),
            lambda m: m.report.diagnostic("buffer overflow", severity=3),
        ),
        tmp_path,
    )
    assert {dirty[n].status for n in ("bad times", "bad rows", "diagnostics", "open ranges")} == {"warn"}
    assert dirty["bad times"].detail.startswith("1 row left out")
    assert dirty["bad rows"].detail.startswith("1 row left out")
    assert dirty["diagnostics"].detail == "nsys says: Some CUPTI events were lost (and 1 more)"
    assert dirty["open ranges"].detail.startswith("1 range without an end")


def test_what_nsys_says_of_a_worker_is_no_alarm(tmp_path: Path) -> None:
    """A process of the data loader marks no range, and nsys says so; the process that is shown has its ranges."""
    said = "No NVTX events collected. Does the process use NVTX?"
    assert "diagnostics" in checks(simple(lambda m: m.report.diagnostic(said)), tmp_path)
    both = simple(lambda m: m.report.diagnostic(said), lambda m: m.add_range("mine", 0, 50))
    assert "diagnostics" not in checks(both, tmp_path)
    # A launcher calls no CUDA, and nsys says so; the shown process has its kernels.
    assert "diagnostics" not in checks(
        simple(lambda m: m.report.diagnostic("No CUDA events collected. Does the process use CUDA?")), tmp_path
    )


# --- the probe -----------------------------------------------------------------------------------------------------------


def test_no_nvtx(tmp_path: Path) -> None:
    assert checks(simple(), tmp_path)["nvtx"].status == "missing"


def test_not_made_by_run(tmp_path: Path) -> None:
    found = checks(simple(lambda m: m.add_range("mine", 0, 50)), tmp_path)["probe ranges"]
    assert (found.status, found.fix) == ("missing", "nsysx run -- CMD")


def test_ranges_of_the_probe_without_its_count(tmp_path: Path) -> None:
    found = checks(reports.training(), tmp_path)["probe ranges"]
    assert (found.status, found.detail.split()[0]) == ("ok", "48")


def test_all_ranges_arrived(tmp_path: Path) -> None:
    ranges = {"step": 6, "phase": 24, "module": 12, "backward_module": 6, "info": 99}
    found = checks(reports.training(), tmp_path, probe(ranges=ranges))["probe ranges"]
    assert (found.status, found.detail) == ("ok", "pushed 48, in the report 48")


def test_some_ranges_were_lost(tmp_path: Path) -> None:
    found = checks(reports.training(), tmp_path, probe(ranges={"step": 100}))["probe ranges"]
    assert (found.status, found.detail) == ("warn", "the probe pushed 100 ranges, the report holds 48")


def test_all_ranges_were_lost(tmp_path: Path) -> None:
    """The failure that no other tool says a word about."""
    found = checks(simple(lambda m: m.add_range("mine", 0, 50)), tmp_path, probe(ranges={"module": 1234}))[
        "lost ranges"
    ]
    assert found.status == "missing"
    assert "pushed 1,234 ranges and none" in found.detail
    assert "doctor" in found.fix


def test_a_probe_that_was_off(tmp_path: Path) -> None:
    run = probe(backend="off", reason="no torch")
    found = checks(simple(lambda m: m.add_range("mine", 0, 50)), tmp_path, run)["probe ranges"]
    assert (found.status, found.detail) == ("missing", "the probe was off: no torch")


def test_a_probe_that_saw_nothing(tmp_path: Path) -> None:
    found = checks(simple(lambda m: m.add_range("mine", 0, 50)), tmp_path, probe())["probe ranges"]
    assert found.status == "warn"


def test_the_probe_of_the_shown_rank_is_held_against_its_ranges(tmp_path: Path) -> None:
    report = Report()
    run: dict[str, Any] = {"probe": []}
    for pid in (1, 2):
        main = report.process(pid).thread(pid)
        for i in range(5):
            main.add_range(f"step {i}", 1000 * i, 1000 * i + 900, domain="nsysx")
            main.launch(1000 * i + 5, 10, gpu_start=1000 * i + 20, gpu_dur=100)
        run["probe"].append({"pid": pid, "backend": "nvtx", "ranges": {"step": 5}})
    assert checks(report, tmp_path, run)["probe ranges"].detail == "pushed 10, in the report 10"
    found = checks(report, tmp_path, run, rank=1)["probe ranges"]
    assert (found.status, found.detail) == ("ok", "pushed 5, in the report 5")


@pytest.mark.parametrize(("pair", "status"), [(1000, "ok"), (20_000, "warn")])
def test_what_the_probe_cost(tmp_path: Path, pair: int, status: str) -> None:
    """Eight ranges a step of 1 ms."""
    found = checks(reports.training(), tmp_path, probe(ranges={"step": 48}, pair_cost_ns=pair))["probe cost"]
    assert found.status == status
    assert bool(found.fix) == (status == "warn")
    assert "nsys itself comes on top" in found.detail


@pytest.mark.parametrize(
    "facts",
    [
        {"ranges": None}, {"ranges": {"step": "many"}}, {"ranges": {"step": True}}, {"pair_cost_ns": "x"}, {"pair_cost_ns": -5},
        {"steps": 7}, {"steps": {"empty": "all", "thinned_from": "x"}}, {"thinned": 3}, {"pid": "x"}, {"pid": None},
        {"ranges_pushed": []}, {"ranges": {"step": 1 << 80}},
    ],
)  # fmt: skip
def test_a_probe_that_wrote_nonsense(tmp_path: Path, facts: dict[str, Any]) -> None:
    assert checks(reports.training(3), tmp_path, probe(**facts))


@pytest.mark.parametrize(
    "timing",
    [
        None, 3, {}, {"steps_ns": None}, {"steps_ns": {"²": 5}}, {"steps_ns": {"0": "x"}}, {"steps_ns": {"0": -5}},
        {"steps_ns": {"1" * 5000: 5}},
    ],
)  # fmt: skip
def test_a_calibration_of_nonsense(tmp_path: Path, timing: Any) -> None:
    assert checks(reports.training(3), tmp_path, {"calibration": timing})


@pytest.mark.parametrize(("bare", "status"), [(999 * US, "ok"), (500 * US, "warn")])
def test_the_profiled_step_against_the_bare_one(tmp_path: Path, bare: int, status: str) -> None:
    timing = {"clock": "gpu", "steps_ns": {str(i): bare for i in range(6)}}
    found = checks(reports.training(), tmp_path, {"calibration": timing})["profiling cost"]
    assert found.status == status
    assert "1.00 ms with it" in found.detail


# --- attribution, steps, replay, exit code -------------------------------------------------------------------------------


def test_attribution(tmp_path: Path) -> None:
    found = checks(reports.training(), tmp_path)["attribution"]
    assert (found.status, found.fix) == ("ok", "")
    assert found.detail.endswith("100 % by the range open on the launching thread")
    assert "attribution" not in checks(simple(), tmp_path)  # without ranges the check "nvtx" says it all
    found = checks(simple(lambda m: m.add_range("mine", 500, 600)), tmp_path)["attribution"]
    assert (found.status, found.fix) == ("warn", "nsysx run -- CMD")
    assert "100 % to none" in found.detail


@pytest.mark.parametrize(("lost", "status"), [(9, "ok"), (20, "warn")])
def test_one_percent_of_the_gpu_time_may_be_unmatched(tmp_path: Path, lost: int, status: str) -> None:
    report = Report()
    main = report.process(1).thread(1, "python")
    main.launch(0, 10, gpu_start=20, gpu_dur=lost)
    main.add_range("blocks.0:Block", 190, 260, domain="nsysx")
    main.launch(200, 10, gpu_start=300, gpu_dur=1_000 - lost)
    found = checks(report, tmp_path)["attribution"]
    assert found.status == status, found.detail


def test_attribution_by_time(tmp_path: Path) -> None:
    found = checks(builder.case_autograd_without_ranges(), tmp_path)["attribution"]
    assert found.status == "ok"
    assert "67 %" in found.detail  # 60 of 90 ns
    assert "at that time" in found.detail


@pytest.mark.parametrize(("count", "status"), [(4, "warn"), (6, "ok")])
def test_steps(tmp_path: Path, count: int, status: str) -> None:
    found = checks(reports.training(count), tmp_path)["steps"]
    assert found.status == status
    assert found.detail.startswith(f"{count - 1} steady steps of {count}, from step ranges of the probe")


def test_no_steps(tmp_path: Path) -> None:
    found = checks(simple(), tmp_path)
    assert found["steps"].status == "warn"
    assert "averages are over everything" in found["steps"].detail
    assert found["replay"].status == "missing"


def test_replay(tmp_path: Path) -> None:
    found = checks(reports.training(), tmp_path)["replay"]
    assert found.status == "ok"
    assert "the unchanged replay takes 1.00 ms, the recording 1.00 ms" in found.detail


def test_an_untrusted_replay_gives_no_savings_but_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nsysx.replay import engine

    monkeypatch.setattr(engine, "TRUSTED_ERROR", -1.0)
    path = reports.training().write(tmp_path / "r.sqlite")
    summary = summarize([path])
    found = {c.check: c for c in summary.quality}["replay"]
    assert found.status == "warn"
    assert "no savings are given" in found.detail
    assert all(r["saving_ns"] is None for r in summary.rows("waits"))
    savings = [f.saving for f in summary.findings or () if f.saving_ns_per_step is not None]
    assert savings and all(saving.bound and saving.source == "time" for saving in savings)


@pytest.mark.parametrize(("code", "there"), [(0, False), (None, False), (3, True), (139, True)])
def test_exit_code(tmp_path: Path, code: int | None, there: bool) -> None:
    found = checks(simple(), tmp_path, {"exit_code": code})
    assert ("exit code" in found) == there
    if there:
        assert str(code) in found["exit code"].detail


def test_each_table_that_is_not_there_says_why(tmp_path: Path) -> None:
    path = simple().write(tmp_path / "r.sqlite")
    summary = summarize([path])
    missing = {k for k, t in summary.tables.items() if t.rows is None}
    assert {"modules", "phases", "memory"} <= missing
    said = {c.check.removeprefix("table "): c for c in summary.quality if c.table}
    assert set(said) == missing
    assert all(c.status == "missing" and c.detail for c in said.values())
