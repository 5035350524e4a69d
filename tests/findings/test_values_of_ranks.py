"""NSX123, NSX110: single values of tensors that are split over the ranks, for each of which all ranks meet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nsysx.findings import _values_of_ranks
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_nsx135_weights_in_calls import operator
from tests.ranks.test_rank_table import KERNELS, noted

NORM = "norms[name] = p.grad.norm().full_tensor().item()"
ROUNDS = 40


def meets(program: Lined, size: int | None, kind: str = "ncclAllReduce", us: float = 10) -> None:
    """A collective of one message, whose size NCCL notes unless it is None."""
    program.host(2)
    begin = program.t
    program.launch(us, KERNELS[kind], stream=20)
    if size is not None:
        noted(program.main, kind, begin, program.t, comm=5, size=size)


def trains(program: Lined, number: int) -> None:
    if not number:
        noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
    with program.line(20), program.range("forward"), program.range("net:Net"):
        program.launch(800)
    with program.line(21), program.range("backward"):
        program.launch(800)


def one_line(size: int | None, kind: str = "ncclAllReduce", rounds: int = ROUNDS) -> Callable[[Lined, int], None]:
    """Return a step with a loop at one line: a norm of each parameter, its reduction, and its read."""

    def body(program: Lined, number: int) -> None:
        trains(program, number)
        with program.line(30, "clip"):
            for _ in range(rounds):
                program.host(60)
                program.launch(3, "reduce_kernel")
                meets(program, size, kind)
                program.sync()

    return body


def told(program: Lined, folder: Path, code: str = "NSX123") -> list[Finding]:
    return [f for f in program.found(folder, code) if any(way.name == "values-at-once" for way in f.remedies)]


@pytest.mark.parametrize("code", ["NSX123", "NSX110"])
@pytest.mark.parametrize("size", [4, None])
def test_norms_of_split_gradients_are_reduced_at_once(size: int | None, code: str, tmp_path: Path) -> None:
    (found,) = told(Lined({30: NORM}).run(one_line(size)), tmp_path, code)
    assert found.fix.startswith("Reduce these norms in one all_reduce of what each rank takes of its own parts")
    assert "all ranks meet for each one, 40 times in each step" in found.fix and "clip_grad_norm_" in found.fix
    assert "p.grad.to_local()" in found.paste and "dist.all_reduce(squares)" in found.paste
    assert (found.where["file"], found.where["line"]) == (FILE, 30)
    assert found.saving.likely_ns == pytest.approx(ROUNDS * 90_000, rel=0.2)  # code, launches, collectives and waits


@pytest.mark.parametrize(
    ("text", "what", "paste"),
    [
        ("bad = not torch.isfinite(p.grad).all().full_tensor()", "checks", "(~torch.isfinite(p.grad.to_local())).any()"),
        ("top[n] = p.abs().max().full_tensor().item()", "largest values", "op=dist.ReduceOp.MAX"),
        ("sums[n] = p.sum().full_tensor().item()", "sums", "p.detach().to_local().sum()"),
        ("size[n] = p.norm().full_tensor().item()", "norms", "parts = [p.detach().to_local() for p in model.parameters()]"),
        ("total += reduced(p.grad.norm() ** 2)", "norms", "grads = [p.grad for p in model.parameters()]"),
        ("dist.all_reduce(value)", "values", "values = torch.stack(values)"),
    ],
)  # fmt: skip
def test_what_is_reduced_is_told_with_its_code(text: str, what: str, paste: str, tmp_path: Path) -> None:
    (found,) = told(Lined({30: text}).run(one_line(4)), tmp_path)
    assert found.fix.startswith(f"Reduce these {what} in one all_reduce") and paste in found.paste


def in_three_lines(program: Lined, number: int) -> None:
    """A step that takes, reduces and reads each value in a line of its own."""
    trains(program, number)
    for _ in range(ROUNDS):
        with program.line(30, "clip"):
            program.host(30)
            program.launch(3, "reduce_kernel")
        with program.line(31, "clip"):
            program.host(60)
            meets(program, 4)
        with program.line(32, "clip"):
            program.sync()


def test_lines_that_take_and_read_the_values_go_with_the_line_that_reduces_them(tmp_path: Path) -> None:
    source = {30: "n = p.grad.norm()", 31: "n = n.full_tensor()", 32: "norms.append(n.item())"}
    (found,) = told(Lined(source).run(in_three_lines), tmp_path)
    assert found.where["line"] == 31 and found.saving.likely_ns == pytest.approx(ROUNDS * 120_000, rel=0.25)
    assert "grads = [p.grad.to_local() for p in model.parameters()]" in found.paste


def test_what_scales_gradients_is_never_told_to_be_reduced_rarely_nor_packed_as_tensors(tmp_path: Path) -> None:
    source = {30: "sq = torch.linalg.vector_norm(p.grad).square()", 31: "dist.all_reduce(sq)", 32: "total += sq.item()"}
    program = Lined(source).run(in_three_lines)
    every = [f for f in program.summary(tmp_path).findings or () if f.verdict == "found" and f.remedies]
    of_line = [f for f in every if f.where.get("line") in source and f.code in ("NSX123", "NSX127")]
    assert {"NSX123", "NSX127"} == {f.code for f in of_line}
    assert {f.remedies[0].name for f in of_line} == {"values-at-once"}


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("average[n].lerp_(p.full_tensor(), 0.01)", one_line(4 << 20, "ncclAllGather")),  # whole weights
        ("average[n].lerp_(p.full_tensor(), 0.01)", one_line(None, "ncclAllGather")),
        ("dist.all_reduce(p.grad)", one_line(4 << 20)),  # whole gradients
        ("dist.all_reduce(x)", one_line(None)),  # of sizes that are not known
        ("total = total.full_tensor()", one_line(4, rounds=3)),  # few
        ("scaler.step(optimizer)", one_line(4)),  # a package's own
    ],
)
def test_whole_tensors_and_few_values_are_none(text: str, body: Callable[[Lined, int], None], tmp_path: Path) -> None:
    program = Lined({30: text}).run(body)
    assert not told(program, tmp_path) and not told(program, tmp_path, "NSX110")


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_what_layers_exchange_is_theirs(phase: str, tmp_path: Path) -> None:
    """Statistics that each layer of a network takes over all ranks: the next layer needs them."""

    def body(program: Lined, number: int) -> None:
        trains(program, number)
        with program.line(30, "Norm.forward"), program.range(phase):
            for _ in range(ROUNDS):
                program.host(60)
                program.launch(3, "reduce_kernel")
                meets(program, 4)

    program = Lined({30: "dist.all_reduce(mean)"}).run(body)
    assert not told(program, tmp_path) and not told(program, tmp_path, "NSX110")


@pytest.mark.parametrize("needs", [True, False])
def test_rounds_that_need_one_another_have_to_meet(needs: bool, tmp_path: Path) -> None:
    """Power iteration: each round multiplies what the round before has normalized. Without that need values of many tensors."""

    def body(program: Lined, number: int) -> None:
        trains(program, number)
        first = 1000 * number + 10
        for each in range(ROUNDS):
            this = first + 2 * each
            with program.line(30, "largest"):
                program.host(40)
                operator(program, "mv", this, [this - 1 if needs and each else first - 5], 3)
            with program.line(31, "largest"):
                program.host(60)
                operator(program, "linalg_vector_norm", this + 1, [this], 3)
                meets(program, 4)
                program.sync()

    source = {30: "v = matrix @ v", 31: "norm = v.norm().full_tensor().item()"}
    assert bool(told(Lined(source).run(body), tmp_path)) is not needs


def test_a_program_without_lines_is_not_asked(tmp_path: Path) -> None:
    program = Lined({30: NORM}).run(one_line(4), xray=0)
    assert not told(program, tmp_path)
    assert _values_of_ranks._TAKES.search("norms.append(n.item())")
