"""NSX110: stages of a pipeline that are cut unevenly, by reports of two ranks that hand messages to each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsysx.findings import nsx110_exposed_comm
from nsysx.model import Finding
from tests.builder import Report
from tests.findings import only_finding

SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
MS, BATCHES, STEPS = 1_000_000, 4, 12


def stages(
    folder: Path, first_ms: float, second_ms: float, *, spanned: bool = False, noted: dict[str, object] | None = None
) -> Finding:
    """Each of four micro-batches: the first stage works and sends, the second one receives and works.

    ``noted``: what the settings of the program hold besides its wrappers.
    """
    report = Report()
    period = round((BATCHES * max(first_ms, second_ms) + min(first_ms, second_ms) + 1) * MS)
    records = []
    for rank, own_ms in enumerate((first_ms, second_ms)):
        process = report.process(100 + rank)
        thread = process.thread(process.pid, "python3")
        for i in range(STEPS):
            t = 1_000_000 + i * period
            free, sent = [t + 10_000, t + 10_000], t + 10_000
            thread.add_range(f"step {i}", t, t + period - 100, domain="nsysx")
            for batch in range(BATCHES):
                sent = max(free[0] + round(first_ms * MS), free[1]) + 20_000
                begins = free[0] if rank == 0 else sent
                at = t + 1_000 + 3_000 * batch
                if rank == 0:
                    thread.launch(at, kernel="gemm", gpu_start=begins, gpu_dur=round(own_ms * MS), device=0)
                    thread.launch(at + 1_000, kernel=SEND, gpu_start=sent - 20_000, gpu_dur=20_000, stream=20, device=0)
                else:
                    thread.launch(at, kernel=SEND, gpu_start=free[1], gpu_dur=sent - free[1], stream=20, device=1)
                    thread.launch(at + 1_000, kernel="gemm", gpu_start=begins, gpu_dur=round(own_ms * MS), device=1)
                free = [sent, sent + round(second_ms * MS)]
            thread.sync("cudaDeviceSynchronize_v3020", at=t + 100_000, dur=period - 200_000, device=rank)
        report.gpu(rank, pids=[(100 + rank, rank)])
        wrappers = [{"kind": "DDP", "count": 1}] if spanned else []
        settings = {"wrappers": wrappers, **({"places": {"stage": "/app/train.py:7"}} if noted is None else noted)}
        records.append(
            {"pid": 100 + rank, "backend": "nvtx", "ranges": {}, "ranges_pushed": STEPS, "settings": settings}
        )
    (folder / "r.run.json").write_text(json.dumps({"probe": records}))
    return only_finding("NSX110", report.write(folder / "r.sqlite"))


def test_a_long_stage_is_named_with_what_an_even_cut_saves(tmp_path: Path) -> None:
    """Of 8 and 1 ms in four micro-batches each half is 18 ms, with one micro-batch of the other 22.5: of a step of 34 ms."""
    finding = stages(tmp_path, 8, 1)
    assert [way.name for way in finding.remedies] == ["even-stages"]
    assert finding.where["near"] == "rank 0" and (finding.where["file"], finding.where["line"]) == ("/app/train.py", 7)
    assert "rank 0 32.00 ms, rank 1 4.00 ms as recorded; 18.00 ms on each of 2" in finding.detail
    saved, error = finding.saving_ns_per_step, finding.saving.error_ns
    assert saved is not None and error is not None
    assert saved - error < (33 - 22.5) * MS < saved + error


@pytest.mark.parametrize(("first_ms", "second_ms", "spanned"), [(4, 4, False), (4, 3, False), (8, 1, True)])
def test_even_stages_and_ranks_that_a_wrapper_spans_are_not_cut(
    tmp_path: Path, first_ms: float, second_ms: float, spanned: bool
) -> None:
    finding = stages(tmp_path, first_ms, second_ms, spanned=spanned)
    assert "even-stages" not in [way.name for way in finding.remedies]


@pytest.mark.parametrize(("first_ms", "second_ms", "line"), [(8, 1, None), (1, 8, 3)])
def test_the_long_stage_has_no_line_of_another_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_ms: float, second_ms: float, line: int | None
) -> None:
    """The shown rank is the second one: where it waits says nothing of where the first one works."""
    monkeypatch.setattr(nsx110_exposed_comm, "mostly", lambda *_: {"file": "/app/train.py", "line": 3})
    assert stages(tmp_path, first_ms, second_ms, noted={}).where.get("line") == line


@pytest.mark.parametrize("noted", [{}, {"places": {"schedule": "/app/train.py:9"}, "numbers": {"schedule": 4}}])
def test_the_bubble_is_placed_where_the_schedule_is_made(tmp_path: Path, noted: dict[str, dict[str, object]]) -> None:
    finding = stages(tmp_path, 4, 4, noted=noted)
    assert finding.fix.startswith("Use more micro-batches")
    assert ("The schedule has 4 micro-batches." in finding.detail) is bool(noted)
    assert finding.where.get("line") == (9 if noted else None)
