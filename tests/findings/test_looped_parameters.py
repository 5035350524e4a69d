"""NSX127: tensors that a line updates one by one on the ranks of a job, and loops and lines that only look like that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nsysx.events.looped_updates import looped_updates
from nsysx.findings import _looped_parameters
from nsysx.findings._case import Case, Saving
from nsysx.model import Finding
from nsysx.pipeline import ReadingOptions, gather
from nsysx.replay import job_changes
from tests.findings.lined import FILE, Lined
from tests.findings.test_smaller_operators import operator

HEADER, BODY, BEHIND, CALL = 30, 31, 32, 40
SOURCE = {
    CALL: "ema.update()",
    HEADER: "for avg, p in zip(self.average.parameters(), self.model.parameters()):",
    BODY: "avg.mul_(self.decay).add_(p, alpha=1 - self.decay)",
    BEHIND: "self.count += 1",
}
KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float>>(int)"
ROUNDS, SAVED_NS = 40, 900_000
WHOLE, PART = "[512, 512]", "[256, 512]"


def update(program: Lined, name: str, at: int, made: int, others: int, kind: str) -> int:
    """An operator on one tensor, and the one on the rank's part that a DTensor makes of it; return its number."""
    split = kind != "plain"
    begin = program.t
    sizes = WHOLE if split else PART
    program.host(10)
    if split:
        given = ", ".join([PART] * (1 + others))
        operator(program, name, at + 2, [made + 2 if made >= 0 else -1, *[-1] * others, -1], f"{given}, []", 2, KERNEL)
        program.host(10)
    arguments = ", ".join([sizes] * (1 + others))
    if split:
        operator(program, name, at, [made, *[-1] * others, -1], f"{arguments}, []", begin=begin)
    else:
        operator(program, name, at, [made, *[-1] * others, -1], f"{arguments}, []", 2, KERNEL, begin=begin)
    return at


def step(program: Lined, number: int, kind: str) -> None:
    at = 10_000 * number + 10
    with program.range("forward"), program.range("net:Net"), program.line(20):
        operator(program, "linear", at, [-1, -1], "[64, 64], [64, 64]", 100)
    with program.range("backward"), program.line(21):
        program.launch(100)
    rounds = 8 if kind == "few" else ROUNDS
    last = -1
    with program.line(CALL):
        for n in range(rounds):
            with program.line(HEADER, "Average.update"):
                program.host(3)
            here = at + 10 * n + 100
            with program.line(BODY, "Average.update"):
                scaled = update(program, "mul_", here, last if kind == "in sequence" else -1, 0, kind)
                if kind == "norms":
                    operator(program, "linalg_vector_norm", here + 3, [-1, -1], f"{PART}, []", 2, KERNEL)
                elif kind == "to the CPU":
                    program.copy(2, "DtoH", pageable=False)
                else:
                    last = update(program, "add_", here + 4, scaled, 1, kind)
            if kind == "more in each round":
                with program.line(BEHIND, "Average.update"):
                    program.host(1)
            if kind == "products between":
                with program.line(22):
                    operator(program, "mm", here + 8, [-1, -1], "[64, 64], [64, 64]", 20)
    if kind == "counted once":
        with program.line(BEHIND, "Average.update"):
            program.host(1)


def hooked(program: Lined, number: int, kind: str) -> None:
    """The same in a hook behind the optimizer's step."""
    with program.range("optimizer AdamW"):
        program.launch(20)
        step(program, number, kind)


@pytest.mark.parametrize("kind", ["", "plain", "norms"])
def test_a_hook_of_the_optimizer_is_told_with_its_own_loop(tmp_path: Path, kind: str) -> None:
    program = Lined(SOURCE, {"networks": [{"class": "Net", "package": "torch"}]}).run(lambda p, n: hooked(p, n, kind))
    (finding,) = (f for f in program.found(tmp_path, "NSX113") if f.where["phase"] == "optimizer")
    assert ("_foreach_lerp_(avgs, ps, 1 - self.decay)" in finding.paste) == (kind != "norms")
    assert (".to_local() for p in" in finding.paste) == (not kind)


def program_of(kind: str) -> Lined:
    return Lined(SOURCE, {"networks": [{"class": "Net", "package": "torch"}]}).run(lambda p, n: step(p, n, kind))


def found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str = "", saved_ns: int | None = SAVED_NS
) -> list[Finding]:
    """Return what is told of all ranks, whose replay saves so much of a step."""
    saving = None if saved_ns is None else Saving(saved_ns, "replayed", error_ns=10_000, source="replay")
    monkeypatch.setattr(_looped_parameters, "on_all_ranks", lambda case, name: saving)
    findings = program_of(kind).found(folder, "NSX127")
    return [f for f in findings if f.evidence[0]["setting"] == "parameters one by one"]


def test_tensors_that_all_ranks_update_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = found(tmp_path, monkeypatch)
    assert (finding.where["file"], finding.where["line"]) == (FILE, BODY)
    assert f"runs {2 * ROUNDS} operators in each step on DTensors" in finding.detail
    assert finding.paste.splitlines() == [
        "avgs = [avg.to_local() for avg in self.average.parameters()]",
        "ps = [p.to_local() for p in self.model.parameters()]",
        "torch._foreach_lerp_(avgs, ps, 1 - self.decay)",
    ]
    assert finding.evidence[0]["oversight"] and not finding.saving.bound
    # Lists of two tensors stay for the two operators that go.
    assert finding.saving.likely_ns == round(0.85 * SAVED_NS)


def test_plain_tensors_are_told_without_parts_and_save_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = found(tmp_path, monkeypatch, "plain")
    assert "to_local" not in finding.paste and "DTensor" not in finding.detail
    assert finding.saving.likely_ns == round(0.6 * SAVED_NS)


@pytest.mark.parametrize(("kind", "written"), [("counted once", True), ("more in each round", False)])
def test_a_loop_is_written_anew_where_nothing_else_is_in_its_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, written: bool
) -> None:
    (finding,) = found(tmp_path, monkeypatch, kind)
    assert ("self.average" in finding.paste) == written


@pytest.mark.parametrize("kind", ["few", "in sequence", "norms", "to the CPU", "products between"])
def test_other_loops_are_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    assert not found(tmp_path, monkeypatch, kind)


@pytest.mark.parametrize("saved_ns", [None, 1_000])
def test_a_loop_that_costs_the_job_nothing_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved_ns: int | None
) -> None:
    """Hosts of one process, and of ranks that wait for their GPUs."""
    assert not found(tmp_path, monkeypatch, saved_ns=saved_ns)


def test_a_process_alone_is_told_at_its_line_with_the_same_code(tmp_path: Path) -> None:
    findings = program_of("").found(tmp_path, "NSX123")
    (finding,) = [f for f in findings if f.where["line"] == BODY]
    assert [r.name for r in finding.remedies] == ["foreach-parameters"]
    assert "torch._foreach_lerp_(avgs, ps, 1 - self.decay)" in finding.paste


def test_what_is_told_of_all_ranks_is_not_told_of_the_line_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_looped_parameters, "on_all_ranks", lambda case, name: Saving(SAVED_NS, "replayed"))
    assert not [f for f in program_of("").found(tmp_path, "NSX123") if f.where.get("line") == BODY]


def test_lists_leave_the_work_of_a_loop_in_one_launch(tmp_path: Path) -> None:
    program = program_of("")
    program.write(tmp_path)
    profile = gather(tmp_path / "r.sqlite", ReadingOptions())
    (loop,) = looped_updates(profile)
    assert loop.split and loop.operators == 2 * ROUNDS and len(loop.ops) == 2 * ROUNDS * profile.scope.steps
    ops = profile.steady_ops["op"].to_numpy()
    left = job_changes.left_by(profile, ops)["foreach-parameters"]
    assert (left == 0).sum() == (2 * ROUNDS - 1) * profile.scope.steps
    ns = (profile.steady_ops["end_ns"] - profile.steady_ops["start_ns"]).to_numpy()
    assert np.isclose((left * ns).sum(), ns.sum())


def test_a_job_without_a_replay_says_nothing(tmp_path: Path) -> None:
    assert _looped_parameters.updated_one_by_one(_case(tmp_path)) == ""


def _case(folder: Path) -> Case:
    program_of("").write(folder)
    return Case(gather(folder / "r.sqlite", ReadingOptions()), {}, None)
