"""NSX131: tensors whose pieces a loop takes one by one under autograd, each of which costs a gradient of the whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_smaller_operators import GEMM, operator

LINE, OTHER = 25, 26
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>(int)"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>(int)"
)
COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)"


class Taken(NamedTuple):
    """A tensor of which a line takes pieces: what torch calls that, the sizes, and how many; what the kernels of a piece take (us).

    ``inner``: the size of what a line takes of each piece at once, by a number.
    """

    line: int
    by: str
    size: str
    pieces: Sequence[str]
    fill: float = 40
    copy: float = 10
    add: float = 100
    inner: str = ""


EXPERTS = Taken(LINE, "Select", "[8, 64, 96]", 8 * ["[64, 96]"])
SOURCE = {LINE: "h = F.silu(h @ self.gate[e])  # of one expert", OTHER: "h = h @ self.down[e]"}


def noted(
    program: Lined,
    name: str,
    number: int,
    begin: float,
    sizes: str = "",
    made: Sequence[int] = (),
    seq: int | None = None,
) -> None:
    """Note an operator or a node, from ``begin`` until now, in an X-ray step."""
    if program.noted is not None:
        makers = ", ".join(f"({max(each, 0)},{0 if each > 0 else -1})" for each in made)
        own = f", seq = {seq}" if seq is not None else ""
        text = f"{name}{own}, op_id = {number}, sizes = [{sizes}], input_op_ids = [{makers}]"
        program.main.add_range(text, round(begin), program.t)


def backward_of(program: Lined, ids: Iterator[int], tensor: Taken, piece: str, node: int, total: int | None) -> int:
    """Make the gradient of a whole of that of a piece; add it to another one (``total``), and return the number of what comes out."""
    begin, given = program.t, 0
    if tensor.inner:
        program.launch(tensor.fill / 8, FILL)
        given = next(ids)
        noted(program, "aten::zero_", next(ids), begin, piece, [0])
        noted(program, "aten::select_backward", given, begin, f"{tensor.inner}, []", [0, 0])
        noted(program, "SelectBackward0", next(ids), begin, tensor.inner, [0], node - 1)
        noted(program, "autograd::engine::evaluate_function: SelectBackward0", next(ids), begin)
    begin, again = program.t, tensor.by in ("Split", "Unbind")
    program.launch(tensor.fill, FILL)
    noted(program, "aten::zero_", next(ids), begin, piece if again else tensor.size, [0])
    inner = program.t
    program.launch(tensor.copy, COPY)
    noted(program, "aten::cat" if again else "aten::copy_", next(ids), inner, f"{piece}, {piece}", [0, 0])
    made = next(ids)
    noted(program, f"aten::{tensor.by.lower()}_backward", made, begin, f"{piece}, []", [0, 0])
    noted(program, f"{tensor.by}Backward0", next(ids), begin, f"[], {piece}, []" if again else piece, [given], node)
    if total is not None:
        inner, other = program.t, made
        program.launch(tensor.add, ADD)
        made = next(ids)
        noted(program, "aten::add_", made, inner, f"{tensor.size}, {tensor.size}, []", [total, other, 0])
    noted(program, f"autograd::engine::evaluate_function: {tensor.by}Backward0", next(ids), begin)
    return made


def step(program: Lined, number: int, taken: Sequence[Taken], *, uneven: bool = False) -> None:
    """A network (4 ms), loops that take pieces of tensors, and the backward that makes a whole gradient for each.

    ``uneven``: other products in each step.
    """
    ids, sequence = count(100_000 * number + 10), count(100_000 * number + 10)
    with program.range("forward"), program.range("net:Net"):
        operator(program, "linear", next(ids), [-1, -1], "[64, 64], [64, 64]", 4000)
    nodes = list[tuple[Taken, str, int]]()
    for n in range(max(len(tensor.pieces) for tensor in taken)):
        for tensor in taken:
            if n < len(tensor.pieces):
                with program.line(tensor.line):
                    begin, node = program.t, next(sequence)
                    program.host(5)
                    noted(program, f"aten::{tensor.by.lower()}", next(ids), begin, f"{tensor.size}, []", [0, 0], node)
                    program.launch(5, GEMM)
                    nodes.append((tensor, tensor.pieces[n], node))
    operator(program, "sum", next(ids), [-1], "[4, 64]", 5)
    sums = dict[int, int]()
    with program.range("backward"):
        for n, (tensor, piece, node) in enumerate(reversed(nodes)):
            for kind in range((7 * number + 3 * n) % 5 if uneven else 0):
                program.launch(5, f"sm90_gemm_{(number + kind) % 7}_{n}")
            sums[id(tensor)] = backward_of(program, ids, tensor, piece, node, sums.get(id(tensor)))
    program.sync()


def found(folder: Path, *taken: Taken, source: dict[int, str] | None = None, uneven: bool = False) -> list[Finding]:
    program = Lined(source or SOURCE, {"networks": [{"class": "Net", "package": "torch"}]})
    findings = program.run(lambda program, number: step(program, number, taken, uneven=uneven)).found(folder, "NSX131")
    return [each for each in findings if each.remedies and each.remedies[0].name in ("taken-apart-once", "picked-once")]


def test_experts_that_are_taken_one_by_one(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, EXPERTS)
    assert (finding.where["file"], finding.where["line"]) == (FILE, LINE)
    assert finding.title.startswith(
        "train.py:25: backward makes 8 whole gradients, one for each piece of a tensor: 1.02 ms"
    )
    assert finding.saving_ns_per_step == pytest.approx((8 * 40 + 7 * 100) * 1000, rel=0.05), (
        "the copies stay, as a join"
    )
    assert "a tensor of 8 x 64 x 96 (192.0 KiB)" in finding.detail and "7 sums" in finding.detail
    assert finding.fix.startswith("Take self.gate apart once by unbind(0), before the loop: for each piece")
    assert finding.paste.splitlines() == [
        "gate_parts = self.gate.unbind(0)  # once, before the loop",
        "h = F.silu(h @ gate_parts[e])  # in it",
    ]


@pytest.mark.parametrize(
    ("taken", "text", "gone", "stays"),
    [
        (EXPERTS._replace(pieces=6 * ["[64, 96]"]), "h @ w[e]", 6 * 40 + 5 * 100 + 60, 60 / 0.75 + 40 / 4),  # two are not read
        (EXPERTS._replace(pieces=16 * ["[64, 96]"]), "h @ w[e] + w[e]", 16 * 40 + 15 * 100 + 160, 80 + 100),  # each is read twice
        (Taken(LINE, "Slice", "[4, 12, 64]", 9 * ["[4, 4, 64]"]), "x[:, t : t + 4]", 9 * 40 + 8 * 100 + 90, 40 + 2.5 * 90),
        (Taken(LINE, "Index", "[64, 96]", 8 * ["[8, 96]"]), "x[rows]", 8 * 40 + 7 * 100 + 80, 40 + 2 * 80),
        (Taken(LINE, "Select", "[64, 9, 9]", 8 * ["[9, 9]"]), "w[e]", 8 * 40 + 7 * 100 + 80, 40 + 3.5 * 80),
        (Taken(LINE, "Split", "[4, 12, 64]", 4 * ["[4, 3, 64]"]), "x.chunk(4, 1)[n]", 4 * 50 + 3 * 100, 50),
    ],
)  # fmt: skip
def test_what_a_join_still_takes(taken: Taken, text: str, gone: float, stays: float, tmp_path: Path) -> None:
    (finding,) = found(tmp_path, taken, source={LINE: text})
    assert finding.saving_ns_per_step == pytest.approx((gone - stays) * 1000, rel=0.07)


def test_it_comes_before_what_is_told_of_the_loop(tmp_path: Path) -> None:
    def body(program: Lined, number: int) -> None:
        with program.line(LINE):
            for _ in range(30):
                program.host(12)
                program.launch(3, GEMM)
        step(program, number, [EXPERTS])

    summary = Lined(SOURCE, {"networks": [{"class": "Net", "package": "torch"}]}).run(body).summary(tmp_path)
    told = {finding.code for finding in summary.findings or () if finding.where.get("line") == LINE}
    assert told >= {"NSX123", "NSX131"} and summary.answer is not None
    assert [action.code for action in summary.answer.do] == ["NSX131"]


def test_steps_whose_other_launches_differ(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, EXPERTS, uneven=True)
    assert finding.saving_ns_per_step == pytest.approx((8 * 40 + 7 * 100) * 1000, rel=0.05)
    assert finding.title.startswith("train.py:25: backward makes 8 whole gradients")


def test_several_tensors_of_several_lines(tmp_path: Path) -> None:
    down = Taken(OTHER, "Select", "[8, 96, 64]", 8 * ["[96, 64]"])
    source = SOURCE | {LINE: "h = F.silu(h @ self.gate[e]) * (h @ self.up[e])"}
    (finding,) = found(tmp_path, EXPERTS, EXPERTS._replace(add=101), down, source=source)
    assert finding.saving_ns_per_step == pytest.approx((24 * 40 + 21 * 100) * 1000, rel=0.05)
    assert (
        "Take self.gate, self.up and self.down apart once by unbind(0), before the loop, likewise for train.py:26: for"
        in finding.fix
    )
    assert finding.paste.splitlines()[1:] == [
        "h = F.silu(h @ gate_parts[e]) * (h @ up_parts[e])  # in it",
        "h = h @ down_parts[e]  # in it",
    ]


@pytest.mark.parametrize(
    ("taken", "text", "paste"),
    [
        (
            Taken(LINE, "Select", "[4, 12, 64]", 12 * ["[4, 64]"]),
            "state = self.cell(x[:, t], state)",
            ["x_parts = x.unbind(1)  # once, before the loop", "state = self.cell(x_parts[t], state)  # in it"],
        ),
        (
            Taken(LINE, "Slice", "[4, 12, 64]", 4 * ["[4, 3, 64]"]),
            "y.append(self.block(x[:, a:a + 3]))",
            ["x_parts = x.split(3, 1)  # once, before the loop", "y.append(self.block(x_parts[a // 3]))  # in it"],
        ),
        (
            Taken(LINE, "Slice", "[4, 12, 64]", 4 * ["[4, 3, 64]"]),
            "y.append(self.block(torch.narrow(x, 1, n * 3, 3)))",
            ["x_parts = x.split(3, 1)  # once, before the loop", "y.append(self.block(x_parts[n]))  # in it"],
        ),
        (
            Taken(LINE, "Slice", "[4, 12, 64]", 4 * ["[4, 3, 64]"]),
            "y.append(self.block(x[:, k::4]))",
            ["x_parts = x.unflatten(1, (-1, 4)).unbind(2)  # once, before the loop", "y.append(self.block(x_parts[k]))  # in it"],
        ),
        (
            Taken(LINE, "Slice", "[4, 12, 64]", 9 * ["[4, 4, 64]"]),
            "y.append(self.block(x[:, t : t + 4]))",
            [
                "x_parts = x.unfold(1, 4, 1).movedim(-1, 2).unbind(1)  # once, before the loop",
                "y.append(self.block(x_parts[t]))  # in it",
            ],
        ),
        (
            Taken(LINE, "Slice", "[4, 12, 64]", ["[4, 3, 64]", "[4, 4, 64]", "[4, 5, 64]"]),
            "y.append(self.block(x[:, a:b]))",
            ["x_parts = x.split([3, 4, 5], 1)  # once, before the loop", "y.append(self.block(x_parts[n]))  # in it"],
        ),
        (
            Taken(LINE, "Select", "[3, 64, 96]", 3 * ["[64, 96]"]),
            "q, k, v = qkv[0], qkv[1], qkv[2]",
            ["qkv_parts = qkv.unbind(0)  # once, before", "q, k, v = qkv_parts[0], qkv_parts[1], qkv_parts[2]"],
        ),
        (
            Taken(LINE, "Select", "[32, 5, 5, 8]", 20 * ["[32, 5, 8]"], inner="[32, 8]"),
            "ix.append(xs[:, j, i] * xs[:, i, j])",
            [
                "xs_parts = [part.unbind(1) for part in xs.unbind(1)]  # once, before the loop",
                "ix.append(xs_parts[j][i] * xs_parts[i][j])  # in it",
            ],
        ),
        (
            Taken(LINE, "Select", "[8, 32, 5, 16]", 40 * ["[32, 5, 16]"], inner="[32, 16]"),
            "out = out + self.w[e, :, k + 1] @ h",
            [
                "w_parts = [part.unbind(1) for part in self.w.unbind(0)]  # once, before the loop",
                "out = out + w_parts[e][k + 1] @ h  # in it",
            ],
        ),
        (
            Taken(LINE, "Select", "[8, 64, 96]", 8 * ["[64, 96]"]),
            "h = h + self.w[e, rows]",  # rows of an expert, by a tensor of their numbers
            ["parts = w.unbind(0)  # once, before the loop; w: of 8 x 64 x 96", "parts[n]  # in it, not w[n]"],
        ),
        (
            EXPERTS,
            "y = y + a[e] @ b[e]",  # which of them it is is not known
            ["parts = w.unbind(0)  # once, before the loop; w: of 8 x 64 x 96", "parts[n]  # in it, not w[n]"],
        ),
        (
            Taken(LINE, "Split", "[4, 12, 64]", 4 * ["[4, 3, 64]"]),
            "y.append(self.block(x.chunk(4, 1)[n]))",
            ["x_parts = x.chunk(4, 1)  # once, before the loop", "y.append(self.block(x_parts[n]))  # in it"],
        ),
        (
            Taken(LINE, "Index", "[64, 96]", 8 * ["[8, 96]"]),
            "y = self.experts[e](x[rows])",
            [
                "x_parts = x.index_select(0, torch.cat(numbers)).split([len(each) for each in numbers], 0)  # once, before the loop",
                "x_parts[n]  # in it, not x[numbers[n]]",
            ],
        ),
        (
            Taken(LINE, "Select", "[64, 96, 96]", 8 * ["[96, 96]"]),
            "y = h @ self.w[e]",
            [
                "rows = self.w.index_select(0, torch.tensor(numbers, device=self.w.device)).unbind(0)  # once, before the loop",
                "w_parts = dict(zip(numbers, rows))",
                "w_parts[n]  # in it, not self.w[n]",
            ],
        ),
    ],
)  # fmt: skip
def test_code_in_the_names_of_the_program(taken: Taken, text: str, paste: list[str], tmp_path: Path) -> None:
    (finding,) = found(tmp_path, taken, source={LINE: text})
    assert finding.paste.splitlines() == paste
    assert ("begin at multiples of" in finding.condition) == (" // " in finding.paste)


@pytest.mark.parametrize(
    ("taken", "text"),
    [
        (Taken(LINE, "Select", "[8, 64, 96]", 8 * ["[64, 96]"], fill=1, add=2), "h @ self.gate[e]"),  # small
        (Taken(LINE, "Select", "[2, 64, 96]", 2 * ["[64, 96]"]), "a, b = w[0], w[1]"),  # few
        (Taken(LINE, "Slice", "[4, 12, 64]", 4 * ["[4, 11, 64]"]), "x[:, :-1]"),  # most of it
        (Taken(LINE, "Slice", "[4, 12, 64]", [f"[4, {n}, 64]" for n in range(1, 7)]), "x[:, :t]"),  # they overlap
        (Taken(LINE, "Slice", "[4, 10, 64]", 4 * ["[4, 2, 64]"]), "x[:, k::4]"),  # no even division
        (
            Taken(LINE, "Slice", "[4, 12, 64]", 4 * ["[4, 6, 64]"]),
            "x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 1::2]], -1)",
        ),
        (Taken(LINE, "Slice", "[4, 12, 64]", 4 * ["[4, 6, 64]"]), "a, b = x[:, :6], x[:, 2:8]"),
        (Taken(LINE, "Slice", "[4, 12, 64]", 4 * ["[4, 3, 64]"]), "y.append(self.block(x[:, k::4],"),
        (EXPERTS, "out = model(ids)"),  # a package takes them
        (EXPERTS, "out = model(ids[:, :-1], sizes[a:b])"),
        (Taken(LINE, "Select", "[4, 12, 64]", 12 * ["[4, 64]"]), "out = model(batch[n])"),
    ],
)
def test_what_is_small_or_has_no_other_form(taken: Taken, text: str, tmp_path: Path) -> None:
    assert not found(tmp_path, taken, source={LINE: text})


@pytest.mark.parametrize(
    "text", ["h = h @ self.weights(e)[e]", "h = h @ w[e, :, a:b]", "h = F.silu(h @ self.gate[e],", "y = a[e] @ b[e]"]
)
def test_a_line_that_does_not_name_the_tensor(text: str, tmp_path: Path) -> None:
    (finding,) = found(tmp_path, EXPERTS, source={LINE: text})
    assert finding.fix.startswith("Take all pieces of the tensor at once, by unbind, split or chunk before the loop: ")
    assert finding.paste.startswith("parts = w.unbind(0)  # once, before the loop; w: of 8 x 64 x 96")


def test_pieces_of_several_tensors_have_no_sum(tmp_path: Path) -> None:
    each = [Taken(LINE, "Select", "[8, 64, 96]", ["[64, 96]"], fill=100 + n) for n in range(8)]
    assert not found(tmp_path, *each, source={LINE: "out = x[-1]"})


@pytest.mark.parametrize(
    ("size", "taken", "text", "rounds"),
    [
        ((8, 64, 96), EXPERTS, "y = w[n]", 8),
        ((4, 12, 64), Taken(LINE, "Select", "[4, 12, 64]", 12 * ["[4, 64]"]), "y = w[:, n]", 12),
        ((4, 12, 64), Taken(LINE, "Slice", "[4, 12, 64]", 4 * ["[4, 3, 64]"]), "y = w[:, n * 3 : n * 3 + 3]", 4),
        ((4, 12, 64), Taken(LINE, "Slice", "[4, 12, 64]", 4 * ["[4, 3, 64]"]), "y = w[:, n::4]", 4),
        ((4, 12, 64), Taken(LINE, "Slice", "[4, 12, 64]", 5 * ["[4, 4, 64]"]), "y = w[:, 2 * n : 2 * n + 4]", 5),
        ((4, 12, 64), Taken(LINE, "Slice", "[4, 12, 64]", 9 * ["[4, 4, 64]"]), "y = w[:, n : n + 4]", 9),
        ((4, 12, 64), Taken(LINE, "Split", "[4, 12, 64]", 4 * ["[4, 3, 64]"]), "y = w.chunk(4, 1)[n]", 4),
        ((64, 96), Taken(LINE, "Index", "[64, 96]", 8 * ["[8, 96]"]), "y = w[numbers[n]]", 8),
        ((64, 9, 9), Taken(LINE, "Select", "[64, 9, 9]", 8 * ["[9, 9]"]), "y = w[n]", 8),
        (
            (6, 5, 5, 8),
            Taken(LINE, "Select", "[6, 5, 5, 8]", 20 * ["[6, 5, 8]"], inner="[6, 8]"),
            "y = w[:, n, -n] * w[:, n - 1, n]",
            5,
        ),
    ],
)
def test_the_paste_reads_the_same_pieces_and_makes_the_same_gradient(
    size: tuple[int, ...], taken: Taken, text: str, rounds: int, tmp_path: Path
) -> None:
    (finding,) = found(tmp_path, taken, source={LINE: text})
    lines = finding.paste.splitlines()
    before, inside = lines[:-1], lines[-1].partition("  #")[0]
    data, results = torch.randn(size), list[tuple[list[torch.Tensor], torch.Tensor | None]]()
    numbers: list[object] = list(range(rounds)) if "dict" in finding.paste else list(torch.randperm(size[0]).split(8))
    for pasted in (False, True):
        w = data.clone().requires_grad_()
        given: dict[str, object] = {"torch": torch, "w": w, "numbers": numbers}
        if pasted:
            exec("\n".join(before), given)
        read = list[torch.Tensor]()
        for given["n"] in range(rounds):
            exec((inside if inside.startswith("y = ") else f"y = {inside}") if pasted else text, given)
            piece = given["y"]
            assert isinstance(piece, torch.Tensor)
            read.append(piece)
        torch.stack([(n + 1) * piece.square().sum() for n, piece in enumerate(read)]).sum().backward()
        results.append(([piece.detach() for piece in read], w.grad))
    torch.testing.assert_close(results[0], results[1])
