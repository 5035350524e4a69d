"""The kinds of work in which a rank takes longer than its peers, and what is said and advised by how that lies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nsysx.catalogue import DeviceActivity, Surplus
from nsysx.findings import nsx111_straggler
from nsysx.judging import late_kinds
from nsysx.model import Row, Table
from nsysx.ranks import job_ledger, late_work
from nsysx.ranks.rank_places import WorkPlace
from nsysx.ranks.rank_record import Rank
from tests.ranks.test_one_job import rank

FILE = "/job/train.py"


def worked(report: int, **ns: int) -> Rank:
    """Return a rank with kernels of these kinds, each at a line of its own, "rest" where no line is known."""
    lines = {"attention": 83, "gemm": 87, "norm": 90}
    work = {
        WorkPlace(k, FILE if k in lines else None, lines.get(k), "f(x)" if k in lines else ""): v for k, v in ns.items()
    }
    parts = {a.column: 0 for a in DeviceActivity} | {DeviceActivity.COMPUTE.column: 10 * sum(ns.values())}
    return rank(report, steps=10, compute_by_place=work, parts=parts)


PEER = worked(1, attention=160, gemm=300, norm=50)


@pytest.mark.parametrize(
    ("ns", "spread"),
    [
        ({"attention": 840, "gemm": 305, "norm": 50}, Surplus.ONE),
        ({"attention": 840, "gemm": 340, "norm": 50}, Surplus.SEVERAL),  # the others differ by more than a tenth
        ({"attention": 330, "gemm": 300, "norm": 250}, Surplus.SEVERAL),
        ({"attention": 320, "gemm": 600, "norm": 100}, Surplus.EVERY),
        ({"attention": 640, "gemm": 600, "norm": 100}, Surplus.EVERY),  # attention grows with the square
        ({"attention": 160, "gemm": 300, "norm": 50}, None),
        ({"attention": 260, "gemm": 200, "norm": 40}, None),
    ],
)
def test_how_the_surplus_of_a_rank_lies(ns: dict[str, int], spread: Surplus | None) -> None:
    assert late_work.spread(late_work.kinds(worked(0, **ns), [PEER])) == spread


def test_kernels_that_only_take_longer_are_no_more_work() -> None:
    """As large and as often as on the peers: what runs beside them, such as communication, slows them."""
    for kernel, spread in (("flash_fwd", Surplus.SEVERAL), ("flash_other", Surplus.ONE)):
        late = replace(worked(0, attention=840, gemm=305, norm=50), kernels={("flash_fwd", 8, 8): (10, 8_400)})
        peer = replace(PEER, kernels={(kernel, 8, 8): (10, 1_600)})
        assert late_work.spread(late_work.kinds(late, [peer])) == spread


@pytest.mark.parametrize(
    ("norms", "spread"),
    [(2, Surplus.ONE), (4, Surplus.SEVERAL)],  # the same kernels, slower beside another rank's; more rows, too
)
def test_other_kinds_are_alike_if_their_kernels_are_as_large_and_as_often(norms: int, spread: Surplus) -> None:
    both = {("gemm", 132, 8): (10, 3_600), ("rms_norm", norms, 8): (10, 400)}
    late = replace(worked(0, attention=840, gemm=360, norm=40), kernels={("flash_fwd", 16, 8): (10, 8_400), **both})
    usual = {("flash_fwd", 8, 8): (10, 1_600), ("gemm", 132, 8): (10, 3_000), ("rms_norm", 2, 8): (10, 500)}
    assert late_work.spread(late_work.kinds(late, [replace(PEER, kernels=usual)])) == spread


METRIC = WorkPlace("sort", FILE, 120, "scores = auc(logits)")


@pytest.mark.parametrize(
    ("own", "ns", "lines"),
    [
        ({METRIC: 400}, {}, [120]),
        ({METRIC: 400, METRIC._replace(family="reduce"): 500}, {}, [120]),  # of several kinds, at one line
        ({METRIC: 400, METRIC._replace(line=125): 100}, {}, [120, 125]),
        ({METRIC: 400}, {"gemm": 330}, [120]),  # and a little slower for itself
        ({METRIC: 400}, {"attention": 560}, []),  # most of it is more of what all run
        ({METRIC: 400}, {"rest": -1}, []),  # the peers may run it as well: some of their lines are not known
        ({METRIC._replace(file=None, line=None): 400}, {}, []),
        ({METRIC._replace(line=83): 400}, {}, []),  # more kinds at a line that all run
    ],
)
def test_work_at_lines_that_no_other_rank_runs(own: dict[WorkPlace, int], ns: dict[str, int], lines: list[int]) -> None:
    """Metrics, pictures or augmentation on one rank: of several kinds, and none of it is more data."""
    usual = {"attention": 160, "gemm": 300, "norm": 50} | {kind: n for kind, n in ns.items() if n > 0}
    late = worked(0, **usual)
    late = replace(late, compute_by_place={**late.compute_by_place, **own})
    peer = (
        replace(PEER, compute_by_place={**PEER.compute_by_place, WorkPlace("sort", None, None, ""): 390})
        if "rest" in ns
        else PEER
    )
    assert [kind.site and kind.site.line for kind in late_work.at_own_lines(late, [peer, PEER, peer])] == lines


def test_what_one_rank_does_for_all_is_told_by_its_line() -> None:
    found = straggler(Surplus.LONE, "sort")
    assert found.fix.startswith("Only rank 1 runs train.py:83 `f(x)`") and found.where.get("line") == 83
    assert "None of that runs on its peers" in found.detail and not found.remedies


def test_of_a_program_of_one_kind_of_work_nothing_tells_what_is_uneven() -> None:
    for rest, spread in ((10, Surplus.EVERY), (40, Surplus.ONE)):
        kinds = late_work.kinds(worked(0, gemm=600, norm=rest), [worked(1, gemm=300, norm=rest)])
        assert late_work.spread(kinds) == spread
    assert late_work.spread(()) is None


def test_kinds_are_compared_with_the_median_of_the_peers_and_have_the_line_of_most_of_it() -> None:
    late, peers = worked(0, attention=840, gemm=290, rest=7), [PEER, worked(2, attention=150, gemm=310, norm=50)]
    kinds = late_work.kinds(late, peers)
    assert [(k.family, k.ns, k.ns_there) for k in kinds] == [
        ("attention", 840, 155), ("rest", 7, 0), ("gemm", 290, 305), ("norm", 0, 50)
    ]  # fmt: skip
    assert sum(k.ns for k in kinds) == sum(late.compute_by_place.values())
    assert kinds[0].site == WorkPlace("attention", FILE, 83, "f(x)") and kinds[1].site is None
    assert [late_kinds.of_row(row) for row in late_work.rows_per_step(kinds)] == ["attention, train.py:83"]
    assert late_work.kinds(late, []) == () and late_work.kinds(late, [PEER, rank(2)]) == ()
    two = {WorkPlace("gemm", FILE, n, ""): 100 * n for n in (1, 2, 3)}
    split = rank(0, compute_by_place=two)
    (kind,) = late_work.kinds(split, [rank(1, compute_by_place={WorkPlace("gemm", FILE, 1, ""): 50})])
    assert kind.site is not None and kind.site.line == 3  # 300 of 550
    (kind,) = late_work.kinds(split, [rank(1, compute_by_place={WorkPlace("gemm", FILE, 3, ""): 250})])
    assert kind.site is not None and kind.site.line == 2
    (kind,) = late_work.kinds(split, [rank(1, compute_by_place={WorkPlace("gemm", FILE, 3, ""): 140})])
    assert kind.site is None  # 200 of 460: no line has half of it


#: The lines of an optimizer that deals matrices out: of the step's call, of the loop's, and of the function that it calls for each.
STEP, EACH, ROUND, SQUARE = (WorkPlace("gemm", FILE, line, f"f{line}(x)") for line in (140, 93, 54, 52))


@pytest.mark.parametrize(
    ("here", "there", "line"),
    [
        # Line 93 calls lines 54 and 52, neither of which has nearly all of what is more.
        ({STEP: 260, EACH: 250, ROUND: 150, SQUARE: 100}, {STEP: 60, EACH: 50, ROUND: 30, SQUARE: 20}, 93),
        ({STEP: 260, EACH: 250, ROUND: 240, SQUARE: 10}, {STEP: 60, EACH: 50, ROUND: 40, SQUARE: 10}, 54),
        # Most of what is more lies elsewhere, as in a longer batch; peers do not run the line; all of that kind is below it.
        ({STEP: 160, EACH: 150, ROUND: 90, SQUARE: 60}, {STEP: 60, EACH: 50, ROUND: 30, SQUARE: 20}, 87),
        ({STEP: 200, EACH: 200}, {}, 87),
        ({STEP: 490}, {STEP: 290}, 87),
        ({}, {}, 87),
    ],
)
def test_work_outside_of_networks_that_ranks_deal_out_has_the_line_that_calls_it(
    here: dict[WorkPlace, int], there: dict[WorkPlace, int], line: int
) -> None:
    late = replace(worked(0, attention=160, gemm=500, norm=50), compute_outside=here)
    (first, *_) = late_work.kinds(late, [replace(PEER, compute_outside=there)])
    assert first.family == "gemm" and first.site is not None and first.site.line == line
    assert first.dealt == (line != 87) == late_work.rows_per_step([first])[0]["dealt"]


class Parameter:
    """A square matrix, as far as its cost is asked for."""

    def __init__(self, rows: int) -> None:
        self.shape = (rows, rows)

    def numel(self) -> int:
        return self.shape[0] ** 2


def test_what_is_dealt_out_unevenly_is_dealt_out_by_cost() -> None:
    found = straggler(Surplus.ONE, "gemm", dealt=True)
    assert found.fix.startswith(
        "Deal out by cost, not by number, what each rank computes here: rank 1 has more GEMM (68.00 ms a step)"
    )
    assert [r.name for r in found.remedies] == ["dealt-by-cost"] and found.where.get("line") == 83
    table = Parameter(1_000)  # an embedding, say: the largest of all, and none for which the line runs
    params = [Parameter(n) for n in (8, 8, 64, 8, 64, 8)]
    names: dict[str, Any] = {
        "world": 2,
        "params": params,
        "owner": {},
        "depth": lambda p: 1 if p is table else min(p.shape),
    }
    exec(found.paste, names)
    assert (
        sorted(names["owner"][p] for p in names["params"] if p.numel() == 4_096) == [0, 1]
        and len(set(names["load"])) == 1
    )
    names |= {"params": [table, *(Parameter(256) for _ in range(8))], "owner": {}}
    exec(found.paste, names)
    assert sum(names["owner"][p] for p in names["params"][1:]) == 4


def test_waiting_names_the_kind_of_work_and_its_line() -> None:
    late = worked(0, attention=840, gemm=305, norm=50)
    late = replace(late, kernels={("flash_fwd", 8, 8): (10, 8_400)})
    parts = job_ledger.why(
        late, replace(PEER, kernels={("sdpa", 8, 8): (10, 1_600)}), 6_850
    )  # GEMM is longer by less than is worth a row
    assert [(w.detail, w.ns) for w in parts] == [
        ("attention, train.py:83 (kernels not on the others)", 6_800),
        (None, 50),
    ]
    parts = job_ledger.why(worked(0, attention=260, gemm=400, norm=50), PEER, 2_300)
    assert [(w.cause, w.detail, w.ns) for w in parts] == [
        ("compute", "GEMM, train.py:87", 1_000), ("compute", "attention, train.py:83", 1_000), ("in turn", None, 300)
    ]  # fmt: skip


def straggler(
    spread: Surplus | None,
    kind: str | None = "attention",
    *,
    by_work: bool = False,
    cause: str = "compute",
    dealt: bool = False,
) -> Any:
    """Return the finding about rank 1, which is late in GPU work that lies so."""
    work = [
        {
            "kind": kind,
            "ns": 84_000_000,
            "others_ns": 16_000_000,
            "how": None,
            "file": FILE,
            "line": 83,
            "text": "f(x)",
            "dealt": dealt,
        }
    ]
    late: Row = {
        "rank": 1, "straggler": True, "wait_ns": 0, "late_ns": 68_000_000, "late_low_ns": 67_000_000, "late_high_ns": 69_000_000,
        "late_cause": cause, "late_drift_ns": 0, "clock_mhz": 345, "most_clock_mhz": 1980,
        "price_ns": 60_000_000, "price_share": 1.0, "alone_share": 1.0,
        "even_ns": 30_000_000, "replay_error": 0.0, "late_by_work": by_work, "late_because": {}, "late_kernels": None,
        "late_lines": None, "late_work": work if kind else None, "late_spread": spread,
    }  # fmt: skip
    rows = (late | {"rank": 0, "straggler": False}, late)
    return nsx111_straggler.of_ranks(Table("ranks", "", (), rows))


@pytest.mark.parametrize("by_work", [False, True])
def test_what_tracing_hides_of_a_slow_gpu_is_a_bound(by_work: bool) -> None:
    found = straggler(None, None, by_work=by_work, cause="held_clock")
    assert "nvidia-smi" in found.paste and found.saving.bound == by_work


@pytest.mark.parametrize("by_work", [False, True])
@pytest.mark.parametrize(
    ("spread", "kind", "remedy", "words", "line"),
    [
        (Surplus.ONE, "attention", ["equal-attention"], "every other kind of work takes as long", 83),
        (Surplus.ONE, "gemm", [], "All that is in GEMM, train.py:83", 83),
        (Surplus.EVERY, "gemm", ["equal-work"], "it has more data", None),
        (
            Surplus.SEVERAL,
            "gemm",
            ["equal-work"],
            "The largest part of its GPU work that takes longer is in GEMM",
            None,
        ),
        (None, None, ["equal-work"], "", None),
    ],
)
def test_what_to_do_about_more_work_goes_by_what_is_uneven(
    spread: Surplus | None, kind: str | None, remedy: list[str], words: str, line: int | None, by_work: bool
) -> None:
    found = straggler(spread, kind, by_work=by_work)
    assert [r.name for r in found.remedies] == remedy and words in found.detail
    assert found.where.get("line") == line and found.where["near"] == "rank 1"
    assert ("same amount of GEMM, train.py:83" in found.fix) == (spread is Surplus.ONE and kind == "gemm")
    assert any("work" in row for row in found.evidence) == (kind is not None)
    # A rank's parts of attention are calls of their own: a fifth of what even shares save is lost to that, or two fifths, or nothing.
    parts = kind == "attention" and not by_work
    assert found.saving.likely_ns == (24_000_000 if parts else 30_000_000)
    assert (found.saving.error_ns, found.saving.most_ns) == ((6_000_000, 30_000_000) if parts else (None, None))
