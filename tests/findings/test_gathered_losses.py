"""NSX127: losses that every rank computes of the rows of all ranks, and what needs those of all, or has another part on each rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.findings import _exposed_transfer
from nsysx.findings._gathered_losses import _in_order, _own_line
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined, all_is_transfer
from tests.findings.test_layer_messages import SETTINGS
from tests.findings.test_smaller_operators import operator
from tests.ranks.test_rank_table import KERNELS, noted

CALLING, GATHERING, HEAD = 30, 34, 36
SOURCE = {
    20: "x = block(x)",
    CALLING: "loss = loss_of(gather(h), target)",
    GATHERING: "dist.all_gather_into_tensor(out, x)",
    HEAD: "return F.cross_entropy(F.linear(h, weight).float(), target)",
    40: "loss.backward()",
    44: "dist.all_reduce(flat)",
}
OWN, ALL, WEIGHT, LOGITS = "[64, 128]", "[128, 128]", "[512, 128]", "[128, 512]"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
#: Of the network before the gather, and of the head.
TRUNK, HEADS = 128 * 128, 512 * 128
OF_GATHER = 64 * 128 * 2
TRAINED = {"elements": TRUNK + HEADS, "dtypes": {"bfloat16": 4}}


def sent(program: Lined, name: str, size: int, us: float = 200) -> None:
    """A collective among two ranks."""
    program.host(2)
    start = program.t
    program.launch(us, KERNELS.get(name, SCATTER))
    noted(program.main, name, start, program.t, comm=5, size=size)


def gathered(program: Lined, at: int, made: int, kind: str) -> int:
    """A gather of what operator ``made`` made; returns the number of what came."""
    begin = program.t
    with program.line(GATHERING, "Gather.forward"):
        sent(program, "ncclAllGather", OF_GATHER)
    if program.noted is None:
        return at
    whole = {"classes": "[64, 256]", "positions": "[2, 2, 32, 128]"}.get(kind, ALL)
    own = "[2, 32, 128]" if kind == "positions" else OWN
    if kind == "functional":
        label = f"_c10d_functional::all_gather_into_tensor, op_id = {at}, sizes = [{own}, [], []], input_op_ids = [({made},0)]"
        program.main.add_range(label, begin, program.t)
        label = f"_c10d_functional::wait_tensor, op_id = {at + 1}, sizes = [{whole}], input_op_ids = [({at},0)]"
        program.main.add_range(label, program.t, program.t + 1)
        program.host(2)
        return at + 1
    if kind == "list":
        label = f"c10d::allgather_, op_id = {at}, sizes = [[], {OWN}, [], []], input_op_ids = [(0,-1), ({made},0)]"
        program.main.add_range(label, begin, program.t)
        operator(program, "cat", at + 4, [at + 2, at + 3, -1], f"{OWN}, {OWN}, []", 0)
        return at + 4
    label = f"c10d::_allgather_base_, op_id = {at}, sizes = [{whole}, {own}, []], input_op_ids = [(0,-1), ({made},0)]"
    program.main.add_range(label, begin, program.t)
    return at


def made_before(program: Lined, at: int, came: int, kind: str) -> tuple[int, str]:
    """What is made of the rows before the head: the number and size of what goes on."""
    if kind == "normed":
        operator(program, "rms_norm", at, [came, -1, -1], f"{ALL}, [], [128]", 0)
        return at, ALL
    if kind == "shifted":
        operator(program, "slice", at, [came, -1], f"{ALL}, []")
        return at, "[127, 128]"
    if kind == "positions":  # brought beside each other in the second dimension
        operator(program, "transpose", at, [came, -1, -1], "[2, 2, 32, 128], [], []")
        operator(program, "reshape", at + 1, [at, -1], "[2, 2, 32, 128], []")
        return at + 1, "[2, 64, 128]"
    if kind in ("chunks in order", "rows beside others"):  # as of a sequence whose chunks are dealt out
        if kind == "rows beside others":
            operator(program, "flip", at, [came, -1], f"{ALL}, []")
            operator(program, "add", at + 1, [at, came], f"{ALL}, {ALL}")
            return at + 1, ALL
        operator(program, "view", at + 1, [came, -1], f"{ALL}, []")
        operator(program, "select", at + 2, [at + 1, -1, -1], "[2, 2, 32, 128], [], []")
        operator(program, "select", at + 3, [at + 1, -1, -1], "[2, 2, 32, 128], [], []")
        operator(program, "flip", at + 4, [at + 3, -1], "[2, 32, 128], []")
        operator(program, "cat", at + 5, [at + 2, at + 4, -1], "[2, 32, 128], [2, 32, 128], []", 0)
        operator(program, "flatten", at + 6, [at + 5, -1, -1], "[4, 32, 128], [], []")
        return at + 6, ALL
    if kind in ("in an order of numbers", "in a drawn order"):
        if kind == "in a drawn order":
            operator(program, "randperm", at, [-1], "[]", 2)
        operator(
            program,
            "index_select",
            at + 1,
            [came, -1, at if kind == "in a drawn order" else -1],
            f"{ALL}, [], [128]",
            2,
        )
        return at + 1, ALL
    if kind == "own again":
        operator(program, "slice", at, [came, -1], f"{ALL}, []")
        return at, OWN
    if kind == "attended":
        operator(program, "unsqueeze", at, [came, -1], f"{ALL}, []")
        turned = "[1, 128, 128]"
        operator(program, "scaled_dot_product_attention", at + 1, [at] * 3, ", ".join([turned] * 3), 50)
        operator(program, "squeeze", at + 2, [at + 1, -1], f"{turned}, []")
        return at + 2, ALL
    if kind == "normed over rows":
        operator(program, "batch_norm", at, [came, -1, -1], f"{ALL}, [128], [128]", 20)
        return at, ALL
    return came, {"classes": "[64, 256]"}.get(kind, ALL)


def weight(program: Lined, at: int, came: int, kind: str) -> int:
    """The weight of the head: one that is older than the step, as a rule, or the number of what makes it."""
    if kind == "a part of a weight":
        operator(program, "slice", at, [-1, -1], "[1024, 128], []")
        return at
    if kind == "of what came":
        operator(program, "slice", at, [came, -1], f"{ALL}, []")
        return at
    if kind == "converted":
        operator(program, "to", at, [-1, -1], f"{WEIGHT}, []", 5, "copy")
        return at
    return -1


def loss(program: Lined, at: int, rows: int, size: str, kind: str) -> None:
    """Product (400 us), conversion (300 us) and loss (500 us) of rows."""
    factor = weight(program, at, rows, kind)
    logits = size.replace("128]", "512]")
    if kind in ("of what came", "sums of a square"):
        logits = "[128, 128]"
    of_weight = {"classes": "[512, 256]", "of what came": ALL, "sums of a square": "[128, 128]"}.get(kind, WEIGHT)
    operator(program, "linear", at + 1, [rows, factor, -1], f"{size}, {of_weight}, []", 400)
    operator(program, "to", at + 2, [at + 1, -1], f"{logits}, []", 300, "copy")
    if kind == "classes":  # as if they were logits
        operator(program, "cross_entropy_loss", at + 4, [rows, -1, -1], f"{size}, [64], []", 500, "softmax")
    elif kind == "squares":
        operator(program, "mse_loss", at + 4, [at + 2, -1, -1], f"{logits}, {logits}, []", 500, "reduce")
    elif kind == "written out":
        operator(program, "log_softmax", at + 5, [at + 2, -1, -1], f"{logits}, [], []", 500, "softmax")
        operator(program, "gather", at + 6, [at + 5, -1, -1], f"{logits}, [], [128, 1]")
        operator(program, "mean", at + 7, [at + 6, -1], "[128, 1], []")
        operator(program, "neg", at + 4, [at + 7], "[]")
    elif kind.startswith("sums"):
        operator(program, "sum", at + 5, [at + 2, -1], f"{logits}, []", 500, "reduce")
        operator(program, "square", at + 6, [at + 5], "[128]")
        operator(program, "mean", at + 4, [at + 6, -1], "[128], []")
    elif kind == "positions":
        operator(program, "view", at + 5, [at + 2, -1], f"{logits}, []")
        operator(program, "cross_entropy_loss", at + 4, [at + 5, -1, -1], "[128, 512], [128], []", 500, "softmax")
    else:
        rest = logits.replace(", 512", "")
        operator(program, "cross_entropy_loss", at + 4, [at + 2, -1, -1], f"{logits}, {rest}, []", 500, "softmax")
    if kind == "sorted, too":
        operator(program, "sort", at + 8, [at + 2, -1], f"{logits}, []", 10)
        operator(program, "mul", at + 9, [at + 8, -1], f"{logits}, []", 10)
        operator(program, "mul", at + 10, [at + 9, -1], f"{logits}, []", 10)
    if kind == "root":
        operator(program, "sqrt", at + 9, [at + 4], "[]")
        operator(program, "ones_like", at + 11, [at + 9], "[]")
    operator(program, "ones_like", at + 12, [at + 4], "[]")


def step(program: Lined, number: int, kind: str) -> None:
    at = 1000 * number + 10
    if not number:
        noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
    with program.line(20), program.range("forward"), program.range("net:Net"):
        operator(program, "linear", at, [-1, -1], f"{OWN}, [128, 128]", 300)
    with program.line(CALLING):
        came = gathered(program, at + 1, at, kind)
        with program.line(HEAD, "loss_of"):
            rows, size = made_before(program, at + 10, came, kind)
            loss(program, at + 20, rows, size, kind)
    with program.line(40), program.range("backward"):
        program.launch(300)
        if kind != "own gradients":
            sent(program, "ncclReduceScatter", OF_GATHER)
    with program.line(44):
        heads = 0 if kind == "a head of each rank" else HEADS
        sent(program, "ncclAllReduce", 2 * (TRUNK + heads), us=100)
    program.sync()


def told(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Finding | None:
    all_is_transfer(monkeypatch, _exposed_transfer)  # one rank alone does not tell transfer from waiting
    program = Lined(SOURCE, {**SETTINGS, "optimizers": [TRAINED]})
    found = program.run(lambda program, number: step(program, number, kind)).found(folder, "NSX127")
    return next((f for f in found if f.evidence[0]["setting"] == "loss of all rows"), None)


@pytest.mark.parametrize(
    "kind",
    [
        "as it is",
        "functional",
        "list",
        "normed",
        "converted",
        "shifted",
        "squares",
        "written out",
        "positions",
        "sums of rows",
    ],
)
def test_a_loss_of_the_rows_of_all_ranks_is_told_with_its_work_and_the_gather(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = told(tmp_path, kind, monkeypatch)
    assert found is not None and (found.where["file"], found.where["line"]) == (FILE, CALLING)
    assert [way.name for way in found.remedies] == ["own-rows-of-loss"]
    assert found.saving_ns_per_step == pytest.approx(600_000 + 400_000, rel=0.1)
    assert "both ranks gather the rows of all" in found.detail.lower()


def test_the_paste_is_the_program_s_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(tmp_path, "as it is", monkeypatch)
    assert found is not None and "loss = loss_of(h, target[own])" in found.paste


@pytest.mark.parametrize("kind", ["chunks in order", "in an order of numbers"])
def test_rows_in_another_order_are_a_rank_s_own_ones_still(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = told(tmp_path, kind, monkeypatch)
    assert found is not None and [way.name for way in found.remedies] == ["own-rows-in-order"]
    assert found.saving_ns_per_step == pytest.approx(600_000 + 400_000, rel=0.1)
    assert "argsort()[rank * h.shape[0]" in found.paste


@pytest.mark.parametrize(
    "kind",
    [
        "rows beside others",  # each with that of another rank
        "in a drawn order",
        "a part of a weight",  # another one on each rank
        "a head of each rank",  # its gradients are not reduced
        "own gradients",  # of a rank's own loss alone: another mean
        "of what came",  # pairs of rows
        "attended",
        "normed over rows",
        "classes",  # what was gathered lies side by side
        "sorted, too",
        "root",  # of a mean
        "sums of a square",  # of its rows, or of its columns
        "own again",  # each rank goes on with its own rows
    ],
)
def test_what_needs_all_rows_or_has_another_part_on_each_rank_is_silent(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(tmp_path, kind, monkeypatch) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("loss = model.loss(Gather.apply(h), target)", "loss = model.loss(h, target[own])"),
        ("loss = F.mse_loss(all_gather(out, group), y)", "loss = F.mse_loss(out, y[own])"),
        ("h = gather(h)", None),
        ("loss = criterion(gather(h), target, weight)", None),
        ("loss = loss_of(gather(net(x)), y)", None),
        ("for x in gather(y):", None),
    ],
)
def test_a_line_without_its_gather(text: str, line: str | None) -> None:
    pasted = _own_line(text, 0)
    assert (pasted and pasted.splitlines()[1].partition("  #")[0]) == line


def test_which_rows_are_own_ones_is_found_by_the_program_s_own_line() -> None:
    pasted = _in_order("x = natural(Gather.apply(x, group), world)", 0).splitlines()
    assert pasted[0].startswith("rows = torch.arange(world * x.shape[0], device=x.device)")
    assert pasted[1] == "own = natural(rows, world).argsort()[rank * x.shape[0]:(rank + 1) * x.shape[0]]"
    assert "head(x)" in pasted[2] and "target[own]" in pasted[2]


def test_rows_along_another_dimension() -> None:
    pasted = _own_line("loss = loss_of(gather(h), target)", 1) or ""
    assert "h.shape[1]" in pasted and "target[:, own]" in pasted
