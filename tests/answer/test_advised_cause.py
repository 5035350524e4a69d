"""The first advice says which part of the limit it is for, and nothing where the headline says that already."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsysx.advice import Alternative
from nsysx.answer import advised_cause
from nsysx.answer.line_faults import FAULTS, OF_RANKS
from nsysx.catalogue import StepLimit
from nsysx.findings import (
    _cells_in_sequence,
    _copied_weights,
    _decoded_text,
    _fields_at_once,
    _found,
    _graphed_rounds,
    _line_remedies,
    _missed_caches,
    _picked_tables,
    _rounds_by_group,
    _sent_objects,
    _values_of_ranks,
)
from nsysx.findings._case import Fix
from nsysx.model import Row, Summary
from nsysx.render import answer_words
from tests.render import factory
from tests.render.factory import MS


def advised(title: str, cost_ms: int, code: str = "NSX106", limit: StepLimit = StepLimit.INPUT) -> Summary:
    """Return a Summary whose limit takes 10 ms of each step, and whose first advice is for a finding of this title and cost."""
    full = factory.summary()
    index = full.answer.do[-1].finding
    assert index is not None and full.findings
    chosen = replace(full.findings[index], code=code, title=title, cost_ns_per_step=cost_ms * MS, unexplained=False)
    part = {StepLimit.INPUT: "input", StepLimit.LAUNCH: "host", StepLimit.COPY: "copy", StepLimit.COMM: "comm"}[limit]
    verdict = replace(
        full.verdict,
        code=limit.value,
        sentence=f"{limit.label.capitalize()}: every 10th step takes 30 ms.",
        parts={part: 10 * MS, "work": 20 * MS},
    )
    answer = replace(full.answer, now_ns=30 * MS, then_ns=(30 - cost_ms) * MS)
    findings = (*full.findings[:index], chosen, *full.findings[index + 1 :])
    return replace(full, verdict=verdict, findings=findings, answer=answer)


@pytest.mark.parametrize(("then_ms", "leads"), [(27, True), (29, False), (24, True), (23, False), (None, True)])
def test_another_limit_leads_where_it_matters_and_is_what_the_change_is_for(then_ms: int | None, leads: bool) -> None:
    """A cost of 3 ms of 30: a change that saves 1 ms is little, and one that saves 7 ms is for more than that."""
    summary = advised("Every 10th step is long", 3, "NSX109", StepLimit.LAUNCH)
    then_ns = None if then_ms is None else then_ms * MS
    summary = replace(summary, answer=replace(summary.answer, then_ns=then_ns))
    assert answer_words.build(summary).head.startswith("Every 10th step") == leads


@pytest.mark.parametrize(
    ("title", "cost_ms", "code", "limit", "part", "another"),
    [
        ("The GPU idles for its batch", 10, "NSX106", StepLimit.INPUT, "", False),
        ("The GPU idles for 3 launches", 3, "NSX113", StepLimit.LAUNCH, "The GPU idles for 3 launches", False),
        ("The GPU idles for its batch", 10, "NSX106", StepLimit.LAUNCH, "The GPU idles for its batch", True),
        ("GPU idle: the CPU makes data", 10, "NSX114", StepLimit.LAUNCH, "GPU idle: the CPU makes data", False),
        ("Every 10th step is long", 3, "NSX109", StepLimit.LAUNCH, "Every 10th step is long", True),
        ("Kernels can be fused", 3, "NSX112", StepLimit.LAUNCH, "Kernels can be fused", True),
        ("It waits 16 times", 3, "NSX126", StepLimit.LAUNCH, "It waits 16 times", False),
        ("The GPU waits for launches", 3, "NSX102", StepLimit.LAUNCH, "", False),
    ],
)  # fmt: skip
def test_the_part_of_the_limit_that_an_advice_is_for(
    title: str, cost_ms: int, code: str, limit: StepLimit, part: str, another: bool
) -> None:
    """All of the limit, a part of it, another limit, which comes first, what the host does, slow steps, a change for the whole program."""
    summary = advised(title, cost_ms, code, limit)
    assert advised_cause.of_first_advice(summary).title == part
    shown = answer_words.build(summary).sentence
    led = {StepLimit.INPUT: "input-bound", StepLimit.LAUNCH: "host-bound"}
    assert ("First to fix: " in shown) == (bool(part) and not another)
    assert (f". Otherwise {led[limit]}: every 10th step" in shown) == another
    assert shown.startswith(part) == (not part or another)


def test_what_the_host_cannot_explain_and_no_advice_are_no_part() -> None:
    summary = advised("GPU idle before x; CPU cause not recorded", 3, "NSX114", StepLimit.LAUNCH)
    unexplained = tuple(replace(f, unexplained=True) for f in summary.findings or ())
    assert advised_cause.of_first_advice(replace(summary, findings=unexplained)) == advised_cause.NOTHING
    nothing = tuple(replace(a, finding=None) for a in summary.answer.do)
    assert (
        advised_cause.of_first_advice(replace(summary, answer=replace(summary.answer, do=nothing)))
        == advised_cause.NOTHING
    )


#: Where the change of the first advice is made.
PLACE = {"file": "/job/train.py", "line": 31}
HOLDS = "train.py:31 `a = f(` and 2 lines beside it hold the CPU for 3 ms"


@pytest.mark.parametrize(
    ("title", "cost_ms", "code", "limit", "headline", "told"),
    [
        # A cause has its line behind it, unless the title or the headline names that.
        ("Gradients that nothing reads", 3, "NSX127", StepLimit.LAUNCH, "Host-bound.", "gradients that nothing reads (train.py:31)"),
        ("Train.py:31: an inverse", 3, "NSX127", StepLimit.LAUNCH, "Host-bound.", "Train.py:31: an inverse (train.py:31)"),
        ("train.py:31: an inverse", 3, "NSX127", StepLimit.LAUNCH, "Host-bound.", "an inverse (train.py:31)"),
        ("Gradients that nothing reads", 3, "NSX127", StepLimit.LAUNCH, "In train.py:310.", "gradients that nothing reads (train.py:31)"),
        ("Gradients that nothing reads", 3, "NSX127", StepLimit.LAUNCH, "3 ms of it in train.py:31.", "gradients that nothing reads"),
        # Where all of the limit is meant, the line alone.
        ("Copies to the GPU", 10, "NSX105", StepLimit.COPY, "Copy-bound.", "train.py:31"),
        ("Copies to the GPU", 10, "NSX105", StepLimit.COPY, "Copy-bound: in train.py:31.", ""),
        # The source of a line stands in the advice; of host code in the line of the headline nothing more is known.
        (HOLDS, 3, "NSX123", StepLimit.LAUNCH, "Host-bound.", "train.py:31 and 2 lines beside it hold the CPU for 3 ms"),
        (HOLDS, 3, "NSX123", StepLimit.LAUNCH, "Host-bound: 3 ms of it in train.py:31.", ""),
        ("It waits 16 times", 3, "NSX126", StepLimit.LAUNCH, "Host-bound: 3 ms of it in train.py:31.", "it waits 16 times"),
        (HOLDS, 3, "NSX123", StepLimit.INPUT, "Input-bound: in train.py:31.", "train.py:31 and 2 lines beside it hold the CPU for 3 ms"),
    ],
)  # fmt: skip
def test_the_line_of_what_is_to_be_fixed_first_is_named_once(
    title: str, cost_ms: int, code: str, limit: StepLimit, headline: str, told: str
) -> None:
    summary = advised(title, cost_ms, code, limit)
    index = summary.answer.do[-1].finding
    findings = tuple(replace(f, where=PLACE) if i == index else f for i, f in enumerate(summary.findings or ()))
    summary = replace(summary, findings=findings, verdict=replace(summary.verdict, sentence=headline))
    shown = answer_words.build(summary).sentence
    assert shown == f"{headline} First to fix: {told}." if told else shown == headline


def test_what_is_wrong_at_the_line_of_the_headline_is_told_where_its_remedy_says_that() -> None:
    summary = advised(HOLDS, 3, "NSX123", StepLimit.LAUNCH)
    index = summary.answer.do[-1].finding
    summary = replace(summary, verdict=replace(summary.verdict, sentence="Host-bound: 3 ms of it in train.py:31."))

    def told(remedy: str) -> str:
        findings = summary.findings or ()
        changed = tuple(
            replace(f, where=PLACE, remedies=(Alternative(remedy, "Do it"),)) if i == index else f
            for i, f in enumerate(findings)
        )
        return answer_words.build(replace(summary, findings=changed)).sentence

    assert told("arrays-once").endswith("train.py:31. First to fix: lists are converted to arrays.")
    assert told("out-of-the-loop").endswith("train.py:31.")


@pytest.mark.parametrize(
    ("remedy", "headline", "told"),
    [
        ("cheaper-samples", "Input-bound: it waits.", " First to fix: samples take the workers long (train.py:31)."),
        ("batched-samples", "Input-bound: it waits.", " First to fix: samples are fetched one at a time (train.py:31)."),
        ("cheaper-samples", "Input-bound: in train.py:31.", " First to fix: samples take the workers long."),
        ("prefetch", "Input-bound: it waits.", ""),
    ],
)  # fmt: skip
def test_a_change_for_all_of_the_limit_says_what_is_wrong_at_its_line(remedy: str, headline: str, told: str) -> None:
    summary = advised("The GPU idles for its batch", 10, "NSX106", StepLimit.INPUT)
    index = summary.answer.do[-1].finding

    def shown(where: Row) -> str:
        ways = (Alternative(remedy, "Do it"),)
        findings = tuple(
            replace(f, where=where, remedies=ways) if i == index else f for i, f in enumerate(summary.findings or ())
        )
        verdict = replace(summary.verdict, sentence=headline)
        return answer_words.build(replace(summary, findings=findings, verdict=verdict)).sentence

    assert shown(PLACE) == f"{headline}{told}"
    assert shown({}) == headline


@pytest.mark.parametrize(
    ("remedy", "said"),
    [("like-order", "each rank has its batches in another order (train.py:31)"), ("overlap", "train.py:31")],
)
def test_what_ranks_do_wrong_is_told_where_the_headline_names_the_limit_alone(remedy: str, said: str) -> None:
    summary = advised("Exposed communication takes 10 ms", 10, "NSX110", StepLimit.COMM)
    index = summary.answer.do[-1].finding
    ways = (Alternative(remedy, "Do it"),)
    findings = tuple(
        replace(f, where=PLACE, remedies=ways) if i == index else f for i, f in enumerate(summary.findings or ())
    )
    assert answer_words.build(replace(summary, findings=findings)).sentence.endswith(f" First to fix: {said}.")


def test_every_fault_of_ranks_has_a_remedy() -> None:
    assert all(Fix.by_name(name).ways[0].text for name in OF_RANKS)


def test_every_remedy_of_a_line_has_its_fault_and_every_fault_a_remedy() -> None:
    of_lines = {kind.remedy for kind in _line_remedies._KINDS} | {name for name, _ in _line_remedies._BY_PACKAGE}
    by_their_copies = {way.name for way in _copied_weights.ON_GPU.ways} | {_picked_tables.REMEDY}
    by_what_they_send = {
        way.name for fix in (_found.SENT, _sent_objects.PLAN, _sent_objects.GENERATOR) for way in fix.ways
    }
    by_their_loop = {
        way.name
        for fix in (_rounds_by_group.GROUPS, _graphed_rounds.GRAPHED, _cells_in_sequence.AT_ONCE)
        for way in fix.ways
    }
    by_their_size = {_values_of_ranks.AT_ONCE.name} | {way.name for way in _decoded_text.AGAIN.ways}
    by_number_and_flag = {"flag-ahead", _fields_at_once.NAME, _missed_caches.NAME}
    assert (
        set(FAULTS)
        == of_lines | by_number_and_flag | by_their_copies | by_what_they_send | by_their_loop | by_their_size
    )


def test_the_line_that_holds_the_late_rank_stands_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = advised(HOLDS, 3, "NSX111", StepLimit.LAUNCH)
    index = summary.answer.do[-1].finding
    findings = tuple(replace(f, where=PLACE) if i == index else f for i, f in enumerate(summary.findings or ()))
    monkeypatch.setattr(advised_cause.subject, "rank_waited_for", lambda _: 1)

    def told(sentence: str) -> str:
        verdict = replace(summary.verdict, sentence=sentence)
        return answer_words.build(replace(summary, findings=findings, verdict=verdict)).sentence

    assert told("Rank 0 waits for rank 1.") == "Rank 0 waits for rank 1. First to fix: train.py:31."
    assert told("Rank 1 is at train.py:31.") == "Rank 1 is at train.py:31."


@pytest.mark.parametrize(("saves_ms", "first"), [(2.5, True), (2.4, False)])
def test_the_first_of_several_changes_is_named_where_it_wins_much_of_all(saves_ms: float, first: bool) -> None:
    """A quarter of what both win, here of 10 ms."""
    summary = advised("The last", 3, "NSX123", StepLimit.LAUNCH)
    last, findings = summary.answer.do[-1], summary.findings or ()
    other = replace(findings[0], title="The first", code="NSX127", unexplained=False, where={})
    before = replace(last, finding=len(findings), saving_ns=round(saves_ms * MS))
    answer = replace(summary.answer, do=(before, last), now_ns=30 * MS, then_ns=20 * MS)
    summary = replace(summary, findings=(*findings, other), answer=answer)
    assert advised_cause.of_first_advice(summary).title == ("The first" if first else "The last")


@pytest.mark.parametrize(
    ("title", "once"), [("Every 10th step takes 304.2 ms: a checkpoint", True), ("The GPU idles for its batch", False)]
)
def test_steps_that_are_slower_are_told_once(title: str, once: bool) -> None:
    summary = advised(title, 3, "NSX109" if once else "NSX106", StepLimit.LAUNCH)
    sentence = "Host-bound: the GPU idles 3 of 30 ms. Usually 5.52 ms; every 10th step takes 304.2 ms, as recorded."
    summary = replace(summary, verdict=replace(summary.verdict, sentence=sentence))
    told = answer_words.build(summary).sentence
    assert told.startswith(f"{title}") and told.lower().count("every 10th step takes 304.2 ms") == 1
    assert ("Usually 5.52 ms, as recorded." in told) is once


@pytest.mark.parametrize(("title", "told"), [("loss.py:88 moves memory", 1), ("Kernels can be fused", 1)])
def test_a_line_that_the_title_names_is_not_named_behind_it(title: str, told: int) -> None:
    summary = advised(title, 3, "NSX112", StepLimit.LAUNCH)
    index = summary.answer.do[-1].finding or 0
    findings = list(summary.findings or ())
    findings[index] = replace(findings[index], where={"file": "/home/a/loss.py", "line": 88})
    assert answer_words.build(replace(summary, findings=tuple(findings))).sentence.count("loss.py:88") == told
