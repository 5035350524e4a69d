"""NSX116 by products of float32 that autocast does not reach: for each cause, and for what is float32 for a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Finding
from tests.findings import DOMAIN
from tests.findings.lined import FILE, Lined
from tests.findings.test_smaller_operators import operator
from tests.findings.test_without_autocast import FP32, GELU, HALF, TF32, told_by

ENTER, STUDENT, LAYER, TEACHER, WIDE, BACKWARD, THREAD, OTHER = 11, 12, 30, 13, 40, 14, 50, 41
SOURCE = {
    ENTER: 'with torch.autocast("cuda", dtype=torch.bfloat16):',
    TEACHER: "soft = teacher(x)",
    WIDE: "return self.proj(x)",
}
AUTOCAST = {"regions": 1, "dtypes": {"cuda:bfloat16": 1}, "forward": "bfloat16"}
SIZES, SMALL, LARGE = "[4096, 1024], [1024, 1024]", "[4096, 3], [3, 3]", "[65536, 4096], [4096, 4096]"


class Given:
    """What the step multiplies at ``WIDE``: ``us`` by ``kernel``, by an operator of ``name`` and ``sizes``."""

    us, kernel, name, sizes, phase, module = 1000, TF32, "mm", SIZES, "evaluation Teacher", "net:Teacher"
    half, inside, apart, backward, scores, late, other = HALF, False, "", False, False, False, 0
    begun, joined = False, False
    names = ("work", "Teacher.forward")

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)


def step(program: Lined, number: int, given: Given) -> None:
    """A student in 16 bits (500 us), and what is given."""
    at = 1000 * number + 10
    if not given.late and not given.inside and not given.backward and not given.begun:
        teach(program, at, given)
    if not given.begun:
        with program.line(ENTER):
            program.host(1)
    with program.line(STUDENT), program.range("forward"), program.range("net:Net"):
        with program.line(LAYER, "Net.forward"):
            operator(program, "mm", at + 10, [-1, -1], SIZES, 500, given.half)
        if given.inside:
            teach(program, at, given)
    with program.line(ENTER):
        program.host(1)
    if given.begun:
        teach(program, at, given)
    with program.line(BACKWARD), program.range("backward"):
        program.launch(50, given.half)
        if given.backward:
            teach(program, at, given)
    if given.late:
        teach(program, at, given)
    program.sync()
    if given.begun:
        with program.line(ENTER):
            program.host(1)


def teach(program: Lined, at: int, given: Given) -> None:
    function = "Wide.backward" if given.backward else "Teacher.forward"
    if given.apart:
        worker = program.process.thread(170, given.apart)
        begin, main, program.main = program.t, program.main, worker
        program.host(1)
        program.launch(given.us, given.kernel)
        program.main = main
        worker.add_range("net:Teacher", begin, program.t, domain=DOMAIN)
        if program.noted is not None:
            first, last = given.names
            for late, number, name in ((0, THREAD, first), (500, WIDE, last)):
                text = f"{FILE}:{number} {name}"
                worker.add_range(text, begin + late, program.t, domain="nsysx-lines", registered=True, start_end=True)
        return
    with program.line(TEACHER), program.range(given.phase), program.range(given.module):
        with program.line(WIDE, function):
            operator(program, given.name, at, [-1, -1], given.sizes, given.us, given.kernel)
        with program.line(OTHER, function):
            if given.other:
                operator(program, "linear", at + 5, [-1, -1], given.sizes, given.other, given.kernel)
            read = "softmax" if given.scores else "gelu"
            if given.joined:
                operator(program, "cat", at + 3, [-1, at], given.sizes)
            operator(program, read, at + 1, [at + 3 if given.joined else at], given.sizes, 5, GELU)
            operator(program, "sum", at + 2, [at + 1], given.sizes, 5, GELU)


def findings_of(folder: Path, settings: dict[str, object] | None = None, **given: Any) -> list[Finding]:
    settings = {"autocast": AUTOCAST} if settings is None else settings
    program = Lined(SOURCE, settings).run(lambda program, number: step(program, number, Given(**given)))
    return program.findings(folder, "NSX116")


def test_a_network_outside_of_the_region_is_told_at_its_call(tmp_path: Path) -> None:
    (found,) = findings_of(tmp_path)
    assert told_by(found) == "inside-autocast" and found.where["line"] == TEACHER
    assert (
        found.title
        == f"train.py:{WIDE} multiplies in float32 for 1.00 ms: train.py:{TEACHER} calls it outside of autocast"
    )
    # Products of the same size take 500 us in 16 bits.
    assert found.saving.likely_ns == pytest.approx(500_000, rel=0.03)
    assert "like size" in found.saving.confidence
    assert found.paste == f'with torch.autocast("cuda", torch.bfloat16):\n    {SOURCE[TEACHER]}'


def test_without_products_of_like_size_the_rates_of_tensor_cores_are_taken(tmp_path: Path) -> None:
    (found,) = findings_of(tmp_path, sizes=LARGE)
    assert told_by(found) == "inside-autocast"
    assert found.saving.likely_ns == pytest.approx(0.4 * 1_000_000, rel=0.03)
    assert found.saving.most_ns == pytest.approx(0.5 * 1_000_000, rel=0.03)


def test_a_head_of_which_scores_are_made_is_told_by_its_weights(tmp_path: Path) -> None:
    (found,) = findings_of(tmp_path, name="linear", scores=True)
    assert told_by(found) == "inside-autocast"


def test_what_a_thread_runs_is_told_at_the_line_that_it_runs_first(tmp_path: Path) -> None:
    (found,) = findings_of(tmp_path, apart="worker")
    assert told_by(found) == "autocast-in-thread" and found.where["line"] == THREAD
    assert found.title == (
        f"train.py:{WIDE} multiplies in float32 for 1.00 ms: train.py:{THREAD} calls it in a thread that enters no autocast"
    )


def test_the_backward_of_a_function(tmp_path: Path) -> None:
    (found,) = findings_of(tmp_path, backward=True, phase="backward", module="bwd x")
    assert told_by(found) == "autocast-in-backward" and found.where["line"] == WIDE
    assert found.title.endswith(": the backward of Wide runs outside of autocast")


def test_a_function_that_runs_its_forward_again_in_backward(tmp_path: Path) -> None:
    (found,) = findings_of(tmp_path, backward=True, apart="pt_autograd_0", names=("Again.backward", "Teacher.forward"))
    assert told_by(found) == "autocast-in-backward" and found.where["line"] == THREAD
    assert found.title.endswith(
        f": train.py:{THREAD} calls it in the backward of Again, which runs outside of autocast"
    )


def test_what_autocast_leaves_as_it_is_within_its_region(tmp_path: Path) -> None:
    (found,) = findings_of(tmp_path, inside=True)
    assert told_by(found) == "cast-by-hand" and found.where["line"] == WIDE
    assert found.title.endswith(" although autocast is on")


def policies(*dtypes: str | None) -> list[dict[str, object]]:
    return [
        {"kind": "fully_shard", "count": 1 + 11 * (dtype is not None), "parameter_dtype": dtype} for dtype in dtypes
    ]


NONE = {"regions": 0, "dtypes": {}, "forward": None}


@pytest.mark.parametrize(
    ("settings", "remedy", "words"),
    [
        ({"wrappers": policies("bfloat16", None)}, "one-policy", ": 1 of 13 wrappers keep parameters of float32"),
        ({"networks": [{"dtypes": {"bfloat16": 9}}]}, "same-dtype", " although all parameters have 16 bits"),
        ({"networks": [{"dtypes": {"bfloat16": 9, "float32": 9}}]}, "inside-autocast", "where the rest has 16 bits"),
        ({"wrappers": policies("bfloat16")}, "inside-autocast", "where the rest has 16 bits"),
    ],
    ids=["a policy", "all narrow", "both", "one policy"],
)
def test_a_program_without_autocast(settings: dict[str, object], remedy: str, words: str, tmp_path: Path) -> None:
    (found,) = findings_of(tmp_path, {"autocast": NONE, **settings})
    assert told_by(found) == remedy and found.title.endswith(words)


def test_float16_is_advised_where_the_program_computes_in_it(tmp_path: Path) -> None:
    (found,) = findings_of(tmp_path, {"autocast": AUTOCAST | {"dtypes": {"cuda:float16": 1}}})
    assert "torch.float16" in found.paste and "bfloat16" not in found.paste and "Float16" in found.condition


@pytest.mark.parametrize(
    "given",
    [
        {"us": 60},  # a small head
        {"scores": True},  # logits of activations, as of a contrastive loss
        {"scores": True, "joined": True},  # with those of a queue
        {"sizes": SMALL},  # geometry
        {"name": "cdist"},  # torch gives it float32
        {"kernel": FP32, "sizes": SMALL},
        {"late": True, "phase": "optimizer Muon", "module": "optimizer Muon"},
        {"backward": True, "apart": "pt_autograd_0", "names": ("hook", "Factors.add")},  # of a preconditioner
        {"late": True, "phase": "optimizer Muon", "module": "optimizer Muon", "kernel": FP32},
        {"late": True, "phase": "update", "module": "update"},  # behind the backward, outside of a network
        {"kernel": "cutlass_80_tensorop_d884gemm_64x64"},  # double precision
        {"kernel": "void gemv2T_kernel_val<int, int, float, float>(T1)"},  # a vector has no use for tensor cores
        {"kernel": GELU},  # a loss, a norm
        {"half": TF32},  # a program of TF32
        {"us": 500, "kernel": "cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4"},  # as fast as in 16 bits
    ],
    ids=str,
)
def test_what_is_float32_for_a_reason(given: dict[str, Any], tmp_path: Path) -> None:
    (finding,) = findings_of(tmp_path, **given)
    assert finding.verdict == "clear"


def test_float32_without_tensor_cores_is_told_once(tmp_path: Path) -> None:
    (found,) = findings_of(tmp_path, kernel=FP32)
    assert told_by(found) == "inside-autocast" and found.where["line"] == TEACHER


def test_a_region_that_begins_before_the_step_ends_where_its_line_comes_first(tmp_path: Path) -> None:
    (found,) = findings_of(tmp_path, begun=True)
    assert told_by(found) == "inside-autocast" and found.where["line"] == TEACHER


def test_several_calls_are_told_together(tmp_path: Path) -> None:
    (found,) = findings_of(tmp_path, scores=True, other=700)
    assert found.where["line"] == TEACHER and found.title.startswith(f"train.py:{WIDE} ")
