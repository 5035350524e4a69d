"""NSX110: stages of a pipeline with as many layers each and not as much work, by reports of two ranks that hand messages to each other."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings import _stage_layers
from nsysx.findings._case import Case
from nsysx.judging import rank_verdict
from nsysx.judging.uneven_stages import UnevenStages
from nsysx.model import Finding, Summary
from nsysx.pipeline import summarize
from tests.builder import Report

SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
US, MS, BATCHES, STEPS = 1_000, 1_000_000, 8, 12
#: Modules of a stage that compute for each micro-batch: name, class and how long (us).
Parts = list[tuple[str, str, int]]


def layers(count: int, us: int = 500, first: int = 0) -> Parts:
    return [(f"layers.{i}", "Block", us) for i in range(first, first + count)]


EMBED, HEAD, LOSS = ("embed", "Embedding", 100), ("head", "Linear", 900), ("", "", 900)


def job(folder: Path, first: Parts, second: Parts, *, spanned: bool = False) -> Summary:
    """Each of eight micro-batches: the first stage works and sends, the second one receives and works."""
    report = Report()
    own = [sum(us for *_, us in parts) * US for parts in (first, second)]
    period = BATCHES * max(own) + min(own) + 2 * MS
    records = []
    for rank, parts in enumerate((first, second)):
        process = report.process(100 + rank)
        thread = process.thread(process.pid, "python3")
        for i in range(STEPS):
            t = 1_000_000 + i * period
            free, at = [t + 100_000, t + 100_000], t + 2_000
            thread.add_range(f"step {i}", t, t + period - 100, domain="nsysx")

            def works(begin: int, called: int) -> tuple[int, int]:
                for name, cls, us in parts:  # noqa: B023
                    if name:
                        thread.add_range(f"{name}:{cls}", called, called + 2_000, domain="nsysx")  # noqa: B023
                    thread.launch(called + 500, kernel="gemm", gpu_start=begin, gpu_dur=us * US, device=rank)  # noqa: B023
                    begin, called = begin + us * US, called + 2_500
                return begin, called

            for _ in range(BATCHES):
                sent = max(free[0] + own[0], free[1]) + 20_000
                if rank == 0:
                    _, at = works(free[0], at)
                    thread.launch(at, kernel=SEND, gpu_start=sent - 20_000, gpu_dur=20_000, stream=20, device=0)
                    at += 2_000
                else:
                    thread.launch(at, kernel=SEND, gpu_start=free[1], gpu_dur=sent - free[1], stream=20, device=1)
                    _, at = works(sent, at + 2_000)
                free = [sent, sent + own[1]]
            thread.sync("cudaDeviceSynchronize_v3020", at=t + 600_000, dur=period - 700_000, device=rank)
        report.gpu(rank, pids=[(100 + rank, rank)])
        wrappers = [{"kind": "DDP", "count": 1}] if spanned else []
        settings = {
            "wrappers": wrappers,
            "places": {"stage": "/app/train.py:7", "schedule": "/app/train.py:9"},
            "numbers": {"schedule": BATCHES},
        }
        records.append(
            {"pid": 100 + rank, "backend": "nvtx", "ranges": {}, "ranges_pushed": STEPS, "settings": settings}
        )
    (folder / "r.run.json").write_text(json.dumps({"probe": records}))
    return summarize([report.write(folder / "r.sqlite")])


def exposed(summary: Summary) -> Finding:
    (finding,) = (f for f in summary.findings or () if f.code == "NSX110")
    return finding


def test_a_head_and_a_loss_behind_as_many_layers_make_the_last_stage_the_longest(tmp_path: Path) -> None:
    """Of 3.1 and 4.8 ms in each micro-batch two of twelve layers go: 4.1 and 3.8 ms, of a step of 41.5 ms (8 of 4.8 and one of 3.1)."""
    summary = job(tmp_path, [EMBED, *layers(6)], [*layers(6), HEAD, LOSS])
    found = exposed(summary)
    assert [way.name for way in found.remedies] == ["even-stages"]
    assert found.fix.startswith("Cut the layers into 8 and 4 (ranks 0 and 1), not 6 and 6")
    assert "6 layers (Block) take 24.00 ms" in found.detail and "head 7.20 ms" in found.detail
    assert "as a loss, 7.20 ms" in found.detail and "the longest stage computes 32.80 ms" in found.detail
    assert (found.where["near"], found.where["line"]) == ("rank 1", 7)
    saved, error, most = found.saving_ns_per_step, found.saving.error_ns, found.saving.most_ns
    assert saved is not None and error is not None and most is not None
    gone = 8 * 4.8 + 3.1 - (8 * 4.1 + 3.8)
    assert saved - error < gone * MS <= most == pytest.approx(gone * MS, rel=0.1)
    assert summary.verdict is not None and "The stages are not equal" in summary.verdict.sentence
    pasted: dict[str, object] = {"stage": 1}
    exec(found.paste, pasted)
    assert pasted["mine"] == range(8, 12)


@pytest.mark.parametrize(
    ("first", "second", "spanned"),
    [
        ([EMBED, *layers(6)], [*layers(6), ("head", "Linear", 100)], False),  # equal
        (layers(2), layers(3), False),  # five layers of two stages cannot be cut evenly
        ([EMBED, *layers(8)], [*layers(4), HEAD, LOSS], False),  # cut by time
        ([("", "", 3_100)], [("", "", 3_900)], False),  # what is in them is not known
        ([EMBED, *layers(6)], [*layers(6), HEAD, LOSS], True),  # two ranks that a wrapper spans
        ([("net", "Net", 3_000)], [("net", "Net", 2_000), ("head", "Linear", 1_700)], False),  # nothing to deal out
    ],
    ids=["equal", "odd", "by time", "unknown", "spanned", "whole"],
)
def test_stages_that_no_other_number_of_layers_makes_even(
    tmp_path: Path, first: Parts, second: Parts, spanned: bool
) -> None:
    assert "even-stages" not in [way.name for way in exposed(job(tmp_path, first, second, spanned=spanned)).remedies]


def test_equal_stages_are_called_equal(tmp_path: Path) -> None:
    summary = job(tmp_path, layers(6), layers(6))
    assert summary.verdict is not None and "not equal" not in summary.verdict.sentence
    rows = list(summary.rows("ranks"))
    assert "2 equal stages with 8 micro-batches" in rank_verdict._of_schedule(rows, BATCHES)


@pytest.mark.parametrize(
    ("rest", "layer", "count", "dealt"),
    [
        ([0.0, 4.0], 1.0, 12, (8, 4)),
        ([0.0, 0.0, 0.0, 2.0], 1.0, 14, (4, 4, 4, 2)),
        ([0.0, 50.0], 1.0, 4, (3, 1)),  # every stage keeps a layer
    ],
)
def test_layers_go_to_the_stage_with_least_work(
    rest: list[float], layer: float, count: int, dealt: tuple[int, ...]
) -> None:
    assert _stage_layers._dealt(rest, layer, count) == dealt


@pytest.mark.parametrize(("shared", "low"), [(False, 0.0), (True, 1.0)])
def test_ranks_that_share_a_gpu_slow_each_other_more(monkeypatch: pytest.MonkeyPatch, shared: bool, low: float) -> None:
    """A layer takes 17 ms where the other rank always works beside it, and 15 where that waits for a part of the time."""
    monkeypatch.setattr(_stage_layers, "others_of_gpu", lambda _: [(1, 0)] if shared else [])
    rows = ({"rank": 0}, {"rank": 1})
    stages = UnevenStages(rows[1], rows[0], (106.0 * MS, 154.0 * MS), rows)
    cut = _stage_layers.StageLayers("Block", (6, 6), (8, 4), (17.0 * MS, 15.0 * MS), (4.0 * MS, 64.0 * MS), ())
    case = cast(Case, SimpleNamespace(profile=None, step_ns=185 * MS))
    saving = _stage_layers.moved(case, stages, cut, (8.0, 9.0))
    assert saving is not None and saving.likely_ns is not None and saving.error_ns is not None
    least = saving.likely_ns - saving.error_ns
    alone = (154 + 106 / 8 - (140 + 132 / 8)) * 0.8 * MS
    # The head and the loss take 8.5 ms longer beside the other rank, which waits for none of them then.
    beside = (154 + 106 / 8 - ((64 * 17 / 15 + 68) + 140 / 8)) * 0.8 * MS
    assert least == pytest.approx(beside if shared else alone, rel=0.01)


def test_little_to_gain_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stage_layers, "others_of_gpu", lambda _: [])
    rows = ({"rank": 0}, {"rank": 1})
    stages = UnevenStages(rows[1], rows[0], (100.0 * MS, 112.0 * MS), rows)
    cut = _stage_layers.StageLayers("Block", (10, 10), (11, 9), (10.0 * MS, 10.0 * MS), (0.0, 12.0 * MS), ())
    case = cast(Case, SimpleNamespace(profile=None, step_ns=130 * MS))
    assert _stage_layers.moved(case, stages, cut, (8.0, 8.0)) is None


@pytest.mark.parametrize(
    ("groups", "apart"),
    [
        ([[0, 1, 2, 3]], False),
        ([[0, 1, 2, 3], [0, 2], [1, 3]], True),  # two pipelines, whose stages average their gradients
        ([[0, 1, 2, 3], [0]], False),
        ([None], False),
    ],
)
def test_ranks_of_several_pipelines_are_not_dealt_layers(
    monkeypatch: pytest.MonkeyPatch, groups: list[list[int] | None], apart: bool
) -> None:
    settings = RecordedSettings({"groups": [{"ranks": ranks} for ranks in groups]})
    monkeypatch.setattr(_stage_layers, "settings_of", lambda _: settings)
    assert _stage_layers._in_parts(cast(Case, SimpleNamespace(profile=None)), 4) == apart
