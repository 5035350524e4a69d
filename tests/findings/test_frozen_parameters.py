"""NSX127: gradients that are reduced of parameters that nothing trains, and what DDP reads because of them (NSX101)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Finding
from tests.findings import US, Program
from tests.findings.test_job_messages import REDUCE, found, probes
from tests.findings.test_nsx127_costly_settings import CLEAN, changed
from tests.ranks.test_rank_table import WORLD, member, noted

FILL, BUCKET_BYTES = "vectorized_elementwise_kernel<4, FillFunctor<float>>", 25 << 20
SETTING, REMEDY = "gradients of frozen parameters", "frozen-before-wrapping"
#: Of 10 buckets 8 are of a teacher.
OWN, FROZEN = 2, 8
WRAPPER = {
    "kind": "DDP",
    "count": 1,
    "find_unused_parameters": True,
    "static_graph": False,
    "unused_parameter_bytes": FROZEN * BUCKET_BYTES,
    "bucket_bytes": ", ".join([str(BUCKET_BYTES)] * (OWN + FROZEN)),
}
ADAM = {
    "class": "AdamW",
    "elements": OWN * BUCKET_BYTES // 4,
    "dtypes": {"float32": 20},
    "gradients": {"dtypes": {"float32": 20}, "without": 0},
}


def reduces(program: Program, *, sized: bool = True) -> None:
    if sized:
        noted(program.main, "ncclAllReduce", program.t, program.t + 6 * US, comm=WORLD, size=BUCKET_BYTES)
    program.t += US
    program.launch(100, REDUCE.format("f32"))


def reads_map(program: Program) -> None:
    program.copy(2, pageable=False, bytes=3400)
    program.launch(5, REDUCE.format("u32"))
    program.copy(2, "DtoH", bytes=3400)


def run(
    folder: Path, *, computed: bool = False, sized: bool = True, first: bool = False, code: str = "NSX127", **given: Any
) -> list[Finding]:
    """Return what is found of a rank whose backward computes two buckets, and has eight more to reduce.

    ``computed``: a gradient is computed for each of these, too. ``sized``: bytes of messages are known. ``first``: they are reduced first.
    """
    program = Program()
    member(program.main, WORLD, 2, 0)
    program.t = 10 * US

    def others(program: Program) -> None:
        for _ in range(FROZEN):
            if first or computed:
                program.launch(2, "gemm" if computed else FILL)
            reduces(program, sized=sized)

    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            program.launch(300)
        with program.range("backward"):
            program.launch(200, "loss")
            if first:
                others(program)
            elif not computed:
                for _ in range(20):
                    program.launch(2, FILL)
            for _ in range(OWN):
                program.launch(200)
                reduces(program, sized=sized)
            if not first:
                others(program)
            reads_map(program)
        program.host(200)
        with program.range("optimizer"):
            program.launch(20, "adam")

    settings = {
        "wrappers": [{**WRAPPER, **given.get("wrapper", {})}],
        "optimizers": [{**ADAM, **given.get("optimizer", {})}],
    }
    probes(folder / "r.run.json", changed(CLEAN, settings), (100,))
    return program.steps(body).findings(folder, code)


@pytest.mark.parametrize("first", [False, True])
def test_gradients_of_what_nothing_trains_are_zeros_that_need_not_be_sent(tmp_path: Path, first: bool) -> None:
    finding = found(run(tmp_path, first=first), SETTING)
    assert finding is not None and [r.name for r in finding.remedies] == [REMEDY]
    assert "200.0 MiB of the 250.0 MiB" in finding.detail and "in 8 messages a step" in finding.detail
    # Eight reductions of ten, on one stream with all else, and the wait for the map.
    assert 8 * 100 * US < (finding.saving_ns_per_step or 0) < 1_100 * US


@pytest.mark.parametrize(
    "given",
    [
        {"computed": True},  # each bucket waits for a gradient: not one of them is of zeros alone
        {"sized": False},
        {"wrapper": {"find_unused_parameters": False}},
        {"wrapper": {"unused_parameter_bytes": 0}},
        {"wrapper": {"unused_parameter_bytes": 6 * BUCKET_BYTES}},  # some of them an optimizer holds
        {"optimizer": {"elements": (OWN + FROZEN) * BUCKET_BYTES // 4}},
        {"optimizer": {"gradients": {"dtypes": {"float32": 18}, "without": 2}}},  # other steps may use them
    ],
)
def test_parameters_that_some_step_may_train_are_not_told(tmp_path: Path, given: dict[str, Any]) -> None:
    assert found(run(tmp_path, **given), SETTING) is None


def test_the_map_of_used_parameters_is_no_value_that_the_program_reads(tmp_path: Path) -> None:
    (waits,) = (f for f in run(tmp_path, computed=True, code="NSX101") if f.verdict == "found")
    assert "find_unused_parameters=True" in waits.fix and "Keep the value" not in waits.fix
