"""Random programs of two to four ranks on the simulated machine: who is late there, and what it costs, is known."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsysx import pipeline
from nsysx.pipeline import summarize
from nsysx.ranks import job_compared, rank_table
from nsysx.replay import tracing_costs, unprofiled
from tests.builder import Report
from tests.examples import examples
from tests.ranks.test_rank_table import ALL_REDUCE
from tests.ranks.test_straggler import SEND
from tests.replay.machine import CALL, PAUSE, US, Action, Machine
from tests.samples import RECORDED_COSTS

_COMPUTE, _NETWORK = 7, 20
#: What all ranks do together.
_KERNELS = {"reduce": ALL_REDUCE, "hand": SEND}
_RECORDED, _SETTLED, _LONG = 12, 15, 40
#: How far a price may be off: a share of the truth, and ns of what a step is known to.
_CLOSE, _LEAST_NS = 0.05, 3_000


class Job:
    """Ranks that run a program in step, each with durations of its own; ("reduce", us) ends on all of them together, and so does
    ("hand", us), a message from one to the other.

    ``apart``: each has a report of its own.
    """

    def __init__(self, programs: Sequence[Sequence[Action]], *, apart: bool = False) -> None:
        self.programs = programs
        self.report = Report()
        of = [Report() if apart else self.report for _ in programs]
        self.ranks = [Machine(program, report=of[r], now=100 + 7 * r) for r, program in enumerate(programs)]

    def run(self, steps: int) -> Job:
        threads = [rank.report.process(100 + r).thread(100 + r, "python") for r, rank in enumerate(self.ranks)]
        for number in range(steps):
            begun = [rank.now for rank in self.ranks]
            for actions in zip(*self.programs, strict=True):
                if actions[0][0] in _KERNELS:
                    self._together(threads, *actions[0])
                    continue
                for rank, thread, action in zip(self.ranks, threads, actions, strict=True):
                    getattr(rank, f"_{action[0]}")(thread, *action[1:])
            for rank, thread, begin in zip(self.ranks, threads, begun, strict=True):
                thread.add_range(f"step {number}", begin * US, rank.now * US, domain="nsysx")
                rank.ends_us.append(max(rank.free.values()))
        return self

    def _together(self, threads: Sequence[Any], what: str, us: int) -> None:
        came = [max(rank.now + CALL, rank.free.get(_NETWORK, 0) + PAUSE) for rank in self.ranks]
        end = max(came) + us
        for rank, thread, start in zip(self.ranks, threads, came, strict=True):
            thread.launch(
                rank.now * US,
                CALL * US,
                kernel=_KERNELS[what],
                gpu_start=start * US,
                gpu_dur=(end - start) * US,
                stream=_NETWORK,
            )
            rank.free[_NETWORK] = end
            rank.now += CALL

    def step_us(self) -> float:
        return max(rank.step_us(_SETTLED) for rank in self.ranks)


def reduced(event: int, us: int, what: str = "reduce") -> list[Action]:
    """An all-reduce of what the compute stream made, which the compute stream waits for: as DDP does."""
    before, after = ("record", event, _COMPUTE), ("record", event + 1, _NETWORK)
    return [before, ("hold", event, _NETWORK), (what, us), after, ("hold", event + 1, _COMPUTE)]


def stage(place: int, micro_batches: int, forward_us: int, *, norm: bool) -> list[Action]:
    """One of two stages; backward takes twice what forward does. ``norm``: the stages add up the norms of their gradients."""
    made: list[Action] = []
    for event in range(2 * micro_batches):
        backward = event >= micro_batches
        work: list[Action] = [("launch", "gemm", forward_us * (1 + backward), _COMPUTE)]
        nothing: list[Action] = [("host", 0)]
        gives = place == backward
        made += [*(work if gives else nothing), *reduced(1 + 2 * event, 10, "hand"), *(nothing if gives else work)]
    made += reduced(99, 10) if norm else []
    return [*made, ("host", 25), ("launch", "sgd", 20, _COMPUTE), ("sync", None)]


@st.composite
def programs(draw: Any) -> list[Action]:
    launch = st.tuples(st.just("launch"), st.sampled_from(("gemm", "add")), st.integers(5, 200), st.just(_COMPUTE))
    other = st.one_of(
        st.tuples(st.just("host"), st.integers(5, 80)),
        st.tuples(st.just("item"), st.just(_COMPUTE)),
        st.tuples(st.just("stage"), st.integers(0, 20), st.integers(20, 150), st.just(_COMPUTE)),
        st.tuples(st.just("compile"), st.integers(100, 2_000)),
    )
    program: list[Action] = []
    for block in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(1, 3))):  # a period inside the step
            program += [draw(launch), *draw(st.lists(st.one_of(launch, launch, other), max_size=4))]
        program += reduced(1 + 2 * block, draw(st.integers(10, 120)))
    return [*program, draw(launch), ("host", 25), ("sync", None)]


def slowed(program: Sequence[Action], what: str, us: int) -> list[Action]:
    """Return the program with more of one kind of work at its begin."""
    first = next(i for i, action in enumerate(program) if action[0] == "launch")
    if what == "compute":
        name, took, stream = program[first][1:]
        return [*program[:first], ("launch", name, took + us, stream), *program[first + 1 :]]
    return [*program[:-2], ("host", 25 + us), program[-1]]


def told(job: Job) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = job.run(_RECORDED).report.write(Path(folder) / "job.sqlite")
        rows = rank_table.table(
            job_compared.compare(pipeline.gather_job([path], pipeline.ReadingOptions()).ranks), ""
        ).rows
        assert rows is not None
        return [dict(row) for row in rows]


@settings(max_examples=examples(4), deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.integers(2, 4), st.sampled_from(("compute", "host", "nobody")), st.data())
def test_the_price_of_a_late_rank(program: list[Action], count: int, what: str, data: st.DataObject) -> None:
    usual = [program] * count
    if what == "nobody":
        assert not any(row["straggler"] for row in told(Job(usual)))
        return
    now = Job(usual).run(_LONG).step_us()
    late = data.draw(st.integers(0, count - 1))
    changed = [slowed(program, what, round(now)) if r == late else list(program) for r in range(count)]
    true = (Job(changed).run(_LONG).step_us() - now) * US
    rows = told(Job(changed))
    assert all(row["replay_error"] is None or row["replay_error"] < 0.05 for row in rows)
    named = [row for row in rows if row["straggler"]]
    if true > 0.4 * now * US:  # beyond what host code may differ by
        assert [rows.index(row) for row in named] == [late]
    for row in named:
        assert rows.index(row) == late
        assert abs(row["price_ns"] - true) <= _CLOSE * true + _LEAST_NS, (row["price_ns"], true)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("first_us", [200, 300, 400])
def test_more_micro_batches_come_first_in_a_pipeline(tmp_path: Path, first_us: int, norm: bool) -> None:
    """The ranks met at a barrier before the steps. That makes no peers of them: each waits for the other in every step."""
    job = Job([stage(0, 4, first_us, norm=norm), stage(1, 4, 300, norm=norm)])
    threads = [job.report.process(100 + r).thread(100 + r, "python") for r in (0, 1)]
    for thread in threads:
        thread.launch(50 * US, 5 * US, kernel=ALL_REDUCE, gpu_start=60 * US, gpu_dur=10 * US, stream=22)
    summary = summarize([job.run(_RECORDED).report.write(tmp_path / "pipeline.sqlite")], every_table=False)
    assert not any(row["straggler"] for row in summary.rows("ranks"))
    assert "more micro-batches" in summary.answer.do[0].text
    # Four times as many make the bubble a quarter, not nothing, and each works less well.
    told = next(f for f in summary.findings or () if f.code == "NSX110")
    assert told.saving.most_ns is not None and 0 < (told.saving.likely_ns or 0) < 0.5 * told.saving.most_ns


def test_a_replay_that_is_off_widens_the_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a pipeline whose unchanged replay was 3 % off, another process took 3.4 % more than the recorded step."""
    monkeypatch.setattr(tracing_costs, "ASSUMED", RECORDED_COSTS)
    paths = [Job([stage(0, 4, 300, norm=False)] * 2).run(_RECORDED).report.write(tmp_path / "pipeline.sqlite")]
    near = summarize(paths, every_table=False).unprofiled
    monkeypatch.setattr(unprofiled.Model, "error", 0.03)
    far = summarize(paths, every_table=False).unprofiled
    assert near is not None and far is not None
    assert far.step_ns == near.step_ns
    assert far.high_ns >= 1.05 * far.step_ns - 1 > near.high_ns
    assert far.low_ns <= min(near.low_ns, 0.96 * far.step_ns + 1)


def test_a_rank_alone_keeps_the_collective_that_nothing_hides(tmp_path: Path) -> None:
    """Rank 1 waits long where it computes meanwhile, and not at all where everybody waits for it: each has its own share."""

    def steps(first: int, beside: int) -> list[Action]:
        return [
            *(("launch", "gemm", first, _COMPUTE), ("record", 1, _COMPUTE), ("hold", 1, _NETWORK), ("reduce", 100)),
            *(("launch", "add", beside, _COMPUTE), ("record", 2, _COMPUTE), ("hold", 2, _NETWORK), ("reduce", 100)),
            *(("host", 25), ("sync", None)),
        ]

    programs = [steps(500, 100), steps(20, 900)]
    ranks = Job(programs, apart=True).run(_RECORDED).ranks
    paths = [rank.report.write(tmp_path / f"rank{r}.sqlite") for r, rank in enumerate(ranks)]
    profile = pipeline.gather_job(paths, pipeline.ReadingOptions()).profile
    assert profile.other_ranks is not None and profile.other_ranks.alone is not None
    slower = max([each.step_ns for each in profile.other_ranks.alone])
    assert slower == pytest.approx(Job(programs).run(_LONG).step_us() * US, rel=0.01)
