"""NSX131: tensors that grow where gradients run, in other forms than concatenations, and rows of them that are computed again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nsysx.events.grown_tensors import GrownTensor
from nsysx.findings._fix import Fix
from nsysx.findings._grown_pastes import fix_of
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_grown_by_cat import CAT
from tests.findings.test_smaller_operators import GEMM

LINE, LAYER = 25, 30
CATS = {LINE: "memory = torch.cat([memory, state], dim=1)", LAYER: "keys = self.key(memory)"}
ROUNDS, PROMPT = 12, 100


class Step:
    """Operators of one step: of each its node of autograd runs in the backward behind them, if it has one."""

    def __init__(self, program: Lined, number: int) -> None:
        self.program, self.number, self.first = program, 0, 2000 * number + 10
        self.nodes: list[tuple[int, float]] = []

    def operator(
        self, name: str, made: Sequence[int], sizes: str, us: float = 0, kernel: str = GEMM, *, trained: bool = False,
        backward_us: float = 0,
    ) -> int:  # fmt: skip
        """Run an operator with one kernel, or none; return its number."""
        program, begin = self.program, self.program.t
        self.number += 1
        number = self.first + self.number
        program.host(5)
        if us:
            program.launch(us, kernel)
        if program.noted is not None:
            makers = ", ".join(f"({max(each, 0)},{-1 if each < 0 else 0})" for each in made)
            seq = f", seq = {number}" if trained else ""
            program.main.add_range(
                f"aten::{name}{seq}, op_id = {number}, sizes = [{sizes}], input_op_ids = [{makers}]", begin, program.t
            )
        if trained:
            self.nodes.append((number, backward_us))
        return number

    def backward(self) -> None:
        """Run the nodes."""
        program = self.program
        for number, us in reversed(self.nodes):
            begin = program.t
            program.host(2)
            if us:
                program.launch(us, GEMM)
            if program.noted is not None:
                program.main.add_range(f"SomeBackward0, seq = {number}", begin, program.t)


def step(program: Lined, number: int, kind: str) -> None:
    """Twelve rounds that each read all rows before them, with gradients, and add one; cats take 100 us each.

    ``detached``: no gradient runs through the rows. ``alone``: each round reads the last row alone. ``projected``: a layer of 60 us, 120 in
    backward, computes all rows. ``pad``, ``room``, ``clone``: without gradients, in other forms than by cats. ``clone later``: what a
    clone is made of is read later. ``weights``: what reads the rows has weights that grow with them.
    """
    run = Step(program, number)
    trained = kind not in ("pad", "room", "clone", "clone later")
    with program.range("forward"), program.range("net:Net"):
        run.operator("linear", [-1, -1], "[64, 64], [64, 64]", 1000, trained=trained, backward_us=10)
    start = whole = run.operator("linear", [-1, -1], f"[4, {PROMPT}, 64], [64, 64]", 10, trained=trained)
    for n in range(PROMPT, PROMPT + ROUNDS):
        state = run.operator("linear", [start, -1], "[4, 1, 64], [64, 64]", 10, trained=trained)
        sizes, before = f"[4, {n}, 64]", whole
        with program.line(LINE):
            if kind == "pad":
                whole = run.operator("pad", [whole, -1, -1, -1], f"{sizes}, [], [], []", 100)
                row = run.operator("select", [whole, -1, -1], f"[4, {n + 1}, 64], [], []")
                run.operator("copy_", [row, state, -1], "[4, 64], [4, 64], []", 3)
            elif kind == "room":
                whole = run.operator("new_empty", [whole, -1], f"{sizes}, []")
                rows = run.operator("slice", [whole, -1], f"[4, {n + 1}, 64], []")
                run.operator("copy_", [rows, before, -1], f"{sizes}, {sizes}, []", 100)
                row = run.operator("select", [whole, -1, -1], f"[4, {n + 1}, 64], [], []")
                run.operator("copy_", [row, state, -1], "[4, 64], [4, 64], []", 3)
            elif kind.startswith("clone"):
                n, sizes = PROMPT - 1, f"[4, {PROMPT}, 64]"
                whole = run.operator("clone", [whole, -1], f"{sizes}, []", 100)
                row = run.operator("select", [whole, -1, -1], f"{sizes}, [], []")
                run.operator("copy_", [row, state, -1], "[4, 64], [4, 64], []", 3)
            else:
                made, grows = (start if kind == "fresh" else whole), kind != "detached"
                whole = run.operator("cat", [made, state, -1], f"{sizes}, [4, 1, 64], []", 100, CAT, trained=grows)
        if kind == "alone":
            row = run.operator("select", [whole, -1, -1], f"[4, {n + 1}, 64], [], []", trained=True, backward_us=50)
            run.operator("relu", [row], "[4, 64]", 3, trained=True)
            continue
        read = whole
        if kind == "projected":
            with program.line(LAYER):
                read = run.operator(
                    "linear", [whole, -1], f"[4, {n + 1}, 64], [64, 64]", 60, trained=True, backward_us=120
                )
        if kind == "weights":
            run.operator("linear", [whole, -1], f"[4, {n + 1}, 64], [64, {n}]", 10, trained=True)
        else:
            run.operator("bmm", [state, read], f"[4, 1, 64], [4, 64, {n + 1}]", 10, trained=trained)
        if kind == "clone later":
            run.operator("bmm", [state, before], f"[4, 1, 64], [4, 64, {n + 1}]", 10)
    run.operator("sum", [whole], f"[4, {n + 1}, 64]", 5, trained=trained)
    run.backward()
    program.sync()


def found(folder: Path, kind: str, source: dict[int, str] | None = None) -> dict[str, Finding]:
    """Return what NSX131 found, by the name of its remedy."""
    program = Lined(source or CATS, {"networks": [{"class": "Net", "package": "torch"}]})
    findings = program.run(lambda program, number: step(program, number, kind)).found(folder, "NSX131")
    return {each.remedies[0].name: each for each in findings}


COPIES_NS = 11 * (100_000 - 3_000)


def test_a_tensor_that_grows_under_autograd_is_told_with_a_function(tmp_path: Path) -> None:
    finding = found(tmp_path, "read")["grown-with-gradients"]
    assert (finding.where["file"], finding.where["line"]) == (FILE, LINE)
    assert finding.saving_ns_per_step == pytest.approx(COPIES_NS, rel=0.02) and not finding.saving.bound
    assert "something reads each result, and gradients run through it" in finding.detail
    assert "memory = Grown.apply(memory, state, memory_room, 1)" in finding.paste


def rounds_of(kind: str, paste: Sequence[str], first: str, dim: int) -> list[torch.Tensor]:
    """Return the last whole, the loss and all gradients of a recurrence that reads all rows: by cats or stacks, or by what is pasted."""
    torch.manual_seed(1)
    cell, start = torch.nn.GRUCell(8, 8).double(), torch.randn(3, 8, dtype=torch.double, requires_grad=True)
    given: dict[str, object] = {"torch": torch, "longest": 12}
    state, history = start * 2, list[torch.Tensor]()
    for n in range(10):
        new = state if "stack" in kind else state.unsqueeze(dim)
        history.append(state)
        given |= {"new": new, "state": new}
        if paste and not n:
            exec("\n".join([*paste[:-1], first]), given)
        exec(paste[-1] if paste else "pass", given)
        whole = given[kind.partition(" ")[0]] if paste else torch.stack(history, dim)
        assert isinstance(whole, torch.Tensor)
        rows = whole if dim == 1 else whole.transpose(0, 1)
        scores = torch.einsum("bd,bnd->bn", state, rows).softmax(1)
        state = cell(torch.einsum("bn,bnd->bd", scores, rows), state)
    loss = state.square().sum() + whole.sin().sum()
    loss.backward()
    assert start.grad is not None
    return [
        whole.detach().clone(),
        loss.detach(),
        start.grad,
        *(p.grad for p in cell.parameters() if p.grad is not None),
    ]


@pytest.mark.parametrize(
    ("kind", "text", "dim"),
    [
        ("memory", "memory = torch.cat([memory, state], dim=0)", 0),
        ("memory", "memory = torch.cat([memory, state], dim=1)", 1),
        ("whole", "x = torch.cat([y.detach(), state])", 1),  # as the example
        ("whole stack", "x = torch.stack(history, dim=0)", 0),
        ("whole stack", "x = torch.stack(history, dim=1)", 1),
    ],
)
def test_the_function_makes_the_same_result_and_gradients(kind: str, text: str, dim: int) -> None:
    size = (3, 12, 8) if dim else (12, 3, 8)
    tensor = GrownTensor({}, True, False, False, size, dim, differentiated=True, saved=True)
    fix = fix_of("grown-with-gradients", [tensor], [], text)
    begin = fix.condition.partition(". ")[0].removeprefix("Begin with ")
    by_cats, by_paste = (rounds_of(kind, paste, begin, dim) for paste in ((), fix.paste.splitlines()))
    assert len(by_cats) == 7
    torch.testing.assert_close(by_cats, by_paste)


def test_rows_without_a_gradient_that_is_read_with_gradients(tmp_path: Path) -> None:
    finding = found(tmp_path, "detached")["grown-in-place"]
    assert finding.saving_ns_per_step == pytest.approx(COPIES_NS, rel=0.02)
    once, *each = finding.paste.splitlines()
    assert (
        all("memory_room.data.narrow" in line for line in each) and ".data: backward would refuse" in finding.condition
    )
    weight = torch.randn(64, requires_grad=True)
    gradients = list[torch.Tensor | None]()
    for pasted in (False, True):
        torch.manual_seed(0)
        given: dict[str, object] = {"torch": torch, "state": torch.randn(4, 1, 64)}
        exec(f"{once}\nmemory = memory_room.narrow(1, 0, 0)", given)
        total = torch.zeros(())
        for _ in range(ROUNDS):
            given["state"] = torch.randn(4, 1, 64)
            exec("\n".join(each) if pasted else CATS[LINE], given)
            total = total + (given["memory"] * weight).sin().sum()  # type: ignore[operator]
        weight.grad = None
        total.backward()
        gradients.append(weight.grad)
    assert gradients[0] is not None and gradients[1] is not None and torch.equal(gradients[0], gradients[1])


def test_rows_that_are_read_alone_are_read_of_the_list(tmp_path: Path) -> None:
    finding = found(tmp_path, "alone")["joined-at-end"]
    # The gradients of the rows that are taken go, too.
    assert finding.saving_ns_per_step == pytest.approx(COPIES_NS + 12 * 47_000, rel=0.03)
    assert "read single rows alone" in finding.fix and "parts[-1]" in finding.condition
    assert finding.paste.splitlines()[0].startswith("parts.append(state)")


def test_layers_that_compute_all_rows_again(tmp_path: Path) -> None:
    findings = found(tmp_path, "projected")
    finding = findings["rows-computed-once"]
    assert finding.where["line"] == LAYER and finding.saving.bound
    assert finding.saving_ns_per_step == pytest.approx(11 * (180_000 - 2 * 5_000), rel=0.03)
    assert findings["grown-with-gradients"].saving.bound, "a layer copies rows that do not lie side by side"
    key, rows = torch.nn.Linear(8, 8), torch.randn(2, 6, 8)
    given = {"torch": torch, "self": SimpleNamespace(key=key), "keys": key(rows[:, :5]), "new": rows[:, 5:]}
    exec(finding.paste, given)
    torch.testing.assert_close(given["keys"], key(rows))


@pytest.mark.parametrize(
    ("kind", "text", "called"),
    [
        ("pad", "memory = F.pad(memory, (0, 0, 0, 1))", "grow by F.pad"),
        ("room", "grown[:, :-1] = memory", "grow by copies into longer ones"),
    ],
)
def test_other_forms_of_growth(kind: str, text: str, called: str, tmp_path: Path) -> None:
    finding = found(tmp_path, kind, {LINE: text})["grown-in-place"]
    assert called in finding.title and "torch.cat" not in finding.fix + finding.paste
    copies = COPIES_NS + (97_000 if kind == "room" else 0)  # the first one is a copy of what was there, too
    assert finding.saving_ns_per_step == pytest.approx(copies, rel=0.1)


def test_a_copy_of_all_to_write_a_part(tmp_path: Path) -> None:
    source = {LINE: "memory = memory.clone(); memory[:, n] = state"}
    finding = found(tmp_path, "clone", source)["written-in-place"]
    assert finding.saving_ns_per_step == pytest.approx(COPIES_NS, rel=0.03)
    assert "12 copies of a step are made of a tensor to write a part" in finding.detail
    given = {"whole": torch.zeros(2, 4), "new": torch.ones(2, 1), "n": 2, "dim": 1}
    exec(finding.paste, given)
    assert given["whole"].tolist() == [[0, 0, 1, 0]] * 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["fresh", "weights", "clone later"])
def test_what_has_to_be_copied(kind: str, tmp_path: Path) -> None:
    source = {LINE: "memory = memory.clone(); memory[:, n] = state"} if "clone" in kind else CATS
    assert not found(tmp_path, kind, source)


def queue(program: Lined, number: int) -> None:
    """A loss reads 990 rows that the step before kept; a cat of 1 ms then adds 10."""
    run = Step(program, number)
    with program.range("forward"), program.range("net:Net"):
        new = run.operator("linear", [-1, -1], "[64, 64], [64, 64]", 1000, trained=True, backward_us=10)
    before = run.first + 3 - 2000
    run.operator("mm", [new, before], "[10, 64], [64, 990]", 10, trained=True, backward_us=10)
    run.backward()
    with program.line(LINE):
        run.operator("cat", [before, new, -1], "[990, 64], [10, 64], []", 1000, CAT)
    program.sync()


def test_a_queue_that_a_loss_reads_is_a_window(tmp_path: Path) -> None:
    source = {LINE: "self.queue = torch.cat([self.queue, z.detach()])[-990:]"}
    program = Lined(source, {"networks": [{"class": "Net", "package": "torch"}]}).run(queue)
    (finding,) = program.found(tmp_path, "NSX131")
    assert [way.name for way in finding.remedies] == ["grown-in-place"] and "kept = room.narrow(0" in finding.paste
    assert finding.saving_ns_per_step == pytest.approx(980_000, rel=0.01), (
        "as many rows as are new go back to the start"
    )


@pytest.mark.parametrize("dim", [0, 1])
def test_a_window_over_the_steps_keeps_its_order(dim: int) -> None:
    tensor = GrownTensor({}, True, True, True, (10, 10), dim, saved=True)
    fix = fix_of("grown-in-place", [tensor], [], "")
    once, *each = fix.paste.splitlines()
    assert "behind backward()" in fix.condition
    whole = torch.randn(7, 7)
    given: dict[str, object] = {"torch": torch, "kept": whole}
    exec(once, given)
    for _ in range(12):
        given["new"] = new = torch.randn(*((3, 7) if dim == 0 else (7, 3)))
        exec("\n".join(each), given)
        whole = torch.cat([whole, new], dim).narrow(dim, 3, 7)
        assert torch.equal(given["kept"], whole)  # type: ignore[arg-type]
    assert fix_of("ring-of-rows", [tensor._replace(saved=False)], [], "") == Fix.by_name("ring-of-rows")
