"""What a job takes with one rank, its work or its links changed: replayed together, and never faster than the slowest rank's own work."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsysx import units
from nsysx.catalogue import Late, Surplus
from nsysx.errors import NsysxError
from nsysx.events.other_ranks import Modelled
from nsysx.pipeline import ReadingOptions, gather_job
from nsysx.ranks import behind_columns, job_compared, job_whatif, late_work, rank_table
from nsysx.ranks.job_compared import compare
from nsysx.ranks.own_time import own_times
from nsysx.ranks.straggler import Straggler
from nsysx.replay import no_comm, whatif_json
from nsysx.replay.changes import Changes, JobChanges
from nsysx.replay.replay_bounds import HIDDEN_SLOWS_SHARES
from nsysx.replay.slowed_kernels import slowed_ns
from tests.ranks import rank_rows
from tests.ranks.test_rank_table import reports
from tests.ranks.test_straggler import job
from tests.samples import unpack

US, MS = 1_000, 1_000_000


def test_a_host_that_was_slower_while_measured_hides_no_communication() -> None:
    """The measured step is longer than the modelled ones: all of what communication takes may go. Shorter: hosts are so much faster."""
    ranks = [Modelled(60, 40, 80), Modelled(50, 48, 90)]
    assert no_comm.job_step(100, ranks) == 60
    assert no_comm.job_step(72, ranks) == 54, "the first is the slower one, at 0.9 of its modelled step"
    assert no_comm.job_step(45, ranks) == 45, "no faster than the GPU's work, and no slower than the step now"
    turns = [Modelled(60, 0, 80, {1: 80, 2: 40}), Modelled(50, 0, 90, {1: 20, 2: 80})]
    assert no_comm.job_step(120, turns) == 80, "in each step another rank is the slowest"
    assert no_comm.job_step(100, turns) == 75, "as it is in the step as measured: of one rank's 80, 20 go"


#: Kernels beside communication take longer than alone (share).
ROUGHLY = 0.03


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return job(tmp_path_factory.mktemp("job") / "j.sqlite", [[20 * MS] * 12, [20 * MS] * 12, [50 * MS] * 12])


def answered(path: Path, **changes: object) -> list[str]:
    return job_whatif.lines(gather_job([path], ReadingOptions()).ranks, JobChanges(**changes))  # type: ignore[arg-type]


def test_a_job_is_answered_as_on_its_page(uneven: Path) -> None:
    head, late, even = answered(uneven, usual_rank=2, equal_ranks=True)
    assert head.startswith("all 3 ranks replayed together: 50.")
    row = next(r for r in rank_rows(uneven) if r["straggler"])
    assert late.startswith("--usual-rank 2") and "saves 30.00 ms" in late and row["price_ns"] == 30 * MS
    assert even.startswith("--equal-ranks") and f"saves {units.duration(row['even_ns'])} " in even


def test_even_work_that_tracing_hides_is_the_bound_of_the_page() -> None:
    times: Any = SimpleNamespace(even_ns=lambda: 19.0)
    for late, even in (
        (None, 19.0),
        (SimpleNamespace(by_work=True, even_ns=86, peers=(0, 1)), 86.0),
        (SimpleNamespace(by_work=True, even_ns=86, peers=(2, 3)), 19.0),
        (SimpleNamespace(by_work=False, even_ns=20, peers=(0, 1)), 20.0),
        (SimpleNamespace(by_work=False, even_ns=None, peers=(0, 1)), 19.0),
    ):
        compared: Any = SimpleNamespace(late=late)
        assert job_whatif._even_ns(compared, (0, 1), times) == even


def test_a_usual_rank_saves_what_the_page_says_where_tracing_hides_its_work() -> None:
    times: Any = SimpleNamespace(price_ns=lambda r: 19.0)
    by_work = SimpleNamespace(by_work=True, price_ns=86, place=5, peers=(4, 5))
    for late, r, saved in (
        (by_work, 1, 86.0),
        (by_work, 0, 19.0),
        (SimpleNamespace(by_work=True, price_ns=86, place=5, peers=(5, 6)), 1, 19.0),
        (SimpleNamespace(by_work=False, price_ns=20, place=5, peers=(4, 5)), 1, 19.0),
        (None, 1, 19.0),
    ):
        compared: Any = SimpleNamespace(late=late)
        assert job_whatif._usual_ns(compared, (4, 5), times, r) == saved


def test_what_saves_nothing_is_not_listed(uneven: Path) -> None:
    listed = [line.split()[0] for line in answered(uneven)[1:]]
    assert listed == ["--usual-rank"]
    (_, links) = answered(uneven, faster_links=2)
    assert "saves 25.0 us" in links or "saves 25 us" in links  # half of the 50 us that an all-reduce takes


def test_hidden_transfer_slows_the_computation_beside_it(uneven: Path) -> None:
    """Rank 2 computes for 50 ms, and its all-reduce transfers for 50 us: hidden, it saves what it does not slow."""
    given = gather_job([uneven], ReadingOptions()).ranks
    compared = compare(given)
    times = None if compared is None else own_times(compared.aligned, (0, 1, 2))
    assert times is not None
    free, hidden = times.transferred_ns(0.0), times.hidden_ns()
    assert 0 < hidden == pytest.approx((1 - HIDDEN_SLOWS_SHARES[1]) * free, rel=0.05)


def test_no_job_is_faster_than_its_slowest_rank(uneven: Path) -> None:
    (_, hidden) = answered(uneven, hide_transfer=True)
    assert "step 50." in hidden


def test_what_cannot_be_replayed_or_named_is_said(uneven: Path, tmp_path: Path) -> None:
    with pytest.raises(NsysxError, match="the ranks are 0, 1, 2"):
        answered(uneven, usual_rank=7)
    alone = reports(tmp_path, [300 * US, 300 * US], starts=[0, 0], clocks=[0, 0])[0]
    assert answered(alone) == []
    with pytest.raises(NsysxError, match="one rank"):
        answered(alone, equal_ranks=True)


@pytest.mark.parametrize(
    "names", [("ddp",), tuple(f"ddp_per_rank.rank{r}" for r in range(2)), tuple(f"ddp_four.rank{r}" for r in range(4))],
    ids=["two in one", "two", "four"],
)  # fmt: skip
def test_no_change_of_a_real_job_beats_what_its_ranks_compute(names: tuple[str, ...], tmp_path: Path) -> None:
    """The last rank of each job has twice the batch: without any communication the others wait for it, and evened out there is the mean."""
    given = gather_job([unpack(name, tmp_path) for name in names], ReadingOptions())
    compute = [rank.parts["compute_ns"] / rank.steps for rank in given.ranks]
    slowest, mean = max(compute), sum(compute) / len(compute)
    for rank, ns in zip(
        given.ranks, compute, strict=True
    ):  # kernels of one stream, by kind and line, are what the rank computes
        assert sum(rank.compute_by_place.values()) == pytest.approx(ns, rel=0.01)
    assert late_work.spread(late_work.kinds(given.ranks[-1], given.ranks[:-1])) is Surplus.EVERY
    (alone,) = whatif_json.values(given.profile, Changes(no_comm=True))["changes"]
    # What kernels take longer beside communication is no work of the slowest rank: the answer says how much that is.
    slowed = slowed_ns(given.profile) / given.profile.scope.steps
    assert slowest - slowed - ROUGHLY * slowest <= alone["step_ns"]
    assert units.duration(slowed) in alone["change"] and "upper bound" in alone["change"]
    listed = job_whatif.prices(given.ranks, JobChanges())
    links = [
        job_whatif.prices(given.ranks, JobChanges(faster_links=100)),
        job_whatif.prices(given.ranks, JobChanges(hide_transfer=True)),
    ]
    assert listed is not None and listed.savings
    for prices in (listed, *links):
        assert prices is not None
        for option, saved in prices.savings:
            assert not option.startswith(("--faster", "--hide", "--on-all")) or saved <= alone["saving_ns"], option
            least = (
                slowest
                if option.startswith(("--faster", "--hide", "--on-all"))
                else min(compute)
                if "usual" in option
                else mean
            )
            assert prices.step_ns - saved >= (1 - ROUGHLY) * least, option


def test_what_all_ranks_can_change_is_told_of_each_rank_of_their_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups: of the one whose replays hold nothing that can change, nothing is told."""
    left, none = SimpleNamespace(changes=("x",)), SimpleNamespace(changes=())
    compared: Any = SimpleNamespace(
        costs=(), aligned="aligned", ranks=[SimpleNamespace(played=p) for p in (left, None, none, none)]
    )
    monkeypatch.setattr(rank_table.straggler, "groups", lambda _: [(0, 1), (2, 3)])
    asked = []

    def times(aligned: object, group: tuple[int, ...]) -> Any:
        asked.append((aligned, group))
        return SimpleNamespace(changed_ns=lambda: {"x": 1234.6})

    monkeypatch.setattr(job_compared, "own_times", times)
    assert job_compared.changed(compared) == {0: {"x": 1235}, 1: {"x": 1235}}
    assert asked == [("aligned", (0, 1))]


@pytest.mark.parametrize(
    ("cause", "kernels", "lines"),
    [(Late.COMPUTE, True, False), (Late.HOST, False, True), (Late.INPUT, False, True), (Late.UNKNOWN, False, True)],
)
def test_what_makes_a_rank_late_is_told_of_that_rank_by_its_cause_alone(
    monkeypatch: pytest.MonkeyPatch, cause: Late, kernels: bool, lines: bool
) -> None:
    """Held against the peers of the late rank. Nothing found is not known, never an empty list."""
    found: list[dict[str, int]] = [{"ns": 1}]
    ranks: Any = ["a", "b", "c", "d"]
    held = []
    monkeypatch.setattr(behind_columns.uneven, "differences", lambda rank, peers: held.append((rank, peers)))
    monkeypatch.setattr(behind_columns.late_lines, "longer", lambda rank, peers: held.append((rank, peers)))
    monkeypatch.setattr(behind_columns.uneven, "rows", lambda _: list(found))
    monkeypatch.setattr(behind_columns.late_lines, "rows_per_step", lambda _: list(found))
    monkeypatch.setattr(behind_columns.late_work, "kinds", lambda *_: ())
    monkeypatch.setattr(behind_columns.late_work, "at_own_lines", lambda *_: ())
    late = Straggler(
        1,
        (0, 1, 3),
        late_ns=5,
        low_ns=4,
        high_ns=6,
        drift_ns=1,
        cause=cause,
        price_ns=5,
        without=0.9,
        alone=0.5,
        error=0.0,
    )

    def told(late: Straggler | None, rank: int) -> tuple[object, object]:
        columns = behind_columns.of_rank(ranks, late, rank)
        return columns["late_kernels"], columns["late_lines"]

    assert told(late, 1) == (found if kernels else None, found if lines else None)
    assert held == [("b", ["a", "d"])]
    assert told(late, 0) == told(None, 1) == (None, None)
    found.clear()
    assert told(late, 1) == (None, None)
