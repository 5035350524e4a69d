"""Python samples: what is read of them, and what damaged and hostile ones leave."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from nsysx.reading import samples
from nsysx.reading.load import Trace, load
from tests.builder import Report, Thread

MAIN = ["/home/me/train.py:12 step", "/home/me/train.py:40 &lt;module&gt;"]
DOMAIN = "Python Periodic Sampling"


def started() -> tuple[Report, Thread]:
    report = Report()
    report.gpu(pids=[(100, 0)])
    process = report.process(100)
    process.context()
    main = process.thread(100, "python")
    main.launch(at=1_000, dur=5_000, kernel="gemm", gpu_start=10_000, gpu_dur=1_000)
    return report, main


def read(report: Report, folder: Path) -> Trace:
    return load(report.write(folder / "r.sqlite"))


def reasons(trace: Trace) -> dict[str, int]:
    return {n.reason: n.rows for n in trace.left_out if n.table == "Python samples"}


def frames(trace: Trace) -> list[tuple[str | None, str | None, int | None]]:
    """Return function, file, line of each sample's frames, samples in order of time."""
    joined = trace.samples.sort("time_ns").join(trace.stacks, on="stack", maintain_order="left_right")
    return [tuple(row) for row in joined.select("function", "file", "line").iter_rows()]  # type: ignore[misc]


def test_a_sample_is_a_time_and_its_frames(tmp_path: Path) -> None:
    report, main = started()
    main.sample(2_000_000, MAIN)
    main.sample(1_000_000, MAIN[1:])
    main.sample(3_000_000, MAIN)
    trace = read(report, tmp_path)
    assert trace.samples["time_ns"].to_list() == [1_000_000, 2_000_000, 3_000_000]
    assert trace.samples["process"].unique().to_list() == [(1 << 24) | 100]
    module, step = ("<module>", "/home/me/train.py", 40), ("step", "/home/me/train.py", 12)
    assert frames(trace) == [module, step, module, step, module]
    assert trace.stacks["stack"].n_unique() == 2, "a stack that is seen again is one stack"
    assert "python_sample" in trace.recorded
    assert not reasons(trace)


def test_no_sample_is_a_range_or_a_mark(tmp_path: Path) -> None:
    from nsysx.events import nvtx_ranges

    report, main = started()
    main.sample(1_000_000, MAIN)
    main.add_range("Holding GIL", 1_000, 2_000, domain="GIL Trace")
    found = nvtx_ranges.read(read(report, tmp_path))
    assert (found.ranges.height, found.marks.height) == (0, 0)


def test_nothing_was_sampled(tmp_path: Path) -> None:
    report, _ = started()
    trace = read(report, tmp_path)
    assert "python_sample" not in trace.recorded
    assert (trace.samples.height, trace.stacks.height) == (0, 0)
    assert trace.stacks.schema == pl.Schema(samples.STACKS)


def _said(**body: object) -> str:
    return json.dumps({DOMAIN: body})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "no stack: export the report with --include-json true"),
        ("", "no stack: export the report with --include-json true"),
        ("{", "a stack that is not JSON as nsys writes it"),
        ("[" * 100_000, "a stack that is not JSON as nsys writes it"),
        ("7", "a stack that is not JSON as nsys writes it"),
        (_said(), "a stack that is not JSON as nsys writes it"),
        (_said(Frames=3), "a stack that is not JSON as nsys writes it"),
        (_said(Frames=[]), "a stack without frames"),
    ],
)
def test_a_sample_without_a_stack_is_counted(tmp_path: Path, text: str | None, reason: str) -> None:
    report, main = started()
    main.sample(1_000_000, MAIN)
    main.sample(2_000_000, MAIN)["jsonText"] = text
    trace = read(report, tmp_path)
    assert reasons(trace) == {reason: 1}
    assert trace.samples["time_ns"].to_list() == [1_000_000]


@pytest.mark.parametrize(
    "frame",
    [
        {"Function": 10**9, "File": 10**9, "Line": 3},
        {"Function": -1, "File": 1 << 70, "Line": -3},
        {"Function": "x", "File": None, "Line": True},
        {},
        3,
        None,
    ],
)
def test_a_frame_without_a_name_stays_unnamed(tmp_path: Path, frame: object) -> None:
    report, main = started()
    main.sample(1_000_000, MAIN)["jsonText"] = _said(Frames=[frame])
    trace = read(report, tmp_path)
    assert reasons(trace) == {"the id of a name that is not in the report": 1}
    assert frames(trace) == [(None, None, 3 if frame and isinstance(frame, dict) and frame["Line"] == 3 else None)]


def test_a_line_that_no_file_has_is_not_known(tmp_path: Path) -> None:
    report, main = started()
    main.sample(1_000_000, [f"a.py:{(636 << 32) + 8} f"])
    assert frames(read(report, tmp_path)) == [("f", "a.py", None)]


def test_a_stack_of_any_depth_is_cut_from_outside(tmp_path: Path) -> None:
    report, main = started()
    main.sample(1_000_000, [f"a.py:{i} f" for i in range(1, 3_001)])
    trace = read(report, tmp_path)
    assert reasons(trace) == {"a stack of more than 1,000 frames": 1}
    assert trace.stacks["line"].to_list() == list(range(1, 1_001))


@pytest.mark.parametrize("column", ["jsonText", "jsonTextId"])
def test_an_export_without_a_column(tmp_path: Path, column: str) -> None:
    report, main = started()
    main.sample(1_000_000, MAIN)
    report.drop("NVTX_EVENTS", column)
    trace = read(report, tmp_path)
    assert trace.samples.height == (0 if column == "jsonText" else 1)
    assert "python_sample" in trace.recorded


def test_json_among_the_strings(tmp_path: Path) -> None:
    report, main = started()
    row = main.sample(1_000_000, MAIN)
    row["jsonText"], row["jsonTextId"] = None, report.string(str(row["jsonText"]))
    assert len(frames(read(report, tmp_path))) == 2


def test_samples_of_no_thread_and_of_no_time(tmp_path: Path) -> None:
    report, main = started()
    main.sample(1_000_000, MAIN)
    main.sample(2_000_000, MAIN)["start"] = 1 << 62
    trace = read(report, tmp_path)
    assert trace.samples["time_ns"].to_list() == [1_000_000]
    assert reasons(trace) == {"an impossible time": 1}


def test_a_domain_counts_in_its_own_process(tmp_path: Path) -> None:
    report, main = started()
    main.sample(1_000_000, MAIN)
    other = report.process(200).thread(200)
    other.mark("mine", 5_000, domain="my own")  # the same number as that of the samples in the first process
    trace = read(report, tmp_path)
    assert trace.samples.height == 1
    assert not reasons(trace)


def test_only_a_part_is_read(tmp_path: Path) -> None:
    report, main = started()
    for at in (1_000_000, 2_000_000, 3_000_000):
        main.sample(at, MAIN)
    trace = load(report.write(tmp_path / "r.sqlite"), window=(1_500_000, 3_000_000))
    assert trace.samples["time_ns"].to_list() == [2_000_000]


def test_pieces_hold_what_the_whole_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, main = started()
    for i in range(200):
        main.sample(1_000_000 * i, [f"a.py:{i % 7 + 1} f", *MAIN])
    path = report.write(tmp_path / "r.sqlite")
    whole = load(path)
    monkeypatch.setattr(samples, "SAMPLE_ROWS_AT_ONCE", 30)
    parts = load(path)
    assert parts.samples.equals(whole.samples)
    assert parts.stacks.equals(whole.stacks)
