"""What keeps a report that is large in one way only from costing more than in proportion."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import polars as pl

from nsysx.events import layers
from nsysx.events.event_bounds import LONGEST_RANGE_PATH
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import lookup
from nsysx.pipeline import summarize
from tests.builder import Report
from tests.reports import gather

US = 1_000


def test_ranges_nested_very_deep_have_paths_of_bounded_length(tmp_path: Path) -> None:
    """A recursion: every level has its kernel, and no kernel's time is lost where paths are not continued."""
    deep = 3_000
    report = Report()
    thread = report.process(100).thread(100)
    for i in range(deep):
        thread.add_range(f"layer{i}", i * 100, 10**9 - i * 200)
        thread.launch(10**7 + i * 20 * US, 5 * US, kernel="gemm", gpu_start=10**7 + i * 20 * US + 10 * US, gpu_dur=7)
    summary = summarize([report.write(tmp_path / "r.sqlite")], steps="all")
    rows = summary.tables["modules"].rows
    paths = [row["path"] for row in rows]
    assert len(set(paths)) == len(paths)
    assert max(map(len, paths)) < LONGEST_RANGE_PATH + 50
    assert sum(path.endswith(layers._DEEPER) for path in paths) == 1
    assert sum(row["self_gpu_ns"] for row in rows) == 7 * deep
    assert rows[0]["forward_gpu_ns"] == 7 * deep


def test_rows_are_parted_by_what_they_belong_to() -> None:
    frame = pl.DataFrame({"a": [1, 2, 1, None, 2], "b": [0, 0, 0, 0, 1], "x": [1, 2, 3, 4, 5]})
    parts = lookup.parted(frame, "a", "b")
    assert {key: part["x"].to_list() for key, part in parts.items()} == {(1, 0): [1, 3], (2, 0): [2], (2, 1): [5]}
    one = frame.filter(pl.col("a") == 1)
    assert lookup.parted(one, "a", "b")[1, 0] is one
    assert lookup.parted(frame.clear(), "a") == {}


def test_who_asks_for_what_was_not_recorded_keeps_nothing_alive(tmp_path: Path) -> None:
    """The answer is kept for the next who asks: with its traceback it would keep the frames of whoever asked first."""
    report = Report()
    report.process(1).thread(1).launch(1_000, 500)
    given = gather(report, tmp_path)
    kept: list[weakref.ref[pl.DataFrame]] = []

    def made(profile: Profile) -> None:
        raise NotRecorded("nothing of it was recorded", f"what holds {len(profile.trace.frames)} frames")

    def ask() -> None:
        at_hand = pl.DataFrame({"op": [1]})
        kept.append(weakref.ref(at_hand))
        given.once(made)

    for _ in range(2):
        try:
            ask()
        except NotRecorded as answer:
            assert answer.reason == "nothing of it was recorded"
            assert answer.fix.startswith("what holds")
    assert [at_hand() for at_hand in kept] == [None, None]


def test_calls_in_turn_and_nested_calls_say_what_a_thread_was_in(tmp_path: Path) -> None:
    """What is made when asked for says the same as what is kept."""
    report = Report()
    process = report.process(1)
    one, other = process.thread(1), process.thread(2)
    for at in (1_000, 2_000, 2_500):
        one.call("cudaMalloc", at, 500)
    other.call("cudaMalloc", 1_000, 1_000)
    other.call("cuMemAlloc", 1_200, 300)
    given = gather(report, tmp_path)
    in_turn, nested = (given.ledgers.threads[key] for key in given.ledgers.threads)
    at = np.array([999, 1_000, 1_300, 1_500, 1_999, 2_000, 2_499, 2_500, 2_999, 3_000])
    assert in_turn.at(at).tolist() == [-1, 0, 0, -1, -1, 1, 1, 2, 2, -1]
    assert nested.at(at).tolist() == [-1, 3, 4, 3, 3, -1, -1, -1, -1, -1]
