"""NSX127: numbers of 16 bits that a line sends as float32, and messages that need their 32 bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.findings import _waited_early
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined, all_is_transfer
from tests.findings.test_smaller_operators import GEMM, operator

GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
WIDEN = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]"
    "::operator ()() const::[lambda() (instance 7)]::operator ()() const::[lambda(float) (instance 1)], std::array<char *, "
    "(unsigned long)2>, (int)4, TrivialOffsetCalculator<(int)1, unsigned int>, TrivialOffsetCalculator<(int)1, unsigned int>, "
    "at::native::memory::LoadWithCast<(int)1>, at::native::memory::StoreWithCast<(int)1>>(int, T1, T2)"
)
NARROW = (
    "void at::native::vectorized_elementwise_kernel<(int)8, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase &)::"
    "[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)"
)
PROMOTED = (
    "void at::native::unrolled_elementwise_kernel<at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor"
    "<float>>, std::array<char *, (unsigned long)3>, (int)4, TrivialOffsetCalculator<(int)2, unsigned int>, "
    "TrivialOffsetCalculator<(int)1, unsigned int>, at::native::memory::LoadWithCast<(int)2>, "
    "at::native::memory::StoreWithCast<(int)1>>(int, T1, T2)"
)
NORM = "void at::native::<unnamed>::vectorized_layer_norm_kernel<float, float>(int, T2, const T1 *)"
FP32_GEMM = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(T1::Params)"
OWN, ALL = "[64, 128]", "[128, 128]"
SENDING, CONVERTING = 34, 33
SOURCE = {20: "y = net(x)", CONVERTING: "y = y.float()", SENDING: "dist.all_gather_into_tensor(everyone, y)"}


def converted(program: Lined, at: int, made: int, kernel: str, us: float = 20) -> None:
    """A conversion of what operator ``made`` made, as ``to`` runs it."""
    begin = program.t
    program.host(2)
    operator(program, "_to_copy", at + 1, [made, -1], f"{OWN}, []", us, kernel)
    if program.noted is not None:
        label = f"aten::to, op_id = {at}, sizes = [{OWN}, []], input_op_ids = [({made},0), (0,-1)]"
        program.main.add_range(label, begin, program.t)


def sent(program: Lined, at: int, made: int, *, reduces: bool) -> int:
    """A gather (or a sum) of what operator ``made`` made; returns the number of its result."""
    if not reduces:
        operator(program, "empty", at, [-1], "[]")
    begin = program.t
    program.launch(200, REDUCE if reduces else GATHER)
    if program.noted is not None:
        name = "c10d::allreduce_" if reduces else "c10d::_allgather_base_"
        sizes, given = (OWN, f"({made},0)") if reduces else (f"{ALL}, {OWN}", f"({at},0), ({made},0)")
        label = f"{name}, op_id = {at + 1}, sizes = [{sizes}, []], input_op_ids = [{given}, (0,-1)]"
        program.main.add_range(label, begin, program.t)
    return made if reduces else at + 1


def step(program: Lined, number: int, *, kind: str) -> None:
    """A network (300 us) whose result is sent (200 us) and read by a product (100 us)."""
    at = 1000 * number + 10
    with program.line(20), program.range("forward"), program.range("net:Net"):
        operator(program, "linear", at, [-1, -1], f"{OWN}, [128, 128]", 300, FP32_GEMM if "fp32" in kind else GEMM)
    last = at
    if kind.startswith("promoted"):
        other = at + 2 if kind == "promoted by numbers of its size" else -1
        with program.line(CONVERTING):
            if other >= 0:
                operator(program, "mm", other, [-1, -1], f"{OWN}, [128, 128]", 20, FP32_GEMM)
            by = OWN if other >= 0 else "[64, 1]"
            operator(program, "mul", at + 3, [last, other], f"{OWN}, {by}", 20, PROMOTED)
        last = at + 3
    elif kind not in ("as it is", "narrowed behind", "narrowed beside", "fp32, narrowed behind"):
        with program.line(CONVERTING):
            converted(program, at + 1, last, WIDEN)
        last = at + 1
    elif kind != "as it is":  # autocast computes it in float32
        operator(program, "layer_norm", at + 3, [last, -1], f"{OWN}, [128]", 20, NORM)
        operator(program, "exp", at + 4, [at + 3], OWN)
        last = at + 4
    if kind == "computed on":
        operator(program, "mm", at + 5, [last, -1], f"{OWN}, [128, 128]", 50, FP32_GEMM)
        last = at + 5
    if kind == "normalized":
        operator(program, "linalg_vector_norm", at + 5, [last, -1], f"{OWN}, []", 5, NORM)
        operator(program, "expand_as", at + 6, [at + 5, last], f"[64, 1], {OWN}")
        operator(program, "div", at + 7, [last, at + 6], f"{OWN}, {OWN}", 5, NORM)
        last = at + 7
    if kind == "beside others":
        operator(program, "cat", at + 7, [last, -1, -1], f"{OWN}, {OWN}, []", 5, NORM)
        last = at + 7
    with program.line(SENDING, "Gather.forward" if kind == "function" else "step"):
        result = sent(program, at + 20, last, reduces=kind == "reduced")
    with program.line(40):
        if "narrowed" in kind:
            if kind == "narrowed behind":
                operator(program, "index", at + 29, [result, -1], f"{ALL}, [64]", 5, NORM)
                result = at + 29
            converted(program, at + 31, result, NARROW)
            result_of_16 = at + 31
        else:
            result_of_16 = result
        operator(program, "mm", at + 40, [result_of_16, -1], f"{ALL}, [128, 128]", 100)
        if kind == "narrowed beside":
            operator(program, "add", at + 41, [result, -1], f"{ALL}, {ALL}", 5, NORM)
    for line, function in ((50, "Gather.backward"), (52, "Other.backward")) if kind == "function" else ():
        with program.line(line, function), program.range("backward"):
            program.launch(100, REDUCE)
    program.sync()


def settings_told(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch, share: float = 1.0) -> dict[str, Finding]:
    all_is_transfer(monkeypatch, share=share)
    program = Lined(SOURCE).run(lambda program, number: step(program, number, kind=kind))
    return {str(f.evidence[0]["setting"]): f for f in program.found(folder, "NSX127")}


def finding(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch, share: float = 1.0) -> Finding | None:
    return settings_told(folder, kind, monkeypatch, share).get("float32 messages")


def test_such_messages_are_not_told_to_run_on_the_stream_of_the_computation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(settings_told(tmp_path, "converted", monkeypatch)) == {"float32 messages"}
    assert not settings_told(tmp_path, "as it is", monkeypatch)  # the next work reads what came
    monkeypatch.setattr(_waited_early, "needed_at_once", lambda profile, step_ns: frozenset())
    assert set(settings_told(tmp_path, "as it is", monkeypatch)) == {"stream of collectives"}


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("converted", f"converted before (train.py:{CONVERTING})"),
        ("normalized", f"converted before (train.py:{CONVERTING})"),
        ("promoted", f"converted before (train.py:{CONVERTING})"),
        ("reduced", "rounded before they are added"),
        ("narrowed behind", "converted to 16 bits (train.py:40)"),
        ("fp32, narrowed behind", "converted to 16 bits (train.py:40)"),
    ],
)
def test_numbers_of_16_bits_are_sent_as_float32(
    kind: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = finding(tmp_path, kind, monkeypatch)
    assert found is not None and says in found.detail
    assert (found.where["file"], found.where["line"]) == (FILE, SENDING)
    assert [r.name for r in found.remedies] == ["sent-in-16-bits"]
    assert found.saving.bound and found.saving_ns_per_step == pytest.approx(100_000, rel=0.05)


def test_the_backward_of_a_function_that_sends_sends_as_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = finding(tmp_path, "function", monkeypatch)
    assert found is not None and found.saving_ns_per_step == pytest.approx((200_000 + 100_000) / 2, rel=0.05)


@pytest.mark.parametrize(
    "kind",
    [
        "as it is",  # nothing is converted: it may have any type
        "fp32",  # computed in float32, and copied
        "computed on",  # a product in float32 makes what is sent
        "promoted by numbers of its size",  # which are float32
        "beside others",  # with numbers of which nothing is known
        "narrowed beside",  # something else reads the 32 bits
    ],
)
def test_messages_that_need_their_bits_or_have_few(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert finding(tmp_path, kind, monkeypatch) is None


def test_a_transfer_that_is_hidden_needs_no_fewer_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert finding(tmp_path, "converted", monkeypatch, share=0.25) is None
