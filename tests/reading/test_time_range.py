"""A part of a capture is read: what lies in it reads as it does in the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.errors import EXIT_EMPTY, EXIT_USAGE, NsysxError
from nsysx.pipeline import summarize
from tests import reports
from tests.builder import Report

US, MS = 1_000, 1_000_000


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reports.training(12).write(tmp_path_factory.mktemp("whole") / "r.sqlite")


def test_steps_in_the_range_read_as_in_the_whole(whole: Path) -> None:
    # Steps begin at 20 us + i ms and last 900 us: 3 to 8 lie in it as a whole, 2 and 9 do not.
    cut, full = summarize([whole], time_range="0.0025:0.0095"), summarize([whole])
    assert [r["number"] for r in cut.steps.rows] == [3, 4, 5, 6, 7, 8]
    by_number = {r["number"]: r for r in full.steps.rows}
    for row in cut.steps.rows[:-1]:  # the last tile ends with its own work, as in any capture
        same = {k: v for k, v in row.items() if k not in ("index", "warmup", "steady", "cut")}
        assert same == {k: by_number[row["number"]][k] for k in same}
    assert cut.capture.duration_ns == full.capture.duration_ns
    assert next(c for c in cut.quality if c.check == "time range").status == "ok"
    assert not [c for c in full.quality if c.check == "time range"]


def test_nothing_is_called_the_first_that_only_was_read_first(whole: Path) -> None:
    table = summarize([whole], time_range="0.0025:0.0095").tables["first_calls"]
    assert table.rows is None
    assert "only part" in (table.reason or "")
    assert summarize([whole]).tables["first_calls"].rows


def lagging() -> Report:
    """Ten launches at 0, 10, ... 90 us; the GPU begins at 1 ms and takes 1 ms for each. Synchronize from 100 us on."""
    report = Report()
    process = report.process(100)
    thread = process.thread(100, "python")
    for i in range(10):
        thread.launch(10 * i * US, 5 * US, kernel=f"k{i}", gpu_start=(1 + i) * MS, gpu_dur=1 * MS)
    thread.sync("cudaDeviceSynchronize_v3020", at=100 * US, dur=11 * MS - 90 * US)
    return report


def test_gpu_work_belongs_to_its_launch_however_late_it_runs(tmp_path: Path) -> None:
    path = lagging().write(tmp_path / "r.sqlite")
    early = summarize([path], time_range="0:0.00005").totals
    assert (early["api_calls"], early["kernels"]) == (5, 5)
    assert early["kernel_ns"] == 5 * MS
    # What was launched before the range is still queued in it, and a wait in it waits for that.
    late = summarize([path], time_range="0.000055:1")
    assert (late.totals["api_calls"], late.totals["kernels"], late.totals["gpu_ops_without_call"]) == (5, 10, 6)
    assert [w["backlog_ns"] for w in late.rows("waits")] == [w["backlog_ns"] for w in summarize([path]).rows("waits")]
    assert late.rows("waits")[0]["backlog_ns"] == 11 * MS - 100 * US
    wait_alone = summarize([path], time_range="0.000096:1")
    assert (wait_alone.totals["api_calls"], wait_alone.totals["gpu_ops_without_call"]) == (1, 10)
    assert wait_alone.rows("waits")[0]["backlog_ns"] == 11 * MS - 100 * US


@pytest.mark.parametrize("text", ["", "1", "2:1", "1:1", "a:b", "-1:2", "1:2:3"])
def test_no_range_of_time(whole: Path, text: str) -> None:
    if not text:
        assert summarize([whole], time_range=text).steps.rows  # as if it had not been given
        return
    with pytest.raises(NsysxError) as caught:
        summarize([whole], time_range=text)
    assert (caught.value.slug, caught.value.exit_code) == ("time-range-syntax", EXIT_USAGE)


def test_a_range_without_a_whole_step(whole: Path) -> None:
    with pytest.raises(NsysxError) as caught:
        summarize([whole], time_range="0.0025:0.0035")
    assert caught.value.exit_code == EXIT_EMPTY


def test_times_that_count_from_1970_read_as_those_of_the_session(whole: Path, tmp_path: Path) -> None:
    """``nsys export --ts-normalize`` writes UTC times; they are those of the session, and a part is asked for as ever."""
    report = reports.training(12)
    epoch = int(report.rows["TARGET_INFO_SESSION_START_TIME"][0]["utcEpochNs"])
    report.shift(epoch)
    report.add("META_DATA_EXPORT", name="EXPORT_PARAM_TIME_NORMALIZE", value="true")
    normalized = report.write(tmp_path / "r.sqlite")
    for part in (None, "0.0025:0.0095"):
        told, usual = (summarize([p], time_range=part).to_json() for p in (normalized, whole))
        for said in (told, usual):
            del said["capture"]["duration_ns"]  # the builder takes the last time for it
        assert told == usual
