"""NSX110: stages of a pipeline that work in turn, that have too many micro-batches or enough of them, by reports of two ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsysx.answer.change_savings import margins_ns
from nsysx.events.profile import Profile
from nsysx.findings import _pipeline_stages, nsx110_exposed_comm
from nsysx.model import Finding
from nsysx.pipeline import summarize
from nsysx.replay import rank_alone
from tests.builder import Report
from tests.findings import only_finding

SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
US, STEPS, FORWARD_US, BACKWARD_US = 1_000, 12, 1_000, 2_000


class Stage:
    """A stage: it works and exchanges messages on its GPU, which is free from ``free`` on."""

    def __init__(self, report: Report, rank: int) -> None:
        self.rank, self.free, self.called = rank, 0, 0
        process = report.process(100 + rank)
        self.thread = process.thread(process.pid, "python3")
        report.gpu(rank, pids=[(100 + rank, rank)])

    def gpu(self, kernel: str, end: int) -> None:
        stream, busy = 20 if kernel == SEND else 7, end - self.free
        self.thread.launch(
            self.called, kernel=kernel, gpu_start=self.free, gpu_dur=busy, stream=stream, device=self.rank
        )
        self.free, self.called = end, self.called + 1_000

    def works(self, us: int) -> None:
        if us:
            self.gpu("gemm", self.free + us * US)


def job(folder: Path, count: int, *, in_turn: bool, late_us: int = 10) -> Path:
    """A step of ``count`` micro-batches on two stages. ``in_turn``: each comes back before the next one begins; a message takes
    ``late_us``.
    """
    report = Report()
    first, last = Stage(report, 0), Stage(report, 1)
    micro = (FORWARD_US + BACKWARD_US + late_us) * US
    period = (2 * count if in_turn else count + 1) * micro + 200 * US

    def exchange() -> None:
        end = max(first.free, last.free) + late_us * US
        first.gpu(SEND, end)
        last.gpu(SEND, end)

    for i in range(STEPS):
        t = 1_000_000 + i * period
        for stage in (first, last):
            stage.free, stage.called = t + 100_000, t + 1_000
            stage.thread.add_range(f"step {i}", t, t + period - 1_000, domain="nsysx")
        first.works(FORWARD_US)
        exchange()
        for batch in range(count):
            last.works(FORWARD_US + BACKWARD_US)
            if in_turn:
                exchange()
                first.works(BACKWARD_US)
                if batch < count - 1:
                    first.works(FORWARD_US)
                    exchange()
            else:  # 1F1B: the first stage is one forward ahead
                first.works(BACKWARD_US if batch else 0)
                first.works(FORWARD_US if batch < count - 1 else 0)
                exchange()
        first.works(0 if in_turn else BACKWARD_US)
        end = max(first.free, last.free)
        for stage in (first, last):
            called = stage.called + 10_000
            stage.thread.sync("cudaDeviceSynchronize_v3020", at=called, dur=end - called, device=stage.rank)
    probe = [
        {"pid": 100 + rank, "backend": "nvtx", "ranges": {}, "ranges_pushed": STEPS, "settings": settings(count)}
        for rank in (0, 1)
    ]
    (folder / "r.run.json").write_text(json.dumps({"probe": probe}))
    return report.write(folder / "r.sqlite")


def settings(count: int) -> dict[str, object]:
    return {"wrappers": [], "backwards": count}


def finding(path: Path) -> Finding:
    return only_finding("NSX110", path)


def test_stages_that_take_turns_are_told_to_keep_several_batches_in_flight(tmp_path: Path) -> None:
    """Four micro-batches of 6 ms, one after the other, would take 15 ms beside each other."""
    found = finding(job(tmp_path, 4, in_turn=True))
    assert [way.name for way in found.remedies] == ["batches-in-flight"]
    assert "4 micro-batches beside each other they need 15.00 ms" in found.detail
    saved, error, most = found.saving_ns_per_step, found.saving.error_ns, found.saving.most_ns
    assert saved is not None and error is not None and most is not None
    assert saved - error < 9_000_000 < most == pytest.approx(10_000_000, rel=0.2)


@pytest.mark.parametrize("in_turn", [True, False])
def test_hosts_that_are_slow_set_the_pace_of_stages_that_no_longer_take_turns(
    in_turn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 24 ms GPUs need 15 for work beside each other, and the slower host 20, or far less; slow hosts alone take no turns."""

    def hosts_ns(profile: Profile, most_ns: int) -> dict[int, int]:
        return dict(zip(sorted(profile.steps.windows["process"].unique()), (20_000_000, 18_000_000), strict=True))

    monkeypatch.setattr(rank_alone, "hosts_ns", hosts_ns)
    summary = summarize([job(tmp_path, 4, in_turn=in_turn)], every_table=False)
    (found,) = (f for f in summary.findings or () if f.code == "NSX110")
    assert summary.verdict is not None
    assert ("The stages take turns" in summary.verdict.sentence) is in_turn
    assert ("batches-in-flight" in [way.name for way in found.remedies]) is in_turn
    if in_turn:
        step, saved, most = summary.verdict.step_ns or 0, found.saving.likely_ns or 0, found.saving.most_ns or 0
        assert step - saved == pytest.approx(20_000_000, rel=0.02)
        assert step - most == pytest.approx(15_000_000, rel=0.02)
        margins = margins_ns(summary, found)
        assert margins is not None and step - saved - margins[1] == pytest.approx(15_000_000, rel=0.02)
        assert "20.00 ms on rank 0, 18.00 ms on rank 1" in found.detail


@pytest.mark.parametrize("count", [2, 4])
def test_stages_that_work_beside_each_other_have_their_schedule_s_bubble(count: int, tmp_path: Path) -> None:
    found = finding(job(tmp_path, count, in_turn=False))
    assert [way.name for way in found.remedies] == ["more-micro-batches"]
    assert "take turns" not in found.detail and "Schedule1F1B" in found.paste


def test_one_micro_batch_can_only_be_divided(tmp_path: Path) -> None:
    found = finding(job(tmp_path, 1, in_turn=True))
    assert [way.name for way in found.remedies] == ["more-micro-batches"]


def test_the_bubble_of_many_micro_batches_is_nothing_to_change(tmp_path: Path) -> None:
    found = finding(job(tmp_path, 12, in_turn=False))
    assert found.verdict == "clear" and "the schedule of 12 micro-batches" in found.detail


def test_what_is_read_of_all_ranks_for_each_micro_batch_keeps_the_stages_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pipeline_stages, "metrics_often", lambda case: 4.0)
    monkeypatch.setattr(_pipeline_stages, "metrics_each_step", lambda case: "line 7 makes all ranks meet")
    monkeypatch.setattr(_pipeline_stages, "place_of_metrics", lambda case: {"file": "/app/train.py", "line": 7})
    found = finding(job(tmp_path, 4, in_turn=True))
    assert [way.name for way in found.remedies] == ["collective-rarely"] and found.where["line"] == 7
    assert found.detail.endswith("Line 7 makes all ranks meet.")


@pytest.mark.parametrize(("count", "fewer"), [(16, True), (4, False)])
def test_many_micro_batches_that_wait_for_launches_are_made_larger(
    count: int, fewer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsx110_exposed_comm.rank_verdict, "stages_wait_for_hosts", lambda rows: True)
    found = finding(job(tmp_path, count, in_turn=False, late_us=2_000))
    assert ("fewer-micro-batches" in [way.name for way in found.remedies]) is fewer
    assert found.saving.bound
