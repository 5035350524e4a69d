"""One fact, one number: what the first screen and the answer for programs say twice, they say alike."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from nsysx import findings, units
from nsysx.answer import subject
from nsysx.model import Finding, Summary
from nsysx.render import answer_words, brief, view
from tests.render.factory import changed
from tests.samples import DISTINCT, Samples

#: What the sentence says of a cause, the parts of the bar that show it, and the rule whose title gives its length.
CAUSES = {
    r"waiting for kernel launches|in kernel launch latency": (("host", "launch"), "NSX102"),
    r"waiting for input data": (("input",), "NSX106"),
    r"while memory is allocated": (("alloc",), None),
    r"after host syncs": (("sync",), None),
}
NS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}
TIME = re.compile(r"(\d[\d,]*(?:\.\d+)?) (ns|us|ms|s)\b")


def times(text: str) -> list[float]:
    """Return the times in a text (ns)."""
    return [float(number.replace(",", "")) * NS[unit] for number, unit in TIME.findall(text)]


def near(one: float, two: float, text: str) -> bool:
    """Return whether a number of a text is another, as far as its last digit tells."""
    digits = max((len(d[0].partition(".")[2]) for d in TIME.findall(text)), default=0)
    return abs(one - two) <= max(0.006 * max(one, two), 0.51 * 10**-digits * NS["ms" if "ms" in text else "us"])


def contradictions(summary: Summary) -> list[str]:
    """Return what the first screen of a Summary says in two ways, in words."""
    said, told = answer_words.build(summary), json.loads(brief.answer_json(summary))
    found = [f for f in summary.findings or () if f.verdict == "found"]
    bad = [*_findings(found, said), *_bars(said), *_brief(summary, said, told), *_steps(summary, said)]
    bad += _savings(summary, found)
    if subject.rank_waited_for(summary) is None and said.now_ns is not None:
        bad += _causes(summary, said, found)
    return bad


def _findings(found: list[Finding], said: answer_words.Worded) -> list[str]:
    bad = []
    for f in found:
        if f.cost_ns_per_step is not None and (f.saving_ns_per_step or 0) > f.cost_ns_per_step:
            bad.append(f"{f.code} is worth more than it costs")
        if said.now_ns and (f.saving_ns_per_step or 0) > said.now_ns:
            bad.append(f"{f.code} saves more than the step")
    bad += [
        f"{a.code} saves more than the step" for a in said.also if a.saving_ns and a.saving_ns > (said.now_ns or 1e18)
    ]
    saved = re.search(r"saves (.*)", said.worth)
    if saved and said.now_ns and said.then_ns is not None and saved[1] != units.duration(said.now_ns - said.then_ns):
        bad.append(f"now less then is not {saved[1]}")
    return bad


def _savings(summary: Summary, found: list[Finding]) -> list[str]:
    """No finding saves more than the parts of the verdict that its cause takes, nor more than the step."""
    bad, parts, causes = [], summary.verdict.parts, {m.RULE.code: m.RULE.cause for m in findings.rules()}
    for f in found:
        if f.saving_ns_per_step is None or not parts:
            continue
        most = sum(parts.get(p, 0) for p in causes[f.code])
        if f.code == "NSX110":  # communication also slows what runs beside it
            most += sum(e["total_ns"] for e in f.evidence if e.get("part") == "kernels beside it take longer")
        if f.code == "NSX105" and ("hardly any GPU time" in f.title or "block the CPU" in f.title):  # it holds the host
            most += sum(parts.get(p, 0) for p in ("sync", "host", "launch"))
        if causes[f.code] and f.saving_ns_per_step > most + 2:
            bad.append(f"{f.code} saves {f.saving_ns_per_step} of the {most} ns of its cause: {f.title}")
        if summary.unprofiled and f.saving_ns_per_step > (summary.verdict.step_ns or 0) + 1:
            bad.append(f"{f.code} saves more than the step without the profiler")
    return bad


def _bars(said: answer_words.Worded) -> list[str]:
    bad, totals = [], {}
    for bar in said.bars:
        if abs(sum(p.ns for p in bar.parts) - bar.total_ns) > 1 + 1e-6 * bar.total_ns:
            bad.append(f"the parts of {bar.label} are not its whole")
        for name, ns in ((bar.label, bar.total_ns), *((p.label, p.ns) for p in bar.parts)):
            if (
                "step" in bar.label
                or "window" in bar.label
                or "rank" in bar.label
                or name.startswith(("other", "the rest", "wait", "kernels", "comp"))
                or not name
            ):
                continue
            if abs(totals.setdefault(name, ns) - ns) > 0.001 * ns:
                bad.append(f"{name} is {totals[name]:.0f} and {ns:.0f} ns")
    return bad


def _brief(summary: Summary, said: answer_words.Worded, told: dict[str, Any]) -> list[str]:
    bad = []
    if said.now_ns is None:
        return bad
    if told["step"]["now_ns"] != said.now_ns:
        bad.append("the step of the brief is not that of the answer")
    if told["step"]["low_ns"] is not None and not summary.step.as_recorded:
        real, recorded = summary.unprofiled, summary.step.recorded_ns
        if (
            real
            and recorded
            and not real.measured_steps
            and abs(said.now_ns / recorded - real.step_ns / real.recorded_ns) > 0.01
        ):
            bad.append("the step with the profiler is of other steps than that without")
        if not told["step"]["low_ns"] <= said.now_ns <= told["step"]["high_ns"]:
            bad.append("the step is not between its bounds")
    return bad


def _steps(summary: Summary, said: answer_words.Worded) -> list[str]:
    bad, words = [], " ".join([*said.facts, *(s.reason for s in said.sure)])
    counts = set(re.findall(r"(\d+) steady|in all (\d+) steps", words))
    numbers = {n for pair in counts for n in pair if n}
    shown = view.build(summary, top=1)
    scope = re.search(r"mean of (\d+) steady", shown.ledger_title)
    if scope:
        numbers.add(scope[1])
    if len(numbers) > 1:
        bad.append(f"steady steps: {sorted(numbers)}")
    if "hardly changes" in words and "under the profiler" in said.sentence:
        bad.append("tracing hardly changes a step that is another under the profiler")
    return bad


def _causes(summary: Summary, said: answer_words.Worded, found: list[Finding]) -> list[str]:
    bad, parts = [], summary.verdict.parts
    for pattern, (names, code) in CAUSES.items():
        whole = sum(parts.get(n, 0) for n in names)
        length = re.search(
            rf"(?:, and|,|(?:it|the GPU) idles) ((?:[\d.,]+) (?:ns|us|ms|s))(?: of it)? (?:{pattern})", said.sentence
        )
        if length and not near(times(length[1])[0], whole, length[1]):
            bad.append(f"the sentence says {length[1]}, the picture {whole} ns")
        for f in found:
            if code == f.code and times(f.title) and not near(times(f.title)[0], whole, f.title):
                bad.append(f"{f.title}: the picture says {whole} ns")
            # A copy that blocks the CPU also costs the lead over the GPU that the host loses in it.
            held = sum(parts.get(p, 0) for p in ("sync", "host", "launch")) if "block the CPU" in f.title else 0
            if code == f.code and (f.saving_ns_per_step or 0) > whole + held + 1:
                bad.append(f"{f.code} saves more than the {whole} ns of its cause")
    drawn = {p.label: p.ns for p in said.bars[0].parts} if said.bars else {}
    waits = drawn.get("waiting for kernel launches")
    if waits is not None and abs(waits - parts.get("host", 0) - parts.get("launch", 0)) > 1:
        bad.append("the bar has another wait for the host than the verdict")
    return bad


@pytest.fixture(scope="module")
def found(recorded: Samples) -> Callable[[str], list[str]]:
    """A function from a sample's name to its contradictions."""
    return cache(lambda name: contradictions(recorded.summary(name)))


@pytest.mark.parametrize("name", DISTINCT)
def test_a_sample_says_nothing_in_two_ways(name: str, found: Callable[[str], list[str]]) -> None:
    assert found(name) == []


def test_a_host_that_was_slower_without_the_profiler_is_said(recorded: Samples) -> None:
    """Tracing makes no step shorter: where the measured steps were longer, the shown step is the recorded one, and not sure."""
    summary = recorded.summary("gpt")
    real = summary.unprofiled
    assert real is not None
    same = changed(summary, verdict=replace(summary.verdict, recorded_ns=None))
    assert "hardly changes" in str(answer_words.build(same).sure)
    measured = replace(real, source="in_process", measured_steps=30, high_ns=round(1.4 * real.step_ns))
    said = str(answer_words.build(changed(same, unprofiled=measured)).sure)
    assert "hardly changes" not in said
    assert f"up to {units.duration(measured.high_ns)}" in said
