"""What a finding promises is there to be saved: in the step without a profiler, and in the idle time and work that go."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Finding, Summary
from nsysx.pipeline import summarize
from tests.builder import CASES
from tests.findings import Program
from tests.findings.test_contract import everything
from tests.findings.test_launching import tiny
from tests.findings.test_memory_and_input import thrashing, uploading
from tests.findings.test_waits import masked
from tests.samples import NAMES, Samples

pytestmark = pytest.mark.traced

#: Changes that take no work off the GPU: they can save no more than it idles.
OF_THE_HOST = {"NSX101", "NSX102", "NSX104", "NSX106", "NSX113", "NSX114"}


@pytest.fixture(scope="module")
def of(recorded: Samples) -> Callable[[str], Summary]:
    return recorded.summary


def promised(summary: Summary) -> Iterator[tuple[Finding, int, int]]:
    """Yield what is found with its cost and saving (ns per step), where there are steps."""
    for f in summary.findings or ():
        if f.verdict == "found" and summary.steps.scope is not None and summary.steps.scope.steps:
            yield f, f.cost_ns_per_step or 0, f.saving_ns_per_step or 0


def keeps_the_rule(summary: Summary) -> int:
    """Hold every saving against the step without a profiler; return how many there are."""
    known, count = summary.unprofiled, 0
    step = known.step_ns if known else summary.steps.gpu_mean_ns or summary.steps.cpu_mean_ns or 0
    for f, cost, saving in promised(summary):
        assert 0 <= saving <= step, f.title
        assert saving <= cost <= step * 1.05 or f.cost_ns_per_step is None or f.code == "NSX111", (f.title, cost, step)
        if known and f.code in OF_THE_HOST:
            assert saving <= known.gpu_idle_ns, (f.title, saving, known.gpu_idle_ns)
        count += f.saving_ns_per_step is not None
    return count


@pytest.mark.parametrize("name", NAMES)
def test_no_sample_promises_more_than_is_there(name: str, of: Callable[[str], Summary]) -> None:
    keeps_the_rule(of(name))


@pytest.mark.parametrize("body", [everything, tiny, masked, thrashing, uploading])
def test_no_built_program_promises_more_than_is_there(body: Callable[[Program, int], None], tmp_path: Path) -> None:
    assert keeps_the_rule(Program().steps(body).summary(tmp_path)) > 0


def test_costs_of_a_launch_bound_step_are_those_without_the_profiler(of: Callable[[str], Summary]) -> None:
    """The step is 15.4 ms as recorded and about 10 without: what the GPU waits for launches is less than the latter."""
    summary = of("tiny_stack")
    known = summary.unprofiled
    assert known is not None and known.step_ns < 0.75 * known.recorded_ns
    (bound,) = [f for f in summary.findings or () if f.code == "NSX102"]
    assert bound.cost_ns_per_step is not None
    assert 0.9 * known.gpu_idle_ns <= bound.cost_ns_per_step <= known.gpu_idle_ns


def said(summary: Summary) -> Iterator[str]:
    """Yield all that a report says in words."""
    yield summary.verdict.sentence
    yield from summary.verdict.evidence
    for f in summary.findings or ():
        yield from (f.title, f.detail, f.saving.confidence, f.fix)
    for check in summary.quality:
        yield check.detail


def shares(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield all that is called a share in a JSON value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if (key == "share" or key.endswith("_share")) and isinstance(inner, int | float):
                yield f"{path}.{key}", inner
            yield from shares(inner, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from shares(inner, path)


def is_part_of_a_whole(summary: Summary) -> None:
    for text in said(summary):
        for number in re.findall(r"([\d,.]+) ?%", text):
            assert float(number.replace(",", "").rstrip(".") or 0) <= 100, text
    for where, share in shares(summary.to_json()):
        assert share <= 1.0 + 1e-9, (where, share)


@pytest.mark.parametrize("name", NAMES)
def test_no_share_of_a_sample_is_more_than_its_whole(name: str, of: Callable[[str], Summary]) -> None:
    is_part_of_a_whole(of(name))


@pytest.mark.parametrize("case", sorted(CASES))
def test_no_odd_report_promises_more_than_is_there_or_has_a_share_of_more_than_its_whole(
    case: str, tmp_path: Path
) -> None:
    summary = summarize([CASES[case]().write(tmp_path / "r.sqlite")])
    keeps_the_rule(summary)
    is_part_of_a_whole(summary)
