"""The answer, decided once from everything that was judged: what limits the step, what to do, what it is worth, how sure that is.

Every output words what stands here and decides nothing. What a finding needs to be chosen, placed and pictured stands in its own
file (``Rule``), so that a new finding needs no word here.
"""

from __future__ import annotations

from dataclasses import replace

from nsysx import units
from nsysx.advice import Answer
from nsysx.answer import bars, certainty, change_savings, factors, first_action, measured, others, remarks, timed_steps
from nsysx.answer.answer_bounds import NOTHING_LEFT_SHARE
from nsysx.model import Finding, Summary


def decide(summary: Summary) -> Answer:
    """Return the answer of a Summary, all of whose other parts are final."""
    chosen, now = first_action.first(summary), summary.step.shown_ns
    predicted = None if chosen is None else change_savings.saving_ns(summary, chosen)
    won = measured.winner(summary, chosen, predicted, now)
    if won is None:
        return as_if_chosen(summary, chosen)
    chosen = measured.adviser(summary, won, chosen)
    index = None if chosen is None else change_savings.place_of(summary, chosen)
    return measured.with_measured_change(as_if_chosen(summary, chosen), won, chosen, index)


def as_if_chosen(summary: Summary, chosen: Finding | None) -> Answer:
    """Return the answer whose first advice is that of a finding, as the capture alone has it."""
    do, sure = first_action.to_do(summary, chosen), certainty.certainty_of_advice(summary, chosen)
    also = others.also(summary, chosen, do)
    # Of what is not known no step is given; where only the length of the step is not, the factors that its bounds give are.
    told = sure.level != "unknown"
    bounded = sure.parts[0].level != "unknown"
    timed = timed_steps.timed_worth(summary, chosen) if told else None
    then = change_savings.after(summary, chosen) if told and timed is None else change_savings.After()
    times = timed.times if timed is not None else _times(summary, chosen, then, told=told) if bounded else ()
    worth = (
        timed.words
        if timed is not None
        else remarks.worth(summary, chosen, then, also)
        if told
        else remarks.not_known(summary, chosen, sure, bounded=bool(times))
    )
    answer = Answer(
        limit=summary.verdict.code,
        do=do,
        now_ns=summary.step.shown_ns,
        then_ns=then.ns,
        then_low_ns=then.low_ns,
        then_high_ns=then.high_ns,
        bound=change_savings.is_bound(summary, chosen) if timed is None else timed.bound,
        real=summary.step.told_real,
        recorded_ns=summary.step.recorded_ns,
        worth=worth,
        certainty=sure,
        picture=bars.pictured(summary, chosen),
        also=also,
        alarms=tuple(c.detail for c in summary.quality if c.status == "warn" and c.doubt in ("numbers", "everything")),
        ask_next=others.ask_next(summary, chosen),
        replayed_ns=change_savings.replayed_ns(summary, chosen, then),
        times=times,
        best_ns=then.best_ns,
    )
    # A time that was added up, and not replayed, leaves out less than the most that can go.
    return _led_by_replay(answer, whole=chosen is None or chosen.saving.source != "time")


def _led_by_replay(answer: Answer, *, whole: bool) -> Answer:
    """Return the answer with the step that the replay gives in place of a bound that leaves nothing of the step, which says nothing.

    Where the replay left out all that the bound leaves out, too (``whole``), it is a bound itself and has no interval. Else it is what is
    likely, and the bound is the most.
    """
    now, then, alone = answer.now_ns, answer.then_ns, answer.replayed_ns
    if now is None or then is None or alone is None or not answer.bound or then >= NOTHING_LEFT_SHARE * now:
        return answer
    if not whole and answer.times:
        return replace(
            answer,
            then_ns=alone,
            then_low_ns=None,
            then_high_ns=None,
            bound=False,
            worth=f"saves {units.duration(now - alone)}",
            replayed_ns=None,
            best_ns=then,
        )
    return replace(
        answer,
        then_ns=alone,
        then_low_ns=None,
        then_high_ns=None,
        times=(),
        worth="at best",
        replayed_ns=None,
    )


def _times(summary: Summary, chosen: Finding | None, then: change_savings.After, *, told: bool) -> tuple[float, ...]:
    """Return the least and the most factor of a change, its own headline between them; of a bound those of its replay, of one without
    a headline those of all that it may save.
    """
    bound = change_savings.is_bound(summary, chosen)
    if chosen is not None and bound and not told:
        return factors.factor_bounds(summary, chosen, change_savings.saving_ns(summary, chosen))
    likely = None if chosen is None else change_savings.likely_ns(summary, chosen)
    if chosen is not None and bound:
        margins = change_savings.margins_beside_bound_ns(summary, chosen, then)
    else:
        margins = change_savings.margins_ns(summary, chosen)
    return factors.factor_bounds(summary, chosen, likely, margins)


def answered(summary: Summary) -> Summary:
    """Return the Summary with its answer, and its findings without the advice that was tried in vain."""
    summary = measured.without_refuted(summary)
    return replace(summary, answer=decide(summary))
