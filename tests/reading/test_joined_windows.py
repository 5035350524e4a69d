"""Two reports of one run as one capture: nothing is lost, nothing is mixed up, and no step lies across the place where they meet."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from nsysx.comparing import comparability, side_inputs
from nsysx.errors import NsysxError
from nsysx.events.coverage import BEFORE, BEHIND, BETWEEN
from nsysx.events.event_bounds import UNEVEN_SPREAD_SHARE
from nsysx.pipeline import ReadingOptions, gather, summarize
from nsysx.reading import report_files
from nsysx.reading.load import load
from nsysx.render import answer_words
from nsysx.replay import tracing_costs
from tests.builder import Report
from tests.events.test_steps import PERIOD
from tests.events.test_unsteady import rollouts

US, MS = 1_000, 1_000_000
#: A step: a load in the very first one, two launches with their kernels.
STEP = 2 * MS


def part(
    first: int, steps: int, *, at: int, load_ns: int = 0, extra_domain: bool = False, growth_ns: int = 0
) -> Report:
    """Return a report of steps from number ``first`` on, which begins ``at`` (ns) after its session.

    Each step takes ``growth_ns`` longer than the one before.
    """
    report = Report()
    process = report.process(100)
    process.context()
    if extra_domain:
        process.domain("another library")  # so that the probe's domain has another number than in the other report
    main = process.thread(100, "python")
    main.add_range("capture-window", at - 50 * US, at + steps * STEP + load_ns + 50 * US, domain="nsysx")
    if load_ns:
        main.call("cuModuleLoadData", at, load_ns)
        at += load_ns
    length = STEP
    for number in range(first, first + steps):
        main.add_range(f"step {number}", at, at + length - 10 * US, domain="nsysx")
        for k in range(2):
            begin = at + k * 800 * US
            main.launch(begin + 10 * US, 5 * US, kernel=f"gemm{k}", gpu_start=begin + 20 * US, gpu_dur=700 * US)
        at += length
        length += growth_ns
    return report


def written(
    folder: Path,
    *,
    cold: int = 8,
    steady: int = 12,
    growth_ns: int = 0,
    bare_growth_ns: int = 0,
    slow: int = 0,
    after_ns: Sequence[int] = (),
    detached: bool = True,
    left: bool = True,
) -> Path:
    start = part(0, cold, at=3 * MS, load_ns=40 * MS)
    if left:
        start.diagnostic("The CUPTI was finalized to allow another client to subscribe.", severity=1)
    start.write(folder / "r.cold.sqlite")
    path = part(100, steady, at=900 * MS, extra_domain=True, growth_ns=growth_ns).write(folder / "r.sqlite")
    bare = {
        "lengths_ns": [1_500 * US + i * bare_growth_ns + 500 * US * (i < slow) for i in range(40)],
        "clock": "gpu",
        "where": "between the windows",
        "after_ns": list(after_ns),
        "detached": detached,
    }
    probe = {"pid": 100, "unrecorded_steps": bare, "window_pauses_ns": [2_700 * MS, 3_000 * MS], "steps": {}}
    record = {"schema": "nsysx.run/1", "probe": [probe], "files": {"cold": "r.cold.sqlite"}}
    (folder / "r.run.json").write_text(json.dumps(record))
    return path


@pytest.mark.traced
def test_steps_after_the_windows_count_and_the_bounds_hold_both_parts(tmp_path: Path) -> None:
    """40 steps of 1.5 ms between the windows and 20 of 1.8 ms after them: 1.6 ms a step, and no part's mean is out of bounds."""
    summary = summarize([written(tmp_path, after_ns=[1_800 * US] * 20)])
    step = summary.unprofiled
    assert step is not None and (step.source, step.step_ns, step.measured_steps) == ("in_process", 1_600 * US, 60)
    assert step.low_ns is not None and step.low_ns <= 1_500 * US
    assert step.high_ns is not None and step.high_ns >= 1_800 * US
    said = next(c.detail for c in summary.quality if c.check == "windows")
    assert "So did the 20 steps after them: 1.80 ms in the mean" in said and "stays in the program" not in said


@pytest.mark.traced
def test_steps_while_nsys_still_writes_are_told_and_do_not_count(tmp_path: Path) -> None:
    """15 steps of 2 ms right behind the first window, then 25 of 1.5 ms, as long as the program's own."""
    summary = summarize([written(tmp_path, slow=15)])
    assert summary.unprofiled is not None
    assert (summary.unprofiled.step_ns, summary.unprofiled.measured_steps) == (1_500 * US, 25)
    said = next(c.detail for c in summary.quality if c.check == "windows")
    assert "25 steps between them ran without the profiler" in said
    assert "15 steps before them took 2.00 ms in the mean and do not count: nsys still wrote" in said


@pytest.mark.traced
@pytest.mark.parametrize(("detached", "left"), [(False, True), (True, False)])
def test_where_nsys_stayed_in_the_calls_the_step_may_be_shorter(tmp_path: Path, detached: bool, left: bool) -> None:
    """It was not asked to leave them, or it does not say that it did: what was timed after the windows is slower still."""
    summary = summarize([written(tmp_path, after_ns=[1_800 * US] * 20, detached=detached, left=left)])
    step = summary.unprofiled
    assert step is not None and (step.step_ns, step.low_ns) == (1_500 * US, round(0.7 * 1_500 * US))
    said = next(c.detail for c in summary.quality if c.check == "windows")
    assert "may be up to 30 % shorter" in said


def test_every_row_of_both_reports_is_there_once(tmp_path: Path) -> None:
    path = written(tmp_path)
    both = load(path)
    alone = [load(tmp_path / "r.cold.sqlite")]
    (tmp_path / "r.run.json").rename(tmp_path / "other")
    alone.append(load(path))
    for name in ("runtime", "kernel", "nvtx"):
        assert both.frames[name].height == sum(t.frames[name].height for t in alone)
        lasted = both.frames[name]["end_ns"] - both.frames[name]["start_ns"]
        assert lasted.sum() == sum((t.frames[name]["end_ns"] - t.frames[name]["start_ns"]).sum() for t in alone)
    assert both.seams
    assert (both.kernel["start_ns"] >= both.seams[0]).sum() == alone[1].kernel.height
    ids = both.runtime["correlation_id"]
    assert ids.n_unique() == len(ids)  # those of the two reports do not meet
    assert both.capture.gpus == alone[0].capture.gpus and len(both.capture.processes) == 1


def test_counters_are_moved_with_the_window_in_which_they_were_sampled(tmp_path: Path) -> None:
    path = written(tmp_path)
    steady = part(100, 12, at=900 * MS, extra_domain=True)
    steady.gpu(0, pids=[(100, 0)])
    steady.counters(("GPC Clock Frequency [MHz]", "SMs Active [Throughput %]"))
    for k in range(24):
        steady.sample(900 * MS + k * MS, (1_980_000_000, 90))
    path.unlink()
    steady.write(path)
    both = load(path)
    assert both.gpu_metrics is not None
    sampled, kernels = both.gpu_metrics["time_ns"], both.kernel.filter(pl.col("start_ns") >= both.seams[0])["start_ns"]
    assert sampled.len() == 24 and kernels[0] - sampled[0] == 20 * US  # as in the report of the second window


def test_steps_and_first_calls_come_from_their_own_windows(tmp_path: Path) -> None:
    given = gather(written(tmp_path), ReadingOptions())
    steps = given.steps.cpu
    assert steps["number"].to_list() == [*range(8), *range(100, 112)]
    steady = steps.filter("steady")["number"].to_list()
    assert steady == list(range(100, 111))
    assert given.attributed.gpu_ops["call"].null_count() == 0
    tiles = given.steps.gpu.sort("index")
    lengths = (tiles["end_ns"] - tiles["start_ns"]).to_list()
    assert max(lengths) <= STEP  # none reaches across
    assert not given.steps.between.height  # closing a window and opening another is no work of the program
    covered = given.steps.coverage
    assert covered is not None
    assert sum(covered.parts.values()) == covered.wall_ns and BETWEEN not in covered.parts
    assert steps.filter("cut")["number"].to_list() == [7, 111]  # each window cuts its last step
    outside = sum(covered.parts.get(name, 0) for name in (BEFORE, BEHIND))
    assert covered.wall_ns - outside == covered.loop_ns <= 20 * STEP  # nothing of what lies between the windows
    summary = summarize([tmp_path / "r.sqlite"])
    assert any("cuModuleLoadData" in str(row) for row in summary.rows("first_calls") or summary.rows("api_bill"))


@pytest.mark.parametrize(("steady", "shown"), [(24, range(101, 123)), (5, range(1, 39))])
def test_averages_are_of_the_second_window_if_it_is_whole(tmp_path: Path, steady: int, shown: range) -> None:
    path = written(tmp_path, cold=40, steady=steady)
    steps = gather(path, ReadingOptions()).steps
    numbers = steps.cpu.filter("steady")["number"].to_list()
    assert set(shown) <= set(numbers)
    assert all(n >= 100 for n in numbers) == (steady == 24)  # 40 steps before are more, but another window


@pytest.mark.parametrize("skip", [0, 1])
def test_steps_of_several_parts_are_found_in_each_window(tmp_path: Path, skip: int) -> None:
    """Four optimizer steps with the rollout before them; a window may open behind a rollout."""
    rollouts(12, 4, 6).write(tmp_path / "r.cold.sqlite")
    path = rollouts(10, 4, 6, skip=skip).write(tmp_path / "r.sqlite")
    (tmp_path / "r.run.json").write_text(json.dumps({"files": {"cold": "r.cold.sqlite"}}))
    given = gather(path, ReadingOptions())
    steps, joined = given.steps, given.trace.seams[0]
    assert joined is not None and (steps.parts, steps.cpu.height) == (4, 22 - skip)
    assert not steps.cpu.filter((pl.col("start_ns") < joined) & (pl.col("end_ns") > joined)).height
    assert (steps.gpu["end_ns"] - steps.gpu["start_ns"]).max() <= 10 * PERIOD
    assert steps.cpu.filter("steady")["start_ns"].min() > joined


@pytest.mark.traced
@pytest.mark.parametrize(
    "kinds", [[{"steps": 1_384, "rule": "forward/forward", "ns": 12_300 * MS}], [], "none", [{"steps": "many"}]]
)
def test_steps_of_another_kind_that_came_before_are_told(tmp_path: Path, kinds: object) -> None:
    path = written(tmp_path)
    record = json.loads((tmp_path / "r.run.json").read_text())
    record["probe"][0]["earlier_kinds"] = kinds
    (tmp_path / "r.run.json").write_text(json.dumps(record))
    (told,) = [check.detail for check in summarize([path]).quality if check.check == "windows"]
    said = "Before, the program made steps of another kind (1,384 steps in 12.30 s)"
    assert (said in told) == (kinds[:1] == [{"steps": 1_384, "rule": "forward/forward", "ns": 12_300 * MS}])
    assert ("another kind" in told) == (said in told)


def test_parts_that_only_the_cold_start_shows_make_no_step(tmp_path: Path) -> None:
    """Passes with something behind each, and then training without: those of the second window stay as they are."""
    rollouts(12, 4, 6).write(tmp_path / "r.cold.sqlite")
    path = rollouts(1, 30, 0, kernels=0).write(tmp_path / "r.sqlite")
    (tmp_path / "r.run.json").write_text(json.dumps({"files": {"cold": "r.cold.sqlite"}}))
    given = gather(path, ReadingOptions())
    assert (given.steps.parts, given.steps.cpu.height) == (1, 12 * 4 + 30)
    assert given.steps.cpu.filter("steady")["start_ns"].min() >= given.trace.seams[0]


@pytest.mark.parametrize(("first", "numbers"), [(0, [0, 100]), (8, [100]), (200, [0, 100])])
def test_what_came_before_the_first_step_was_none(tmp_path: Path, first: int, numbers: list[int]) -> None:
    """The probe knows that only training made steps; without one of those in the report, the others stay."""
    path = written(tmp_path)
    record = json.loads((tmp_path / "r.run.json").read_text())
    record["probe"][0]["steps"] = {"first": first}
    (tmp_path / "r.run.json").write_text(json.dumps(record))
    steps = gather(path, ReadingOptions()).steps.cpu
    assert steps.filter(pl.col("number").is_in([0, 100]))["number"].to_list() == numbers


@pytest.mark.traced
@pytest.mark.parametrize("told", [False, True])
def test_a_step_of_several_parts_takes_the_mean_of_the_whole_loop(tmp_path: Path, told: bool) -> None:
    """The four optimizer steps alone took 3.2 ms, with the rollout before them 7.2 ms; a record that has only the first says nothing."""
    rollouts(12, 4, 6).write(tmp_path / "r.cold.sqlite")
    path = rollouts(10, 4, 6).write(tmp_path / "r.sqlite")
    bare: dict[str, object] = {"lengths_ns": [800 * US] * 60, "clock": "cpu", "where": "between the windows"}
    bare |= {"loop_ns": [800 * US, 800 * US, 800 * US, 4_800 * US] * 20} if told else {}
    probe = {"unrecorded_steps": bare, "window_pauses_ns": [MS, MS], "steps": {}}
    (tmp_path / "r.run.json").write_text(json.dumps({"files": {"cold": "r.cold.sqlite"}, "probe": [probe]}))
    known = summarize([path]).unprofiled
    assert known is not None and (known.source == "in_process") == told
    assert known.loop_ns is None
    if told:
        assert (known.step_ns, known.measured_steps) == (7_200 * US, 20)
        assert known.low_ns <= 7_200 * US <= known.high_ns


@pytest.mark.traced
@pytest.mark.parametrize("between", [0, 4_000 * US])
def test_steps_by_the_optimizer_take_as_many_rounds_of_the_timed_ones(tmp_path: Path, between: int) -> None:
    """The probe timed each optimizer step; most work is in the rollout before three of them, so the step is the whole of it."""
    rollouts(12, 3, 6, heavy=True).write(tmp_path / "r.cold.sqlite")
    path = rollouts(10, 3, 6, heavy=True).write(tmp_path / "r.sqlite")
    lengths = [2_000 * US] * 61
    bare: dict[str, object] = {"lengths_ns": lengths, "clock": "cpu", "where": "between the windows"}
    bare["loop_ns"] = [ns + (between if i % 3 == 2 else 0) for i, ns in enumerate(lengths)] if between else []
    probe = {"unrecorded_steps": bare, "window_pauses_ns": [MS, MS], "steps": {}}
    (tmp_path / "r.run.json").write_text(json.dumps({"files": {"cold": "r.cold.sqlite"}, "probe": [probe]}))
    told = summarize([path]).unprofiled
    assert told is not None and (told.source, told.measured_steps) == ("in_process", 20)
    assert (told.step_ns, told.loop_ns) == (6_000 * US + between, None)


@pytest.mark.traced
@pytest.mark.parametrize(("ns", "told"), [(1_200 * US, True), (1_510 * US, False), (2_000 * US, True)])
@pytest.mark.parametrize("detached", [True, False])
def test_the_steps_that_followed_are_told_where_their_mean_is_another(
    tmp_path: Path, ns: int, told: bool, detached: bool
) -> None:
    """Bare steps of 1.5 ms. Whatever ran between those that followed, no bound is above their mean."""
    path = written(tmp_path, detached=detached)
    record = json.loads((tmp_path / "r.run.json").read_text())
    record["probe"][0]["rest"] = {
        "steps": 5_000,
        "ns": 5_000 * ns,
        "blocks": [[1_000, 1_000 * ns], [4_000, 4_000 * ns]],
    }
    (tmp_path / "r.run.json").write_text(json.dumps(record))
    summary = summarize([path])
    real = summary.unprofiled
    assert real is not None and real.step_ns == 1_500 * US
    assert (real.rest_ns, real.rest_steps) == ((ns, 5_000) if detached else (None, 0))
    words = [f for f in answer_words.build(summary).facts if "over the next" in f]
    assert words == (
        [f"{ns / MS:.2f} ms a step over the next 5,000 steps, with what ran between them"] if told and detached else []
    )
    if detached:
        assert real.low_ns <= ns and real.high_ns < 1_700 * US


@pytest.mark.traced
@pytest.mark.parametrize(
    "blocks", [None, "text", [[0, 5]], [[1]], [[1, -1]], [[True, 5]], [[1, 1 << 70]], [[1, 3_700 * 10**9]], [["1", 5]]]
)
def test_a_count_that_cannot_be_is_none(tmp_path: Path, blocks: object) -> None:
    path = written(tmp_path, detached=True)
    record = json.loads((tmp_path / "r.run.json").read_text())
    record["probe"][0]["rest"] = {"blocks": blocks}
    (tmp_path / "r.run.json").write_text(json.dumps(record))
    real = summarize([path]).unprofiled
    assert real is not None and real.rest_ns is None


@pytest.mark.traced
def test_what_runs_between_steps_is_told_beside_the_step(tmp_path: Path) -> None:
    """Steps of 1.5 ms, after every fourth an evaluation of 2 ms: 2 ms a step in the whole loop."""
    path = written(tmp_path)
    record = json.loads((tmp_path / "r.run.json").read_text())
    record["probe"][0]["unrecorded_steps"]["loop_ns"] = [1_500 * US, 1_500 * US, 1_500 * US, 3_500 * US] * 10
    (tmp_path / "r.run.json").write_text(json.dumps(record))
    summary = summarize([path])
    assert summary.unprofiled is not None
    assert (summary.unprofiled.step_ns, summary.unprofiled.loop_ns) == (1_500 * US, 2_000 * US)
    facts = answer_words.build(summary).facts
    assert any("2.00 ms a step with what runs between steps" in fact for fact in facts)


@pytest.mark.parametrize(
    ("pauses", "held"),
    [
        ((5, 25, 45), 3 / 50 * 20),  # each 20 steps: 2.5 of them in 50 steps, of which three fell into these
        ((5, 25, 50), 1.0),  # at no regular distance: as they were seen
        ((5, 45), 2 / 50 * 40),
    ],
)
def test_a_pause_that_comes_back_counts_by_its_period(pauses: tuple[int, ...], held: float) -> None:
    """Not by how many of them fell into a stretch of steps that begins or ends anywhere."""
    loop = [1_500 * US] * 51
    for step in pauses:
        loop[step] = 100 * MS
        loop[step + 2 if step + 2 < 51 else step] = 20 * MS  # the second batch is late, too
    share = tracing_costs._share_by_period([loop[: 50 + (50 in pauses)]])
    assert share == pytest.approx(1 / held)


@pytest.mark.parametrize("bare_grow", [False, True])
def test_steps_that_grow_only_while_they_are_recorded_do_not_grow(tmp_path: Path, bare_grow: bool) -> None:
    path = written(tmp_path, steady=24, growth_ns=20 * US, bare_growth_ns=20 * US * bare_grow)
    course = gather(path, ReadingOptions()).steps.trend
    said = next(check.detail for check in summarize([path]).quality if check.check == "windows")
    assert ("in the mean of their first quarter" in said) == bare_grow
    assert course.kind == (
        "growing" if bare_grow else "uneven" if (course.spread or 0) > UNEVEN_SPREAD_SHARE else "level"
    )
    assert ("grows from" in course.note) == bare_grow


@pytest.mark.traced
def test_the_step_is_the_mean_of_those_between(tmp_path: Path) -> None:
    summary = summarize([written(tmp_path)])
    known = summary.unprofiled
    assert known is not None and (known.source, known.step_ns, known.measured_steps) == ("in_process", 1_500 * US, 40)
    assert known.low_ns < known.step_ns < known.high_ns <= 1.05 * known.step_ns
    assert known.gpu_busy_ns + known.gpu_idle_ns == pytest.approx(known.step_ns, rel=0.01)
    said = next(check.detail for check in summary.quality if check.check == "windows")
    assert "2.70 s and 3.00 s" in said and "40 steps between them" in said
    assert "after them" not in said and "stays in the program" not in said
    said = next(check.detail for check in summary.quality if check.check == "unprofiled")
    assert said.startswith("a step on average takes 1.50 ms") and "in the 40 steps before the last window" in said


def test_a_program_that_ended_in_the_first_window_is_a_report_like_any_other(tmp_path: Path) -> None:
    path = part(0, 9, at=3 * MS, load_ns=40 * MS).write(tmp_path / "r.sqlite")
    (tmp_path / "r.run.json").write_text(json.dumps({"files": {"cold": None}, "probe": [{"window_pauses_ns": []}]}))
    given = gather(path, ReadingOptions())
    assert not given.trace.seams and given.steps.cpu.height == 9
    assert "capture-window" not in given.ranges.ranges["label"].cast(str).to_list()


@pytest.mark.parametrize(
    ("pauses", "status", "said"),
    [
        ([], "ok", "recorded: everything; the program ended before"),
        ([2_700 * MS], "warn", "No step was timed without the profiler: the program ended too soon after this window"),
        (
            [2_700 * MS, 3_000 * MS],
            "warn",
            "one of the two windows (cold start, steady steps) is missing: nsys wrote only one report",
        ),
    ],
)
def test_what_a_run_with_one_report_has_recorded(tmp_path: Path, pauses: list[int], status: str, said: str) -> None:
    path = part(0, 9, at=3 * MS, load_ns=40 * MS).write(tmp_path / "r.sqlite")
    (tmp_path / "r.run.json").write_text(
        json.dumps({"files": {}, "probe": [{"pid": 100, "window_pauses_ns": pauses, "steps": {}}]})
    )
    [check] = [check for check in summarize([path]).quality if check.check == "windows"]
    assert check.status == status and said in check.detail


def test_a_cold_start_that_was_not_copied_along_is_said_to_be_missing(tmp_path: Path) -> None:
    path = written(tmp_path)
    (tmp_path / "r.cold.sqlite").unlink()
    summary = summarize([path])
    [check] = [
        check for check in summary.quality if "is not beside this report: first calls are not shown" in check.detail
    ]
    assert (check.check, check.status, check.doubt) == ("windows", "warn", "")
    assert not any("cold" in message["text"] for message in summary.capture.diagnostics), "nsys did not say it"


def test_a_report_without_its_cold_start_is_whole_for_a_budget_and_a_comparison(tmp_path: Path) -> None:
    path = written(tmp_path)
    record = json.loads((tmp_path / "r.run.json").read_text())
    record["probe"][0] |= {"ranges": {"step": 20}, "ended": True}  # 8 of them in the report of the cold start
    (tmp_path / "r.run.json").write_text(json.dumps(record))
    (tmp_path / "r.cold.sqlite").unlink()
    assert comparability.doubtful(side_inputs.measured(path)) is None


def test_a_folder_counts_both_as_one_report(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert report_files.reports([tmp_path]) == [path]
    path.unlink()
    assert report_files.reports([tmp_path]) == [tmp_path / "r.cold.sqlite"]


def test_a_damaged_cold_start_is_named(tmp_path: Path) -> None:
    path = written(tmp_path)
    shutil.copy(__file__, tmp_path / "r.cold.sqlite")
    with pytest.raises(NsysxError, match=r"r\.cold\.sqlite"):
        load(path)


@pytest.mark.traced
@pytest.mark.parametrize(
    ("after_us", "loop_us", "after_loop_us", "told_us"),
    [
        # Nothing ran between the steps of the second stretch: half as much for all of them.
        (1_500, 2_000, None, 1_750),
        (1_500, 2_000, 1_700, 1_850),
        # The stretches differ by more than what would lie between: nothing ran.
        (3_000, 1_700, None, None),
        (3_000, 1_700, 3_200, None),
        (1_500, None, None, None),
        # The step and its loop are of the same stretches, so that no slow one adds to the loop alone.
        (1_600, 2_000, 2_100, 2_050),
    ],
)
def test_what_runs_between_is_formed_over_the_stretches_of_the_step(
    tmp_path: Path, after_us: int, loop_us: int | None, after_loop_us: int | None, told_us: int | None
) -> None:
    """Forty steps of 1.5 ms between the windows, and forty after them."""
    path = written(tmp_path, after_ns=[after_us * US] * 40)
    record = json.loads((tmp_path / "r.run.json").read_text())
    timed = record["probe"][0]["unrecorded_steps"]
    timed["loop_ns"] = [loop_us * US] * 40 if loop_us else []
    timed["after_loop_ns"] = [after_loop_us * US] * 40 if after_loop_us else []
    (tmp_path / "r.run.json").write_text(json.dumps(record))
    real = summarize([path]).unprofiled
    assert real is not None and real.loop_ns == (told_us and told_us * US)


@pytest.mark.traced
@pytest.mark.parametrize(("pauses", "told_us"), [(1, None), (2, 2_000), (4, 2_500)])
def test_one_pause_in_each_stretch_is_nothing_that_runs_between(
    tmp_path: Path, pauses: int, told_us: int | None
) -> None:
    """A pause of 10 ms after some of forty steps of 1.5 ms: what comes once is the machine, what comes back is the loop's."""
    path = written(tmp_path, after_ns=[1_500 * US] * 40)
    record = json.loads((tmp_path / "r.run.json").read_text())
    loop = [11_500 * US] * pauses + [1_500 * US] * (40 - pauses)
    record["probe"][0]["unrecorded_steps"] |= {"loop_ns": loop, "after_loop_ns": loop[::-1]}
    (tmp_path / "r.run.json").write_text(json.dumps(record))
    real = summarize([path]).unprofiled
    assert real is not None and real.loop_ns == (told_us and told_us * US)


@pytest.mark.traced
@pytest.mark.parametrize(("pauses", "pause_us", "told_us"), [(3, 20_000, 3_750), (1, 20_000, None), (20, 2_000, None)])
def test_pauses_that_come_back_are_seen_where_clocks_change_the_steps_between_the_stretches(
    tmp_path: Path, pauses: int, pause_us: int, told_us: int | None
) -> None:
    """Steps of 1.5 ms and, after the windows, of 3 ms, with some pauses behind them in either stretch: epochs that begin. Few long ones
    stand out; many that are no longer than a step may be the same drift.
    """
    path = written(tmp_path, after_ns=[3_000 * US] * 40)
    record = json.loads((tmp_path / "r.run.json").read_text())

    def loop(step_us: int) -> list[int]:
        return [(step_us + pause_us) * US] * pauses + [step_us * US] * (40 - pauses)

    record["probe"][0]["unrecorded_steps"] |= {"loop_ns": loop(1_500), "after_loop_ns": loop(3_000)}
    (tmp_path / "r.run.json").write_text(json.dumps(record))
    real = summarize([path]).unprofiled
    assert real is not None and real.loop_ns == (told_us and told_us * US)


@pytest.mark.traced
def test_no_bound_of_the_step_is_below_what_the_device_needs(tmp_path: Path) -> None:
    """The kernels of a step take 1.4 ms; a noted minimum of 0.1 ms is a host that ran ahead of its device."""
    path = written(tmp_path)
    record = json.loads((tmp_path / "r.run.json").read_text())
    timed = {"median_ns": 1_500 * US, "low_ns": 100 * US, "high_ns": 1_600 * US, "count": 40, "clock": "cpu"}
    record["probe"][0]["unrecorded_steps"] = {**timed, "where": "between the windows", "detached": True}
    (tmp_path / "r.run.json").write_text(json.dumps(record))
    real = summarize([path]).unprofiled
    assert real is not None and real.source == "in_process"
    assert 700 * US < real.low_ns <= real.step_ns


@pytest.mark.parametrize("cold", [False, True])
def test_a_second_window_without_a_whole_step_says_where_the_steps_are(tmp_path: Path, cold: bool) -> None:
    """The program ended as the second window opened: its steps are in the first report, and no range was lost."""
    report = Report()
    main = report.process(1).thread(1, "python")
    main.add_range("mine", 0, 10 * US)
    main.launch(0, 10 * US, gpu_start=20 * US, gpu_dur=100 * US)
    path = report.write(tmp_path / "r.sqlite")
    pushed = {"ranges": {"step": 24, "phase": 72}, "ended": True, "pair_cost_ns": None, "window_pauses_ns": [MS]}
    probe = {"pid": 1, "backend": "nvtx", "steps": {"count": 60, "first": 0}, "capture_steps": [60, 88], **pushed}
    files = {"cold": "r.cold.sqlite"}
    (tmp_path / "r.run.json").write_text(json.dumps({"schema": "nsysx.run/1", "files": files, "probe": [probe]}))
    if cold:
        part(0, 4, at=3 * MS).write(tmp_path / "r.cold.sqlite")
    summary = summarize([path])
    found = {c.check: c for c in summary.quality}
    assert ("cold report" in found) is not cold
    if not cold:
        assert "lost ranges" not in found and found["probe ranges"].status == "ok"
        sentence = found["cold report"].detail
        assert "NAME.cold.sqlite, which holds the steps, is not beside it" in sentence
        assert sentence.endswith("its window opened after 60 of the 60 steps of the program")
        assert summary.answer.do[-1].text.startswith("Put NAME.cold.sqlite, which nsysx run wrote with it")
        assert summary.answer.certainty.reason.startswith("The missing NAME.cold.sqlite holds the steps")
        assert "kernels" not in summary.answer.worth
