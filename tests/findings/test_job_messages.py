"""NSX127: gradients that are reduced with more bytes than they need, and small modules that are gathered each by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Finding
from tests.builder import Report
from tests.findings import Program, findings_alone
from tests.findings.test_nsx127_costly_settings import CLEAN, changed
from tests.ranks.test_rank_table import WORLD, member, noted

US, MS = 1_000, 1_000_000
REDUCE, SCATTER = "ncclDevKernel_AllReduce_Sum_{}_RING_LL", "ncclDevKernel_ReduceScatter_Sum_{}_RING_LL"
GATHER = "ncclDevKernel_AllGather_RING_LL"
STEPS, EXPOSED = 8, 300 * US
DDP = {"kind": "DDP", "count": 1, "hook": None, "find_unused_parameters": False, "unused_parameter_bytes": 0}
SHARDED = {"kind": "fully_shard", "count": 4, "parameter_dtype": "bfloat16", "reduce_dtype": "float32"}


def found(findings: list[Finding], setting: str) -> Finding | None:
    return next((f for f in findings if f.verdict == "found" and f.evidence[0]["setting"] == setting), None)


def probes(path: Path, settings: dict[str, Any], pids: tuple[int, ...]) -> None:
    records = [{"pid": pid, "backend": "nvtx", "ranges": {}, "ranges_pushed": 1, "settings": settings} for pid in pids]
    path.write_text(json.dumps({"probe": records}))


def reduced(
    folder: Path,
    wrapper: dict[str, Any],
    kernel: str,
    *,
    late_us: int = 0,
    computes: str = "bfloat16",
    exposed: int = EXPOSED,
    sent_us: int = 0,
    optimizer: dict[str, Any] | None = None,
    more: dict[str, Any] | None = None,
) -> list[Finding]:
    """Return what is found of two ranks that reduce gradients behind backward; rank 1 comes ``late_us`` later. ``more``: settings.

    ``sent_us``: a broadcast before it takes so long, half of it beside computation; the reduction all behind it.
    """
    report = Report()
    for rank in range(2):
        thread = report.process(100 + rank).thread(100 + rank, "python3")
        report.gpu(rank, pids=[(100 + rank, rank)])
        for i in range(STEPS):
            t, late = MS + i * 2 * MS, rank * late_us * US
            thread.add_range(f"step {i}", t, t + 2 * MS - 100, domain="nsysx")
            thread.add_range("forward", t, t + 20 * US, domain="nsysx")
            thread.add_range("backward", t + 30 * US, t + 80 * US, domain="nsysx")
            thread.launch(t + 5 * US, kernel="gemm", gpu_start=t + 20 * US, gpu_dur=MS + late, device=rank)
            begin = t + MS + 40 * US
            if sent_us:
                thread.launch(
                    t + 30 * US,
                    kernel="ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
                    gpu_start=t + 20 * US + MS - sent_us * US // 2,
                    gpu_dur=sent_us * US,
                    stream=20,
                    device=rank,
                )
                begin += sent_us * US // 2
            thread.launch(
                t + 40 * US,
                kernel=kernel,
                gpu_start=begin + late,
                gpu_dur=exposed + late_us * US - late,
                stream=20,
                device=rank,
            )
    kinds = {f"cuda:{computes}": 1}
    given = {"wrappers": [wrapper], "optimizers": [optimizer] if optimizer else [], **(more or {})}
    probes(folder / "r.run.json", {**changed(CLEAN, given), "autocast": {"dtypes": kinds}}, (100, 101))
    return findings_alone("NSX127", report.write(folder / "r.sqlite"))


@pytest.mark.parametrize(("wrapper", "kernel"), [(DDP, REDUCE.format("f32")), (SHARDED, SCATTER.format("f32"))])
def test_gradients_reduced_as_float32_where_bfloat16_would_do(
    tmp_path: Path, wrapper: dict[str, Any], kernel: str
) -> None:
    finding = found(reduced(tmp_path, wrapper, kernel), "float32 reductions")
    assert finding is not None and "8 significant bits" in finding.detail
    assert [r.name for r in finding.remedies] == ["bf16-reductions"]
    assert finding.saving.bound and finding.saving_ns_per_step == pytest.approx(EXPOSED / 2, rel=0.1)


@pytest.mark.parametrize(
    ("wrapper", "kernel", "paste"),
    [
        (DDP, REDUCE, "model.register_comm_hook(None, bf16_compress_hook)"),
        (SHARDED, SCATTER, "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)"),
        ({**SHARDED, "parameter_dtype": None}, SCATTER, "MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)"),
        (
            {**SHARDED, "kind": "FSDP"},
            SCATTER,
            "MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)",
        ),
    ],
)
def test_each_wrapper_has_its_own_way_to_reduce_in_16_bits(
    tmp_path: Path, wrapper: dict[str, Any], kernel: str, paste: str
) -> None:
    finding = found(reduced(tmp_path, wrapper, kernel.format("f32")), "float32 reductions")
    assert finding is not None and paste in finding.paste
    assert ("register_comm_hook" in finding.paste) is (wrapper["kind"] == "DDP")


ONE_QUEUE = {"environment": {"values": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}}
ALL_RANKS = {"groups": [{"name": "0", "wrapper": "DDP", "ranks": [0, 1]}]}
WITHIN_HOSTS = {
    "groups": [{"name": "0", "wrapper": None, "ranks": [0, 1, 2, 3]}, {"name": "1", "wrapper": "DDP", "ranks": [0, 1]}]
}
SHARED_BY_TWO, NO_WRAPPER = {**SHARDED, "mesh": [2]}, {"groups": [{"name": "0", "wrapper": None, "ranks": [0, 1]}]}


@pytest.mark.parametrize(
    ("wrapper", "more", "exposed", "costs"),
    [
        (DDP, {**ONE_QUEUE, **ALL_RANKS}, EXPOSED, True),
        (SHARED_BY_TWO, {**ONE_QUEUE, **NO_WRAPPER}, EXPOSED, True),
        (DDP, {**ONE_QUEUE, **WITHIN_HOSTS}, EXPOSED, False),  # layers may be split over the other ranks
        (SHARED_BY_TWO, {**ONE_QUEUE, **WITHIN_HOSTS, "groups": WITHIN_HOSTS["groups"][:1]}, EXPOSED, False),
        (DDP, {**ONE_QUEUE, **NO_WRAPPER}, EXPOSED, False),
        (DDP, ONE_QUEUE, EXPOSED, False),
        (DDP, ALL_RANKS, EXPOSED, False),
        (DDP, {"environment": {"values": {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}}, **ALL_RANKS}, EXPOSED, False),
        (DDP, {**ONE_QUEUE, **ALL_RANKS}, 10 * US, False),  # under 1 % of a step
    ],
)
def test_one_queue_for_all_streams_of_a_job_whose_wrapper_spans_all_ranks(
    tmp_path: Path, wrapper: dict[str, Any], more: dict[str, Any], exposed: int, costs: bool
) -> None:
    """Where layers may be split, their order may be what is wanted. What computing hides at best is all of the exposed transfer."""
    kernel = (REDUCE if wrapper is DDP else SCATTER).format("f32")
    finding = found(reduced(tmp_path, wrapper, kernel, exposed=exposed, more=more), "CUDA_DEVICE_MAX_CONNECTIONS")
    assert (finding is not None) is costs
    if finding is not None:
        assert [r.name for r in finding.remedies] == ["usual-connections"]
        assert finding.saving.bound and finding.saving_ns_per_step == pytest.approx(exposed, rel=0.1)


@pytest.mark.parametrize(
    ("wrapper", "kernel", "options"),
    [
        (DDP, REDUCE.format("bf16"), {}),
        ({**DDP, "hook": "bf16_compress_hook"}, REDUCE.format("f32"), {}),
        (DDP, REDUCE.format("f32"), {"computes": "float16"}),  # its range is too small for a sum
        ({**SHARDED, "reduce_dtype": "bfloat16"}, SCATTER.format("f32"), {}),
        (DDP, REDUCE.format("f32"), {"exposed": 80 * US}),  # half of it is 3 % of a step
    ],
)
def test_reductions_that_are_small_or_have_to_be_float32(
    tmp_path: Path, wrapper: dict[str, Any], kernel: str, options: dict[str, Any]
) -> None:
    assert found(reduced(tmp_path, wrapper, kernel, **options), "float32 reductions") is None


def test_waiting_for_a_late_rank_has_no_bytes(tmp_path: Path) -> None:
    """Rank 0 waits for 400 us and transfers for 300: half of the latter is all that fewer bytes save."""
    finding = found(reduced(tmp_path, DDP, REDUCE.format("f32"), late_us=400), "float32 reductions")
    assert finding is not None and (finding.saving_ns_per_step or 0) <= 1.1 * EXPOSED / 2


def test_of_what_is_exposed_only_the_reductions_have_fewer_bytes(tmp_path: Path) -> None:
    """A broadcast of 600 us, of which 300 are exposed, and a reduction of 300: half of the exposed transfer is the reduction's."""
    finding = found(reduced(tmp_path, DDP, REDUCE.format("f32"), sent_us=600), "float32 reductions")
    assert finding is not None and finding.saving_ns_per_step == pytest.approx(EXPOSED / 2, rel=0.1)


STORED = {"class": "AdamW", "elements": 1 << 20, "dtypes": {"float32": 8}}


@pytest.mark.parametrize(
    ("wrapper", "stored", "computes", "told"),
    [
        ({**SHARDED, "parameter_dtype": None}, STORED, "bfloat16", True),
        ({**SHARDED, "parameter_dtype": "bfloat16"}, STORED, "bfloat16", False),
        ({**SHARDED, "parameter_dtype": None}, {**STORED, "dtypes": {"bfloat16": 8}}, "bfloat16", False),
        ({**SHARDED, "parameter_dtype": None}, STORED, "float32", False),
        (DDP, STORED, "bfloat16", False),
    ],
)
def test_parameters_gathered_as_float32_that_autocast_computes_with_in_16_bits(
    tmp_path: Path, wrapper: dict[str, Any], stored: dict[str, Any], computes: str, told: bool
) -> None:
    finding = found(reduced(tmp_path, wrapper, GATHER, computes=computes, optimizer=stored), "float32 gathers")
    assert (finding is not None) is told
    if finding is not None:
        assert [r.name for r in finding.remedies] == ["gathered-in-16-bits"]
        assert finding.saving.bound and finding.saving_ns_per_step == pytest.approx(EXPOSED / 2, rel=0.1)


def gathered(folder: Path, count: int, part_bytes: int, modules: int) -> list[Finding]:
    """Return what is found of a rank of eight that gathers so many units in forward, each with so many bytes of its own."""
    program = Program()
    member(program.main, WORLD, 8, 0)
    program.t = 10 * US

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            for _ in range(count):
                noted(program.main, "ncclAllGather", program.t, program.t + 8 * US, comm=WORLD, size=part_bytes)
                program.t += US
                program.launch(25, GATHER)
                program.host(5)
                program.launch(5)
        program.sync()

    probes(folder / "r.run.json", changed(CLEAN, {"wrappers": [{**SHARDED, "count": modules}]}), (100,))
    return program.steps(body).findings(folder, "NSX127")


def test_small_modules_that_are_gathered_each_by_itself(tmp_path: Path) -> None:
    finding = found(gathered(tmp_path, 24, 4096, 24), "small units")
    assert finding is not None and "24 modules are sharded each by itself, and 24 gathers" in finding.detail
    assert [r.name for r in finding.remedies] == ["blocks-as-units"]
    assert finding.saving.bound and (finding.saving_ns_per_step or 0) > 24 * 20 * US / 2


@pytest.mark.parametrize(("host_us", "hooks"), [(5, False), (400, True)])
def test_hooks_of_small_units_are_what_a_host_bound_job_waits_for(host_us: float, hooks: bool, tmp_path: Path) -> None:
    """Of 24 units in three blocks 4 are left. Where the host sets the pace, the replay of their gathers says little."""
    finding = paced(tmp_path, host_us=host_us, size=4096)
    assert finding is not None and finding.saving.bound is not hooks
    if hooks:
        idle = 24 * (host_us - 50) * US
        assert idle * 20 / 24 / 2 < (finding.saving.likely_ns or 0) < idle


def paced(
    folder: Path, *, host_us: float, gather_us: float = 25, blocks: int = 3, launches: int = 1, size: int = 8 << 20
) -> Finding | None:
    """Return what is found of 24 units in some blocks, 8 ranks' parts of ``size`` bytes each, the host working ``host_us`` between."""
    program = Program()
    member(program.main, WORLD, 8, 0)
    program.t = 10 * US

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            for unit in range(24):
                with program.range(f"net.blocks.{unit * blocks // 24}:Block"):
                    noted(program.main, "ncclAllGather", program.t, program.t + 8 * US, comm=WORLD, size=size)
                    program.t += US
                    program.launch(gather_us, GATHER)
                    program.host(host_us)
                    for _ in range(launches):
                        program.launch(5)
        program.sync()

    probes(folder / "r.run.json", changed(CLEAN, {"wrappers": [{**SHARDED, "count": 24}]}), (100,))
    return found(program.steps(body).findings(folder, "NSX127"), "small units")


def test_units_that_cost_the_host_more_than_they_transfer_are_small_whatever_their_bytes(tmp_path: Path) -> None:
    finding = paced(tmp_path, host_us=400)
    assert finding is not None and "24 modules are sharded each by itself, and the GPU idles" in finding.detail
    idle = 24 * (400 - 50) * US
    assert idle * 20 / 24 / 2 < (finding.saving.likely_ns or 0) < idle


@pytest.mark.parametrize(
    "healthy",
    [
        {"host_us": 5},  # a host that keeps up
        {"host_us": 400, "gather_us": 900},  # a link that is slower than the host
        {"host_us": 400, "blocks": 24},  # one unit a block
        {"host_us": 40, "launches": 80},  # a host that launches many kernels for each unit
    ],
    ids=str,
)
def test_units_of_blocks_and_units_that_take_long_to_send_are_left_alone(
    healthy: dict[str, Any], tmp_path: Path
) -> None:
    assert paced(tmp_path, **healthy) is None


@pytest.mark.parametrize(
    ("count", "part_bytes", "modules"),
    [
        (24, 1 << 20, 24),  # 8 MiB each
        (24, 4096, 4),  # four units, gathered six times
        (6, 4096, 24),
    ],
)
def test_large_units_and_few_ones_are_left_alone(tmp_path: Path, count: int, part_bytes: int, modules: int) -> None:
    assert found(gathered(tmp_path, count, part_bytes, modules), "small units") is None
