"""The picture data: nothing that happened may vanish from a lane, and the queue is what arithmetic says."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsysx import pipeline
from nsysx.analyses.helpers import timeline_data
from nsysx.analyses.helpers.picture_windows import DrawnWindow
from nsysx.pictures import Span
from tests.builder import Report, case_a
from tests.examples import examples

US, MS = 1_000, 1_000_000


def covered(spans) -> int:
    return sum(s.end_ns - s.start_ns if s.covered_ns is None else s.covered_ns for s in spans)


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40), st.sampled_from(["compute", "memset"])), min_size=1),
    st.integers(1, 30),
)
def test_merged_boxes_keep_the_time_that_they_cover(pieces, most):
    spans, at = [], 0
    for gap, length, kind in pieces:
        spans.append(Span(at + gap, at + gap + length, kind, "k", backlog_ns=length // 2))
        at += gap + length
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline_data, "MOST_LANE_SPANS", most)
        merged, gone = timeline_data._merge(spans, at)
    assert len(merged) + gone == len(spans)
    assert covered(merged) == covered(spans)
    for kind in ("compute", "memset"):
        assert covered(s for s in merged if s.kind == kind) == covered(s for s in spans if s.kind == kind)
    assert sum(s.backlog_ns for s in merged) == sum(s.backlog_ns for s in spans)
    assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(merged))
    assert all(s.covered_ns is None or 0 < s.covered_ns <= s.end_ns - s.start_ns for s in merged)


def slow_queue(ops, t) -> int:
    return sum(
        max(0, max(end, start, launch) - max(start, launch, t))
        for launch, start, end in ops
        if launch is not None and launch < t
    )


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(
        st.tuples(st.none() | st.integers(-50, 400), st.integers(-50, 500), st.integers(0, 120)),
        min_size=0,
        max_size=25,
    ),
    st.lists(st.integers(-60, 700), min_size=1, max_size=10),
)
def test_the_queue_is_what_is_launched_and_not_run(ops, at):
    rows = [(launch, start, start + dur) for launch, start, dur in ops]
    frame = pl.DataFrame(
        rows, schema={"call_start_ns": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row"
    )
    assert timeline_data.queued(frame, np.array(at)).tolist() == [slow_queue(rows, t) for t in at]


def test_the_queue_of_a_step_that_runs_ahead(tmp_path):
    summary = pipeline.summarize([case_a().write(tmp_path / "a.sqlite")], timelines=True, every_table=False)
    picture = summary.timelines[0]
    (queue,) = picture.queues
    # At 1,000 us all 100 forward kernels of 200 us are launched and 990 us of them have run.
    at = min(range(len(queue.at_ns)), key=lambda i: abs(queue.at_ns[i] - 1_000 * US))
    t = queue.at_ns[at] / US
    assert queue.queued_ns[at] / US == pytest.approx(min(t // 10 + 1, 100) * 200 - (t - 10), abs=201)
    assert max(queue.queued_ns) == pytest.approx(100 * 400 * US, rel=0.05)
    assert queue.launches == 211
    # Only the first launch of all, and the first of backward after the .item(), find nothing queued.
    assert queue.dry == 2


def test_lanes_hold_everything_of_the_window(tmp_path):
    summary = pipeline.summarize([case_a().write(tmp_path / "a.sqlite")], timelines=True, every_table=False)
    picture = summary.timelines[0]
    stream = next(lane for lane in picture.lanes if lane.role == "stream")
    assert covered(stream.spans) == summary.totals["kernel_ns"] + summary.totals["memcpy_ns"]
    calls = [lane for lane in picture.lanes if lane.role == "api"]
    assert sum(covered(lane.spans) for lane in calls) == summary.totals["api_ns"]
    assert sum(s.backlog_ns for lane in calls for s in lane.spans) == sum(
        r["backlog_ns"] for r in summary.rows("waits")
    )
    for lane in picture.lanes:
        assert all(0 <= s.start_ns <= s.end_ns <= picture.end_ns - picture.start_ns for s in lane.spans)
    launched = [s for s in stream.spans if s.launch_ns is not None]
    assert len(launched) == 211
    assert all(picture.lanes[s.launch_lane].role == "api" for s in launched)
    assert all(s.launch_ns <= s.start_ns for s in launched)


def test_a_wait_that_begins_before_the_window_keeps_only_its_rest(tmp_path):
    report = Report()
    thread = report.process(100).thread(100, "python")
    thread.launch(at=0, dur=5, gpu_start=10, gpu_dur=1000)
    thread.sync(at=100, dur=920)
    path = report.write(tmp_path / "r.sqlite")
    whole = pipeline.summarize([path], timelines=True, every_table=False)
    assert max(s.backlog_ns for lane in whole.timelines[0].lanes for s in lane.spans) == 910
    seen = {}

    def cut(profile):
        seen["cut"] = timeline_data.draw(profile, profile.steps.process, DrawnWindow("cut", 500, 1100))
        return ()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline_data, "timelines", cut)
        pipeline.summarize([path], timelines=True, every_table=False)
    (wait,) = [s for lane in seen["cut"].lanes if lane.role == "api" for s in lane.spans]
    assert (wait.start_ns, wait.end_ns, wait.backlog_ns) == (0, 520, 510)


def test_strips_are_the_rows_of_the_spread_table_thinned_out(tmp_path):
    report = Report()
    thread = report.process(100).thread(100, "python")
    at = 0
    for i in range(1000):
        thread.launch(at=at, dur=5, kernel="k<float>", gpu_start=at + 10, gpu_dur=100 + i)
        at += 2000
    thread.launch(at=at, dur=5, kernel="once", gpu_start=at + 10, gpu_dur=5000)
    summary = pipeline.summarize([report.write(tmp_path / "r.sqlite")], timelines=True, every_table=False)
    (strip,) = summary.strips
    row = next(r for r in summary.rows("kernel_spread") if r["name"] == "k<float>")
    assert (strip.name, strip.grid, strip.block, strip.count) == (row["name"], row["grid"], row["block"], row["count"])
    assert len(strip.durations_ns) == 300
    assert (strip.durations_ns[0], strip.durations_ns[-1]) == (100, 1099)
    assert list(strip.durations_ns) == sorted(strip.durations_ns)


def test_pictures_are_made_only_when_asked_for(tmp_path):
    summary = pipeline.summarize([case_a().write(tmp_path / "a.sqlite")], every_table=False)
    assert summary.timelines == summary.strips == ()


def test_a_capture_without_steps_has_a_closer_look_at_its_busiest_launches(tmp_path):
    report = Report()
    thread = report.process(100).thread(100, "python")
    for i in range(40):
        at = i * 10 * MS if i < 20 else 200 * MS + i * 100 * US
        thread.launch(at=at, dur=5 * US, gpu_start=at + 10 * US, gpu_dur=80 * US)
    whole, closer = pipeline.summarize(
        [report.write(tmp_path / "r.sqlite")], timelines=True, every_table=False
    ).timelines
    assert whole.end_ns - whole.start_ns > 190 * MS
    assert closer.start_ns > 200 * MS
    assert closer.end_ns - closer.start_ns < 1_200 * US
    (stream,) = [lane for lane in closer.lanes if lane.role == "stream"]
    assert len(stream.spans) >= 10


@pytest.mark.parametrize(("other", "label"), [(0, "process 200 stream 7"), (1, "GPU 1 stream 7")])
def test_lanes_of_processes_that_number_their_gpu_alike_say_whose_they_are(tmp_path, other, label):
    report = Report()
    for pid, device in ((100, 0), (200, other)):
        process = report.process(pid)
        main = process.thread(pid, "python3")
        report.gpu(device, pids=[(pid, device)])
        for i in range(6):
            t = 1_000_000 * (i + 1)
            main.add_range("forward", t, t + 20_000, domain="nsysx")
            main.launch(t + 5_000, kernel="gemm", gpu_start=t + 30_000, gpu_dur=500_000, device=device)
            main.sync("cudaStreamSynchronize_v3020", at=t + 100_000, dur=500_000, device=device)
    picture = pipeline.summarize([report.write(tmp_path / "a.sqlite")], timelines=True, every_table=False).timelines[0]
    streams = [lane.label for lane in picture.lanes if lane.role == "stream"]
    assert streams == ["GPU 0 stream 7", label]
