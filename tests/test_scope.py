"""What a figure covers: a second process, device or idle rank changes no figure per step of the first."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from nsysx.events.profile import Events
from nsysx.model import Scope, Summary
from nsysx.pipeline import summarize
from nsysx.render import view
from tests import reports
from tests.builder import Report
from tests.reports import MS, PERIOD, US, gather

PACKAGE = Path(__file__).resolve().parent.parent / "nsysx"

#: Tables whose sums are per step of the shown process.
PER_STEP = (
    "phases", "data_loader", "modules", "waits", "wait_chain", "launches", "kernel_families", "copy_sites", "allocator",
)  # fmt: skip


def test_per_step_divides_and_total_is_its_inverse() -> None:
    scope = Scope("steady", (7,), (0,), 3, 19, 17)
    assert scope.per_step(34) == 2
    assert scope.total(2) == 34
    assert scope.replayed(*range(8, 20)) == Scope("replayed", (7,), (0,), 8, 19, 12)
    assert Scope("capture", (7, 8)).per_step(34) == 34


def test_what_several_processes_did_has_no_part_of_one_step() -> None:
    with pytest.raises(ValueError, match="no steps in common"):
        Scope("steady", (7, 8), (), 0, 9, 10).per_step(1)


@pytest.mark.parametrize(
    ("scope", "label"),
    [
        (Scope("steady", (7,), (0,), 3, 19, 17), "per step, mean of 17 steady steps"),
        (Scope("replayed", (7,), (0,), 8, 8, 1), "per step, mean of 1 replayed step"),
        (Scope("capture", (7,)), "in the whole capture"),
        (Scope("capture", (7, 8)), "in the whole capture, 2 processes together"),
        (Scope("part", (7,)), "in the part that was read"),
        (Scope("chosen", (7, 8), first=2, last=4), "in the chosen steps, 2 processes together"),
    ],
)
def test_its_words(scope: Scope, label: str) -> None:
    assert scope.label == label


def test_events_of_a_process_that_the_scope_does_not_name_are_refused() -> None:
    calls = pl.DataFrame({"process": [7, 8]})
    with pytest.raises(ValueError, match=r"\[8\]"):
        Events(Scope("steady", (7,), (), 0, 9, 10), calls, calls.head(0))


def second_process(report: Report) -> None:
    """Another process with steps of its own, in which it waits for most of the time."""
    process = report.process(200)
    report.gpu(1, pids=[(200, 1)])
    process.context(device=1)
    main = process.thread(200, "python")
    for i in range(5):
        t = 30 * US + i * PERIOD
        main.add_range(f"step {i}", t, t + 900 * US, domain="nsysx")
        main.call("cudaMalloc_v3020", t + 2 * US, 7 * US)
        main.launch(t + 10 * US, 5 * US, kernel="other", gpu_start=t + 40 * US, gpu_dur=30 * US, device=1)
        main.memcpy(t + 80 * US, 9 * US, kind="DtoH", bytes=1 << 20, gpu_start=t + 90 * US, gpu_dur=5 * US, device=1)
        main.sync("cudaDeviceSynchronize_v3020", at=t + 100 * US, dur=700 * US, device=1)


def idle_rank(report: Report) -> None:
    """A process without steps that calls CUDA once and does nothing."""
    main = report.process(300).thread(300, "python")
    main.call("cudaGetDeviceCount_v3020", 2 * US, 5 * US)
    main.call("cudaFree_v3020", 4 * MS, 1 * US)


def second_device(report: Report) -> None:
    """Another device of the same process, which idles but for one kernel a step."""
    process = next(p for p in report.processes if p.pid == 100)
    report.gpu(1, pids=[(100, 1)])
    process.context(device=1)
    other = process.thread(109, "other")
    for i in range(6):
        t = 20 * US + i * PERIOD
        other.launch(t + 300 * US, 2 * US, kernel="beside", gpu_start=t + 330 * US, gpu_dur=5 * US, device=1)


def summary_of(folder: Path, *more: Callable[[Report], None]) -> Summary:
    folder.mkdir()
    report = reports.training()
    for add in more:
        add(report)
    return summarize([report.write(folder / "r.sqlite")])


@pytest.mark.parametrize("more", [second_process, idle_rank])
def test_a_second_process_changes_no_figure_per_step_of_the_first(
    more: Callable[[Report], None], tmp_path: Path
) -> None:
    alone, both = summary_of(tmp_path / "alone"), summary_of(tmp_path / "both", more)
    assert alone.steps == both.steps
    assert alone.replay == both.replay
    assert alone.verdict == both.verdict
    for key in PER_STEP:
        assert alone.tables[key] == both.tables[key], key
    own = alone.rows("gpu_ledger")[0]
    assert own in both.rows("gpu_ledger")
    costs = [[(f.code, f.title, f.cost_ns_per_step, f.scope) for f in s.findings or ()] for s in (alone, both)]
    assert costs[0] == costs[1]


def test_idle_time_of_a_second_device_is_none_of_the_step(tmp_path: Path) -> None:
    alone, both = summary_of(tmp_path / "alone"), summary_of(tmp_path / "both", second_device)
    assert [r["device"] for r in both.rows("gpu_ledger")] == [0, 1]
    assert both.steps.gpu_mean_ns == alone.steps.gpu_mean_ns
    for key, columns in (
        ("phases", ("name", "cpu_ns", "gpu_busy_ns", "gpu_idle_ns")),
        ("launches", ("name", "idle_launch_ns", "idle_host_ns", "idle_share")),
        ("waits", ("api", "idle_caused_ns", "saving_ns")),
        ("data_loader", ("index", "gpu_idle_ns")),
    ):
        mine = [[tuple(r[c] for c in columns) for r in s.rows(key)] for s in (alone, both)]
        # The thread of the other device adds a row without idle time at most.
        assert set(mine[0]) <= set(mine[1]), key
    idle = [sum(r["idle_blamed_ns"] for r in s.rows("modules")) for s in (alone, both)]
    assert idle[0] == idle[1]


def test_each_process_has_its_own_steps_in_the_ledgers(tmp_path: Path) -> None:
    def fewer(report: Report) -> None:
        main = report.process(200).thread(200, "python")
        report.gpu(1, pids=[(200, 1)])
        for i in range(3):
            t = 30 * US + i * PERIOD
            main.add_range(f"step {i}", t, t + 900 * US, domain="nsysx")
            main.launch(t + 10 * US, 5 * US, kernel="other", gpu_start=t + 40 * US, gpu_dur=30 * US, device=1)

    summary = summary_of(tmp_path / "both", fewer)
    first, second = (next(r for r in summary.rows("gpu_ledger") if r["device"] == d) for d in (0, 1))
    assert summary.steps.scope is not None
    assert first["steps"] == summary.steps.scope.steps == 5 - summary.steps.scope.first  # type: ignore[operator]
    assert second["steps"] == 3 - (summary.steps.scope.first or 0)
    shown = view.build(summary, top=5)
    said = [entry.label for entry in shown.ledgers if "GPU 1" in entry.label]
    assert said and f"mean of {second['steps']} steady step" in said[0]


def test_no_step_shows_more_waiting_than_its_length(tmp_path: Path) -> None:
    given = gather(reports.training(), tmp_path)
    waits = given.wait_sites()
    total = waits.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item()
    assert given.scope.per_step(total) <= PERIOD


#: A division by a number of steps, however it is written.
_DIVIDES = re.compile(r"//?\s*(?:max\(1, )?[\w.()\[\]\"']*\b(?:steps|steady_count)\b(?![\w(])")
#: Rooms that divide by steps of their own: ranks and compared sides each by theirs, the replay by its rounds, and counts
#: (not times) of rules.
_EXCEPT = (
    "scope.py",
    "ranks",
    "comparing",
    "replay",
    "findings",
    "inject",
    "recording",
    "events",
    "export/nsight_compute.py",
)


def test_only_the_scope_divides_by_steps() -> None:
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE))
        if not name.startswith(_EXCEPT):
            found = [line for line in path.read_text().splitlines() if _DIVIDES.search(line)]
            assert not found, (name, found)


def test_work_without_a_call_stays_in_the_steady_tables(tmp_path: Path) -> None:
    """Pages of unified memory move by themselves: 2 of 3 ms of each step, and no call launches them."""
    report = Report("3.24.7")
    report.gpu(pids=[(100, 0)])
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    for i in range(8):
        t = 20 * US + i * 4 * MS
        main.add_range(f"step {i}", t, t + 3_900 * US, domain="nsysx")
        main.launch(t + 10 * US, 5 * US, kernel="work", gpu_start=t + 30 * US, gpu_dur=1 * MS)
        process.copy("UVM_HtoD", t + 1_100 * US, 2 * MS, bytes=1 << 20, stream=0, correlation=0)
    summary = summarize([report.write(tmp_path / "r.sqlite")])
    assert summary.steps.scope is not None
    families = {r["family"]: r["count"] for r in summary.rows("kernel_families")}
    assert sum(families.values()) == 2 * summary.steps.scope.steps
    (row,) = summary.rows("copy_sites")
    assert summary.steps.scope.per_step(row["total_ns"]) == 2 * MS


def test_a_wait_in_no_replayed_step_has_no_saving(tmp_path: Path) -> None:
    """The replay holds the last 8,000 GPU ops: with 1,500 a step, five of eleven steps. Only the second step waits."""
    report = Report("3.24.7")
    report.gpu(pids=[(100, 0)])
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    count = 1_500
    for i in range(13):
        t = 20 * US + i * 20 * MS
        main.add_range(f"step {i}", t, t + 19_900 * US, domain="nsysx")
        for k in range(count):
            main.launch(t + k * 6 * US, 3 * US, kernel="work", gpu_start=t + 10 * US + k * 13 * US, gpu_dur=12 * US)
        if i == 2:
            main.sync(at=t + count * 6 * US, dur=count * 7 * US + 30 * US)
    summary = summarize([report.write(tmp_path / "r.sqlite")])
    assert summary.replay is not None and summary.steps.scope is not None
    assert 0 < summary.replay["steps"] < summary.steps.scope.steps
    (wait,) = summary.rows("waits")
    assert wait["calls"] == 1 and wait["saving_ns"] is None
    (finding,) = [f for f in summary.findings or () if f.code == "NSX101"]
    assert finding.verdict != "clear" and "replay" in f"{finding.detail} {finding.saving.confidence}"
    assert f"last {summary.replay['steps']} of the {summary.steps.scope.steps}" in view.build(summary, top=5).step_times
