"""NSX101 and NSX120: a long wait is worth nothing where the GPU is busy, the kernels behind a mask are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.render import view
from tests.findings import DOMAIN, US, Program, empty, healthy


def masked(program: Program, number: int) -> None:
    """Forward of 4 ms, then a mask: 2 ms of select and index kernels with a wait for the count, and a loss of 1 ms."""
    healthy(program, number)
    with program.range("loss"), program.range("loss_fn:MaskedLoss"):
        program.launch(1000, "DeviceSelectSweepKernel<int>")
        program.sync()
        program.launch(1000, "void index_elementwise_kernel<128>(long)")
        program.launch(1000, "nll_loss_forward")


def test_a_wait_behind_a_busy_device_is_found_and_worth_next_to_nothing(tmp_path: Path) -> None:
    (finding,) = Program().steps(masked).findings(tmp_path, "NSX101")
    assert finding.verdict == "found"
    assert finding.where["module"] == "loss_fn"
    assert finding.where["phase"] == "loss"
    # The step is 7 ms; the CPU waits for most of the 5 ms before the select kernel is done. Only the launch after costs.
    assert finding.title.startswith("A host sync of 6.59 ms in cudaStreamSynchronize in loss_fn costs next to nothing")
    assert finding.cost_ns_per_step is not None and finding.cost_ns_per_step < 0.01 * 7_000_000
    assert finding.saving_ns_per_step is not None and 0 <= finding.saving_ns_per_step < 0.01 * 7_000_000
    assert "leave it" in finding.detail


def test_the_kernels_of_a_mask_are_what_matters(tmp_path: Path) -> None:
    summary = Program().steps(masked).summary(tmp_path)
    assert summary.findings is not None
    first = summary.findings[0]
    assert (first.code, first.verdict) == ("NSX120", "found")
    assert first.where["module"] == "loss_fn"
    assert first.cost_ns_per_step == pytest.approx(3_000_000, rel=0.01)
    assert first.saving_ns_per_step == pytest.approx(3_000_000, rel=0.02)
    assert first.saving.bound
    assert [row["from"] for row in first.evidence] == ["nonzero or a boolean mask", "indexing with a tensor or a mask"]


def test_mask_kernels_in_a_module_of_other_work_count_alone(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            for _ in range(10):
                program.launch(200)
            program.launch(500, "DeviceSelectSweepKernel<int>")

    finding = Program().steps(body).finding(tmp_path, "NSX120")
    assert finding.cost_ns_per_step == 500_000
    assert finding.saving_ns_per_step == pytest.approx(500_000, rel=0.03)


def test_a_sort_by_itself_is_no_mask(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        healthy(program, number)
        program.launch(800, "DeviceRadixSortOnesweepKernel<int>")

    assert Program().steps(body).finding(tmp_path, "NSX120").verdict == "clear"


def test_the_backward_of_an_embedding_is_no_mask(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        healthy(program, number)
        for kernel in ("DeviceRadixSortOnesweepKernel", "DeviceUniqueByKeySweepKernel", "DeviceCompactInitKernel"):
            program.launch(400, f"void at_cuda_detail::cub::{kernel}<int>")
        program.launch(400, "void at::native::sum_and_scatter<float, long>")

    assert Program().steps(body).finding(tmp_path, "NSX120").verdict == "clear"


def test_a_wait_in_a_launch_bound_step_is_worth_its_gap(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        for _ in range(10):
            program.launch(100)
            program.sync()
            program.host(50)

    finding = Program().steps(body).finding(tmp_path, "NSX101")
    # Each round takes 8 us to the start, 100 us of kernel, and 1 + 1 + 50 us on the host, which is hidden without the wait.
    assert finding.saving_ns_per_step == pytest.approx(10 * 60_000, rel=0.1)
    assert "leave it" not in finding.detail


def test_one_sync_in_all_steps_is_not_listed(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        healthy(program, number)
        if number == 5:
            program.sync()

    assert Program().steps(body, 10).finding(tmp_path, "NSX101").verdict == "clear"


def test_healthy_steps_are_clear_and_nothing_recorded_cannot_be_told(tmp_path: Path) -> None:
    program = Program().steps(healthy)
    assert program.finding(tmp_path, "NSX101").verdict == "clear"
    assert program.finding(tmp_path, "NSX120").verdict == "clear"
    assert empty().finding(tmp_path, "NSX101").verdict == "cannot_tell"
    assert empty().finding(tmp_path, "NSX120").verdict == "cannot_tell"


def test_what_a_line_of_the_program_waits_for_is_named(tmp_path: Path) -> None:
    """Two places in one module are told apart by their lines, as far as these were recorded."""

    def body(program: Program, number: int) -> None:
        healthy(program, number)
        with program.range("loss"), program.range("loss_fn:MaskedLoss"):
            for line in (47, 61):
                program.launch(1000, "DeviceSelectSweepKernel<int>")
                program.main.mark(f"sync losses.py:{line} forward", program.t, domain=DOMAIN)
                program.sync()

    found = Program().steps(body).findings(tmp_path, "NSX101")
    assert {(f.where.get("file"), f.where.get("line")) for f in found} == {("losses.py", 47), ("losses.py", 61)}
    assert all("nsysx run" not in f.fix for f in found)
    finding = Program().steps(masked).finding(tmp_path, "NSX101")
    assert "file" not in finding.where
    assert "nsysx run records the Python line" in finding.fix


def test_places_that_differ_by_a_number_are_one(tmp_path: Path) -> None:
    """Decoding in ranges token_0, token_1, ...: one place, not one per token."""

    def body(program: Program, number: int) -> None:
        for token in range(6):
            with program.range("forward"), program.range(f"token_{token}:Token"):
                program.launch(400)
                program.sync()
                program.host(100)

    finding = Program().steps(body).finding(tmp_path, "NSX101")
    assert finding.where["module"] == "token_*"
    assert "(6 calls)" in finding.detail
    assert "leave it" not in finding.fix.lower()


def test_scattering_is_no_mask_outside_of_a_loss(tmp_path: Path) -> None:
    """A graph network picks edges with a mask and scatters messages: ignore_index is no advice for it."""

    def layer(program: Program, number: int, module: str) -> None:
        with program.range("forward"), program.range(module):
            program.launch(200)
            program.launch(60, "DeviceSelectSweepKernel<int>")
            program.launch(60, "void at::native::indexSelectLargeIndex<float>(int)")
            program.launch(900, "void at::native::_scatter_gather_elementwise_kernel<128>(int)")

    finding = Program().steps(lambda p, n: layer(p, n, "conv:GCNConv")).finding(tmp_path, "NSX120")
    assert finding.cost_ns_per_step is not None and finding.cost_ns_per_step <= 130_000
    assert "ignore_index" not in finding.fix
    finding = Program().steps(lambda p, n: layer(p, n, "criterion:MaskedLoss")).finding(tmp_path, "NSX120")
    assert "ignore_index" in finding.fix


def test_a_harmless_sync_is_no_reason_to_act(tmp_path: Path) -> None:
    """The step is bound by the device; the wait at its end costs the start of the next one, 0.5 % of the step."""

    def body(program: Program, number: int) -> None:
        healthy(program, number)
        program.sync("cudaDeviceSynchronize_v3020")

    summary = Program().steps(body).summary(tmp_path)
    step = 4_000_000
    assert all((f.saving_ns_per_step or 0) < 0.01 * step for f in summary.findings or ())
    shown = view.build(summary, top=10)
    assert shown.first is None
    assert "No other change that was looked for saves 1 % of the step." in shown.no_first


def test_waits_of_ddp_for_its_own_statistics_are_not_the_programs(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range(":DistributedDataParallel"):
            program.launch(400)
            program.sync("cudaEventSynchronize_v3020")
            program.host(500)
            program.launch(400)

    finding = Program().steps(body).finding(tmp_path, "NSX101")
    assert finding.verdict == "found"
    assert "DistributedDataParallel waits here for its own statistics" in finding.fix
    assert "Keep the value" not in finding.fix


# ---------------------------------------------------------------- what a wait is for


@pytest.mark.parametrize(
    ("size", "after", "api", "said"),
    [
        (8, "DeviceSelectSweepKernel<int>", "cudaStreamSynchronize_v3020", "Use an operation of fixed shape"),
        (
            16,
            "DeviceSelectSweepKernel<int>",
            "cudaStreamSynchronize_v3020",
            "Keep the value on the GPU",
        ),  # no single number
        (8, "gemm", "cudaStreamSynchronize_v3020", "Keep the value on the GPU"),
        (0, "gemm", "cudaDeviceSynchronize_v3020", "Remove torch.cuda.synchronize()"),
        (0, "gemm", "cudaStreamSynchronize_v3020", "Remove this synchronize"),
    ],
)
def test_what_to_do_about_a_wait_depends_on_what_it_is_for(
    tmp_path: Path, size: int, after: str, api: str, said: str
) -> None:
    """A copy of one number whose wait the kernels of a selection follow is nonzero(); a wait without a copy reads nothing."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            program.launch(1000)
            if size:
                program.copy(2, "DtoH", pageable=False, bytes=size)
            program.sync(api)
            program.host(300)
            program.launch(100, after)
            program.launch(1000)

    found = [f for f in Program().steps(body).findings(tmp_path, "NSX101") if f.verdict == "found"]
    assert [f.fix[: len(said)] for f in found] == [said]


def test_synchronizing_after_each_phase_is_one_thing_to_remove(tmp_path: Path) -> None:
    """Without one of the calls the wait would only move to the next."""

    def body(program: Program, number: int) -> None:
        for phase in ("forward", "backward", "optimizer"):
            with program.range(phase):
                program.launch(500)
                program.sync("cudaDeviceSynchronize_v3020")
                program.host(200)

    (found,) = (f for f in Program().steps(body).findings(tmp_path, "NSX101") if f.verdict == "found")
    assert found.title.startswith("An explicit host sync in cudaDeviceSynchronize keeps")
    assert found.fix.startswith("Remove torch.cuda.synchronize() from the loop")
    assert found.saving_ns_per_step is not None and found.saving_ns_per_step > 400_000  # of three pauses of 200 us


@pytest.mark.parametrize("by_mask", [False, True])
def test_rows_that_numbers_pick_are_looked_up_by_an_embedding(tmp_path: Path, by_mask: bool) -> None:
    """The backward of table[index] sorts, and adds equal rows in turn; that of a mask has its own kernels besides."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            program.launch(500, "DeviceSelectSweepKernel<int>" if by_mask else "nvjet_gemm")
            program.launch(100, "void index_elementwise_kernel<128>(long)")
            for _ in range(10):
                program.launch(100)
            program.launch(1000, "void indexing_backward_kernel<float, 4>(long const*)")

    finding = Program().steps(body).finding(tmp_path, "NSX120")
    assert ([way.name for way in finding.remedies] == ["rows-by-embedding"]) is not by_mask


def reading(program: Program, number: int, reads: int = 64, *, launches: bool = False) -> None:
    """A network of 4 ms, then values read one by one, with 10 us of Python for each; ``launches``: each is computed first."""
    healthy(program, number)
    with program.range("evaluation"):
        for _ in range(reads):
            if launches:
                program.launch(5)
            program.host(10)
            program.copy(2, "DtoH", pageable=False, bytes=8)
            program.sync()


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [({}, "read-at-once"), ({"reads": 8}, "keep-on-gpu"), ({"launches": True}, "keep-on-gpu")],
    ids=["one by one", "a few", "each is computed first"],
)
def test_values_that_are_all_there_are_read_at_once(kind: dict[str, Any], remedy: str, tmp_path: Path) -> None:
    found = Program().steps(lambda program, number: reading(program, number, **kind)).findings(tmp_path, "NSX101")
    (finding,) = (f for f in found if f.verdict == "found" and f.remedies)
    assert [way.name for way in finding.remedies] == [remedy]
    if remedy == "read-at-once":
        assert finding.title.startswith("64 values are read one by one per step")
        # 64 copies with their waits; the 10 us of Python for each then run while the GPU works.
        assert finding.saving.likely_ns == pytest.approx(64 * 22 * US, rel=0.15)
        assert finding.saving.most_ns == finding.saving.likely_ns
