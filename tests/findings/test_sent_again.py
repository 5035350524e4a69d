"""NSX127: one tensor that several layers send, each by itself, and what only looks like that."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from nsysx.findings import _sent_again
from nsysx.findings._case import Saving
from nsysx.inject.nsysx_probe import sources
from nsysx.model import Finding
from tests.findings.lined import FILE
from tests.findings.test_added_reductions import BYTES, FIRST, SECOND, Both
from tests.findings.test_smaller_operators import operator
from tests.findings.test_widened_messages import GATHER
from tests.ranks.test_rank_table import ALL_REDUCE, noted

SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
PART, WHOLE, JOINED = "[4, 64, 128]", "[4, 128, 128]", "[8, 64, 128]"
LAYERS = ("wq", "wk", "wv")
GATHER_NS, COPY_NS, SCATTER_NS, HOST_NS = 200_000, 30_000, 250_000, 700_000
#: Kinds of programs that send by a function of autograd, and its name.
FUNCTIONS = {"DTensor": "Redistribute", "by hand": "Entered", "multiplies": "Entered", "slow host": "Redistribute"}
NODES = FUNCTIONS | {"functional": "GeneratedBackwardFor__c10d_functional_all_gather_into_tensor_default"}


def sent(program: Both, at: int, given: str, kind: str, layer: int) -> int:
    """A layer sends what it is given (operator and which of its results); return the number of what came."""
    begin, name, kernel = program.t, "_c10d_functional::all_gather_into_tensor", GATHER
    program.host(5)
    start = program.t
    if kind in ("reduced in place", "reduced as a copy"):
        name, kernel = "c10d::allreduce_", ALL_REDUCE
    program.launch(2 if kind == "slow host" else GATHER_NS / 1000, kernel)
    comm = 6 if (kind, layer) == ("other ranks", 1) else 5
    noted(program.main, "ncclAllGather", start, program.t, comm=comm, size=BYTES)
    if kind == "broadcast":
        name = "c10d::broadcast_"
    if kind == "functional":  # torch makes its gradient, within the operator
        text = f"{NODES[kind]}, seq = {at}, op_id = {at + 4}, sizes = [{PART}, []], input_op_ids = []"
        program.node(text, start + 1)
    program.node(f"{name}, op_id = {at + 1}, sizes = [{PART}, []], input_op_ids = [{given}, (0,-1)]", start)
    program.host(HOST_NS / 1000 if kind == "slow host" else 2)
    program.node(
        f"_c10d_functional::wait_tensor, op_id = {at + 2}, sizes = [{JOINED}], input_op_ids = [({at + 1},0)]",
        program.t - 1000,
    )
    if kind == "multiplies":
        operator(program, "mm", at + 9, [at + 2, -1], f"{JOINED}, {JOINED}", 20)
    operator(
        program,
        "cat",
        at + 3,
        [at + 2, at + 2, -1],
        f"{PART}, {PART}, []",
        2 if kind == "slow host" else COPY_NS / 1000,
        "CatArrayBatchedCopy",
    )
    if kind in FUNCTIONS:
        program.node(
            f"{FUNCTIONS[kind]}, seq = {at}, op_id = {at + 4}, sizes = [{WHOLE}, []], input_op_ids = []", begin
        )
    return at + 3


def given_to(program: Both, at: int, kind: str, layer: int) -> str:
    """What a layer sends: as a rule what operator ``at`` made."""
    number = at + 100 * (layer + 1)
    if kind == "of its own":
        operator(program, "mul", number + 50, [at, -1], f"{PART}, {PART}", 5, "mul")
        return f"({number + 50},0)"
    if kind == "written" and layer == 1:
        operator(program, "view", number + 50, [at, -1], f"{PART}, []")
        operator(program, "add_", number + 51, [number + 50, -1], f"{PART}, []", 5, "add")
    if kind == "read by a library":
        begin = program.t
        program.launch(5, "rotary_kernel")
        program.node(f"flash_attn::rotary, op_id = {number + 50}, sizes = [{PART}], input_op_ids = [({at},0)]", begin)
    if kind == "written by another name":  # as by x.data
        operator(program, "mul_", number + 50, [-1, -1], f"{PART}, []", 5, "mul")
    if kind == "a buffer":  # of which another collective makes something new each time
        begin = program.t
        program.launch(5, GATHER)
        text = (
            f"c10d::_allgather_base_, op_id = {number + 50}, sizes = [{PART}, [64]], input_op_ids = [({at},0), (0,-1)]"
        )
        program.node(text, begin)
    if kind in ("copied", "reduced as a copy"):
        operator(program, "clone", number + 50, [at, -1], f"{PART}, []", 5, "copy")
        return f"({number + 50},0)"
    if kind == "viewed":
        operator(program, "view", number + 50, [at, -1], f"{PART}, []")
        operator(program, "contiguous", number + 51, [number + 50, -1], f"{PART}, []")
        return f"({number + 51},0)"
    if kind == "turned" and layer == 1:
        operator(program, "transpose", number + 50, [at, -1, -1], f"{PART}, [], []")
        return f"({number + 50},0)"
    if kind == "older":
        return "(0,-1)"
    return f"({at},{layer if kind == 'other results' else 0})"


def step(program: Both, number: int, kind: str) -> None:
    """Three layers of one block that are given what operator ``at`` makes, each of which sends it, and its gradient in backward."""
    at = 1000 * number + 10
    if not number:
        for comm in (5, 6):
            noted(program.main, "ncclCommInitRankConfig", 1, 2, comm=comm, of=2, Rank=0)
    inside = program.line(25, "Net.forward"), program.range("net.attn:Attention")
    with program.line(20, "main"), program.range("forward"), program.range("net:Net"), inside[0], inside[1]:
        operator(program, "native_layer_norm", at, [-1, -1], f"{PART}, [128]", 50, "norm")
        came = sent(program, at + 100, given_to(program, at, kind, 0), kind, 0) if kind == "once" else -1
        for layer, name in enumerate(LAYERS):
            mine = at + 100 * (layer + 1)
            line = program.line(FIRST if layer < 2 else SECOND, "Attention.forward")
            with line, program.range(f"net.attn.{name}:Linear"), program.line(40, "Column.forward"):
                if kind != "once" and (kind != "in backward" or not layer):
                    came = sent(program, mine, given_to(program, at, kind, layer), kind, layer)
                operator(program, "linear", mine + 6, [came, -1], f"{WHOLE}, {WHOLE}", 100)
    if kind == "in backward":  # what was gathered is not kept, and gathered again there
        with program.range("backward"):
            sent(program, at + 200, f"({at},0)", kind, 1)
    with program.backward():
        for layer in range(3):
            mine = at + 100 * (layer + 1)
            operator(program, "mm", mine + 20, [-1, -1], f"{WHOLE}, {WHOLE}", 100)
            if kind in NODES:
                begin = program.t
                program.host(5)
                start = program.t
                program.launch(SCATTER_NS / 1000, SCATTER)
                noted(program.main, "ncclReduceScatter", start, program.t, comm=5, size=BYTES)
                program.node(f"{NODES[kind]}Backward, seq = {mine}, op_id = {mine + 21}, sizes = [{WHOLE}]", begin)
    program.sync()


def finding(folder: Path, kind: str, plan: str = "") -> Finding | None:
    """``plan``: what stands in a line of the program that is no line of a step."""
    program = Both()
    program.probe["of_ranks"] = {FILE: {"60": plan}} if plan else {}
    program.run(lambda program, number: step(program, number, kind))  # type: ignore[arg-type]
    found = program.found(folder, "NSX127")
    return next((f for f in found if f.evidence[0]["setting"] == "sent again"), None)


@pytest.mark.parametrize(
    ("kind", "saved_ns"),
    [
        ("DTensor", 2 * (GATHER_NS + COPY_NS + SCATTER_NS)),
        ("by hand", 2 * (GATHER_NS + COPY_NS + SCATTER_NS)),
        ("multiplies", 2 * GATHER_NS),  # only what the collective itself takes is known to go
        ("without gradients", 2 * GATHER_NS),
        ("functional", 2 * (GATHER_NS + SCATTER_NS)),
        ("copied", 2 * GATHER_NS),
        ("viewed", 2 * GATHER_NS),
        ("reduced as a copy", 2 * GATHER_NS),
    ],
)
def test_one_tensor_is_sent_once_for_all_that_read_it(kind: str, saved_ns: int, tmp_path: Path) -> None:
    found = finding(tmp_path, kind)
    assert found is not None and (found.where["file"], found.where["line"]) == (FILE, FIRST)
    assert [r.name for r in found.remedies] == ["input-gathered-once"]
    assert "wq, wk and wv of net.attn" in found.detail and "up to 3 times in a step" in found.detail
    assert found.saving.bound and found.saving_ns_per_step == pytest.approx(saved_ns, rel=0.05)


def test_the_plan_of_a_dtensor_names_its_layers_and_how_it_is_split(tmp_path: Path) -> None:
    found = finding(tmp_path, "DTensor")
    assert found is not None
    assert 'plan["attn"] = PrepareModuleInput(input_layouts=(Shard(1),),' in found.paste
    assert 'plan["attn.wq"] = plan["attn.wk"] = plan["attn.wv"] = ColwiseParallel()' in found.paste
    compile(found.paste, "paste", "exec")


@pytest.mark.parametrize(
    ("plan", "line"),
    [
        ('**{f"attn.{n}": ColwiseParallel(input_layouts=Shard(1)) for n in ("wq", "wk", "wv")},', True),
        ('"attn.wq": ColwiseParallel(),', False),
        ('"ffn.w1": ColwiseParallel(input_layouts=Shard(1)),', False),
    ],
)
def test_the_line_of_the_plan_that_asks_for_it(plan: str, line: bool, tmp_path: Path) -> None:
    found = finding(tmp_path, "DTensor", plan)
    assert found is not None and (found.where.get("line") == 60) == line
    assert bool(sources._PLAN.search(plan)) == ("Shard" in plan)


@pytest.mark.parametrize(
    "kind",
    [
        "once",
        "of its own",  # of one size: queries of one tensor, keys of another
        "other results",  # values and numbers of the largest
        "read by a library",  # which may have written into it
        "written by another name",
        "a buffer",
        "in backward",
        "reduced in place",
        "broadcast",  # by one rank after the other
        "older",  # it is not known what made it
    ],
)
def test_what_differs_is_sent_by_itself(kind: str, tmp_path: Path) -> None:
    assert finding(tmp_path, kind) is None


@pytest.mark.parametrize("kind", ["written", "turned", "other ranks"])
def test_only_two_of_three_are_alike(kind: str, tmp_path: Path) -> None:
    found = finding(tmp_path, kind)
    assert found is not None and "up to 2 times in a step" in found.detail
    assert found.saving_ns_per_step == pytest.approx(GATHER_NS, rel=0.05)


def test_the_host_code_of_what_goes_goes_too(tmp_path: Path) -> None:
    """Kernels of 2 us are waited for, and 700 us of the host's between two of them are DTensor's."""
    found = finding(tmp_path, "slow host")
    assert found is not None and found.saving_ns_per_step == pytest.approx(2 * (HOST_NS + SCATTER_NS), rel=0.1)


@pytest.mark.parametrize(
    ("pace", "transfer_ns", "saved_ns", "bound"),
    [
        (None, 0, 900, True),  # waits for other ranks are not told from transfers
        (7, 0, 900, False),
        (8, 300, 300, False),  # another rank of another report: what waits for it stays
        (8, 2000, 900, False),
    ],
)
def test_a_rank_that_waits_for_others_saves_its_transfers_alone(
    pace: int | None, transfer_ns: int, saved_ns: int, bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = _sent_again._SentInVain(frozenset({1}), frozenset(), frozenset({1}), frozenset({1}))
    case = SimpleNamespace(
        process=7,
        profile=SimpleNamespace(once=lambda make: [] if make is _sent_again._other_ranks else gone),
        worth=lambda *edits, bound=False: Saving(900, "replay", bound),
    )
    monkeypatch.setattr(_sent_again, "_pace", lambda case: pace)
    monkeypatch.setattr(_sent_again, "transfer_of_ops_ns", lambda case, ops: transfer_ns)
    worth = _sent_again.sent_once(case)  # type: ignore[arg-type]
    assert (worth.likely_ns, worth.bound) == (saved_ns, bound)
