"""NSX137: plans of static data that each layer makes again in each step, with the collectives and reads in them; and what only looks so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from nsysx.findings import _same_in_each_step
from nsysx.model import Finding
from nsysx.saving import Saving
from tests.findings.lined import FILE, Lined

LAYERS, LAST = 3, 10
LOSS, PLAN, LAYER, CHOSEN, SENT, MOVED = 5, 9, 11, 20, 21, 22
SOURCE = {
    LOSS: "loss = criterion(net(x, ids), target)",
    PLAN: "    plan = Plan(ids, *self.where)",
    LAYER: "    x = layer(x, plan)",
    CHOSEN: "wanted = torch.unique(ids[ids > border])",
    SENT: "dist.all_to_all_single(self.rows, wanted)",
    MOVED: "self.rows -= first",
}
IDS, ROWS, X, W = "[500000]", "[1500]", "[200, 64]", "[64, 64]"


def run(program: Lined, name: str, number: int, made: list[int], sizes: str, us: float = 0, sequence: int = -1) -> None:
    """An operator with a kernel; ``made``: what made its arguments, -1 for what is older, ``sequence``: the node that it makes next."""
    begin = program.t
    program.host(2)
    if us:
        program.launch(us, "ncclDevKernel_SendRecv" if name.startswith("c10d") else "gather")
    if name == "aten::_unique2":
        program.copy(2, "DtoH", bytes=8)
        program.sync()
    if program.noted is not None:
        makers = ", ".join(f"({max(each, 0)},{-1 if each < 0 else 0})" for each in made)
        seq = f"seq = {sequence}, " if sequence >= 0 else ""
        program.main.add_range(
            f"{name}, {seq}op_id = {number}, sizes = [{sizes}], input_op_ids = [{makers}]", begin, program.t
        )


def plan(program: Lined, at: int, ids: int, kind: str) -> None:
    """A plan of ids: which are chosen (600 us), what a rank is told of them (100 us), and their numbers here (200 us, ``at`` + 5)."""
    with program.line(PLAN):
        with program.line(CHOSEN, "Plan.__init__"):
            if kind == "handed on":  # it has the type already, and the number of what has found so last
                before = at - 10 if at % 1000 > 120 else (at - 950 if at > 9000 else -1)
                run(program, "aten::to", at + 10, [before, -1], f"{IDS}, []")
                ids = at + 10
            run(program, "aten::gt", at, [ids, -1], f"{IDS}, []", 100)
            run(program, "aten::index", at + 1, [ids, at], f"{IDS}, {IDS}", 200)
            run(program, "aten::_unique2", at + 2, [at + 1, -1], f"{ROWS}, []", 300)
        with program.line(SENT, "Plan.__init__"):
            room = -1 if kind == "a buffer that is kept" else at + 3
            run(program, "aten::new_empty", at + 3, [at + 2, -1], f"{ROWS}, []")
            run(program, "c10d::alltoall_base_", at + 4, [room, at + 2, -1], f"{ROWS}, {ROWS}, []", 100)
        with program.line(MOVED, "Plan.__init__"):
            run(
                program,
                "aten::sub_",
                at + 5,
                [at + 4, -1],
                f"{ROWS}, []",
                200,
                at if kind == "before a function" else -1,
            )


def step(program: Lined, number: int, *, kind: str = "same", share: float = 1.0) -> None:
    """A network of layers (500 us each), each of which makes the plan by itself, from ids that are older than the steps."""
    at, node = 1000 * number + 100, 100 * number
    ids, x, nodes = -1, at + 3, [node + layer for layer in range(LAYERS)]
    with program.line(LOSS):
        if kind == "same data":
            run(program, "aten::linear", x, [-1, -1], f"[200, 96], {W}", 50, node + LAYERS)
            nodes.append(node + LAYERS)
        else:
            run(program, "aten::randint", at, [-1], "[]", 5)
            run(program, "aten::index", x, [-1, at], "[5000, 64], [200]", 50)
        if kind == "ids of the batch":
            run(program, "aten::index", at + 4, [-1, at], "[900000], [500000]", 50)
            ids = at + 4
        elif kind == "drawn":
            run(program, "aten::bernoulli", at + 4, [-1], IDS, 50)
            ids = at + 4
    with program.range("forward"), program.range("net:Net"):
        for layer in range(LAYERS):
            at += 20
            if kind != "once" or not layer:
                plan(program, at, ids, kind)
            with program.line(LAYER), program.range(f"net.layers.{layer}:Layer"):
                rows = at + 5 if kind != "once" else 1000 * number + 125
                run(program, "aten::index_select", at + 6, [x, -1, rows], f"{X}, [], {ROWS}", 50, node + layer)
                run(program, "aten::linear", at + 7, [at + 6, -1], f"{X}, {W}", 450 * share, node + layer)
                x = at + 7
    with program.range("backward"):
        for each in nodes:
            begin = program.t
            program.launch(100)
            if program.noted is not None:
                program.main.add_range(f"AddmmBackward0, seq = {each}", begin, program.t)
                if kind == "before a function":
                    program.main.add_range(f"FetchBackward, seq = {1000 * number + 120}", begin, program.t)
    if kind == "same data":  # parts of the gradients, which have the number of the next step's first node
        if number == LAST:  # it shows something, too: the step before it is the one that others repeat
            program.launch(5, "softmax")
        run(program, "aten::split", at + 8, [-1, -1], "[900], []", 5)
        run(program, "aten::copy_", at + 9, [-1, at + 8], "[30, 30], [30, 30]", 5, node + 100 + LAYERS)
    if kind == "written":
        run(program, "aten::copy_", at + 9, [-1, x], f"{IDS}, {IDS}", 5)
    program.sync()


def told(folder: Path, source: dict[int, str] = SOURCE, **kind: object) -> Finding:
    def body(program: Lined, number: int) -> None:
        step(program, number, **kind)  # type: ignore[arg-type]

    return Lined(source).run(body).finding(folder, "NSX137")


def test_a_plan_that_each_layer_makes_again_in_each_step(tmp_path: Path) -> None:
    found = told(tmp_path)
    assert found.title.startswith(f"train.py:{PLAN} computes the same {LAYERS} times in each step: ")
    assert (found.where["file"], found.where["line"]) == (FILE, PLAN)
    assert "The ranks tell each other the same in each step, too" in found.detail
    assert (
        f"The most of it, in Plan: train.py:{CHOSEN} (1.81 ms), train.py:{MOVED} (600 us), train.py:{SENT} (300 us)."
        in found.detail
    )
    assert f"keep the result: Plan comes out the same {LAYERS} times in each step" in found.remedies[0].text
    assert [way.name for way in found.remedies] == ["computed-once"]
    assert found.saving_ns_per_step == pytest.approx(LAYERS * 900_000, rel=0.05) and not found.saving.bound


@pytest.mark.parametrize("line", ["plan = Plan(ids, *self.where)", "plan = Plan(ids, *where)  # of all layers"])
def test_the_line_to_keep_runs(line: str, tmp_path: Path) -> None:
    """The first step makes it, with the line's own names; later ones take it, whatever stands there by then."""
    found, made = told(tmp_path, SOURCE | {PLAN: line}), list[object]()

    def of_ids(ids: object, *where: object) -> object:
        made.append((ids, *where))
        return made

    names: dict[str, object] = {"Plan": of_ids, "ids": 3, "where": (0, 2)}
    names["self"] = type("Net", (), {"where": (0, 2)})()
    first, *lines = found.paste.splitlines()
    if "self" in line:  # each layer keeps its own
        lines = [first, *lines]
    else:
        exec(first, names)
    for _ in range(LAYERS):
        exec("\n".join(lines), names)
    assert made == [(3, 0, 2)] and names["plan"] is made


def test_a_line_that_makes_something_of_the_step_besides_is_not_to_be_kept(tmp_path: Path) -> None:
    def body(program: Lined, number: int) -> None:
        at = 1000 * number + 100
        with program.line(CHOSEN):
            run(program, "aten::arange", at, [-1], "[]")
            run(program, "aten::exp", at + 1, [at], X, 300)
            run(program, "aten::randint", at + 2, [-1], "[]", 5)
            run(program, "aten::mul", at + 3, [at + 2, at + 1], f"{X}, {X}", 1000)
        program.sync()

    source = {CHOSEN: "x = torch.randint(9, size) * torch.arange(64).exp()"}
    found = Lined(source).run(body).finding(tmp_path, "NSX137")
    assert found.title.startswith(f"train.py:{CHOSEN} computes the same in each step: ") and "kept" not in found.paste


@pytest.mark.parametrize("early", [True, False])
def test_a_program_that_ends_before_the_xray_at_the_end_of_its_capture(early: bool, tmp_path: Path) -> None:
    """The one step in it, which all resemble, has none before it: what the steps at the start took from those before them holds for it."""
    program = Lined(SOURCE).run(step, 12, 1, early=3 if early else 0)
    found = program.finding(tmp_path, "NSX137")
    assert (found.verdict == "found") is early
    if early:
        assert found.title.startswith(f"train.py:{PLAN} computes the same {LAYERS} times in each step: ")
        assert found.cost_ns_per_step == pytest.approx(LAYERS * 900_000, rel=0.05)


def test_a_tensor_that_is_handed_on_as_it_is_is_as_old_as_before(tmp_path: Path) -> None:
    assert told(tmp_path, kind="handed on").title.startswith(
        f"train.py:{PLAN} computes the same {LAYERS} times in each step: "
    )


def test_a_line_that_names_the_step_may_make_something_else_in_each(tmp_path: Path) -> None:
    source = SOURCE | {CHOSEN: "wanted = torch.unique(ids[ids > border * step])"}
    assert told(tmp_path, source).verdict == "cannot_tell"


@pytest.mark.parametrize("sends", ["dist.broadcast_object_list(rows, src=0)", "dist.broadcast(self.rows, src=0)"])
def test_what_another_rank_sends_may_be_new_in_each_step(sends: str, tmp_path: Path) -> None:
    """A batch that one rank reads for all: on the others nothing goes into it but an empty tensor."""
    found = told(tmp_path, SOURCE | {SENT: sends})
    assert found.where["line"] == CHOSEN and found.cost_ns_per_step == pytest.approx(LAYERS * 600_000, rel=0.05)


def test_a_plan_that_each_step_makes_once(tmp_path: Path) -> None:
    found = told(tmp_path, kind="once")
    assert found.title.startswith(f"train.py:{PLAN} computes the same in each step: ")
    assert found.cost_ns_per_step == pytest.approx(900_000, rel=0.05)


def test_the_operator_before_a_function_with_a_gradient_of_its_own_is_not_trained(tmp_path: Path) -> None:
    """It has the number of that function's node. Nor is the last one of a step, which has the number of the next step's first node."""
    for kind in ("before a function", "same data"):
        found = told(tmp_path, kind=kind)
        assert found.title.startswith(f"train.py:{PLAN} computes the same {LAYERS} times in each step: "), kind
        assert found.cost_ns_per_step == pytest.approx(LAYERS * 900_000, rel=0.05)


@pytest.mark.parametrize("kind", ["ids of the batch", "drawn", "written"])
def test_what_is_another_one_in_each_step(kind: str, tmp_path: Path) -> None:
    assert told(tmp_path, kind=kind).verdict == "cannot_tell"  # what the collectives' kernels read


def test_what_is_received_in_a_buffer_that_is_kept_is_not_told(tmp_path: Path) -> None:
    """Who else writes there is not seen: what is chosen is the same all the same."""
    found = told(tmp_path, kind="a buffer that is kept")
    assert found.where["line"] == CHOSEN and "The ranks" not in found.detail
    assert found.cost_ns_per_step == pytest.approx(LAYERS * 600_000, rel=0.05)


def test_a_plan_that_takes_little_of_the_step(tmp_path: Path) -> None:
    assert told(tmp_path, kind="once", share=60).verdict == "cannot_tell"


def tables(program: Lined, number: int, us: float, lines: int) -> None:
    """Lines that each make a table of their own, which rows of the step are multiplied with: 1 ms each."""
    at = 1000 * number + 100
    for line in range(lines):
        at += 10
        with program.line(CHOSEN + line):
            run(program, "aten::arange", at, [-1], "[]")
            run(program, "aten::exp", at + 1, [at], X, us)
        with program.line(LAYER):
            run(program, "aten::randint", at + 2, [-1], "[]", 5)
            run(program, "aten::mul", at + 3, [at + 2, at + 1], f"{X}, {X}", 1000)
    program.sync()


def test_lines_that_each_take_little_are_told_together(tmp_path: Path) -> None:
    source = {CHOSEN + line: f"table{line} = torch.arange(64).exp()" for line in range(3)}

    def told_of(us: float, folder: str) -> Finding:
        (tmp_path / folder).mkdir()
        return (
            Lined(source)
            .run(lambda program, number: tables(program, number, us, 3))
            .finding(tmp_path / folder, "NSX137")
        )

    found = told_of(120, "many")
    assert found.title.startswith("3 lines compute the same in each step: ")
    assert found.saving_ns_per_step == pytest.approx(360_000, rel=0.05)
    assert "They are in train.py:20, train.py:21, train.py:22." in found.detail
    assert told_of(40, "few").verdict == "clear"


@pytest.mark.parametrize(
    ("others", "together", "meanwhile", "likely_us", "least_us", "most_us"),
    [
        ((), 0, 0, 100, 90, 130),
        ((7,), 0, 0, 100, 90, 130),  # no rank of the job
        ((2,), 0, 0, 120, 90, 140),
        ((2,), 1, 0, 100, 90, 140),  # what both compute at once is saved once
        ((2,), 1, 0.5, 85, 60, 140),  # and half of the idle time is the other's work
    ],
)
def test_ranks_that_share_the_gpu_each_leave_it_to_the_others(
    others: tuple[int, ...],
    together: float,
    meanwhile: float,
    likely_us: int,
    least_us: int,
    most_us: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 40 us of each rank's work between nothing and all is saved besides; what is no rank computes them still."""
    shares = {0: together, 100_000: meanwhile}  # by when the spans begin
    monkeypatch.setattr(_same_in_each_step, "others_of_gpu", lambda profile: [(process, 0) for process in others])
    monkeypatch.setattr(_same_in_each_step.peers, "ranks", lambda profile: (1, 2))
    monkeypatch.setattr(_same_in_each_step, "working_share", lambda _, others, start, end: shares[int(start[0])])
    worth = Saving(100_000, bound=True, error_ns=10_000, most_ns=130_000)
    ops, idle = (
        pl.DataFrame({"start_ns": [start], "end_ns": [end]}) for start, end in ((0, 40_000), (100_000, 160_000))
    )
    case = SimpleNamespace(profile=None, per_step=round)
    shared = _same_in_each_step.on_all_ranks(case, worth, ops, idle)  # type: ignore[arg-type]
    assert (shared.likely_ns, shared.most_ns) == (likely_us * 1000, most_us * 1000) and not shared.bound
    assert (shared.likely_ns or 0) - (shared.error_ns or 0) == least_us * 1000
