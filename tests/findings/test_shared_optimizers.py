"""NSX127: an optimizer whose state is shared out over the ranks, with room for all of it, without, and where nothing is shared."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from nsysx.findings import _shared_optimizers
from nsysx.findings._case import Saving
from nsysx.model import Finding
from nsysx.replay import job_changes
from tests.builder import Report
from tests.findings import findings_alone
from tests.findings.test_job_messages import DDP, found, probes
from tests.findings.test_nsx127_costly_settings import CLEAN, changed
from tests.ranks.test_rank_table import ALL_REDUCE, KERNELS, noted

US, MS = 1_000, 1_000_000
STEPS, RANKS = 8, 2
BYTES, GIB = 4_000_000, 1 << 30
COMPUTES, REDUCES, UPDATES, SENDS = 1_500 * US, 100 * US, 60 * US, 40 * US
FREE = {"memory": {"total_bytes": 80 * GIB, "reserved_peak_bytes": 20 * GIB}}
FULL = {"memory": {"total_bytes": 80 * GIB, "reserved_peak_bytes": 75 * GIB}}
SHARED = {
    "ranks": RANKS,
    "class": "AdamW",
    "module": "torch",
    "parameters": 5,
    "elements": 5_000_000,
    "state_bytes": 40_000_000,
    "bucket_view": False,
    "overlaps": False,
}
ZERO = {
    "class": "ZeroRedundancyOptimizer",
    "module": "torch",
    "parameters": 10,
    "elements": 10_000_000,
    "dtypes": {"float32": 10},
    "shared": SHARED,
}
ALONE = {**ZERO, "class": "AdamW", "shared": None}


def job(
    folder: Path,
    optimizers: list[dict[str, Any]],
    memory: dict[str, Any],
    *,
    sizes: list[int] | None = None,
    recorded: int = RANKS,
    wrappers: tuple[dict[str, Any], ...] = (DDP,),
    updates: int = UPDATES,
    sent_in: str = "optimizer",
) -> list[Finding]:
    """Return what is found of two ranks that reduce gradients, update, and send messages of these ``sizes``, which all of them wait for.

    ``recorded``: how many of them.
    """
    report, sizes = Report(), sizes or [BYTES] * 10
    period = COMPUTES + REDUCES + updates + len(sizes) * SENDS + 80 * US
    for rank in range(recorded):
        thread = report.process(100 + rank).thread(100 + rank, "python3")
        report.gpu(rank, pids=[(100 + rank, rank)])
        noted(thread, "ncclCommInitRankConfig", 1, 2, comm=5, of=RANKS, Rank=rank)
        for i in range(STEPS):
            t = MS + i * period
            gpu = t + 60 * US
            thread.add_range(f"step {i}", t, t + period - 100, domain="nsysx")
            thread.add_range("forward", t, t + 20 * US, domain="nsysx")
            thread.launch(t + 5 * US, kernel="gemm", gpu_start=gpu, gpu_dur=COMPUTES, device=rank)
            thread.add_range("backward", t + 30 * US, t + 50 * US, domain="nsysx")
            gpu += COMPUTES
            noted(thread, "ncclAllReduce", t + 39 * US, t + 45 * US, comm=5, size=40_000_000)
            thread.launch(t + 40 * US, kernel=ALL_REDUCE, gpu_start=gpu, gpu_dur=REDUCES, stream=20, device=rank)
            gpu += REDUCES
            begin, host = t + 60 * US, t + 70 * US
            thread.launch(begin + US, kernel="multi_tensor_apply", gpu_start=gpu, gpu_dur=updates, device=rank)
            gpu += updates
            if sent_in != "optimizer":
                thread.add_range("optimizer AdamW", begin, host - US, domain="nsysx")
            for size in sizes:
                noted(thread, "ncclBroadcast", host, host + 7 * US, comm=5, size=size)
                thread.launch(
                    host + US, kernel=KERNELS["ncclBroadcast"], gpu_start=gpu, gpu_dur=SENDS, stream=20, device=rank
                )
                host, gpu = host + 10 * US, gpu + SENDS
            if sent_in == "optimizer":
                thread.add_range("optimizer ZeroRedundancyOptimizer", begin, host, domain="nsysx")
            thread.sync("cudaDeviceSynchronize_v3020", at=host + US, dur=gpu + 5 * US - host, device=rank)
    given = {"wrappers": list(wrappers), "optimizers": optimizers}
    probes(folder / "r.run.json", {**changed(CLEAN, given), **memory}, tuple(range(100, 100 + recorded)))
    return findings_alone("NSX127", report.write(folder / "r.sqlite"))


def test_a_state_that_is_shared_out_although_each_rank_has_room_for_it(tmp_path: Path) -> None:
    findings = job(tmp_path, [ZERO], FREE)
    finding = found(findings, "shared optimizer state")
    assert finding is not None and found(findings, "parameters_as_bucket_view") is None
    assert [way.name for way in finding.remedies] == ["whole-state"]
    assert "2 ranks share out the state of AdamW" in finding.detail and "in 10 broadcasts" in finding.detail
    assert "76.3 MiB" in finding.detail and "60.0 GiB" in finding.detail
    assert "torch.optim.AdamW(model.parameters(), fused=True, **options)" in finding.paste
    # Each rank updates twice as many numbers.
    assert finding.saving_ns_per_step == pytest.approx(10 * SENDS - UPDATES, rel=0.15)


@pytest.mark.parametrize(
    ("named", "paste"),
    [
        ({"class": "Adam"}, "torch.optim.Adam(model.parameters(), fused=True, **options)"),
        ({"class": "RMSprop"}, "torch.optim.RMSprop(model.parameters(), **options)"),  # which has no fused form
        ({"class": "Lion", "module": "lion_pytorch"}, "optimizer = Lion(model.parameters(), **options)"),
    ],
)
def test_what_is_pasted_is_of_the_class_that_is_shared_out(tmp_path: Path, named: dict[str, str], paste: str) -> None:
    finding = found(job(tmp_path, [{**ZERO, "shared": {**SHARED, **named}}], FREE), "shared optimizer state")
    assert finding is not None and paste in finding.paste


def test_the_longer_update_is_taken_off_what_the_broadcasts_take(tmp_path: Path) -> None:
    finding = found(job(tmp_path, [ZERO], FREE, updates=200 * US), "shared optimizer state")
    assert finding is not None
    assert finding.saving_ns_per_step == pytest.approx(10 * SENDS - 200 * US, rel=0.2)


def test_an_update_of_all_that_takes_as_long_as_the_broadcasts_saves_nothing(tmp_path: Path) -> None:
    assert found(job(tmp_path, [ZERO], FREE, updates=450 * US), "shared optimizer state") is None


def test_a_rank_recorded_alone_waits_for_others_in_its_broadcasts_so_that_it_is_a_bound(tmp_path: Path) -> None:
    finding = found(job(tmp_path, [ZERO], FREE, recorded=1), "shared optimizer state")
    assert finding is not None and finding.saving.bound
    assert finding.saving_ns_per_step == pytest.approx(10 * SENDS - UPDATES, rel=0.15)


def test_a_replay_far_off_the_steps_leaves_what_is_moved_less_the_longer_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten steps: 6 ms of each are transfer of the broadcasts, and 2 ms the update, of which there is twice as much then."""
    case: Any = SimpleNamespace(
        ops=pl.DataFrame({"op": [0, 1]}),
        profile=None,
        ranks=SimpleNamespace(rows=[{"replay_error": 0.2}]),
        timed_ops=lambda *_: pl.DataFrame({"op": [1], "ns": [20 * MS]}),
        per_step=lambda ns: round(ns / 10),
        bound=lambda ns, why: Saving(ns, why, bound=True, source="time"),
    )
    monkeypatch.setattr(job_changes, "gone", lambda *_: frozenset({0}))
    monkeypatch.setattr(job_changes, "grown", lambda *_: (frozenset({1}), 2.0))
    monkeypatch.setattr(_shared_optimizers, "transfer_of_ops_ns", lambda *_: 6 * MS)
    worth = _shared_optimizers.whole_state(case, None)
    assert worth is not None and worth.bound and worth.likely_ns == 4 * MS


def test_without_room_updates_are_sent_in_one_message_of_each_rank(tmp_path: Path) -> None:
    """Nine messages of ten take as long as the largest, for a hundredth of its bytes."""
    sizes = [BYTES] + [BYTES // 100] * 9
    findings = job(tmp_path, [ZERO], FULL, sizes=sizes)
    finding = found(findings, "parameters_as_bucket_view")
    assert finding is not None and found(findings, "shared optimizer state") is None
    assert [way.name for way in finding.remedies] == ["updates-in-buckets"]
    assert "2 ranks send each other what they have updated in 10 broadcasts" in finding.detail
    assert finding.saving.bound and finding.saving_ns_per_step == pytest.approx((10 - 1.09) * SENDS, rel=0.1)


@pytest.mark.parametrize(
    ("shared", "memory", "sizes"),
    [
        (SHARED, FULL, [BYTES] * 10),  # the bytes take as long in one message
        ({**SHARED, "bucket_view": True}, FULL, [BYTES] + [BYTES // 100] * 9),
        (SHARED, FULL, [BYTES] + [BYTES // 100] * 2),  # hardly more than one of each rank
        (SHARED, FREE, [BYTES] + [BYTES // 100] * 9),  # with room for it nothing has to be sent
    ],
)
def test_updates_that_one_message_of_each_rank_sends_no_faster(
    tmp_path: Path, shared: dict[str, Any], memory: dict[str, Any], sizes: list[int]
) -> None:
    assert found(job(tmp_path, [{**ZERO, "shared": shared}], memory, sizes=sizes), "parameters_as_bucket_view") is None


@pytest.mark.parametrize(
    ("optimizers", "memory", "options"),
    [
        ([ALONE], FREE, {}),  # something else sends in the phase of the optimizer
        ([{**ZERO, "shared": {**SHARED, "overlaps": True}}], FREE, {}),
        ([{**ZERO, "shared": {**SHARED, "ranks": 1}}], FREE, {}),
        ([{**ZERO, "shared": {**SHARED, "state_bytes": 40 * GIB}}], FREE, {}),  # 80 GiB of state
        ([ZERO], {"memory": None}, {}),
        ([ZERO], FREE, {"wrappers": ()}),
        ([ZERO, ALONE], FREE, {}),  # whose kernels are whose is not known
        ([ZERO], FREE, {"sent_in": "behind it"}),
        ([ZERO], FREE, {"sizes": [BYTES]}),
    ],
)
def test_optimizers_that_share_nothing_or_must(
    tmp_path: Path, optimizers: list[dict[str, Any]], memory: dict[str, Any], options: dict[str, Any]
) -> None:
    assert found(job(tmp_path, optimizers, memory, **options), "shared optimizer state") is None
