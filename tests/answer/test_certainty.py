"""How sure the size of a saving is, where the step without the profiler is another than the recorded one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsysx import units
from nsysx.advice import Alternative, Condition
from nsysx.answer import certainty
from nsysx.catalogue import StepLimit
from nsysx.judging.window_checks import RUN_RECORD
from nsysx.model import Check, Finding, Summary, Unprofiled
from nsysx.render import answer_words
from nsysx.saving import Saving
from tests.render import factory

MS = 1_000_000
CHOSEN = Finding("NSX102", "launch-bound", "found", "A title", "", saving=Saving(MS))


def known(low_ms: float, high_ms: float) -> Summary:
    """Return a Summary whose step is 10 ms without the profiler, between these bounds, and 20 ms as recorded."""
    real = Unprofiled(
        10 * MS, round(low_ms * MS), round(high_ms * MS), "assumed", 0, 20 * MS, 1, 0, 4, 0.5, 5 * MS, 5 * MS, {}, {}
    )
    summary: Summary = factory.summary()
    verdict = replace(summary.verdict, step_ns=10 * MS, recorded_ns=20 * MS, estimated=False, late_rank=None)
    return replace(summary, unprofiled=real, verdict=verdict)


@pytest.mark.parametrize(
    ("low_ms", "high_ms", "level"), [(9.8, 10.3, "likely"), (9.4, 10.6, "unknown"), (5, 30, "unknown")]
)
def test_a_step_known_within_3_percent_raises_no_doubt(low_ms: float, high_ms: float, level: str) -> None:
    (_, size) = certainty.certainty_of_advice(known(low_ms, high_ms), CHOSEN).parts
    assert (size.about, size.level) == ("How much", level)
    assert size.command == ("nsysx run" if level == "unknown" else "")


def test_a_wide_step_is_told_with_its_bounds() -> None:
    (_, size) = certainty.certainty_of_advice(known(5, 30), CHOSEN).parts
    assert "5.00 ms to 30.00 ms a step." in size.reason


@pytest.mark.parametrize(
    ("gpus", "probe", "command"),
    [
        (1, (), "nsysx run"),
        (1, ({"rank": None, "window_pauses_ns": None},), "nsysx run"),
        (1, ({"rank": None, "window_pauses_ns": [3]},), "nsysx run --calibrate"),  # a plain run was too short
        (2, (), "nsysx run --steps 40:64"),
        (1, ({"rank": "1", "window_pauses_ns": None},), "nsysx run --steps 40:64"),
    ],
)
def test_what_would_measure_the_step(gpus: int, probe: tuple[dict[str, object], ...], command: str) -> None:
    capture = factory.summary().capture
    several = tuple(replace(capture.gpus[0], process=number) for number in range(gpus))
    summary = replace(known(5, 30), capture=replace(capture, gpus=several, probe=probe))
    assert certainty.certainty_of_advice(summary, CHOSEN).parts[1].command == command


def test_a_record_that_was_left_behind_is_put_back_and_no_run_repeated() -> None:
    missing = Check(RUN_RECORD, "warn", "it is not beside it", "put r.run.json beside this report")
    (_, size) = certainty.certainty_of_advice(replace(known(5, 30), quality=(missing,)), CHOSEN).parts
    assert size.command == missing.fix


def test_what_a_bound_leaves_open_is_its_one_reason_and_not_the_spread_of_the_step() -> None:
    bound = replace(CHOSEN, saving=Saving(MS, "replay error ±1.05 ms", bound=True))
    measured = known(8, 12)
    assert measured.unprofiled is not None
    measured = replace(measured, unprofiled=replace(measured.unprofiled, source="in_process"), findings=(bound,))
    (_, size) = certainty.certainty_of_advice(measured, bound).parts
    assert size.reason.startswith("Upper bound; replay error ±1.05 ms.")
    assert size.level == "likely"
    (_, exact) = certainty.certainty_of_advice(measured, CHOSEN).parts
    assert exact.reason.startswith("The unprofiled step was measured in the same process: 8.00 ms to 12.00 ms")


@pytest.mark.parametrize(("error_ms", "level"), [(0.9, "certain"), (1.1, "likely")])
def test_a_change_that_comes_first_is_as_sure_as_its_own_saving(error_ms: float, level: str) -> None:
    whole = replace(CHOSEN, code="NSX102", saving=Saving(5 * MS, "", bound=True, source="replay"))
    first = replace(CHOSEN, code="NSX113", paste="merge()", saving=Saving(2 * MS, "", error_ns=round(error_ms * MS)))
    measured = known(9.9, 10.1)
    assert measured.unprofiled is not None
    measured = replace(measured, unprofiled=replace(measured.unprofiled, source="in_process"))
    told = certainty.certainty_of_advice(replace(measured, findings=(whole, first)), whole)
    assert (told.parts[-1].about, told.parts[-1].level) == ("(1)", level)
    assert told.parts[-1].reason.startswith("Alone it saves 2.00 ms")
    assert told.parts[1].reason.startswith("Both changes together: ")
    assert told.parts[-1].reason == f"Alone it saves 2.00 ms (±{units.duration(round(error_ms * MS))})."
    alone = certainty.certainty_of_advice(replace(measured, findings=(whole,)), whole)
    assert len(alone.parts) == 2 and alone.level == told.level, "nothing comes before it"


@pytest.mark.parametrize(
    ("code", "remedies", "needed", "said", "half"),
    [
        ("NSX102", "compile", 0, "", "Gain likely"),
        ("NSX102", "compile,fused", 0, "Both changes together: ", "Gain of both likely"),
        ("NSX102", "compile,fused", 1, "All changes together: ", "Gain of all likely"),
        ("NSX102", "compile", 1, "Both changes together: ", "Gain of both likely"),
        ("NSX102", "compile larger-batches", 0, "The second change alone: ", "Gain of the second likely"),
        ("NSX119", "compile larger-batches", 0, "", "Gain likely"),  # either will do
    ],
)
def test_of_advice_in_several_parts_it_is_said_which_of_them_the_size_is(
    code: str, remedies: str, needed: int, said: str, half: str
) -> None:
    """What must be mended first is a part of it, too."""
    wait = Condition("no-wait", "violated", "no wait", "Remove waits")
    ways = tuple(Alternative(name, "") for name in remedies.split())
    chosen = replace(CHOSEN, code=code, remedies=ways, paste="compile()", conditions=(wait,) * needed)
    (_, size) = certainty.certainty_of_advice(replace(known(9.9, 10.1), findings=(chosen,)), chosen).parts
    assert size.reason.startswith(said) and any(map(size.reason.startswith, certainty.SIZE_OF)) is bool(said)
    shown, why = answer_words._half_in_words(size, size.reason)
    assert shown == half and not any(map(why.startswith, certainty.SIZE_OF))


@pytest.mark.parametrize(
    ("most", "source", "upper"), [(2, "time", False), (1, "time", True), (None, "time", True), (2, "replay", None)]
)
def test_a_time_that_was_added_up_is_no_upper_bound_where_more_may_go(
    most: int | None, source: str, upper: bool | None
) -> None:
    saving = Saving(MS, "assumes that all rounds but one go", bound=True, source=source, most_ns=most and most * MS)  # type: ignore[arg-type]
    chosen = replace(CHOSEN, saving=saving)
    size = certainty.certainty_of_advice(replace(known(9.9, 10.1), findings=(chosen,)), chosen).parts[1]
    assert size.reason.startswith("Upper bound; assumes") is (upper is True)
    assert size.reason.startswith("Assumes that all") is (upper is False)


def limited(code: StepLimit, busy: float) -> Summary:
    """Return a Summary limited by this, whose GPU is busy for this share of the step without the profiler."""
    summary = known(9.9, 10.1)
    assert summary.unprofiled is not None
    real = replace(summary.unprofiled, gpu_busy=busy, gpu_busy_ns=round(busy * 10 * MS))
    rows = tuple({**r, "steady": True, "gpu_ns": 20 * MS, "gpu_comm_ns": 12 * MS} for r in summary.steps.rows)
    steps = replace(summary.steps, rows=rows * 4)
    tables = {k: t for k, t in summary.tables.items() if k != "ranks"}
    tables["ranks"] = factory.ranks(2, 5)
    verdict = replace(summary.verdict, code=code)
    return replace(summary, verdict=verdict, unprofiled=real, steps=steps, quality=(), tables=tables)


@pytest.mark.parametrize(
    ("code", "busy", "level"),
    [
        (StepLimit.LAUNCH, 0.5, "certain"),
        (StepLimit.LAUNCH, 0.8, "likely"),
        (StepLimit.LAUNCH, 0.97, "unknown"),
        (StepLimit.COMM, 0.97, "likely"),
        (StepLimit.COPY, 0.97, "certain"),
        (StepLimit.GPU, 0.97, "certain"),
        (StepLimit.GPU, 0.5, "likely"),
    ],
)
def test_a_gpu_that_may_never_idle_is_a_doubt_only_about_causes_of_idle_time(
    code: StepLimit, busy: float, level: str
) -> None:
    cause = certainty.certainty_of_advice(limited(code, busy), None).parts[0]
    assert cause.level == level, cause.reason
    assert ("it may not idle at all" in cause.reason) == (level == "unknown")


def test_steps_of_two_kinds_are_the_reason_where_the_change_is_about_them() -> None:
    slow = Finding("NSX109", "slow-steps", "found", "Every 10th step takes 304 ms: a checkpoint", "")
    cause = certainty.certainty_of_advice(limited(StepLimit.LAUNCH, 0.97), slow).parts[0]
    assert cause.level == "certain"
    assert cause.reason == "Every 10th step takes 304 ms: a checkpoint."
    other = certainty.certainty_of_advice(limited(StepLimit.LAUNCH, 0.97), CHOSEN).parts[0]
    assert other == certainty.certainty_of_advice(limited(StepLimit.LAUNCH, 0.97), None).parts[0]


@pytest.mark.parametrize(("count", "words"), [(1, "in only 1 steady step."), (2, "in only 2 steady steps.")])
def test_few_steps_are_counted(count: int, words: str) -> None:
    summary = limited(StepLimit.LAUNCH, 0.5)
    summary = replace(summary, steps=replace(summary.steps, rows=summary.steps.rows[:count]))
    (cause, _) = certainty.certainty_of_advice(summary, CHOSEN).parts
    assert cause.level == "likely" and words in cause.reason


@pytest.mark.parametrize("without", [{"whole": True}, {"source": "capture"}])
def test_without_steps_there_is_no_step_to_speak_of(without: dict[str, object]) -> None:
    summary = known(9.9, 10.1)
    assert summary.step.shown_ns == 10 * MS and summary.step.recorded_ns == 20 * MS
    summary = replace(summary, steps=replace(summary.steps, **without))
    assert summary.step.shown_ns is None and summary.step.recorded_ns is None


@pytest.mark.parametrize(
    ("low_ns", "drift_ns", "warned", "level"),
    [(300, 200, False, "certain"), (200, 200, False, "likely"), (300, 200, True, "likely"), (300, None, False, "certain")],
)  # fmt: skip
def test_a_late_rank_is_certain_where_it_is_later_than_healthy_ones_and_nothing_is_doubted(
    monkeypatch: pytest.MonkeyPatch, low_ns: int, drift_ns: int | None, warned: bool, level: str
) -> None:
    late = {"rank": 3, "last_share": 0.9, "late_low_ns": low_ns, "late_drift_ns": drift_ns}
    monkeypatch.setattr(certainty.subject, "rank_waited_for", lambda _: late)
    doubts = (Check("kernels", "warn", "some are lost", doubt="numbers"),) if warned else ()
    summary = replace(known(9.8, 10.3), quality=(Check("style", "warn", "unlike others"), *doubts))
    cause = certainty._cause(summary, CHOSEN)
    assert cause.level == level and f"Rank 3 takes at least {low_ns} ns a step longer than its peers" in cause.reason
    assert ("But: " in cause.reason) is warned


def test_a_late_rank_of_one_step_is_no_more_than_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    late = {"rank": 1, "last_share": 1.0, "late_low_ns": 300, "late_drift_ns": 0, "steps": 1}
    monkeypatch.setattr(certainty.subject, "rank_waited_for", lambda _: late)
    cause = certainty._cause(known(9.8, 10.3), CHOSEN)
    assert cause.level == "likely"
    assert cause.reason.startswith("In only 1 steady step rank 1 takes at least 300 ns a step longer than its peers")


@pytest.mark.parametrize(
    ("code", "limit", "said"),
    [
        ("NSX131", StepLimit.COMM, "The operators of these lines were recorded. GPU computing"),
        ("NSX110", StepLimit.COMM, "Exposed communication"),
        ("NSX123", StepLimit.COMM, "The host was seen at this line; GPU idle or in exposed communication"),
        ("NSX131", StepLimit.GPU, "The operators of these lines were recorded. GPU busy"),
        ("NSX112", StepLimit.GPU, "GPU busy"),
    ],
)
def test_a_change_of_other_work_beside_communication_rests_on_where_that_shows(
    code: str, limit: str, said: str
) -> None:
    summary = known(9.8, 10.3)
    summary = replace(summary, verdict=replace(summary.verdict, code=limit))
    cause = certainty.certainty_of_advice(summary, replace(CHOSEN, code=code)).parts[0]
    assert cause.reason.startswith(f"{said} ")
