"""NSX102: what makes fewer launches in a program of this kind: a cell, micro-batches, kernels to fuse, or a network that waits itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.analyses.helpers.module_names import kernel_called
from nsysx.model import Finding, Summary
from tests.findings import Program, said_of, stepless

ADD = "void vectorized_elementwise_kernel<4, Add>(int)"


def launch_bound(summary: Summary) -> Finding:
    return next(f for f in summary.findings or () if f.code == "NSX102")


def pass_(program: Program, launches: int = 10, kernel_us: float = 4) -> None:
    for _ in range(launches):
        program.launch(kernel_us, cost=40)


@pytest.mark.parametrize(
    ("cls", "calls", "told"), [("LSTMCell", 8, True), ("LSTMCell", 7, False), ("Linear", 8, False)]
)
def test_a_recurrent_cell_runs_over_the_whole_sequence(tmp_path: Path, cls: str, calls: int, told: bool) -> None:
    def body(program: Program, number: int) -> None:
        with program.range("forward Net"), program.range(":Net"):
            for _ in range(calls):
                with program.range(f"cell:{cls}"):
                    pass_(program, 5)
        with program.range("backward"):
            pass_(program)

    fix = Program().steps(body, 10).finding(tmp_path, "NSX102").fix
    assert fix.startswith(f"Run nn.LSTM on the whole sequence in place of {calls} calls of LSTMCell a step") == told


@pytest.mark.parametrize(
    ("micro", "optimizers", "backwards", "us", "told"),
    [(2, 1, 2, 4, True), (1, 1, 1, 4, False), (2, 2, 2, 4, False), (2, 1, 1, 4, False), (2, 1, 2, 30, False)],
)
def test_micro_batches_that_only_repeat_launches_are_made_larger(
    tmp_path: Path, micro: int, optimizers: int, backwards: int, us: float, told: bool
) -> None:
    """Each with its backward, for one optimizer step, and while the GPU idles for half of the step: else it would only work longer."""

    def body(program: Program, number: int) -> None:
        for i in range(micro):
            with program.range("forward Net"), program.range(":Net"):
                pass_(program, 20, us)
            if i < backwards:
                with program.range("backward"):
                    pass_(program, 20, us)
        for _ in range(optimizers):
            with program.range("optimizer SGD"):
                pass_(program, 2)

    fix = Program().steps(body, 10).finding(tmp_path, "NSX102").fix
    assert fix.startswith(f"Use fewer, larger micro-batches: Net is called {micro} times a step") == told


@pytest.mark.parametrize("frees", [False, True])
def test_larger_micro_batches_need_no_graph(tmp_path: Path, frees: bool) -> None:
    """An allocation in each step rules out a CUDA graph, not fewer calls of the network: three of four calls go."""

    def body(program: Program, number: int) -> None:
        for i in range(4):
            with program.range("forward Net"), program.range(":Net"):
                pass_(program, 20, 4)
                if frees and i == 0:
                    program.call("cudaMalloc_v3020", 5)
            with program.range("backward"):
                pass_(program, 20, 4)
        with program.range("optimizer SGD"):
            pass_(program, 2)

    finding = Program().steps(body, 10).finding(tmp_path, "NSX102")
    assert ("then torch.compile" in finding.fix) == (not frees)
    assert finding.fix.startswith("Use fewer, larger micro-batches: Net is called 4 times a step")
    assert bool(finding.paste) == (not frees)
    if frees:
        least, most = 0.75 * (finding.cost_ns_per_step or 0), finding.saving.most_ns or 0
        assert finding.saving_ns_per_step == pytest.approx((least + most) / 2, rel=0.01)
        assert not any(c.state == "violated" for c in finding.conditions)


@pytest.mark.parametrize("micro", [32, 1])
def test_a_compiled_network_is_called_less_often_before_it_is_put_into_graphs(tmp_path: Path, micro: int) -> None:
    def body(program: Program, number: int) -> None:
        for _ in range(micro):
            for phase in ("forward Net", "backward"):
                with program.range(phase):
                    for _ in range(20):
                        program.launch(4, "triton_poi_fused_add_0", cost=40)
        with program.range("optimizer SGD"):
            pass_(program, 2)

    finding = Program().steps(body, 10).finding(tmp_path, "NSX102")
    assert finding.fix.startswith("Use fewer, larger micro-batches: Net is called 32 times") == (micro > 1)
    assert ("puts what is already compiled into CUDA graphs" in finding.fix) == (micro == 1)
    if micro > 1:
        assert (finding.saving_ns_per_step or 0) >= 31 / 32 * (finding.cost_ns_per_step or 0)


@pytest.mark.parametrize(("launches", "fuse"), [(14, True), (15, False)])
def test_kernels_to_fuse_lead_where_they_take_far_more_than_launches(tmp_path: Path, launches: int, fuse: bool) -> None:
    """800 us of them stand against 526 or 563 us that a graph saves: from one and a half times that on."""

    def body(program: Program, number: int) -> None:
        with program.range("forward Net"), program.range(":Net"):
            pass_(program, launches)
            for _ in range(8):
                program.launch(100, ADD)
        program.host(760)

    fix = Program().steps(body, 10).finding(tmp_path, "NSX102").fix
    assert ("kernels that it can fuse take" in fix) == fuse


@pytest.mark.parametrize(("own", "state"), [(True, "violated"), (False, "holds")])
def test_a_wait_of_the_network_itself_is_one_inside_the_model(tmp_path: Path, own: bool, state: str) -> None:
    """A network without a path is shown by its class; code between its calls is no part of it."""

    def body(program: Program, number: int) -> None:
        with program.range("forward Net"), program.range(":Net"):
            pass_(program)
            if own:
                program.sync()
            pass_(program)
        with program.range("backward"):
            pass_(program, 20)
        if not own:
            program.sync()

    finding = Program().steps(body, 10).finding(tmp_path, "NSX102")
    (wait,) = [c for c in finding.conditions if c.name.startswith("nothing waits")]
    assert wait.state == state
    assert not own or "1 wait, in Net.forward" in wait.detail


def test_modules_that_wait_are_called_by_their_own_class(tmp_path: Path) -> None:
    """Their paths are only numbers, and other numbers are of another class."""

    def body(program: Program, number: int) -> None:
        with program.range("forward Sequential"), program.range(":Sequential"):
            for i in range(6):
                with program.range(f"{i}:{'Tiny' if i < 4 else 'Linear'}"):
                    pass_(program, 4)
                    if i < 4:
                        program.sync()

    finding = Program().steps(body, 10).finding(tmp_path, "NSX102")
    assert any("4 waits, most in 4 x Tiny.forward" in c.detail for c in finding.conditions)


def test_advice_without_a_finding_names_the_kernel_that_takes_longest(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        program.launch(400, "void ns::slow_kernel<4>(int)")
        program.launch(100, "fast(int)")

    (do,) = stepless(body).summary(tmp_path).answer.do
    assert do.code == "" and do.where["near"] == "the kernel slow_kernel"


def test_without_gpu_work_the_call_that_takes_longest_is_the_place(tmp_path: Path) -> None:
    program = Program()
    program.call("cudaMalloc_v3020", 900)
    program.call("cudaFree_v3020", 30)
    (do,) = program.summary(tmp_path).answer.do
    assert do.where["near"] == "cudaMalloc, 1 call"


@pytest.mark.parametrize(
    ("size", "said"), [(1 << 27, "a copy of 128.0 MiB to the host"), (8, "a copy of 8 B to the host")]
)
def test_a_copy_outside_of_all_modules_is_told_by_its_size_and_the_kernel_before_it(
    tmp_path: Path, size: int, said: str
) -> None:
    def body(program: Program, number: int) -> None:
        program.launch(200, "void at::native::argmin_kernel<4>(int)")
        program.copy(300, "DtoH", bytes=size)
        program.host(200)

    findings = said_of(Program().steps(body, 12).write(tmp_path))
    places = [f.where.get("near") for f in findings if f.code in ("NSX101", "NSX105") and f.verdict == "found"]
    assert f"{said}, after the kernel argmin_kernel" in places


def test_a_kernel_is_called_by_its_own_name_and_a_long_one_is_cut() -> None:
    assert kernel_called("void at::native::softmax_warp<float, 4>(int)") == "the kernel softmax_warp"
    assert kernel_called("k" * 48) == f"the kernel {'k' * 48}"
    assert kernel_called("k" * 49) == f"the kernel {'k' * 47}…"


@pytest.mark.parametrize(
    ("network", "kernel", "told"),
    [
        (
            "DistributedDataParallel",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            "torch.compile of the module before it is wrapped",
        ),
        ("Net", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "torch.compile of each block before fully_shard"),
        ("Net", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "torch.compile(model, mode='reduce-overhead')"),
    ],
)
def test_what_a_wrapper_wraps_is_compiled_before(tmp_path: Path, network: str, kernel: str, told: str) -> None:
    """The wrapper's hooks start collectives in the model's backward, which a CUDA graph of the wrapper would have to hold."""

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range(f":{network}"):
            pass_(program, 30)
        with program.range("backward"):
            pass_(program, 30)
            program.launch(20, kernel, stream=20)
            if "ReduceScatter" in kernel:
                program.launch(20, "ncclDevKernel_AllGather_RING_LL", stream=20)
        with program.range("optimizer SGD"):
            pass_(program, 2)

    finding = Program().steps(body, 10).finding(tmp_path, "NSX102")
    assert finding.fix.startswith(told) and ("reduce-overhead" in finding.paste) == (
        network == "Net" and "All" in kernel
    )
    assert ("A CUDA graph" in finding.detail) == (network == "Net" and "All" in kernel), (
        "what is ruled out has no price"
    )
    worth = finding.saving
    nothing = worth.likely_ns is not None and (worth.error_ns or 0) >= worth.likely_ns
    assert nothing == (network == "DistributedDataParallel"), "gradients of a compiled backward come all at its end"


def test_calls_of_another_process_are_none_of_this_one(tmp_path: Path) -> None:
    """Each of two ranks calls its network once a step."""
    begins: list[int] = []

    def body(program: Program, number: int) -> None:
        begins.append(program.t)
        with program.range("forward"), program.range(":Net"):
            pass_(program, 30)
        with program.range("backward"):
            pass_(program, 30)
        with program.range("optimizer SGD"):
            pass_(program, 2)

    program = Program().steps(body, 10)
    other = program.report.process(999)
    thread = other.thread(other.pid, "python3")
    for begin in begins:
        thread.add_range("forward", begin + 1_000, begin + 90_000, domain="nsysx")
        thread.add_range(":Net", begin + 2_000, begin + 80_000, domain="nsysx")
    finding = launch_bound(program.summary(tmp_path))
    assert "times a step" not in f"{finding.fix} {finding.condition}" and "mark_step_begin" not in finding.paste
