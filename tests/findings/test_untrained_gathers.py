"""NSX127: parameters of sharded networks that are gathered for each token of a rollout, or of a teacher that nothing trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Finding
from tests.findings.lined import FILE, Lined

GATHER, SCATTER = "ncclDevKernel_AllGather_RING_LL", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"
COPIES_OUT = "at::native::detail::split_with_sizes_copy_out_contiguous_no_cast_kernel"
UNITS = 4
SOURCE = {
    10: "for t in range(tokens):",
    11: "logits, cache = model(token, cache)",
    14: "wanted = teacher(x)",
    20: "loss = model(x).mean()",
    21: "loss.backward()",
}


def ordered(program: Lined, first: int, second: int) -> None:
    """Let one stream wait for what was launched on another, by an event."""
    event = round(program.t)
    program.main.event_record(event, at=program.t, stream=first)
    program.main.wait_event(event, at=program.t + 1_000, stream=second)
    program.free[second] = max(program.free.get(second, 0), program.free.get(first, 0))
    program.host(2)


def unit(
    program: Lined,
    number: int,
    *,
    root: str,
    kernel_us: float,
    gathers: bool,
    copies: bool = True,
    gather_us: float = 60,
) -> None:
    """A block of a network, whose parameters are gathered first, if they are: copied in on a stream of their own, and out of what came."""
    with program.range(f"{root}.blocks.{number}:Block"):
        if gathers:
            program.host(60)
            program.launch(5, "multi_tensor_apply_kernel", stream=15)
            ordered(program, 15, 19)
            program.launch(gather_us, GATHER, stream=19)
            ordered(program, 19, 7)
            if copies:
                program.launch(5, COPIES_OUT)
            program.host(40)
        program.launch(kernel_us)


def step(
    program: Lined, number: int, *, tokens: int = 0, teacher: bool = False, again: bool = True, copies: bool = True
) -> None:
    """A rollout of so many tokens, a teacher's forward, and a forward and backward."""
    for token in range(tokens):
        with program.line(10), program.line(11), program.range("evaluation Net"), program.range("net:Net"):
            for n in range(UNITS):
                unit(program, n, root="net", kernel_us=6, gathers=again or not token, copies=copies)
    if teacher:
        with program.line(14), program.range("evaluation Teacher"), program.range("teacher:Teacher"):
            for n in range(UNITS):
                unit(program, n, root="teacher", kernel_us=60, gathers=again, copies=copies, gather_us=400)
    with program.line(20), program.range("forward Net"), program.range("net:Net"):
        for n in range(UNITS):
            unit(program, n, root="net", kernel_us=200, gathers=True)
    with program.line(21), program.range("backward"):
        for _ in range(UNITS):
            program.launch(60, GATHER, stream=19)
            program.launch(400)
            program.launch(60, SCATTER, stream=20)
    program.sync()


def settings(
    *, trained: bool | None = True, kind: str = "fully_shard", free: float = 0.9, **wrapper: Any
) -> dict[str, Any]:
    calls = [
        {"class": "FSDPNet", "place": f"{FILE}:11", "steps": [], "trained": True, "drops": False, "learns": False},
        {
            "class": "FSDPTeacher",
            "place": f"{FILE}:14",
            "steps": [],
            "trained": trained,
            "drops": False,
            "learns": False,
        },
        {"class": "FSDPNet", "place": f"{FILE}:20", "steps": [], "trained": True, "drops": False, "learns": True},
    ]
    return {
        "wrappers": [{"kind": kind, "count": UNITS, "parameter_dtype": "bfloat16"}] if kind else [],
        "networks": [{"class": "FSDPNet", "dtypes": {"float32": 3 << 28}}, {"class": "FSDPTeacher", "dtypes": {"float32": 3 << 29}}],
        "optimizers": [{"class": "AdamW", "elements": 3 << 28, "dtypes": {"float32": 8}}],
        "memory": {"total_bytes": 140 << 30, "reserved_peak_bytes": round((1 - free) * (140 << 30))},
        "given_again": calls,
    }  # fmt: skip


def told(folder: Path, about: dict[str, Any] | None = None, **how: Any) -> dict[str, Finding]:
    program = Lined(SOURCE, settings() if about is None else about).run(lambda p, n: step(p, n, **how))
    found = program.found(folder, "NSX127")
    return {f.evidence[0]["setting"]: f for f in found if "gathers" in f.evidence[0]["setting"]}


def test_a_rollout_that_gathers_the_policy_for_each_token_gathers_it_once(tmp_path: Path) -> None:
    program = Lined(SOURCE, settings()).run(lambda p, n: step(p, n, tokens=12))
    summary = program.summary(tmp_path)
    finding = next(f for f in summary.findings or () if (f.evidence or [{}])[0].get("setting") == "gathers in a loop")
    assert "12 times in each step" in finding.detail and "44 gathers" in finding.detail
    assert (finding.where["file"], finding.where["line"]) == (FILE, 11)
    assert [r.name for r in finding.remedies] == ["gathered-once"]
    # The host sets the pace: 18 us of launches go for each of 44 gathers, at most 100 us of hooks, and those of the forward behind.
    assert 44 * 40_000 < (finding.saving.likely_ns or 0) < (finding.saving.most_ns or 0) < (44 + UNITS) * 118_000
    assert "leave them to the training's forward" in finding.remedies[0].text
    assert "reshard()" not in finding.paste and "set_reshard_after_forward(unit is not model" in finding.paste
    assert summary.answer.do[0].text.startswith("Gather the parameters once")


def test_an_update_behind_the_rollout_leaves_no_parameters_to_the_forward(tmp_path: Path) -> None:
    def updated(program: Lined, number: int) -> None:
        with program.line(12), program.range("optimizer AdamW"):
            program.launch(20)

    def body(program: Lined, number: int) -> None:
        for _ in range(12):
            with program.line(10), program.line(11), program.range("evaluation Net"), program.range("net:Net"):
                for n in range(UNITS):
                    unit(program, n, root="net", kernel_us=6, gathers=True)
        updated(program, number)
        step(program, number)

    found = Lined(SOURCE, settings()).run(body).found(tmp_path, "NSX127")
    loop = next(f for f in found if f.evidence[0]["setting"] == "gathers in a loop")
    assert "free them behind it" in loop.remedies[0].text and "unit.reshard()" in loop.paste


def test_a_teacher_that_nothing_trains_stays_whole(tmp_path: Path) -> None:
    program = Lined(SOURCE, settings(trained=False)).run(lambda p, n: step(p, n, teacher=True))
    summary = program.summary(tmp_path)
    (finding,) = (
        f for f in summary.findings or () if (f.evidence or [{}])[0].get("setting") == "gathers of a frozen network"
    )
    assert "4 units anew: whole on each GPU it takes 3.0 GiB" in finding.detail
    assert (finding.where["file"], finding.where["line"]) == (FILE, 14)
    assert "eval().to(torch.bfloat16)" in finding.paste
    assert (
        4 * 320_000 < (finding.saving.likely_ns or 0) < 4 * 420_000
    )  # the gathers, but for the products that they hide
    assert summary.answer.do[0].text.startswith("Keep a network that nothing trains whole")


@pytest.mark.parametrize(
    ("about", "how"),
    [
        (settings(), {"tokens": 12, "again": False}),  # gathered once already
        (settings(), {"tokens": 3}),  # a few micro-batches
        (settings(free=0.01), {"tokens": 12}),  # no room for it
        (settings(kind=""), {"tokens": 12}),  # what layers that are split gather
        (settings(), {"tokens": 12, "copies": False}),  # split layers beside a sharded network
        (settings(trained=True), {"teacher": True}),  # a mean of the student
        (settings(trained=None), {"teacher": True}),  # not known
        (settings(trained=False, free=0.11), {"teacher": True}),  # no room
        (settings(trained=False), {"teacher": True, "again": False}),  # it is whole
    ],
)  # fmt: skip
def test_what_has_to_be_gathered_is_not_told(about: dict[str, Any], how: dict[str, Any], tmp_path: Path) -> None:
    assert not told(tmp_path, about, **how)


def test_of_a_policy_and_its_reference_each_has_its_own_gathers(tmp_path: Path) -> None:
    named = told(tmp_path, settings(trained=False), tokens=12, teacher=True)
    assert {f.where["line"] for f in named.values()} == {11, 14} and len(named) == 2


def test_fsdp_of_flat_parameters_summons_them_around_the_loop(tmp_path: Path) -> None:
    (finding,) = told(tmp_path, settings(kind="FSDP"), tokens=12, copies=False).values()
    assert "summon_full_params(model, writeback=False)" in finding.paste
