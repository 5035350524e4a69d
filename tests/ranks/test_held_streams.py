"""Work that is queued behind a collective of another stream, which no call makes it wait for: it waits in the replay nevertheless."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Finding
from nsysx.pipeline import ReadingOptions, gather, summarize
from nsysx.replay import held_streams, rank_alone
from nsysx.replay.chain import RECORD, WAIT_EVENT
from tests.builder import Report
from tests.ranks.test_rank_table import ALL_REDUCE

US, MS, STEPS = 1_000, 1_000_000, 12
#: How long two ranks compute in each step before the all-reduce, in turn, and both after it (ns): as much in sum.
TURNS = [[(20, 40)[(i + r) % 2] * MS for i in range(STEPS)] for r in range(2)]
AFTER, TRANSFER = 5 * MS, 2 * MS


def job(
    path: Path, own: Sequence[Sequence[int]], *, held: bool = True, one_gpu: bool = False, larger: bool = True
) -> Path:
    """Each step computes, sends and computes; the host launches all of that at its beginning.

    ``held``: what follows on the stream of the computation begins when the all-reduce of the other stream is done. ``larger``: what takes
    longer are other kernels.
    """
    report = Report()
    for r in range(2):
        report.gpu(0 if one_gpu else r, pids=[(100 + r, 0 if one_gpu else r)])
    threads = [(p := report.process(100 + r)).thread(p.pid, "python3") for r in range(2)]
    t = MS
    for i in range(STEPS):
        done = t + 100 * US + max(each[i] for each in own) + TRANSFER
        for r, thread in enumerate(threads):
            device, came = 0 if one_gpu else r, t + 100 * US + own[r][i]
            size = own[r][i] // MS if larger else 20
            thread.add_range(f"step {i}", t, done + AFTER, domain="nsysx")
            for k in range(3):
                thread.launch(
                    t + (2 + 5 * k) * US,
                    kernel=f"gemm{k}_{size}",
                    gpu_start=t + 100 * US + k * own[r][i] // 3,
                    gpu_dur=own[r][i] // 3 - 2 * US,
                    device=device,
                )
            thread.event_record(at=t + 20 * US, event=2 * i + 1, stream=7, device=device)
            thread.wait_event(at=t + 25 * US, event=2 * i + 1, stream=20, device=device)
            thread.launch(t + 30 * US, kernel=ALL_REDUCE, gpu_start=came, gpu_dur=done - came, stream=20, device=device)
            begin = done + 20 * US if held else came + 2 * US
            thread.launch(t + 40 * US, kernel="update", gpu_start=begin, gpu_dur=AFTER - 100 * US, device=device)
            thread.sync("cudaDeviceSynchronize_v3020", at=t + 60 * US, dur=done + AFTER - t - 60 * US, device=device)
        t = done + AFTER + 20 * US
    return report.write(path)


def read(path: Path) -> tuple[list[Any], Finding]:
    summary = summarize([path], every_table=False)
    return list(summary.rows("ranks")), next(f for f in summary.findings or () if f.code == "NSX110")


def test_what_waits_behind_an_all_reduce_begins_sooner_where_the_other_rank_comes_sooner(tmp_path: Path) -> None:
    """In each step one rank computes for 40 ms and one for 20: 30 on both save 10, although no call says that the update waits."""
    rows, exposed = read(job(tmp_path / "j.sqlite", TURNS))
    assert [row["turn_even_ns"] for row in rows] == pytest.approx([10 * MS] * 2, rel=0.05)
    assert [way.name for way in exposed.remedies] == ["like-batches"]


@pytest.mark.parametrize("held", [True, False])
def test_an_event_stands_for_what_holds_a_stream_up(held: bool, tmp_path: Path) -> None:
    profile = gather(job(tmp_path / "j.sqlite", TURNS, held=held), ReadingOptions())
    model = rank_alone.by_itself(profile)
    assert model is not None
    made = [item for item in model.chain.items if item.call == -1 and item.kind in (RECORD, WAIT_EVENT)]
    if not held:
        assert not made
        return
    steps = len(model.window.numbers)
    assert [item.kind for item in made] == [RECORD, WAIT_EVENT] * steps and len(model.chain.borders) == steps
    assert len({item.target for item in made}) == steps
    pauses = [op.pause for item in model.chain.items for op in item.ops]
    assert max(pauses) < held_streams.HELD_FROM_NS
    assert model.step(0.0) == pytest.approx(model.window.recorded_ns, rel=0.01)


@pytest.mark.parametrize(("larger", "told"), [(True, True), (False, False)])
def test_kernels_that_another_rank_of_the_gpu_slows_are_no_more_work(larger: bool, told: bool, tmp_path: Path) -> None:
    """The same kernels, as large and as often, that take 20 or 40 ms on a GPU that two ranks share."""
    rows, exposed = read(job(tmp_path / "j.sqlite", TURNS, one_gpu=True, larger=larger))
    assert all(bool(row["turn_even_ns"]) is told for row in rows)
    assert ("like-batches" in [way.name for way in exposed.remedies]) is told
