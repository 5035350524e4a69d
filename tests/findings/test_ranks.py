"""NSX110 and NSX111: communication that nothing hides, and the rank that the others wait for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import polars as pl
import pytest

from nsysx import units
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings import _costly_jobs, _small_units, nsx110_exposed_comm
from nsysx.findings._case import Case
from nsysx.findings._divided_comm import of_ranks
from nsysx.findings._rank_rows import rank_shown
from nsysx.model import Row
from nsysx.pipeline import ReadingOptions, gather_job, summarize
from nsysx.replay import engine
from nsysx.replay.replay_bounds import HIDDEN_SLOWS_SHARES
from nsysx.saving import Saving
from tests.builder import Report
from tests.findings import Program, empty, healthy, only_finding
from tests.ranks.test_rank_table import one_report, steps

MS = 1_000_000


def test_communication_alone_is_exposed(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        for _ in range(20):
            program.launch(200)
        program.launch(1000, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)")

    finding = Program().steps(body).finding(tmp_path, "NSX110")
    assert finding.verdict == "found"
    assert finding.cost_ns_per_step == pytest.approx(1_000_000, rel=0.01)
    assert finding.saving_ns_per_step == pytest.approx(1_000_000, rel=0.01)
    assert finding.saving.bound


@pytest.mark.parametrize(
    ("kernel", "advice"),
    [("SendRecv", "is the bubble of a pipeline"), ("AllGather_RING_LL", "Compare all ranks first")],
)
def test_a_pipeline_s_bubble_is_not_a_late_rank(tmp_path: Path, kernel: str, advice: str) -> None:
    def body(program: Program, number: int) -> None:
        for _ in range(20):
            program.launch(200)
        program.launch(1000, f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)")

    finding = Program().steps(body).finding(tmp_path, "NSX110")
    assert finding.verdict == "found" and advice in finding.fix


@pytest.mark.parametrize(("messages", "late"), [(2, False), (20, True)])
def test_more_micro_batches_save_no_more_than_the_schedule_leaves_idle(
    tmp_path: Path, messages: int, late: bool
) -> None:
    """Half of each step is spent in send and receive: one micro-batch on two stages explains that, ten leave a tenth."""

    def body(program: Program, number: int) -> None:
        for _ in range(messages):
            program.launch(4_000 // messages)
            program.launch(4_000 // messages, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")

    finding = Program().steps(body).finding(tmp_path, "NSX110")
    assert "is the bubble of a pipeline" in finding.fix
    assert ("the rest is waiting for late stages" in finding.detail) == late
    cost, saving = finding.cost_ns_per_step, finding.saving
    assert cost is not None and saving.most_ns is not None and saving.likely_ns is not None
    assert (saving.most_ns < cost / 4) if late else (saving.most_ns == cost)
    assert 0 < saving.likely_ns < saving.most_ns


def test_without_communication_it_is_clear(tmp_path: Path) -> None:
    assert Program().steps(healthy).finding(tmp_path, "NSX110").verdict == "clear"
    assert empty().finding(tmp_path, "NSX110").verdict == "cannot_tell"


def test_the_late_rank_is_named(tmp_path: Path) -> None:
    path = one_report(tmp_path / "r.sqlite", [300_000, 300_000, 500_000])
    finding = only_finding("NSX111", path)
    assert finding.verdict == "found"
    assert finding.title.startswith("Rank 2 takes 200 us per step longer than its peers")
    assert finding.cost_ns_per_step == pytest.approx(200_000, rel=0.01)
    assert finding.evidence[0] == {"part": "compute", "more than others_ns": 200_000}


def test_equal_ranks_are_clear_and_one_rank_cannot_tell(tmp_path: Path) -> None:
    path = one_report(tmp_path / "r.sqlite", [300_000, 300_000, 300_000])
    finding = only_finding("NSX111", path)
    assert finding.verdict == "clear"
    assert Program().steps(healthy).finding(tmp_path, "NSX111").verdict == "cannot_tell"


def test_waiting_is_told_from_transfer(tmp_path: Path) -> None:
    """What is waiting becomes no shorter by smaller buckets, so that is not what is advised."""
    path = one_report(tmp_path / "r.sqlite", [300_000, 300_000, 500_000])
    finding = only_finding("NSX110", path)
    assert finding.detail.endswith("Of what is exposed, 200 us is waiting for another rank and 50.0 us is transfer.")
    assert finding.fix.startswith("Make rank 2 faster")
    assert finding.saving.likely_ns == 50_000, "what is waited for is told of the rank"
    assert "NSX111" in finding.fix
    path = one_report(tmp_path / "even.sqlite", [300_000, 300_000])
    finding = only_finding("NSX110", path)
    assert "buckets" in finding.fix
    # Hidden, the transfer slows what it runs beside: nothing for sure, and never all of it.
    saving, error = finding.saving.likely_ns, finding.saving.error_ns
    assert saving == error == pytest.approx((1 - HIDDEN_SLOWS_SHARES[1]) * 50_000, rel=0.05)
    assert not finding.saving.bound


@pytest.mark.parametrize(
    ("units", "whole"), [(({"count": 1},), True), (({"count": 8}, {"count": 1}), False), ((), False)]
)
def test_a_model_that_is_sharded_as_one_unit_is_told_so(units: tuple[Row, ...], whole: bool) -> None:
    settings = RecordedSettings({"wrappers": [{"kind": "fully_shard", **unit} for unit in units]})
    assert bool(_costly_jobs.one_unit(settings)) == whole


@pytest.mark.parametrize(
    ("kernels", "paired"),
    [
        (("AllGather", "AllGather"), True),
        (("AllGather", "AllReduce"), False),  # as a pair of splits does
        (("AllGather", "AllGather", "ReduceScatter"), False),  # parameters that are sharded
    ],
)
def test_outputs_that_are_gathered_after_every_layer_are_told_to_stay_split(
    tmp_path: Path, kernels: tuple[str, ...], paired: bool
) -> None:
    def body(program: Program, number: int) -> None:
        with program.range("forward"):
            for layer, kernel in enumerate(kernels):
                with program.range(f"layers.{layer}:Linear"):
                    program.launch(400)
                    program.launch(
                        800 if kernel == "AllReduce" else 600, f"ncclDevKernel_{kernel}_Sum_f32_RING_LL(void)"
                    )
        program.launch(400)

    (finding,) = (f for f in Program().steps(body).findings(tmp_path, "NSX110") if f.verdict == "found")
    assert [r.name for r in finding.remedies] == (["paired-splits"] if paired else []) or not paired
    assert ("RowwiseParallel" in finding.paste) == paired


@pytest.mark.parametrize(
    ("module", "told"), [(":DistributedDataParallel", True), ("net:ParallelMLP", False), ("", True)]
)
def test_the_buckets_of_ddp_are_told_only_where_it_may_be_in_use(tmp_path: Path, module: str, told: bool) -> None:
    path = one_report(tmp_path / "even.sqlite", [300_000, 300_000])
    if module:
        report = Report()
        for i in range(2):
            thread = steps(report.process(100 + i), 300_000, 300_000, device=i)
            report.gpu(i, pids=[(100 + i, i)])
            for at in range(0, 4_000_000, 400_000):
                thread.add_range(module, at, at + 300_000, domain="nsysx")
        path = report.write(tmp_path / "m.sqlite")
    finding = only_finding("NSX110", path)
    assert finding.verdict == "found"
    assert ("bucket" in finding.fix, "DistributedDataParallel(" in finding.paste) == (told, told)
    assert all(("DistributedDataParallel" in r.paste) == told for r in finding.remedies)


def test_a_rank_with_more_steady_steps_than_it_shares_is_told_so(tmp_path: Path) -> None:
    path = one_report(tmp_path / "r.sqlite", [300_000, 500_000])
    summary = summarize([path], every_table=False)
    (finding,) = (f for f in summary.findings or () if f.code == "NSX110")
    table = summary.tables["ranks"]
    finding = replace(finding, detail="It is so.", cost_ns_per_step=(finding.cost_ns_per_step or 0) + 7, evidence=())
    assert of_ranks(finding, table).detail == "It is so."
    said = of_ranks(finding, table, shown=0)
    assert said.detail == (
        "It is so. By the steps that are steady on all ranks, 200 us is waiting for another rank and 50.0 us is transfer."
    )
    assert said.fix.startswith("Make rank 1 faster")
    longer = replace(finding, detail="", cost_ns_per_step=2 * (finding.cost_ns_per_step or 0))
    assert "400 us is waiting for another rank and 100 us is transfer" in of_ranks(longer, table, shown=0).detail


@pytest.mark.parametrize(
    ("given", "devices", "known"), [(None, (0, 1), 1), (0, (0, 1), 0), (None, (1, 1), None), (None, (0, 0), None)]
)
def test_the_shown_rank_is_the_only_one_with_its_process_and_device(
    given: int | None, devices: tuple[int, int], known: int | None
) -> None:
    rows = [{"rank": rank, "process": 7, "device": device} for rank, device in enumerate(devices)]
    case = SimpleNamespace(ranks=SimpleNamespace(rows=rows), shown_rank=given, process=7, device=1)
    assert rank_shown(cast(Case, case)) == known


@pytest.mark.parametrize(("exposed", "wait", "transfer"), [(120_000, 70, 50), (40_000, 0, 40), (300_000, 200, 50)])
def test_a_transfer_takes_as_long_without_the_profiler_and_what_is_shorter_then_is_waiting(
    tmp_path: Path, exposed: int, wait: int, transfer: int
) -> None:
    """Recorded are 200 us of waiting and 50 us of transfer: a shorter step has no part of the waiting in proportion."""
    summary = summarize([one_report(tmp_path / "r.sqlite", [300_000, 300_000, 500_000])], every_table=False)
    (finding,) = (f for f in summary.findings or () if f.code == "NSX110")
    finding = replace(finding, detail="", evidence=({"part": "exposed communication", "total_ns": exposed},))
    said = of_ranks(finding, summary.tables["ranks"], recorded_ns=250_000).detail
    assert (
        said
        == f" Of what is exposed, {units.duration(wait * 1_000)} is waiting for another rank and {transfer}.0 us is transfer."
    )


def in_turn(
    path: Path,
    late_ns: int,
    *,
    kernels: tuple[str, ...],
    host: bool = True,
    noted: bool = False,
    loads: bool = False,
    ranks: int = 2,
    filled: bool = False,
) -> Path:
    """Write a job of ranks, each the late one in its turn: because it launches late, or else because it computes longer.

    ``noted``: the line that makes it late is known; ``loads``: it waits for its loader meanwhile. ``filled``: they compute until 200 us
    before the next step.
    """
    report, collective, ms = Report(), 50_000, 1_000_000
    for rank in range(ranks):
        process = report.process(100 + rank)
        thread = process.thread(process.pid, "python3")
        for step in range(12):
            t = ms + step * 2 * ms
            thread.add_range(f"step {step}", t, t + 2 * ms - 100, domain="nsysx")
            mine = late_ns * (step % ranks == rank)
            begin, compute = t + 10_000 + mine * host, 500_000 + mine * (not host)
            thread.launch(begin - 8_000, kernel="void at::native::gemm", gpu_start=begin, gpu_dur=compute, device=rank)
            if loads and mine:
                thread.add_range("data DataLoader", t, begin - 8_500, domain="nsysx")
            if noted:
                thread.line("/job/train.py:30 data", t, begin - 8_500)
            at, done = begin + compute, t + 510_000 + late_ns + collective
            for i, kernel in enumerate(kernels):  # the first one waits for the late rank
                length = done - at - 10_000 if i == 0 else 9_000
                start = at if i == 0 else done - 10_000
                thread.launch(
                    begin - 4_000 + 100 * i, kernel=kernel, gpu_start=start, gpu_dur=length, stream=20, device=rank
                )
            if filled:
                rest = t + 2 * ms - 200_000 - done
                thread.launch(begin - 3_000, kernel="void at::native::gemm", gpu_start=done, gpu_dur=rest, device=rank)
        report.gpu(rank, pids=[(100 + rank, rank)])
    return report.write(path)


REDUCE, GATHER, SCATTER = (
    f"ncclDevKernel_{k}_RING_LL(ncclDevComm*)" for k in ("AllReduce_Sum_f32", "AllGather", "ReduceScatter")
)


@pytest.mark.parametrize(
    ("kernels", "host", "advice"),
    [
        ((REDUCE,), True, "Make fewer launches on every rank"),
        ((GATHER, SCATTER), True, "Shard larger units"),
        ((REDUCE,), False, "Give every rank as much work"),
    ],
)
def test_ranks_that_wait_for_each_others_launches_are_told_to_make_fewer(
    tmp_path: Path, kernels: tuple[str, ...], host: bool, advice: str
) -> None:
    """No rank is always late and all compute as much: equal batches change nothing. At best only the work is left."""
    summary = summarize([in_turn(tmp_path / "r.sqlite", 400_000, kernels=kernels, host=host)], every_table=False)
    (finding,) = (f for f in summary.findings or () if f.code == "NSX110")
    assert finding.fix.startswith(advice)
    left = (summary.answer.now_ns or 0) - (finding.saving_ns_per_step or 0)
    if advice.startswith("Shard"):  # fewer collectives save no more than none at all
        replay = engine.replay_of(gather_job([tmp_path / "r.sqlite"], ReadingOptions()).profile)
        assert isinstance(replay, engine.Replay)
        assert finding.saving_ns_per_step == replay.saving(engine.RemoveExposedComm()).saving_ns
    else:
        # Without the transfer (50 us) that ranks who are there together take.
        assert not host or left == pytest.approx(550_000, rel=0.03)


@pytest.mark.parametrize(
    ("wrapper", "elements", "told"),
    [
        ({"count": 1}, 0, "sharded-blocks"),  # of one unit no launches are the matter
        ({"count": 4}, 1 << 20, "replicated"),
        ({"count": 4}, 1 << 32, "larger-shards"),
        ({"count": 4}, 0, "larger-shards"),
    ],
)
def test_a_sharded_model_that_waits_for_launches_is_told_what_its_units_need(
    tmp_path: Path, wrapper: Row, elements: int, told: str
) -> None:
    settings = {
        "wrappers": [{"kind": "fully_shard", **wrapper}],
        "memory": {"reserved_peak_bytes": 4 << 30, "total_bytes": 80 << 30},
        "optimizers": [{"class": "AdamW", "elements": elements}],
        "places": {"FSDP": "/job/train.py:9"},
    }
    records = [
        {"pid": pid, "backend": "nvtx", "ranges": {}, "ranges_pushed": 1, "settings": settings} for pid in (100, 101)
    ]
    (tmp_path / "r.run.json").write_text(json.dumps({"probe": records}))
    finding = only_finding("NSX110", in_turn(tmp_path / "r.sqlite", 400_000, kernels=(GATHER, SCATTER)))
    assert [way.name for way in finding.remedies] == [told]
    assert told != "sharded-blocks" or finding.where["line"] == 9
    assert ("DistributedDataParallel(" in finding.paste) == (told == "replicated")


@pytest.mark.parametrize(("ranks", "bound"), [(2, False), (3, True)])
def test_fewer_launches_of_a_rank_that_mostly_waits_for_those_of_others_are_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, bound: bool
) -> None:
    """One of two ranks waits as long as it is late. One of three waits twice as long: a replay of its own launches says too little."""
    pasted = Saving(70_000, "replayed", error_ns=1_000, most_ns=900_000, source="replay")
    monkeypatch.setattr(nsx110_exposed_comm._pasted, "likely", lambda *told: pasted)
    finding = only_finding(
        "NSX110", in_turn(tmp_path / "r.sqlite", 1_000_000, kernels=(REDUCE,), ranks=ranks, filled=True)
    )
    assert finding.fix.startswith("Make fewer launches on every rank")
    assert (finding.saving.likely_ns == 70_000) != bound
    assert not bound or (finding.saving.likely_ns or 0) > 900_000


def test_ranks_that_wait_for_each_others_data_are_told_to_get_it_sooner(tmp_path: Path) -> None:
    """Each rank waits 400 us for its loader in every other step, and the other rank for it."""
    summary = summarize([in_turn(tmp_path / "r.sqlite", 400_000, kernels=(REDUCE,), loads=True)], every_table=False)
    (finding,) = (f for f in summary.findings or () if f.code == "NSX110")
    assert finding.fix.startswith("Get the input data of ranks ") and "the other ranks wait for it" in finding.fix
    assert finding.where["module"] == "DataLoader"
    saving = finding.saving
    assert (saving.error_ns or 0) <= (saving.likely_ns or 0) < (saving.most_ns or 0) < (summary.answer.now_ns or 0)


@pytest.mark.parametrize("late", [1, 2])
def test_the_line_that_shares_out_the_data_is_the_place_if_one_rank_alone_waits_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    """Where all wait for their data in turn, no share is smaller than another."""
    path = in_turn(tmp_path / "r.sqlite", 400_000, kernels=(REDUCE,), loads=True)
    noted = {"of_ranks": {"/job/data.py": {"7": "mine = files[rank::world]"}}}
    (tmp_path / "r.run.json").write_text(json.dumps({"probe": [{"pid": 100 + rank, **noted} for rank in range(2)]}))
    waits = nsx110_exposed_comm.rank_verdict.wait_for_data
    monkeypatch.setattr(nsx110_exposed_comm.rank_verdict, "wait_for_data", lambda rows: waits(rows)[:late])
    finding = only_finding("NSX110", path)
    assert (finding.where.get("line") == 7) is (late == 1)
    assert ("(data.py:7 shares them out)?" in finding.fix) is (late == 1)


@pytest.mark.parametrize(
    ("modules", "count", "left"),
    [
        (["embed", "encoder.0", "encoder.0.attn.qkv", "encoder.1.norm", "decoder.blocks.0.mlp.0"], 40, 4 / 40),
        (["embed", "head"], 40, 0),  # no blocks are seen
        (["blocks.0.norm", "blocks.1.norm"], 2, 1),  # no fewer units
        (["blocks.0.norm"], 0, 0),
    ],
)
def test_blocks_that_become_units_are_what_is_left_of_the_units(modules: list[str], count: int, left: float) -> None:
    attributed = SimpleNamespace(modules=pl.DataFrame({"module": modules}))
    case = cast(Case, SimpleNamespace(profile=SimpleNamespace(attributed=attributed)))
    settings = RecordedSettings({"wrappers": [{"kind": "fully_shard", "count": count}]})
    assert _small_units.units_left_share(case, settings) == left


@pytest.mark.parametrize(("left", "most_ms"), [(0.0, 8), (0.25, 6), (0.9, 0.8)])
def test_units_that_are_left_cost_what_they_cost_now(left: float, most_ms: float) -> None:
    saving = _small_units.without_hooks(Saving(MS), Saving(8 * MS), left)
    assert saving.most_ns == most_ms * MS
    assert (saving.likely_ns or 0) - (saving.error_ns or 0) == min(MS, most_ms * MS)


def test_units_that_are_single_layers_have_hooks_that_go_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no collective at all saves is the least: the hooks of each unit are host code that the replay leaves."""
    monkeypatch.setattr(nsx110_exposed_comm, "small_units", lambda case, settings: "many")
    path = in_turn(tmp_path / "r.sqlite", 400_000, kernels=(GATHER, SCATTER))
    settings = {"wrappers": [], "places": {"FSDP": "/job/train.py:12"}}
    probe = [{"pid": 100 + rank, "settings": settings} for rank in range(2)]
    (tmp_path / "r.run.json").write_text(json.dumps({"probe": probe}))
    finding = only_finding("NSX110", path)
    assert finding.remedies[0].name == "blocks-as-units" and finding.where["line"] == 12
    saving, replay = finding.saving, engine.replay_of(gather_job([path], ReadingOptions()).profile)
    assert isinstance(replay, engine.Replay)
    least = replay.saving(engine.RemoveExposedComm()).saving_ns or 0
    assert least < (saving.likely_ns or 0) < (saving.most_ns or 0)
    assert (saving.likely_ns or 0) - (saving.error_ns or 0) == pytest.approx(least, rel=0.01)
    assert not saving.bound


def test_fewer_launches_leave_what_a_line_runs_besides(tmp_path: Path) -> None:
    """Each step has one long pause of host code that no launch explains: fewer launches leave it, and shorten the meeting of the ranks."""
    saved = {}
    for noted in (False, True):
        report = in_turn(tmp_path / f"{noted}.sqlite", 800_000, kernels=(REDUCE,), noted=noted)
        finding = only_finding("NSX110", report)
        saved[noted] = finding.saving_ns_per_step or 0
        assert finding.fix.startswith("Make fewer launches on every rank")
    exposed = next(e["total_ns"] for e in finding.evidence if e.get("part") == "exposed communication")
    assert exposed - 50_000 <= saved[True] < saved[False] - 400_000
