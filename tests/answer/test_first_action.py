"""Which of several findings leads: where two cannot be told apart, and where an exact change stands against a bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nsysx.advice import Alternative, Condition
from nsysx.answer import change_savings, first_action, others
from nsysx.catalogue import StepLimit
from nsysx.events import measuring
from nsysx.model import Finding, Summary
from nsysx.saving import Saving
from tests.render import factory

MS = 1_000_000


def finding(code: str, ms: float, *, bound: bool = False, error_ms: float = 0, paste: str = "change()") -> Finding:
    saving, error = round(ms * MS), round(error_ms * MS)
    return Finding(code, "", "found", code, "", {}, saving, Saving(saving, bound=bound, error_ns=error), paste=paste)


def saves(given: Finding, **changes: Any) -> Finding:
    """Return a finding with other figures of its saving."""
    return replace(given, saving=replace(given.saving, **changes))


def led(limit: StepLimit, *findings: Finding, step_ms: float = 20) -> str:
    """Return the code of the finding that is told first."""
    summary: Summary = factory.summary()
    verdict = replace(summary.verdict, code=limit.value, step_ns=round(step_ms * MS), parts={}, late_rank=None)
    summary = replace(summary, verdict=verdict, findings=findings, quality=(), replay={"trusted": True})
    first = first_action.first(summary)
    return "" if first is None else first.code


@pytest.mark.parametrize(("bound_ms", "first"), [(11.9, "NSX106"), (12.1, "NSX102")])
def test_an_exact_line_goes_before_a_bound_that_promises_no_more_than_three_times_as_much(
    bound_ms: float, first: str
) -> None:
    assert led(StepLimit.LAUNCH, finding("NSX102", bound_ms, bound=True), finding("NSX106", 4)) == first


@pytest.mark.parametrize(("exact_ms", "first"), [(2.9, "NSX102"), (3.1, "NSX106")])
def test_an_exact_line_leads_from_15_percent_of_the_step_on(exact_ms: float, first: str) -> None:
    assert led(StepLimit.LAUNCH, finding("NSX102", 5, bound=True), finding("NSX106", exact_ms)) == first


@pytest.mark.parametrize(("exact_ms", "first"), [(1.9, "NSX110"), (2.1, "NSX133")])
def test_what_a_line_saves_for_sure_goes_before_another_way_to_divide_the_program(exact_ms: float, first: str) -> None:
    anew = replace(finding("NSX110", 12, bound=True), remedies=(Alternative("data-parallel", ""),))
    assert led(StepLimit.COMM, anew, finding("NSX133", exact_ms)) == first


@pytest.mark.parametrize(
    ("ms", "whole_ms", "change", "bound", "first"),
    [
        (2, 3.9, "even-stages", False, "NSX110"),
        (2, 4.1, "even-stages", False, "NSX102"),  # a compiler promises more than twice as much
        (0.9, 1.7, "even-stages", False, "NSX102"),  # no 5 % of the step
        (2, 3.9, "even-stages", True, "NSX102"),  # ranks that share a GPU: only the most is known
        (2, 3.9, "more-micro-batches", False, "NSX102"),
    ],
)
def test_even_stages_go_before_what_a_compiler_may_make_of_one_stage(
    ms: float, whole_ms: float, change: str, bound: bool, first: str
) -> None:
    remedies = (Alternative("compile-reduce-overhead", ""),)
    compiled = replace(finding("NSX102", whole_ms, bound=True, error_ms=0.1), remedies=remedies)
    stages = replace(finding("NSX110", ms, bound=bound, error_ms=0.1), remedies=(Alternative(change, ""),))
    assert led(StepLimit.LAUNCH, compiled, stages) == first


@pytest.mark.parametrize(
    ("ms", "whole_ms", "change", "first"),
    [
        (3.1, 12, "autocast-once", "NSX137"),
        (2.9, 11, "autocast-once", "NSX102"),  # no 15 % of the step: both are told
        (3.1, 12.5, "autocast-once", "NSX102"),  # the option adds more than three times as much
        (3.1, 12, "cuda-graph", "NSX102"),  # for whatever stands there, too
    ],
)
def test_a_fault_with_its_price_stands_alone_before_an_option_for_whatever_stands_there(
    ms: float, whole_ms: float, change: str, first: str
) -> None:
    graph = replace(
        saves(finding("NSX102", whole_ms, bound=True), source="replay"),
        remedies=(Alternative("compile-reduce-overhead", ""),),
    )
    exact = replace(finding("NSX137", ms), remedies=(Alternative(change, ""),))
    assert led(StepLimit.LAUNCH, graph, exact) == first


@pytest.mark.parametrize(
    ("limit", "ms", "change", "bound", "first"),
    [
        (StepLimit.GPU, 1.9, "compile-reduce-overhead", True, ""),
        (StepLimit.GPU, 2.1, "compile-reduce-overhead", True, "NSX110"),
        (StepLimit.GPU, 1.9, "own-buffers", True, "NSX110"),  # a cause that was seen
        (StepLimit.GPU, 1.9, "compile-reduce-overhead", False, "NSX110"),
        (StepLimit.LAUNCH, 1.9, "compile-reduce-overhead", True, "NSX110"),
    ],
)
def test_a_small_bound_of_less_launching_is_no_action_where_the_gpu_works_all_the_time(
    limit: StepLimit, ms: float, change: str, bound: bool, first: str
) -> None:
    launching = replace(finding("NSX110", ms, bound=bound), remedies=(Alternative(change, ""),))
    assert led(limit, launching) == first


@pytest.mark.parametrize(
    ("code", "limit", "ms", "change", "bound", "job", "first"),
    [
        ("NSX110", StepLimit.GPU, 5, "compile-reduce-overhead", True, True, ""),
        ("NSX110", StepLimit.GPU, 5, "compile-reduce-overhead", True, False, "NSX110"),
        ("NSX110", StepLimit.COMM, 5, "compile-reduce-overhead", True, True, "NSX110"),
        # A compiled backward hands over all gradients at its end.
        ("NSX112", StepLimit.GPU, 5, "compile", False, True, ""),
        ("NSX112", StepLimit.GPU, 5, "compile", False, False, "NSX112"),
        ("NSX112", StepLimit.GPU, 5, "compile-function", False, True, "NSX112"),
    ],
)
def test_what_a_compiler_could_gain_in_a_job_is_an_option(
    code: str,
    limit: StepLimit,
    ms: float,
    change: str,
    bound: bool,
    job: bool,
    first: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_action.subject, "of_a_job", lambda summary: job)
    fewer = replace(finding(code, ms, bound=bound), remedies=(Alternative(change, ""),))
    assert led(limit, fewer) == first


def test_what_cannot_be_pasted_is_no_exact_line() -> None:
    assert led(StepLimit.LAUNCH, finding("NSX102", 5, bound=True), finding("NSX114", 4, paste="")) == "NSX102"


@pytest.mark.parametrize(("error_ms", "first"), [(0.9, "NSX105"), (1.1, "NSX101")])
def test_of_savings_that_cannot_be_told_apart_the_cause_in_the_sentence_leads(error_ms: float, first: str) -> None:
    assert led(StepLimit.SYNC, finding("NSX105", 5, error_ms=error_ms), finding("NSX101", 4)) == first


@pytest.mark.parametrize(("error_ms", "first"), [(0.9, "NSX102"), (1.1, "NSX126")])
def test_round_trips_lead_where_a_graph_saves_no_more_for_sure(error_ms: float, first: str) -> None:
    trips = finding("NSX126", 4, bound=True)
    assert led(StepLimit.LAUNCH, finding("NSX102", 5, bound=True, error_ms=error_ms), trips) == first


@pytest.mark.parametrize(("change", "first"), [("fused", "NSX129"), ("compile,fused", "NSX112")])
def test_a_change_for_what_was_recorded_goes_before_a_compiler(change: str, first: str) -> None:
    """At best it saves a little more than is likely of compiling the whole; what compiles a part is a part of that."""
    part = replace(saves(finding("NSX129", 5, bound=True), source="replay"), remedies=(Alternative(change, change),))
    assert led(StepLimit.GPU, finding("NSX112", 4.5), part) == first


@pytest.mark.parametrize(
    ("ms", "bound", "first"), [(5.1, False, "NSX137"), (4.9, False, "NSX131"), (5.1, True, "NSX131")]
)
def test_a_named_change_of_known_size_goes_before_what_a_compiler_makes_of_lines(
    ms: float, bound: bool, first: str
) -> None:
    lines = replace(finding("NSX131", 10, bound=True), remedies=(Alternative("compile-function", "fuse"),))
    named = replace(finding("NSX137", ms, bound=bound), remedies=(Alternative("own-rows", "own rows"),))
    assert led(StepLimit.GPU, lines, named) == first


def sequence(*findings: Finding, step_ms: float = 20) -> tuple[list[str], float | None]:
    """Return the codes of what is to be done, in order, and the step after that (ms)."""
    summary: Summary = factory.summary()
    verdict = replace(
        summary.verdict, code=StepLimit.LAUNCH.value, step_ns=round(step_ms * MS), parts={}, late_rank=None
    )
    summary = replace(summary, verdict=verdict, findings=findings, quality=(), replay={"trusted": True})
    first = first_action.first(summary)
    then = change_savings.after(summary, first).ns
    return [a.code for a in first_action.to_do(summary, first)], None if then is None else then / MS


@pytest.mark.parametrize(
    ("ms", "change", "whole_ms", "first"),
    [
        (2.6, "autocast-once", 12, "NSX137"),  # behind a bound for the whole: a loop's line is the exact one
        (2.6, "autocast-once", 5, "NSX137"),
        (2.4, "autocast-once", 12, "NSX123"),  # less than half as much
        (2.6, "compile", 12, "NSX123"),  # for whatever stands there, too
    ],
)
def test_a_named_change_goes_before_some_other_operation_in_place_of_a_loop(
    ms: float, change: str, whole_ms: float, first: str
) -> None:
    whole = replace(
        saves(finding("NSX102", whole_ms, bound=True), source="replay"), remedies=(Alternative("compile", ""),)
    )
    loop = replace(finding("NSX123", 5), remedies=(Alternative("batched-operation", ""),))
    named = replace(finding("NSX137", ms), remedies=(Alternative(change, ""),))
    assert led(StepLimit.GPU, whole, loop, named) == first


def test_an_exact_line_that_is_part_of_a_bound_comes_before_it() -> None:
    """The optimizer's launches are among those that a graph would take: the worth is that of the graph."""
    graph, optimizer = finding("NSX102", 15, bound=True), finding("NSX113", 2)
    assert sequence(graph, optimizer) == (["NSX113", "NSX102"], 5)
    assert sequence(graph, saves(optimizer, bound=True)) == (["NSX102"], 5)
    assert sequence(graph, replace(optimizer, paste="")) == (["NSX102"], 5)


@pytest.mark.parametrize(("ms", "error_ms", "told"), [(0.3, 0.2, True), (0.3, 0.4, False), (0.19, 0, False)])
def test_waits_come_before_a_graph_and_add_to_it(ms: float, error_ms: float, told: bool) -> None:
    """They would end it: from a hundredth of the step on, where that is not perhaps nothing."""
    graph, wait = finding("NSX102", 15, bound=True), finding("NSX101", ms, error_ms=error_ms, paste="")
    codes, then = sequence(graph, wait)
    assert (codes == ["NSX101", "NSX102"]) == told
    assert then == pytest.approx(5 - ms * told)


def test_at_best_has_the_error_of_the_replay_in_it() -> None:
    graph = saves(finding("NSX102", 15, bound=True, error_ms=1), most_ns=16 * MS)
    assert sequence(graph) == (["NSX102"], 4)


@pytest.mark.parametrize(("ms", "first"), [(0.9, ""), (1.1, "NSX101")])
def test_less_than_a_twentieth_of_the_step_is_no_advice(ms: float, first: str) -> None:
    assert led(StepLimit.SYNC, finding("NSX101", ms)) == first


@pytest.mark.parametrize(("ms", "error_ms", "first"), [(0.9, 0.1, ""), (1.1, 0.9, "NSX123")])
def test_a_small_saving_is_no_advice(ms: float, error_ms: float, first: str) -> None:
    """From 5 % of the step on it is, where nothing may be left at the lower end of what is likely, too."""
    replayed = saves(finding("NSX123", ms, error_ms=error_ms), source="replay")
    assert led(StepLimit.LAUNCH, replayed) == first
    assert led(StepLimit.LAUNCH, replayed, finding("NSX106", 0.5)) == first


@pytest.mark.parametrize(
    ("change", "error_ms", "first"),
    [("compile-function", 1.2, ""), ("compile-function", 0.1, "NSX131"), ("classes-as-numbers", 1.2, "NSX131")],
)
def test_what_a_compiler_makes_of_a_line_leads_where_it_saves_5_percent_for_sure(
    change: str, error_ms: float, first: str
) -> None:
    replayed = saves(finding("NSX131", 2, error_ms=error_ms), source="replay")
    assert led(StepLimit.GPU, with_remedy(replayed, change)) == first


def of_20_ms(chosen: Finding) -> Summary:
    """Return a Summary of a step of 20 ms with one finding."""
    summary: Summary = factory.summary()
    verdict = replace(summary.verdict, code=StepLimit.LAUNCH.value, step_ns=20 * MS, parts={}, late_rank=None)
    return replace(summary, verdict=verdict, findings=(chosen,), quality=(), replay={"trusted": True})


def after(chosen: Finding) -> change_savings.After:
    """Return the step after a change, of one of 20 ms."""
    return change_savings.after(of_20_ms(chosen), chosen)


def replayed(chosen: Finding) -> int | None:
    """Return the step that the replay alone gives after a change, of one of 20 ms."""
    return change_savings.replayed_ns(of_20_ms(chosen), chosen, after(chosen))


def with_remedy(given: Finding, name: str) -> Finding:
    return replace(given, remedies=(Alternative(name, "", "", ""),))


def test_the_whole_program_goes_before_a_part_of_it() -> None:
    """The same change of all holds that of a part, however much that may save at best; a change for the part itself does not."""
    part, whole = finding("NSX113", 9, bound=True), finding("NSX102", 3.1, bound=True)
    assert led(StepLimit.LAUNCH, part, whole) == "NSX102"
    assert led(StepLimit.LAUNCH, with_remedy(part, "compile"), whole) == "NSX102"
    assert led(StepLimit.LAUNCH, with_remedy(part, "groups-merged"), whole) == "NSX113"


@pytest.mark.parametrize(("ms", "first"), [(3.1, "NSX117"), (2.9, "NSX112")])
def test_a_cause_goes_before_a_compiler_that_leaves_it_there(ms: float, first: str) -> None:
    """From a third of what that saves on, and 15 % of the step; another change for whatever stands there does not."""
    compiled = with_remedy(finding("NSX112", 9), "compile")
    assert led(StepLimit.GPU, compiled, with_remedy(finding("NSX117", ms), "channels-last")) == first
    assert led(StepLimit.GPU, compiled, with_remedy(finding("NSX122", ms), "larger-batches")) == "NSX112"


def test_what_only_says_where_to_look_leads_alone() -> None:
    """Of a line that runs the network; where the line was not recorded, it may be a cause of its own."""
    unexplained = replace(finding("NSX114", 9), unexplained=True, where={"line": 5})
    whole = finding("NSX102", 1, bound=True)
    assert led(StepLimit.LAUNCH, unexplained, whole) == "NSX102"
    assert led(StepLimit.LAUNCH, unexplained) == "NSX114"
    assert led(StepLimit.LAUNCH, replace(unexplained, where={}), whole) == "NSX114"


def test_what_a_bound_promises_beyond_the_replay_is_told_apart() -> None:
    """20 ms: 15 go by the replay, and perhaps 18, with its error and what a compiler may fuse."""
    bound = saves(finding("NSX102", 15, bound=True), most_ns=18 * MS)
    assert replayed(bound) == 5 * MS
    assert replayed(saves(bound, bound=False)) is None
    assert replayed(saves(bound, most_ns=None)) is None
    assert replayed(saves(bound, most_ns=round(15.4 * MS))) is None
    assert replayed(saves(bound, most_ns=round(15.5 * MS))) == 5 * MS


def test_what_has_to_be_mended_first_is_replayed_with_the_change() -> None:
    """4 of 20 ms go as it is, 15 are likely without the wait inside, and 18 go at best."""
    wait = Condition("nothing waits", "violated", "64 waits", "Take it out")
    chosen = replace(
        saves(finding("NSX102", 4, bound=True), mended=Saving(15 * MS, most_ns=18 * MS)), conditions=(wait,)
    )
    then = after(chosen)
    assert (then.ns, then.best_ns) == (5 * MS, 2 * MS) and not change_savings.is_bound(factory.summary(), chosen)
    assert replayed(chosen) is None
    assert change_savings.is_bound(factory.summary(), saves(chosen, mended=Saving(15 * MS)))


def test_what_was_timed_may_save_as_much_as_was_tried_and_never_more_than_the_most() -> None:
    """10 of 20 ms, twice as fast: 1.4 to 2.8 times; where 12 idle up to 12 and a little, for what is left takes less in another run."""
    timed = saves(finding("NSX105", 10), source="time", error_ns=2 * MS)
    then = after(timed)
    least, most = round(20 * MS * 0.5**1.5), round(20 * MS * 0.5**0.6)
    assert (then.low_ns, then.ns, then.high_ns) == (least, 10 * MS, most)
    unsure = after(saves(timed, error_ns=4 * MS))  # an error that is larger than what was tried
    assert (unsure.low_ns, unsure.high_ns) == (6 * MS, 14 * MS)
    capped = after(saves(timed, most_ns=12 * MS))
    assert capped.low_ns is not None and 7.5 * MS < capped.low_ns <= 8 * MS and capped.high_ns == most


def test_a_change_and_those_before_it_save_no_more_than_the_step() -> None:
    summary: Summary = factory.summary()
    chosen = next(f for f in summary.findings or () if f.verdict == "found")
    assert summary.step.shown_ns is not None
    assert change_savings._with_lines_before(summary, chosen, 100 * summary.step.shown_ns) == summary.step.shown_ns
    assert change_savings._with_lines_before(summary, chosen, 1) >= 1


def test_the_error_of_the_replay_widens_what_a_change_may_save() -> None:
    """4 of 20 ms by the replay, off by 1 ms: the factor to the power of 0.6 and of 1.5, and the error on both sides."""
    least, most = 20 * 0.8**1.5, 20 * 0.8**0.6
    for error_ms, low_ms, high_ms in ((0, least, most), (1, least - 1, most + 1)):
        then = after(saves(finding("NSX105", 4, error_ms=error_ms), source="replay"))
        assert (then.low_ns, then.high_ns) == (round(low_ms * MS), round(high_ms * MS))


def test_what_measuring_makes_by_itself_is_told_of_other_programs_alone() -> None:
    first, launches, wait, copy = (finding(code, 3) for code in ("NSX104", "NSX102", "NSX101", "NSX105"))
    plain = replace(of_20_ms(first), findings=(first, launches, wait, copy))
    assert {a.code for a in others.also(plain, first, first_action.to_do(plain, first))} == {
        "NSX102",
        "NSX101",
        "NSX105",
    }
    measures = replace(plain, steps=replace(plain.steps, rule=measuring.WHY))
    assert {a.code for a in others.also(measures, first, first_action.to_do(measures, first))} == {"NSX105"}


def test_the_line_of_the_first_advice_is_not_listed_once_more() -> None:
    """What the line does to the GPU is what the advice is for; another line, or other time of the same line, is not."""
    place = {"file": "/job/train.py", "line": 31}
    first, line, copy = finding("NSX104", 3), finding("NSX123", 3), finding("NSX105", 3)

    def listed(where: dict[str, Any], overlaps: tuple[int, ...] = (0,)) -> set[str]:
        every = (
            replace(first, where=place),
            replace(line, where=where, overlaps=overlaps),
            replace(copy, where=place, overlaps=(0,)),
        )
        summary = replace(of_20_ms(every[0]), findings=every)
        return {a.code for a in others.also(summary, every[0], first_action.to_do(summary, every[0]))}

    assert listed(place) == {"NSX105"}
    assert listed({**place, "line": 32}) == listed(place, ()) == listed({}) == {"NSX105", "NSX123"}


@pytest.mark.parametrize(
    ("theirs", "line", "listed"),
    [("shards-kept", 31, False), ("shards-kept", 32, True), ("compile", 31, True), ("", 31, True)],
)
def test_the_remedy_of_the_first_advice_at_its_line_is_no_other_finding(theirs: str, line: int, listed: bool) -> None:
    """Another line, another remedy, or none that is known, is worth a line of its own."""
    place = {"file": "/job/train.py", "line": 31}
    first = replace(finding("NSX123", 3), where=place, remedies=(Alternative("shards-kept", ""),))
    ways = (Alternative(theirs, ""),) if theirs else ()
    other = replace(finding("NSX110", 3), where={**place, "line": line}, remedies=ways, overlaps=(0,))
    summary = replace(of_20_ms(first), findings=(first, other))
    assert [a.code for a in others.also(summary, first, first_action.to_do(summary, first))] == ["NSX110"] * listed


def test_what_is_mended_first_saves_what_is_likely_where_nothing_more_is_known() -> None:
    """At best as much as is known at best, else as much as is likely."""
    wait = Condition("nothing waits", "violated", "64 waits", "Take it out")
    for most_ns, expected in ((18 * MS, 18 * MS), (None, 15 * MS)):
        mended = Saving(15 * MS, most_ns=most_ns)
        chosen = replace(saves(finding("NSX102", 4, bound=True), mended=mended), conditions=(wait,))
        assert change_savings.saving_ns(of_20_ms(chosen), chosen) == expected


def test_without_a_step_or_a_saving_there_is_no_step_afterwards() -> None:
    """Each of the three is needed: a change, a step, and what the one saves of the other."""
    chosen = finding("NSX106", 4)
    whole = of_20_ms(chosen)
    stepless = replace(
        whole,
        unprofiled=None,
        verdict=replace(whole.verdict, step_ns=None),
        steps=replace(whole.steps, source="capture"),
    )
    assert change_savings.after(whole, chosen).ns == 16 * MS
    assert change_savings.after(whole, None) == change_savings.After()
    assert change_savings.after(whole, replace(chosen, saving=Saving(None, "no replay"))) == change_savings.After()
    assert stepless.step.shown_ns is None
    assert change_savings.after(stepless, chosen) == change_savings.After()


@pytest.mark.parametrize(
    ("exact_ms", "overlaps", "remedy", "first"),
    [
        (3.1, (1,), "sharded-blocks", "NSX110"),
        (2.9, (1,), "sharded-blocks", "NSX127"),  # less than half
        (3.1, (), "sharded-blocks", "NSX127"),  # of other messages
        (3.1, (1,), "bf16-reductions", "NSX127"),  # the other one rounds, too
    ],
)
def test_what_leaves_the_numbers_goes_before_what_rounds_the_same_messages(
    exact_ms: float, overlaps: tuple[int, ...], remedy: str, first: str
) -> None:
    rounds = replace(finding("NSX127", 6), remedies=(Alternative("bf16-reductions", ""),), overlaps=overlaps)
    exact = replace(finding("NSX110", exact_ms), remedies=(Alternative(remedy, ""),))
    assert led(StepLimit.COMM, rounds, exact) == first
