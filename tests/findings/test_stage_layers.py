"""NSX110: stages of a pipeline with as many layers each and not as much work, by reports of two ranks that hand messages to each other."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from nsysx.events.profile import Profile
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


PLACES = {"stage": "/app/train.py:7", "schedule": "/app/train.py:9"}
EMBED, HEAD, LOSS = ("embed", "Embedding", 100), ("head", "Linear", 900), ("", "", 900)


def job(
    folder: Path,
    first: Parts,
    second: Parts,
    *,
    spanned: bool = False,
    beside: bool = False,
    places: dict[str, str] = PLACES,
    of_ranks: dict[str, dict[str, str]] | None = None,
) -> Summary:
    """Each of eight micro-batches: the first stage works and sends, the second one receives and works. ``beside``: it receives beside its
    work. ``of_ranks``: texts of lines that may give each rank its share.
    """
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
                ready = free[0] + own[0]
                sent = max(ready, free[1]) + (0 if beside else 20_000)
                if rank == 0:
                    _, at = works(free[0], at)
                    begins, ends = (ready, sent + 20_000) if beside else (sent - 20_000, sent)
                    thread.launch(at, kernel=SEND, gpu_start=begins, gpu_dur=ends - begins, stream=20, device=0)
                    at += 2_000
                else:
                    begins, lasts = (sent, 20_000) if beside else (free[1], sent - free[1])
                    thread.launch(at, kernel=SEND, gpu_start=begins, gpu_dur=lasts, stream=20, device=1)
                    _, at = works(sent, at + 2_000)
                free = [sent + (20_000 if beside else 0), sent + own[1]]
            thread.sync("cudaDeviceSynchronize_v3020", at=t + 600_000, dur=period - 700_000, device=rank)
        report.gpu(rank, pids=[(100 + rank, rank)])
        wrappers = [{"kind": "DDP", "count": 1}] if spanned else []
        settings = {
            "wrappers": wrappers,
            "places": places,
            "numbers": {"schedule": BATCHES},
        }
        record = {"pid": 100 + rank, "backend": "nvtx", "ranges": {}, "ranges_pushed": STEPS, "settings": settings}
        records.append(record | {"of_ranks": of_ranks or {}})
    (folder / "r.run.json").write_text(json.dumps({"probe": records}))
    return summarize([report.write(folder / "r.sqlite")], every_table=False)


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


NUMBERED: Parts = [(f"{i}", "Block", 500) for i in range(6)]
EMBED_FIRST: Parts = [("0", "Embed", 100), *((f"{i + 1}", "Block", 500) for i in range(6))]
HEAD_LAST: Parts = [*NUMBERED, ("6", "Head", 900), LOSS]


def test_a_stage_that_waits_for_nobody_is_told_where_it_is_the_shown_one(tmp_path: Path) -> None:
    """Its receipts lie beside its work: nothing of its own step is communication, and the other stage waits for a quarter of it."""
    summary = job(tmp_path, [EMBED, *layers(6)], [*layers(6), HEAD, LOSS], beside=True)
    found = exposed(summary)
    assert summary.verdict is not None and summary.verdict.sentence.startswith("GPU-bound")
    assert [way.name for way in found.remedies] == ["even-stages"] and "8 and 4" in found.fix
    assert "rank 0 waits for" in found.detail and "rank 1, which has most work, waits for nobody" in found.detail
    gone = 8 * 4.8 + 3.1 - (8 * 4.1 + 3.8)
    assert found.saving_ns_per_step == pytest.approx(gone * MS, rel=0.2)
    assert found.cost_ns_per_step == found.saving.most_ns
    assert summary.answer.do[0].finding is not None
    assert summary.answer.do[0].text.startswith("Cut the layers into 8 and 4")


@pytest.mark.parametrize(
    ("first", "second", "dealt"), [(EMBED_FIRST, HEAD_LAST, (8, 4)), (HEAD_LAST, EMBED_FIRST, (4, 8))]
)
@pytest.mark.parametrize("beside", [False, True])
def test_a_number_may_be_a_layer_on_one_rank_and_the_head_on_another(
    tmp_path: Path, first: Parts, second: Parts, dealt: tuple[int, int], beside: bool
) -> None:
    """Stages that are an nn.Sequential: the embedding has number 0 on one rank, and the head number 6 on the other."""
    found = exposed(job(tmp_path, first, second, beside=beside and dealt == (8, 4)))
    assert found.fix.startswith(f"Cut the layers into {dealt[0]} and {dealt[1]}")
    assert "6 layers (Block) take 24.00 ms, Head 7.20 ms" in found.detail


def test_layers_whose_names_end_with_a_number_are_counted(tmp_path: Path) -> None:
    named: Parts = [(f"blocks.block_{i}", "Block", 500) for i in range(6)]
    found = exposed(job(tmp_path, [EMBED, *named], [*named, HEAD, LOSS], beside=True))
    assert found.fix.startswith("Cut the layers into 8 and 4")


def test_two_halves_of_a_stage_are_no_layers(tmp_path: Path) -> None:
    halves: Parts = [("fc1", "Linear", 1_000), ("fc2", "Linear", 1_000)]
    found = exposed(job(tmp_path, halves, [*halves, ("head", "Output", 1_200), LOSS], beside=True))
    assert "by the time that they take" in found.fix and not found.paste.startswith("layers_of")


def test_stages_without_modules_are_cut_by_time(tmp_path: Path) -> None:
    found = exposed(job(tmp_path, [("", "", 2_100)], [("", "", 4_800)], beside=True))
    assert [way.name for way in found.remedies] == ["even-stages"]
    assert "rank 1 has 10.80 ms a step more than the mean of all, rank 0 10.80 ms less" in found.fix
    assert found.saving_ns_per_step == pytest.approx((8 * 4.8 + 2.1 - 9 * 3.45) * MS, rel=0.1)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("return [depth * s // stages for s in range(stages + 1)]", 3),
        ("per_stage = c.layers // num_stages", 3),
        ("n = cfg.n_layers // dist.get_world_size()", 3),
        ("mine = blocks[edges[stage] : edges[stage + 1]]", 3),
        ("mine = blocks[rank * n : (rank + 1) * n]", 3),
        ('split_spec={"layers.6": SplitPoint.BEGINNING}', 3),
        ("batch = rows // world  # of all layers", 7),
        ("tokens = ids[rank * n : (rank + 1) * n]", 7),
    ],
)
def test_the_place_is_the_line_that_cuts_the_network(tmp_path: Path, text: str, line: int) -> None:
    noted = {"/app/train.py": {"3": text}}
    parts = [EMBED, *layers(6)], [*layers(6), HEAD, LOSS]
    assert exposed(job(tmp_path, *parts, beside=True, of_ranks=noted)).where["line"] == line


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (layers(6), layers(6)),  # equal
        ([EMBED, *layers(8)], [*layers(4), HEAD, LOSS]),  # cut by time
        (layers(1, 3_000), layers(2, 3_000)),  # three layers of two stages cannot be cut evenly
    ],
    ids=["equal", "by time", "odd"],
)
def test_the_longest_stage_is_not_told_where_no_cut_is_better(tmp_path: Path, first: Parts, second: Parts) -> None:
    assert exposed(job(tmp_path, first, second, beside=True)).verdict == "clear"


def test_unlike_layers_are_not_dealt_by_number(tmp_path: Path) -> None:
    """Layers of a CNN that halves its maps: how many a stage has says nothing of how long they take."""
    unlike: Parts = [("layers.0", "Block", 300), ("layers.1", "Block", 600), ("layers.2", "Block", 1_200)]
    found = exposed(job(tmp_path, unlike, [*unlike, HEAD, LOSS], beside=True))
    assert "by the time that they take" in found.fix and not found.paste.startswith("layers_of")


def test_stages_of_several_networks_are_not_dealt_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interleaved schedule: both networks of a rank have a layers.0."""
    rows = [{"class": "Stage", "parameters": 7}, {"class": "Stage", "parameters": 7}]
    for networks, several in ((rows, True), ([rows[0], {"class": "Loss", "parameters": 0}], False), (None, False)):
        settings = RecordedSettings({"networks": networks})
        monkeypatch.setattr(_stage_layers, "settings_of", lambda _, settings=settings: settings)
        assert _stage_layers._several_networks(cast(Profile, None)) is several


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


@pytest.mark.parametrize("shared", [False, True])
def test_ranks_that_share_a_gpu_slow_each_other_more(monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    """A layer takes 17 ms where the other rank always works beside it, and 15 where that waits for a part of the time."""
    monkeypatch.setattr(_stage_layers, "others_of_gpu", lambda _: [(1, 0)] if shared else [])
    rows = ({"rank": 0}, {"rank": 1})
    stages = UnevenStages(rows[1], rows[0], (106.0 * MS, 154.0 * MS), rows)
    cut = _stage_layers.StageLayers("Block", (6, 6), (8, 4), (17.0 * MS, 15.0 * MS), (4.0 * MS, 64.0 * MS), ())
    case = cast(Case, SimpleNamespace(profile=None, step_ns=185 * MS))
    saving = _stage_layers.moved(case, stages, cut, (8.0, 9.0))
    assert saving is not None and saving.likely_ns is not None and saving.error_ns is not None
    alone = (154 + 106 / 8 - (140 + 132 / 8)) * 0.8 * MS
    # The head and the loss take 8.5 ms longer beside the other rank, which waits for none of them then.
    beside = (154 + 106 / 8 - ((64 * 17 / 15 + 68) + 140 / 8)) * 0.8 * MS
    likely, most = saving.likely_ns, saving.most_ns or 0
    if shared:  # near the least: measured of such a program, 8.9 ms
        assert beside < likely == pytest.approx(beside + (most - beside) / 4, rel=0.01)
        assert likely - saving.error_ns <= beside
    else:
        assert likely - saving.error_ns == pytest.approx(alone, rel=0.01)


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


@pytest.mark.parametrize(
    ("layer_ms", "step_ms", "better"),
    [
        (
            15.0,
            134,
            (8, 4),
        ),  # with 8 of them a host that is a tenth faster than replayed takes no longer than the GPU; now 127
        (15.0, 125, (7, 5)),  # as slow as replayed it would make a step longer
        (17.0, 160, (7, 5)),  # even a tenth faster
        (9.0, 134, (8, 4)),  # hosts hold nothing up
    ],
)
def test_stages_are_cut_once_for_their_gpus_where_hosts_lose_nothing(
    layer_ms: float, step_ms: int, better: tuple[int, int]
) -> None:
    layers = _stage_layers.StageLayers(
        "Block",
        (6, 6),
        (7, 5),
        (10.4 * MS,) * 2,
        (6.0 * MS, 56.6 * MS),
        (),
        (layer_ms * MS,) * 2,
        (10.0 * MS, 14.0 * MS),
    )
    rows = ({"rank": 0}, {"rank": 1})
    stages = UnevenStages(rows[1], rows[0], (68.4 * MS, 119.0 * MS), rows)
    case = cast(Case, SimpleNamespace(step_ns=step_ms * MS))
    assert layers.for_gpus == (8, 4)
    assert _stage_layers.cut_once(case, stages, layers, 8.0).better == better
