"""Each part of a step counts with one finding, and what cannot be added says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysx.findings._once import Claim, Pieces, Takes, give
from nsysx.model import Summary
from nsysx.pipeline import summarize
from nsysx.render import html_page
from nsysx.saving import Saving
from tests.builder import CASES
from tests.findings import Program
from tests.findings.test_contract import everything
from tests.findings.test_launching import tiny
from tests.findings.test_memory_and_input import thrashing, uploading
from tests.findings.test_waits import masked
from tests.samples import NAMES, Samples


@pytest.fixture(scope="module")
def of(recorded: Samples) -> Callable[[str], Summary]:
    return recorded.summary


def counts_once(summary: Summary) -> int:
    """Hold what findings count against the step; return how many count something."""
    found = [(i, f) for i, f in enumerate(summary.findings or ()) if f.own_ns_per_step is not None]
    step = summary.step.shown_ns
    assert step is not None or not found
    assert sum(f.own_ns_per_step or 0 for _, f in found) <= (step or 0)
    for place, f in found:
        assert 0 <= (f.own_ns_per_step or 0) <= (f.cost_ns_per_step or 0), f.title
        assert all(place in (summary.findings or ())[other].overlaps for other in f.overlaps)
    return len(found)


@pytest.mark.parametrize("name", NAMES)
def test_the_findings_of_a_sample_never_sum_above_its_step(name: str, of: Callable[[str], Summary]) -> None:
    counts_once(of(name))


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_findings_of_an_odd_report_never_sum_above_its_step(case: str, tmp_path: Path) -> None:
    counts_once(summarize([CASES[case]().write(tmp_path / "r.sqlite")], every_table=False))


@pytest.mark.parametrize("body", [everything, masked, thrashing, uploading, tiny], ids=lambda b: b.__name__)
def test_the_findings_of_a_program_never_sum_above_its_step(body, tmp_path: Path) -> None:
    assert counts_once(Program().steps(body).summary(tmp_path)) > 0


def paused(program: Program, number: int) -> None:
    """A step whose 10 ms are a pause of 6 ms before the decoder, and 100 launches of kernels of 2 us."""
    with program.range("forward"), program.range("decoder:Decoder"):
        program.host(6_000)
        for _ in range(100):
            program.launch(2)
            program.host(34)


def test_a_pause_counts_with_the_finding_about_it_and_not_with_the_one_about_all_launches(tmp_path: Path) -> None:
    summary = Program().steps(paused).summary(tmp_path)
    stall, bound = (next(f for f in summary.findings or () if f.code == code) for code in ("NSX114", "NSX102"))
    places = {f.code: i for i, f in enumerate(summary.findings or ())}
    # About 6 ms lie before the first launch of a step; all of it is also idle time for host code, which NSX102 is about.
    assert stall.own_ns_per_step == pytest.approx(6_000_000, rel=0.03)
    assert stall.own_ns_per_step == pytest.approx(stall.cost_ns_per_step, rel=0.01)
    assert (bound.cost_ns_per_step or 0) > 9_000_000
    assert (bound.own_ns_per_step or 0) < (bound.cost_ns_per_step or 0) - 0.99 * (stall.own_ns_per_step or 0)
    assert places["NSX114"] in bound.overlaps
    assert places["NSX102"] in stall.overlaps
    also = next(a for a in summary.answer.also if a.code in ("NSX114", "NSX102"))
    assert set(also.overlaps) <= {"NSX102", "NSX114", "NSX113"}
    assert also.overlaps
    page = html_page.render(summary)
    assert "(overlaps 1" in page
    assert "of it not counted elsewhere" in page or "all of it also counted elsewhere" in page


def claim(code: str, shares: list[float], cost: int, saving: int = 0, direct: int = 2) -> Claim:
    takes = Takes(idle=np.array(shares))
    return Claim(code, code, "found", "", "", cost_ns_per_step=cost, saving=Saving(saving), takes=takes, direct=direct)


def time(ns: list[int]) -> Pieces:
    return Pieces(np.array(ns, np.float64), len(ns), np.empty(0, np.int64))


@given(st.data())
def test_whatever_is_claimed_each_piece_is_given_once(data: st.DataObject) -> None:
    ns = data.draw(st.lists(st.integers(0, 10**9), min_size=1, max_size=8))
    steps = data.draw(st.integers(1, 5))
    step = max(1, sum(ns) // steps)
    shares = st.lists(st.floats(0, 1), min_size=len(ns), max_size=len(ns))
    row = st.tuples(shares, st.integers(0, step), st.integers(0, step), st.integers(1, 3))
    claims = [claim(f"N{i}", *r) for i, r in enumerate(data.draw(st.lists(row, max_size=5)))]
    given_ = give(time(ns), claims, step, steps)
    assert sum(g.own_ns for g in given_) <= step
    for i, (g, c) in enumerate(zip(given_, claims, strict=True)):
        assert 0 <= g.own_ns <= c.cost_ns
        assert i not in g.overlaps
        assert all(i in given_[other].overlaps for other in g.overlaps)
    if claims:  # the first in line gets all it asks for
        best = max(c.direct for c in claims)
        firsts = [i for i, c in enumerate(claims) if c.direct == best]
        if len(firsts) == 1:
            whole = sum(s * n for s, n in zip(np.asarray(claims[firsts[0]].takes.idle), ns, strict=True))
            whole *= step / max(sum(ns), 1)
            assert given_[firsts[0]].own_ns == pytest.approx(min(whole, claims[firsts[0]].cost_ns), abs=2)


def test_the_more_direct_finding_counts_the_time_and_of_two_alike_the_one_about_less() -> None:
    all_of_it, half = claim("A", [1, 1], 100), claim("B", [1, 0], 50)
    assert [g.own_ns for g in give(time([50, 50]), [all_of_it, half], 100, 1)] == [50, 50]
    direct = claim("A", [1, 1], 100, direct=3)
    assert [g.own_ns for g in give(time([50, 50]), [direct, half], 100, 1)] == [100, 0]


def test_savings_overlap_where_they_are_about_the_same_time_or_promise_more_than_both_are_about() -> None:
    apart = [claim("A", [1, 0], 50, 50), claim("B", [0, 1], 50, 50)]
    assert [g.overlaps for g in give(time([50, 50]), apart, 100, 1)] == [(), ()]
    same = [claim("A", [1, 0], 50, 25), claim("B", [1, 0], 50, 25)]
    assert [g.overlaps for g in give(time([50, 50]), same, 100, 1)] == [(1,), (0,)]
    more = [claim("A", [1, 0], 50, 90), claim("B", [0, 1], 50, 50)]
    assert [g.overlaps for g in give(time([50, 50]), more, 100, 1)] == [(1,), (0,)]


@pytest.mark.parametrize(("shared_ns", "overlaps"), [(90, False), (110, True), (150, True)])
def test_less_than_a_hundredth_of_the_step_in_common_is_no_overlap(shared_ns: int, overlaps: bool) -> None:
    both = [claim("A", [1, 1, 0], 5_000, 100), claim("B", [0, 1, 1], 5_000, 100)]
    given_ = give(time([5_000 - shared_ns, shared_ns, 5_000]), both, 10_000, 1)
    assert [g.overlaps for g in given_] == ([(1,), (0,)] if overlaps else [(), ()])
