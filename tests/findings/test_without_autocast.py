"""NSX116 by regions that switch autocast off: products of float32 in them that 16 bits would do for, and what needs float32."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_smaller_operators import operator

ENTER, LAYER, OFF, ROUTER, SENDS, EXPERTS, BACKWARD, HELPER = 11, 12, 13, 14, 15, 16, 17, 20
SOURCE = {
    ENTER: 'with torch.autocast("cuda", dtype=torch.bfloat16):',
    LAYER: "x = self.proj(x)",
    OFF: 'with torch.autocast("cuda", enabled=False):',
    EXPERTS: "h = torch.bmm(x, self.w1)",
}
SETTINGS = {"autocast": {"regions": 1, "dtypes": {"cuda:bfloat16": 1}, "forward": "bfloat16"}}
HALF = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
TF32 = "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x256x32_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
FP32 = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(T1::Params)"
GELU = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase &, at::native::GeluType)"
    "::[lambda() (instance 1)]::operator ()() const::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)"
)
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)"
SIZES = "[64, 64], [64, 64]"


def step(program: Lined, number: int, *, kind: str) -> None:
    """A layer (500 us); then a block with a router (50 us), a message (300 us), experts (1000 us) and an activation (400 us)."""
    at = 1000 * number + 10
    phase = "optimizer AdamW" if kind == "an optimizer" else "forward"
    layer = {"float32 all over": TF32}.get(kind, HALF)
    experts = {"no TF32": FP32, "autocast on": HALF}.get(kind, TF32)
    us = 60 if kind == "short" else 1000
    if kind == "two regions":
        with program.line(ENTER):
            program.host(1)
    with program.line(LAYER), program.range("forward"), program.range("net:Net"):
        operator(program, "linear", at, [-1, -1], SIZES, 500, layer)
    with program.range(phase):
        with program.line(OFF):
            program.host(1)
        with program.line(ROUTER, "Experts.route"):
            operator(program, "linear", at + 1, [at, -1], SIZES, 50, TF32)
            operator(program, "softmax", at + 2, [at + 1], "[64, 64]", 5, GELU)
        with program.line(SENDS, "Sent.forward"):
            program.launch(300, SEND)
        if kind == "outside":
            with program.line(OFF):
                program.host(1)
        with program.line(EXPERTS, "Experts.forward"):
            operator(program, "bmm", at + 3, [at, -1], SIZES, us, experts)
            if kind == "scores":
                operator(program, "div", at + 4, [at + 3, -1], "[64, 64], []")
                operator(program, "cross_entropy_loss", at + 5, [at + 4, -1], SIZES, 400, GELU)
            else:
                operator(program, "gelu", at + 4, [at + 3], "[64, 64]", 400, GELU)
                operator(program, "sum", at + 5, [at + 4], "[64, 64]", 5, GELU)
        if kind != "outside":
            with program.line(OFF):
                program.host(1)
    if kind == "two regions":
        with program.line(ENTER):
            program.host(1)
    with program.line(BACKWARD, "Sent.backward"), program.range("backward"):
        program.launch(200, SEND)
    program.sync()


def findings_of(folder: Path, kind: str, source: dict[int, str] = SOURCE) -> list[Finding]:
    settings = {"autocast": {"regions": 0, "dtypes": {}}} if kind == "float32 all over" else SETTINGS
    return (
        Lined(source, settings).run(lambda program, number: step(program, number, kind=kind)).findings(folder, "NSX116")
    )


def told_by(finding: Finding) -> str:
    """Return the remedy of a finding."""
    (way,) = finding.remedies
    return way.name


def test_experts_in_a_region_for_the_router(tmp_path: Path) -> None:
    (found,) = findings_of(tmp_path, "")
    assert found.verdict == "found" and [way.name for way in found.remedies] == ["float32-where-needed"]
    assert found.where["line"] == OFF
    assert found.title == f"train.py:{EXPERTS} multiplies in float32 for 1.00 ms: train.py:{OFF} switches autocast off"
    # The messages of forward and backward have half of the bytes; the router stays as it is.
    assert found.saving.likely_ns == pytest.approx(0.4 * 1_000_000 + 0.25 * 410_000 + 0.5 * 500_000, rel=0.03)
    assert found.saving.error_ns == pytest.approx(0.1 * 1_000_000 + 0.25 * 410_000, rel=0.05)
    assert found.saving.most_ns == pytest.approx(0.5 * (1_000_000 + 410_000 + 500_000), rel=0.03)


@pytest.mark.parametrize(
    ("inner", "remedy"), [(SOURCE[OFF], "float32-where-needed"), ("with self.timer:", "cast-by-hand")]
)
def test_a_region_around_it_in_which_autocast_is_on_by_a_variable_is_not_told(
    inner: str, remedy: str, tmp_path: Path
) -> None:
    source = SOURCE | {ENTER: 'with torch.autocast("cuda", torch.bfloat16, enabled=args.amp):', OFF: inner}
    (finding,) = findings_of(tmp_path, "two regions", source)
    assert told_by(finding) == remedy


def test_without_tf32_such_products_are_told_once(tmp_path: Path) -> None:
    (found,) = findings_of(tmp_path, "no TF32")
    assert [way.name for way in found.remedies] == ["float32-where-needed"] and found.where["line"] == OFF
    assert (found.saving.likely_ns or 0) > 0.7 * 1_000_000


def entry(**about: object) -> dict[str, object]:
    """A place that switches autocast off, as the probe notes it."""
    row = {"line": f"{FILE}:{OFF}", "around": None, "kind": None, "file": None, "function": None, "decorator": None}
    return row | {"on": False, "type": "cuda:bfloat16", "count": 1} | about


def with_entries(folder: Path, kind: str, *entries: dict[str, object], source: dict[int, str] = SOURCE) -> Finding:
    settings = {"autocast": SETTINGS["autocast"] | {"entries": list(entries)}}
    program = Lined(source, settings).run(lambda program, number: step(program, number, kind=kind))
    (finding,) = program.findings(folder, "NSX116")
    return finding


def test_a_context_manager_of_the_program_that_switches_it_off_is_told_where_it_is_used(tmp_path: Path) -> None:
    noted = entry(line=f"{FILE}:{HELPER}", around=f"{FILE}:{OFF}")
    found = with_entries(tmp_path, "", noted, source=SOURCE | {OFF: "with full_precision():"})
    assert found.verdict == "found" and found.where["line"] == OFF
    assert found.title.endswith(f"train.py:{OFF} switches autocast off by train.py:{HELPER}")
    assert [way.name for way in found.remedies] == ["float32-where-needed"]


@pytest.mark.parametrize(
    ("kind", "remedy", "words"),
    [
        ("decorate_autocast", "autocast-left-on", "switches autocast off for Experts.forward"),
        ("decorate_fwd", "cast-inputs-in-16-bits", "casts what Experts.forward is given to float32"),
    ],
)
def test_a_decorator_that_switches_it_off_is_told_at_its_line(
    kind: str, remedy: str, words: str, tmp_path: Path
) -> None:
    noted = entry(kind=kind, file=FILE, function="Experts.forward", decorator=f"{FILE}:{HELPER}")
    found = with_entries(tmp_path, "", noted, source=SOURCE | {OFF: "self.timer()"})
    assert found.verdict == "found" and found.where["line"] == HELPER
    assert found.title == f"train.py:{EXPERTS} multiplies in float32 for 1.00 ms: train.py:{HELPER} {words}"
    assert [way.name for way in found.remedies] == [remedy]
    # The messages lie in another function.
    assert found.saving.likely_ns == pytest.approx(0.4 * 1_000_000 + 0.25 * 410_000, rel=0.03)


def test_a_function_that_is_called_so_is_told_at_the_call(tmp_path: Path) -> None:
    noted = entry(kind="decorate_autocast", file=FILE, function="Experts.forward", line=f"{FILE}:{OFF}")
    found = with_entries(tmp_path, "", noted, source=SOURCE | {OFF: "y = self.wide(x)"})
    assert found.where["line"] == OFF
    assert found.title.endswith(f"train.py:{OFF} calls Experts.forward, which switches autocast off")


@pytest.mark.parametrize("kind", ["scores", "short", "autocast on", "an optimizer"])
def test_decorated_functions_that_need_float32_or_do_little(kind: str, tmp_path: Path) -> None:
    noted = entry(kind="decorate_autocast", file=FILE, function="Experts.forward", decorator=f"{FILE}:{HELPER}")
    assert with_entries(tmp_path, kind, noted, source=SOURCE | {OFF: "self.timer()"}).verdict == "clear"


def test_what_lies_outside_of_the_region_is_not_told_with_it(tmp_path: Path) -> None:
    (finding,) = findings_of(tmp_path, "outside")
    assert told_by(finding) == "inside-autocast" and finding.where["line"] == EXPERTS


@pytest.mark.parametrize("kind", ["scores", "short", "autocast on", "float32 all over", "an optimizer"])
def test_what_is_float32_for_a_reason_or_not_in_the_region(kind: str, tmp_path: Path) -> None:
    (finding,) = findings_of(tmp_path, kind)
    assert finding.verdict == "clear"


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("with torch.autocast(device, enabled=self.wide):", "float32-where-needed"),
        ('with torch.no_grad(), torch.autocast("cuda", False):', "float32-where-needed"),
        ('with torch.autocast("cuda", enabled=True):', "cast-by-hand"),
        ("with self.timer:", "inside-autocast"),
    ],
)
def test_which_lines_may_switch_it_off(text: str, remedy: str, tmp_path: Path) -> None:
    (finding,) = findings_of(tmp_path, "", SOURCE | {OFF: text})
    assert told_by(finding) == remedy
