"""NSX127: outputs of split layers that are gathered and cut apart again, with what all ranks compute of them in between."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.outputs_cut_again import CutOutput, Parts, _viewed
from nsysx.findings import _cut_outputs
from nsysx.inject.nsysx_probe import sources
from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_layer_messages import SETTINGS
from tests.findings.test_smaller_operators import operator
from tests.ranks.test_rank_table import KERNELS, noted

PLAN, ATTENTION = 12, 31
PLANNED = '"attn.qkv": ColwiseParallel(output_layouts=Replicate()),'
SOURCE = {20: "y = self.qkv(x)", ATTENTION: "a = attention(q, k, v)", 34: "y = self.qkv(x)", 40: "loss.backward()"}
VIEWED = "into a view"
OWN, ALL, ROWS = "[64, 128]", "[64, 256]", "[128, 128]"


def gather(program: Lined, number: int, made: int, whole: str, kind: str) -> int:
    """A gather of what operator ``made`` made; returns the number of what came. A functional one calls one of c10d."""
    functional, begin = kind == "put together", program.t
    with program.line(34, "Attention.forward"):
        program.host(2)
        start = program.t
        program.launch(200, KERNELS["ncclAllGather"])
        noted(program.main, "ncclAllGather", start, program.t, comm=5, size=16_384)
    if program.noted is None:
        return number
    if kind in (VIEWED, "added up"):  # what is written into the view is read by the name of what it is a view of
        operator(program, "new_empty", number + 3, [made, -1], f"{OWN}, []")
        operator(program, "view", number + 4, [number + 3, -1], "[2, 64, 128], []")
        label = (
            f"c10d::_allgather_base_, op_id = {number}, sizes = [[16384], [8192], []], "
            f"input_op_ids = [({number + 4},0), ({made},0)]"
        )
        program.main.add_range(label, begin, program.t)
        return number + 3
    if not functional:
        label = f"c10d::_allgather_base_, op_id = {number}, sizes = [{whole}, {OWN}, []], input_op_ids = [(0,-1), ({made},0)]"
        program.main.add_range(label, begin, program.t)
        return number
    outer = f"_c10d_functional::all_gather_into_tensor, op_id = {number}, sizes = [{OWN}, [], []], input_op_ids = [({made},0)]"
    inner = f"c10d::allgather_into_tensor_coalesced_, op_id = {number + 1}, sizes = [{whole}, {OWN}], input_op_ids = [(0,-1), ({made},0)]"
    program.main.add_range(outer, begin, program.t)
    program.main.add_range(inner, begin + 100, program.t - 100)
    wait, begin = number + 2, program.t
    program.host(2)
    label = f"_c10d_functional::wait_tensor, op_id = {wait}, sizes = [{ROWS}], input_op_ids = [({number},0)]"
    program.main.add_range(label, begin, program.t)
    return wait


def attended(program: Lined, at: int, came: int, sizes: tuple[str, str, str], us: float = 600) -> int:
    """Attention of heads: of a view (the first size) and its transpose (the second), back to the third one."""
    split, turned, whole = sizes
    operator(program, "view", at, [came, -1], f"{whole}, []")
    operator(program, "transpose", at + 1, [at, -1, -1], f"{split}, [], []")
    with program.line(ATTENTION, "Attention.forward"):
        operator(program, "scaled_dot_product_attention", at + 2, [at + 1] * 3, ", ".join([turned] * 3), us)
    operator(program, "transpose", at + 3, [at + 2, -1, -1], f"{turned}, [], []")
    operator(program, "reshape", at + 4, [at + 3, -1], f"{split}, []")
    return at + 4


def block(program: Lined, at: int, kind: str) -> None:
    """A split layer, whose output is gathered, and what follows."""
    operator(program, "linear", at, [-1, -1], f"{OWN}, {ROWS}", 300)
    rows = kind in ("rows of all", "put together", "in front of a layer")
    came = gather(program, at + 1, at, ROWS if rows else ALL, kind)
    heads = ("[64, 4, 64]", "[4, 64, 64]", ALL)
    if kind == "put together":  # the parts lie one behind the other, until they are beside each other
        begin = program.t
        operator(program, "slice", at + 6, [came, -1], f"{ROWS}, []")
        operator(program, "slice", at + 7, [came, -1], f"{ROWS}, []")
        operator(program, "chunk", at + 5, [came, -1, -1], f"{ROWS}, [], []", begin=begin)
        operator(program, "cat", at + 8, [at + 6, at + 7, -1], f"{OWN}, {OWN}, []", 40, "copy")
        came, rows = at + 8, False
    if kind in (VIEWED, "added up"):
        begin = program.t
        operator(program, "select", at + 6, [came, -1, -1], "[2, 64, 128], [], []")
        operator(program, "select", at + 7, [came, -1, -1], "[2, 64, 128], [], []")
        operator(program, "unbind", at + 5, [came, -1], "[2, 64, 128], []", begin=begin)
        together = "cat" if kind == VIEWED else "add"
        operator(program, together, at + 8, [at + 6, at + 7, -1], f"{OWN}, {OWN}, []", 40, "copy")
        came = at + 8
    if kind == "rows of all":
        heads = ("[128, 2, 64]", "[2, 128, 64]", ROWS)
    if kind == "in front of a layer":
        operator(program, "linear", at + 10, [came, -1], f"{ROWS}, [128, 256]", 100)
        operator(program, "slice", at + 11, [at + 10, -1], "[128, 256], []")
        operator(program, "linear", at + 12, [at + 11, -1], f"[64, 256], {ROWS}", 100)
        return
    if kind == "norm of all":
        operator(program, "layer_norm", at + 9, [came, -1, -1], f"{ALL}, [], [256]", 20)
        came = at + 9
    made = attended(program, at + 20, came, heads)
    if kind == "norm of heads":
        operator(program, "view", at + 30, [made, -1], f"{ALL}, []")
        operator(program, "rms_norm", at + 31, [at + 30, -1, -1], "[64, 4, 64], [], [64]", 20)
        operator(program, "reshape", at + 32, [at + 31, -1], "[64, 4, 64], []")
        made = at + 32
    if kind == "read whole as well":  # in it a norm of its own weight, and of nothing of a rank
        begin = program.t
        operator(program, "empty", at + 36, [-1], "[64]")
        operator(program, "layer_norm", at + 35, [made, -1, -1], f"{ALL}, [], [256]", 20, begin=begin)
    if kind == "numbers again":
        cut_by_wrappers(program, at, made)
        return
    if kind == "for a loss":
        operator(program, "mse_loss", at + 40, [made, -1], f"{ALL}, {ALL}", 20)
        return
    if kind == "own part selected":
        operator(program, "view", at + 44, [made, -1], f"{ALL}, []")
        operator(program, "select", at + 41, [at + 44, -1, -1], "[64, 2, 128], [], []")
    else:
        operator(program, "slice", at + 41, [made, -1], f"{ROWS if rows else ALL}, []")
    operator(program, "clone", at + 42, [at + 41, -1], f"{OWN}, []", 5, "copy")
    operator(program, "linear", at + 43, [at + 42, -1], f"{OWN}, {ROWS}", 100)


def cut_by_wrappers(program: Lined, at: int, made: int) -> None:
    """A cut as tensors make it that are split over the ranks: such tensors, and lists, have the numbers of tensors that are gone."""
    begin = program.t
    program.host(1)
    operator(program, "slice", at + 51, [made, -1], f"{ALL}, []")
    operator(program, "slice", at + 52, [made, -1], f"{ALL}, []")
    operator(program, "chunk", at + 53, [made, -1, -1], f"{ALL}, [], []", begin=begin)
    operator(program, "clone", at + 54, [at + 52, -1], f"{OWN}, []", 5, "copy")
    begin = program.t
    program.host(1)
    operator(program, "mm", at + 56, [at + 54, -1], f"{OWN}, {ROWS}", 100)
    operator(program, "mm", at + 55, [at + 51, -1], f"{ALL}, [256, 128]", begin=begin)
    begin = program.t
    program.host(1)
    operator(program, "mm", at + 58, [at + 56, -1], f"{OWN}, {ROWS}", 100)
    operator(program, "mm", at + 57, [made, -1], f"{ALL}, [256, 128]", begin=begin)
    operator(program, "_foreach_add_", at + 59, [at + 20, -1], "[512, 96], []", 5)


def step(program: Lined, number: int, kind: str) -> None:
    at = 1000 * number + 10
    if not number:
        noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=5, of=2, Rank=0)
    with program.line(20), program.range("forward"), program.range("net:Net"):
        operator(program, "linear", at + 90, [-1, -1], f"{OWN}, {ROWS}", 300)
        block(program, at, kind)
    with program.line(40), program.range("backward"):
        program.launch(300)
    program.sync()


def told(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Finding | None:
    def transfer(case: _cut_outputs.Case, ops: frozenset[int]) -> int:
        theirs = case.ops.filter(case.ops["op"].is_in(list(ops)))
        return case.per_step(int((theirs["end_ns"] - theirs["start_ns"]).sum()))

    # One rank alone does not tell transfer from waiting.
    monkeypatch.setattr(_cut_outputs, "transfer_of_ops_ns", transfer)
    program = Lined(SOURCE, {**SETTINGS})
    said = program.run(lambda program, number: step(program, number, kind)).findings(folder, "NSX127")
    found = [f for f in said if f.evidence]
    return next((f for f in found if f.evidence[0]["setting"] == "outputs cut apart again"), None)


@pytest.mark.parametrize(
    "kind", ["heads", "norm of heads", "put together", "numbers again", VIEWED, "own part selected"]
)
def test_attention_of_all_heads_on_every_rank_is_told_with_its_work(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = told(tmp_path, kind, monkeypatch)
    assert found is not None and "attention of all heads" in found.title
    assert [way.name for way in found.remedies] == ["own-heads"]
    saved = 200_000 + 300_000
    assert found.saving_ns_per_step == pytest.approx(saved, rel=0.1)
    assert (found.saving.error_ns or 0) > 0 or found.saving.bound


def test_a_plan_that_asks_for_the_gather_is_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cut_outputs, "_layers", lambda flow, output: ("layers.0.attn.qkv", "layers.0.attn.out"))
    of_ranks = {"/home/me/train.py": {"9": '"head": ColwiseParallel(output_layouts=Replicate()),', str(PLAN): PLANNED}}
    monkeypatch.setattr(_cut_outputs.lines, "texts_of_ranks", lambda profile: of_ranks)
    found = told(tmp_path, "heads", monkeypatch)
    assert found is not None and found.where["line"] == PLAN
    assert '"attn.qkv": ColwiseParallel(), "attn.out": RowwiseParallel()' in found.paste


@pytest.mark.parametrize(("kind", "dimensions"), [("heads", [2, 3]), ("own part selected", [2, 3])])
def test_views_that_make_heads_and_put_them_together_take_those_that_are_there(
    kind: str, dimensions: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = list[list[int]]()
    whole = _cut_outputs._views

    def views(case: _cut_outputs.Case, flow: OperatorFlow, outputs: Sequence[CutOutput]) -> list[str]:
        taken.append(sorted(of for output in outputs for _, _, of in output.views))
        return whole(case, flow, outputs)

    monkeypatch.setattr(_cut_outputs, "_views", views)
    monkeypatch.setattr(_cut_outputs, "_by_hand", lambda case: False)
    monkeypatch.setattr(_cut_outputs, "_layers", lambda flow, output: ("layers.0.attn.qkv", "layers.0.attn.out"))
    assert told(tmp_path, kind, monkeypatch) is not None and taken[0] == dimensions


@pytest.mark.parametrize(
    "kind", ["rows of all", "norm of all", "for a loss", "in front of a layer", "read whole as well", "added up"]
)
def test_what_needs_all_parts_is_silent(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(tmp_path, kind, monkeypatch) is None


@pytest.mark.parametrize(
    ("shape", "places", "packed"),
    [
        ((2, 16, 8, 3, 32), {(2, 4)}, False),  # head by head: four of eight heads
        ((2, 16, 3, 8, 32), {(3, 4)}, True),  # query, key and value side by side
        ((2, 16, 768), {(2, 384)}, False),
        ((32, 768), {(1, 384)}, False),
        ((2, 16, 5, 7), None, False),  # not all of it
    ],
)
def test_where_the_parts_lie_in_a_view(
    shape: tuple[int, ...], places: set[tuple[int, int]] | None, packed: bool
) -> None:
    parts, side_by_side = _viewed(Parts((2, 16, 768), frozenset({(2, 384)})), shape, 2)
    assert (parts and set(parts.places)) == places and side_by_side is packed


def test_lines_of_plans_that_gather_are_noted() -> None:
    gathers = ['"q": ColwiseParallel(output_layouts=Replicate()),', "output_layouts=(Replicate(),)"]
    others = ["# output_layouts=Replicate()", "output_layouts=Shard(1)", "input_layouts=Replicate()"]
    assert [bool(sources._PLAN.search(text)) for text in (*gathers, *others)] == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("text", "dimension", "dimensions", "own"),
    [
        ("q = f(x).view(b, t, self.heads, d)", 2, 4, "q = f(x).view(b, t, -1, d)  # the heads of this rank"),
        ("q = x.reshape(b, -1, heads, d)", 2, 4, "q = x.reshape(b, -1, heads // 2, d)  # the heads of this rank"),
        (
            "y = o(a.view(1, 1).reshape(b, t, h * d))",
            2,
            3,
            "y = o(a.view(1, 1).reshape(b, t, -1))  # the heads of this rank",
        ),
        ("q = x.view(b, t, -1, d)", 2, 4, ""),  # as many as there are
        ("q = x.view(*x.shape[:2], heads, d)", 2, 4, ""),  # which of the sizes it is is not known
        ("q = split(x)", 2, 4, ""),
    ],
)
def test_a_view_takes_the_heads_that_are_there(text: str, dimension: int, dimensions: int, own: str) -> None:
    assert _cut_outputs.heads_of_rank(text, dimension, dimensions, 2) == own
