"""NSX127: a hook of DDP that compresses gradients on fast links, and hooks and links with which that is right or not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.findings import _compressing_hooks
from nsysx.model import Finding
from tests.builder import Report
from tests.findings import findings_alone, said_of
from tests.findings.lined import Lined
from tests.findings.test_job_messages import DDP, found, probes
from tests.findings.test_nsx127_costly_settings import CLEAN, changed
from tests.ranks.test_rank_table import ALL_REDUCE, KERNELS, noted

US, MS = 1_000, 1_000_000
STEPS, RANKS, BUCKETS = 8, 2, 4
COMPUTES, COMPRESSES, REDUCES = 600 * US, 900 * US, 20 * US
BUCKET_BYTES = 8 << 20
HOOK = {**DDP, "hook": "powerSGD_hook", "bucket_bytes": " ".join([str(BUCKET_BYTES)] * BUCKETS)}


def job(
    folder: Path,
    wrapper: dict[str, Any] = HOOK,
    *,
    card: str = "NVIDIA H100 80GB HBM3",
    waits: bool = True,
    reductions: int = 3,
    compresses: int = COMPRESSES,
    late: int = 0,
    recorded: int = RANKS,
    gpus: int = RANKS,
    variables: dict[str, str] | None = None,
) -> list[Finding]:
    """Return what is found of ranks whose backward fills ``BUCKETS`` buckets: behind each the hook reduces, computes, and waits.

    Of two ranks the last one comes ``late`` ns after the other to the first reduction of each bucket.
    """
    report = Report()
    period = 300 * US + BUCKETS * (COMPUTES + compresses + reductions * REDUCES + late + 100 * US)
    for rank in range(recorded):
        process = report.process(100 + rank)
        main, thread = process.thread(100 + rank, "python3"), process.thread(200 + rank, "pt_autograd_0")
        if rank < gpus:
            report.gpu(rank, name=card, pids=[(100 + r, r) for r in range(rank, recorded, gpus)])
        noted(main, "ncclCommInitRankConfig", 1, 2, comm=5, of=RANKS, Rank=rank)
        for i in range(STEPS):
            t = MS + i * period
            begin = t
            main.add_range("forward", t, t + 20 * US, domain="nsysx")
            main.launch(t + 5 * US, kernel="gemm", gpu_start=t + 20 * US, gpu_dur=100 * US, device=rank)
            host, gpu = t + 40 * US, t + 120 * US
            backward = host - 10 * US
            main.launch(host - 8 * US, kernel="fill", gpu_start=gpu, gpu_dur=2 * US, device=rank)
            gpu += 2 * US
            for _ in range(BUCKETS):
                own = late if rank == RANKS - 1 else 0
                thread.launch(
                    host, kernel="gemm", gpu_start=max(gpu, host + 8 * US), gpu_dur=COMPUTES + own, device=rank
                )
                gpu, host = max(gpu, host + 8 * US) + COMPUTES + own, host + 10 * US
                for number in range(reductions):
                    noted(thread, "ncclAllReduce", host, host + 8 * US, comm=5, size=20_000)
                    waited = late - own if not number else 0
                    thread.launch(
                        host + US, kernel=ALL_REDUCE, gpu_start=gpu, gpu_dur=REDUCES + waited, stream=20, device=rank
                    )
                    gpu, host = gpu + REDUCES + waited, host + 10 * US
                    for _ in range(2):
                        length = compresses // (2 * reductions)
                        thread.launch(host, kernel="geqrf", gpu_start=gpu, gpu_dur=length, stream=24, device=rank)
                        gpu, host = gpu + length, host + 10 * US
                if waits:
                    thread.sync("cudaDeviceSynchronize_v3020", at=host, dur=gpu + 5 * US - host, device=rank)
                    host = gpu + 10 * US
            main.add_range("backward", backward, host, domain="nsysx")
            main.sync("cudaStreamSynchronize_v3020", at=host + US, dur=max(gpu + 5 * US - host, 5 * US), device=rank)
            main.add_range(f"step {i}", begin, t + period - 100, domain="nsysx")
    given = {"wrappers": [wrapper], "environment": {"values": variables or {}}}
    probes(folder / "r.run.json", changed(CLEAN, given), tuple(range(100, 100 + recorded)))
    return findings_alone("NSX127", report.write(folder / "r.sqlite"))


def test_compression_that_takes_longer_than_all_bytes_on_fast_links(tmp_path: Path) -> None:
    finding = found(job(tmp_path), "compressing hook")
    assert finding is not None
    assert [way.name for way in finding.remedies] == ["reduced-whole"]
    assert "powerSGD_hook compresses 32.0 MiB of gradients: for each of 4 buckets" in finding.detail
    # Two ranks send as many bytes as there are: at a tenth of 450 GB/s. At least that stays, at most backward hides it.
    plain, hook = BUCKETS * BUCKET_BYTES / 45e9 * 1e9, BUCKETS * (COMPRESSES + 3 * REDUCES)
    assert finding.saving_ns_per_step == pytest.approx(hook - plain / 2, rel=0.1)
    assert (finding.saving.error_ns or 0) == pytest.approx(plain / 2, rel=0.05)


def test_what_a_rank_waits_for_another_one_stays(tmp_path: Path) -> None:
    finding = found(job(tmp_path, late=200 * US), "compressing hook")
    assert finding is not None
    assert (finding.saving.most_ns or 0) <= 1.1 * BUCKETS * (COMPRESSES + 3 * REDUCES)


@pytest.mark.parametrize(
    ("wrapper", "options"),
    [
        (HOOK, {"card": "NVIDIA A100-PCIE-40GB"}),  # what its links move is not known
        (HOOK, {"variables": {"NCCL_P2P_DISABLE": "1"}}),
        (HOOK, {"gpus": 1}),  # nothing links ranks that share a GPU
        (HOOK, {"recorded": 1}),  # the other rank may be on another host
        (HOOK, {"compresses": 30 * US}),
        (HOOK, {"waits": False}),  # before its first step of compression it reduces whole
        (HOOK, {"reductions": 4}),  # something else reduces in backward, too
        ({**HOOK, "hook": "bf16_compress_hook"}, {}),
        ({**HOOK, "hook": None}, {}),
        ({**HOOK, "bucket_bytes": None}, {}),
        ({**HOOK, "bucket_bytes": str(400 << 20)}, {}),  # whole they may take longer
    ],
)
def test_hooks_that_compress_nothing_or_may_have_to(
    tmp_path: Path, wrapper: dict[str, Any], options: dict[str, Any]
) -> None:
    assert found(job(tmp_path, wrapper, **options), "compressing hook") is None


def test_the_wait_of_a_hook_is_not_the_programs(tmp_path: Path) -> None:
    """It is no synchronize that the program could leave out."""
    job(tmp_path)
    waits = findings_alone("NSX101", tmp_path / "r.sqlite")
    assert any("hook of DistributedDataParallel waits here" in f.fix for f in waits if f.verdict == "found")
    assert not any("torch.cuda.synchronize()" in f.fix for f in waits)


TOP_K = {
    30: "_, i = g.abs().topk(k)",
    31: "dist.all_gather_into_tensor(everyone, g[i])",
    32: "g.zero_().index_add_(0, everyone_i, everyone / world)",
}


def own_hook(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, sent: int, picks_us: float, function: str = "topk_hook"
) -> Finding | None:
    """A backward of four buckets: of each a hook of the program picks what it sends, and puts together what comes."""

    def body(program: Lined, number: int) -> None:
        with program.line(20), program.range("forward"), program.range("net:Net"):
            program.launch(1000, "gemm")
        with program.range("backward"):
            for _ in range(BUCKETS):
                program.launch(600, "gemm")
                with program.line(30, function):
                    program.launch(picks_us, "radixSelect")
                with program.line(31, function):
                    begin = program.t
                    program.launch(30, KERNELS["ncclAllGather"], stream=20)
                    noted(program.main, "ncclAllGather", begin, program.t, comm=5, size=sent)
                with program.line(32, f"{function}.<locals>.joined"):
                    program.launch(picks_us / 4, "index_add")
        program.sync()

    monkeypatch.setattr(_compressing_hooks, "_links_bytes_per_s", lambda case, settings, ranks: 45e9)
    program = Lined(TOP_K, {"wrappers": [{**HOOK, "hook": "topk_hook"}]})
    noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=RANKS, Rank=0)
    told = said_of(program.run(body).write(folder))
    assert not any(r.name == "asynchronous-hook" for f in told for r in f.remedies) or sent > BUCKET_BYTES / 4
    return next(
        (f for f in told if f.verdict == "found" and f.evidence and f.evidence[0].get("setting") == "compressing hook"),
        None,
    )


def test_a_hook_of_the_program_that_picks_the_largest_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = own_hook(tmp_path, monkeypatch, sent=BUCKET_BYTES // 50, picks_us=800)
    assert found is not None and [way.name for way in found.remedies] == ["reduced-whole"]
    assert (
        "topk_hook compresses 32.0 MiB of gradients: for each of 4 buckets of a step it picks what to send"
        in found.detail
    )
    assert (found.saving_ns_per_step or 0) == pytest.approx(BUCKETS * 1000 * US, rel=0.15)


@pytest.mark.parametrize(
    ("sent", "picks_us", "function"),
    [
        (BUCKET_BYTES // 50, 20, "topk_hook"),  # it picks fast
        (BUCKET_BYTES // 2, 800, "topk_hook"),  # 16 bits, and something else
        (BUCKET_BYTES // 50, 800, "other"),  # not by a hook
    ],
)
def test_hooks_of_the_program_that_are_no_compression_or_a_fast_one(
    sent: int, picks_us: float, function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own_hook(tmp_path, monkeypatch, sent=sent, picks_us=picks_us, function=function) is None
