"""The verdict from pairs of runs: pure numbers."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsysx.advice import UNDECIDED, Action, Also, Alternative
from nsysx.cli.try_ import words_of
from nsysx.inject.nsysx_probe import changes
from nsysx.model import Finding
from nsysx.reading import tried
from nsysx.trying import chosen_changes, verdicts
from nsysx.trying.failure import of_log
from nsysx.trying.result import ChangeTrial, TryResult
from nsysx.trying.session import Session
from nsysx.trying.trial_run import TrialRun
from nsysx.trying.trial_sentences import text
from nsysx.trying.trial_steps import pairs_of, step_of
from nsysx.trying.try_options import TryOptions


def test_an_unchanged_program_is_rarely_called_faster_or_slower_by_chance() -> None:
    """Runs differ by 5 %, as those of a launch-bound program; up to six pairs are looked at, one after another."""
    source, wrong, trials = random.Random(1), 0, 400
    for _ in range(trials):
        pairs: list[tuple[float, float]] = []
        for n in range(6):
            pairs.append((source.gauss(100, 5), source.gauss(100, 5)))
            if n >= 2 and verdicts.gain(pairs, [a for a, _ in pairs]).verdict in ("faster", "slower"):
                wrong += 1
                break
    assert wrong <= trials / 20


def test_a_clear_gain_is_seen_in_three_pairs_and_its_interval_holds_it() -> None:
    gain = verdicts.gain([(100.0, 70.2), (101.0, 70.9), (99.5, 69.4)], [100.0, 101.0, 99.5])
    assert gain.verdict == "faster" and gain.low < 0.70 < gain.high < 0.8
    slower = verdicts.gain([(70.2, 100.0), (70.9, 101.0), (69.4, 99.5)], [70.2, 70.9, 69.4])
    assert slower.verdict == "slower" and slower.ratio == pytest.approx(1 / gain.ratio, rel=1e-2)


def test_three_pairs_that_agree_by_chance_are_not_believed() -> None:
    pairs = [(100.0, 98.0), (100.0, 98.0), (100.0, 98.01)]
    assert verdicts.gain(pairs, [100.0] * 4).verdict == "faster"
    assert verdicts.gain(pairs, [100.0, 112.0, 95.0, 108.0]).verdict == "cannot_tell"


def test_what_unchanged_runs_scatter_counts_unless_changed_ones_scatter_more() -> None:
    """Three pairs alone are worth 2 degrees of freedom: an interval 7 errors wide on each side."""
    unchanged = [100.0, 104.0, 99.0, 102.0]
    alike = verdicts.gain([(100.0, 84.0), (104.0, 80.0), (99.0, 82.0)], unchanged)
    assert alike.verdict == "faster" and alike.high / alike.ratio < 1.2
    wild = verdicts.gain([(100.0, 90.0), (104.0, 60.0), (99.0, 75.0)], unchanged)
    assert wild.verdict == "cannot_tell"


def test_a_drift_is_no_scatter() -> None:
    assert verdicts.scatter([100 * 1.01**n for n in range(10)]) < 0.01
    assert verdicts.scatter([100, 110] * 5) > 0.05


def test_the_step_leaves_the_warm_up_out() -> None:
    steps = {str(n): 1000 if n < 10 else 10 for n in range(60)}
    assert step_of({"warm": 10, "steps": 60, "steps_ns": steps}) == 10
    assert step_of({"warm": 10, "steps": 60, "steps_ns": steps | {str(n): 99 for n in range(60, 200)}}) == 10, "blocks"


@pytest.mark.parametrize(
    ("text", "status", "reason", "where"),
    [
        (
            'Traceback (most recent call last):\n  File "/u/train.py", line 7, in <module>\n    main()\n'
            '  File "/v/lib/python3.12/site-packages/torch/nn.py", line 3, in f\n    x\n'
            "torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\n",
            1, "torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB", "/u/train.py:7",
        ),
        (
            'Traceback (most recent call last):\n  File "/u/train.py", line 9, in <module>\n    main()\n'
            '  File "/tmp/torchinductor_me/3g/x.py", line 177, in call\n    x\n'
            f'  File "/cache/3g/c{"g3" * 25}l.py", line 3, in call\n    x\n'
            "RuntimeError: Error: accessing tensor output of CUDAGraphs that has been overwritten\n",
            1, "RuntimeError: Error: accessing tensor output of CUDAGraphs that has been overwritten", "/u/train.py:9",
        ),
        ("loading\n", -9, "signal 9 ended it, as the system does where memory runs out; its last line: loading", ""),
        ("", 3, "it ended with exit code 3", ""),
    ],
)  # fmt: skip
def test_the_reason_is_the_last_line_and_the_place_is_the_programs(
    text: str, status: int, reason: str, where: str
) -> None:
    assert of_log(text, status) == (reason, where)


def test_every_file_of_changes_is_known_and_every_change_is_complete() -> None:
    folder = Path(changes.__file__).parent
    assert set(changes.FILES) == {file.stem for file in folder.glob("[a-z]*.py")}
    known = changes.changes_by_name({})
    for name, change in known.items():
        assert change.does and (change.paste or name == "nothing" or change.alters == "computation"), name
        assert change.alters == "speed" or change.beware or change.alters == "memory", name
        assert name.replace("-", "").isalnum()


def test_advice_comes_in_the_order_of_the_findings() -> None:
    known = changes.changes_by_name({})
    names = [c.name for (c,) in chosen_changes.advised(["NSX104", "NSX116"], known)]
    assert names[:2] == ["no-empty-cache", "expandable-segments"] and "tf32" in names
    assert chosen_changes.advised(["NSX190"], known) == []
    assert "nothing" not in [c.name for (c,) in chosen_changes.every(known)]


def scripted(
    step_ns: Callable[[list[str]], float], names: Sequence[str] = ("nothing",), **options: Any
) -> tuple[Session, list[str]]:
    """Return a session whose runs have the step that ``step_ns`` gives for their changes, and the list of what it will have run."""
    known, order = changes.changes_by_name({}), []
    session = Session(["x"], [(known[name],) for name in names], TryOptions(budget="1m", **options))

    def run(made: Any, plan: Any, _limits: Any) -> TrialRun:
        order.append("B" if made else "A")
        step = step_ns([c.name for c in made])
        seen = {c.name: {"took": 1, "where": "", "why_not": "", "note": ""} for c in made}
        content = {
            "warm": plan.warm, "steps": 60, "steps_ns": {str(n): step for n in range(60)}, "cuda": False, "optimizers": [],
            "warm_up_ns": 0, "clock": "cpu", "changes": seen, "peak_memory_bytes": None,
        }  # fmt: skip
        return TrialRun("measured", content, [content], "", "", 0.0, 0.0, False)

    session.runner.run = run  # type: ignore[method-assign]
    return session, order


def test_pairs_are_run_in_turn_so_that_a_drift_favors_no_side() -> None:
    session, order = scripted(lambda _made: 1e6)
    result = session.measure()
    assert "".join(order) == "AB" + "BA" + "AB", "the first run is the first pair's"
    assert result.trials[0].verdict == "same" and result.baseline.runs == 3
    session, order = scripted(lambda _made: 1e6, ("nothing", "gc-freeze"))
    session.measure()
    assert "".join(order) == "ABBAAB" + "BA" + "AB" + "BA", "no unchanged run is there: the change is first"


def with_blocks(session: Session, ratio: Callable[[list[str]], float], count: int = 30) -> None:
    """Let changed runs of a session have ``count`` pairs of blocks, each with a step a bit different, and those of a start."""
    run = session.runner.run
    source = random.Random(2)

    def blocks(made: Any, plan: Any, limits: Any) -> TrialRun:
        done = run(made, plan, limits)
        if made:
            begins, steps, ran = 60, done.record["steps_ns"], []
            for block in range(2 * count):
                on = block % 4 in (1, 2)
                ran.append((on, begins + 1, begins + 3))
                slower = source.gauss(1, 0.01) * (50 if block == 7 else 1)
                steps |= {
                    str(begins + n): 1e6 * slower * (ratio([c.name for c in made]) if on else 1) for n in range(3)
                }
                begins += 3
            done.record["blocks"] = ran  # type: ignore[index]
        return done

    session.runner.run = blocks  # type: ignore[method-assign]


def test_a_change_that_is_turned_off_and_on_in_its_run_costs_one_start() -> None:
    session, order = scripted(lambda _made: 1e6 * len(order), ("compile", "compile-dynamic", "nothing"))
    with_blocks(session, lambda made: 0.5 if made == ["compile"] else 1.2 if made == ["compile-dynamic"] else 1.0)
    result = session.measure()
    assert "".join(order)[:4] == "ABBB", "starts differ by whole numbers, and nobody looks at that"
    assert order.count("A") == 1
    trials = {t.change: t for t in result.trials}
    one = trials["compile"]
    assert (one.verdict, one.within_a_run, one.pairs) == ("faster", True, 30)
    assert 0.49 < one.ratio_low < one.ratio < one.ratio_high < 0.51  # type: ignore[operator]
    assert trials["compile-dynamic"].verdict == "slower" and trials["compile-dynamic"].pairs == 30
    assert trials["nothing"].verdict in ("same", "cannot_tell")
    assert "pairs of runs" not in text(result)


def test_blocks_that_are_too_few_leave_a_change_to_pairs_of_runs() -> None:
    session, order = scripted(lambda _made: 1e6)
    with_blocks(session, lambda _made: 0.1, count=7)
    result = session.measure()
    assert "".join(order) == "AB" + "BA" + "AB" and not result.trials[0].within_a_run
    assert result.trials[0].verdict == "same"


def test_a_later_run_that_ends_before_its_blocks_is_no_failure_of_the_session() -> None:
    """A program that came to its end, or a compilation that took the time: what the first run told is kept."""
    session, order = scripted(lambda _made: 1e6)
    with_blocks(session, lambda made: 0.98)
    run = session.runner.run

    def ends(made: Any, plan: Any, limits: Any) -> TrialRun:
        done = run(made, plan, limits)
        if order.count("B") > 1:
            done.record["blocks"] = []  # type: ignore[index]
        return done

    session.runner.run = ends  # type: ignore[method-assign]
    session.tried[0].trial.verdict = "cannot_tell"
    session._scout()
    session._pair(session.tried[0])
    session._pair(session.tried[0])
    session._judge(session.tried[0])
    trial = session.result.trials[0]
    assert order == ["A", "B", "B"] and trial.pairs == 30 and trial.within_a_run
    assert (
        session.result.baseline.runs == 2
    )  # the unchanged run, and the blocks without the change of the first changed one


def test_the_interval_of_blocks_holds_the_truth_and_what_disturbs_few_of_them_does_not_widen_it() -> None:
    source, missed, widths = random.Random(3), 0, []
    for _ in range(400):
        pairs = []
        for _ in range(30):
            now = source.gauss(100, 10)  # the host drifts
            stolen = 1 + 9 * (source.random() < 0.05)
            pairs.append((now * source.gauss(1, 0.02) * stolen, now * 0.9 * source.gauss(1, 0.02)))
        gain = verdicts.gain_of_blocks(pairs)
        missed += not gain.low <= 0.9 <= gain.high
        widths.append(gain.high - gain.low)
    assert missed <= 400 * 0.04, "at 98 %"
    assert sorted(widths)[200] < 0.04
    assert verdicts.gain_of_blocks([(1.0, 0.5)] * 6).verdict == "cannot_tell", "six are not enough for 98 %"
    assert verdicts.gain_of_blocks([(1.0, 0.5)] * 7).verdict == "faster"
    assert verdicts.gain_of_blocks([(1.0, 1.004)] * 8).verdict == "same"


@pytest.mark.parametrize(
    ("ends", "verdict"), [((0.978, 1.019), "same"), ((0.96, 1.019), "cannot_tell"), ((1.015, 1.02), "slower")]
)
def test_what_changes_by_less_than_3_percent_either_way_is_the_same(ends: tuple[float, float], verdict: str) -> None:
    """0.5 % less, -1.9 to 2.2 %: more pairs would tell no more that matters."""
    pairs = [(1.0, end) for end in ends] * 4
    assert verdicts.gain_of_blocks(pairs).verdict == verdict


def remedied(*names: str, **more: Any) -> Finding:
    return Finding("NSX102", "", "found", "", "", remedies=tuple(Alternative(name, "", **more) for name in names))


def test_a_report_is_tried_by_its_first_three_remedies() -> None:
    """Those of the last action, which is what the page promises, then those of what else was found, each once."""
    known = changes.changes_by_name({})
    findings = (
        remedied("fused"),
        remedied("fused,compile", "own-kernel", "tf32"),
        remedied("tf32", "compile", "foreach"),
    )
    action = [Action("", "NSX113", 0), Action("", "NSX102", 1)]
    answer = replace(UNDECIDED, do=tuple(action), also=(Also("NSX112", 2, "", None, False),))
    assert [[c.name for c in tried] for tried in chosen_changes.remedies(answer, findings, known)] == [
        ["fused", "compile"],
        ["tf32"],
        ["fused"],
    ]
    refuted = (remedied("tf32", refuted=True),)
    assert chosen_changes.remedies(replace(UNDECIDED, do=(Action("", "NSX116", 0),)), refuted, known) == []


def test_changes_that_were_not_tried_are_one_line() -> None:
    trials = [ChangeTrial(name, "", reason="it was not tried: the budget was used up") for name in ("tf32", "compile")]
    said = text(TryResult(["python"], trials=[ChangeTrial("fused", "", verdict="fails", reason="x"), *trials]))
    assert said.count("not tried") == 1 and "not tried: tf32, compile" in said
    assert words_of(TryResult(["x"], trials=trials)).endswith("\nVerdict: cannot tell"), (
        "of no change, as none was tried"
    )
    many = [ChangeTrial(f"change{i}", "") for i in range(12)]
    assert "not tried: change0, " in text(TryResult(["x"], trials=many))
    assert text(TryResult(["x"], trials=many)).count("change") < 12 and "change7 and 4 more" in text(
        TryResult(["x"], trials=many)
    )


def test_blocks_of_a_record_are_paired_and_what_broke_off_is_left_out() -> None:
    steps = {str(n): 10.0 if n in (1, 2, 10, 11) else 5.0 for n in range(14)}
    ran = [[False, 1, 3], [True, 4, 6], [True, 7, 9], [False, 10, 12], [False, 13, 15]]
    assert pairs_of({"steps_ns": steps, "blocks": ran}) == [(10.0, 5.0)] * 2
    assert pairs_of({"steps_ns": steps, "blocks": ran[:3]}) == [(10.0, 5.0)]
    assert pairs_of({}) == []


def test_what_is_measured_is_kept_when_the_unchanged_program_fails_later() -> None:
    session, order = scripted(lambda _made: 1e6)
    run = session.runner.run

    def fails_late(made: Any, plan: Any, limits: Any) -> TrialRun:
        done = run(made, plan, limits)
        if len(order) > 4 and not made:
            done.outcome = "failed"
            done.reason = "OSError: address already in use"
        return done

    session.runner.run = fails_late  # type: ignore[method-assign]
    result = session.measure()
    assert "address already in use" in result.stopped and result.trials[0].pairs >= 1


@pytest.mark.parametrize(
    ("outcome", "more", "said"),
    [
        ("hangs", {"begun": 1, "waited_s": 61.2}, "it hangs: no step for 61 s after 1 step"),
        ("ended", {"reason": "it ended with exit code 0; its last line: one runs"}, "its last line: one runs"),
        ("ended", {"begun": 4}, "it ended after 4 steps"),
    ],
)  # fmt: skip
def test_a_second_start_that_fails_silently_is_not_the_changes_fault(
    outcome: Any, more: dict[str, Any], said: str
) -> None:
    session, order = scripted(lambda _made: 1e6)
    run = session.runner.run

    def once(made: Any, plan: Any, limits: Any) -> TrialRun:
        done = run(made, plan, limits)
        return done if len(order) == 1 else replace(done, outcome=outcome, record={}, records=[], **more)

    session.runner.run = once  # type: ignore[method-assign]
    result = session.measure()
    assert result.stopped.startswith("the program ran once, but not again: ") and said in result.stopped
    assert result.baseline.runs == 1 and result.trials[0].verdict == "cannot_tell" and not result.measured()


def test_a_change_that_hangs_fails_and_the_others_are_tried() -> None:
    session, _ = scripted(lambda _made: 1e6, ("compile", "nothing"))
    run = session.runner.run

    def hangs(made: Any, plan: Any, limits: Any) -> TrialRun:
        done = run(made, plan, limits)
        compiled = any(c.name == "compile" for c in made)
        return replace(done, outcome="hangs", record={}, records=[], begun=12, waited_s=70.0) if compiled else done

    session.runner.run = hangs  # type: ignore[method-assign]
    trials = {t.change: t for t in session.measure().trials}
    assert (
        trials["compile"].verdict == "fails" and trials["compile"].reason == "it hangs: no step for 70 s after 12 steps"
    )
    assert trials["nothing"].verdict == "same"


def test_what_alters_results_more_than_rounding_says_so_where_it_is_advised() -> None:
    """What it does to other programs, such as rounding, would be too little to say."""
    session, _ = scripted(lambda made: 5e5 if made else 1e6, ("compile",))
    run = session.runner.run

    def other(made: Any, plan: Any, limits: Any) -> TrialRun:
        done = run(made, plan, limits)
        points = [
            {"steps": steps, "norms": [10.0], "projections": [10.0 + steps * (2 if made else 1)] * 4}
            for steps in (0, 1, 5, 60)
        ]
        done.record["weights"] = {"points": points, "epsilon": 2**-23, "numbers": "float32"}  # type: ignore[index]
        return done

    session.runner.run = other  # type: ignore[method-assign]
    result = session.measure()
    trial = result.trials[0]
    assert trial.beyond_rounding and trial.difference.first_update == pytest.approx(0.5)
    assert [t.change for t in result.winners()] == ["compile"]
    assert "# compile; RESULTS DIFFER" in text(result) and "in the first step by 50 %" in text(result)
    (read,) = tried.of_json(result.to_json())
    assert "more than rounding" in read.beware


@pytest.mark.parametrize("lost_run", [2, 3])  # of the unchanged ones, of which the first only looks how long a step is
def test_a_change_is_not_blamed_for_losses_that_are_not_finite_without_it(lost_run: int) -> None:
    """One unchanged run has such a loss, and so has each changed run after it."""
    session, order = scripted(lambda _made: 1e6)
    run = session.runner.run

    def unsteady(made: Any, plan: Any, limits: Any) -> TrialRun:
        done = run(made, plan, limits)
        lost = order.count("A") >= lost_run if made else order.count("A") == lost_run
        done.record["losses"] = {"last": [math.nan if lost else 1.0]}  # type: ignore[index]
        return done

    session.runner.run = unsteady  # type: ignore[method-assign]
    result = session.measure()
    assert result.baseline.difference.loss == math.inf and result.trials[0].verdict == "same"


def test_all_that_won_is_tried_at_once_and_only_the_best_of_changes_that_exclude_each_other() -> None:
    factor = {"compile": 0.6, "compile-reduce-overhead": 0.5, "gc-freeze": 0.8, "fused": 1.0}
    session, _ = scripted(lambda made: 1e6 * math.prod(factor[name] for name in made), tuple(factor), together=True)
    session.cuda = True
    run = session.runner.run

    def with_optimizer(made: Any, plan: Any, limits: Any) -> TrialRun:
        done = run(made, plan, limits)
        done.record["optimizers"] = ["AdamW"]  # type: ignore[index]
        return done

    session.runner.run = with_optimizer  # type: ignore[method-assign]
    result = session.measure()
    assert [t.change for t in result.winners()] == ["compile-reduce-overhead", "compile", "gc-freeze"]
    assert result.together is not None and result.together.change == "compile-reduce-overhead,gc-freeze"
    assert result.together.verdict == "faster" and result.together.ratio == pytest.approx(0.4)
    assert [t.change for t in result.trials] == list(factor), "what is made together is told apart"
    told = text(result)
    assert "together: compile-reduce-overhead,gc-freeze: faster" in told and "Gains do not add up" not in told
    assert [t.change for t in tried.of_json(result.to_json())][-1] == "compile-reduce-overhead,gc-freeze"


def test_steps_that_differ_are_told() -> None:
    session, _ = scripted(lambda _made: 1e6)
    run = session.runner.run

    def uneven(made: Any, plan: Any, limits: Any) -> TrialRun:
        done = run(made, plan, limits)
        done.record["steps_ns"].update({str(n): 1e7 for n in range(0, 60, 4)})
        return done

    session.runner.run = uneven  # type: ignore[method-assign]
    result = session.measure()
    assert (result.baseline.fast_step_ns, result.baseline.slow_step_ns) == (1e6, 1e7)
    assert "its steps differ: a tenth take less than 1.00 ms, a tenth more than 10.00 ms" in text(result)
    assert result.trials[0].verdict in ("same", "cannot_tell")


def test_runs_that_do_not_decide_are_not_told_as_no_gain() -> None:
    """One pair of runs, 80 % less: nobody knows that, and nobody knows that the change does not help."""
    session, _ = scripted(lambda made: 2e5 if made else 1e6, ("compile",))
    result = session.measure()
    trial = result.trials[0]
    result.trials[0] = replace(trial, verdict="cannot_tell")
    assert "No change is known to make the step faster" in text(result)
    result.trials[0] = replace(trial, verdict="slower")
    assert "No change made the step faster." in text(result)
    result.trials[0] = replace(trial, verdict="cannot_tell", pairs=0)
    assert "No change could be measured." in text(result)


def test_a_bound_says_that_it_is_one_and_never_wins() -> None:
    session, _ = scripted(lambda made: 5e5 if made else 1e6, ("bound-data",))
    result = session.measure()
    assert result.trials[0].verdict == "faster" and result.trials[0].other_results and not result.winners()
    assert "a bound" in text(result) and "No change made the step faster." in text(result)
    known = changes.changes_by_name({})
    assert not any(c.alters == "computation" for (c,) in chosen_changes.every(known))
    last = [c.alters for (c,) in chosen_changes.every(known, bounds=True)]
    assert last == sorted(last, key=lambda alters: alters == "computation") and "computation" in last


def test_an_interruption_keeps_the_verdicts_that_were_reached() -> None:
    """The second change is interrupted: what is known of the first one stays, and the result says why it ended."""
    session, _ = scripted(lambda made: 5e5 if made else 1e6, ("compile", "nothing"))
    with_blocks(session, lambda _made: 0.5)
    run = session.runner.run

    def interrupted(made: Any, plan: Any, limits: Any) -> TrialRun:
        if [c.name for c in made] == ["nothing"]:
            raise KeyboardInterrupt
        return run(made, plan, limits)

    session.runner.run = interrupted  # type: ignore[method-assign]
    result = session.measure()
    assert result.interrupted and [t.change for t in result.winners()] == ["compile"]
    written = result.to_json()
    assert [t["verdict"] for t in written["trials"]] == ["faster", "cannot_tell"] and written["interrupted"]
    assert "compile: faster" in text(result) and "stopped early: interrupted" in text(result)
    assert "not tried: nothing" in text(result)


def on_a_clock(
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    step_s: float,
    start_s: float,
    *,
    turns: bool = True,
    factor: float = 0.8,
) -> list[float]:
    """Let the runs of a session take the time that their steps and a start take; return a list with the time of the clock (s).

    A change takes ``factor`` times the step, and can be turned off and on in a run (``turns``).
    """
    clock = [time.monotonic()]
    session.deadline = clock[0] + session.options.budget_s
    monkeypatch.setattr("nsysx.trying.session.time.monotonic", lambda: clock[0])
    source = random.Random(5)

    def run(made: Any, plan: Any, limits: Any) -> TrialRun:
        enough = max(5, min(30, round(3 * plan.seconds / step_s)), round(plan.seconds / step_s))
        measured = min(plan.steps, enough) if plan.seconds else plan.steps
        steps = plan.warm + measured
        turned_off = bool(made and turns and plan.turning_s)
        if turned_off:
            size = max(plan.block_steps, round(plan.turning_s / step_s))
            fits = clock[0] + start_s + step_s * (steps + 16 * size) < session.deadline
            plan = replace(plan, block_steps=size, pairs=plan.pairs if fits else 0)
        lengths = {
            str(n): step_s * 1e9 * source.gauss(1, 0.01) for n in range(steps + 2 * plan.pairs * plan.block_steps)
        }
        ran = []
        if made and not turned_off:
            lengths |= {str(number): lengths[str(number)] * factor for number in range(steps)}
        for block in range(2 * plan.pairs if made and turns else 0):
            begins, on = steps + block * plan.block_steps, block % 4 in (1, 2)
            ran.append((on, begins + 1, begins + plan.block_steps))
            if on:
                lengths |= {str(n): lengths[str(n)] * factor for n in range(begins, begins + plan.block_steps)}
        if plan.until_s:  # the run ends with what it has then, with five measured steps at least
            most = max(plan.warm + 5, int((plan.until_s - time.time() - start_s) / step_s))
            ran = [block for block in ran if block[2] <= most]
            steps = min(steps, most)
        wall_s = start_s + step_s * (steps + len(ran) * plan.block_steps)
        late = clock[0] + wall_s > limits.deadline
        clock[0] = min(clock[0] + wall_s, limits.deadline)
        seen = {c.name: {"took": 1, "where": "", "why_not": "", "note": ""} for c in made}
        content = {
            "warm": plan.warm, "steps": steps, "steps_ns": lengths, "cuda": False, "optimizers": [], "warm_up_ns": 0,
            "clock": "cpu", "changes": seen, "peak_memory_bytes": None, "blocks": ran, "turned_off": turned_off,
        }  # fmt: skip
        outcome: Any = "late" if late else "measured"
        return TrialRun(outcome, {} if late else content, [], "", "", wall_s, start_s, False)

    session.runner.run = run  # type: ignore[method-assign]
    return clock


def test_a_budget_in_seconds_is_kept_and_has_two_changes_of_a_program_with_long_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """75 ms a step, 8 s to start, 55 s: blocks are as many as there is time for; what is left out is told, with what it takes."""
    known = changes.changes_by_name({})
    names = ("compile", "gc-freeze", "nothing", "compile-dynamic")
    session = Session(["x"], [(known[name],) for name in names], TryOptions(budget="55s"))
    clock = on_a_clock(session, monkeypatch, 0.075, 8.0)
    began = clock[0]
    result = session.measure()
    assert clock[0] - began <= 55
    decided = [t for t in result.trials if t.verdict == "faster"]
    assert len(decided) >= 2 and all(t.within_a_run and t.pairs >= 8 for t in decided), text(result)
    left = [t.change for t in result.trials if not t.pairs]
    assert left and f"not tried for lack of time: {', '.join(left)}" in text(result)
    assert "--budget 2m for the rest" in result.stopped
    enough = Session(["x"], [(known[name],) for name in names], TryOptions(budget="2m"))
    on_a_clock(enough, monkeypatch, 0.075, 8.0)
    assert all(t.verdict == "faster" for t in enough.measure().trials), "what it says is enough is enough"


def test_a_long_budget_has_as_many_blocks_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(["x"], [(changes.changes_by_name({})["compile"],)], TryOptions(budget="10m"))
    on_a_clock(session, monkeypatch, 0.075, 8.0)
    assert session.measure().trials[0].pairs == session.plan.pairs == 17


def test_a_program_without_a_seed_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run has other weights from its first step on: no change is blamed for that, and none is called rounding."""
    session, order = scripted(lambda made: 5e5 if made else 1e6, ("compile", "gc-freeze"))
    with_blocks(session, lambda _made: 0.5)
    run = session.runner.run

    def other(made: Any, plan: Any, limits: Any) -> TrialRun:
        done = run(made, plan, limits)
        points = [
            {"steps": steps, "norms": [10.0], "projections": [10.0 + len(order) % 3 + steps * len(order)] * 4}
            for steps in (0, 1, 5, 60)
        ]
        done.record["weights"] = {"points": points, "epsilon": 2**-23, "numbers": "float32"}  # type: ignore[index]
        return done

    session.runner.run = other  # type: ignore[method-assign]
    result = session.measure()
    assert result.baseline.unseeded and order.count("A") == 2, "two unchanged runs are compared, once"
    said = text(result)
    assert said.count("the program is not seeded: two unchanged runs differ by as much") == 1
    assert "rounding" not in said and "RESULTS DIFFER" not in said and "does not win" not in said
    assert {t.change for t in result.winners()} == {"compile", "gc-freeze"}
    assert result.to_json()["baseline"]["unseeded"] is True


def test_two_runs_have_no_interval_of_astronomic_width() -> None:
    gain = verdicts.gain([(1.0, 0.5), (1.0, 40.0)], [1.0, 1.0])
    assert gain.verdict == "cannot_tell" and (gain.low, gain.high) == (0.0, math.inf)
    assert verdicts.gain([(1.0, 0.5), (1.0, 0.51)], [1.0, 1.0]).high < 12


@pytest.mark.parametrize("turns", [True, False])
def test_a_budget_of_30_s_measures_a_change_of_a_program_that_starts_in_5_s(
    monkeypatch: pytest.MonkeyPatch, turns: bool
) -> None:
    """Also one that cannot be turned off and on: two pairs of runs decide a gain beyond what starts are assumed to differ by."""
    slow_starts = [
        (0.005, 5.0, 30),
        (0.075, 5.0, 30),
        (0.15, 5.0, 30),
        (0.3, 5.0, 30),
        (0.06, 8.0, 44),
        (0.06, 16.0, 44),
        *([(0.06, 16.0, 28)] if turns else []),
    ]
    for step_s, start_s, budget_s in slow_starts:
        session = Session(["x"], [(changes.changes_by_name({})["compile"],)], TryOptions(budget=f"{budget_s}s"))
        began = on_a_clock(session, monkeypatch, step_s, start_s, turns=turns, factor=0.7)[0]
        result = session.measure()
        assert session.deadline - began == budget_s and time.monotonic() - began <= budget_s
        trial = result.trials[0]
        fits = turns and step_s < 0.2
        assert trial.verdict == "faster" and trial.within_a_run == fits, (step_s, text(result))
        assert trial.low_ns < 0.7e9 * step_s < trial.high_ns  # type: ignore[operator]
        once = budget_s < 2 * start_s
        assert not once or (result.baseline.runs == 1 and "its results were not compared" in text(result)), "one start"
        assert fits or trial.pairs > 2 or "of runs: it is assumed that two starts differ by 5.0 %" in text(result)


def test_few_pairs_of_runs_decide_only_what_starts_do_not_explain() -> None:
    assert verdicts.gain([(100.0, 80.0)], [100.0]).verdict == "faster"
    assert verdicts.gain([(100.0, 125.0)], [100.0]).verdict == "slower"
    assert verdicts.gain([(100.0, 88.0)], [100.0]).verdict == "cannot_tell"
    assert verdicts.gain([(100.0, 86.0), (100.0, 87.0)], [100.0, 100.0]).verdict == "faster"
    # Steps that scatter as much within a run tell as little, and so do runs that differ more than is assumed.
    assert verdicts.gain([(100.0, 80.0)], [100.0], noise=0.1).verdict == "cannot_tell"
    assert verdicts.gain([(100.0, 80.0)], [100.0], noise=math.inf).verdict == "cannot_tell"
    assert verdicts.gain([(100.0, 60.0), (100.0, 90.0)], [100.0, 100.0]).verdict == "cannot_tell"


def test_unchanged_programs_are_rarely_called_faster_from_few_pairs() -> None:
    source = random.Random(2)
    for n in (1, 2):
        pairs = [[(source.gauss(100, 5), source.gauss(100, 5)) for _ in range(n)] for _ in range(400)]
        assert sum(verdicts.gain(each, [100.0]).verdict != "cannot_tell" for each in pairs) <= 400 / 20
