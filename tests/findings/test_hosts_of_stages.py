"""NSX110: stages of a pipeline whose hosts launch about as long as their GPUs compute, or longer, by reports of two ranks."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nsysx.findings import _fewer_launches, _pipeline_stages
from nsysx.findings._case import Case
from nsysx.model import Finding, Summary
from nsysx.pipeline import summarize
from nsysx.saving import Saving
from tests.builder import Process, Report, Thread

SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
US, MS, BATCHES, STEPS = 1_000, 1_000_000, 8, 12
#: Modules of a stage that compute for each micro-batch: name, class and how long (us).
Parts = list[tuple[str, str, int]]


def layers(count: int, us: int = 500) -> Parts:
    return [(f"layers.{i}", "Block", us) for i in range(count)]


EMBED, HEAD, LOSS = ("embed", "Embedding", 100), ("head", "Linear", 900), ("", "", 900)
FIRST, LAST = [EMBED, *layers(6)], [*layers(6), HEAD, LOSS]


@dataclass
class Stage:
    """A rank: its host is at ``called`` (ns) and needs ``host_us`` for each launch; its GPU is free from ``free`` on."""

    rank: int
    process: Process
    thread: Thread
    host_us: int
    called: int = 0
    free: int = 0

    def works(self, parts: Parts) -> None:
        for name, cls, us in parts:
            if name:
                self.thread.add_range(f"{name}:{cls}", self.called, self.called + 4_000, domain="nsysx")
            begins = max(self.free, self.called + 3_000)
            self.thread.launch(self.called + 500, kernel="gemm", gpu_start=begins, gpu_dur=us * US, device=self.rank)
            self.called, self.free = self.called + self.host_us * US, begins + us * US

    def meets(self, begins: int, ends: int) -> None:
        self.thread.launch(
            self.called, kernel=SEND, gpu_start=begins, gpu_dur=ends - begins, stream=20, device=self.rank
        )
        self.called, self.free = self.called + self.host_us * US, ends

    def waits(self) -> None:
        """Wait for the GPU."""
        ends = max(self.free, self.called) + 20_000
        self.thread.sync("cudaDeviceSynchronize_v3020", at=self.called, dur=ends - self.called, device=self.rank)
        self.called = ends + 5_000


def job(
    folder: Path,
    host_us: tuple[int, int],
    first: Parts = FIRST,
    last: Parts = LAST,
    noted: dict[str, Any] | None = None,
) -> Summary:
    """Each of eight micro-batches: the first stage works and sends, the second one receives and works; then both wait for their GPU."""
    report = Report()
    stages = []
    for rank, us in enumerate(host_us):
        process = report.process(100 + rank)
        stages.append(Stage(rank, process, process.thread(process.pid, "python3"), us))
        report.gpu(rank, pids=[(100 + rank, rank)])
    for stage in stages:
        stage.called = stage.free = MS
    for i in range(STEPS):
        begun = [stage.called for stage in stages]
        for _ in range(BATCHES):
            stages[0].works(first)
            begins = [max(stage.free, stage.called + 3_000) for stage in stages]
            for stage, begin in zip(stages, begins, strict=True):
                stage.meets(begin, max(begins) + 20_000)
            stages[1].works(last)
        for stage, begin in zip(stages, begun, strict=True):
            stage.waits()
            stage.thread.add_range(f"step {i}", begin, stage.called - 100, domain="nsysx")
    settings = {"places": {"schedule": "/app/train.py:9"}, "numbers": {"schedule": BATCHES}} if noted is None else noted
    probe = [
        {"pid": 100 + rank, "backend": "nvtx", "ranges": {}, "ranges_pushed": STEPS, "settings": settings}
        for rank in (0, 1)
    ]
    (folder / "r.run.json").write_text(json.dumps({"probe": probe}))
    return summarize([report.write(folder / "r.sqlite")], every_table=False)


def exposed(summary: Summary) -> Finding:
    (finding,) = (f for f in summary.findings or () if f.code == "NSX110")
    return finding


def names(summary: Summary) -> list[str]:
    return [way.name for way in exposed(summary).remedies]


def test_an_even_cut_of_stages_with_slow_hosts_saves_nothing_alone(tmp_path: Path) -> None:
    """Of 3.1 and 4.8 ms in each micro-batch, with 8 and 9 launches of 0.55 ms: two layers more are two launches more for the first host."""
    summary = job(tmp_path, (550, 550))
    found = exposed(summary)
    assert not found.fix.startswith("Cut the layers")
    assert summary.verdict is not None and "but hosts take" in summary.verdict.sentence
    assert "first less host work, then an even cut" in summary.verdict.sentence
    assert not any(do.text.startswith("Cut the layers") for do in summary.answer.do)
    assert names(summary) == ["compile"] and found.saving.bound
    assert "torch.compile of each stage, before PipelineStage takes it" in found.fix
    most = found.saving.most_ns or found.saving.likely_ns
    step_ns = summary.verdict.step_ns or 0
    assert most is not None and 0 < most <= step_ns - 8 * 4.8 * MS  # it was 14 of them, all that is exposed


def test_the_even_cut_is_told_as_what_comes_after_fewer_launches(tmp_path: Path) -> None:
    """The host of the first stage takes 35 ms for its eight launches of a micro-batch, and would take 44 for ten: the GPUs take 38.4."""
    summary = job(tmp_path, (550, 50))
    found = exposed(summary)
    assert names(summary) == ["even-stages"] and found.verdict == "found"
    assert found.fix.startswith("Make fewer launches in every stage first; then cut the layers into 8 and 4")
    assert found.saving_ns_per_step is None and found.saving.most_ns is None
    assert (
        "an even cut gains only with fewer launches" in found.title
        and "Hosts take longer to launch that" in found.detail
    )
    assert not any("Cut the layers" in do.text for do in summary.answer.do)


@pytest.mark.parametrize(
    ("host_us", "dealt"),
    [
        ((50, 50), "8 and 4"),  # fast
        ((50, 550), "8 and 4"),  # only the longest stage's is slow: it has fewer launches then
        ((350, 350), "8 and 4"),  # with eight layers ten launches take 3.5 ms, the GPU 4.1
    ],
)
def test_an_even_cut_is_told_where_hosts_are_fast_enough(tmp_path: Path, host_us: tuple[int, int], dealt: str) -> None:
    summary = job(tmp_path, host_us)
    assert names(summary) == ["even-stages"]
    assert exposed(summary).fix.startswith(f"Cut the layers into {dealt}")
    assert summary.verdict is not None and "but hosts take" not in summary.verdict.sentence


def test_fewer_launches_leave_a_step_what_the_busiest_stage_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages of 54 and 84 ms: with 8 messages a step is no shorter than 90.75; ranks that are no stages than 84."""
    finding = replace(_finding(), saving=Saving(70 * MS, "x", bound=True, most_ns=73 * MS))
    for staged, least in ((True, 84 + 54 / 8), (False, 84)):
        rows = [
            {"compute_ns": ms * MS, "steps": 1, "bubble_ns": 5 if staged else None, "window_ns": 120 * MS}
            for ms in (54, 84)
        ]
        monkeypatch.setattr(_pipeline_stages, "rank_rows", lambda _, rows=rows: rows)
        monkeypatch.setattr(_pipeline_stages, "_messages", lambda *_: 8.0)
        case = cast(Case, SimpleNamespace(step_ns=120 * MS))
        saving = _pipeline_stages.no_shorter_than_work(case, finding, None).saving  # type: ignore[arg-type]
        assert saving.likely_ns == saving.most_ns == pytest.approx((120 - least) * MS)
        assert saving.bound and "busiest" in saving.confidence
    small = replace(finding, saving=Saving(10 * MS, "x", bound=True))
    assert _pipeline_stages.no_shorter_than_work(case, small, None) is small  # type: ignore[arg-type]


def _finding() -> Finding:
    return Finding("NSX110", "exposed-comm", "found", "x", "")


@pytest.mark.parametrize("staged", [True, False])
def test_a_graph_of_a_stage_is_marked_once_a_step(monkeypatch: pytest.MonkeyPatch, staged: bool) -> None:
    """Another micro-batch's forward runs before the backward of the last one: a mark there would free what that has saved."""
    monkeypatch.setattr(_fewer_launches, "rank_rows", lambda _: [{"bubble_ns": 1 if staged else None}])
    mark, told = _fewer_launches._kept_between_calls(cast(Case, None), 8)
    assert ("once a step, before schedule.step" in mark) is staged
    assert ("clone each output" in told) is not staged
