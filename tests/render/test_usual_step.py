"""Where steps differ, every first screen says so beside their mean; where they are little of the run, it says what the rest is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nsysx import ids
from nsysx.model import Summary
from nsysx.pipeline import summarize
from nsysx.render import answer_text, answer_words, facts, first_screen, terminal_answer
from tests.builder import Report
from tests.render import factory


def level(ms: float, count: int, every: int | None) -> dict[str, int | None]:
    ns = round(ms * 1e6)
    return {"median_ns": ns, "count": count, "every": every, "mean_ns": ns, "low_ns": ns, "high_ns": ns}


def with_levels(*levels: dict[str, int | None]) -> Summary:
    summary = factory.summary()
    return replace(summary, steps=replace(summary.steps, levels=levels))


@pytest.mark.parametrize(
    ("levels", "told"),
    [((level(5.5, 18, None), level(304, 2, 10)), True), ((level(5.5, 18, None), level(8.0, 1, None)), False)],
)
def test_a_mean_of_steps_that_differ_is_called_one_everywhere(
    levels: tuple[dict[str, int | None], ...], told: bool
) -> None:
    """A mean within 5 % of the usual step is the step, whatever one step takes."""
    summary = with_levels(*levels)
    said = answer_words.build(summary)
    assert any("a step on average" in fact for fact in said.facts) == told
    assert ("on average" in answer_text.change(said)) == told
    assert ("a step on average" in " ".join(text for text, _ in terminal_answer.lines(summary, 100))) == told
    assert first_screen.build(summary).answer.on_average == told


@pytest.mark.parametrize(("elsewhere_ns", "told"), [(98, False), (99, True)])
def test_what_a_loop_does_beside_its_steady_steps_is_named(elsewhere_ns: int, told: bool) -> None:
    """From a tenth of the loop on; start-up and exit, which are most of a short run, are no part of it."""
    summary = factory.summary()
    rest = [
        {"what": "evaluation between steps", "ns": elsewhere_ns},
        {"what": "steps with a one-time cost", "ns": 8000},
        {"what": "warm-up steps", "ns": 4000},
        {"what": "before the first step", "ns": 9000},
    ]
    covered = {"wall_ns": 14000, "steady_ns": 990 - elsewhere_ns, "rest": rest}
    cold = {**summary.steps.rows[0], "warmup": True, "cpu_ns": 8000}  # it paid the one-time cost
    summary = replace(summary, steps=replace(summary.steps, coverage=covered, rows=(cold, *summary.steps.rows[1:])))
    said = [fact for fact in answer_words.build(summary).facts if fact.startswith("steady steps cover")]
    assert said == (["steady steps cover 90 % of the loop (evaluation between steps 10 %)"] if told else [])


@pytest.mark.parametrize(
    ("source", "rule", "networks", "told"),
    [
        ("nsysx", "optimizer/forward", {"Net": 10}, None),  # what everybody calls a step
        ("nsysx", "user", {"Net": 10}, None),
        ("nsysx", "forward/forward", {"Decoder": 10}, "a step is one forward pass of Decoder"),
        ("nsysx", "forward/fetch", {"Decoder": 42}, "a step is 4 forward passes of Decoder"),
        ("nsysx", "forward/forward", {"Encoder": 10, "Decoder": 20}, "a step is a round of forward passes"),
        (
            "nsysx",
            "forward/forward",
            {},
            "steps by calls that repeat (the program's own may hold several, or be a part of one)",
        ),
        ("nsysx", "backward/forward", {"Net": 20}, "a step is one backward pass"),
        ("nsysx", "loop/round", {}, "a step is a round of the main loop in solve.py:24"),
        (
            "kernels",
            "forward/forward",
            {"Net": 10},
            "steps by kernels that repeat (the program's own may hold several, or be a part of one)",
        ),
        ("user", "forward/forward", {"Net": 10}, None),
    ],
)
def test_a_step_that_no_optimizer_ends_says_what_it_is(
    source: str, rule: str, networks: dict[str, int], told: str | None
) -> None:
    """A program's own tick may hold several of them: a reader must not take one for the other. Ten steps are shown."""
    summary = factory.summary()
    table = summary.tables["modules"]
    rows = [
        {**dict.fromkeys(c.name for c in table.columns), "cls": n, "depth": 0, "calls": k} for n, k in networks.items()
    ]
    inner = {**dict.fromkeys(c.name for c in table.columns), "cls": "Linear", "depth": 1, "calls": 90}
    probe = (
        {"pid": ids.pid_of(1), "steps": {"rule": rule, "count": 12, "loop": ["/home/a/solve.py", 24]}},
        {"pid": 4243, "steps": {"rule": "user", "count": 3}},
    )
    summary = replace(
        summary,
        steps=replace(summary.steps, source=source),
        capture=replace(summary.capture, probe=probe),
        tables={**summary.tables, "modules": replace(table, rows=(*rows, inner))},
    )
    said = [fact for fact in answer_words.build(summary).facts if fact.startswith(("a step is", "steps by"))]
    assert said == ([told] if told else [])


@pytest.mark.parametrize(("long_ms", "told"), [((200,), True), ((), False)])
def test_a_step_far_longer_than_the_others_is_told_beside_the_mean_that_holds_it(
    long_ms: tuple[int, ...], told: bool
) -> None:
    summary = factory.summary()
    assert summary.unprofiled is not None and summary.steps.scope is not None
    lengths = [*[60_000_000] * (50 - len(long_ms)), *(ms * 1_000_000 for ms in long_ms)]
    record = {
        "pid": ids.pid_of(summary.steps.scope.processes[0]),
        "rank": 0,  # it may have waited for another one
        "unrecorded_steps": {"lengths_ns": lengths, "detached": True},
    }
    real = replace(summary.unprofiled, source="in_process", measured_steps=50)
    summary = replace(summary, unprofiled=real, capture=replace(summary.capture, probe=(record,)))
    said = [fact for fact in answer_words.build(summary).facts if "unprofiled steps took" in fact]
    assert said == (["1 of 50 unprofiled steps took 200.0 ms; 60.00 ms a step without it"] if told else [])


def test_steps_that_are_not_steady_are_only_counted() -> None:
    """The first, the last and those that carry marks say nothing of the program."""
    summary = factory.summary()
    covered = {"wall_ns": 1000, "steady_ns": 880, "rest": [{"what": "other steps", "ns": 120}]}
    said = answer_words.build(replace(summary, steps=replace(summary.steps, coverage=covered))).facts
    assert not any("of the loop" in fact for fact in said)


def test_one_time_costs_among_steady_steps_are_named() -> None:
    summary = factory.summary()
    covered = {"wall_ns": 1000, "steady_ns": 750, "rest": [{"what": "steps with a one-time cost", "ns": 250}]}
    rows = tuple({**row, "warmup": False} for row in summary.steps.rows)
    summary = replace(summary, steps=replace(summary.steps, coverage=covered, rows=rows))
    said = "steady steps cover 75 % of the loop (steps with a one-time cost 25 %)"
    assert said in answer_words.build(summary).facts


def test_figures_of_some_of_the_steady_steps_say_so(tmp_path: Path) -> None:
    """An evaluation every five steps; those of the third stretch take half as long again."""
    report, t = Report(), 0
    main = report.process(1).thread(1, "python")
    for i in range(25):
        if i and i % 5 == 0:
            main.add_range("evaluation", t, t + 4_900_000, domain="nsysx")
            main.launch(t + 20_000, 5_000, kernel="policy", gpu_start=t + 30_000, gpu_dur=4_000_000)
            t += 5_000_000
        ns = 1_000_000 * (3 if 10 <= i < 14 else 2)
        main.launch(t + 20_000, 5_000, kernel="gemm", gpu_start=t + 30_000, gpu_dur=ns - 100_000)
        main.add_range(f"step {i}", t, t + ns - 50_000, domain="nsysx")
        t += ns
    summary = summarize([report.write(tmp_path / "r.sqlite")])
    assert summary.steps.all_steady == {
        "steps": 20,
        "mean_ns": 2_200_000,
        "median_ns": 2_000_000,
        "low_ns": 2_000_000,
        "high_ns": 3_000_000,
    }
    told = next(fact for fact in answer_words.build(summary).facts if "steady of" in fact)
    assert told.startswith("20 steady of 25 steps, 2.00 ms to 3.00 ms")
    assert "(the figures are of 4 in a row; all take 2.20 ms on average" in told
    assert "20 in all" in facts.steps_line(summary)
