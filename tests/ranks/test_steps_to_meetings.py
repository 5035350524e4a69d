"""Ranks that infer each a share of the samples, in several forward passes, and meet behind them: the step is what lies between."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import polars as pl
import pytest

from nsysx.catalogue import Surplus
from nsysx.events.profile import Profile
from nsysx.events.steps import StepTable
from nsysx.model import Summary
from nsysx.pipeline import ReadingOptions, gather_job, summarize
from nsysx.ranks import own_time
from nsysx.replay import replayed_window, unprofiled
from tests.builder import Report, Thread
from tests.ranks.test_rank_table import ALL_REDUCE

US, MS = 1_000, 1_000_000
GATHER = ALL_REDUCE.replace("AllReduce_Sum_f32", "AllGather")
#: Of each pass, how long the GPU works (ns) on two ranks, one of which has the longer samples, and the host before it.
LONG, SHORT, HOST = 20 * MS, 8 * MS, 4 * MS


def job(
    path: Path,
    *,
    queries: int = 10,
    passes: Sequence[int] = (4, 4),
    work_ns: tuple[int, int] = (LONG, SHORT),
    host_ns: tuple[int, int] = (HOST, HOST),
    phase: str | tuple[str, str] = "evaluation",
    more: Sequence[Sequence[int]] = ((0,), (0,)),
    inside: bool = False,
    xrayed: Sequence[int] = (),
    record: Mapping[str, object] = MappingProxyType({}),
) -> Path:
    """Write a job of two ranks: of each query, as many forward passes as ``passes`` says, and a gather that ends the longer one's.

    ``more``: so many passes each rank has besides in each query, again and again. ``inside``: the last pass itself gathers. Each pass is a
    step of the probe, in ``phase``, and the host waits for it.
    """
    report = Report()
    threads = report.ranks(2)
    t, number = MS, [0, 0]
    for query in range(queries):
        count = [n + besides[query % len(besides)] for n, besides in zip(passes, more, strict=True)]
        done = t + max((host + ns) * n for host, ns, n in zip(host_ns, work_ns, count, strict=True)) + 100 * US
        for r, thread in enumerate(threads):
            at = t
            for k in range(count[r]):
                last = k == count[r] - 1
                begin = at + host_ns[r]
                until = begin + work_ns[r]
                own = phase if isinstance(phase, str) else phase[r]
                _forward(thread, begin, work_ns[r], own, r, (done if inside and last else until) - 5 * US)
                if last:
                    thread.launch(
                        until + 10 * US,
                        kernel=GATHER,
                        gpu_start=until + 20 * US,
                        gpu_dur=done - until - 20 * US,
                        device=r,
                    )
                    thread.sync("cudaDeviceSynchronize_v3020", at=until + 30 * US, dur=done - until, device=r)
                    until = done + 50 * US
                thread.add_range(f"step {number[r]}", at, until, domain="nsysx")
                at, number[r] = until + US, number[r] + 1
        t = done + 60 * US
    if xrayed or record:
        probes = [{"pid": 100 + r, "rank": str(r), "xray": {"steps": list(xrayed)}, **record} for r in range(2)]
        path.with_suffix(".run.json").write_text(json.dumps({"probe": probes}))
    return report.write(path)


def _forward(thread: Thread, begin: int, work_ns: int, phase: str, device: int, end: int) -> None:
    """Add a pass up to its end: kernels of several kinds, and the host's wait for them."""
    thread.add_range(f"{phase} Net", begin - MS, end, domain="nsysx")
    for k in range(4):
        thread.launch(
            begin - 100 * US + k * 20 * US,
            kernel=f"{('gemm', 'softmax', 'layer_norm', 'elementwise')[k]}_{work_ns}",
            gpu_start=begin + k * work_ns // 4,
            gpu_dur=work_ns // 4 - 10 * US,
            device=device,
        )
    thread.sync("cudaStreamSynchronize_v3020", at=begin, dur=work_ns - 20 * US, device=device)


def steps(path: Path) -> StepTable:
    return gather_job([path], ReadingOptions()).profile.steps


def late(summary: Summary) -> list[object]:
    return [r["rank"] for r in summary.rows("ranks") if r["straggler"]]


def test_a_step_is_what_lies_between_meetings(tmp_path: Path) -> None:
    table = steps(job(tmp_path / "j.sqlite"))
    assert (table.parts, table.timed, table.grouped) == (4, 4, False)
    assert table.cpu.filter(table.cpu["process"] == table.process)["number"].to_list() == list(range(0, 40, 4))
    assert "4 of them up to each collective in which the ranks meet" in table.rule


@pytest.mark.parametrize(
    ("passes", "phase", "queries", "more", "inside"),
    [
        ((1, 1), "evaluation", 10, (0,), False),  # they meet behind each
        ((4, 4), "backward", 10, (0,), False),  # training: its optimizer or its backward ends a step
        ((4, 4), "evaluation", 3, (0,), False),  # seen too seldom
        ((4, 4), "evaluation", 12, (0, 1, -1), True),  # passes that communicate themselves, now and then
        ((4, 4), "backward", 12, (0, 1, -1), False),
        ((20, 20), "evaluation", 6, (0, 3), False),  # a metric now and then
    ],
)
def test_passes_are_steps_where_the_ranks_do_not_meet_behind_them(
    passes: tuple[int, int], phase: str, queries: int, more: Sequence[int], inside: bool, tmp_path: Path
) -> None:
    path = job(tmp_path / "j.sqlite", passes=passes, phase=phase, queries=queries, more=(more, more), inside=inside)
    table = steps(path)
    assert table.parts == 1 and "meet" not in table.rule


def test_a_round_of_a_rank_that_infers_and_one_that_trains_is_a_step(tmp_path: Path) -> None:
    """An actor of 20 passes and a learner of 3 updates a round; without a number that is always the same, an update is a step."""
    table = steps(job(tmp_path / "j.sqlite", passes=(3, 20), phase=("backward", "evaluation"), queries=6))
    shown = table.cpu.filter(pl.col("process") == table.process)
    assert shown["parts"].to_list() == [3] * 6 and table.timed == 3 and table.in_rounds
    assert table.cpu.filter(pl.col("process") != table.process)["parts"].to_list() == [20] * 6
    unlike = job(
        tmp_path / "u.sqlite", passes=(3, 20), phase=("backward", "evaluation"), queries=6, more=((0, 1), (0,))
    )
    assert steps(unlike).parts == 1


def test_queries_of_unlike_numbers_of_passes_are_a_step_each(tmp_path: Path) -> None:
    """Both ranks have 3, 4 or 5 passes of a query; the first steps of a window without its beginning would be cut."""
    table = steps(job(tmp_path / "j.sqlite", queries=12, more=((0, 1, -1),) * 2))
    shown = table.cpu.filter(table.cpu["process"] == table.process)
    assert shown["parts"].to_list() == [4, 5, 3] * 4 and shown["number"].to_list() == list(range(12))
    assert table.parts == 4 and "of them on average up to each collective in which the ranks meet" in table.rule
    steady = shown.filter("steady")["parts"].to_list()
    assert table.timed == pytest.approx(sum(steady) / len(steady)) and table.in_rounds


def test_the_rank_with_more_passes_of_most_queries_is_the_straggler(tmp_path: Path) -> None:
    """Passes are alike: of three queries one rank has 15 passes and the other 9, and 24 ms each."""
    path = job(tmp_path / "j.sqlite", queries=12, more=((1, 2, 0), (-1, -1, -1)), work_ns=(LONG, LONG))
    summary = summarize([path], every_table=False)
    assert late(summary) == [0]
    row = next(r for r in summary.rows("ranks") if r["straggler"])
    assert row["late_ns"] == pytest.approx(2 * (LONG + HOST), rel=0.1) and row["even_ns"] == pytest.approx(
        LONG + HOST, rel=0.1
    )
    assert not any("alone evaluates" in f.title for f in summary.findings or ())


def test_ranks_with_as_many_passes_in_sum_have_no_straggler(tmp_path: Path) -> None:
    path = job(tmp_path / "j.sqlite", queries=12, more=((0, 1, -1), (0, 1, -1)), work_ns=(LONG, LONG))
    assert late(summarize([path], every_table=False)) == []


@pytest.mark.parametrize("more", [((0, 1, -1), (0, 1, -1)), ((1, 2, 0), (-1, -1, -1))])
def test_steps_of_one_meeting_have_one_number_on_all_ranks(tmp_path: Path, more: Sequence[Sequence[int]]) -> None:
    cpu = steps(job(tmp_path / "j.sqlite", queries=12, more=more)).cpu
    ends = [cpu.filter(cpu["process"] == p).select("number", "end_ns") for p in cpu["process"].unique().to_list()]
    both = ends[0].join(ends[1], on="number")
    assert both.height == 12 and ((both["end_ns"] - both["end_ns_right"]).abs() < MS).all()


def test_the_step_without_the_profiler_is_so_many_passes_on_average(tmp_path: Path) -> None:
    """Passes of 22 ms were timed: a step of 4 on average takes 88 ms, whatever the recorded one takes."""
    record = {"unrecorded_steps": {"count": 64, "lengths_ns": [22 * MS] * 64, "where": "before the window"}}
    path = job(tmp_path / "j.sqlite", queries=13, more=((0, 1, -1),) * 2, record=record)
    summary = summarize([path], every_table=False)
    assert summary.unprofiled is not None and summary.unprofiled.source == "in_process"
    mean = steps(path).timed
    assert summary.unprofiled.step_ns == pytest.approx(mean * 22 * MS, rel=0.02)


def test_the_rank_with_the_longer_samples_is_the_straggler(tmp_path: Path) -> None:
    """Of a query each waits for its host as long; the one computes 80 ms and the other 32: evenly shared, 24 ms of 96 go."""
    summary = summarize([job(tmp_path / "j.sqlite")], every_table=False)
    assert late(summary) == [0]
    row = next(r for r in summary.rows("ranks") if r["straggler"])
    assert row["late_ns"] == pytest.approx(4 * (LONG - SHORT), rel=0.05) and row["late_cause"] == "compute"
    assert row["even_ns"] == pytest.approx(2 * (LONG - SHORT), rel=0.05)
    assert not any(r["lone_work"] for r in summary.rows("ranks"))
    assert not any("alone evaluates" in f.title for f in summary.findings or ())


def test_ranks_that_infer_unlike_numbers_of_passes_do_not_evaluate_alone(tmp_path: Path) -> None:
    """One has five passes to a query and the other three: the longer one evaluates while the other waits, which has done its part."""
    summary = summarize([job(tmp_path / "j.sqlite", passes=(5, 3))], every_table=False)
    assert not any(r["lone_work"] for r in summary.rows("ranks"))


def test_a_step_with_an_xrayed_pass_is_xrayed(tmp_path: Path) -> None:
    """The second pass of the first query: what follows is enough without that."""
    table = steps(job(tmp_path / "j.sqlite", xrayed=(1,)))
    assert table.steady == (1, 8)
    assert steps(job(tmp_path / "k.sqlite")).steady == (0, 8)


def test_what_hosts_do_for_more_data_is_shared_out_with_it(tmp_path: Path) -> None:
    """The host of the one with shorter samples takes 8 ms a pass, as of a cache that they miss: 96 and 64 ms a query."""
    summary = summarize([job(tmp_path / "j.sqlite", host_ns=(HOST, 2 * HOST))], every_table=False)
    row = next(r for r in summary.rows("ranks") if r["straggler"])
    assert row["late_spread"] == Surplus.EVERY and row["even_ns"] == pytest.approx(16 * MS, rel=0.1)


def test_ranks_replay_the_same_steps_of_several_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More work than is replayed: a run of steps, whose numbers lie four apart; as many of them as of passes otherwise."""
    monkeypatch.setattr(replayed_window, "MOST_REPLAYED_OPS", 40)
    chosen, real = [], unprofiled.choose

    def choose(profile: Profile) -> replayed_window.ReplayedWindow | replayed_window.Withheld:
        chosen.append(real(profile))
        return chosen[-1]

    monkeypatch.setattr(unprofiled, "choose", choose)
    gather_job([job(tmp_path / "j.sqlite")], ReadingOptions())
    runs = {w.numbers for w in chosen if isinstance(w, replayed_window.ReplayedWindow)}
    assert runs == {tuple(range(0, 36, 4))}


@pytest.mark.parametrize(
    ("common", "of_each", "follow"),
    [
        ([4, 5, 6], [[3, 4, 5, 6], [4, 5, 6]], True),
        ([4, 6, 8], [[4, 5, 6, 7, 8], [4, 6, 8]], False),
        ([4, 8, 12], [[0, 4, 8, 12], [4, 8, 12]], True),
        ([4, 8, 16], [[4, 8, 12, 16], [4, 8, 16]], False),
    ],
)
def test_steps_follow_one_another_by_the_distance_of_their_numbers(
    common: list[int], of_each: list[list[int]], follow: bool
) -> None:
    ranks: list[Any] = [SimpleNamespace(numbers=tuple(numbers)) for numbers in of_each]
    assert own_time._in_a_row(common, ranks) is follow
