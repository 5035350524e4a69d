"""The other ranks' lanes beside those of the shown rank: known here to the nanosecond, because the reports are built."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nsysx.pictures import Lane, Timeline
from nsysx.pipeline import summarize
from nsysx.ranks import collective_costs, match, other_lanes
from nsysx.render import html_page, live_timeline
from tests.builder import Report
from tests.ranks.test_rank_table import ALL_REDUCE, EPOCH, PERIOD, reports, steps

COMPUTE = [300_000, 500_000]


def drawn(paths: Sequence[Path], **options: int) -> Timeline:
    return summarize(paths, timelines=True, **options, every_table=False).timelines[0]


def lanes(picture: Timeline, rank: int) -> dict[str, Lane]:
    """Return the streams of a rank by their name without it."""
    start = f"rank {rank}: "
    streams = [lane for lane in picture.lanes if lane.role == "stream" and lane.label.startswith(start)]
    return {lane.label.removeprefix(start): lane for lane in streams}


def boxes(lane: Lane) -> list[tuple[int, int, str]]:
    return [(span.start_ns, span.end_ns, span.label) for span in lane.spans]


@pytest.mark.parametrize("wrong", [0, 3_000_000, -40_000])
@pytest.mark.parametrize("shown", [0, 1])
def test_all_ranks_are_lanes_on_one_clock(tmp_path: Path, wrong: int, shown: int) -> None:
    """Whatever the clocks of the hosts say, and whichever rank is shown: all-reduces end together, and compute begins together."""
    picture = drawn(reports(tmp_path, COMPUTE, starts=[0, 700_000], clocks=[0, wrong]), rank=shown)
    of = [lanes(picture, 0), lanes(picture, 1)]
    assert [sorted(streams) for streams in of] == [["GPU 0 stream 20", "GPU 0 stream 7"]] * 2
    reduced = [[(end, name) for _, end, name in boxes(streams["GPU 0 stream 20"])] for streams in of]
    assert reduced[0] == reduced[1] != []
    assert {name for _, name in reduced[0]} == {ALL_REDUCE}
    computed = [[b for b in boxes(streams["GPU 0 stream 7"]) if b[0] > 0] for streams in of]
    assert [start for start, *_ in computed[0]] == [start for start, *_ in computed[1]] != []
    window = picture.end_ns - picture.start_ns
    for took, whole in zip(COMPUTE, computed, strict=True):
        assert {end - start for start, end, _ in whole if end < window} <= {took}
    assert picture.note == ""


def test_a_rank_on_no_known_clock_is_named_not_drawn(tmp_path: Path) -> None:
    """Without a collective in common and without the start of its session, nobody knows when a rank did what."""
    paths = []
    for i in range(2):
        report = Report(utc_epoch_ns=None if i else EPOCH)
        thread = report.process(100).thread(100, "python3")
        for n in range(6):
            thread.add_range(f"step {n}", n * PERIOD, (n + 1) * PERIOD - 100, domain="nsysx")
            thread.launch(n * PERIOD + 1_000, kernel="gemm", gpu_start=n * PERIOD + 10_000, gpu_dur=COMPUTE[i])
        paths.append(report.write(tmp_path / f"rank{i}.sqlite"))
    picture = drawn(paths)
    assert not lanes(picture, 1)
    assert picture.note == "Rank 1: not drawn, because no collective says when they ran."


def test_a_rank_without_work_in_the_window_has_an_empty_lane(tmp_path: Path) -> None:
    """Its session began after the step that is drawn was over."""
    paths = []
    for i in range(2):
        report = Report(utc_epoch_ns=EPOCH)
        steps(report.process(100), 300_000, 300_000, first=8 * i)
        paths.append(report.write(tmp_path / f"rank{i}.sqlite"))
    picture = drawn(paths)
    assert picture.end_ns < 9 * PERIOD
    assert {name: lane.spans for name, lane in lanes(picture, 1).items()} == {"GPU 0": ()}


def test_of_many_ranks_as_many_as_there_is_room_for(tmp_path: Path) -> None:
    """The late one is among them, the rest is named, and the page stays small."""
    compute = [300_000] * 12 + [500_000]
    paths = reports(tmp_path, compute, starts=[1_000 * i for i in range(13)], clocks=[0] * 13)
    summary = summarize(paths, timelines=True, workers=1, every_table=False)
    picture = summary.timelines[0]
    assert [bool(lanes(picture, rank)) for rank in range(13)] == [True] * 7 + [False] * 5 + [True]
    assert all(list(lanes(picture, rank)) == ["GPU 0 stream 7"] for rank in (*range(1, 7), 12)), "that of the compute"
    assert picture.note == "Ranks 7 to 11: not drawn."
    page = html_page.render(summary)
    assert picture.note in page
    assert len(page.encode()) < live_timeline.LIVE_PAGE_BYTES


def test_without_pictures_no_report_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = reports(tmp_path, COMPUTE, starts=[0, 0], clocks=[0, 0])
    monkeypatch.setattr("nsysx.ranks.other_lanes.plan", lambda *given: pytest.fail("no picture is drawn"))
    assert summarize(paths, every_table=False).rows("ranks")


@pytest.mark.parametrize("shown", [None, 1])
def test_the_clocks_of_a_job_are_matched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: int | None
) -> None:
    """For what the shown rank learns from others, for the pictures and for the tables."""
    matched: list[int] = []
    correct = match._correct_clocks

    def counted(aligned: match.Aligned, *given: Any, **options: Any) -> None:
        matched.append(len(aligned.ranks))
        correct(aligned, *given, **options)

    monkeypatch.setattr(match, "_correct_clocks", counted)
    paths = reports(tmp_path, COMPUTE, starts=[0, 700_000], clocks=[0, 3_000_000])
    assert summarize(paths, timelines=True, rank=shown, every_table=False).rows("ranks")
    assert matched == [2]


def test_the_other_ranks_of_a_report_are_drawn_beside_one_of_it(tmp_path: Path) -> None:
    """Two reports, of two ranks each: of the shown rank's report only that rank is read, and the other one is a lane, too."""
    paths = []
    for node in range(2):
        report = Report()
        for i in range(2):
            steps(report.process(100 + i), 300_000 - node, 300_000, device=i)
            report.gpu(i, pids=[(100 + i, i)])
        paths.append(report.write(tmp_path / f"node{node}.sqlite"))
    picture = drawn(paths, rank=3)
    assert [sorted(lanes(picture, rank)) for rank in range(4)] == [
        [f"GPU {rank % 2} stream 20", f"GPU {rank % 2} stream 7"] for rank in range(4)
    ]


def test_ranks_that_each_see_their_device_as_the_first_have_lanes_of_their_own(tmp_path: Path) -> None:
    paths = []
    for node in range(2):
        report = Report()
        for i in range(2):
            steps(report.process(100 + i), 300_000 - node, 300_000)
        paths.append(report.write(tmp_path / f"node{node}.sqlite"))
    picture = drawn(paths, rank=3)
    counts = [{name: len(lane.spans) for name, lane in lanes(picture, rank).items()} for rank in range(4)]
    assert counts == [counts[3]] * 4 and set(counts[3]) == {"GPU 0 stream 20", "GPU 0 stream 7"}


def test_clocks_are_known_by_collectives_in_common_or_by_one_host() -> None:
    """Report 1 is met over report 0, report 3 is of the same host; 4 is of another host, and 5 does not say when it began."""
    ranks = [
        SimpleNamespace(report=report, host=host, utc_epoch_ns=began)
        for report, host, began in ((0, "a", 7), (1, "b", 7), (2, "b", None), (3, "a", 7), (4, "c", 7), (5, "a", None))
    ]
    aligned: Any = SimpleNamespace(ranks=ranks, groups=[("g", (1, 2)), ("h", (0, 1))])
    assert other_lanes._on_one_clock(aligned, 0) == {0, 1, 2, 3}
    assert other_lanes._on_one_clock(aligned, 4) == {4}
    assert other_lanes._on_one_clock(aligned, 5) == {5}  # its own start is not known


def test_bytes_are_those_of_the_collectives_that_nccl_noted() -> None:
    """A message of no byte is one that was noted, one of -1 was not; what begins outside of the window counts for nothing."""
    tally = collective_costs.Tally()
    rank: Any = SimpleNamespace(members={"world": SimpleNamespace(size=2)})
    key: Any = SimpleNamespace(communicator="world", kind="allreduce")
    inside = np.array([True, True, True, False])
    message, transfer = np.array([0, -1, 800, 900]), np.array([5, 7, 10, 99])
    collective_costs._tally(tally, rank, key, inside, message, transfer, np.array([1, 2, 3, 4]))
    assert (tally.calls, tally.transfer_ns, tally.wait_ns) == (3, 22, 6)
    assert (tally.sized, tally.bytes, tally.bus_ns) == (2, 800, 15)
