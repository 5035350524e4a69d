"""Forward and backward several times for each step of the optimizer, each reducing gradients over the ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsysx.errors import NsysxError
from nsysx.events.micro_steps import MicroSteps, micro_steps
from nsysx.findings import _costly_when as when
from nsysx.findings._costly import SETTINGS
from nsysx.model import Finding
from nsysx.pipeline import ReadingOptions, gather_job, summarize
from nsysx.ranks import job_whatif
from nsysx.replay.changes import JobChanges
from tests.builder import Report
from tests.findings import findings_alone
from tests.ranks.test_rank_table import ALL_REDUCE
from tests.reports import gather

US = 1_000
STEPS = 8
DIVISION = "vectorized_elementwise_kernel<BUnaryFunctor<float, float, float, binary_internal::MulFunctor<float>>>"


def program(reduces: tuple[int, ...], *, optimizers: int = 1, ranks: int = 1, divides: int = 0) -> Report:
    """Steps of so many backwards, each with so many reductions of 400 us that nothing runs beside; an optimizer ends it, or each.

    All ``ranks`` do the same at the same time. Each backward ``divides`` so many gradients where they lie.
    """
    report = Report()
    for rank in range(ranks):
        _rank(report, rank, reduces, optimizers, stream=20 if ranks == 1 else 7, divides=divides)
    return report


def _rank(report: Report, rank: int, reduces: tuple[int, ...], optimizers: int, *, stream: int, divides: int) -> None:
    """Add a rank that reduces on this stream: a replay of several knows of no order but that of a stream."""
    pid = 100 + rank
    report.gpu(rank, pids=[(pid, 0)])
    process = report.process(pid)
    process.context()
    main = process.thread(pid, "python")
    t = free = 0

    def kernel(name: str, us: int, stream: int = 7) -> None:
        nonlocal t, free
        start = max(free, t + 4 * US)
        main.launch(t, 2 * US, kernel=name, gpu_start=start, gpu_dur=us * US, stream=stream)
        free, t = start + us * US, t + 5 * US

    def optimizer() -> None:
        nonlocal t
        begun = t
        t += US
        kernel("adam", 30)
        main.add_range("optimizer SGD", begun, t, domain="nsysx")

    for number in range(STEPS):
        began = t
        for count in reduces:
            begun = t
            t += US
            kernel("gemm", 100)
            main.add_range("forward", begun, t, domain="nsysx")
            begun = t
            t += US
            kernel("gemm_back", 200)
            for _ in range(divides):
                kernel(DIVISION, 10)
            for _ in range(count):
                kernel(ALL_REDUCE, 400, stream=stream)
            main.add_range("backward", begun, t, domain="nsysx")
            if optimizers > 1:
                optimizer()
        if optimizers == 1:
            optimizer()
        main.sync("cudaDeviceSynchronize_v3020", at=t, dur=max(free - t, 0) + 2 * US)
        t = max(free, t) + 5 * US
        main.add_range(f"step {number}", began, t, domain="nsysx")
        t += US


def seen(report: Report, folder: Path) -> MicroSteps | None:
    return micro_steps(gather(report, folder))


def test_each_backward_reduces(tmp_path: Path) -> None:
    micro = seen(program((2, 2, 2, 2)), tmp_path)
    assert micro is not None
    assert (micro.count, micro.each) == (4, 2)
    assert len(micro.early) % 6 == 0 and len(micro.early) >= 4 * 6


@pytest.mark.parametrize(
    "report",
    [
        program((2,)),
        program((0, 0, 0, 2)),  # no_sync is used
        program((2, 1)),  # two networks
        program((2, 2), optimizers=2),  # two trainings in turn
        program((0, 0)),
    ],
)
def test_what_is_no_needless_reduction(report: Report, tmp_path: Path) -> None:
    assert seen(report, tmp_path) is None


@pytest.mark.parametrize(
    ("view", "parameters", "goes"), [(True, 20, True), (False, 20, False), (True, 15, False), (True, 30, False)]
)
def test_gradients_that_are_divided_in_their_buckets(tmp_path: Path, view: bool, parameters: int, goes: bool) -> None:
    """Twenty products with a number in each backward are divisions of gradients where there are as many of these, in buckets."""
    settings = {
        "wrappers": [{"kind": "DDP", "gradient_as_bucket_view": view}],
        "optimizers": [{"parameters": parameters, "gradients": {"without": 0}}],
    }
    (tmp_path / "r.run.json").write_text(json.dumps({"probe": [{"pid": 100, "settings": settings}]}))
    micro = seen(program((2, 2, 2, 2), divides=20), tmp_path)
    assert micro is not None and len(micro.copies) == (10 * len(micro.early) if goes else 0)


def test_the_capture_alone_tells_to_reduce_once(tmp_path: Path) -> None:
    finding: Finding = findings_alone("NSX127", program((2, 2, 2, 2)).write(tmp_path / "r.sqlite"))[0]
    assert finding.verdict == "found"
    assert "no_sync" in finding.fix and finding.saving.bound
    assert finding.saving.likely_ns == pytest.approx(6 * 400 * US, rel=0.15)
    single = findings_alone("NSX127", program((0, 0, 0, 2)).write(tmp_path / "s.sqlite"))
    assert single[0].verdict == "cannot_tell"


def test_the_bound_counts_what_moves_gradients_into_their_buckets(tmp_path: Path) -> None:
    """Twenty divisions of 10 us in each of three early backwards go with the reductions; without views of buckets they are other work."""

    def bound(*, view: bool) -> int:
        settings = {
            "backwards": 4,
            "reducing": 4,
            "wrappers": [{"kind": "DDP", "gradient_as_bucket_view": view}],
            "optimizers": [{"parameters": 20, "gradients": {"without": 0}}],
        }
        (tmp_path / "r.run.json").write_text(json.dumps({"probe": [{"pid": 100, "settings": settings}]}))
        found = findings_alone("NSX127", program((2, 2, 2, 2), divides=20).write(tmp_path / "r.sqlite"))
        saving = next(f for f in found if "micro-step" in f.title).saving
        assert saving.bound and saving.likely_ns is not None
        return saving.likely_ns

    reductions = 6 * 400 * US
    assert bound(view=True) == pytest.approx(reductions + 3 * 20 * 10 * US, rel=0.05)
    assert bound(view=False) == pytest.approx(reductions, rel=0.05)


def test_all_ranks_are_replayed_without_the_early_reductions(tmp_path: Path) -> None:
    path = program((2, 2, 2, 2), ranks=2).write(tmp_path / "r.sqlite")
    page = summarize([path], every_table=False)
    finding = next(f for f in page.findings or () if f.code == "NSX127")
    assert not finding.saving.bound and finding.saving.source == "replay"
    assert finding.saving.likely_ns == pytest.approx(6 * 400 * US, rel=0.03)
    most = finding.saving.most_ns
    assert most is not None and most >= finding.saving.likely_ns
    answer = page.answer
    assert answer.do[-1].code == "NSX127" and answer.now_ns is not None and answer.then_low_ns is not None
    assert answer.now_ns - answer.then_low_ns >= most, (
        "what the early reductions take is the most that the interval holds"
    )
    ranks = gather_job([path], ReadingOptions()).ranks
    prices = job_whatif.prices(ranks, JobChanges(on_all_ranks="no-sync"))
    assert prices is not None
    assert prices.savings == (("--on-all-ranks no-sync", pytest.approx(finding.saving.likely_ns, abs=1)),)
    once = gather_job([program((0, 0, 0, 2), ranks=2).write(tmp_path / "s.sqlite")], ReadingOptions()).ranks
    with pytest.raises(NsysxError, match="hold nothing that it changes"):
        job_whatif.prices(once, JobChanges(on_all_ranks="no-sync"))


def test_the_setting_that_answers_it_is_the_same_row() -> None:
    assert sum(row.when is when.reduces_each for row in SETTINGS) == 1
