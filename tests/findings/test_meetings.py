"""NSX110: communication that a line of the program or its layers ask for is changed there, not by buckets or links."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings import _exposed_transfer, _links, _meetings, _worth_of_lines
from nsysx.findings._case import Case
from nsysx.saving import Saving
from tests.findings.lined import FILE, Lined

REDUCE, GATHER = "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_AllGather_RING_LL"
BROADCAST = "ncclDevKernel_Broadcast_RING_LL"
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)"


def training(program: Lined, number: int, kernel: str, line: int, times: int = 30) -> None:
    """A forward and backward of 1 ms each, and collectives of 50 us of a line behind them."""
    with program.line(20), program.range("forward"), program.range("net:Net"):
        program.launch(1000)
    with program.line(21), program.range("backward"):
        program.launch(1000)
    with program.line(line):
        for _ in range(times):
            program.launch(50, kernel)


def normalizing(layer: str) -> Callable[[Lined, int], None]:
    """Return a forward whose normalization layers communicate."""

    def body(program: Lined, number: int) -> None:
        with program.line(20), program.range("forward"), program.range("net:Net"):
            for i in range(10):
                with program.range(f"net.bn{i}:{layer}"):
                    program.launch(50, GATHER)
                program.launch(200)

    return body


@pytest.mark.parametrize(
    ("text", "kernel", "times", "remedy"),
    [
        ("dist.all_reduce(p.grad)", REDUCE, 30, "gradients-in-buckets"),
        ("dist.all_reduce(tensor)", REDUCE, 30, "gradients-in-buckets"),
        ("dist.all_gather_object(everyone, mine)", GATHER, 4, "tensors-gathered"),
        ("average[n].lerp_(p.full_tensor(), 0.01)", GATHER, 30, "shards-kept"),
        ("dist.broadcast(p.data, src=0)", BROADCAST, 30, "weights-in-one"),  # no gradient is reduced: one rank trains
        ("dist.broadcast(pt.data, src=0)", BROADCAST, 30, "weights-in-one"),
        ("dist.broadcast(p.data, src=0)", BROADCAST, 1, None),
        ("dist.send(p.grad, dst=0)", SEND, 30, "gradients-in-buckets"),
        ("dist.reduce(p.grad, dst=0)", "ncclDevKernel_Reduce_Sum_f32_RING_LL", 30, "gradients-in-buckets"),
        ("dist.send(x, dst=1)", SEND, 30, None),  # stages of a pipeline
        ("dist.broadcast(x, src=0)", BROADCAST, 30, None),  # what is sent is not known
        ("dist.broadcast(images, src=0)", BROADCAST, 1, "own-part-of-data"),
        ("dist.broadcast(batch_size, src=0)", BROADCAST, 1, None),
        ("loss.backward()", REDUCE, 30, None),  # a wrapper's own
        ("dist.all_reduce(flat)", REDUCE, 1, None),
    ],
)
def test_the_line_that_communicates_says_what_to_do(
    text: str, kernel: str, times: int, remedy: str | None, tmp_path: Path
) -> None:
    program = Lined({30: text}).run(lambda p, n: training(p, n, kernel, 30, times))
    (found,) = program.found(tmp_path, "NSX110")
    named = [r.name for r in found.remedies]
    if remedy is None:
        assert not set(_meetings._OF_LINES) & set(named)
        return
    assert named == [remedy] and (found.where["file"], found.where["line"]) == (FILE, 30)
    assert found.saving.likely_ns == pytest.approx(times * 50_000, rel=0.25)


@pytest.mark.parametrize(
    ("text", "of_network", "remedy"),
    [
        ("average[n].lerp_(p.full_tensor(), 0.01)", 45, "shards-kept"),
        ("average[n].lerp_(p.full_tensor(), 0.01)", 90, None),  # most of it is the model's own
        ("dist.all_reduce(p.grad)", 45, None),  # another line communicates as much
    ],
)
def test_whole_weights_beside_the_gathers_of_a_sharded_model(
    text: str, of_network: int, remedy: str | None, tmp_path: Path
) -> None:
    def body(program: Lined, number: int) -> None:
        training(program, number, REDUCE if "reduce" in text else GATHER, 30)
        for line, phase in ((22, "forward"), (23, "backward")):
            with program.line(line), program.range(phase):
                for _ in range(of_network // 2):
                    program.launch(50, GATHER)

    (found,) = Lined({30: text}).run(body).found(tmp_path, "NSX110")
    named = {r.name for r in found.remedies} & set(_meetings._OF_LINES)
    assert named == ({remedy} if remedy else set())


def test_without_a_replay_no_more_goes_than_what_is_exposed_of_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(program: Lined, number: int) -> None:
        training(program, number, GATHER, 30)
        with program.line(22), program.range("forward"):
            for _ in range(20):
                program.launch(50, GATHER)

    monkeypatch.setattr(Case, "worth", lambda *_, **__: Saving(None, "no claim"))
    (found,) = Lined({30: "average[n].lerp_(p.full_tensor(), 0.01)"}).run(body).found(tmp_path, "NSX110")
    assert [r.name for r in found.remedies] == ["shards-kept"] and found.saving.bound
    assert found.saving.likely_ns == pytest.approx(30 * 50_000, rel=0.02)  # of 50 gathers


@pytest.mark.parametrize("how", ["wrapper", "line"])
def test_weights_of_ranks_that_reduce_their_gradients_are_sent_once(how: str, tmp_path: Path) -> None:
    def body(program: Lined, number: int) -> None:
        training(program, number, BROADCAST, 30)
        with program.line(31):
            program.launch(50, REDUCE)

    source = {
        30: "dist.broadcast(teacher.data, src=0)",
        31: "dist.all_reduce(grads)" if how == "line" else "total(loss)",
    }
    settings = {"wrappers": [{"kind": "DDP"}] if how == "wrapper" else []}
    (found,) = Lined(source, settings).run(body).found(tmp_path, "NSX110")
    assert [r.name for r in found.remedies] == ["weights-sent-once"]


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("dist.all_reduce(p.grad)", "waited-behind-backward"),
        (
            "w = dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, async_op=True)",
            "waited-behind-backward",
        ),  # and w.wait() on the next line
        ("dist.all_reduce(g)", "waited-behind-backward"),
        ("loss.backward()", None),  # a wrapper's own
    ],
)
def test_gradients_that_hooks_of_parameters_reduce_one_by_one(text: str, remedy: str | None, tmp_path: Path) -> None:
    """Backward stands still for each: its kernels and the reductions take turns."""

    def body(program: Lined, _: int) -> None:
        with program.line(20), program.range("forward"), program.range("net:Net"):
            program.launch(4000)
        with program.line(21), program.range("backward"):
            for _ in range(40):
                program.launch(300)
                with program.line(30, "hook"):
                    program.launch(150, REDUCE)
        program.launch(500, "multi_tensor_apply_kernel")

    (found,) = Lined({30: text}, {"wrappers": []}).run(body).found(tmp_path, "NSX110")
    assert [r.name for r in found.remedies if r.name in _meetings._OF_LINES] == ([remedy] if remedy else [])
    if remedy:
        assert found.saving.bound and found.saving.likely_ns == pytest.approx(40 * 150_000, rel=0.05)


@pytest.mark.parametrize(
    ("hook", "text", "reads", "holds"),
    [
        ("Guard.hook", "dist.all_reduce(g)", True, "reads a value 8 times in each step, and backward waits for it and waits"),
        ("Guard.hook", "dist.all_reduce(g)", False, "Guard.hook waits for each reduction before backward goes on"),
        ("Guard.hook", "work = dist.all_reduce(g, async_op=True)", True, "reads a value 8 times in each step, and backward waits for it"),
        ("Guard.hook", "work = dist.all_reduce(g, async_op=True)", False, ""),
        ("Guard.hook", "dist.all_reduce(g, async_op=True).wait()", False, "waits for each reduction before backward goes on"),
        ("Guard.hook", "return dist.all_reduce(g, async_op=True).get_future().then(lambda f: f.wait()[0])", False, ""),
        ("Guard.hook", "return default_hooks.allreduce_hook(None, bucket)", False, ""),
        ("", "dist.all_reduce(g)", True, ""),
        ("bf16_compress_hook", "dist.all_reduce(g)", True, ""),
    ],
)  # fmt: skip
def test_a_hook_of_gradients_that_holds_backward_up_is_told(
    hook: str, text: str, reads: bool, holds: str, tmp_path: Path
) -> None:
    """A backward of eight buckets: each is tested on the host, if it is, and reduced."""

    def body(program: Lined, number: int) -> None:
        with program.line(20), program.range("forward"), program.range("net:Net"):
            program.launch(1000)
        with program.range("backward"):
            for _ in range(8):
                program.launch(200)
                with program.line(30, "Guard.hook"):
                    program.launch(5)
                    if reads:
                        program.sync()
                with program.line(31, "Guard.hook"):
                    program.launch(100, REDUCE)

    source = {30: "if not torch.isfinite(g).all():" if reads else "g.div_(world)", 31: text}
    settings = {"wrappers": [{"kind": "DDP", "hook": hook}]}
    (found,) = Lined(source, settings).run(body).found(tmp_path, "NSX110")
    named = [r.name for r in found.remedies]
    assert (named == ["asynchronous-hook"]) is bool(holds)
    if holds:
        assert holds in found.fix and found.title.startswith("A communication hook of DDP")
        assert (found.where["file"], found.where["line"]) == (FILE, 31)
        assert 8 * 100_000 <= (found.saving.likely_ns or 0) <= 8 * 200_000


@pytest.mark.parametrize("layer", ["SyncBatchNorm", "TensorParallelNorm"])
def test_layers_that_normalize_over_all_ranks_are_told(layer: str, tmp_path: Path) -> None:
    (found,) = Lined({20: "y = net(x)"}).run(normalizing(layer)).found(tmp_path, "NSX110")
    assert ("own-statistics" in [r.name for r in found.remedies]) == (layer == "SyncBatchNorm")


def linked(case: str, bandwidth: float, environment: dict[str, str], gpus: int = 2) -> Case:
    """Return a case of two ranks on one host, on so many GPUs, whose exposed communication is transfer, at this bus bandwidth."""
    large = {
        "bytes": 10 * (25 << 20),
        "calls": 10,
        "bus_bytes_per_s": bandwidth,
        "kind": "allreduce",
        "communicator": 0,
    }
    row = {"rank": 0, "comm_ns": 100, "exposed_transfer_ns": 90, "host": 0, "gpu": case, "by_collective": [large]}
    run = {"probe": [{"pid": 1, "settings": {"environment": {"values": environment}}}]}
    profile = SimpleNamespace(process=1 << 24, trace=SimpleNamespace(capture=SimpleNamespace(probe=run["probe"])))
    profile.device = 0
    profile.ledgers = SimpleNamespace(activity={(rank << 24, 0): None for rank in (1, 2)})
    profile.trace.limits = {(rank << 24, 0): SimpleNamespace(gpu=min(rank, gpus)) for rank in (1, 2)}
    profile.once = lambda make: RecordedSettings(run["probe"][0]["settings"])
    return cast(Case, SimpleNamespace(ranks=SimpleNamespace(rows=[row, dict(row)]), profile=profile))


@pytest.mark.parametrize(
    ("gpu", "bandwidth", "environment", "words"),
    [
        ("NVIDIA H100 80GB HBM3", 8e9, {}, "why NCCL does not use NVLink"),
        ("NVIDIA H100 80GB HBM3", 44e9, {}, "NVLink of this card moves 450.0 GB/s each way"),
        ("NVIDIA H100 80GB HBM3", 46e9, {}, None),
        ("NVIDIA A100-SXM4-80GB", 31e9, {}, None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 8e9, {}, None),
        ("NVIDIA H100 PCIe", 8e9, {}, None),
        ("NVIDIA L40S", 8e9, {}, None),
        ("NVIDIA L40S", 8e9, {"NCCL_P2P_DISABLE": "1"}, "NCCL_P2P_DISABLE"),
        ("NVIDIA L40S", 8e9, {"NCCL_P2P_DISABLE": "0"}, None),
        ("NVIDIA L40S", 8e9, {"NCCL_MAX_NCHANNELS": "1"}, "NCCL_MAX_NCHANNELS=1: NCCL then has so few blocks"),
        ("NVIDIA L40S", 8e9, {"NCCL_MAX_NCHANNELS": "32"}, None),
        ("NVIDIA L40S", 8e9, {"NCCL_PROTO": "LL"}, "NCCL_PROTO=LL"),
        ("NVIDIA L40S", 8e9, {"NCCL_PROTO": "LL128"}, None),
    ],
)
def test_slow_links_are_told_where_faster_ones_are_there(
    gpu: str, bandwidth: float, environment: dict[str, str], words: str | None
) -> None:
    found = _meetings._of_links(linked(gpu, bandwidth, environment))
    assert (found is None) == (words is None)
    assert found is None or (words or "") in found.fix.text


def test_ranks_that_share_a_gpu_have_no_links_between_them() -> None:
    shared = linked("NVIDIA H100 80GB HBM3", 8e9, {}, gpus=1)
    assert _meetings._of_links(shared) is None
    switched_off = linked("NVIDIA H100 80GB HBM3", 8e9, {"NCCL_PROTO": "LL"}, gpus=1)
    assert _meetings._of_links(switched_off) is not None


def moved(communicator: int, rate: float, size: int = 25 << 20, kind: str = "allreduce") -> dict[str, Any]:
    return {"kind": kind, "communicator": communicator, "bytes": 10 * size, "calls": 10, "bus_bytes_per_s": rate}


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (moved(1, 60e9), True),
        (moved(1, 25e9), False),  # beside computation
        (moved(1, 60e9, size=200 << 20), False),  # larger messages are faster
        (moved(1, 60e9, kind="allgather"), False),
        (moved(0, 60e9), False),  # the same ranks: one of them was beside computation
    ],
)
def test_a_group_of_ranks_that_is_slower_than_another_is_told_with_both_rates(
    other: dict[str, Any], found: bool
) -> None:
    """On one host: over several the network is slower by nature."""
    slow = moved(0, 12e9)
    rows = [{"rank": r, "host": 0, "gpu": "NVIDIA L40S", "by_collective": [slow if r < 2 else other]} for r in range(4)]
    text = _links.slowest(rows)
    assert (text is not None) == found
    if text is not None:
        assert "among ranks 0, 1: it moves at 12.0 GB/s" in text and "among ranks 2, 3 at 60.0 GB/s" in text
    assert _links.slowest([{**row, "host": row["rank"] // 2} for row in rows]) is None


def gathering(program: Lined, number: int) -> None:
    """A host that gathers 40 parameters, with 100 us of its own code for each, while the GPU has little to do."""
    with program.line(20), program.range("forward"), program.range("net:Net"):
        program.launch(500)
    with program.line(30):
        for _ in range(40):
            program.host(100)
            program.launch(30, GATHER)


@pytest.mark.parametrize(
    ("text", "remedy"), [("full = p.full_tensor()", "shards-kept"), ("full = everything(p)", "batched-operation")]
)
def test_whole_weights_in_a_host_bound_step_are_kept_as_parts(text: str, remedy: str, tmp_path: Path) -> None:
    """Where the line holds the host, too, what goes is all of it: its code, its launches and what they communicate."""
    (found,) = Lined({30: text}).run(gathering).found(tmp_path, "NSX123")
    assert [r.name for r in found.remedies] == [remedy]
    assert (found.where["file"], found.where["line"]) == (FILE, 30)
    whole = 40 * 106_000  # of each step, what is not behind the forward
    gone = not found.saving.bound and found.saving.likely_ns == pytest.approx(whole, rel=0.15)
    assert gone == (remedy == "shards-kept")
    if gone:  # no more than the host is there, which the others wait for, too
        assert found.saving.likely_ns is not None and found.saving.most_ns is not None
        assert found.saving.likely_ns <= found.saving.most_ns <= 1.1 * whole


def test_waiting_for_a_later_rank_comes_back_in_the_next_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_worth_of_lines, "longer_wait_ns", lambda case, chosen: 1_000_000)
    (found,) = Lined({30: "full = p.full_tensor()"}).run(gathering).found(tmp_path, "NSX123")
    likely, most = found.saving.likely_ns, found.saving.most_ns
    assert likely is not None and most == likely + 1_000_000 and "1.00 ms of waiting" in found.saving.confidence


@pytest.mark.parametrize(
    ("waits", "chosen", "longer"), [([9, 2], 1, 7), ([9, 2], 0.5, 3.5), ([2, 9], 1, 0), ([99, 2], 1, 40)]
)
def test_only_what_a_rank_waits_longer_than_the_one_that_sets_the_pace(
    waits: list[int], chosen: float, longer: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four steps, of which communication alone is 40 ns each."""
    rows = [{"process": rank, "device": 0, "exposed_wait_ns": 4 * ns, "steps": 4} for rank, ns in enumerate(waits)]
    case: Any = SimpleNamespace(process=0, device=0, ranks=SimpleNamespace(rows=rows), taken_by=lambda parts: 40)
    monkeypatch.setattr(_exposed_transfer, "communication", lambda case: None)
    monkeypatch.setattr(_exposed_transfer, "exposed_ns", lambda case, comm: np.array([10, 10]))
    flags = np.array([True, chosen == 1])
    assert _exposed_transfer.longer_wait_ns(case, flags) == pytest.approx(longer, abs=0.6)
    assert not _exposed_transfer.longer_wait_ns(SimpleNamespace(**{**vars(case), "ranks": None}), flags)  # type: ignore[arg-type]


def test_what_a_line_of_all_ranks_saves_at_most_is_no_wait_for_values(tmp_path: Path) -> None:
    """A host that reads what it gathers waits for whatever is queued: that says nothing of what goes."""

    def reading(program: Lined, number: int) -> None:
        gathering(program, number)
        with program.line(30):
            program.copy(2, "DtoH", bytes=64)

    found = [
        f for f in Lined({30: "full = p.full_tensor()"}).run(reading).found(tmp_path, "NSX123") if f.where["line"] == 30
    ]
    assert found and all(f.saving.most_ns is None for f in found)


def exchanging(program: Lined, number: int) -> None:
    """Twelve exchanges of a line: each launches two collectives, and reads what they bring twice."""
    for _ in range(12):
        with program.line(20), program.range("forward"), program.range("net:Net"):
            program.launch(100)
        with program.line(30):
            for _ in range(2):
                program.launch(10, GATHER)
                program.copy(2, "DtoH", bytes=64)
                program.host(30)


@pytest.mark.parametrize(
    ("text", "found"), [("dist.all_gather_object(table, counts.tolist())", True), ("table = exchange(counts)", False)]
)
def test_objects_that_ranks_exchange_in_each_layer_are_told(text: str, found: bool, tmp_path: Path) -> None:
    """The line's own code is no more than its launches take: it is read from, again and again."""
    told = Lined({30: text}).run(exchanging).found(tmp_path, "NSX123")
    named = [r.name for f in told for r in f.remedies]
    assert ("tensors-gathered" in named) == found


@pytest.mark.parametrize(("cls", "line"), [("Wide", 40), ("Other", 60)])
def test_layers_that_gather_their_outputs_have_the_line_of_their_own_forward(
    cls: str, line: int, tmp_path: Path
) -> None:
    """One function gathers for all of them. Where the layers are of another class than any function on the way, its line is left."""

    def body(program: Lined, number: int) -> None:
        with program.range("forward"), program.range("net:Net"), program.line(20, "step"):
            for i in range(4):
                with program.range(f"net.fc{i}:{cls}"), program.line(40, "Wide.forward"):
                    program.launch(100)
                    with program.line(50, "Gather.apply"), program.line(60, "gather_last"):
                        program.launch(200, GATHER)

    (found,) = (
        Lined({60: "dist.all_gather_into_tensor(parts, x)"}, {"wrappers": []}).run(body).found(tmp_path, "NSX110")
    )
    assert [r.name for r in found.remedies] == ["paired-splits"]
    assert (found.where["file"], found.where["line"]) == (FILE, line)
