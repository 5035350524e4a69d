"""The first advice says which part of the limit it is for, and nothing where the headline says that already."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsysx.answer import advised_cause
from nsysx.catalogue import StepLimit
from nsysx.model import Summary
from nsysx.render import answer_words
from tests.render import factory
from tests.render.factory import MS


def advised(title: str, cost_ms: int, code: str = "NSX106", limit: StepLimit = StepLimit.INPUT) -> Summary:
    """Return a Summary whose limit takes 10 ms of each step, and whose first advice is for a finding of this title and cost."""
    full = factory.summary()
    index = full.answer.do[-1].finding
    assert index is not None and full.findings
    chosen = replace(full.findings[index], code=code, title=title, cost_ns_per_step=cost_ms * MS, unexplained=False)
    part = {StepLimit.INPUT: "input", StepLimit.LAUNCH: "host"}[limit]
    verdict = replace(
        full.verdict,
        code=limit.value,
        sentence="Something-bound: every 10th step takes 30 ms.",
        parts={part: 10 * MS, "work": 20 * MS},
    )
    return replace(full, verdict=verdict, findings=(*full.findings[:index], chosen, *full.findings[index + 1 :]))


@pytest.mark.parametrize(
    ("title", "cost_ms", "code", "limit", "part"),
    [
        ("The GPU idles for its batch", 10, "NSX106", StepLimit.INPUT, ""),
        ("The GPU idles for 3 launches", 3, "NSX113", StepLimit.LAUNCH, "The GPU idles for 3 launches"),
        ("The GPU idles for its batch", 10, "NSX106", StepLimit.LAUNCH, "The GPU idles for its batch"),
        ("GPU idle: the CPU makes data", 10, "NSX114", StepLimit.LAUNCH, "GPU idle: the CPU makes data"),
        ("Every 10th step is long", 3, "NSX109", StepLimit.LAUNCH, "Every 10th step is long"),
        ("The GPU waits for launches", 3, "NSX102", StepLimit.LAUNCH, ""),
    ],
)  # fmt: skip
def test_the_part_of_the_limit_that_an_advice_is_for(
    title: str, cost_ms: int, code: str, limit: StepLimit, part: str
) -> None:
    """All of the limit, a part of it, another limit, what the host does, slow steps, a change for the whole program."""
    summary = advised(title, cost_ms, code, limit)
    assert advised_cause.of_first_advice(summary) == part
    shown = answer_words.build(summary).sentence
    assert ("First to fix: " in shown) == bool(part)


def test_what_the_host_cannot_explain_and_no_advice_are_no_part() -> None:
    summary = advised("GPU idle before x; CPU cause not recorded", 3, "NSX114", StepLimit.LAUNCH)
    unexplained = tuple(replace(f, unexplained=True) for f in summary.findings or ())
    assert advised_cause.of_first_advice(replace(summary, findings=unexplained)) == ""
    nothing = tuple(replace(a, finding=None) for a in summary.answer.do)
    assert advised_cause.of_first_advice(replace(summary, answer=replace(summary.answer, do=nothing))) == ""
